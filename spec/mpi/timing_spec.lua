-- The timed loop of a bench, whatever the ranks are: what the slowest does counts, on all of them.
local ranks = require "spec.support.ranks"

local it2 = ranks.with(2, it)

describe("the timed loop of a bench", function()
    it2("ends a part when its last rank is done, and runs it warmup + iters times", function()
        local results = ranks.run(2, function(comm)
            local C = require("clib").C
            local n = { quick = 0, slow = 0 }
            local function busy()
                n.slow = n.slow + 1
                local since = C.cpl_clock()
                while comm:rank() == 1 and C.cpl_clock() - since < 0.01 do end
            end
            local seconds = require("cplab.bench.timing").run(comm, {
                { name = "quick", run = function() n.quick = n.quick + 1 end },
                { name = "slow", run = busy },
            }, 2, 3)
            return { n = n, quick = seconds.quick, slow = seconds.slow }
        end)
        assert.same(results[1], results[2])
        assert.same({ quick = 5, slow = 5 }, results[1].n)
        assert.equal(3, #results[1].quick)
        assert.equal(3, #results[1].slow)
        for _, seconds in ipairs(results[1].slow) do assert.is_true(seconds >= 0.01) end
    end)

    it2("counts the memory that any process takes", function()
        local results = ranks.run(2, function(comm)
            local rows = require "cplab.rows"
            local _, taken = require("cplab.bench.timing").run(comm, { { name = "part",
                run = function()
                    if comm:rank() == 1 then rows.new(nil, "f64", 1, 1) end
                end } }, 0, 3)
            local _, none = require("cplab.bench.timing").run(comm, { { name = "part",
                run = function() end } }, 0, 3)
            return { taken, none }
        end)
        assert.same(results[1], results[2])
        assert.is_true(results[1][1] >= 3)
        assert.equal(0, results[1][2])
    end)
end)
