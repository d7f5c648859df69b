--- The configuration rules V1 to V13 of the reference system, Megatron-LM.
-- They are facts about another program: what its transformer configuration refuses. Not all of
-- them bind cplab, which runs any layer in any layout (cplab.rules.own says what does).
-- Source of all: Megatron-LM, branch dev at d48bd6be (2026-08-21), which contains the merge of
-- pull request 6387: megatron/core/transformer/transformer_config.py.
-- C is context_parallel_size, T is tensor_model_parallel_size.
-- @module cplab.rules.megatron
local SOURCE = "Megatron-LM dev d48bd6be, transformer_config.py (PR 6387)"

local MODES = { zigzag = true, contiguous = true }
local GDN = "gated_delta_net"

local function is_cp(c)
    return c.context_parallel_size > 1
end

local function is_cp_or_dynamic(c)
    return is_cp(c) or c.dynamic_context_parallel
end

local function is_contiguous(c)
    return c.cp_partition_mode == "contiguous"
end

local function is_gdn(c)
    return c.experimental_attention_variant == GDN
end

-- Whether a CUDA graph holds attention: of the whole iteration, or of layers where no list of
-- modules leaves attention out.
local function captures_attention(c)
    local impl, modules = c.cuda_graph_impl or "none", c.cuda_graph_modules or {}
    if impl == "none" then return false end
    if impl == "full_iteration" or #modules == 0 then return true end
    for _, name in ipairs(modules) do
        if name == "attn" then return true end
    end
    return false
end

-- Tests: true where the rule is kept, false where it is broken between the rule's two settings, or
-- a list of the pairs of settings that break it.

