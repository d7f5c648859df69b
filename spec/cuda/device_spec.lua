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

    it_there("of NCCL is captured for each route, and found again by its digest", function()
        local results = device.run("nccl", 4, replay, { method = "packed", room = 3, width = 3 })
        for _, result in ipairs(results) do
            assert.same({ wrong = {}, syncs = 0, captures = 3, differ = true }, result)
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
