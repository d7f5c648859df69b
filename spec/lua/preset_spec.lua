-- Presets against what is published: sizes by name, parameter counts, schedules; and what `tiny`
-- keeps.
local cplab = require "cplab"
local labs = require "spec.support.labs"
local outline = require "cplab.outline"

local NAMES = { "kimi_linear", "minimax", "olmo_hybrid", "qwen35_35b", "qwen35_397b",
    "qwen35_397b_proxy", "qwen3_next_80b" }

-- Of the model cards and configurations: hidden, layers, attention layers, its sizes (GQA:
-- heads/kv_heads/head_dim; MLA: heads, ranks of queries (none: 0) and of keys and values, key dims
-- of the latent, shared key dims, value dims), key/value heads, K, V, experts, choices, width,
-- shared width, vocabulary.
local PUBLISHED = {
    qwen3_next_80b = { 2048, 48, 12, 16, 2, 256, 16, 32, 128, 128, 512, 10, 512, 512, 151936 },
    qwen35_35b = { 2048, 40, 10, 16, 2, 256, 16, 32, 128, 128, 256, 8, 512, 512, 248320 },
    qwen35_397b = { 4096, 60, 15, 32, 2, 256, 16, 64, 128, 128, 512, 10, 1024, 1024, 248320 },
    qwen35_397b_proxy = { 4096, 4, 1, 32, 2, 256, 16, 64, 128, 128, 16, 2, 1024, 1024, 248320 },
    kimi_linear = { 2304, 27, 7, 32, 0, 512, 128, 64, 128, 32, 32, 128, 128, 256, 8, 1024, 1024,
        163840 },
    olmo_hybrid = { 3840, 32, 8, 30, 30, 128, 30, 30, 96, 192, 0, 0, 0, 0, 100352 },
    minimax = { 6144, 80, 10, 64, 8, 128, 64, 64, 128, 128, 32, 2, 9216, 0, 200064 },
}

