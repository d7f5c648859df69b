-- Ranks whose rows are on devices, emulated: what exchanges, tensors and graphs do there that they
-- do not do elsewhere. That rows arrive is told by the specs of spec/exchange, which run there too
-- (CPLAB_TRANSPORT=cuda-emulated).
local device = require "spec.support.on_device"
local counts = require "spec.exchange.counts"

local it_there = device.it(it, pending)

-- Steps of conversions and their adjoints; how often the host waited for a device.
local function count_waits(comm, p)
    local C = require("clib").C
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local stream, rank = rows.stream("thd", comm:size()), comm:rank()
    local z = rows.layout("zigzag", stream, comm:size())
    local c = rows.layout("contiguous", stream, comm:size())
    local halo = rows.view("halo", z)
    local out = { wrong = 0, syncs = 0 }
    for _, method in ipairs(p.methods) do
        local plan = exchange.plan(route(z, c), comm, "f32", 8, method)
        local view = exchange.plan(route(z, halo), comm, "f32", 8, method)
        local x = rows.tensor("f32", z:n_local(rank), 8):fill_positions(z:positions(rank))
        local y = rows.tensor("f32", c:n_local(rank), 8)
        local h = rows.tensor("f32", halo:n_local(rank), 8)
        C.cpl_counters_reset()
        for _ = 1, 3 do
            plan:convert(x, y)
            view:convert(x, h)
            view:adjoint(h, x)
            plan:adjoint(y, x)
        end
        out.syncs = out.syncs + tonumber(C.cpl_counters_here().host_syncs)
        plan:convert(x, y)
        if y:first_wrong(c:positions(rank)) then out.wrong = out.wrong + 1 end
        -- The control: looking at rows is a wait, and counted.
        C.cpl_counters_reset()
        y:look()
        out.looks = tonumber(C.cpl_counters_here().host_syncs)
    end
    return out
end

-- Traced steps of a conversion and its adjoint, all checked; in the second one two positions of
-- rank 1 are exchanged, of which the third must not hear. On the CPU, too.
local function trace_steps(comm, p)
    local clib = require "clib"
    local C, ffi = clib.C, clib.ffi
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local stream, rank = rows.stream("thd", comm:size()), comm:rank()
    local z = rows.layout("zigzag", stream, comm:size())
    local c = rows.layout("contiguous", stream, comm:size())
    local plan = exchange.plan(route(z, c), comm, "f32", 3, p.method)
    local x = rows.tensor("f32", z:n_local(rank), 3):fill_positions(z:positions(rank))
    local y = rows.tensor("f32", c:n_local(rank), 3)
    local function plant()
        local trace = x:trace()
        trace[1], trace[2] = trace[2], trace[1]
        clib.check(C.cpl_tensor_set_trace(x._ptr, trace))
    end
    local function check(tensor, layout, who)
        clib.check(C.cpl_trace_check(tensor._ptr, layout._ptr, rank, who))
    end
    local out = {}
    for i, planted in ipairs { false, true, false } do
        x:mark(z, rank, true)
        if planted and rank == 1 then plant() end
        C.cpl_counters_reset()
        check(x, z, planted and "before" or "a name that is " .. ("long "):rep(20))
        plan:convert(x, y)
        check(y, c, "there")
        plan:adjoint(y, x)
        check(x, z, "back")
        local counters, first = C.cpl_counters_here(), ffi.new "cpl_first_wrong"
        local syncs = tonumber(counters.host_syncs)
        clib.check(C.cpl_trace_settle(comm._ptr))
        C.cpl_trace_first_wrong(first)
        out[i] = { syncs = syncs, still = tonumber(counters.host_syncs) - syncs,
            checks = tonumber(counters.trace_checks), wrong = tonumber(counters.wrong_rows),
            check = tonumber(first.check), sentence = ffi.string(first.sentence),
            right = not x:first_wrong(z:positions(rank)) }
        x:mark(z, rank, false)
    end
    return out
end

