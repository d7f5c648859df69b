--- A schedule: the ordered list of layers of a stack, each GQA, MLA or GDN.
-- Published hybrids are lists, not intervals (Kimi-Linear's last group is short), so a
-- list is what it is; ratios and patterns are ways to write one down.
-- Layers count from 0 in words, from 1 in the Lua list.
-- @classmod cplab.schedule
-- @usage local s = cplab.schedule.ratio("1:3", 12)  -- GDN GDN GDN GQA, three times
local args = require "cplab.check_args"

local Schedule = {}
Schedule.__index = Schedule

local M = {}

-- What a layer of each kind may be told. Sizes are integers; which go together, C knows. One that
-- moves heads instead of rows takes any layout: it runs where the model lives.
local function attention(symbol)
    return { symbol = symbol, cp_modes = { "gather", "p2p", "a2a", "a2a+p2p" },
        takes_any_layout = { a2a = true }, options = { "cp_mode", "window", "a2a" },
        is_attention = true }
end
local KINDS = {
    gqa = attention "*",
    mla = attention "L",
    gdn = { symbol = "G", cp_modes = { "chunkwise", "headwise" },
        takes_any_layout = { headwise = true }, options = { "cp_mode" } },
}

--- The kinds of layers that a schedule may hold.
M.kinds = { "gqa", "mla", "gdn" }

local KIND_OF = {} -- by symbol
for kind, about in pairs(KINDS) do KIND_OF[about.symbol] = kind end

--- What the symbols of patterns mean.
M.legend = "G: GDN, *: GQA, L: MLA"

--- Whether queries of a kind of layer meet keys: it runs where GQA runs.
function M.is_attention(kind)
    return KINDS[kind].is_attention == true
end

--- The names of the cp_modes of a kind; the first is the default.
function M.cp_modes(kind)
    return KINDS[kind].cp_modes
end

--- Whether a layer of a kind and cp_mode takes any layout, so that nothing is converted around it.
function M.takes_any_layout(kind, cp_mode)
    return KINDS[kind].takes_any_layout[cp_mode] == true
end

local function is_option(kind, name)
    for _, known in ipairs(KINDS[kind].options) do
        if name == known then return true end
    end
    return false
end

--- A layer as `list` takes them, checked.
function M.layer(who, entry, level)
    local options = type(entry) == "table" and entry or { entry }
    local kind = args.one_of(who, "layer kind", options[1], M.kinds, level + 1)
    local layer = { kind = kind }
    for name, value in pairs(options) do
        if name ~= 1 then
            if not is_option(kind, name) then
                args.unknown(who, "option of a " .. kind .. " layer", name,
                    KINDS[kind].options, level + 1)
            end
            if name == "cp_mode" then
                args.one_of(who, "cp_mode of a " .. kind .. " layer", value,
                    KINDS[kind].cp_modes, level + 1)
            else
                args.integer(who, name .. " of a " .. kind .. " layer", value, 0, 2 ^ 31 - 1,
                    level + 1)
            end
            layer[name] = value
        end
    end
    return layer
end

local function new(layers)
    return setmetatable({ layers = layers }, Schedule)
end

local function check_count(who, n, level)
    if type(n) ~= "number" or n < 1 or n % 1 ~= 0 then
        error(("%s: the number of layers must be a positive integer (got %s)"):format(who,
            tostring(n)), level + 1)
    end
end

--- Layer i, from 0, is GQA iff (i+1) % (k+1) == 0, for a ratio "1:k" of GQA:GDN.
-- @tparam string ratio "1:k", k >= 0
-- @tparam number n_layers a multiple of k+1
-- @raise a ratio of another form; a count that does not divide
function M.ratio(ratio, n_layers)
    local k = tonumber(type(ratio) == "string" and ratio:match "^1:(%d+)$" or nil)
    if not k then
        error(("schedule.ratio: expected '1:k' (GQA:GDN), got '%s'"):format(tostring(ratio)), 2)
    end
    check_count("schedule.ratio", n_layers, 2)
    if n_layers % (k + 1) ~= 0 then
        error(("schedule.ratio: %d layers, not a multiple of 1 + %d for ratio %s"):format(
            n_layers, k, ratio), 2)
    end
    local layers = {}
    for i = 1, n_layers do
        layers[i] = M.layer("schedule.ratio", i % (k + 1) == 0 and "gqa" or "gdn", 2)
    end
    return new(layers)
end

--- The layers as listed: "gqa", "mla", "gdn", or { kind, cp_mode = ... }, gqa and mla also with
-- window and a2a.
-- What a layer does not say, the model says for all of its kind.
function M.list(entries)
    if type(entries) ~= "table" or #entries == 0 then
        error("schedule.list: expected a list of at least one layer", 2)
    end
    local layers = {}
    for i, entry in ipairs(entries) do
        layers[i] = M.layer("schedule.list", entry, 2)
    end
    return new(layers)
end

--- A pattern of symbols (G: GDN, *: GQA, L: MLA), repeated and cut to n_layers.
function M.pattern(pattern, n_layers)
    if type(pattern) ~= "string" or pattern == "" then
        error("schedule.pattern: expected a string of G (GDN), * (GQA) and L (MLA)", 2)
    end
    check_count("schedule.pattern", n_layers, 2)
    local layers = {}
    for i = 1, n_layers do
        local at = (i - 1) % #pattern + 1
        local symbol = pattern:sub(at, at)
        if not KIND_OF[symbol] then
            error(("schedule.pattern: unknown symbol '%s' in '%s' (%s)"):format(symbol, pattern,
                M.legend), 2)
        end
        layers[i] = M.layer("schedule.pattern", KIND_OF[symbol], 2)
    end
    return new(layers)
end

--- A copy of a layer with a cp_mode: its own, or that of its kind.
-- @tparam table layer
-- @tparam table modes cp_mode by kind
function M.layer_with_mode(layer, modes)
    local copy = {}
    for name, value in pairs(layer) do copy[name] = value end
    copy.cp_mode = layer.cp_mode or modes[layer.kind]
    return copy
end

--- A copy in which every layer has a cp_mode: its own, or that of its kind.
-- @tparam table modes cp_mode by kind
function Schedule:with_modes(modes)
    local layers = {}
    for i, layer in ipairs(self.layers) do layers[i] = M.layer_with_mode(layer, modes) end
    return new(layers)
end

--- Whether a value is a schedule.
function M.is(value)
    return getmetatable(value) == Schedule
end

--- How many layers there are, or how many of one kind.
function Schedule:count(kind)
    local n = 0
    for _, layer in ipairs(self.layers) do
        if kind == nil or layer.kind == kind then
            n = n + 1
        end
    end
    return n
end

--- The schedule as a pattern, "GGG*GGG*".
function Schedule:describe()
    local symbols = {}
    for i, layer in ipairs(self.layers) do
        symbols[i] = KINDS[layer.kind].symbol
    end
    return table.concat(symbols)
end

Schedule.__tostring = Schedule.describe

return M
