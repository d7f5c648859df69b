--- From what the ranks measured to what a row says: seconds become microseconds, and rates in 10^9
-- bytes a second.
--
--     algbw  = bytes of a shard * passes / median        (a round trip has two passes)
--     busbw  = bytes that cross on the busiest rank, the larger of in and out / median
--     %copy  = (bytes written / median) / (bytes copied / median of the copies)
--     %plain = median of the plain exchange / median
--
-- Bytes written and copied are those of all ranks together. Out of place every row is written, so
-- %copy is a ratio of times; in place rows that keep their slot are not.
-- @module cplab.bench.figures
local statistics = require "cplab.bench.statistics"

local M = {}

local function microseconds(list)
    local result = {}
    for i, value in ipairs(list) do result[i] = value * 1e6 end
    return result
end

local function ratio(a, b)
    return b > 0 and a / b or nil
end

local function add_times(row, case, measured)
    local samples = microseconds(measured.times)
    local times, copies = statistics.summary(samples), microseconds(measured.copy)
    local passes = case.pass == "round trip" and 2 or 1
    local copied = case.bytes * passes * row.ranks
    row.min_us, row.median_us, row.p99_us = times.min, times.median, times.p99
    row.copy_us = statistics.quantile(copies, 0.5)
    row.algbw = case.bytes * passes / times.median / 1e3
    row.busbw = measured.busiest_bytes / times.median / 1e3
    row.copy_percent = ratio(100 * measured.written_bytes / times.median, copied / row.copy_us)
    row.samples = { us = samples, copy_us = copies }
    if measured.plain then
        row.samples.plain_us = microseconds(measured.plain)
        row.plain_us = statistics.quantile(row.samples.plain_us, 0.5)
        row.plain_percent = 100 * row.plain_us / times.median
    end
end

local CASE = { "asked_bytes", "rows", "sequences", "pack", "from", "to", "method", "dtype",
    "row_bytes", "cp", "tp", "pass", "iters", "warmup", "seed" }

-- What is known before anything runs.
local function begin(case)
    local row = { schema = "cplab.bench.convert/1", size_bytes = case.bytes,
        place = case.in_place and "in" or "out", ranks = case.cp * case.tp }
    for _, name in ipairs(CASE) do row[name] = case[name] end
    return row
end

--- The row of a case that was not run, or not to its end.
-- @tparam table case
-- @tparam string status "skipped" or "error"
-- @tparam string reason
function M.without_times(case, status, reason)
    local row = begin(case)
    row.status, row.reason = status, reason
    return row
end

--- The row of a case. A wrong row has no times, nor has one whose execution took memory.
-- @tparam table case
-- @tparam table measured what the ranks returned
-- @treturn table status ("ok", "wrong", "error"), wrong_rows, and the figures
function M.row(case, measured)
    local row = begin(case)
    row.wrong_rows, row.method_used = measured.wrong, measured.method
    row.written_bytes, row.busiest_bytes = measured.written_bytes, measured.busiest_bytes
    row.messages, row.allocations = measured.messages, measured.allocations
    row.estimate_us = measured.estimate * 1e6
    if measured.wrong > 0 then
        row.status = "wrong"
    elseif measured.allocations > 0 then
        row.status = "error"
        row.reason = ("%d blocks of memory were taken in %d executions; there must be none"):format(
            measured.allocations, case.iters)
    else
        row.status = "ok"
        add_times(row, case, measured)
    end
    return row
end

return M