local function sizes(m)
    local moe = m.moe or { experts = 0, top_k = 0, width = 0, shared_width = 0 }
    local list = { m.hidden, m.schedule:count(),
        m.schedule:count "gqa" + m.schedule:count "mla" }
    local function add(...)
        for _, size in ipairs { ... } do list[#list + 1] = size end
    end
    if m.gqa then add(m.gqa.heads, m.gqa.kv_heads, m.gqa.head_dim) end
    local mla = m.mla
    if mla then
        add(mla.heads, mla.q_rank, mla.kv_rank, mla.nope_dim, mla.rope_dim, mla.value_dim)
    end
    add(m.gdn.key_heads, m.gdn.value_heads, m.gdn.key_dim, m.gdn.value_dim, moe.experts,
        moe.top_k, moe.width, moe.shared_width, m.vocab)
    return list
end

describe("presets", function()
    it("are these", function() assert.same(NAMES, cplab.model.presets) end)

    for _, name in ipairs(NAMES) do
        it(name .. " has the published sizes", function()
            assert.same(PUBLISHED[name], sizes(cplab.model[name] {}))
        end)
    end

    -- In billions, and how far ours may lie: half of the last digit given, and what the notes say
    -- is left out or built otherwise (Qwen3.5's vision encoder, about half a billion; Kimi's
    -- KDA, OLMo's and MiniMax's missing gates).
    local COUNTS = {
        qwen3_next_80b = { 80, 0.5 }, qwen35_35b = { 35, 0.5 }, qwen35_397b = { 397, 1 },
        kimi_linear = { 48, 1.5 }, olmo_hybrid = { 7, 0.7 }, minimax = { 456, 4.5 },
    }
    -- Parameters of a token, in billions: names round down (A3B, A17B).
    local ACTIVE = { qwen3_next_80b = 3, qwen35_35b = 3, qwen35_397b = 17, kimi_linear = 3 }
    for name, expected in pairs(COUNTS) do
        it(name .. " has about as many parameters as published", function()
            local total, active = cplab.model[name] {}:n_parameters()
            assert.is_true(math.abs(total / 1e9 - expected[1]) <= expected[2],
                ("%.2f billion"):format(total / 1e9))
            if ACTIVE[name] then
                assert.equal(ACTIVE[name], math.floor(active / 1e9))
            end
        end)
    end

    it("counts parameters as a stack has them, shared tables once", function()
        local clib, stacks = require "clib", require "cplab.stack"
        for _, changes in ipairs { {}, { tied = true }, { moe = false },
            { gqa = { kv_heads = 2 } } } do
            changes.scale, changes.moe = "tiny", changes.moe == nil and { experts = 8 } or nil
            local m = cplab.model.qwen35_397b_proxy(changes)
            local stack = stacks.new { model = m, cp = 1, tp = 1, comm = clib.C.cpl_comm_self(),
                stream = cplab.stream.thd { lengths = { 2 } } }
            assert.equal(stack.parameters.n, (m:n_parameters()))
        end
    end)

    it("[report 76] schedules are lists: the last group of Kimi-Linear is short", function()
        assert.equal(("GGGL"):rep(6) .. "GGL", cplab.model.kimi_linear {}.schedule:describe())
        assert.equal(("GGGGGGG*"):rep(10), cplab.model.minimax {}.schedule:describe())
        assert.equal(("GGG*"):rep(12), cplab.model.qwen3_next_80b {}.schedule:describe())
        assert.equal("GGG*GGG*GG", cplab.model.qwen35_35b { layers = 10 }.schedule:describe())
        assert.equal("GGGLGGL", cplab.model.kimi_linear { layers = 7 }.schedule:describe())
        local schedule = cplab.schedule.list { "gdn", "gqa" }
        assert.equal("G*", cplab.model.minimax { schedule = schedule }.schedule:describe())
    end)

    it("rotate as published: a quarter, half, or nothing of the head", function()
        assert.equal(64, cplab.model.qwen3_next_80b {}.gqa.rotary_dim)
        assert.equal(1e7, cplab.model.qwen3_next_80b {}.gqa.rope_theta)
        assert.equal(64, cplab.model.minimax {}.gqa.rotary_dim)
        assert.equal(0, cplab.model.kimi_linear {}.mla.rope_theta)
        assert.equal(0, cplab.model.olmo_hybrid {}.gqa.rotary_dim)
    end)
end)

describe("a tiny preset", function()
    -- Pairs of sizes whose ratio must stay.
    local function ratios(m)
        local gqa, mla = m.gqa, m.mla
        local list = {
            m.schedule:count "gdn" / m.schedule:count(gqa and "gqa" or "mla"),
            m.gdn.value_heads / m.gdn.key_heads,
            m.gdn.key_heads * m.gdn.key_dim / m.hidden, m.gdn.value_dim / m.gdn.key_dim,
            m.gdn.value_heads * m.gdn.value_dim / m.hidden, m.gdn.conv,
        }
        local attention = gqa and { gqa.heads / gqa.kv_heads, gqa.heads * gqa.head_dim / m.hidden,
            gqa.rotary_dim / gqa.head_dim }
            or { mla.heads * mla.value_dim / m.hidden, mla.nope_dim / mla.value_dim,
                mla.rope_dim / mla.value_dim, mla.kv_rank / m.hidden, mla.q_rank / m.hidden }
        for _, ratio in ipairs(attention) do list[#list + 1] = ratio end
        if m.moe then
            list[#list + 1] = m.moe.experts / m.moe.top_k
            list[#list + 1] = m.moe.width / m.hidden
            list[#list + 1] = m.moe.shared_width / m.moe.width
            list[#list + 1] = m.moe.first_layer
        end
        list[#list + 1] = m.mlp and m.mlp.width / m.hidden
        return list
    end

    for _, name in ipairs(NAMES) do
        it(name .. " keeps every ratio, and is small", function()
            local preset = cplab.model[name]
            local tiny = preset { scale = "tiny" }
            assert.same(ratios(preset {}), ratios(tiny))
            assert.is_true((tiny:n_parameters()) < 5e6)
            assert.is_true(tiny.moe == nil or tiny.moe.top_k >= 2)
        end)
    end

    it("would be caught with another ratio", function()
        local tiny = cplab.model.qwen35_35b { scale = "tiny", gqa = { kv_heads = 2 } }
        assert.not_same(ratios(cplab.model.qwen35_35b {}), ratios(tiny))
    end)

    for _, name in ipairs { "qwen35_397b_proxy", "olmo_hybrid", "kimi_linear" } do
        it(name .. " runs, and equals one rank", function()
            local out = labs.run_preset(name, { scale = "tiny", dtype = "f64", policy = "mirror",
                layers = 4, moe = name ~= "olmo_hybrid" and { experts = 8 } or nil },
                { lengths = { 16, 8 }, real = { 13, 8 } }, 2)
            assert.is_true(out.parity_fwd <= 1e-12 and out.parity_grad <= 1e-12)
            assert.equal(0, out.wrong_rows)
        end)
    end
end)

describe("a preset's fields", function()
    it("override, tables field by field", function()
        local m = cplab.model.qwen35_35b { scale = "tiny", policy = "native", dtype = "f64",
            hidden = 40, gdn = { chunk = 8 }, moe = { aux_coefficient = 0.1 }, tied = true }
        assert.equal("native", m.policy.name)
        assert.equal(40, m.hidden)
        assert.equal(8, m.gdn.chunk)
        assert.equal(16, m.gdn.value_heads)
        assert.equal(0.1, m.moe.aux_coefficient)
        assert.equal(64, m.moe.experts)
        assert.is_true(m.tied)
        assert.equal("contiguous", cplab.model.qwen35_35b {}.policy.name)
        local again = cplab.model.qwen35_35b { scale = "tiny" }
        assert.equal(64, again.gdn.chunk) -- nothing of an override is left
    end)

    it("leave a part out where it is false", function()
        local m = cplab.model.qwen35_35b { moe = false, mlp = { width = 8 } }
        assert.is_nil(m.moe)
        assert.equal("mlp", m:ffn(0))
        m = cplab.model.qwen35_35b { moe = false }
        assert.is_nil(m:ffn(0))
        m = cplab.model.kimi_linear { moe = false }
        assert.equal("mlp", m:ffn(5))
        m = cplab.model.kimi_linear {}
        assert.equal("mlp", m:ffn(0))
        assert.equal("moe", m:ffn(1))
    end)

    it("that are unknown or do not fit are refused at the caller's line", function()
        local function refused(message, f)
            local ok, got = pcall(f)
            assert.is_false(ok)
            assert.truthy(got:find "spec/lua/preset_spec%.lua:%d+: ")
            assert.equal(message, (got:gsub("^.-preset_spec%.lua:%d+: ", "")))
        end
        local models = cplab.model
        refused('model.qwen35_35b: unknown field "hiden"; did you mean "hidden"?',
            function() local _ = models.qwen35_35b { hiden = 3 } end)
        refused('model.minimax: unknown scale "tini"; did you mean "tiny"?',
            function() local _ = models.minimax { scale = "tini" } end)
        refused('model.mla: unknown field "headz"; did you mean "heads"?',
            function() local _ = models.kimi_linear { mla = { headz = 2 } } end)
        refused('model.moe: unknown field "expert"; did you mean "experts"?',
            function() local _ = models.qwen35_35b { moe = { expert = 2 } } end)
        refused("gqa: 16 heads, not a multiple of kv_heads = 3",
            function() local _ = models.qwen35_35b { gqa = { kv_heads = 3 } } end)
        refused("model.olmo_hybrid: layers must be an integer >= 1 (got 0)",
            function() local _ = models.olmo_hybrid { layers = 0 } end)
    end)
end)

describe("show", function()
    for _, name in ipairs(NAMES) do
        it(("describes %s, and what of it is not built"):format(name), function()
            local stream = cplab.stream.thd { lengths = { 1024 } }
            local m = cplab.model[name] { policy = "mirror" }
            local text = table.concat(outline.lines(stream, m, 4), "\n")
            assert.truthy(text:find(m.schedule:describe(), 1, true))
            assert.truthy(text:find("parameters   %d+%.%d+ billion"))
            assert.equal(m.moe ~= nil, text:find("experts      %d+ of width") ~= nil)
            assert.is_true(#m.notes > 0)
            for _, note in ipairs(m.notes) do assert.truthy(text:find(note, 1, true)) end
        end)
    end

    it("says that MTP is left out, unless it is there", function()
        local left_out = "predicts a second token is left out"
        for _, name in ipairs { "qwen3_next_80b", "qwen35_35b", "qwen35_397b" } do
            local text = table.concat(cplab.model[name] {}.notes, "\n")
            assert.truthy(text:find(left_out, 1, true))
            local m = cplab.model[name] { mtp = { kind = "gqa" } }
            assert.is_nil(table.concat(m.notes, "\n"):find(left_out, 1, true))
            assert.equal(1, m.mtp.depth)
        end
    end)

    it("says that KDA and lightning attention are GDN here", function()
        local function notes(name)
            return table.concat(cplab.model[name] {}.notes, "\n")
        end
        assert.truthy(notes "kimi_linear":find "KDA is not built")
        assert.truthy(notes "minimax":find "lightning attention is not built")
        assert.truthy(notes "olmo_hybrid":find "negative eigenvalues are not built")
    end)
end)
