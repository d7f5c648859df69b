-- What a step counts, against what the schedule and the layouts say it must be.
local cplab = require "cplab"
local labs = require "spec.support.labs"

local function step(policy, pattern, cp, lengths, options)
    local result, message = labs.run {
        stream = { lengths = lengths or { 32, 16 } }, cp = cp,
        model = labs.model { policy = policy, pattern = pattern, layers = 8 },
        calls = { { "step", options or { backward = true, trace = true } } },
    }
    assert(result, message)
    return result.answers[1]
end

local PATTERNS = { ["1:1"] = "G*", ["1:3"] = "GGG*", ["1:7"] = "GGGGGGG*" }
local EXPECTED = {
    ["1:1"] = { zigzag = 8, contiguous = 8, mirror = 8, native = 0 },
    ["1:3"] = { zigzag = 12, contiguous = 4, mirror = 4, native = 0 },
    ["1:7"] = { zigzag = 14, contiguous = 2, mirror = 2, native = 0 },
}

describe("counts of a step", function()
    for ratio, by_policy in pairs(EXPECTED) do
        for policy, expected in pairs(by_policy) do
            it(("%d conversions a pass for %s at %s, none at cp 1"):format(expected, policy, ratio),
                function()
                    local m = step(policy, PATTERNS[ratio], 2)
                    assert.equal(expected, m.conversions_fwd)
                    assert.equal(expected, m.conversions_bwd)
                    m = step(policy, PATTERNS[ratio], 1)
                    assert.equal(0, m.conversions_fwd)
                    assert.equal(0, m.conversion_bytes_fwd)
                end)
        end
    end

    it("a mirror conversion moves 1/2 of the tokens in 4 messages, zigzag 3/4 in 6", function()
        local row = 12 * 8 -- hidden 12 in f64
        local mirror = step("mirror", "GGGGGGG*", 4, { 64 })
        local contiguous = step("contiguous", "GGGGGGG*", 4, { 64 })
        assert.equal(2 * 32 * row, mirror.conversion_bytes_fwd)
        assert.equal(2 * 48 * row, contiguous.conversion_bytes_fwd)
        assert.equal(2 * 4, mirror.conversion_messages_fwd)
        assert.equal(2 * 6, contiguous.conversion_messages_fwd)
        assert.equal(mirror.conversion_bytes_fwd, mirror.conversion_bytes_bwd)
    end)

    it("T-20: converts hidden states, not what a layer makes of them", function()
        for name, published in pairs { qwen35_35b = { 16448, 4096 },
            qwen35_397b = { 28800, 8192 } } do
            local m = cplab.model[name] {}
            local gdn = m.gdn
            local keys, values = gdn.key_heads * gdn.key_dim, gdn.value_heads * gdn.value_dim
            -- q, k, v, z and two gates a head on the way in, the output on the way back.
            local wide = 2 * keys + 2 * values + 2 * gdn.value_heads + values
            assert.same(published, { wide, 2 * m.hidden })
        end
        -- Here: to each of 8 layers and back, 48 rows of 12 numbers, not of 20 + 48 + 8 and 24.
        local m = step({ "zigzag", "zigzag", "contiguous" }, "G", 4, { 64 })
        assert.equal(8 * 48 * (2 * 12) * 8, m.conversion_bytes_fwd)
    end)

    it("a step without backward counts nothing there, forward the same", function()
        for _, policy in ipairs { "zigzag", "mirror", "native" } do
            local both = step(policy, "GGG*", 4, { 64 })
            local one = step(policy, "GGG*", 4, { 64 }, {})
            for _, name in ipairs { "conversions", "conversion_bytes" } do
                assert.equal(both[name .. "_fwd"], both[name .. "_bwd"])
                assert.equal(both[name .. "_fwd"], one[name .. "_fwd"])
                assert.equal(0, one[name .. "_bwd"])
            end
            assert.equal(both.conversion_messages_fwd, one.conversion_messages_fwd)
            assert.equal(both.state_bytes, 2 * one.state_bytes) -- what goes comes back
        end
    end)

    it("counts are of one step, however many are run", function()
        for _, policy in ipairs { "zigzag", "native" } do
            local one = step(policy, "GGG*", 4, { 64 })
            local many = step(policy, "GGG*", 4, { 64 },
                { backward = true, trace = true, warmup = 1, iters = 3 })
            assert.is_true(one.conversions_fwd + one.state_bytes > 0)
            for _, name in ipairs { "conversions_fwd", "conversions_bwd", "conversion_bytes_fwd",
                "conversion_bytes_bwd", "conversion_messages_fwd", "state_bytes", "wrong_rows",
                "routes_built", "routes_built_in_step" } do
                assert.equal(one[name], many[name], name)
            end
        end
    end)

    it("native converts nothing but hands states over", function()
        local m = step("native", "GGG*", 4, { 64 })
        assert.equal(0, m.conversion_bytes_fwd)
        -- Seven runs of one chain, six hops, forward and backward, six GDN layers, four heads of
        -- 5 x 6 doubles.
        assert.equal(6 * 2 * 6 * 4 * 5 * 6 * 8, m.state_bytes)
        assert.equal(0, step("native", "GGG*", 1, { 64 }).state_bytes)
    end)

    it("layers, routes, loss and times", function()
        local m = step("zigzag", "GGG*", 2)
        assert.equal(8, m.layers)
        assert.equal(2, m.gqa_layers)
        assert.equal(6, m.gdn_layers)
        assert.equal(0, m.routes_built_in_step)
        -- One route each for conversions, labels, halos and keys, however many layers there are.
        assert.equal(4, m.routes_built)
        assert.equal(0, m.host_syncs_in_step)
        assert.is_true(math.abs(m.loss - math.log(17)) < 0.1)
        assert.is_true(math.abs(m.step_ms - m.convert_ms - m.compute_ms - m.comm_ms) < 1e-9)
        assert.is_true(m.busy_ms > 0 and m.peak_bytes > 0)
        assert.equal(1, m.attention_imbalance)
    end)

    it("the imbalance is that of the layout where attention runs", function()
        assert.equal(1, step("contiguous", "G*", 2, { 64 }).attention_imbalance)
        assert.equal(1, step("mirror", "G*", 2, { 64 }).attention_imbalance)
        -- Of 64 queries the later 32 see 64 * 65 / 2 - 32 * 33 / 2 = 1552 keys; the mean is 1040.
        local m = step({ "zigzag", "contiguous", "zigzag" }, "G*", 2, { 64 })
        assert.equal(1552 / 1040, m.attention_imbalance)
        assert.equal(1, step("native", "G", 2, { 64 }).attention_imbalance)
    end)

    it("T-08, T-14: routes are built before the step; lazy ones in each, and counted", function()
        local result = labs.run {
            stream = { lengths = { 32, 16 } }, cp = 2,
            model = labs.model { policy = "zigzag", routes = "lazy" },
            calls = { { "step", { backward = true, reference = true, trace = true } } },
        }
        local m = result.answers[1]
        assert.equal(1, m.routes_built_in_step)
        assert.is_true(m.parity_grad <= 1e-12)
        -- Once for all conversions, however many layers and steps there are.
        local few = step("zigzag", "G", 2, nil, { iters = 1, backward = true })
        local many = step("zigzag", "G*", 2, nil, { iters = 3, backward = true })
        assert.equal(16, few.conversions_fwd)
        assert.equal(0, few.routes_built_in_step)
        assert.equal(0, many.routes_built_in_step)
        assert.equal(few.routes_built + 1, many.routes_built) -- attention's keys
    end)

    it("is untraced unless asked: wrong_rows is absent", function()
        assert.is_nil(step("zigzag", "GGG*", 2, nil, { backward = true }).wrong_rows)
    end)
end)
