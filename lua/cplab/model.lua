--- A model: the description of a hybrid stack; nothing live.
-- Sizes, schedule, policy, seed. What can be known to be wrong from these alone is refused
-- here; the stack (cplab.stack) gives it ranks, a stream and memory.
-- @module cplab.model
-- @usage local m = cplab.model { schedule = cplab.schedule.ratio("1:3", 8), policy = "mirror",
--   hidden = 128, vocab = 256, gqa = { heads = 4, kv_heads = 2, head_dim = 32 },
--   gdn = { key_heads = 2, value_heads = 4, key_dim = 32, value_dim = 32, conv = 4 },
--   mlp = { width = 256 } }
local args = require "cplab.check_args"
local assignments = require "cplab.assignment"
local contract = require "cplab.contract"
local exchange = require "cplab.exchange"
local layers = require "cplab.layers"
local depths = require "cplab.mtp"
local named = require "cplab.named_layouts"
local parameters = require "cplab.parameters"
local planner_options = require "cplab.planner.options"
local policies = require "cplab.policy"
local schedules = require "cplab.schedule"

local Model = {}
Model.__index = Model

local M = {}

local FIELDS = {
    schedule = "table", policy = "any", hidden = "integer", vocab = "integer",
    dtype = "string?", seed = "integer?", gqa = "table?", mla = "table?", gdn = "table?",
    mlp = "table?", moe = "table?", tied = "boolean?", mtp = "table?",
    routes = "string?", exchange = "table?", eps = "number?", auto = "table?",
}
local GQA = {
    heads = "integer", kv_heads = "integer", head_dim = "integer", rotary_dim = "integer?",
    rope_theta = "number?", window = "integer?", cp_mode = "string?", a2a = "integer?",
    layouts = "any?", tolerance = "number?",
    block = "integer?", node_size = "integer?", placement = "string?", method = "string?",
}
local MLA = {
    heads = "integer", q_rank = "integer", kv_rank = "integer", nope_dim = "integer",
    rope_dim = "integer?", value_dim = "integer", rope_theta = "number?", window = "integer?",
    cp_mode = "string?", a2a = "integer?", layouts = "any?",
}
-- What a balanced layout is made with; no part of the layer.
local BALANCE = { "tolerance", "block", "node_size", "placement", "method" }
local GDN = {
    key_heads = "integer", value_heads = "integer", key_dim = "integer", value_dim = "integer",
    conv = "integer?", chunk = "integer?", cp_mode = "string?", layouts = "any?",
}
local MLP = { width = "integer" }
local MOE = {
    experts = "integer", top_k = "integer", width = "integer", shared_width = "integer?",
    renormalise = "boolean?", aux_coefficient = "number?", first_layer = "integer?",
}
local MTP = { depth = "integer?", kind = "any", loss_scale = "number?" }
local EXCHANGE = { method = "string?" }
--- The fields of a model and their types.
M.fields = FIELDS

local DTYPES = { "f64", "f32", "bf16" }
local ROUTES = { "prebuilt", "lazy" }
local MAX_SIZE = 2 ^ 31 - 1 -- sizes are ints in C

-- Sizes that are given must be positive and fit into an int; which go together, C knows.
local MAY_BE_0 = { seed = true, rotary_dim = true, rope_dim = true, q_rank = true,
    shared_width = true, first_layer = true }
local function check_sizes(who, t, fields, level)
    for name, kind in pairs(fields) do
        if kind:match "^integer" and not MAY_BE_0[name] and t[name] then
            args.integer(who, name, t[name], 1, MAX_SIZE, level + 1)
        end
    end
end

-- What binds a kind of layer, with names as they are compared: nil, "any" or a list.
local function binding_of(kind, allowed, level)
    if allowed == nil or allowed == "any" then return allowed end
    local who, list = "model." .. kind, {}
    for i, name in ipairs(type(allowed) == "table" and allowed or { allowed }) do
        list[i] = named.check(who, name, level + 1)
    end
    if #list == 0 then
        error(who .. ": layouts must name at least one layout, or be \"any\"", level + 1)
    end
    return list
end

-- A layer that says where it may run is held to it; "any", the default, is everywhere.
local function check_layouts(kind, allowed, runs_in, level)
    if allowed == nil or allowed == "any" then return end
    local who = "model." .. kind
    for _, name in ipairs(allowed) do
        if name == runs_in or name == named.parse(runs_in) then return end
    end
    error(("%s: runs in %s, which is not among its layouts (%s)"):format(who, runs_in,
        table.concat(allowed, ", ")), level + 1)
end

