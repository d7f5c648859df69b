--- From what the ranks measured to what a row says: seconds become microseconds, and rates in 10^9
-- bytes a second.
--
--     algbw  = bytes of a shard * passes / median        (a round trip has two passes)
--     busbw  = bytes that cross on the busiest rank, the larger of in and out / median
--     %copy  = (bytes written / median) / (bytes copied / median of the copies)
--     %plain = median of the plain exchange / median
--
-- Bytes written and copied are those of all ranks together. Out of place every row is written, so
-- %copy is a ratio of times; in place rows that keep their slot are not. On devices the same is
-- said of every card and of every rank; host_us is what it took the slowest host to ask for it.
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

-- What some ranks did: the medians, and the percentage of their copies.
local function part_of_group(case, written, n_ranks, times, copies)
    local passes = case.pass == "round trip" and 2 or 1
    local us = statistics.quantile(microseconds(times), 0.5)
    local copy_us = statistics.quantile(microseconds(copies), 0.5)
    return { us = us, copy_us = copy_us,
        copy_percent = ratio(100 * written / us, case.bytes * passes * n_ranks / copy_us) }
end

-- Of devices: what every card and every rank did, beside the group.
local function add_devices(row, case, measured)
    local device = measured.device
    local times, copies = device.parts.times, device.parts.copy
    row.cards, row.by_rank, row.host_syncs = {}, {}, device.host_syncs
    row.host_us = statistics.quantile(microseconds(times.asking), 0.5)
    for i, written in ipairs(measured.written_by_rank) do
        row.by_rank[i] = part_of_group(case, written, 1, times.ranks[i], copies.ranks[i])
    end
    for i, card in ipairs(device.cards) do
        local written = 0
        for _, rank in ipairs(card.ranks) do
            written = written + measured.written_by_rank[rank + 1]
        end
        row.cards[i] = part_of_group(case, written, #card.ranks, times.cards[i], copies.cards[i])
        row.cards[i].device, row.cards[i].ranks = card.device, card.ranks
    end
end

local CASE = { "asked_bytes", "rows", "sequences", "pack", "from", "to", "method", "dtype",
    "row_bytes", "cp", "tp", "pass", "launch", "iters", "warmup", "seed" }

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

-- What must not happen in the timed loop; nil where nothing did.
local function fault_of(case, measured)
    local waits = measured.device and measured.device.host_syncs or 0
    if measured.allocations > 0 then
        return ("%d blocks of memory were taken in %d executions; there must be none"):format(
            measured.allocations, case.iters)
    elseif waits > 0 then
        return ("hosts waited for their devices %d times in %d executions; they must not"):format(
            waits, case.iters)
    end
end

--- The row of a case. A wrong row has no times, nor has one whose execution took memory, or waited
-- for a device.
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
        return row
    end
    row.reason = fault_of(case, measured)
    row.status = row.reason and "error" or "ok"
    if row.reason then return row end
    add_times(row, case, measured)
    if measured.device then add_devices(row, case, measured) end
    return row
end

return M
