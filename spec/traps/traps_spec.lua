-- The traps of spec/traps/traps.lua: none is missing; each has a spec that is there, or a reason.
-- spec/traps/reports_spec.lua shows what the check sees.
local traps = require "spec.support.traps"

local IDS = traps.ids(1, 91, "T-")

describe("every trap", function()
    it("has a spec or a reason", function()
        local entries = traps.load "traps"
        assert.equal("", table.concat(traps.wrong(IDS, entries), "\n"))
    end)

    it("(control) is missed where it is not there, or its spec has another name", function()
        local entries = { unpack(traps.load "traps") }
        local first = entries[1]
        entries[1] = { id = first.id, source = first.source, about = first.about,
            spec = first.spec, name = first.name .. "." }
        local last = table.remove(entries)
        local wrong = table.concat(traps.wrong(IDS, entries), "\n")
        assert.truthy(wrong:find("T-01 names an it that", 1, true), wrong)
        assert.truthy(wrong:find(last.id .. " is there 0 times", 1, true), wrong)
    end)
end)
