--- Configuration rules: what a system refuses before anything runs, all of it at once.
-- A rule is a table: name, message, source, settings (the two that it is about) and test. A set
-- holds rules in their order. Two sets are there: `cplab` (the default; what really is impossible
-- here) and `megatron` (V1 to V13 of the reference system, so that one can ask whether it would
-- take a model). Experiments add rules, or make sets of their own; none replaces another.
--
-- A configuration is a plain table with the reference's names; what is not given has the
-- reference's default. `cplab.rules.config` makes one of a model.
-- @module cplab.rules
-- @usage local rules = cplab.rules
--   for _, broken in ipairs(rules.check(rules.config(model, { cp = 4 }), "megatron")) do
--       print(broken.message)
--   end
local args = require "cplab.check_args"

local M = {}

--- The settings of a configuration and their types (a "?": may be absent).
M.fields = {
    -- layouts and ranks
    cp_partition_mode = "string?", context_parallel_size = "integer?",
    dynamic_context_parallel = "boolean?", tensor_model_parallel_size = "integer?",
    sequence_parallel = "boolean?", cp_comm_type = "string?",
    -- packed sequences
    sequence_packing_scheduler = "string?", pad_packed_seq_alignment = "integer|string?",
    thd_tail_padding_policy = "string?",
    -- layers
    experimental_attention_variant = "string?", multi_latent_attention = "boolean?",
    mtp_num_layers = "integer?", num_attention_heads = "integer?", num_query_groups = "integer?",
    linear_cp_mode = "string?", linear_attention_freq = "integer|list?",
    linear_conv_kernel_dim = "integer?", linear_key_head_dim = "integer?",
    linear_value_head_dim = "integer?", linear_num_key_heads = "integer?",
    linear_num_value_heads = "integer?", gdn_conv_pad_alignment = "integer?",
    gdn_pre_gated_delta_rule_fusion = "boolean?",
    -- how it runs
    deterministic_mode = "boolean?", cuda_graph_impl = "string?", cuda_graph_modules = "list?",
}

--- What a setting is where it is not given.
M.defaults = {
    cp_partition_mode = "zigzag", context_parallel_size = 1, tensor_model_parallel_size = 1,
    dynamic_context_parallel = false, sequence_parallel = false, multi_latent_attention = false,
    deterministic_mode = false, gdn_pre_gated_delta_rule_fusion = false,
}

local RULE = { name = "string", message = "string", source = "string", settings = "list",
    test = "function" }
local SET = { name = "string", rules = "list", fields = "table?" }

local Set = {}
Set.__index = Set

local sets = {}

