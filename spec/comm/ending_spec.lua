local ranks = require "spec.support.ranks"

local transport = ranks.transport()
-- Ranks on devices met before.
local first = ranks.device() == "cpu" and "1" or "%d+"
local it2, it3, it4 = ranks.with(2, it), ranks.with(3, it), ranks.with(4, it)
local it_local = transport == "local" and it or function() end

-- Every way in which one rank can leave the others alone; after each, a run must work.
describe("a run ends, and the next one works, when a rank", function()
    after_each(function()
        local n, expected = math.min(3, ranks.world()), {}
        for i = 1, n do expected[i] = n end
        assert.same(expected, ranks.run(n, function(comm) return comm:sum({ 1 })[1] end))
    end)

    local function timed(n, f, payload, deadline)
        local C = require("clib").C
        local since = C.cpl_clock()
        local results, failure = ranks.try(n, f, payload, deadline)
        return failure, C.cpl_clock() - since, results
    end

    it4("raises while the others are in a barrier", function()
        local failure, seconds, results = timed(4, function(comm)
            if comm:rank() == 2 then error "boom" end
            local _, message = pcall(comm.barrier, comm)
            return message
        end)
        assert.equal(2, failure.rank)
        assert.matches("ending_spec%.lua:%d+: boom$", failure.message)
        assert.matches("ending_spec%.lua", failure.traceback)
        assert.is_true(seconds < 5)
        for _, rank in ipairs { 1, 2, 4 } do
            assert.matches("rank 2 failed: .*boom", results[rank])
        end
        assert.is_nil(results[3])
    end)

    it3("raises in the middle of an exchange", function()
        local failure = timed(3, function(comm)
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local stream = rows.stream("thd", 3)
            local a, b = rows.layout("zigzag", stream, 3), rows.layout("random", stream, 3)
            local plan = exchange.plan(route(a, b), comm, "f64", 64)
            local x = rows.tensor("f64", a:n_local(comm:rank()), 64)
            local y = rows.tensor("f64", b:n_local(comm:rank()), 64)
            for i = 1, 50 do
                plan:start(x, y)
                if i == 31 and comm:rank() == 0 then error "boom between start and finish" end
                plan:finish()
            end
            return true
        end)
        assert.equal(0, failure.rank)
        assert.matches("boom between start and finish", failure.message)
    end)

    it3("returns early: at once, not at the deadline", function()
        local failure, seconds = timed(3, function(comm)
            if comm:rank() == 1 then return "early" end
            comm:barrier()
            return "late"
        end, nil, 60)
        assert.matches("waits for rank 1 in barrier " .. first .. ", but rank 1 has returned: the "
            .. "ranks made different collective calls", failure.message)
        assert.is_true(failure.rank ~= 1)
        assert.is_true(seconds < 20)
    end)

    it3("skips a collective", function()
        local failure = timed(3, function(comm)
            if comm:rank() ~= 1 then comm:barrier() end
            return comm:sum { 1 }
        end)
        assert.matches("the ranks made different collective calls", failure.message, 1, true)
        assert.matches("in a barrier of", failure.message, 1, true)
        assert.matches("in a sum of 1 f64", failure.message, 1, true)
    end)

    it3("sums another number or another kind of elements", function()
        for what, expected in pairs {
            dtype = "rank 0 is in a sum of 2 f64, rank 2 in a sum of 2 i64: the ranks made",
            number = "rank 0 is in a sum of 2 f64, rank 2 in a sum of 1 f64: the ranks made",
        } do
            local failure = timed(3, function(comm, p)
                local rows = require "spec.exchange.rows"
                local odd = comm:rank() == 2 and p
                comm:sum_tensor(rows.tensor(odd == "dtype" and "i64" or "f64",
                    odd == "number" and 1 or 2, 1))
                return true
            end, what)
            assert.matches(expected, failure.message, 1, true)
        end
    end)

    -- Its rows stay until they have come out of them.
    it2("raises or returns while others copy its rows", function()
        for i = 1, 6 do
            local raises = i % 2 == 0
            local failure = timed(2, function(comm, p)
                local exchange = require "cplab.exchange"
                local lib = require "clib"
                local stream = require "cplab.stream".thd { lengths = { 2 ^ 15 } }
                local layout = require "cplab.layout"
                local a, b = layout.mirror(stream, { cp = 2 }), layout.striped(stream, { cp = 2 })
                local plan = exchange.plan(require "cplab.route"(a, b), comm, "f32", 1024, "copy")
                local rows = require "spec.exchange.rows"
                local n = a:n_local(comm:rank())
                local x = rows.tensor("f32", n, 1024)
                local y = rows.tensor("f32", n, 1024)
                comm:barrier()
                plan:start(x, y)
                if comm:rank() == 0 then
                    local since = lib.C.cpl_clock()
                    repeat until lib.C.cpl_clock() - since > 0.003
                    if p then error("boom", 0) end
                    return "early"
                end
                plan:finish()
                comm:barrier()
            end, raises)
            assert.equal(raises and 0 or 1, failure.rank)
            assert.matches(raises and "^boom$" or "rank 1 waits for rank 0 in .*, but rank 0 has "
                .. "returned", failure.message)
        end
    end)

    it3("never comes: the deadline tells who waits for whom", function()
        local failure, seconds = timed(3, function(comm)
            local C = require("clib").C
            if comm:rank() == 2 then
                local since = C.cpl_clock()
                while C.cpl_clock() - since < 1 do end -- busy
                return true
            end
            comm:barrier()
            return true
        end, nil, 0.3)
        assert.matches(transport .. ": rank [01] waited 0%.%d s for rank 2 in barrier " .. first,
            failure.message)
        if transport == "local" then -- threads see each other
            assert.matches("; rank 2 does not wait$", failure.message)
        end
        assert.is_true(seconds < 10)
    end)

    it2("waits in a circle: the deadline names who waits, and for whom", function()
        local failure = timed(2, function(comm)
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local stream = rows.stream("thd", 2)
            local a, b = rows.layout("zigzag", stream, 2), rows.layout("contiguous", stream, 2)
            local plan = exchange.plan(route(a, b), comm, "f64", 1)
            local n = a:n_local(comm:rank())
            if comm:rank() == 1 then comm:barrier() end
            plan:convert(rows.tensor("f64", n, 1), rows.tensor("f64", n, 1))
            return true
        end, nil, 0.3)
        local waits = { "rank 0 wait%a+ .*rank 1 in transfer 1",
            "rank 1 wait%a+ .*rank 0 in barrier %d" }
        local n = 0
        for _, pattern in ipairs(waits) do n = n + (failure.message:find(pattern) and 1 or 0) end
        assert.equal(transport == "local" and 2 or 1, n) -- a process knows its own wait
    end)

    it2("raises what is no string", function()
        for _, case in ipairs {
            { "error(nil)", "%(error object is nil%)" },
            { "error({})", "%(error object is a table%)" },
            { "error(setmetatable({}, { __tostring = function() return 'own' end }))", "^own$" },
            { "error(42, 0)", "^42$" },
            { "error(true)", "%(error object is a boolean%)" },
        } do
            local failure = timed(2, function(comm, code)
                if comm:rank() == 1 then assert(loadstring(code))() end
                comm:barrier()
                return 1
            end, case[1])
            assert.equal(1, failure.rank)
            assert.matches(case[2], failure.message)
        end
    end)

    it2("overflows its stack", function()
        local failure = timed(2, function(comm)
            local function forever(n) return 1 + forever(n + 1) end
            if comm:rank() == 0 then return forever(1) end
            comm:barrier()
            return 1
        end)
        assert.equal(0, failure.rank)
        assert.matches("stack overflow", failure.message)
    end)

    it3("catches the failure of another: the first failure stays the reason", function()
        local failure = timed(3, function(comm)
            if comm:rank() == 0 then error "the reason" end
            pcall(comm.barrier, comm)
            error "a consequence"
        end)
        -- Ranks 1 and 2 raise only after rank 0 did.
        assert.equal(0, failure.rank)
        assert.matches("the reason", failure.message)
    end)

    it2("goes on after the failure of another: every later call fails at once", function()
        local failure, seconds, results = timed(2, function(comm)
            if comm:rank() == 0 then error "the reason" end
            local n_failed = 0
            for _ = 1, 1000 do
                for _, call in ipairs { "barrier", "sum", "max", "gather" } do
                    local ok, message = pcall(comm[call], comm, { 1 })
                    if not ok and message:match "rank 0 failed: .*the reason" then
                        n_failed = n_failed + 1
                    end
                end
            end
            return n_failed
        end)
        assert.equal(0, failure.rank)
        assert.equal(4000, results[2])
        assert.is_true(seconds < 5)
    end)
end)

