-- The modes of attention in a stack: named by the model or by a layer, under a policy, with parity.
local cplab = require "cplab"
local labs = require "spec.support.labs"
local outline = require "cplab.outline"

local BOUND = 1e-12
local STREAM = { lengths = { 32, 16 }, real = { 30, 13 } }

local function gqa(changes)
    local fields = labs.model().gqa
    for name, value in pairs(changes) do fields[name] = value end
    return fields
end

local function step(changes, policy, options)
    return labs.parity_step(STREAM,
        labs.model { pattern = "G*", policy = policy or "zigzag", gqa = gqa(changes) }, 4, options)
end

local MODES = {
    { cp_mode = "gather" }, { cp_mode = "p2p" }, { cp_mode = "a2a" },
    { cp_mode = "a2a+p2p", a2a = 2 },
}

local function model_of(schedule, fields, policy)
    local sizes = labs.model()
    return cplab.model { schedule = schedule, policy = policy or "zigzag", hidden = 12, vocab = 17,
        dtype = "f64", gqa = gqa(fields or {}), gdn = sizes.gdn }
end

describe("a stack", function()
    for _, changes in ipairs(MODES) do
        it("equals one rank under every policy with " .. changes.cp_mode, function()
            for _, policy in ipairs { "zigzag", "contiguous", "mirror", "balanced", "native" } do
                for _, window in ipairs { 0, 5 } do
                    changes.window = window > 0 and window or nil
                    local m = step(changes, policy)
                    assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND)
                    assert.equal(0, m.wrong_rows)
                end
            end
        end)
    end

    it("converts nothing around a2a, which takes any layout; around others as before", function()
        for i, expected in ipairs { 4, 4, 2, 4 } do
            assert.equal(expected, step(MODES[i], { "contiguous", "zigzag", "mirror" })
                .conversions_fwd)
        end
    end)

    it("counts as state only what GDN hands over", function()
        local expected = step(MODES[1], "native").state_bytes
        for i = 2, 4 do assert.equal(expected, step(MODES[i], "native").state_bytes) end
        local m = labs.parity_step(STREAM, labs.model { pattern = "*", gqa = gqa(MODES[2]) }, 4)
        assert.equal(0, m.state_bytes)
    end)

    it("has the imbalance of its modes", function()
        local where = { "contiguous", "contiguous", "contiguous" }
        local function imbalance(changes) return step(changes, where).attention_imbalance end
        local gather = imbalance(MODES[1])
        assert.is_true(gather > 1.2)
        assert.equal(gather, imbalance(MODES[2]))
        assert.equal(1, imbalance(MODES[3]))
        local groups = imbalance(MODES[4])
        assert.is_true(groups > 1 and groups < gather)
    end)

    it("runs each layer in its own mode and window", function()
        local schedule = cplab.schedule.list { { "gqa", cp_mode = "p2p", window = 4 }, "gdn",
            { "gqa", cp_mode = "a2a" }, "gqa", { "gqa", cp_mode = "a2a+p2p", a2a = 4 } }
        local model = model_of(schedule, { cp_mode = "a2a+p2p", a2a = 2 })
        local text = table.concat(outline.lines(cplab.stream.thd { lengths = { 16 } }, model, 4),
            "\n")
        assert.matches("\nmodes        GQA p2p in a window of 4 %(1%), a2a %(1%), "
            .. "a2a%+p2p of 2 %(1%), a2a%+p2p of 4 %(1%); GDN chunkwise %(1%)\n", text)
        -- One conversion each way for GDN: the model lives in zigzag, like GQA.
        assert.matches("\nconversions  2 a forward pass", text)
        -- Another window is another model, another mode is not.
        local function signature(layer)
            return model_of(cplab.schedule.list { layer }):signature()
        end
        assert.equal(signature "gqa", signature { "gqa", cp_mode = "p2p" })
        assert.equal(signature "gqa", signature { "gqa", cp_mode = "a2a+p2p", a2a = 2 })
        assert.not_equal(signature "gqa", signature { "gqa", window = 3 })
        assert.not_equal(model_of(cplab.schedule.list { "gqa" }, { window = 3 }):signature(),
            signature "gqa")
    end)

    it("refuses what no layer uses, and modes that lack their group", function()
        local function refused(message, schedule, fields)
            assert.has_error(function() model_of(schedule, fields) end, message)
        end
        local one = cplab.schedule.list { "gqa" }
        refused('model.gqa: a2a = 2, but no layer of the schedule takes it with cp_mode "a2a+p2p"',
            one, { a2a = 2 })
        refused('gqa: a2a = 0, the ranks that spread heads, must be >= 1 with cp_mode "a2a+p2p"',
            one, { cp_mode = "a2a+p2p" })
        refused('gqa: a2a = 3, the ranks that spread heads, must be 0 with cp_mode "p2p"',
            cplab.schedule.list { { "gqa", cp_mode = "p2p", a2a = 3 } })
        refused("model.gqa: window must be an integer in 1 .. 2147483647 (got 0)", one,
            { window = 0 })
    end)

    it("shows planted faults of a mode by parity, though no row is misplaced", function()
        for _, fault in ipairs { { MODES[2], "drop_merge" }, { MODES[2], "reverse_ring" },
            { MODES[3], "kv_head_shift" }, { MODES[4], "drop_merge" } } do
            local m = step(fault[1], "zigzag", { faults = { [fault[2]] = { rank = 1 } } })
            assert.equal(0, m.wrong_rows)
            assert.is_true(m.parity_fwd > 1e-6, fault[2])
        end
    end)

    it("holds mla layers beside others, where GQA runs, in every mode", function()
        local mla = { heads = 4, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2,
            value_dim = 7 }
        for i, changes in ipairs(MODES) do
            for name, value in pairs(changes) do mla[name] = value end
            mla.a2a = changes.a2a
            for _, policy in ipairs { "mirror", { "zigzag", "contiguous", "zigzag" } } do
                local m = labs.parity_step(STREAM,
                    labs.model { pattern = "GLL*", policy = policy, mla = mla }, 4)
                assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND)
                assert.equal(0, m.wrong_rows)
                assert.equal(MODES[i].cp_mode == "a2a" and 2 or 6, m.conversions_fwd)
                assert.same({ 4, 1, 2, 1 },
                    { m.layers, m.gqa_layers, m.mla_layers, m.gdn_layers })
            end
        end
        local function refused(message, changes)
            local fields = { heads = 4, q_rank = 5, kv_rank = 6, nope_dim = 3, value_dim = 7 }
            for name, value in pairs(changes) do fields[name] = value end
            assert.has_error(function()
                cplab.model { schedule = cplab.schedule.list { "mla" }, policy = "native",
                    hidden = 8, vocab = 9, mla = fields }
            end, message)
        end
        refused("mla: rope_dim 3 must be even and not negative", { rope_dim = 3 })
        refused("model.mla: kv_rank must be an integer in 1 .. 2147483647 (got 0)", { kv_rank = 0 })
        refused("mla: q_rank must be >= 0 (got -1)", { q_rank = -1 })
        refused('model.mla: unknown cp_mode "ring"; there are gather, p2p, a2a, a2a+p2p',
            { cp_mode = "ring" })
    end)
end)
