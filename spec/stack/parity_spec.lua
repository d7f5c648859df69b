-- CP = N equals CP = 1, forward and every gradient, in f64 at 1e-12: the bound of DESIGN
-- section 8. What is left between the two is the order of sums: about 100 terms of 1e-16 each.
local labs = require "spec.support.labs"

local BOUND = 1e-12

-- The short length lists of gdn_and_attention.md sections 8.c and 3.3: a sequence over all
-- ranks, cuts one off a rank's edge, ones, an empty sequence, equal ones.
local LISTS = {
    { 24 }, { 7, 9, 8 }, { 5, 6, 8, 5 }, { 6, 6, 6, 6 }, { 1, 1, 1, 21 }, { 23, 1 },
    { 3, 3, 2, 2, 3, 3 }, { 17, 0, 7 }, { 5, 7 }, { 7, 0, 17 },
}

local function check(real, policy, cp, changes)
    local model = labs.model { policy = policy }
    for name, value in pairs(changes or {}) do
        model[name] = value
    end
    local m = labs.parity_step(labs.padded(real, 2 * cp), model, cp)
    labs.assert_parity(m, BOUND)
    assert.equal(0, m.routes_built_in_step)
    return m
end

describe("parity with one rank", function()
    for _, policy in ipairs { "zigzag", "contiguous", "mirror", "balanced", "native" } do
        for _, cp in ipairs { 2, 3, 4, 5, 8 } do
            for _, real in ipairs(LISTS) do
                it(("holds for %s at cp %d on {%s}"):format(policy, cp, table.concat(real, ",")),
                    function() check(real, policy, cp) end)
            end
        end
    end

    it("holds for every triple of layouts", function()
        for _, live in ipairs { "contiguous", "zigzag", "mirror" } do
            for _, gqa in ipairs { "contiguous", "zigzag", "mirror" } do
                for _, gdn in ipairs { "contiguous", "zigzag", "mirror" } do
                    check({ 13, 3, 0, 9 }, { live, gqa, gdn }, 3)
                end
            end
        end
    end)

    it("holds near any layout, at any tolerance, block and method", function()
        for i, live in ipairs { "contiguous", "zigzag", "mirror", "balanced" } do
            local gqa = labs.model().gqa
            gqa.tolerance, gqa.block = ({ 0, 0.01, 0.3, 1 })[i], ({ 1, 2, 1, 2 })[i]
            gqa.method, gqa.placement = i % 2 == 0 and "plain" or nil, "striped"
            gqa.node_size = 2
            check({ 13, 3, 0, 29 }, { live, "balanced", "contiguous" }, 4, { gqa = gqa })
        end
        check({ 13, 3, 0, 29 }, { "contiguous", "balanced", "balanced" }, 3)
    end)

    it("holds on an sbhd stream", function()
        local m = labs.parity_step({ seqlen = 32, batch = 1 }, labs.model { policy = "mirror" }, 4)
        assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND)
    end)

    it("holds without an MLP, with conv 1, and with runs shorter than the convolution", function()
        check({ 7, 9, 8 }, "native", 4, { mlp = false and {} or nil })
        local gdn = { key_heads = 1, value_heads = 3, key_dim = 4, value_dim = 3, conv = 1,
            chunk = 64 }
        check({ 7, 9, 8 }, "native", 4, { gdn = gdn })
        gdn.conv = 7
        check({ 7, 9, 8 }, "native", 4, { gdn = gdn })
        check({ 40 }, "zigzag", 5, { gdn = gdn })
    end)

    it("is exactly 0 at cp 1", function()
        local m = check({ 7, 9, 8 }, "zigzag", 1)
        assert.equal(0, m.parity_fwd)
        assert.equal(0, m.parity_grad)
    end)

    -- f32 rounds at 6e-8; sums of some 100 terms through four layers stay below 1e-4.
    it("holds in f32 at 1e-4", function()
        local m = labs.parity_step(labs.padded({ 24, 30 }, 8),
            labs.model { policy = "native", dtype = "f32" }, 4)
        assert.is_true(m.parity_fwd <= 1e-4 and m.parity_grad <= 1e-4)
        assert.is_true(m.parity_fwd > 0) -- it really ran in f32
    end)

    it("holds in the second step too: nothing of the first is left", function()
        for _, policy in ipairs { "zigzag", "mirror", "native" } do
            local result = assert(labs.run {
                stream = labs.padded({ 17, 0, 7 }, 8), cp = 4,
                model = labs.model { policy = policy },
                calls = { { "step", { iters = 2, reference = true, trace = true } } },
            })
            local m = result.answers[1]
            assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND)
            assert.equal(0, m.wrong_rows)
        end
    end)

    it("gives the same bits in every run", function()
        local model = labs.model { policy = "native" }
        local first = labs.parity_step(labs.padded({ 17, 0, 7 }, 8), model, 4)
        for _ = 1, 3 do
            local again = labs.parity_step(labs.padded({ 17, 0, 7 }, 8), model, 4)
            assert.equal(first.loss, again.loss)
            assert.equal(first.parity_grad, again.parity_grad)
        end
    end)
end)
