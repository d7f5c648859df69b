local counts = require "spec.exchange.counts"
local ranks = require "spec.support.ranks"

local on = counts.on(it)

local methods = counts.methods { "copy", "direct", "packed", "alltoallv", "composed", "auto" }

-- Fails the k-th allocation of one rank, for every k, until the plan can be made.
local function break_allocations(comm, p)
    local clib = require "clib"
    local C = clib.C
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local tp = p.method == "composed" and 2 or 1
    local cp = comm:size() / tp
    local stream = rows.stream("thd", cp, tp)
    local from = rows.layout("zigzag", stream, cp, tp)
    local to = p.view and rows.view(p.view, from) or rows.layout(p.to, stream, cp, tp)
    local stats = clib.ffi.new "cpl_memory_stats"
    local function live()
        collectgarbage()
        collectgarbage()
        comm:barrier()
        C.cpl_memory(stats)
        local blocks = tonumber(stats.live_blocks)
        comm:barrier()
        return blocks
    end
    -- A transport keeps what the first plan made it reserve.
    exchange.plan(route(from, to), comm, "f32", 3, p.method)
    local before, failures = live(), 0
    for k = 0, 600 do
        local r = route(from, to)
        if comm:rank() == p.rank then C.cpl_memory_fail_after(k) end
        local ok, plan = pcall(exchange.plan, r, comm, "f32", 3, p.method)
        C.cpl_memory_fail_after(-1)
        assert(comm:agree(ok) == ok, "some ranks got a plan, others did not")
        r = nil -- luacheck: ignore 311
        if ok then
            return failures
        end
        assert(plan:match "memory: no %d+ bytes left", plan)
        failures, plan = failures + 1, nil -- luacheck: ignore 311
        local after = live()
        -- Fewer: a letter of the host that was still on its way is gone. What is less stays less.
        local is_same = after == before or comm:transport() == "mpi" and after < before
        assert(is_same, ("%d blocks leaked at %d"):format(after - before, k))
        before = after
    end
    error "it never succeeds"
end

describe("making a plan without memory", function()
    local cases = { { to = "contiguous", rank = 0 }, { to = "mirror", rank = 2 },
        { view = "keys", rank = 1 }, { view = "halo", rank = 2 } }
    for _, method in ipairs(methods) do
        for _, case in ipairs(method == "composed" and { cases[1], cases[2] } or cases) do
            for _, n in ipairs(counts.of { method == "composed" and 4 or 3 }) do
                it(("fails on all ranks and leaks nothing: %s, rank %d, by %s"):format(
                    case.view or case.to, case.rank, method), function()
                    case.method = method
                    local failures = ranks.run(n, break_allocations, case)
                    assert.is_true(failures[1] > 5)
                    for _, count in ipairs(failures) do
                        assert.equal(failures[1], count)
                    end
                end)
            end
        end
    end
end)

-- Executes in every way, from the first time on, while no allocation succeeds.
local function execute_without_memory(comm, method)
    local clib = require "clib"
    local C = clib.C
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local tp = method == "composed" and 2 or 1
    local rank, cp = comm:rank(), comm:size() / tp
    local stream = rows.stream("thd", cp, tp)
    local a, b = rows.layout("mirror", stream, cp, tp), rows.layout("zigzag", stream, cp, tp)
    local here, there = a:positions(rank), b:positions(rank)
    local plan = exchange.plan(route(a, b), comm, "f32", 3, method)
    local x = rows.tensor("f32", #here, 3):fill_positions(here):mark(a, rank, false)
    local y = rows.tensor("f32", #there, 3)
    local stats = clib.ffi.new "cpl_memory_stats"
    local function taken()
        comm:barrier()
        C.cpl_memory(stats)
        comm:barrier()
        return tonumber(stats.n_allocations)
    end
    local before = taken()
    C.cpl_memory_fail_after(0)
    plan:convert(x, y)
    local out_of_place = y:first_wrong(there)
    x:poison()
    plan:adjoint(y, x)
    local back = x:first_wrong(here)
    plan:convert(x, x)
    local in_place = x:first_wrong(there)
    plan:adjoint(x, x)
    plan:adjoint(y, x, true)
    C.cpl_memory_fail_after(-1)
    local after = taken()
    return { taken = after - before, wrong = out_of_place or back or in_place }
end

describe("executing a plan", function()
    for _, method in ipairs(methods) do
        for _, n in ipairs(counts.of { 4 }) do
            it(("by %s allocates nothing, from the first time on"):format(method), function()
                for _, result in ipairs(ranks.run(n, execute_without_memory, method)) do
                    assert.same({ taken = 0 }, result)
                end
            end)
        end
    end

    on(4)("with traces allocates nothing once they are there, and counts what it sends", function()
        local results = ranks.run(4, function(comm)
            local clib = require "clib"
            local C = clib.C
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local stream, rank = rows.stream("thd", 4), comm:rank()
            local a, b = rows.layout("mirror", stream, 4), rows.layout("fair", stream, 4)
            local r = route(a, b)
            local plan = exchange.plan(r, comm, "f32", 3)
            local n = a:n_local(rank)
            local x = rows.tensor("f32", n, 3):mark(a, rank, true)
            local y = rows.tensor("f32", n, 3)
            plan:convert(x, y) -- takes the first trace
            local stats = clib.ffi.new "cpl_memory_stats"
            comm:barrier()
            C.cpl_memory(stats)
            local before = stats.n_allocations
            C.cpl_counters_reset()
            comm:barrier()
            for _ = 1, 3 do
                plan:convert(x, y)
                plan:adjoint(y, x)
                plan:convert(x, x)
                plan:adjoint(x, x)
            end
            comm:barrier()
            C.cpl_memory(stats)
            comm:barrier()
            local moved, messages = 0, 0
            for _, part in ipairs { r:sends(rank), r:receives(rank) } do
                local last = rank
                for _, segment in ipairs(part) do
                    if segment.peer ~= rank then
                        moved = moved + segment.length * 12
                        messages = messages + (segment.peer ~= last and 1 or 0)
                        last = segment.peer
                    end
                end
            end
            local counters = C.cpl_counters_here()
            return {
                taken = tonumber(stats.n_allocations - before),
                exchanges = tonumber(counters.exchanges),
                bytes = tonumber(counters.sent_bytes) - 6 * moved,
                messages = tonumber(counters.sent_messages) - 6 * messages,
                seconds = counters.comm_seconds > 0, moved = moved,
            }
        end)
        for _, result in ipairs(results) do
            assert.is_true(result.moved > 0)
            result.moved = nil
            assert.same({ taken = 0, exchanges = 12, bytes = 0, messages = 0, seconds = true },
                result)
        end
    end)
end)
