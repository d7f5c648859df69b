local measure = require "cplab.measure"

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
end)
