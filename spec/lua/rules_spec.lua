-- Configuration rules: each of the reference's with what breaks it and what does not, all of them
-- at once, our own, and rules that experiments add.
local cplab = require "cplab"
local message = require "spec.support.message"

local rules = cplab.rules

-- Takes no offence at anything.
local function config(changes)
    local t = {
        cp_partition_mode = "contiguous", context_parallel_size = 2,
        sequence_packing_scheduler = "dp_balanced", tensor_model_parallel_size = 2,
        sequence_parallel = true, experimental_attention_variant = "gated_delta_net",
        linear_cp_mode = "chunkwise", linear_attention_freq = 4, linear_conv_kernel_dim = 4,
        linear_key_head_dim = 16, linear_value_head_dim = 16, linear_num_key_heads = 4,
        linear_num_value_heads = 8,
    }
    for name, value in pairs(changes or {}) do
        if value == "none" then value = nil end
        t[name] = value
    end
    return t
end

local function broken(changes, set)
    local names = {}
    for i, one in ipairs(rules.check(config(changes), set or "megatron")) do
        names[i] = ("%s %s %s"):format(one.rule, one.settings[1], one.settings[2])
    end
    return names
end

-- rule, changes that break it alone, what is said of them, and changes that differ in one setting
-- and break nothing.
local DSV4 = { experimental_attention_variant = "dsv4_hybrid" }
local function with(t, changes)
    local copy = {}
    for name, value in pairs(t) do copy[name] = value end
    for name, value in pairs(changes) do copy[name] = value end
    return copy
end
local MTP = { mtp_num_layers = 1 }
local NO_VARIANT = { experimental_attention_variant = "none" }
local HEADWISE = { linear_cp_mode = "headwise", cp_partition_mode = "zigzag",
    tensor_model_parallel_size = 1, sequence_parallel = false }
local GRAPH = { cuda_graph_impl = "local" }
local PADS = { pad_packed_seq_alignment = 64, thd_tail_padding_policy = "extend_last" }
local CASES = {
    { "V1", { cp_partition_mode = "interleaved" }, "V1 cp_partition_mode context_parallel_size",
        { cp_partition_mode = "zigzag" } },
    { "V2", { sequence_packing_scheduler = "none" },
        "V2 cp_partition_mode sequence_packing_scheduler",
        { sequence_packing_scheduler = "none", context_parallel_size = 1 } },
    { "V2", { sequence_packing_scheduler = "none", context_parallel_size = 1,
            dynamic_context_parallel = true },
        "V2 cp_partition_mode sequence_packing_scheduler",
        { sequence_packing_scheduler = "none", cp_partition_mode = "zigzag" } },
    { "V3", MTP, "V3 cp_partition_mode mtp_num_layers",
        with(MTP, { sequence_parallel = false }) },
    { "V3", with(MTP, { dynamic_context_parallel = true, context_parallel_size = 1 }),
        "V3 cp_partition_mode mtp_num_layers", with(MTP, { tensor_model_parallel_size = 1 }) },
    { "V4", { multi_latent_attention = true }, "V4 cp_partition_mode multi_latent_attention",
        with(DSV4, { multi_latent_attention = true }) },
    { "V5", NO_VARIANT, "V5 cp_partition_mode experimental_attention_variant", DSV4 },
    { "V6", with(HEADWISE, { cp_partition_mode = "contiguous" }),
        "V6 cp_partition_mode linear_cp_mode", HEADWISE },
    { "V7", with(DSV4, { cp_partition_mode = "zigzag" }),
        "V7 cp_partition_mode experimental_attention_variant",
        with(DSV4, { cp_partition_mode = "zigzag", context_parallel_size = 1 }) },
    { "V8", { linear_attention_freq = "none" },
        "V8 experimental_attention_variant linear_attention_freq",
        { linear_attention_freq = { 1, 0 } } },
    { "V8", { linear_key_head_dim = "none" },
        "V8 experimental_attention_variant linear_key_head_dim",
        with(DSV4, { linear_key_head_dim = "none" }) },
    { "V8", { linear_num_value_heads = 6 }, "V8 linear_num_value_heads linear_num_key_heads",
        { linear_num_value_heads = 12 } },
    { "V8", with(HEADWISE, { gdn_conv_pad_alignment = 0 }),
        "V8 experimental_attention_variant gdn_conv_pad_alignment",
        with(HEADWISE, { gdn_conv_pad_alignment = 1 }) },
    { "V9", { linear_cp_mode = "sideways" }, "V9 linear_cp_mode context_parallel_size",
        { linear_cp_mode = "sideways", context_parallel_size = 1 } },
    { "V9", { gdn_conv_pad_alignment = 64 }, "V9 linear_cp_mode gdn_conv_pad_alignment",
        with(HEADWISE, { gdn_conv_pad_alignment = 64 }) },
    { "V10", with(HEADWISE, { linear_num_key_heads = 1 }),
        "V10 linear_num_key_heads context_parallel_size",
        { linear_num_key_heads = 1, tensor_model_parallel_size = 1 } },
    { "V10", { linear_num_key_heads = 1 },
        "V10 linear_num_key_heads tensor_model_parallel_size",
        { linear_num_key_heads = 2 } },
    { "V11", PADS, "V11 pad_packed_seq_alignment thd_tail_padding_policy",
        { pad_packed_seq_alignment = 64 } },
    { "V12", GRAPH, "V12 sequence_packing_scheduler cuda_graph_impl",
        with(GRAPH, { cuda_graph_modules = { "mlp" } }) },
    { "V12", { cuda_graph_impl = "transformer_engine", cuda_graph_modules = { "mlp", "attn" } },
        "V12 sequence_packing_scheduler cuda_graph_impl",
        { cuda_graph_impl = "transformer_engine", cuda_graph_modules = { "mlp" } } },
    { "V13", { deterministic_mode = true, gdn_pre_gated_delta_rule_fusion = true },
        "V13 deterministic_mode gdn_pre_gated_delta_rule_fusion", { deterministic_mode = true } },
}

