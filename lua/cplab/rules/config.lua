--- The configuration of a model, in the words of the reference system.
-- @module cplab.rules.config
local args = require "cplab.check_args"
local assignments = require "cplab.assignment"
local models = require "cplab.model"
local schedules = require "cplab.schedule"
local streams = require "cplab.stream"

local GROUP = { cp = "integer?", tp = "integer?", stream = "any?" }

-- The reference knows our modes by other names.
local COMM_TYPES = { gather = "all_gather" }

-- The one value that all layers of some kinds have, "mixed" where they differ, nil where there is
-- no such layer.
local function common(layers, is_one, field)
    local found
    for _, layer in ipairs(layers) do
        if is_one(layer.kind) then
            found = (found == nil or found == layer[field]) and layer[field] or "mixed"
        end
    end
    return found
end

local function is_gdn(kind)
    return kind == "gdn"
end

-- Where the reference runs a mixer: attention in zigzag, a chunkwise GDN in contiguous, and what
-- takes any layout where the model lives.
local function is_where_the_reference_runs_it(entry)
    local where = assignments.where(entry.layer)
    if where == "live" then return entry.mixer == entry.live end
    return entry.mixer == (where == "gqa" and "zigzag" or "contiguous")
end

-- The reference has one global mode and fixed places; a policy with other places has its own name,
-- or is an assignment, which is no mode of the reference.
local function partition_mode(assignment)
    local home, name = assignment.entry, assignment.is_triple and assignment.name or "assignment"
    for _, entry in ipairs(assignment.layers) do
        if entry.live ~= home or not is_where_the_reference_runs_it(entry) then
            return name
        end
    end
    return assignment.exit == home and home or name
end

-- What runs where, and the layers as they run; of "auto" that is known with a stream alone.
local function place(model)
    local policy, layers = model.policy, model:layers()
    if policy.is_auto then return "auto", layers end
    local assignment = policy.layers and policy or assignments.from_policy(policy, layers)
    for i, entry in ipairs(assignment.layers) do layers[i] = entry.layer end
    return partition_mode(assignment), layers
end

local function pattern(layers)
    local list = {}
    for i, layer in ipairs(layers) do list[i] = layer.kind == "gdn" and 1 or 0 end
    return list
end

local function add_gdn(config, model, layers)
    local gdn = model.gdn
    if not common(layers, is_gdn, "kind") then return end
    config.experimental_attention_variant = "gated_delta_net"
    config.linear_cp_mode = common(layers, is_gdn, "cp_mode")
    config.linear_attention_freq = pattern(model.schedule.layers)
    config.linear_conv_kernel_dim = gdn.conv
    config.linear_key_head_dim, config.linear_value_head_dim = gdn.key_dim, gdn.value_dim
    config.linear_num_key_heads, config.linear_num_value_heads = gdn.key_heads, gdn.value_heads
end

local function add_attention(config, model, layers)
    local mode = common(layers, schedules.is_attention, "cp_mode")
    if not mode then return end
    config.cp_comm_type = COMM_TYPES[mode] or mode
    config.multi_latent_attention = common(layers, function(kind) return kind == "mla" end,
        "kind") ~= nil
    local sizes = model.gqa or model.mla
    config.num_attention_heads, config.num_query_groups = sizes.heads, sizes.kv_heads
end

--- What a model on a group is in the reference's words: to ask `check` whether a system would take
-- it. Where the model runs layers in places that the reference has no mode for, cp_partition_mode
-- is the policy's name, or "assignment". Layers of several modes give "mixed". Here tensor
-- parallelism always is sequence parallel.
-- @tparam table model a cplab.model
-- @tparam ?table group cp (1), tp (1), stream (is it packed? default: yes)
-- @treturn table settings by name
return function(model, group)
    if not models.is(model) then
        error("rules.config: the first argument must be a cplab.model", 2)
    end
    group = args.fields("rules.config", group or {}, GROUP, 2)
    for _, name in ipairs { "cp", "tp" } do
        if group[name] then args.integer("rules.config", name, group[name], 1, nil, 2) end
    end
    if group.stream ~= nil and not streams.is(group.stream) then
        error("rules.config: stream must be a cplab.stream", 2)
    end
    local mode, layers = place(model)
    local tp = group.tp or 1
    local config = {
        cp_partition_mode = mode,
        context_parallel_size = group.cp or 1,
        tensor_model_parallel_size = tp,
        sequence_parallel = tp > 1,
        mtp_num_layers = model.mtp and model.mtp.depth or nil,
    }
    -- The name of any scheduler of the reference says that sequences are packed.
    if not (group.stream and group.stream:format() == "sbhd") then
        config.sequence_packing_scheduler = "dp_balanced"
    end
    add_gdn(config, model, layers)
    add_attention(config, model, layers)
    return config
end
