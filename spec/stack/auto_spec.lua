-- Whatever is planned runs, and gives the numbers of one rank, in f64 at 1e-12 (DESIGN section 8).
local fake_prices = require "spec.support.fake_prices"
local labs = require "spec.support.labs"
local planner = require "cplab.planner"

local BOUND = 1e-12

local function check(stream, model, cp, tp)
    local m = labs.parity_step(stream, model, cp, nil, tp)
    assert.is_true(m.parity_fwd <= BOUND, ("forward %g at %s"):format(m.parity_fwd,
        tostring(m.parity_fwd_where)))
    assert.is_true(m.parity_grad <= BOUND, ("gradient %g at %s"):format(m.parity_grad,
        tostring(m.parity_grad_where)))
    assert.equal(0, m.wrong_rows)
    assert.equal(0, m.routes_built_in_step)
    return m
end

describe("an assignment planned on prices that nobody measured", function()
    local names = { "contiguous", "zigzag", "mirror", "balanced", "balanced@0.1" }
    local modes = {
        [2] = { gqa = { "p2p", "gather", "a2a" }, gdn = { "chunkwise", "headwise" } },
        [3] = { gqa = { "p2p", "gather" }, gdn = { "chunkwise" } },
    }

    for seed = 1, 8 do
        local cp = seed % 2 + 2
        it(("equals one rank, seed %d at cp %d"):format(seed, cp), function()
            local prices = fake_prices.new { pattern = "G*G*", names = names, seed = seed,
                style = "ties", modes = modes[cp] }
            local plan = planner.plan(prices)
            local m = check(labs.padded({ 7, 0, 9, 17 }, 2 * cp),
                labs.model { pattern = "G*G*", policy = plan.assignment }, cp)
            assert.equal(plan.conversions, m.conversions_fwd)
            assert.equal(plan.conversions, m.conversions_bwd)
        end)
    end
end)