local function names_of_sets()
    local names = {}
    for name in pairs(sets) do names[#names + 1] = name end
    table.sort(names)
    return names
end

local function find_set(who, set, level)
    if getmetatable(set) == Set then return set end
    if type(set) ~= "string" or not sets[set] then
        args.unknown(who, "rule set", set, names_of_sets(), level + 1)
    end
    return sets[set]
end

-- ---- making --------------------------------------------------------------------

local function known_settings(set)
    local names = {}
    for name in pairs(set.fields) do names[#names + 1] = name end
    table.sort(names)
    return names
end

local function check_settings(who, set, settings, level)
    if #settings ~= 2 then
        error(("%s: settings must name two settings (got %d)"):format(who, #settings), level + 1)
    end
    for _, name in ipairs(settings) do
        args.one_of(who, "setting", name, known_settings(set), level + 1)
    end
end

local function add(set, rule, level)
    local who = "rules.add"
    args.fields(who, rule, RULE, level + 1)
    if set.by_name[rule.name] then
        error(("%s: the set \"%s\" already has a rule \"%s\" (%s)"):format(who, set.name,
            rule.name, set.by_name[rule.name].message), level + 1)
    end
    check_settings(("%s: rule \"%s\""):format(who, rule.name), set, rule.settings, level + 1)
    set.by_name[rule.name] = rule
    set.rules[#set.rules + 1] = rule
end

--- Adds a rule behind the others of a set.
-- @param set its name, or what `set` returned
-- @tparam table rule name, message (one clause that says what must hold), source (where that is
-- written), settings { a, b }, and test(config): true where the rule is kept; false where it is
-- broken between a and b; or a list of pairs { { a, b }, ... } where it is broken in those ways
-- @raise a rule of that name is there; a setting that the set does not know
function M.add(set, rule)
    add(find_set("rules.add", set, 2), rule, 2)
end

local function make_set(t, level)
    local who = "rules.set"
    args.fields(who, t, SET, level + 1)
    if sets[t.name] then
        error(("%s: there already is a rule set \"%s\" of %d rules"):format(who, t.name,
            #sets[t.name].rules), level + 1)
    end
    local set = setmetatable({ name = t.name, rules = {}, by_name = {}, fields = {} }, Set)
    for name, wanted in pairs(M.fields) do set.fields[name] = wanted end
    for name, wanted in pairs(t.fields or {}) do
        if set.fields[name] then
            error(("%s: fields: there already is a setting \"%s\""):format(who, name), level + 1)
        end
        args.type_name(who, "fields." .. name, wanted, level + 1)
        set.fields[name] = wanted
    end
    for _, rule in ipairs(t.rules) do add(set, rule, level + 1) end
    sets[t.name] = set
    return set
end

--- A set of one's own, known by its name from then on.
-- @tparam table t name, rules (a list, perhaps empty), fields (settings that only these rules know:
-- name -> type, as cplab.check_args has them)
-- @return the set
-- @raise a set, a rule or a setting of that name is there
function M.set(t)
    return (make_set(t, 2))
end

--- The rules of a set, in the order in which they are asked: a copy.
function M.list(set)
    local list = {}
    for i, rule in ipairs(find_set("rules.list", set, 2).rules) do list[i] = rule end
    return list
end

-- ---- asking --------------------------------------------------------------------

-- A value as a message shows it; lists in full.
local function show(value)
    if type(value) ~= "table" then return args.show(value) end
    local parts = {}
    for i, part in ipairs(value) do parts[i] = args.show(part) end
    return "{ " .. table.concat(parts, ", ") .. " }"
end

local function complete(who, config, set, level)
    local types = {}
    for name, wanted in pairs(set.fields) do
        types[name] = wanted:sub(-1) == "?" and wanted or wanted .. "?"
    end
    args.fields(who, config, types, level + 1)
    local full = {}
    for name, value in pairs(M.defaults) do full[name] = value end
    for name, value in pairs(config) do full[name] = value end
    for _, name in ipairs { "context_parallel_size", "tensor_model_parallel_size" } do
        args.integer(who, name, full[name], 1, nil, level + 1)
    end
    return full
end

-- What a rule's test gave: the pairs of settings between which the rule is broken.
local function broken_pairs(who, set, rule, kept, level)
    level = level + 1
    if not kept then return { rule.settings } end
    if type(kept) ~= "table" then return {} end
    who = ("%s: what the test of \"%s\" gave"):format(who, rule.name)
    for _, pair in ipairs(args.value(who, "the list of pairs", kept, "list", level)) do
        check_settings(who, set, args.value(who, "a pair", pair, "list", level), level)
    end
    return kept
end

local function violation(rule, config, pair)
    local a, b = pair[1], pair[2]
    local sides = ("%s = %s, %s = %s"):format(a, show(config[a]), b, show(config[b]))
    return {
        rule = rule.name, settings = { a, b }, source = rule.source,
        values = { [a] = config[a], [b] = config[b] }, sides = sides,
        message = ("%s: %s (%s)"):format(rule.name, rule.message, sides),
    }
end

local function check(who, config, set, level)
    set = find_set(who, set or "cplab", level + 1)
    config = complete(who, config, set, level + 1)
    local list = {}
    for _, rule in ipairs(set.rules) do
        for _, pair in ipairs(broken_pairs(who, set, rule, rule.test(config), level + 1)) do
            list[#list + 1] = violation(rule, config, pair)
        end
    end
    return list
end

--- All rules that a configuration breaks, in the order of the set; an empty list where it breaks
-- none.
-- @tparam table config settings by name
-- @param set a rule set or its name; "cplab" by default
-- @treturn table a list of { rule =, message = (with `sides`), sides = (both settings and their
-- values), settings = { a, b }, values = by setting, source = }
-- @raise an unknown setting (with the nearest), a value of a wrong type, an unknown set
function M.check(config, set)
    return (check("rules.check", config, set, 2))
end

--- Raises one error that names all rules that a configuration breaks; returns the configuration
-- where it breaks none.
function M.demand(config, set)
    local list = check("rules.demand", config, set, 2)
    if #list == 0 then return config end
    local lines = {}
    for i, broken in ipairs(list) do lines[i] = broken.message .. "; " .. broken.source end
    local name = find_set("rules.demand", set or "cplab", 2).name
    local format = #list == 1 and "rules.demand: %d rule of \"%s\" is broken:\n  %s"
        or "rules.demand: %d rules of \"%s\" are broken:\n  %s"
    error(format:format(#list, name, table.concat(lines, "\n  ")), 2)
end

-- ---- of a model ------------------------------------------------------------------

M.config = require "cplab.rules.config"

M.set { name = "cplab", rules = require "cplab.rules.own" }
M.set { name = "megatron", rules = require "cplab.rules.megatron" }

return M
