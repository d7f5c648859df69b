--- The menu of a planner: what every layer may do in every layout, with its price.
-- Asks the prices once for each distinct layer (kind, options and feed-forward network) and once
-- for each pair of layouts. Prices become whole picoseconds: sums of integers do not depend on
-- their order (up to 2^53, two and a half hours), so that equal prices are ties, in any search and
-- on every rank.
-- Layouts are numbers here, their places in the list of candidates; layers count from 1.
-- @module cplab.planner.menu
local args = require "cplab.check_args"
local named = require "cplab.named_layouts"
local schedules = require "cplab.schedule"

local M = {}

--- Picoseconds in a second.
M.PS = 1e12

local OPTIONS = { entry = "string?", exit = "string?", layouts = "list?" }

-- Whole picoseconds; what cannot be had is infinitely dear.
local function picoseconds(seconds, of, ...)
    if seconds == nil then return math.huge end
    if type(seconds) ~= "number" or not (seconds >= 0 and seconds < math.huge) then
        error(("planner: the price of %s is %s; prices are seconds, 0 or more"):format(
            of:format(...), args.show(seconds)), 0)
    end
    return math.floor(seconds * M.PS + 0.5)
end

--- Whether (ps, n) is less than (other_ps, other_n): cheaper, or as cheap with fewer conversions.
function M.less(ps, n, other_ps, other_n)
    return ps < other_ps or (ps == other_ps and n < other_n)
end