-- What a GDN layer must be told, and how its heads go together.
local function describes_gdn(c)
    if not is_gdn(c) then return true end
    local broken = {}
    for _, name in ipairs { "linear_attention_freq", "linear_conv_kernel_dim",
        "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
        "linear_num_value_heads" } do
        if c[name] == nil then broken[#broken + 1] = { "experimental_attention_variant", name } end
    end
    local keys, values = c.linear_num_key_heads, c.linear_num_value_heads
    if keys and values and (keys < 1 or values % keys ~= 0) then
        broken[#broken + 1] = { "linear_num_value_heads", "linear_num_key_heads" }
    end
    if c.gdn_conv_pad_alignment and c.gdn_conv_pad_alignment <= 0 then
        broken[#broken + 1] = { "experimental_attention_variant", "gdn_conv_pad_alignment" }
    end
    return #broken == 0 or broken
end

local function has_a_linear_mode(c)
    if not (is_gdn(c) and is_cp(c)) then return true end
    local broken = {}
    if c.linear_cp_mode ~= "headwise" and c.linear_cp_mode ~= "chunkwise" then
        broken[1] = { "linear_cp_mode", "context_parallel_size" }
    elseif c.linear_cp_mode == "chunkwise" and c.gdn_conv_pad_alignment then
        broken[1] = { "linear_cp_mode", "gdn_conv_pad_alignment" }
    end
    return #broken == 0 or broken
end

local function divides_heads(c)
    if not is_gdn(c) then return true end
    local by_ranks = is_cp(c) and c.linear_cp_mode == "headwise"
    local parts = c.tensor_model_parallel_size * (by_ranks and c.context_parallel_size or 1)
    local broken = {}
    for _, name in ipairs { "linear_num_key_heads", "linear_num_value_heads" } do
        if c[name] and c[name] % parts ~= 0 then
            broken[#broken + 1] = { name, by_ranks and "context_parallel_size"
                or "tensor_model_parallel_size" }
        end
    end
    return #broken == 0 or broken
end

local rules = {
    {
        name = "V1", message = "the partition mode is zigzag or contiguous",
        settings = { "cp_partition_mode", "context_parallel_size" },
        test = function(c) return MODES[c.cp_partition_mode] == true end,
    },
    {
        name = "V2",
        message = "contiguous with C > 1 or dynamic CP needs packed sequences: a scheduler",
        settings = { "cp_partition_mode", "sequence_packing_scheduler" },
        test = function(c)
            return not (is_contiguous(c) and is_cp_or_dynamic(c))
                or c.sequence_packing_scheduler ~= nil
        end,
    },
    {
        name = "V3",
        message = "contiguous with C > 1 or dynamic CP goes with no MTP where T > 1 and sequence "
            .. "parallel: the padding mask of the tokens would be laid out wrongly",
        settings = { "cp_partition_mode", "mtp_num_layers" },
        test = function(c)
            return not (is_contiguous(c) and is_cp_or_dynamic(c) and c.sequence_parallel
                and c.tensor_model_parallel_size > 1) or (c.mtp_num_layers or 0) == 0
        end,
    },
    {
        name = "V4",
        message = "contiguous with C > 1 goes with multi-latent attention in dsv4_hybrid alone",
        settings = { "cp_partition_mode", "multi_latent_attention" },
        test = function(c)
            return not (is_contiguous(c) and is_cp(c) and c.multi_latent_attention)
                or c.experimental_attention_variant == "dsv4_hybrid"
        end,
    },
    {
        name = "V5",
        message = "contiguous with C > 1 is for the variants gated_delta_net and dsv4_hybrid",
        settings = { "cp_partition_mode", "experimental_attention_variant" },
        test = function(c)
            return not (is_contiguous(c) and is_cp(c)) or is_gdn(c)
                or c.experimental_attention_variant == "dsv4_hybrid"
        end,
    },
    {
        name = "V6", message = "contiguous with C > 1 does not go with headwise GDN",
        settings = { "cp_partition_mode", "linear_cp_mode" },
        test = function(c)
            return not (is_contiguous(c) and is_cp(c) and is_gdn(c)
                and c.linear_cp_mode == "headwise")
        end,
    },
    {
        name = "V7", message = "dsv4_hybrid with C > 1 needs contiguous",
        settings = { "cp_partition_mode", "experimental_attention_variant" },
        test = function(c)
            return not (c.cp_partition_mode == "zigzag" and is_cp(c)
                and c.experimental_attention_variant == "dsv4_hybrid")
        end,
    },
    {
        name = "V8",
        message = "gated_delta_net needs a frequency, a convolution, head sizes and head counts, "
            .. "value heads that are a multiple of the key heads, and a pad alignment above 0",
        settings = { "experimental_attention_variant", "linear_attention_freq" },
        test = describes_gdn,
    },
    {
        name = "V9",
        message = "gated_delta_net with C > 1 is headwise or chunkwise, and chunkwise pads no "
            .. "convolution: that would change later chunks",
        settings = { "linear_cp_mode", "context_parallel_size" },
        test = has_a_linear_mode,
    },
    {
        name = "V10",
        message = "key and value heads of gated_delta_net are multiples of T, headwise of T * C",
        settings = { "linear_num_key_heads", "tensor_model_parallel_size" },
        test = divides_heads,
    },
    {
        name = "V11",
        message = "gated_delta_net with an alignment of packs needs the tail policy "
            .. "append_dummy_seq",
        settings = { "pad_packed_seq_alignment", "thd_tail_padding_policy" },
        test = function(c)
            return not (is_gdn(c) and c.pad_packed_seq_alignment)
                or (c.thd_tail_padding_policy or "append_dummy_seq") == "append_dummy_seq"
        end,
    },
    {
        name = "V12",
        message = "gated_delta_net on packed sequences with C > 1 or dynamic CP converts in every "
            .. "step, which no captured graph that holds attention can",
        settings = { "sequence_packing_scheduler", "cuda_graph_impl" },
        test = function(c)
            return not (is_gdn(c) and is_cp_or_dynamic(c) and c.sequence_packing_scheduler
                and captures_attention(c))
        end,
    },
    {
        name = "V13", message = "deterministic mode has no fused kernel before the delta rule",
        settings = { "deterministic_mode", "gdn_pre_gated_delta_rule_fusion" },
        test = function(c)
            return not (c.deterministic_mode and c.gdn_pre_gated_delta_rule_fusion)
        end,
    },
}

for _, rule in ipairs(rules) do rule.source = SOURCE end

return rules
