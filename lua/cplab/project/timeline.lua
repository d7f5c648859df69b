--- The timeline of projected steps, as chrome://tracing and Perfetto read it: one JSON object with
-- a list of complete events ("ph": "X"; ts and dur in microseconds), a process a CP rank (whose tp
-- ranks do the same side by side), named by a metadata event. The events of a rank follow each
-- other and fill its step: what the model says nothing about is an event "wait".
-- @module cplab.project.timeline
local json = require "cplab.json"

local M = {}

local US = 1e6

-- Two times in seconds are the same if they differ by less than a sum of many rounds away.
local ROUNDING = 1e-9

local function by_rank(events, n_ranks)
    local ranks = {}
    for rank = 0, n_ranks - 1 do ranks[rank] = {} end
    for _, event in ipairs(events) do
        local list = ranks[event.rank]
        if not list then
            error(("timeline: an event of rank %s, but there are %d ranks"):format(
                tostring(event.rank), n_ranks), 0)
        end
        if event.duration > 0 then list[#list + 1] = event end
    end
    return ranks
end

-- A rank's events in order, with its waits; raises where two lie over each other.
local function filled(rank, events, seconds)
    local list, now, slack = {}, 0, ROUNDING * seconds
    table.sort(events, function(a, b) return a.start < b.start end)
    local function wait_until(start)
        if start > now + slack then
            list[#list + 1] = { name = "wait", kind = "wait", start = now, duration = start - now }
        end
    end
    for _, event in ipairs(events) do
        if event.start < now - slack then
            error(("timeline: rank %d: %s begins at %.9g s, before %s has ended at %.9g s"):format(
                rank, event.name, event.start, list[#list].name, now), 0)
        end
        wait_until(event.start)
        list[#list + 1], now = event, math.max(now, event.start + event.duration)
    end
    if now > seconds + slack then
        error(("timeline: rank %d ends at %.9g s, the step at %.9g s"):format(rank, now, seconds),
            0)
    end
    wait_until(seconds)
    return list
end

--- The events of every rank of a step, waits filled in.
-- @tparam table events of prices:step: { name, rank, start, duration, kind }, in seconds
-- @tparam number n_ranks
-- @tparam number seconds of the step
-- @treturn table lists by rank, from 0
-- @raise events that lie over each other, outside of the step, or of no rank
function M.ranks(events, n_ranks, seconds)
    local ranks = by_rank(events, n_ranks)
    for rank = 0, n_ranks - 1 do ranks[rank] = filled(rank, ranks[rank], seconds) end
    return ranks
end

local ORDER = { "ph", "pid", "tid", "ts", "dur", "name", "cat" }

local function metadata(pid, name, value)
    return json.encode({ ph = "M", pid = pid, tid = 0, name = name, args = value }, ORDER)
end

local function complete(pid, event)
    return json.encode({ ph = "X", pid = pid, tid = 0, ts = event.start * US,
        dur = event.duration * US, name = event.name, cat = event.kind }, ORDER)
end

--- The file of some projected cases, one after another in the list of processes.
-- @tparam table cases a list of { name =, n_ranks =, seconds =, events = }
-- @treturn string JSON, one event a line
-- @raise as `ranks`
function M.encode(cases)
    local lines, pid = {}, 0
    for _, case in ipairs(cases) do
        local ranks = M.ranks(case.events, case.n_ranks, case.seconds)
        for rank = 0, case.n_ranks - 1 do
            lines[#lines + 1] = metadata(pid, "process_name",
                { name = ("%s: rank %d"):format(case.name, rank) })
            lines[#lines + 1] = metadata(pid, "process_sort_index", { sort_index = pid })
            for _, event in ipairs(ranks[rank]) do lines[#lines + 1] = complete(pid, event) end
            pid = pid + 1
        end
    end
    return ('{"displayTimeUnit":"ms","traceEvents":[\n%s\n]}\n'):format(table.concat(lines, ",\n"))
end

return M
