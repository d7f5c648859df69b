-- Sequence parallelism: cp x tp ranks give what one rank gives, forward, loss and every gradient,
-- in f64 at 1e-12, whatever is cut by heads or width, and however the hidden states travel.
local labs = require "spec.support.labs"
local ranks = require "spec.support.ranks"

local BOUND = 1e-12
local GROUPS = { { 1, 2 }, { 1, 4 }, { 2, 2 }, { 4, 2 }, { 2, 4 }, { 3, 2 } }
local POLICIES = { "zigzag", "contiguous", "mirror", "balanced", "native" }

local function step(real, cp, tp, changes, options)
    local model = labs.model(changes)
    model.mlp = not model.moe and model.mlp or nil
    return labs.parity_step(labs.padded(real, 2 * cp * tp), model, cp, options, tp)
end

local function check(...)
    local m = step(...)
    labs.assert_parity(m, BOUND)
    assert.equal(0, m.routes_built_in_step)
    return m
end

local MOE = { experts = 5, top_k = 2, width = 8, shared_width = 4, aux_coefficient = 0.5 }

describe("parity of cp x tp ranks with one", function()
    for _, group in ipairs(GROUPS) do
        local cp, tp = unpack(group)
        local it_n = ranks.with(cp * tp, it)
        for _, policy in ipairs(POLICIES) do
            it_n(("holds for %s at %d x %d, dense, experts, tied"):format(policy, cp, tp),
                function()
                    check({ 13, 3, 0, 29 }, cp, tp, { policy = policy })
                    check({ 7, 9, 8 }, cp, tp, { policy = policy, pattern = "G*", tied = true })
                    check({ 17, 0, 7 }, cp, tp, { policy = policy, moe = MOE })
                end)
        end
    end

    local it4, it8 = ranks.with(4, it), ranks.with(8, it)

    it4("holds for every triple of layouts", function()
        for _, live in ipairs { "contiguous", "zigzag", "mirror", "snake" } do
            for _, gqa in ipairs { "contiguous", "zigzag", "mirror" } do
                check({ 13, 3, 0, 9 }, 2, 2, { policy = { live, gqa, "contiguous" } })
                check({ 13, 3, 0, 9 }, 2, 2, { policy = { live, "striped", gqa } })
            end
        end
    end)

    it4("holds for the short lists of lengths", function()
        for _, real in ipairs { { 24 }, { 7, 9, 8 }, { 1, 1, 1, 21 }, { 3, 3, 2, 2, 3, 3 },
            { 23, 1 }, { 7, 0, 17 } } do
            for _, policy in ipairs { "zigzag", "native" } do
                check(real, 2, 2, { policy = policy })
            end
        end
    end)

    it8("holds for every mode of attention and GDN on the part of the group", function()
        local function gqa(changes)
            local t = { heads = 8, kv_heads = 4, head_dim = 8, rotary_dim = 4, rope_theta = 100 }
            for name, value in pairs(changes) do t[name] = value end
            return t
        end
        for _, policy in ipairs { "mirror", "native" } do
            for _, group in ipairs { { 4, 2 }, { 2, 4 } } do
                local cp, tp = unpack(group)
                for _, changes in ipairs { { cp_mode = "p2p" }, { cp_mode = "a2a" },
                    { cp_mode = "a2a+p2p", a2a = 2 }, { window = 5 },
                    { cp_mode = "p2p", window = 5, kv_heads = 2 },
                    { cp_mode = "a2a", kv_heads = 2 }, { kv_heads = 1 } } do
                    check({ 13, 3, 0, 29 }, cp, tp, { policy = policy, gqa = gqa(changes) })
                end
                local gdn = { key_heads = 4, value_heads = 8, key_dim = 5, value_dim = 6, conv = 4,
                    chunk = 4, cp_mode = "headwise" }
                check({ 13, 3, 0, 29 }, cp, tp, { policy = policy, gdn = gdn })
                gdn.key_heads, gdn.conv = 2, 7
                check({ 13, 3, 0, 29 }, cp, tp, { policy = policy, gdn = gdn })
            end
        end
    end)

    it4("holds for latent attention, and layers of different modes", function()
        local mla = { heads = 4, q_rank = 6, kv_rank = 5, nope_dim = 4, rope_dim = 2, value_dim = 3,
            rope_theta = 100 }
        for _, q_rank in ipairs { 6, 0 } do
            mla.q_rank = q_rank
            for _, mode in ipairs { "gather", "p2p", "a2a" } do
                mla.cp_mode = mode
                check({ 13, 3, 0, 9 }, 2, 2, { policy = "zigzag", pattern = "GL*L", mla = mla })
            end
        end
    end)

    it4("holds however the rows travel: by each method, fused and composed", function()
        for _, method in ipairs { "auto", "copy", "direct", "packed", "alltoallv", "composed" } do
            for _, policy in ipairs { "zigzag", "mirror", "native" } do
                check({ 13, 3, 0, 9 }, 2, 2, { policy = policy, exchange = { method = method } })
            end
        end
        check({ 13, 3, 0, 9 }, 1, 4, { policy = "zigzag", exchange = { method = "composed" } })
    end)

    it4("holds with recomputation, to the bits of without", function()
        for _, policy in ipairs { "zigzag", "native" } do
            local bits = {}
            for i, recompute in ipairs { "layer", false } do
                local result = assert(labs.run {
                    stream = labs.padded({ 13, 3, 0, 9 }, 8), cp = 2, tp = 2,
                    model = labs.model { policy = policy },
                    calls = { { "step", { backward = true, reference = true, trace = true,
                        recompute = recompute or nil } } },
                })
                local m = result.answers[1]
                assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND)
                assert.equal(0, m.wrong_rows)
                bits[i] = { m.loss, m.parity_grad, m.parity_fwd, m.grad_norm }
            end
            assert.same(bits[2], bits[1])
        end
    end)

    it4("holds in the second step, over steps of training, and in f32 at 1e-4", function()
        local function run(calls, changes)
            return assert(labs.run { stream = labs.padded({ 17, 0, 7 }, 8), cp = 2, tp = 2,
                model = labs.model(changes), calls = calls }).answers
        end
        local m = run { { "step", { iters = 2, reference = true, trace = true } } }[1]
        assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND)
        local options = { iters = 6, optimizer = "adamw", lr = 0.01, clip = 1 }
        local answers = run { { "step", options }, { "reference", { iters = 6,
            optimizer = "adamw", lr = 0.01, clip = 1 } } }
        for i, loss in ipairs(answers[1].losses) do
            local expected = answers[2].losses[i]
            assert.is_true(math.abs(loss - expected) <= 1e-10 * expected, tostring(i))
        end
        m = run({ { "step", { reference = true } } }, { dtype = "f32" })[1]
        assert.is_true(m.parity_fwd <= 1e-4 and m.parity_grad <= 1e-4 and m.parity_fwd > 0)
    end)

    it8("gives the same bits in every run", function()
        for _, policy in ipairs { "zigzag", "native" } do
            local first = step({ 17, 0, 7 }, 4, 2, { policy = policy })
            for _ = 1, 3 do
                local again = step({ 17, 0, 7 }, 4, 2, { policy = policy })
                assert.equal(first.loss, again.loss)
                assert.equal(first.parity_grad, again.parity_grad)
                assert.equal(first.parity_fwd, again.parity_fwd)
                assert.equal(first.grad_norm, again.grad_norm)
            end
        end
    end)
end)