describe("a world", function()
    local clib = require "clib"
    local C = clib.C

    local function refused(n, deadline)
        local out = clib.ffi.new "cpl_world *[1]"
        assert.equal(C.CPL_INVALID, C.cpl_world_create(n, deadline, out))
        assert.is_true(out[0] == nil)
        return clib.ffi.string(C.cpl_last_error())
    end

    it("has 1 to 1024 ranks and a deadline", function()
        assert.equal("world: 0 ranks, not 1 to 1024", refused(0, 1))
        assert.equal("world: 1025 ranks, not 1 to 1024", refused(1025, 1))
        assert.equal("world: a deadline of 0 s, not > 0", refused(1, 0))
        assert.matches("^world: a deadline of %-?nan s, not > 0$", refused(1, 0 / 0))
    end)

    it("gives back what it took, also when memory ends", function()
        local stats = clib.ffi.new "cpl_memory_stats"
        local out = clib.ffi.new "cpl_world *[1]"
        local function live()
            C.cpl_memory(stats)
            return tonumber(stats.live_blocks)
        end
        collectgarbage()
        collectgarbage()
        local before, failures = live(), 0
        for k = 0, 20 do
            C.cpl_memory_fail_after(k)
            local status = C.cpl_world_create(5, 1, out)
            C.cpl_memory_fail_after(-1)
            if status == C.CPL_OK then
                C.cpl_world_destroy(out[0])
                break
            end
            assert.equal(C.CPL_MEMORY, status)
            assert.equal(before, live())
            failures = failures + 1
        end
        assert.equal(4, failures)
        assert.equal(before, live())
    end)

    it_local("runs 1, 64 and 128 ranks", function()
        for _, n in ipairs { 1, 64, 128 } do
            local results = ranks.run(n, function(comm) return comm:sum({ comm:rank() })[1] end)
            assert.equal(n, #results)
            assert.equal(n * (n - 1) / 2, results[n])
        end
    end)
end)
