local measure = require "cplab.measure"
local clib = require "clib"
local ranks = require "spec.support.ranks"
local C = clib.C

local function record(step, convert, comm, busy)
    return { step = step, convert = convert, comm = comm, busy = busy }
end

describe("times of a run", function()
    it("take the slowest rank of each iteration, and the median iteration whole", function()
        local times, samples = measure.times {
            { record(1, 0.1, 0.2, 1), record(3, 0.5, 0.25, 1) },
            { record(9, 1, 1, 2), record(8, 7, 0, 2) },
            { record(2, 0.1, 0.1, 1), record(1, 0.9, 0, 1) },
        }
        assert.same({ 3000, 9000, 2000 }, samples)
        assert.equal(3000, times.step_ms)
        assert.equal(500, times.convert_ms)
        assert.equal(250, times.comm_ms)
        assert.equal(2250, times.compute_ms)
        assert.equal(2000, times.busy_ms)
    end)

    it("take the lower median of an even number", function()
        local times = measure.times { { record(4, 0, 0, 4) }, { record(2, 0, 0, 2) } }
        assert.equal(2000, times.step_ms)
    end)

    it("are of steps alone on a device", function()
        local times, samples = measure.times({ { record(4, 1, 1, 4) } }, true)
        assert.same({ step_ms = 4000 }, times)
        assert.same({ 4000 }, samples)
    end)
end)

describe("times of an iteration", function()
    -- A stack that spends made-up seconds; what was there before must not count.
    local function iteration(spend)
        local stack = { comm = C.cpl_comm_self(), conversions = {}, wait = function() end }
        for _, kind in ipairs { "gqa", "gdn" } do
            stack.conversions[kind] = {
                seconds = 100, comm_seconds = 100,
                reset = function(c) c.seconds, c.comm_seconds = 0, 0 end,
            }
        end
        C.cpl_counters_here().comm_seconds = 1000
        C.cpl_counters_here().wrong_rows = 7
        local seconds, loss = measure.iteration(stack, function()
            spend(stack, C.cpl_counters_here())
            return 2.5
        end)
        assert.equal(2.5, loss)
        return seconds
    end

    it("are of this iteration alone", function()
        local seconds = iteration(function() end)
        assert.equal(0, seconds.convert)
        assert.is_true(seconds.comm < 1)
        assert.equal(0, tonumber(C.cpl_counters_here().wrong_rows))
        assert.is_true(seconds.step >= 0 and seconds.step < 1)
    end)

    it("do not count the wait for the others before the step, nor the sum of gradients twice",
        function()
            local results = ranks.run(2, function(comm)
                local clib_here = require "clib"
                local C_here, ffi_here = clib_here.C, clib_here.ffi
                local start = C_here.cpl_clock()
                while comm:rank() == 1 and C_here.cpl_clock() - start < 0.2 do end
                local stack = { comm = comm._ptr, conversions = {}, wait = function() end }
                return require("cplab.measure").iteration(stack, function()
                    local box = ffi_here.new("double[1]", 1)
                    clib_here.check(C_here.cpl_comm_sum(comm._ptr, box, 1, C_here.CPL_F64))
                end)
            end)
            for _, seconds in ipairs(results) do
                assert.is_true(seconds.comm > 0 and seconds.comm <= seconds.step)
            end
        end)

    it("count exchanges of conversions as converting, all others as comm", function()
        local seconds = iteration(function(stack, counters)
            local gqa, gdn = stack.conversions.gqa, stack.conversions.gdn
            gqa.seconds, gqa.comm_seconds = 3, 2
            gdn.seconds, gdn.comm_seconds = 0.5, 0.25
            counters.comm_seconds = 6
        end)
        assert.equal(3.5, seconds.convert)
        assert.equal(6 - 2.25, seconds.comm)
        C.cpl_counters_reset()
    end)
end)
