-- ./cplab bench plan, as a user calls it. No spec here depends on how long something takes.
local command = require "spec.cli.command"

describe("./cplab bench plan", function()
    it("prints a row for each size, with the parts that its time is made of", function()
        local result = command.cplab { "bench", "plan", "--iters", "1", "--json" }
        assert.same({ 0, "" }, { result.status, result.err })
        local rows = command.objects(result)
        assert.equal(5, #rows)
        for _, row in ipairs(rows) do
            assert.same({ 96, 5 }, { row.layers, row.layouts })
            local sum = row.layouts_ms + row.routes_ms + row.counts_ms + row.search_ms
            assert.is_true(math.abs(sum - row.median_ms) <= 1e-9 * row.median_ms)
            assert.is_true(row.search_ms > 0 and row.step_ms > 0)
        end
    end)

    it("prints a table", function()
        local out = command.cplab({ "bench", "plan", "--iters", "1" }).out
        assert.truthy(out:find("^sequences +cp layers layouts +median ms .* planned step ms\n"))
        assert.truthy(out:find("\n +1000 +64 +96 +5 [%d. |]+\n$"))
    end)

    describe("prints no row where", function()
        local planner = require "cplab.planner"
        local plan_as_it_is = planner.plan

        after_each(function() planner.plan = plan_as_it_is end)

        local function refuses(change)
            planner.plan = function(prices)
                return change(plan_as_it_is(prices), prices)
            end
            local status, message = require("cplab.bench_plan").run { json = true, iters = 1 }
            assert.equal(1, status)
            assert.equal("bench plan: 1 sequences, cp 8: the plan is not what its choices cost, or "
                .. "a fixed policy is cheaper", message)
        end

        it("a plan does not cost what it says", function()
            refuses(function(plan)
                plan.seconds = 1.001 * plan.seconds
                return plan
            end)
        end)

        it("a fixed policy is cheaper", function()
            refuses(function(plan, prices)
                local layers = {}
                for i, layer in ipairs(plan.assignment.layers) do
                    layers[i] = { live = "zigzag", mixer = "mirror", cp_mode = layer.cp_mode }
                end
                local dear = { entry = "zigzag", exit = "zigzag", layers = layers }
                return { assignment = dear, seconds = planner.price(prices, dear) }
            end)
        end)
    end)
end)
