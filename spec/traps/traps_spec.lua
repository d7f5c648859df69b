-- The traps of spec/traps/traps.lua: none is missing; each has a spec that is there, or a reason.
-- spec/traps/reports_spec.lua shows what the check sees.
local traps = require "spec.support.traps"

-- T-25 and T-26 are of module boundaries.
local RANGES = { { 1, 24 }, { 27, 91 } }

local function expected()
    local ids = {}
    for _, range in ipairs(RANGES) do
        for _, id in ipairs(traps.ids(range[1], range[2], "T-")) do ids[#ids + 1] = id end
    end
    return ids
end

describe("every trap", function()
    it("has a spec or a reason", function()
        local entries = traps.load "traps"
        assert.equal("", table.concat(traps.wrong(expected(), entries), "\n"))
    end)

    it("(control) is missed where it is not there, or its spec has another name", function()
        local entries = { unpack(traps.load "traps") }
        local first = entries[1]
        entries[1] = { id = first.id, source = first.source, about = first.about,
            spec = first.spec, name = first.name .. "." }
        local last = table.remove(entries)
        local wrong = table.concat(traps.wrong(expected(), entries), "\n")
        assert.truthy(wrong:find("T-01 names an it that", 1, true), wrong)
        assert.truthy(wrong:find(last.id .. " is there 0 times", 1, true), wrong)
    end)
end)