-- Each layer under an assignment is held to the layouts that its kind may run in.
local function check_assigned(model, entries, level)
    for _, entry in ipairs(entries) do
        check_layouts(entry.layer.kind, model.bound_to[entry.layer.kind], entry.mixer, level + 1)
    end
end

-- So is each kind of layer under a triple. What the planner chooses is checked where it has chosen.
local function check_all_layouts(model, level)
    local policy = model.policy
    for _, kind in ipairs(policy.live and schedules.kinds or {}) do
        check_layouts(kind, model.bound_to[kind],
            policy[assignments.where { kind = kind, cp_mode = model.cp_modes[kind] }], level + 1)
    end
    check_assigned(model, policy.layers or {}, level + 1)
end

-- The layers as they run, where that is known before there is a stream.
local function running_layers(model)
    local list = model:layers()
    for i, entry in ipairs(model.policy.layers or {}) do list[i] = entry.layer end
    return list
end

-- Makes the layers once, so that sizes which do not go together are refused here.
local function try_layers(model, level)
    if model.moe then
        layers.create("moe", layers.ffn_config(model, "moe"), model.dtype, level + 1)
    end
    for _, kind in ipairs(schedules.kinds) do
        if model[kind] and model.schedule:count(kind) == 0 then
            local config = layers.mixer_config(model, kind, { cp_mode = model.cp_modes[kind] })
            layers.create(kind, config, model.dtype, level + 1)
        end
    end
    for _, layer in ipairs(running_layers(model)) do
        layers.create(layer.kind, layers.mixer_config(model, layer.kind, layer), model.dtype,
            level + 1)
    end
end

-- A size that no layer uses is a mistake.
local function check_a2a(model, kind, level)
    local a2a = model[kind] and model[kind].a2a or 0
    if a2a == 0 then return end
    for _, layer in ipairs(running_layers(model)) do
        if layer.kind == kind and layer.cp_mode == "a2a+p2p" and not layer.a2a then return end
    end
    error(('model.%s: a2a = %d, but no layer of the schedule takes it with cp_mode "a2a+p2p"')
        :format(kind, a2a), level + 1)
end

-- The modes of layers that say none.
local function default_modes(t, level)
    local modes = {}
    for _, kind in ipairs(schedules.kinds) do
        local known = schedules.cp_modes(kind)
        modes[kind] = args.one_of("model." .. kind, "cp_mode", t[kind] and t[kind].cp_mode
            or known[1], known, level + 1)
    end
    return modes
end

-- A quarter of the head rotates, as in Qwen3-Next; the number of rotated dims is even.
local function gqa_config(t, level)
    args.fields("model.gqa", t, GQA, level + 1)
    check_sizes("model.gqa", t, GQA, level + 1)
    return {
        heads = t.heads, kv_heads = t.kv_heads, head_dim = t.head_dim,
        rotary_dim = t.rotary_dim or math.floor(t.head_dim / 8) * 2,
        rope_theta = t.rope_theta or 1e7,
        window = t.window or 0, a2a = t.a2a or 0,
    }
end

local function mla_config(t, level)
    args.fields("model.mla", t, MLA, level + 1)
    check_sizes("model.mla", t, MLA, level + 1)
    return {
        heads = t.heads, q_rank = t.q_rank, kv_rank = t.kv_rank, nope_dim = t.nope_dim,
        rope_dim = t.rope_dim or 0, value_dim = t.value_dim, rope_theta = t.rope_theta or 1e4,
        window = t.window or 0, a2a = t.a2a or 0,
    }
end

local function gdn_config(t, level)
    args.fields("model.gdn", t, GDN, level + 1)
    check_sizes("model.gdn", t, GDN, level + 1)
    return {
        key_heads = t.key_heads, value_heads = t.value_heads,
        key_dim = t.key_dim, value_dim = t.value_dim,
        conv = t.conv or 4, chunk = t.chunk or 64,
    }
end

