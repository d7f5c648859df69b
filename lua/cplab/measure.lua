--- Measuring steps: what each rank spent, and what the group spent.
-- Per iteration the slowest rank counts; of the iterations, the one whose step time is the
-- (lower) median is reported whole, so that compute + convert + comm = step exactly.
-- @module cplab.measure
local clib = require "clib"
local C, ffi = clib.C, clib.ffi

local M = {}

-- On a device a step is over when the device is done with it, and only that is known: the host's
-- clocks tell how long it took to ask for the work.

-- One record a rank and iteration, in seconds.
local FIELDS = { "step", "convert", "comm", "busy" }

--- Collective. Runs `step` once and returns this rank's seconds, and what it returned. How often
-- the host waited for a device in it is then `stack.host_syncs`.
-- @tparam table stack
-- @tparam function step
function M.iteration(stack, step)
    for _, c in pairs(stack.conversions) do
        c:reset()
    end
    stack:wait()
    clib.check(C.cpl_comm_barrier(stack.comm))
    clib.check(C.cpl_trace_settle(stack.comm)) -- checks of an earlier step are none of this one
    C.cpl_counters_reset() -- after the barrier: waiting for the others is no part of the step
    local start, busy = C.cpl_clock(), C.cpl_thread_clock()
    local result = step()
    stack.host_syncs = tonumber(C.cpl_counters_here().host_syncs)
    stack:wait()
    local seconds = { step = C.cpl_clock() - start, busy = C.cpl_thread_clock() - busy }
    seconds.convert = 0
    for _, c in pairs(stack.conversions) do
        seconds.convert = seconds.convert + c.seconds
    end
    seconds.comm = C.cpl_counters_here().comm_seconds - M.inside(stack)
    return seconds, result
end

--- Exchange time that is part of the conversions.
function M.inside(stack)
    local seconds = 0
    for _, c in pairs(stack.conversions) do
        seconds = seconds + c.comm_seconds
    end
    return seconds
end

--- Collective. Every rank's records of all iterations: list[iteration][rank + 1].
function M.gather(comm, records)
    local size = C.cpl_comm_size(comm)
    local n = #records * #FIELDS
    local mine, all = ffi.new("double[?]", n), ffi.new("double[?]", n * size)
    for i, record in ipairs(records) do
        for j, field in ipairs(FIELDS) do
            mine[(i - 1) * #FIELDS + j - 1] = record[field]
        end
    end
    clib.check(C.cpl_comm_gather(comm, mine, n * 8, all))
    local list = {}
    for i = 1, #records do
        list[i] = {}
        for rank = 0, size - 1 do
            local record = {}
            for j, field in ipairs(FIELDS) do
                record[field] = all[rank * n + (i - 1) * #FIELDS + j - 1]
            end
            list[i][rank + 1] = record
        end
    end
    return list
end

local function slowest(ranks)
    local worst, busy = ranks[1], 0
    for _, record in ipairs(ranks) do
        busy = busy + record.busy
        if record.step > worst.step then
            worst = record
        end
    end
    return { step = worst.step, convert = worst.convert, comm = worst.comm, busy = busy }
end

--- Times of a run in milliseconds: the metrics, and the step time of every iteration.
-- @tparam table gathered of M.gather
-- @tparam ?boolean on_device
function M.times(gathered, on_device)
    local iterations, samples = {}, {}
    for i, ranks in ipairs(gathered) do
        iterations[i] = slowest(ranks)
        samples[i] = iterations[i].step * 1e3
    end
    table.sort(iterations, function(a, b) return a.step < b.step end)
    local median = iterations[math.floor((#iterations + 1) / 2)]
    local ms = function(seconds) return seconds * 1e3 end
    if on_device then return { step_ms = ms(median.step) }, samples end
    return {
        step_ms = ms(median.step), convert_ms = ms(median.convert), comm_ms = ms(median.comm),
        compute_ms = ms(median.step - median.convert - median.comm), busy_ms = ms(median.busy),
    }, samples
end

return M