-- Three microbatches whose routes differ, through one graph, and without it.
local function replay(comm, p)
    local C = require("clib").C
    local cplab = require "cplab"
    local exchange = require "cplab.exchange"
    local rows = require "spec.exchange.rows"
    local rank, cp, wrong = comm:rank(), comm:size(), {}
    local unit = 2 * cp
    local function batch(lengths)
        local s = cplab.stream.thd { lengths = lengths }
        local z, c = cplab.layout.zigzag(s, { cp = cp }), cplab.layout.contiguous(s, { cp = cp })
        return { z = z, c = c,
            plan = exchange.plan(cplab.route(z, c), comm, "f32", p.width, p.method) }
    end
    local batches = { batch { 6 * unit }, batch { unit, 2 * unit, 3 * unit },
        batch { 4 * unit, 2 * unit } }
    local n = batches[1].z:n_local(rank)
    local x, y = rows.tensor("f32", n, p.width), rows.tensor("f32", n, p.width)
    local graph = exchange.graph(batches[1].plan, x, y, p.room)
    local syncs = 0
    for round = 1, 2 do
        for i, b in ipairs(batches) do
            C.cpl_tensor_unmark(x._ptr)
            x:fill_positions(b.z:positions(rank))
            y:poison()
            C.cpl_counters_reset()
            graph:replay(b.plan)
            syncs = syncs + tonumber(C.cpl_counters_here().host_syncs)
            if y:first_wrong(b.c:positions(rank)) then
                wrong[#wrong + 1] = ("round %d, batch %d"):format(round, i)
            end
            if y._ptr.layout ~= C.cpl_layout_digest(b.c._ptr) then wrong[#wrong + 1] = "mark" end
        end
    end
    local differ = batches[1].z:describe() ~= batches[2].z:describe()
    return { wrong = wrong, syncs = syncs, captures = graph:captures(), differ = differ }
end

-- More lists of runs than a device keeps: one for every layout that rows are said to be of.
local function many_lists(comm, p)
    local clib = require "clib"
    local C = clib.C
    local cplab = require "cplab"
    local rows = require "spec.exchange.rows"
    local rank, cp = comm:rank(), { cp = comm:size() }
    local x = rows.tensor("f32", 2 * p.n, 1)
    C.cpl_counters_reset()
    for i = 1, p.n - 1 do
        local s = cplab.stream.thd { lengths = { 4 * i, 4 * (p.n - i) } }
        local z = cplab.layout.zigzag(s, cp)
        x:mark(z, rank, true)
        clib.check(C.cpl_trace_check(x._ptr, z._ptr, rank, "check " .. i))
        if i == p.n - 1 then
            local last = cplab.layout.contiguous(s, cp)
            C.cpl_tensor_unmark(x._ptr)
            clib.check(C.cpl_trace_check(x._ptr, last._ptr, rank, "last"))
        end
    end
    local counters, first = C.cpl_counters_here(), clib.ffi.new "cpl_first_wrong"
    local syncs = tonumber(counters.host_syncs)
    clib.check(C.cpl_trace_settle(comm._ptr))
    C.cpl_trace_first_wrong(first)
    return { syncs = syncs, wrong = tonumber(counters.wrong_rows), check = tonumber(first.check),
        sentence = clib.ffi.string(first.sentence) }
end

-- Two routes that only swap rows, to contiguous: from mirror, and from where neighbours have each
-- other's last rows. There or back, in place or out of place, by what p says.
local function replay_ways(comm, p)
    local C = require("clib").C
    local cplab = require "cplab"
    local exchange = require "cplab.exchange"
    local rows = require "spec.exchange.rows"
    local rank, cp, n, wrong = comm:rank(), comm:size(), 12, {}
    local s, neighbours = cplab.stream.thd { lengths = { n * cp } }, {}
    for r = 0, cp - 1 do
        local other = r % 2 == 0 and r + 1 or r - 1
        neighbours[r + 1] = { { r * n, 5 }, { other * n + 5, 7 } }
    end
    local c, batches = cplab.layout.contiguous(s, { cp = cp }), {}
    for i, m in ipairs { cplab.layout.mirror(s, { cp = cp }),
        cplab.layout.custom(s, { ranks = neighbours }) } do
        local from, to = p.adjoint and c or m, p.adjoint and m or c
        batches[i] = { from = from:positions(rank), to = to:positions(rank),
            digest = C.cpl_layout_digest(to._ptr),
            plan = exchange.plan(cplab.route(m, c), comm, "f32", p.width, p.method) }
    end
    local x = rows.tensor("f32", n, p.width)
    local y = p.in_place and x or rows.tensor("f32", n, p.width)
    local make = p.adjoint and exchange.adjoint_graph or exchange.graph
    local graph = make(batches[1].plan, x, y, p.room)
    for round = 1, 2 do
        for i, b in ipairs(batches) do
            C.cpl_tensor_unmark(x._ptr)
            if y ~= x then y:poison() end
            x:fill_positions(b.from)
            graph:replay(b.plan)
            if y:first_wrong(b.to) or y._ptr.layout ~= b.digest then
                wrong[#wrong + 1] = ("round %d, batch %d"):format(round, i)
            end
        end
    end
    return { wrong = wrong, captures = graph:captures() }
end

local function refuse_ways(comm)
    local cplab = require "cplab"
    local exchange = require "cplab.exchange"
    local rows = require "spec.exchange.rows"
    local s, cp = cplab.stream.thd { lengths = { 32 } }, { cp = comm:size() }
    local z, c = cplab.layout.zigzag(s, cp), cplab.layout.contiguous(s, cp)
    local halo = rows.view("halo", z)
    local x, h = rows.tensor("f32", 8, 2), rows.tensor("f32", halo:n_local(comm:rank()), 2)
    local way = exchange.plan(cplab.route(z, c), comm, "f32", 2, "copy")
    local view = exchange.plan(cplab.route(z, halo), comm, "f32", 2, "copy")
    return { select(2, pcall(exchange.graph, way, x, x, 64)),
        select(2, pcall(exchange.adjoint_graph, view, h, x, 64)) }
end

local function refuse_graphs(comm, p)
    local cplab = require "cplab"
    local exchange = require "cplab.exchange"
    local rows = require "spec.exchange.rows"
    local rank, cp = comm:rank(), comm:size()
    local unit = 2 * cp
    local function plan(lengths, width, method)
        local s = cplab.stream.thd { lengths = lengths }
        local z, c = cplab.layout.zigzag(s, { cp = cp }), cplab.layout.contiguous(s, { cp = cp })
        return exchange.plan(cplab.route(z, c), comm, "f32", width, method), z:n_local(rank)
    end
    local first, n = plan({ 6 * unit }, 3, p.method)
    local x, y = rows.tensor("f32", n, 3), rows.tensor("f32", n, 3)
    local graph = exchange.graph(first, x, y, p.room)
    local function why(...)
        local ok, message = pcall(graph.replay, graph, (plan(...)))
        return ok and "replayed" or message
    end
    local out = { width = why({ 6 * unit }, 4, p.method), rows = why({ 5 * unit }, 3, p.method),
        method = why({ 6 * unit }, 3, p.other),
        none = select(2, pcall(exchange.graph, first, x, y, 0)) }
    comm:barrier()
    graph:replay(first)
    out.room = why({ unit, unit, unit, 3 * unit }, 3, p.method)
    return out
end

-- Streams that are late: an event that nobody waits for shows.
setup(function() device.set("delay", "200") end)
teardown(function() device.set("delay", "0") end)

describe("rows on a device", function()
    for _, n in ipairs(counts.of { 1, 4, 8 }) do
        it_there(("move without a wait of the host, %d ranks"):format(n), function()
            local results = device.run("direct", n, count_waits,
                { methods = { "copy", "direct", "packed", "alltoallv" } })
            for _, result in ipairs(results) do
                assert.same({ wrong = 0, syncs = 0, looks = 1 }, result)
            end
        end)
        it_there(("move without a wait of the host by NCCL, %d ranks"):format(n), function()
            local results = device.run("nccl", n, count_waits,
                { methods = { "direct", "packed", "alltoallv" } })
            for _, result in ipairs(results) do
                assert.same({ wrong = 0, syncs = 0, looks = 1 }, result)
            end
        end)
    end

    for _, transport in ipairs { "direct", "nccl" } do
        it_there("are traced and checked without a wait, and say what the CPU says: " .. transport,
            function()
                local payload = { method = "packed" }
                local there = device.run(transport, 4, trace_steps, payload)
                assert.same(require("spec.support.ranks").run(4, trace_steps, payload), there)
                local wrong = 0
                for _, steps in ipairs(there) do
                    local planted = steps[2]
                    for _, right in ipairs { steps[1], steps[3] } do
                        assert.same({ 0, 0, 3, 0, "", true }, { right.syncs, right.still,
                            right.checks, right.wrong, right.sentence, right.right })
                    end
                    assert.same({ 0, 0 }, { planted.syncs, planted.still })
                    wrong = wrong + planted.wrong
                end
                -- Two rows before, there and back.
                assert.equal(6, wrong)
                assert.matches("^before, rank 1, slot 1: expected position %d+, found %d+$",
                    there[2][2].sentence)
            end)
    end

    it_there("are traced with more lists of runs than are kept there", function()
        local results = device.run("direct", 2, many_lists, { n = 300 })
        for rank, result in ipairs(results) do
            assert.same({ 1, 300 }, { result.syncs, result.check })
            assert.is_true(result.wrong > 0)
            assert.matches("^last, rank " .. rank - 1 .. ", slot %d+: expected position %d+, found "
                .. "%d+$", result.sentence)
        end
    end)

    it_there("are filled, copied and compared there, and refuse to meet rows elsewhere", function()
        local results = device.run("direct", 2, function(comm)
            local clib = require "clib"
            local C = clib.C
            local tensor = require "cplab.tensor"
            local t = tensor.from({ 1, 2, 3, 4 }, { 2, 2 }, "f32")
            local half = tensor.zeros({ 2, 2 }, "f32"):fill(0.5)
            local copy = t:copy()
            tensor.live_in(nil)
            local here = tensor.from({ 5, 6, 7, 8 }, { 2, 2 }, "f32")
            local _, pointer = pcall(t.pointer, t)
            local sum = comm:sum_tensor(copy)
            return { device = t:device(), list = t:totable(), half = half:totable(),
                copy = sum:totable(), pointer = pointer,
                mixed = C.cpl_tensor_copy(t._ptr, here._ptr) == C.CPL_MISMATCH
                    and clib.ffi.string(C.cpl_last_error()),
                difference = C.cpl_tensor_difference(t._ptr, here._ptr, nil,
                    clib.ffi.new "cpl_difference") == C.CPL_UNSUPPORTED }
        end)
        for rank, result in ipairs(results) do
            local name = "cuda-emulated " .. rank - 1
            assert.equal(name, result.device)
            assert.same({ { 1, 2, 3, 4 }, { 0.5, 0.5, 0.5, 0.5 }, { 2, 4, 6, 8 } },
                { result.list, result.half, result.copy })
            assert.equal("tensor: a copy from cpu to " .. name, result.mixed)
            assert.matches("the tensor lies on " .. name, result.pointer, 1, true)
            assert.is_true(result.difference)
        end
    end)

    it("T-09: a route on another device than the tensor is refused", function()
        if device.missing() then pending(device.missing()) end
        local results = device.run("direct", 2, function(comm)
            local cplab = require "cplab"
            local exchange = require "cplab.exchange"
            local rows = require "spec.exchange.rows"
            local tensor = require "cplab.tensor"
            local s = cplab.stream.thd { lengths = { 8 } }
            local z, c = cplab.layout.zigzag(s, { cp = 2 }), cplab.layout.contiguous(s, { cp = 2 })
            local plan = exchange.plan(cplab.route(z, c), comm, "f64", 1)
            local there = tensor.zeros({ 4, 1 }, "f64")
            tensor.live_in(nil)
            local here = tensor.zeros({ 4, 1 }, "f64")
            local _, source = pcall(plan.convert, plan, here, there)
            local _, target = pcall(plan.convert, plan, there, here)
            local alone = cplab.stream.thd { lengths = { 4 } }
            local one = cplab.layout.contiguous(alone, { cp = 1 })
            local self = require("cplab.comm").self()
            local on_cpu = exchange.plan(cplab.route(one, one), self, "f64", 1)
            local _, other = pcall(on_cpu.convert, on_cpu, there, here)
            assert(rows.device_memory() == nil)
            return { source, target, other }
        end)
        for rank, result in ipairs(results) do
            local name = "cuda-emulated " .. rank - 1
            assert.matches(("exchange: src lies on cpu, but rank %d of .* moves rows on %s")
                :format(rank - 1, (name:gsub("%-", "%%-"))), result[1])
            assert.matches("exchange: dst lies on cpu", result[2], 1, true)
            assert.matches("exchange: src lies on " .. name, result[3], 1, true)
            assert.matches("moves rows on cpu", result[3], 1, true)
        end
    end)
end)

-- The method that auto takes for few pieces, and for many.
local function choose_methods(comm)
    local cplab = require "cplab"
    local exchange = require "cplab.exchange"
    local s = cplab.stream.thd { lengths = { 2 ^ 12 } }
    local function method(from, to)
        return exchange.plan(cplab.route(from, to), comm, "f32", 2 ^ 12):method()
    end
    local c = cplab.layout.contiguous(s, { cp = comm:size() })
    return { method(cplab.layout.zigzag(s, { cp = comm:size() }), c),
        method(cplab.layout.striped(s, { cp = comm:size(), block = 1 }), c) }
end

describe("auto", function()
    it_there("copies where ranks reach each other; NCCL sends few runs, and packs many", function()
        for transport, methods in pairs { direct = { "copy", "copy" },
            nccl = { "direct", "packed" } } do
            for _, result in ipairs(device.run(transport, 4, choose_methods)) do
                assert.same(methods, result)
            end
        end
    end)
end)

describe("a graph", function()
    it_there("is captured once, and the routes of other microbatches go through it", function()
        local results = device.run("direct", 4, replay, { method = "copy", room = 64, width = 8 })
        for _, result in ipairs(results) do
            assert.same({ wrong = {}, syncs = 0, captures = 1, differ = true }, result)
        end
    end)

    it_there("reaches more ranks than one launch does, and none of an earlier route", function()
        local results = device.run("direct", 18, replay, { method = "copy", room = 64, width = 4 })
        for _, result in ipairs(results) do
            assert.same({ wrong = {}, syncs = 0, captures = 1, differ = true }, result)
        end
    end)

    it_there("of NCCL is captured for each route, and found again by its digest", function()
        local results = device.run("nccl", 4, replay, { method = "packed", room = 3, width = 3 })
        for _, result in ipairs(results) do
            assert.same({ wrong = {}, syncs = 0, captures = 3, differ = true }, result)
        end
    end)

    for _, transport in ipairs { "direct", "nccl" } do
        for _, place in ipairs { "out of place", "in place" } do
            for _, pass in ipairs { "forward", "adjoint" } do
                it_there(("carries rows %s, %s, %s"):format(pass, place, transport), function()
                    local direct = transport == "direct"
                    local results = device.run(transport, 4, replay_ways, {
                        method = direct and "copy" or "packed", room = direct and 64 or 2,
                        width = 5, adjoint = pass == "adjoint", in_place = place == "in place" })
                    for _, result in ipairs(results) do
                        assert.same({ wrong = {}, captures = direct and 1 or 2 }, result)
                    end
                end)
            end
        end
    end

    it_there("of any route refuses what adds rows, and in place what is no swap", function()
        for _, said in ipairs(device.run("direct", 4, refuse_ways)) do
            assert.matches("graph: in place it only swaps rows between pairs of ranks, and "
                .. "zigzag.* needs more", said[1])
            assert.matches("rows repeat, and the adjoint would add them: it only moves them",
                said[2], 1, true)
        end
    end)

    it_there("refuses another row, other rows, another method, and what it has no room for",
        function()
            local results = device.run("direct", 2, refuse_graphs,
                { method = "copy", other = "packed", room = 3 })
            for _, result in ipairs(results) do
                assert.matches("graph: captured for 12 %-> 12 rows of 3 f32, but .* moves "
                    .. "12 %-> 12 rows of 4 f32", result.width)
                assert.matches("graph: along zigzag.* a rank receives %d+ pieces, but the graph "
                    .. "has room for 3", result.room)
                assert.matches("moves 10 %-> 10 rows of 3 f32", result.rows)
                assert.matches('graph: it carries plans by "copy", not by "packed"',
                    result.method)
                assert.matches("graph: room for 0, not >= 1", result.none)
            end
        end)

    it_there("of NCCL refuses more routes than it has room for", function()
        local results = device.run("nccl", 2, refuse_graphs,
            { method = "packed", other = "packed", room = 1 })
        for _, result in ipairs(results) do
            assert.matches("would be capture 2, but it has room for 1 routes", result.room)
        end
    end)

    it("is not of rows on the CPU", function()
        local ranks = require "spec.support.ranks"
        local results = ranks.run(2, function(comm)
            local cplab = require "cplab"
            local exchange = require "cplab.exchange"
            local s = cplab.stream.thd { lengths = { 8 } }
            local z = cplab.layout.zigzag(s, { cp = 2 })
            local plan = exchange.plan(cplab.route(z, z), comm, "f64", 1)
            local t = cplab.tensor.zeros({ 4, 1 }, "f64")
            return select(2, pcall(exchange.graph, plan, t, t, 1))
        end)
        local device_name = ranks.device()
        for _, message in ipairs(results) do
            if device_name == "cpu" then
                assert.matches("graph: rows on the cpu are not captured", message, 1, true)
            end
        end
    end)
end)