-- Chosen weights sum to 1, as in Qwen3-Next (norm_topk_prob). Layers before first_layer are dense
-- (Kimi-Linear's first_k_dense_replace).
local function moe_config(t, has_mlp, level)
    args.fields("model.moe", t, MOE, level + 1)
    check_sizes("model.moe", t, MOE, level + 1)
    args.integer("model.moe", "shared_width", t.shared_width or 0, 0, MAX_SIZE, level + 1)
    local first = args.integer("model.moe", "first_layer", t.first_layer or 0, 0, nil, level + 1)
    if has_mlp ~= (first > 0) then
        error(("model.moe: first_layer = %d, %s"):format(first, has_mlp
            and "but there is an 'mlp', which only layers before it could use"
            or "but there is no 'mlp' for the layers before it"), level + 1)
    end
    return {
        experts = t.experts, top_k = t.top_k, width = t.width,
        shared_width = t.shared_width or 0, renormalise = t.renormalise ~= false,
        aux_coefficient = t.aux_coefficient or 0, first_layer = first,
    }
end

-- A depth's block is a layer as cplab.schedule.list takes it; Megatron-LM's scale is the default.
local function mtp_config(t, modes, level)
    local mtp = t.mtp
    args.fields("model.mtp", mtp, MTP, level + 1)
    check_sizes("model.mtp", mtp, MTP, level + 1)
    local layer = schedules.layer("model.mtp", mtp.kind, level + 1)
    if not t[layer.kind] then
        error(("model.mtp: a %s layer, but there is no field '%s'"):format(layer.kind, layer.kind),
            level + 1)
    end
    local scale = mtp.loss_scale or 0.1
    if not (scale >= 0 and scale < math.huge) then
        error(("model.mtp: loss_scale must be a number from 0 on (got %g)"):format(scale),
            level + 1)
    end
    return { depth = mtp.depth or 1, loss_scale = scale,
        layer = schedules.layer_with_mode(layer, modes) }
end

-- How conversions move rows.
local function exchange_options(t, level)
    args.fields("model.exchange", t, EXCHANGE, level + 1)
    local methods = exchange.methods()
    methods[#methods + 1] = "auto"
    return { method = args.one_of("model.exchange", "method", t.method or "auto", methods,
        level + 1) }
end

local function balance_options(gqa)
    local options = {}
    for _, name in ipairs(BALANCE) do options[name] = gqa and gqa[name] end
    return options
end

-- A policy as it is for this model: an assignment has to have its layers.
local function fitted(model, policy, level)
    if not policy.layers then return policy end
    return (assignments.fit(policy, model, level + 1))
end

--- Makes a model from named fields; unknown ones are errors. `cplab.model.<preset> { ... }` starts
-- from a published hybrid (cplab.presets).
-- @tparam table t schedule, policy (name, triple of layouts, or an assignment: see
-- cplab.assignment), hidden, vocab, dtype ("f64", "f32", and where rows are on devices "bf16"),
-- seed,
-- gqa { heads, kv_heads, head_dim, rotary_dim, rope_theta, window (keys that a query sees; none: no
-- limit), cp_mode ("gather", "p2p", "a2a", "a2a+p2p"), a2a (with a2a+p2p: ranks that spread heads);
-- for a balanced layout tolerance, block, node_size, placement, method },
-- mla { heads, q_rank (0: queries straight from the rows), kv_rank, nope_dim, rope_dim (none: 0),
-- value_dim, rope_theta (0: not rotated); window, cp_mode, a2a as gqa; it runs where GQA runs },
-- gdn { key_heads, value_heads, key_dim, value_dim, conv, chunk, cp_mode ("chunkwise",
-- "headwise") }, mlp { width } or none,
-- routes ("prebuilt", "lazy"), exchange { method } of the conversions (a name of
-- cplab.exchange.methods(), or "auto"), eps;
-- moe { experts, top_k, width, shared_width (0: no shared expert), renormalise (true),
-- aux_coefficient (0; of the loss that balances the load), first_layer (0; layers before it have
-- the mlp) } instead of mlp; tied (false): the head's weight is the embedding's table;
-- auto { cluster, dtype, layouts, entry, exit }: what the policy "auto" decides by
-- (cplab.planner.options);
-- mtp { depth (1; how many), kind (of their blocks: "gqa", or a layer as cplab.schedule.list takes
-- it), loss_scale (0.1) } or none: depths that predict later tokens (cplab.mtp)
function M.new(t, level)
    level = (level or 1) + 1
    args.fields("model", t, FIELDS, level)
    check_sizes("model", t, FIELDS, level)
    args.integer("model", "seed", t.seed or 0, 0, nil, level)
    if not schedules.is(t.schedule) then
        error("model: schedule must come from cplab.schedule.ratio, list or pattern", level)
    end
    for _, kind in ipairs(schedules.kinds) do
        if t.schedule:count(kind) > 0 and not t[kind] then
            error(("model: the schedule %s has %s layers, but there is no field '%s'"):format(
                t.schedule:describe(), kind, kind), level)
        end
    end
    if t.mlp then
        args.fields("model.mlp", t.mlp, MLP, level)
        check_sizes("model.mlp", t.mlp, MLP, level)
    end
    local modes = default_modes(t, level)
    local model = setmetatable({
        schedule = t.schedule:with_modes(modes),
        cp_modes = modes,
        policy = policies.resolve(t.policy, level),
        hidden = t.hidden,
        vocab = t.vocab,
        dtype = args.one_of("model", "dtype", t.dtype or "f32", DTYPES, level),
        seed = t.seed or 0,
        gqa = t.gqa and gqa_config(t.gqa, level),
        mla = t.mla and mla_config(t.mla, level),
        balance = balance_options(t.gqa),
        auto = planner_options.check("model.auto", t.auto or {}, level),
        gdn = t.gdn and gdn_config(t.gdn, level),
        mlp = t.mlp and { width = t.mlp.width },
        moe = t.moe and moe_config(t.moe, t.mlp ~= nil, level),
        routes = args.one_of("model", "routes", t.routes or "prebuilt", ROUTES, level),
        exchange = exchange_options(t.exchange or {}, level),
        eps = t.eps or 1e-6,
        tied = t.tied or false,
        mtp = t.mtp and mtp_config(t, modes, level),
        bound_to = {},
    }, Model)
    for _, kind in ipairs(schedules.kinds) do
        model.bound_to[kind] = t[kind] and binding_of(kind, t[kind].layouts, level)
    end
    model.policy = fitted(model, model.policy, level)
    check_all_layouts(model, level)
    check_a2a(model, "gqa", level)
    check_a2a(model, "mla", level)
    try_layers(model, level)
    return model
end

--- Whether a value is a model.
function M.is(value)
    return getmetatable(value) == Model
end

--- The layers of the schedule, then those of MTP's depths, in the order in which they run.
function Model:layers()
    local list = {}
    for i, layer in ipairs(self.schedule.layers) do list[i] = layer end
    for _ = 1, self.mtp and self.mtp.depth or 0 do list[#list + 1] = self.mtp.layer end
    return list
end

--- The layouts that layer i, from 1 of `layers()`, accepts: those that the model binds its kind to,
-- or those that the kind declares; see cplab.contract.
-- @tparam number i
-- @tparam ?string cp_mode default: the layer's
-- @treturn string|table "any", or a list of names, the preferred one first
function Model:accepts(i, cp_mode)
    local layer = self:layers()[i]
    return (contract.accepts(layer.kind, cp_mode or layer.cp_mode, self.bound_to[layer.kind]))
end

--- What runs where on a stream: the model's policy as an assignment.
-- This is the one place where a policy becomes one; "auto" is what the planner says.
-- @tparam table stream
-- @tparam table group { cp =, tp = }
-- @treturn table of cplab.assignment
function Model:assignment(stream, group)
    local policy = self.policy
    if policy.layers then return policy end
    if policy.is_auto then
        local planned = require("cplab.planner").assign(self, stream, group)
        local assignment = assignments.fit(planned, self)
        check_assigned(self, assignment.layers, 2)
        return assignment
    end
    return assignments.from_policy(policy, self:layers())
end

--- The layouts of an assignment of this model on a stream, by name; see cplab.assignment.
function Model:layouts(assignment, stream, group)
    return assignments.layouts(assignment, stream, group, self.balance)
end

--- The steps of its forward pass under an assignment on a group; see cplab.assignment.
-- @tparam table assignment
-- @tparam table group { cp =, tp = }
function Model:steps(assignment, group)
    return assignments.steps(assignment, group.cp, function(i) return self:ffn(i) end,
        { tp = group.tp, composed = self.exchange.method == "composed" })
end

--- The kind of the feed-forward network of layer i, from 0: "mlp", "moe" or nil.
function Model:ffn(i)
    if self.moe and i >= self.moe.first_layer then
        return "moe"
    end
    return self.mlp and "mlp" or nil
end

-- Most work over mean work, of groups of ranks that share theirs.
local function imbalance(work, a2a)
    local most, total = 0, 0
    for first = 1, #work, a2a do
        local group = 0
        for i = first, first + a2a - 1 do group = group + work[i] end
        most, total = math.max(most, group), total + group
    end
    return total > 0 and most * (#work / a2a) / total or 1
end

--- How uneven the work of attention is, max/mean over ranks, in the layer where it is most so. Work
-- is pairs of a query and a key that it sees: within the layer's window, in a depth of MTP those of
-- its shorter sequences. Where heads are spread (a2a), all ranks share the work.
-- @tparam table assignment
-- @tparam table layouts of Model:layouts
function Model:attention_imbalance(assignment, layouts)
    local worst, work_of = 1, {} -- layers alike are looked at once
    for i, entry in ipairs(assignment.layers) do
        local layer = entry.layer
        if schedules.is_attention(layer.kind) and layer.cp_mode ~= "a2a" then
            local depth = math.max(i - self.schedule:count(), 0)
            local config = layers.mixer_config(self, layer.kind, layer)
            local key = ("%s %d %d"):format(entry.mixer, depth, config.window)
            local layout = layouts.shard[entry.mixer]
            local work = work_of[key]
                or (depth > 0 and depths.layout(layout, depth) or layout):work(config.window)
            work_of[key] = work
            worst = math.max(worst, imbalance(work, #work > 1 and math.max(config.a2a, 1) or 1))
        end
    end
    return worst
end

-- Text that tells any two numbers apart.
local function exact(value)
    return type(value) == "number" and ("%.17g"):format(value) or tostring(value)
end

-- How queries meet the keys of other ranks changes no number.
local MODE = { a2a = true }

local function flat(prefix, t, out)
    local names = {}
    for name in pairs(t) do
        names[#names + 1] = name
    end
    table.sort(names)
    for _, name in ipairs(names) do
        out[#out + 1] = not MODE[name] and ("%s%s=%s"):format(prefix, name, exact(t[name])) or nil
    end
end

--- A text that is equal exactly for models with the same numbers: all but policy, cp_modes,
-- routes and exchange.
function Model:signature()
    local out = { "schedule=" .. self.schedule:describe() }
    for i, layer in ipairs(self.schedule.layers) do
        if layer.window then out[#out + 1] = ("layers.%d.window=%d"):format(i - 1, layer.window) end
    end
    for _, name in ipairs { "hidden", "vocab", "dtype", "seed", "eps", "tied" } do
        out[#out + 1] = ("%s=%s"):format(name, exact(self[name]))
    end
    for _, name in ipairs { "gqa", "mla", "gdn", "mlp", "moe" } do
        flat(name .. ".", self[name] or {}, out)
    end
    if self.mtp then
        local mtp = self.mtp
        flat("mtp.", { depth = mtp.depth, kind = mtp.layer.kind, loss_scale = mtp.loss_scale,
            window = mtp.layer.window }, out)
    end
    return table.concat(out, " ")
end

local WITH = { policy = "string|table?", dtype = "string?", seed = "integer?", mtp = "boolean?",
    routes = "string?", bound_to = "table?" }

--- A copy with another field or two: { policy =, dtype =, seed =, mtp = false, routes =, bound_to =
-- (by kind, the layouts that its layers are held to: {} for none) }.
-- @raise an unknown field or dtype, with the nearest; what a policy raises
function Model:with(fields)
    args.fields("model:with", fields, WITH, 2)
    if fields.dtype then args.one_of("model:with", "dtype", fields.dtype, DTYPES, 2) end
    if fields.routes then args.one_of("model:with", "routes", fields.routes, ROUTES, 2) end
    local copy = setmetatable({}, Model)
    for name, value in pairs(self) do
        copy[name] = value
    end
    for name, value in pairs(fields) do
        copy[name] = value
    end
    if fields.policy then
        copy.policy = fitted(copy, policies.resolve(fields.policy, 2), 2)
        check_all_layouts(copy, 2)
    end
    return copy
end

-- The numbers of a layer's parameters.
local function count(model, kind, config)
    return parameters.count(layers.create(kind, config, model.dtype))
end

-- Numbers of one network's experts that a token does not use.
local function idle(model)
    local moe = model.moe
    return (moe.experts - moe.top_k) * 3 * model.hidden * moe.width
end

--- How many numbers the parameters are, in all and as a token uses them (the table of the
-- embedding and the head included); nothing is allocated.
-- @treturn number total
-- @treturn number active
function Model:n_parameters()
    local norm = { hidden = self.hidden, eps = self.eps }
    local per_norm = count(self, "norm", norm)
    local total, unused = per_norm + (self.tied and 1 or 2) * self.vocab * self.hidden, 0
    local n_depths = self.mtp and self.mtp.depth or 0
    total = total + n_depths * (3 * per_norm + 2 * self.hidden * self.hidden)
    for i, layer in ipairs(self:layers()) do
        local ffn = self:ffn(i - 1)
        local mixer = layers.mixer_config(self, layer.kind, layer)
        total = total + per_norm + count(self, layer.kind, mixer)
        if ffn then
            total = total + per_norm + count(self, ffn, layers.ffn_config(self, ffn))
            unused = unused + (ffn == "moe" and idle(self) or 0)
        end
    end
    return total, total - unused
end

require "cplab.presets"(M)

return setmetatable(M, {
    __call = function(_, t)
        if type(t) ~= "table" then
            error("model: expected a table of fields", 2)
        end
        return M.new(t)
    end,
})
