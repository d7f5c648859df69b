local counts = require "spec.exchange.counts"
local ranks = require "spec.support.ranks"

local on = counts.on(it)

local dtypes = { { "f64", 1 }, { "f32", 3 }, { "bf16", 5 }, { "i32", 1 }, { "i64", 7 } }
local methods = counts.methods { "copy", "direct", "packed", "alltoallv" }

-- On emulated devices each exchange takes many times as long: fewer kinds and dtypes, each width
-- of access among them.
local on_device = ranks.device() ~= "cpu"
local kinds = on_device and { "contiguous", "zigzag", "mirror", "random" } or nil
if on_device then dtypes = { { "f32", 3 }, { "bf16", 5 }, { "i64", 8 } } end

-- Every pair of kinds with every dtype, by one method; what went wrong, in words.
local function move_all(comm, p)
    local clib = require "clib"
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local cp, tp = comm:size() / p.tp, p.tp
    local stream = rows.stream(p.stream, cp, tp)
    local rank, wrong, n = comm:rank(), {}, 0
    local function expect(ok, ...)
        n = n + 1
        if not ok then
            wrong[#wrong + 1] = table.concat({ "rank " .. rank, ... }, ", ")
        end
    end
    local function move(r, a, b, dtype, width)
        local here, there = a:positions(rank), b:positions(rank)
        local what = dtype .. ", " .. a:describe() .. " -> " .. b:describe()
        local plan = exchange.plan(r, comm, dtype, width, p.method)
        local memory = n % 2 == 0 and comm or nil
        local src = rows.tensor(dtype, #here, width, memory):fill_positions(here)
            :mark(a, rank, true)
        local dst = rows.tensor(dtype, #there, width, memory):poison()
        plan:convert(src, dst)
        expect(not dst:first_wrong(there), "out of place", what)
        expect(not dst:first_untraced(there), "trace", what)
        expect(not src:first_wrong(here), "src is untouched", what)
        expect(clib.C.cpl_trace_check(dst._ptr, b._ptr, rank, "spec") == 0, "mark", what)
        src:poison()
        plan:adjoint(dst, src)
        expect(not src:first_wrong(here), "adjoint", what)
        expect(not src:first_untraced(here), "trace of the adjoint", what)
        expect(plan:in_place() == (#here == #there), "in place is possible", what)
        -- Again, in place on the ranks that can, among others that cannot.
        local target = plan:in_place() and src or dst
        dst:poison()
        plan:convert(src, target)
        expect(not target:first_wrong(there), "in place", what)
        expect(not target:first_untraced(there), "trace in place", what)
        expect(target._ptr.layout == dst._ptr.layout, "mark in place", what)
        plan:adjoint(target, src)
        expect(not src:first_wrong(here), "adjoint in place", what)
        expect(not src:first_untraced(here), "trace of the adjoint in place", what)
    end
    -- Targets are layouts of their own, also where they equal where the rows are.
    local targets = {}
    for i, to in ipairs(p.kinds or rows.kinds) do
        targets[i] = rows.layout(to, stream, cp, tp)
    end
    for _, from in ipairs(p.kinds or rows.kinds) do
        local a = rows.layout(from, stream, cp, tp)
        for _, b in ipairs(targets) do
            local r = route(a, b)
            for _, row in ipairs(p.dtypes) do
                move(r, a, b, row[1], row[2])
            end
        end
    end
    return { wrong = wrong, n = n }
end

local function moves(n, p, n_pairs)
    it(("moves all kinds of rows by %s, %d ranks, tp %d, %s"):format(p.method, n, p.tp, p.stream),
        function()
            p.dtypes = p.dtypes or dtypes
            p.kinds = kinds
            if kinds then n_pairs = #kinds * #kinds end
            for _, result in ipairs(ranks.run(n, move_all, p)) do
                assert.same({}, result.wrong)
                assert.equal(n_pairs * #p.dtypes * 12, result.n)
            end
        end)
end

describe("an exchange between partitions", function()
    for _, method in ipairs(methods) do
        for _, n in ipairs(counts.of { 1, 2, 3, 4, 8 }) do
            moves(n, { method = method, tp = 1, stream = "thd" }, 49)
        end
        for _, n in ipairs(counts.of { 2, 8 }) do
            moves(n, { method = method, tp = 2, stream = "thd" }, 49)
        end
        for _, n in ipairs(counts.of { 4 }) do
            moves(n, { method = method, tp = 1, stream = "sbhd" }, 49)
        end
        for _, n in ipairs(counts.of { 1, 3 }) do
            moves(n, { method = method, tp = 1, stream = "empty" }, 49)
        end
    end
    for _, n in ipairs(counts.of { 2, 4, 6, 8 }) do
        moves(n, { method = "composed", tp = 2, stream = "thd" }, 49)
    end
    for _, n in ipairs(counts.of { 4 }) do
        moves(n, { method = "composed", tp = 4, stream = "sbhd" }, 49)
        moves(n, { method = "composed", tp = 2, stream = "empty" }, 49)
    end
    for _, n in ipairs(counts.of { 5, 6, 7 }) do
        moves(n, { method = "auto", tp = 1, stream = "thd", dtypes = { { "f32", 3 } } }, 49)
    end
end)

-- Rows 0 and 2 change places between ranks 0 and 1, but rank 1 gets one more than it had.
describe("an exchange in place of one of two partners", function()
    for _, n in ipairs(counts.of { 3 }) do
        for _, method in ipairs(methods) do
            it("moves their rows by " .. method, function()
                local results = ranks.run(n, function(comm, p)
                    local layouts = require "cplab.layout"
                    local rows = require "spec.exchange.rows"
                    local rank = comm:rank()
                    local stream = require "cplab.stream".thd { lengths = { 6 } }
                    local a = layouts.custom(stream, { ranks = { { { 0, 2 } }, { { 2, 2 } },
                        { { 4, 2 } } } })
                    local b = layouts.custom(stream, { ranks = { { { 2, 1 }, { 1, 1 } },
                        { { 0, 1 }, { 3, 2 } }, { { 5, 1 } } } })
                    local plan = require "cplab.exchange".plan(require "cplab.route"(a, b), comm,
                        "f32", 3, p)
                    local here, there = a:positions(rank), b:positions(rank)
                    local x = rows.tensor("f32", #here, 3, comm):fill_positions(here)
                    local y = plan:in_place() and x or rows.tensor("f32", #there, 3, comm)
                    plan:convert(x, y)
                    local forward = y:first_wrong(there)
                    plan:adjoint(y, x)
                    return { plan:in_place(), forward or x:first_wrong(here) }
                end, method)
                assert.same({ { true }, { false }, { false } }, results)
            end)
        end
    end
end)

describe("an exchange with a view", function()
    for _, n in ipairs(counts.of { 3 }) do
        for _, method in ipairs(methods) do
            it("takes a tensor without rows for both sides, by " .. method, function()
                local results = ranks.run(n, function(comm, p)
                    local rows = require "spec.exchange.rows"
                    local rank = comm:rank()
                    local stream = require "cplab.stream".thd { lengths = { 6 } }
                    local a = require "cplab.layout".custom(stream, { ranks = { { { 0, 2 },
                        { 4, 2 } }, { { 2, 2 } }, {} } })
                    local view = rows.view("shift", a)
                    local plan = require "cplab.exchange".plan(require "cplab.route"(a, view),
                        comm, "f32", 3, p)
                    local here, there = a:positions(rank), rows.view_positions(view, rank)
                    local x = rows.tensor("f32", #here, 3, comm):fill_positions(here)
                    local y = #here == 0 and x or rows.tensor("f32", #there, 3, comm):poison()
                    plan:convert(x, y)
                    return { #there, y:first_wrong(there) }
                end, method, 2)
                assert.same({ { 4 }, { 2 }, { 0 } }, results)
            end)
        end
    end
end)

describe("an exchange on the group of one, which has no world", function()
    for _, method in ipairs { "copy", "direct", "packed", "alltoallv", "auto" } do
        it(("moves its rows to other slots, and back, also in place, by %s"):format(method),
            function()
                local exchange = require "cplab.exchange"
                local route = require "cplab.route"
                local rows = require "spec.exchange.rows"
                local stream = rows.stream("thd", 1)
                local a, b = rows.layout("contiguous", stream, 1), rows.layout("fair", stream, 1)
                local here, there = a:positions(0), b:positions(0)
                local plan = exchange.plan(route(a, b), require("cplab.comm").self(), "f32", 3,
                    method)
                local x = rows.tensor("f32", #here, 3):fill_positions(here):mark(a, 0, true)
                local y = rows.tensor("f32", #there, 3):poison()
                plan:convert(x, y)
                assert.is_nil(y:first_wrong(there) or y:first_untraced(there))
                plan:adjoint(y, x:poison())
                assert.is_nil(x:first_wrong(here))
                plan:convert(x, x)
                assert.is_nil(x:first_wrong(there) or x:first_untraced(there))
                plan:adjoint(x, x)
                assert.is_nil(x:first_wrong(here))
                assert.not_same(here, there)
            end)
    end
end)

describe("an exchange in place of mirror", function()
    -- Who swaps reads the other's memory.
    on(ranks.carrier() == "nccl" and math.huge or 4)("swaps, on every rank, and nothing but mirror "
        .. "does so at 4 ranks", function()
        local results = ranks.run(4, function(comm)
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local stream = rows.stream("sbhd", 4)
            local swaps = {}
            for _, name in ipairs(rows.names) do
                local r = route(rows.layout("contiguous", stream, 4), rows.layout(name, stream, 4))
                swaps[name] = exchange.plan(r, comm, "f32", 3, "copy"):swaps()
            end
            return swaps
        end)
        for _, swaps in ipairs(results) do
            assert.same({ contiguous = true, zigzag = false, mirror = true, random = false,
                fair = false }, swaps)
        end
    end)

    -- The memory of a device cannot be made read-only.
    local protected = on(on_device and math.huge or 4)
    protected("does not write the rows that stay: their memory is read-only", function()
        ranks.run(4, function(comm)
            local clib = require "clib"
            local ffi = clib.ffi
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local streams = require "cplab.stream"
            ffi.cdef [[
                void *mmap(void *, size_t, int, int, int, int64_t);
                int mprotect(void *, size_t, int);
                int munmap(void *, size_t);
            ]]
            local page, width = 4096, 512 -- a row of f64 is a page
            local stream = streams.sbhd { seqlen = 48, batch = 1 }
            local a = rows.layout("contiguous", stream, 4)
            local b = rows.layout("mirror", stream, 4)
            local rank = comm:rank()
            local here, there = a:positions(rank), b:positions(rank)
            local bytes = #here * page
            -- PROT_READ 1, PROT_WRITE 2, MAP_PRIVATE 2, MAP_ANONYMOUS 32
            local memory = ffi.C.mmap(nil, bytes, 3, 34, -1, 0)
            local data = ffi.cast("uint64_t *", memory)
            local function at(slot) return data[slot * width] end
            for i = 0, #here * width - 1 do
                data[i] = here[math.floor(i / width) + 1]
            end
            local stays = 0
            for slot = 0, #here - 1 do
                if here[slot + 1] == there[slot + 1] then
                    stays = stays + 1
                    assert(ffi.C.mprotect(ffi.cast("char *", memory) + slot * page, page, 1) == 0)
                end
            end
            assert(stays == #here / 2)
            local shape = ffi.new("int64_t[2]", #here, width)
            local t = clib.create("cpl_tensor", clib.C.cpl_tensor_destroy, 1,
                clib.C.cpl_tensor_wrap, memory, clib.C.CPL_F64, 2, shape)
            exchange.plan(route(a, b), comm, "f64", width, "copy")
                :convert({ _ptr = t }, { _ptr = t })
            for slot = 0, #here - 1 do
                assert(at(slot) == there[slot + 1])
            end
            comm:barrier()
            ffi.C.munmap(memory, bytes)
            return true
        end)
    end)
end)

-- Two plans fly at once; `order` says which is finished first.
local function fly_two(comm, p)
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local cp = comm:size() / p.tp
    local stream, rank = rows.stream("thd", cp, p.tp), comm:rank()
    local a = rows.layout("zigzag", stream, cp, p.tp)
    local b = rows.layout("random", stream, cp, p.tp)
    local here, there = a:positions(rank), b:positions(rank)
    local plans, x, y = {}, {}, {}
    for i = 1, 2 do
        plans[i] = exchange.plan(route(a, b), comm, "i64", 2, p.method)
        x[i] = rows.tensor("i64", #here, 2)
        x[i]:set(function(k) return i * 1000 + here[math.floor(k / 2) + 1] end)
        y[i] = rows.tensor("i64", #there, 2)
        plans[i]:start(x[i], y[i])
    end
    for i = 1, 2 do
        plans[p.order == "first" and i or 3 - i]:finish()
    end
    for i = 1, 2 do
        for k, value in ipairs(y[i]:values()) do
            assert(value == i * 1000 + there[math.ceil(k / 2)])
        end
    end
    return true
end

describe("two exchanges in flight", function()
    for _, method in ipairs(counts.methods { "copy", "direct", "packed", "alltoallv",
        "composed" }) do
        for _, order in ipairs { "first", "last" } do
            for _, n in ipairs(counts.of { 4 }) do
                it(("by %s are finished in any order: %s first"):format(method, order), function()
                    local tp = method == "composed" and 2 or 1
                    assert.same({ true, true, true, true }, ranks.run(n, fly_two,
                        { method = method, order = order, tp = tp }))
                end)
            end
        end
    end
end)

describe("an exchange in flight", function()
    on(2)("is not for the garbage collector, nor are its tensors; a finished one is", function()
        local results = ranks.run(2, function(comm)
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local stream = rows.stream("thd", 2)
            local a, b = rows.layout("zigzag", stream, 2), rows.layout("mirror", stream, 2)
            local here, there = a:positions(comm:rank()), b:positions(comm:rank())
            local seen = setmetatable({}, { __mode = "v" })
            local function start()
                seen.plan = exchange.plan(route(a, b), comm, "f32", 3)
                seen.src = rows.tensor("f32", #here, 3):fill_positions(here)
                seen.dst = rows.tensor("f32", #there, 3):poison()
                seen.plan:start(seen.src, seen.dst)
            end
            local function collect()
                collectgarbage()
                collectgarbage()
                return { seen.plan ~= nil, seen.src ~= nil, seen.dst ~= nil }
            end
            start()
            local in_flight = collect()
            local wrong = seen.plan and seen.plan:finish():first_wrong(there)
            return { in_flight, wrong or "right", collect() }
        end)
        for _, result in ipairs(results) do
            assert.same({ { true, true, true }, "right", { false, false, false } }, result)
        end
    end)
end)
