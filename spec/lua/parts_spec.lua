-- The parts of cplab: each loads by itself and has what it promises.
local ranks = require "spec.support.ranks"

local PARTS = { "stream", "layout", "view", "route", "tensor", "op", "model", "schedule", "policy",
    "assignment", "pipeline", "rules", "exchange", "experiment", "corpus", "packs", "lab",
    "boundary", "contract" }

describe("the parts of cplab", function()
    it("[T-50] load alone, whichever is first", function()
        -- A rank has a Lua state of its own: what it has loaded is forgotten before each part.
        local failures = ranks.run(1, function(_, parts)
            local list = {}
            for _, part in ipairs(parts) do
                for name in pairs(package.loaded) do
                    if name:find "^cplab" then package.loaded[name] = nil end
                end
                local ok, got = pcall(require, "cplab." .. part)
                if not ok or type(got) ~= "table" then list[#list + 1] = part .. ": "
                    .. tostring(got) end
            end
            return list
        end, PARTS)[1]
        assert.same({}, failures)
    end)

    it("[T-38] are there by name, and a wrong name says which one was meant", function()
        local cplab = require "cplab"
        for _, part in ipairs(PARTS) do
            assert.equal(require("cplab." .. part), cplab[part])
        end
        assert.has_error(function() return cplab.boundry end,
            'cplab: unknown name "boundry"; did you mean "boundary"?')
    end)
end)
