-- A timeline is one JSON object; the events of a rank follow each other and fill the step.
local json = require "cplab.json"
local timeline = require "cplab.project.timeline"

local function event(rank, start, duration, kind)
    return { name = kind .. " " .. start, rank = rank, start = start, duration = duration,
        kind = kind }
end

local EVENTS = {
    event(0, 0, 2e-3, "compute"), event(1, 0, 1e-3, "compute"),
    event(1, 1.5e-3, 1e-3, "convert"), event(0, 2e-3, 0.5e-3, "convert"),
}

local function decoded(events, n_ranks, seconds)
    return assert(json.decode(timeline.encode { { name = "policy=mirror", n_ranks = n_ranks,
        seconds = seconds, events = events } }))
end

describe("a timeline", function()
    it("has complete events in microseconds and names its ranks", function()
        local file, names, complete = decoded(EVENTS, 2, 2.5e-3), {}, 0
        assert.equal("ms", file.displayTimeUnit)
        for _, e in ipairs(file.traceEvents) do
            assert.truthy(e.ph == "X" or e.ph == "M")
            assert.equal(0, e.tid)
            if e.name == "process_name" then names[e.pid + 1] = e.args.name end
            if e.ph == "X" then
                complete = complete + 1
                assert.truthy(e.ts >= 0 and e.dur > 0 and e.ts + e.dur <= 2500 + 1e-6)
            end
        end
        assert.same({ "policy=mirror: rank 0", "policy=mirror: rank 1" }, names)
        assert.equal(5, complete) -- and one wait
    end)

    it("covers the step of every rank without overlaps", function()
        local spent, last = {}, {}
        for _, e in ipairs(decoded(EVENTS, 2, 3e-3).traceEvents) do
            if e.ph == "X" then
                assert.near(last[e.pid] or 0, e.ts, 1e-6)
                last[e.pid] = e.ts + e.dur
                spent[e.pid] = (spent[e.pid] or 0) + e.dur
            end
        end
        for pid = 0, 1 do assert.near(3000, spent[pid], 1e-6) end
    end)

    it("counts processes on from case to case", function()
        local one = { name = "a", n_ranks = 2, seconds = 2.5e-3, events = EVENTS }
        local text, pids = timeline.encode { one, one }, {}
        for _, e in ipairs(json.decode(text).traceEvents) do pids[e.pid] = true end
        assert.same({ [0] = true, true, true, true }, pids)
    end)

    local wrong = {
        { "events that lie over each other", { event(0, 0, 2, "a"), event(0, 1, 2, "b") },
            "timeline: rank 0: b 1 begins at 1 s, before a 0 has ended at 2 s" },
        { "an event after the end", { event(0, 0, 6, "a") },
            "timeline: rank 0 ends at 6 s, the step at 5 s" },
        { "an event of no rank", { event(3, 0, 1, "a") },
            "timeline: an event of rank 3, but there are 1 ranks" },
    }
    for _, row in ipairs(wrong) do
        it("refuses " .. row[1], function()
            assert.has_error(function() timeline.ranks(row[2], 1, 5) end, row[3])
        end)
    end
end)
