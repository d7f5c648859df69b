--- A model: the description of a hybrid stack; nothing live.
-- Sizes, schedule, policy, seed. What can be known to be wrong from these alone is refused
-- here; the stack (cplab.stack) gives it ranks, a stream and memory.
-- @module cplab.model
-- @usage local m = cplab.model { schedule = cplab.schedule.ratio("1:3", 8), policy = "mirror",
--   hidden = 128, vocab = 256, gqa = { heads = 4, kv_heads = 2, head_dim = 32 },
--   gdn = { key_heads = 2, value_heads = 4, key_dim = 32, value_dim = 32, conv = 4 },
--   mlp = { width = 256 } }
local args = require "cplab.check_args"
local exchange = require "cplab.exchange"
local layers = require "cplab.layers"
local policies = require "cplab.policy"
local schedules = require "cplab.schedule"

local Model = {}
Model.__index = Model

local M = {}

local FIELDS = {
    schedule = "table", policy = "any", hidden = "integer", vocab = "integer",
    dtype = "string?", seed = "integer?", gqa = "table?", gdn = "table?", mlp = "table?",
    routes = "string?", exchange = "table?", eps = "number?",
}
local GQA = {
    heads = "integer", kv_heads = "integer", head_dim = "integer", rotary_dim = "integer?",
    rope_theta = "number?", cp_mode = "string?", layouts = "any?", tolerance = "number?",
    block = "integer?", node_size = "integer?", placement = "string?", method = "string?",
}
-- What a balanced layout is made with; no part of the layer.
local BALANCE = { "tolerance", "block", "node_size", "placement", "method" }
local GDN = {
    key_heads = "integer", value_heads = "integer", key_dim = "integer", value_dim = "integer",
    conv = "integer?", chunk = "integer?", cp_mode = "string?", layouts = "any?",
}
local MLP = { width = "integer" }
local EXCHANGE = { method = "string?" }
local DTYPES = { "f64", "f32" }
local ROUTES = { "prebuilt", "lazy" }
local MAX_SIZE = 2 ^ 31 - 1 -- sizes are ints in C

-- Sizes that are given must be positive and fit into an int; which go together, C knows.
local function check_sizes(who, t, fields, level)
    for name, kind in pairs(fields) do
        if kind:match "^integer" and name ~= "seed" and name ~= "rotary_dim" and t[name] then
            args.integer(who, name, t[name], 1, MAX_SIZE, level + 1)
        end
    end
end

-- A layer that says where it may run is held to it; "any", the default, is everywhere.
local function check_layouts(kind, allowed, runs_in, level)
    if allowed == nil or allowed == "any" then return end
    local who = "model." .. kind
    local list = type(allowed) == "table" and allowed or { allowed }
    for _, name in ipairs(list) do
        args.one_of(who, "layout", name, policies.layout_names, level + 1)
        if name == runs_in then return end
    end
    error(("%s: runs in %s, which is not among its layouts (%s)"):format(who, runs_in,
        table.concat(list, ", ")), level + 1)
end

-- Makes the layers once, so that sizes which do not go together are refused here.
local function try_layers(model, level)
    for _, kind in ipairs { "gqa", "gdn" } do
        if model[kind] then
            layers.create(kind, layers.mixer_config(model, kind), model.dtype, level + 1)
        end
    end
end

-- A quarter of the head rotates, as in Qwen3-Next; the number of rotated dims is even.
local function gqa_config(t, level)
    args.fields("model.gqa", t, GQA, level + 1)
    check_sizes("model.gqa", t, GQA, level + 1)
    args.one_of("model.gqa", "cp_mode", t.cp_mode or "gather", { "gather" }, level + 1)
    return {
        heads = t.heads, kv_heads = t.kv_heads, head_dim = t.head_dim,
        rotary_dim = t.rotary_dim or math.floor(t.head_dim / 8) * 2,
        rope_theta = t.rope_theta or 1e7,
    }
end

local function gdn_config(t, level)
    args.fields("model.gdn", t, GDN, level + 1)
    check_sizes("model.gdn", t, GDN, level + 1)
    args.one_of("model.gdn", "cp_mode", t.cp_mode or "chunkwise", { "chunkwise" }, level + 1)
    return {
        key_heads = t.key_heads, value_heads = t.value_heads,
        key_dim = t.key_dim, value_dim = t.value_dim,
        conv = t.conv or 4, chunk = t.chunk or 64,
    }
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

