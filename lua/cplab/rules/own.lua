--- What really is impossible here, and nothing else: cplab's own rules.
-- Any layer runs in any layout, so none of them is about which layout goes with which layer. They
-- say early, and all together, what model, layers and groups would say one at a time.
-- @module cplab.rules.own
local named = require "cplab.named_layouts"
local policies = require "cplab.policy"

local MAX_RANKS = 1024 -- cpl_world_create

-- Whether `n` things can be dealt to `ranks`, where several ranks may hold the same one.
local function can_share(n, ranks)
    return n % ranks == 0 or ranks % n == 0
end

local function is_size(n)
    return n >= 1 and n % 1 == 0
end

local function is_layout(name)
    return (pcall(named.check, "rules", name))
end

-- A layout, the name of a policy, an assignment's default name, or three layouts "a/b/c".
local function is_policy(name)
    if name == "auto" or name == "assignment" or policies.triples[name] or is_layout(name) then
        return true
    end
    local a, b, c = name:match "^([^/]+)/([^/]+)/([^/]+)$"
    return a ~= nil and is_layout(a) and is_layout(b) and is_layout(c)
end

-- The heads of one tensor-parallel rank.
local function local_heads(n, tp)
    return math.max(1, math.floor(n / tp))
end

local function deals_linear_heads(c)
    local broken, tp = {}, c.tensor_model_parallel_size
    local keys, values = c.linear_num_key_heads, c.linear_num_value_heads
    if not (keys and values) then return true end
    if values % tp ~= 0 then
        broken[#broken + 1] = { "linear_num_value_heads", "tensor_model_parallel_size" }
    end
    if not can_share(keys, tp) then
        broken[#broken + 1] = { "linear_num_key_heads", "tensor_model_parallel_size" }
    end
    return #broken == 0 or broken
end

local function deals_headwise(c)
    local keys, values = c.linear_num_key_heads, c.linear_num_value_heads
    if c.linear_cp_mode ~= "headwise" or not (keys and values) then return true end
    local broken, tp, cp = {}, c.tensor_model_parallel_size, c.context_parallel_size
    if local_heads(values, tp) % cp ~= 0 then
        broken[#broken + 1] = { "linear_num_value_heads", "context_parallel_size" }
    end
    if not can_share(local_heads(keys, tp), cp) then
        broken[#broken + 1] = { "linear_num_key_heads", "context_parallel_size" }
    end
    return #broken == 0 or broken
end

local function deals_attention_heads(c)
    local broken, tp = {}, c.tensor_model_parallel_size
    local heads, groups = c.num_attention_heads, c.num_query_groups
    if heads and heads % tp ~= 0 then
        broken[#broken + 1] = { "num_attention_heads", "tensor_model_parallel_size" }
    end
    if groups and not can_share(groups, tp) then
        broken[#broken + 1] = { "num_query_groups", "tensor_model_parallel_size" }
    end
    return #broken == 0 or broken
end

local function deals_a2a(c)
    if c.cp_comm_type ~= "a2a" or not c.num_attention_heads then return true end
    local broken, tp, cp = {}, c.tensor_model_parallel_size, c.context_parallel_size
    if local_heads(c.num_attention_heads, tp) % cp ~= 0 then
        broken[#broken + 1] = { "num_attention_heads", "context_parallel_size" }
    end
    if c.num_query_groups and not can_share(local_heads(c.num_query_groups, tp), cp) then
        broken[#broken + 1] = { "num_query_groups", "context_parallel_size" }
    end
    return #broken == 0 or broken
end

return {
    {
        name = "layout", message = "the partition mode is a layout, a policy or three layouts",
        settings = { "cp_partition_mode", "context_parallel_size" }, source = "cplab.policy",
        test = function(c) return is_policy(c.cp_partition_mode) end,
    },
    {
        name = "ranks", message = ("a group has 1 to %d ranks, C * T"):format(MAX_RANKS),
        settings = { "context_parallel_size", "tensor_model_parallel_size" },
        source = "cpl_world_create in core/cplab.h",
        test = function(c)
            local cp, tp = c.context_parallel_size, c.tensor_model_parallel_size
            return is_size(cp) and is_size(tp) and cp * tp <= MAX_RANKS
        end,
    },
    {
        name = "windows",
        message = "with T > 1 rows are cut in windows: tensor parallel is sequence parallel, too",
        settings = { "tensor_model_parallel_size", "sequence_parallel" },
        source = "cplab.stack",
        test = function(c) return c.tensor_model_parallel_size == 1 or c.sequence_parallel end,
    },
    {
        name = "variant", message = "of linear attention there is gated_delta_net",
        settings = { "experimental_attention_variant", "context_parallel_size" },
        source = "cplab.layers",
        test = function(c)
            local variant = c.experimental_attention_variant
            return variant == nil or variant == "gated_delta_net"
        end,
    },
    {
        name = "value heads", message = "value heads are a multiple of the key heads",
        settings = { "linear_num_value_heads", "linear_num_key_heads" },
        source = "core/layer/gdn.c",
        test = function(c)
            local keys, values = c.linear_num_key_heads, c.linear_num_value_heads
            return not (keys and values) or keys >= 1 and values % keys == 0
        end,
    },
    {
        name = "linear heads",
        message = "T divides the value heads, and is a multiple or a divisor of the key heads",
        settings = { "linear_num_value_heads", "tensor_model_parallel_size" },
        source = "cpli_layer_share in core/layer/layer.c", test = deals_linear_heads,
    },
    {
        name = "headwise",
        message = "headwise deals the heads of a tensor-parallel rank: C divides the value heads, "
            .. "and is a multiple or a divisor of the key heads",
        settings = { "linear_num_value_heads", "context_parallel_size" },
        source = "core/layer/gdn_headwise.c", test = deals_headwise,
    },
    {
        name = "attention heads",
        message = "T divides the heads, and is a multiple or a divisor of the kv heads",
        settings = { "num_attention_heads", "tensor_model_parallel_size" },
        source = "cpli_layer_share in core/layer/layer.c", test = deals_attention_heads,
    },
    {
        name = "a2a",
        message = "a2a deals the heads of a tensor-parallel rank: C divides the heads, and is a "
            .. "multiple or a divisor of the kv heads",
        settings = { "num_attention_heads", "context_parallel_size" },
        source = "core/layer/gqa_a2a.c", test = deals_a2a,
    },
    {
        name = "graphs", message = "a captured graph is a whole step, not some modules of it",
        settings = { "cuda_graph_impl", "cuda_graph_modules" },
        source = "lua/cplab/capture.lua",
        test = function(c)
            local impl = c.cuda_graph_impl or "none"
            return impl == "none" or impl == "full_iteration"
        end,
    },
}
