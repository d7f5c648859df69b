--- Presets: the hybrids that the field trains, as models of this build.
-- `cplab.model.qwen35_35b { policy = "mirror" }` has the published sizes. With `scale = "tiny"`
-- every ratio stays (heads to kv heads, key to value heads, widths to each other, GQA to GDN,
-- experts to choices, shared to routed) while the sizes shrink to what a laptop trains in seconds;
-- a token keeps at least two choices, because with one a renormalised router has no gradient.
--
-- Any field of cplab.model overrides; tables (gqa, mla, gdn, mlp, moe) field by field, and
-- `mlp = false`, `moe = false` leave them out. `layers` is how many there are; the schedule's rule
-- goes on.
--
-- What a published model has and this build has not is said in the model's `notes`, which `show`
-- prints. Sources of the sizes: the configurations in transformers (qwen3_next, qwen3_5,
-- olmo_hybrid, minimax) and the published config.json files and model cards; the proxy is that of
-- Megatron-LM's examples/multimodal_dev (qwen35_vl).
-- @module cplab.presets
local args = require "cplab.check_args"
local schedules = require "cplab.schedule"

local VOCAB_TINY = 256 -- bytes

-- Every k-th layer is attention of a kind; with `short` the last one too, however short its group
-- is.
local function every(k, attention, short)
    return function(n)
        local kinds = {}
        for i = 1, n do
            kinds[i] = (i % k == 0 or short and i == n) and attention or "gdn"
        end
        return schedules.list(kinds)
    end
end

local NO_MTP = 'the head that predicts a second token is left out; mtp = { kind = "gqa" } adds it'

-- Qwen3-Next and Qwen3.5: a quarter of the head rotates, theta 1e7, conv 4, GQA every fourth layer.
local function qwen(fields)
    fields.rule = every(4, "gqa")
    for _, scale in ipairs { fields.published, fields.tiny } do
        scale.gqa.rope_theta, scale.gqa.rotary_dim = 1e7, scale.gqa.head_dim / 4
        scale.gdn.conv = 4
    end
    fields.notes = fields.notes or {}
    table.insert(fields.notes, 1, NO_MTP)
    return fields
end

local TINY_16_TO_2 = {
    layers = 4, hidden = 32, vocab = VOCAB_TINY,
    gqa = { heads = 8, kv_heads = 1, head_dim = 8 },
    gdn = { key_heads = 8, value_heads = 16, key_dim = 4, value_dim = 4 },
}
local TINY_32_TO_2 = {
    layers = 4, hidden = 64, vocab = VOCAB_TINY,
    gqa = { heads = 16, kv_heads = 1, head_dim = 8 },
    gdn = { key_heads = 8, value_heads = 32, key_dim = 4, value_dim = 4 },
}

local function copy(value)
    if type(value) ~= "table" or schedules.is(value) then return value end
    local t = {}
    for name, part in pairs(value) do t[name] = copy(part) end
    return t
end

local function with(fields, moe)
    fields = copy(fields)
    fields.moe = moe
    return fields
end

local PRESETS = {}

PRESETS.qwen3_next_80b = qwen {
    published = {
        layers = 48, hidden = 2048, vocab = 151936,
        gqa = { heads = 16, kv_heads = 2, head_dim = 256 },
        gdn = { key_heads = 16, value_heads = 32, key_dim = 128, value_dim = 128 },
        moe = { experts = 512, top_k = 10, width = 512, shared_width = 512 },
    },
    tiny = with(TINY_16_TO_2, { experts = 256, top_k = 5, width = 8, shared_width = 8 }),
}

PRESETS.qwen35_35b = qwen {
    published = {
        layers = 40, hidden = 2048, vocab = 248320,
        gqa = { heads = 16, kv_heads = 2, head_dim = 256 },
        gdn = { key_heads = 16, value_heads = 32, key_dim = 128, value_dim = 128 },
        moe = { experts = 256, top_k = 8, width = 512, shared_width = 512 },
    },
    tiny = with(TINY_16_TO_2, { experts = 64, top_k = 2, width = 8, shared_width = 8 }),
    notes = { "the vision encoder is left out" },
}

local QWEN35_397B = {
    layers = 60, hidden = 4096, vocab = 248320,
    gqa = { heads = 32, kv_heads = 2, head_dim = 256 },
    gdn = { key_heads = 16, value_heads = 64, key_dim = 128, value_dim = 128 },
    moe = { experts = 512, top_k = 10, width = 1024, shared_width = 1024 },
}

PRESETS.qwen35_397b = qwen {
    published = QWEN35_397B,
    tiny = with(TINY_32_TO_2, { experts = 256, top_k = 5, width = 16, shared_width = 16 }),
    notes = { "the vision encoder is left out" },
}

-- Four layers of the 397B with fewer experts: the shape class of Megatron-LM's speed-ups.
PRESETS.qwen35_397b_proxy = qwen {
    published = (function()
        local fields = with(QWEN35_397B, { experts = 16, top_k = 2, width = 1024,
            shared_width = 1024 })
        fields.layers = 4
        return fields
    end)(),
    tiny = with(TINY_32_TO_2, { experts = 16, top_k = 2, width = 16, shared_width = 16 }),
    notes = { "vocabulary and shared expert are those of the 397B, which the proxy leaves open" },
}