--- Makes a model from named fields; unknown ones are errors.
-- @tparam table t schedule, policy (name or triple), hidden, vocab, dtype ("f64", "f32"), seed,
-- gqa { heads, kv_heads, head_dim, rotary_dim, rope_theta; for a balanced layout tolerance, block,
-- node_size, placement, method }, gdn { key_heads, value_heads,
-- key_dim, value_dim, conv, chunk }, mlp { width } or none, routes ("prebuilt", "lazy"),
-- exchange { method } of the conversions (a name of cplab.exchange.methods(), or "auto"), eps
function M.new(t)
    args.fields("model", t, FIELDS, 2)
    check_sizes("model", t, FIELDS, 2)
    args.integer("model", "seed", t.seed or 0, 0, nil, 2)
    if not schedules.is(t.schedule) then
        error("model: schedule must come from cplab.schedule.ratio, list or pattern", 2)
    end
    for _, kind in ipairs { "gqa", "gdn" } do
        if t.schedule:count(kind) > 0 and not t[kind] then
            error(("model: the schedule %s has %s layers, but there is no field '%s'"):format(
                t.schedule:describe(), kind, kind), 2)
        end
    end
    if t.mlp then
        args.fields("model.mlp", t.mlp, MLP, 2)
        check_sizes("model.mlp", t.mlp, MLP, 2)
    end
    local model = setmetatable({
        schedule = t.schedule,
        policy = policies.resolve(t.policy, 2),
        hidden = t.hidden,
        vocab = t.vocab,
        dtype = args.one_of("model", "dtype", t.dtype or "f32", DTYPES, 2),
        seed = t.seed or 0,
        gqa = t.gqa and gqa_config(t.gqa, 2),
        balance = balance_options(t.gqa),
        gdn = t.gdn and gdn_config(t.gdn, 2),
        mlp = t.mlp and { width = t.mlp.width },
        routes = args.one_of("model", "routes", t.routes or "prebuilt", ROUTES, 2),
        exchange = exchange_options(t.exchange or {}, 2),
        eps = t.eps or 1e-6,
    }, Model)
    for _, kind in ipairs { "gqa", "gdn" } do
        check_layouts(kind, t[kind] and t[kind].layouts, model.policy[kind], 2)
    end
    try_layers(model, 2)
    return model
end

--- Whether a value is a model.
function M.is(value)
    return getmetatable(value) == Model
end

--- The steps of its forward pass at a given cp.
function Model:steps(cp)
    return policies.steps(self.policy, self.schedule, cp, self.mlp ~= nil)
end

-- Text that tells any two numbers apart.
local function exact(value)
    return type(value) == "number" and ("%.17g"):format(value) or tostring(value)
end

local function flat(prefix, t, out)
    local names = {}
    for name in pairs(t) do
        names[#names + 1] = name
    end
    table.sort(names)
    for _, name in ipairs(names) do
        out[#out + 1] = ("%s%s=%s"):format(prefix, name, exact(t[name]))
    end
end

--- A text that is equal exactly for models with the same numbers: all but policy, routes and
-- exchange.
function Model:signature()
    local out = { "schedule=" .. self.schedule:describe() }
    for _, name in ipairs { "hidden", "vocab", "dtype", "seed", "eps" } do
        out[#out + 1] = ("%s=%s"):format(name, exact(self[name]))
    end
    for _, name in ipairs { "gqa", "gdn", "mlp" } do
        flat(name .. ".", self[name] or {}, out)
    end
    return table.concat(out, " ")
end

--- A copy with another field or two: { policy =, dtype =, seed = }.
function Model:with(fields)
    local copy = setmetatable({}, Model)
    for name, value in pairs(self) do
        copy[name] = value
    end
    for name, value in pairs(fields) do
        copy[name] = name == "policy" and policies.resolve(value, 2) or value
    end
    return copy
end

return setmetatable(M, {
    __call = function(_, t)
        if type(t) ~= "table" then
            error("model: expected a table of fields", 2)
        end
        return M.new(t)
    end,
})