-- Layers with the same text have the same prices.
local function key_of(model, i, layer)
    local names, words = {}, {}
    for name in pairs(layer) do names[#names + 1] = name end
    table.sort(names)
    for k, name in ipairs(names) do words[k] = name .. "=" .. tostring(layer[name]) end
    return table.concat(words, " ") .. " " .. tostring(model:ffn(i - 1))
end

-- Between all pairs of candidates: conversions of the residual stream; those to a mixer and back,
-- together.
local function make_moves(prices, names)
    local moves, around = {}, {}
    local function convert(from, to, place)
        return picoseconds(prices:convert(from, to, place), "converting %s to %s", from, to)
    end
    for a, from in ipairs(names) do
        moves[a], around[a] = {}, {}
        for b, to in ipairs(names) do
            moves[a][b] = a == b and 0 or convert(from, to, "residual")
            around[a][b] = a == b and 0 or convert(from, to, "there") + convert(to, from, "back")
        end
    end
    return moves, around
end

-- What tokens, embedding, head and loss cost: [entry][exit].
local function make_ends(prices, names, entries, exits)
    local ends = {}
    for _, e in ipairs(entries) do
        ends[e] = {}
        for _, x in ipairs(exits) do
            ends[e][x] = picoseconds(prices:ends(names[e], names[x]), "the ends %s and %s",
                names[e], names[x])
        end
    end
    return ends
end

-- Where the mixer may run if the layer lives in a layout: anywhere, but there alone if nothing is
-- planned around it.
local function mixers_for(menu, layer, live, mode)
    if schedules.takes_any_layout(layer.kind, mode) then return { live } end
    return menu.all
end

-- Why the model, which may bind a kind of layer to a layout, a list of them or "any", forbids it to
-- run in another; nil if it does not.
local function refusal(menu, kind, layout)
    local bound = (menu.model.bound_to or {})[kind]
    if bound == nil or bound == "any" then return nil end
    bound = type(bound) == "table" and bound or { bound }
    for _, name in ipairs(bound) do
        if name == layout or name == named.parse(layout) then return nil end
    end
    return ("%s layers may run in %s alone"):format(kind, table.concat(bound, ", "))
end

-- All that a layer may do while it lives in a layout, cheapest first; of equals the one with fewer
-- conversions, then by the order of the candidates and of the modes.
local function options_in(menu, mixers, i, live)
    local layer, list = menu.layers[i], {}
    local seconds, why_not = menu.prices:rest(i, menu.names[live])
    local rest = picoseconds(seconds, "the rest of layer %d in %s", i - 1, menu.names[live])
    why_not = seconds == nil and why_not or nil
    for order, mode in ipairs(menu.prices:modes(i)) do
        for _, mixer in ipairs(mixers_for(menu, layer, live, mode)) do
            local there = mixers[mode][mixer]
            local around = menu.around[live][mixer]
            local ps = rest + there.ps + around
            why_not = why_not or there.why_not
            if ps < math.huge then
                list[#list + 1] = { live = live, mixer = mixer, cp_mode = mode, ps = ps,
                    n = mixer == live and 0 or 2, order = order }
            end
        end
    end
    table.sort(list, function(a, b)
        if a.ps ~= b.ps then return a.ps < b.ps end
        if a.n ~= b.n then return a.n < b.n end
        if a.mixer ~= b.mixer then return a.mixer < b.mixer end
        return a.order < b.order
    end)
    return list, why_not
end

-- The prices of a layer's mixer: [mode][layout].
local function mixer_prices(menu, i)
    local mixers = {}
    for _, mode in ipairs(menu.prices:modes(i)) do
        mixers[mode] = {}
        for l, name in ipairs(menu.names) do
            local seconds, why_not = nil, refusal(menu, menu.layers[i].kind, name)
            if not why_not then seconds, why_not = menu.prices:mixer(i, name, mode) end
            mixers[mode][l] = {
                ps = picoseconds(seconds, "the mixer of layer %d, %s in %s", i - 1, mode, name),
                why_not = seconds == nil and (why_not or "no reason given") or nil,
            }
        end
    end
    return mixers
end

local function add_layer(menu, i, level)
    local mixers, options, reason = mixer_prices(menu, i), {}, nil
    local n = 0
    for _, live in ipairs(menu.all) do
        local why_not
        options[live], why_not = options_in(menu, mixers, i, live)
        n, reason = n + #options[live], reason or why_not
    end
    if n == 0 then
        error(("planner: layer %d (%s) can run in none of the layouts %s: %s"):format(i - 1,
            menu.layers[i].kind, table.concat(menu.names, ", "),
            tostring(reason or "it has no modes")), level + 1)
    end
    return options
end

-- The candidates that an end may have: the one named, or all.
local function end_candidates(menu, which, name, level)
    if name == nil then return menu.all end
    args.one_of("planner", which .. " layout", name, menu.names, level + 1)
    for l, known in ipairs(menu.names) do
        if known == name then return { l } end
    end
end

local function candidates(prices, wanted, level)
    if not wanted then return prices.layouts end
    if #wanted == 0 then error("planner: layouts must name at least one layout", level + 1) end
    for _, name in ipairs(wanted) do
        args.one_of("planner", "layout", name, prices.layouts, level + 1)
    end
    return wanted
end

--- The menu of a model under given prices.
-- @tparam table prices of cplab.cost, or anything with its methods
-- @tparam ?table options entry, exit (names; none: the planner chooses), layouts (candidates, in
-- the order that settles ties; default prices.layouts)
-- @treturn table names of the candidates; all (their numbers); moves[from][to] (of the
-- residual stream) and around[live][mixer] (there and back),
-- ends[entry][exit] in ps; entries, exits (numbers); n_layers, n_scheduled (those that are no
-- depths of MTP); options[i][live], lists of { live, mixer, cp_mode, ps, n (conversions) }, the
-- cheapest first
-- @raise unknown options and layouts; prices that are no seconds; a layer that can run nowhere
function M.new(prices, options, level)
    level = (level or 1) + 1
    options = args.fields("planner", options or {}, OPTIONS, level)
    local model = prices.model
    local menu = { prices = prices, model = model, all = {}, options = {},
        names = candidates(prices, options.layouts, level) }
    for l in ipairs(menu.names) do menu.all[l] = l end
    menu.entries = end_candidates(menu, "entry", options.entry, level)
    menu.exits = end_candidates(menu, "exit", options.exit, level)
    menu.moves, menu.around = make_moves(prices, menu.names)
    menu.ends = make_ends(prices, menu.names, menu.entries, menu.exits)
    menu.layers = model:layers()
    menu.n_layers, menu.n_scheduled = #menu.layers, model.schedule:count()
    local known = {}
    for i, layer in ipairs(menu.layers) do
        local key = key_of(model, i, layer)
        known[key] = known[key] or add_layer(menu, i, level)
        menu.options[i] = known[key]
    end
    return menu
end

--- What the residual stream pays to go from one layout to another before layer i (n_layers + 1:
-- before the final norm): picoseconds and conversions. Depths of MTP live where the loss does.
function M.move(menu, i, from, to)
    if from == to then return 0, 0 end
    if i > menu.n_scheduled + 1 then return math.huge, 0 end
    return menu.moves[from][to], 1
end

return M
