-- The planner against everything that could have been planned.
local all_plans = require "spec.support.all_plans"
local fake_prices = require "spec.support.fake_prices"
local planner = require "cplab.planner"

local FIVE = { "contiguous", "zigzag", "mirror", "balanced", "balanced@0.1" }
local STYLES = { "real", "ties", "holes" }

local function first(n)
    return { unpack(FIVE, 1, n) }
end

local function prices_of(pattern, n_layouts, seed, style, more)
    local t = { pattern = pattern, names = first(n_layouts), seed = seed, style = style }
    for name, value in pairs(more or {}) do t[name] = value end
    return fake_prices.new(t)
end

-- Ends fixed or free, in turn.
local function ends_of(k, n_layouts)
    return { entry = k % 2 == 1 and FIVE[k % n_layouts + 1] or nil,
        exit = k % 4 > 1 and FIVE[(k + 1) % n_layouts + 1] or nil }
end

-- Plans, or nil where none can be had.
local function try(f, prices, options)
    local ok, plan = pcall(f, prices, options)
    if not ok then assert.truthy(plan:find("planner: ", 1, true), plan) end
    return ok and plan or nil
end

local function assert_same(expected, plan, where)
    if expected == nil or plan == nil then
        assert.equal(expected, plan, where)
        return
    end
    assert.equal(expected.seconds, plan.seconds, where)
    assert.equal(expected.conversions, plan.conversions, where)
    assert.same(expected.assignment, plan.assignment, where)
end

describe("the planner", function()
    it("equals exhaustive search on every schedule of up to 8 layers", function()
        local seed = 0
        for n = 1, 8 do
            for _, pattern in ipairs(fake_prices.patterns(n)) do
                seed = seed + 1
                local style = STYLES[seed % 3 + 1]
                local prices = prices_of(pattern, 2, seed, style, { alike = seed % 2 == 0 })
                local options = ends_of(seed, 2)
                local where = ("%s, seed %d, %s"):format(pattern, seed, style)
                assert_same(try(planner.exhaustive, prices, options),
                    try(planner.plan, prices, options), where)
            end
        end
    end)
end)
