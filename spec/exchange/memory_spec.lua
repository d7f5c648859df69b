local ranks = require "spec.support.ranks"

-- Fails the k-th allocation of one rank, for every k, until the plan can be made.
local function break_allocations(comm, p)
    local clib = require "clib"
    local C = clib.C
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local stream = rows.stream("thd", comm:size())
    local from = rows.layout("zigzag", stream, comm:size())
    local to = p.view and rows.view(p.view, from) or rows.layout(p.to, stream, comm:size())
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
    local before, failures = live(), 0
    for k = 0, 200 do
        local r = route(from, to)
        if comm:rank() == p.rank then C.cpl_memory_fail_after(k) end
        local ok, plan = pcall(exchange.plan, r, comm, "f32", 3)
        C.cpl_memory_fail_after(-1)
        assert(comm:agree(ok) == ok, "some ranks got a plan, others did not")
        r = nil -- luacheck: ignore 311
        if ok then
            return failures
        end
        assert(plan:match "memory: no %d+ bytes left", plan)
        failures, plan = failures + 1, nil -- luacheck: ignore 311
        local after = live()
        assert(after == before, ("%d blocks leaked at %d"):format(after - before, k))
    end
    error "it never succeeds"
end

describe("making a plan without memory", function()
    for _, case in ipairs { { to = "contiguous", rank = 0 }, { to = "mirror", rank = 2 },
        { view = "keys", rank = 1 }, { view = "halo", rank = 2 } } do
        it(("fails on all ranks and leaks nothing: %s, rank %d"):format(case.view or case.to,
            case.rank), function()
            local failures = ranks.run(3, break_allocations, case)
            assert.is_true(failures[1] > 5)
            assert.same({ failures[1], failures[1], failures[1] }, failures)
        end)
    end
end)

describe("executing a plan", function()
    it("allocates nothing, and counts what it sends", function()
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