-- Full attention in layers 4, 8, .. 24 and 27 of 27, counted from 1: the last group is short. It
-- is latent, its queries come straight from the rows, and the part of the key that heads share is
-- not rotated; the first layer is dense.
PRESETS.kimi_linear = {
    rule = every(4, "mla", true),
    published = {
        layers = 27, hidden = 2304, vocab = 163840,
        mla = { heads = 32, q_rank = 0, kv_rank = 512, nope_dim = 128, rope_dim = 64,
            value_dim = 128, rope_theta = 0 },
        gdn = { key_heads = 32, value_heads = 32, key_dim = 128, value_dim = 128, conv = 4 },
        mlp = { width = 9216 },
        moe = { experts = 256, top_k = 8, width = 1024, shared_width = 1024, first_layer = 1 },
    },
    tiny = {
        layers = 27, hidden = 36, vocab = VOCAB_TINY,
        mla = { heads = 8, q_rank = 0, kv_rank = 8, nope_dim = 8, rope_dim = 4, value_dim = 8,
            rope_theta = 0 },
        gdn = { key_heads = 8, value_heads = 8, key_dim = 8, value_dim = 8, conv = 4 },
        mlp = { width = 144 },
        moe = { experts = 64, top_k = 2, width = 16, shared_width = 16, first_layer = 1 },
    },
    notes = {
        "KDA is not built: its layers are GDN of the same heads (one decay a head, not a channel)",
        "the router is a softmax, not a sigmoid with a bias; the shared expert has a gate",
    },
}

-- K = int(.75 H / heads), V = 2 K; positions are not rotated (rope_parameters is null).
PRESETS.olmo_hybrid = {
    rule = every(4, "gqa"),
    published = {
        layers = 32, hidden = 3840, vocab = 100352,
        gqa = { heads = 30, kv_heads = 30, head_dim = 128, rotary_dim = 0 },
        gdn = { key_heads = 30, value_heads = 30, key_dim = 96, value_dim = 192, conv = 4 },
        mlp = { width = 11008 },
    },
    tiny = {
        layers = 4, hidden = 60, vocab = VOCAB_TINY,
        gqa = { heads = 5, kv_heads = 5, head_dim = 12, rotary_dim = 0 },
        gdn = { key_heads = 5, value_heads = 5, key_dim = 9, value_dim = 18, conv = 4 },
        mlp = { width = 172 },
    },
    notes = {
        "negative eigenvalues are not built: beta stays in (0, 1) where the model has (0, 2)",
        "attention has the output gate of Qwen3-Next, and norms come before the mixers",
    },
}

-- MiniMax-Text-01: half of the head rotates.
PRESETS.minimax = {
    rule = every(8, "gqa"),
    published = {
        layers = 80, hidden = 6144, vocab = 200064,
        gqa = { heads = 64, kv_heads = 8, head_dim = 128, rotary_dim = 64, rope_theta = 1e7 },
        gdn = { key_heads = 64, value_heads = 64, key_dim = 128, value_dim = 128 },
        moe = { experts = 32, top_k = 2, width = 9216, shared_width = 0 },
    },
    tiny = {
        layers = 8, hidden = 48, vocab = VOCAB_TINY,
        gqa = { heads = 8, kv_heads = 1, head_dim = 8, rotary_dim = 4, rope_theta = 1e7 },
        gdn = { key_heads = 8, value_heads = 8, key_dim = 8, value_dim = 8 },
        moe = { experts = 32, top_k = 2, width = 72, shared_width = 0 },
    },
    notes = {
        "lightning attention is not built: its layers are GDN of the same heads, so that only the "
            .. "ratio 7:1 and the sizes are the model's",
        "attention has the output gate and the norms of Qwen3-Next",
    },
}

local SCALES = { "published", "tiny" }
local PARTS = { gqa = true, mla = true, gdn = true, mlp = true, moe = true }

-- A part overrides field by field, or is left out.
local function override(fields, name, value)
    if PARTS[name] and type(value) == "table" and type(fields[name]) == "table" then
        for field, x in pairs(value) do fields[name][field] = x end
    else
        fields[name] = value or nil
    end
end

-- Those that are true of a model.
local function notes_of(preset, model)
    local notes = {}
    for _, note in ipairs(preset.notes) do
        notes[#notes + 1] = not (note == NO_MTP and model.mtp) and note or nil
    end
    return notes
end

local function fields_of(who, preset, t, types, level)
    args.fields(who, t, types, level + 1)
    local scale = args.one_of(who, "scale", t.scale or "published", SCALES, level + 1)
    local fields = copy(preset[scale])
    fields.policy = "contiguous"
    for name, value in pairs(t) do override(fields, name, value) end
    local layers = args.integer(who, "layers", fields.layers, 1, nil, level + 1)
    fields.schedule = t.schedule or preset.rule(layers)
    fields.scale, fields.layers = nil, nil
    return fields
end

-- The fields of a model, all of which may be left open, and those of presets.
local function types_of(models)
    local types = { scale = "string?", layers = "integer?" }
    for name, wanted in pairs(models.fields) do
        wanted = wanted:gsub("%?$", "")
        types[name] = (PARTS[name] and wanted .. "|boolean" or wanted) .. "?"
    end
    return types
end

--- Gives the module of models a function for each preset.
-- @tparam table models cplab.model: new, fields
return function(models)
    local types = types_of(models)
    models.presets = {}
    for name, preset in pairs(PRESETS) do
        models.presets[#models.presets + 1] = name
        models[name] = function(t)
            local fields = fields_of("model." .. name, preset, t or {}, types, 2)
            local model = models.new(fields, 2)
            model.preset, model.notes = name, notes_of(preset, model)
            return model
        end
    end
    table.sort(models.presets)
end