describe("the rules of the reference", function()
    it("are V1 to V13, each with a source, V1 first", function()
        local names = {}
        for i, rule in ipairs(rules.list "megatron") do
            names[i] = rule.name
            assert.truthy(rule.source:find "transformer_config.py")
            assert.equal(2, #rule.settings)
        end
        assert.same({ "V1", "V2", "V3", "V4", "V5", "V6", "V7", "V8", "V9", "V10", "V11", "V12",
            "V13" }, names)
        assert.same({}, broken())
    end)

    for i, case in ipairs(CASES) do
        it(("%s refuses what breaks it, and takes what does not (case %d)"):format(case[1], i),
            function()
                assert.same({ case[3] }, broken(case[2]))
                assert.same({}, broken(case[4]))
            end)
    end

    it("[T-29] refuse headwise GDN fed contiguous, which cplab takes", function()
        local fed = with(HEADWISE, { cp_partition_mode = "contiguous" })
        assert.same({ "V6 cp_partition_mode linear_cp_mode" }, broken(fed))
        assert.same({}, broken(fed, "cplab"))
    end)

    it("[T-54] refuse graphs that hold attention where rows are converted", function()
        for _, graph in ipairs { { "full_iteration" }, { "local", {} }, { "local", { "attn" } },
            { "transformer_engine", { "attn" } } } do
            assert.same({ "V12 sequence_packing_scheduler cuda_graph_impl" },
                broken { cuda_graph_impl = graph[1], cuda_graph_modules = graph[2] })
        end
        assert.same({}, broken { cuda_graph_impl = "local", cuda_graph_modules = { "mlp" } })
        assert.same({}, broken { cuda_graph_impl = "full_iteration", context_parallel_size = 1 })
    end)

    it("are all told at once, with both settings and their values", function()
        local list = rules.check(config { sequence_packing_scheduler = "none", mtp_num_layers = 2,
            multi_latent_attention = true, linear_num_value_heads = 6,
            linear_key_head_dim = "none" }, "megatron")
        local names = {}
        for i, one in ipairs(list) do names[i] = one.rule end
        assert.same({ "V2", "V3", "V4", "V8", "V8" }, names)
        assert.equal('V3: contiguous with C > 1 or dynamic CP goes with no MTP where T > 1 and '
            .. 'sequence parallel: the padding mask of the tokens would be laid out wrongly '
            .. '(cp_partition_mode = "contiguous", mtp_num_layers = 2)', list[2].message)
        assert.same({ cp_partition_mode = "contiguous", mtp_num_layers = 2 }, list[2].values)
        assert.truthy(list[1].message:find "sequence_packing_scheduler = nil")
    end)
end)

describe("rules.demand", function()
    it("raises all at the caller's line, and returns what breaks nothing", function()
        local good = config()
        assert.equal(good, rules.demand(good, "megatron"))
        local ok, text = pcall(rules.demand, config { sequence_packing_scheduler = "none",
            multi_latent_attention = true }, "megatron")
        assert.is_false(ok)
        assert.truthy(text:find('2 rules of "megatron" are broken:', 1, true), text)
        assert.truthy(text:find "\n  V2: .*\n  V4: .*PR 6387", text)
        text = message(function() rules.demand(config { cp_partition_mode = "interleaved" }) end)
        assert.truthy(text:find('rules.demand: 1 rule of "cplab" is broken:\n  layout: ', 1, true))
    end)
end)

describe("cplab's own rules", function()
    it("take whatever runs: every layout with every layer, cut in any way", function()
        for _, mode in ipairs { "zigzag", "contiguous", "mirror", "balanced", "balanced@0.1",
            "native", "auto", "contiguous/mirror/zigzag" } do
            for _, linear in ipairs { "chunkwise", "headwise" } do
                assert.same({}, rules.check(config { cp_partition_mode = mode,
                    linear_cp_mode = linear, sequence_packing_scheduler = "none",
                    multi_latent_attention = true, mtp_num_layers = 2 }))
            end
        end
    end)

    for _, case in ipairs {
        { "layout cp_partition_mode context_parallel_size", { cp_partition_mode = "zigzak" },
            { cp_partition_mode = "snake" } },
        { "layout cp_partition_mode context_parallel_size",
            { cp_partition_mode = "contiguous/zigzak/zigzag" }, { cp_partition_mode = "striped" } },
        { "ranks context_parallel_size tensor_model_parallel_size",
            { context_parallel_size = 1024 }, { context_parallel_size = 512 } },
        { "windows tensor_model_parallel_size sequence_parallel", { sequence_parallel = false },
            { sequence_parallel = false, tensor_model_parallel_size = 1 } },
        { "variant experimental_attention_variant context_parallel_size", DSV4, NO_VARIANT },
        { "value heads linear_num_value_heads linear_num_key_heads",
            { linear_num_value_heads = 6 }, { linear_num_value_heads = 4 } },
        { "linear heads linear_num_key_heads tensor_model_parallel_size",
            { linear_num_key_heads = 3, linear_num_value_heads = 12,
                tensor_model_parallel_size = 4 },
            { linear_num_key_heads = 1, tensor_model_parallel_size = 4 } },
        { "headwise linear_num_value_heads context_parallel_size",
            { linear_cp_mode = "headwise", context_parallel_size = 8 },
            { linear_cp_mode = "headwise", context_parallel_size = 4 } },
        { "attention heads num_attention_heads tensor_model_parallel_size",
            { num_attention_heads = 3, num_query_groups = 1 },
            { num_attention_heads = 4, num_query_groups = 1 } },
        { "a2a num_attention_heads context_parallel_size",
            { cp_comm_type = "a2a", num_attention_heads = 6, num_query_groups = 2 },
            { cp_comm_type = "a2a", num_attention_heads = 8, num_query_groups = 2 } },
        { "graphs cuda_graph_impl cuda_graph_modules", GRAPH,
            { cuda_graph_impl = "full_iteration" } },
    } do
        it(("refuse what cannot be: %s"):format(case[1]), function()
            assert.same({ case[1] }, broken(case[2], "cplab"))
            assert.same({}, broken(case[3], "cplab"))
        end)
    end
end)

describe("rules of one's own", function()
    local RULE = { name = "short", message = "few ranks are enough", source = "our notes",
        settings = { "context_parallel_size", "budget" },
        test = function(c) return c.context_parallel_size <= (c.budget or 2) end }

    it("join a set behind the others, with settings of their own", function()
        local set = rules.set { name = "lean", rules = {}, fields = { budget = "integer" } }
        rules.add("lean", RULE)
        assert.equal("short", rules.list(set)[1].name)
        assert.same({}, rules.check({ context_parallel_size = 4, budget = 4 }, "lean"))
        assert.equal("short: few ranks are enough (context_parallel_size = 4, budget = nil)",
            rules.check({ context_parallel_size = 4 }, set)[1].message)
    end)

    it("never replace one, nor a set, nor a setting", function()
        rules.set { name = "lean 2", rules = { RULE }, fields = { budget = "integer" } }
        assert.equal('rules.add: the set "lean 2" already has a rule "short" '
            .. "(few ranks are enough)", message(rules.add, "lean 2", RULE))
        assert.equal('rules.set: there already is a rule set "megatron" of 13 rules',
            message(rules.set, { name = "megatron", rules = {} }))
        assert.equal('rules.set: fields: there already is a setting "cp_comm_type"',
            message(rules.set, { name = "x", rules = {}, fields = { cp_comm_type = "string" } }))
        assert.has_error(function() rules.check({}, "x") end)
        assert.equal('rules.set: fields.budget: unknown type "integr"; did you mean "integer"?',
            message(rules.set, { name = "x", rules = {}, fields = { budget = "integr" } }))
        table.remove(rules.list "megatron")
        assert.equal(13, #rules.list "megatron")
    end)

    it("say between which settings they are broken, and nothing else", function()
        local gave
        rules.set { name = "lists", rules = { with(RULE, { settings = { "cp_comm_type",
            "sequence_parallel" }, test = function() return gave end }) } }
        gave = { { "cp_comm_type", "linear_cp_mode" } }
        assert.same(gave[1], rules.check({}, "lists")[1].settings)
        local who = 'rules.check: what the test of "short" gave: '
        gave = { "cp_comm_type", "linear_cp_mode" }
        assert.equal(who .. 'a pair must be a list (got "cp_comm_type")',
            message(rules.check, {}, "lists"))
        gave = { { "cp_comm_type" } }
        assert.equal(who .. "settings must name two settings (got 1)",
            message(rules.check, {}, "lists"))
        gave = { { "cp_comm_type", "linear_cp_mod" } }
        assert.equal(who .. 'unknown setting "linear_cp_mod"; did you mean "linear_cp_mode"?',
            message(rules.check, {}, "lists"))
        gave = { broken = true }
        assert.equal(who .. "the list of pairs must be a list (got a table)",
            message(rules.check, {}, "lists"))
    end)

    it("say what they lack", function()
        local function rule(changes) return with(RULE, changes) end
        assert.truthy(message(rules.add, "megatron", RULE):find(
            'rules.add: rule "short": unknown setting "budget"; there are ', 1, true))
        assert.equal('rules.add: rule "short": settings must name two settings (got 1)',
            message(rules.add, "megatron", rule { settings = { "linear_cp_mode" } }))
        assert.equal('rules.add: field "source" is missing', message(rules.add, "megatron",
            { name = "a", message = "b", settings = {}, test = print }))
    end)
end)

describe("a configuration", function()
    it("with an unknown name, value or set is refused, with the nearest", function()
        assert.equal('rules.check: unknown field "linear_cp_mod"; did you mean "linear_cp_mode"?',
            message(rules.check, { linear_cp_mod = "headwise" }))
        assert.equal('rules.check: unknown rule set "megatrom"; did you mean "megatron"?',
            message(rules.check, {}, "megatrom"))
        assert.equal("rules.check: context_parallel_size must be an integer >= 1 (got 0)",
            message(rules.check, { context_parallel_size = 0 }))
        assert.equal("rules.check: multi_latent_attention must be a boolean (got 1)",
            message(rules.check, { multi_latent_attention = 1 }))
    end)

    it("[T-48] has the concrete default zigzag, and takes no defaults for settings", function()
        assert.equal("zigzag", rules.defaults.cp_partition_mode)
        assert.same({}, rules.check({}, "megatron"))
        local list = rules.check({ context_parallel_size = 2,
            experimental_attention_variant = "dsv4_hybrid" }, "megatron")
        assert.equal("zigzag", list[1].values.cp_partition_mode)
    end)
end)

describe("rules.config", function()
    local function model(changes)
        local t = {
            schedule = cplab.schedule.ratio("1:3", 4), policy = "contiguous", hidden = 8,
            vocab = 16, gqa = { heads = 4, kv_heads = 2, head_dim = 16, cp_mode = "p2p" },
            gdn = { key_heads = 2, value_heads = 4, key_dim = 4, value_dim = 6 },
        }
        return cplab.model(with(t, changes or {}))
    end

    local function asked(changes, group)
        local names = {}
        for i, one in ipairs(rules.check(rules.config(model(changes), group or { cp = 2 }),
            "megatron")) do
            names[i] = one.rule
        end
        return names
    end

    it("says in the reference's words what a model is", function()
        assert.same({
            cp_partition_mode = "contiguous", context_parallel_size = 4,
            tensor_model_parallel_size = 2, sequence_parallel = true,
            sequence_packing_scheduler = "dp_balanced",
            experimental_attention_variant = "gated_delta_net", linear_cp_mode = "chunkwise",
            linear_attention_freq = { 1, 1, 1, 0 }, linear_conv_kernel_dim = 4,
            linear_key_head_dim = 4, linear_value_head_dim = 6, linear_num_key_heads = 2,
            linear_num_value_heads = 4, cp_comm_type = "p2p", multi_latent_attention = false,
            num_attention_heads = 4, num_query_groups = 2,
        }, rules.config(model(), { cp = 4, tp = 2 }))
    end)

    it("tells whether the reference would take it", function()
        assert.same({}, asked())
        assert.same({}, asked { policy = "zigzag" })
        assert.same({ "V1" }, asked { policy = "mirror" })
        assert.same({ "V1" }, asked { policy = "native" })
        assert.same({ "V1" }, asked { policy = { "contiguous", "contiguous", "contiguous" } })
        assert.same({}, asked { policy = { "contiguous", "zigzag", "contiguous" } })
        local function assignment(mixer)
            local entry = { live = "contiguous" }
            return { name = "mine", entry = "contiguous", exit = "contiguous",
                layers = { entry, entry, entry, { live = "contiguous", mixer = mixer } } }
        end
        assert.same({}, asked { policy = assignment "zigzag" })
        assert.same({ "V1" }, asked { policy = assignment "mirror" })
        assert.same({}, rules.check(rules.config(model { policy = assignment "mirror" })))
        local headwise = { gdn = { key_heads = 2, value_heads = 4, key_dim = 4, value_dim = 6,
            cp_mode = "headwise" } }
        assert.same({ "V6" }, asked(headwise))
        assert.same({}, asked(with(headwise, { policy = "zigzag" })))
        assert.same({ "V3" }, asked({ mtp = { kind = "gqa" } }, { cp = 2, tp = 2 }))
        assert.same({}, asked({ mtp = { kind = "gqa" } }, { cp = 2 }))
        assert.same({ "V2" }, asked(nil, { cp = 2,
            stream = cplab.stream.sbhd { seqlen = 8, batch = 1 } }))
        assert.same({ "V5" }, asked { schedule = cplab.schedule.list { "gqa" } })
        assert.same({ "V9" }, asked { policy = "zigzag", schedule = cplab.schedule.list { "gqa",
            "gdn", { "gdn", cp_mode = "headwise" } } })
    end)

    it("is asked by show, which says what the reference would refuse, or nothing", function()
        local outline = require "cplab.outline"
        local stream = cplab.stream.thd { lengths = { 16 } }
        local function shown(changes, tp)
            local text = table.concat(outline.lines(stream, model(changes), 2, tp), "\n")
            return text:match "\nnote +the reference %(Megatron%-LM%) would refuse: ([^\n]+)"
        end
        assert.is_nil(shown())
        assert.equal('V1 (cp_partition_mode = "mirror", context_parallel_size = 2)',
            shown { policy = "mirror" })
        assert.equal('V1 (cp_partition_mode = "native", context_parallel_size = 2), V10 '
            .. "(linear_num_key_heads = 2, tensor_model_parallel_size = 4)",
            shown({ policy = "native" }, 4))
    end)

    it("breaks none of our own rules where the stack runs", function()
        for _, policy in ipairs { "zigzag", "contiguous", "mirror", "balanced", "native" } do
            assert.same({}, rules.check(rules.config(model { policy = policy },
                { cp = 4, tp = 2 })))
        end
    end)

    it("refuses what is no model and what it does not know", function()
        assert.equal("rules.config: the first argument must be a cplab.model",
            message(rules.config, { hidden = 8 }))
        assert.equal('rules.config: unknown field "cpp"; did you mean "cp"?',
            message(rules.config, model(), { cpp = 2 }))
        assert.equal("rules.config: cp must be an integer >= 1 (got 0)",
            message(rules.config, model(), { cp = 0 }))
        assert.equal("rules.config: tp must be an integer >= 1 (got -2)",
            message(rules.config, model(), { tp = -2 }))
    end)
end)
