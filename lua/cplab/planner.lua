--- The planner: the cheapest assignment of layouts and modes to the layers of a stack.
-- The price of an assignment is a sum over layers in which a layer meets only its neighbours: what
-- it costs by itself, given where the residual stream lives, and the conversion of that stream from
-- where the layer before it left it. So dynamic programming over layers x layouts is exact: the
-- cheapest way to every layer, the cheapest way on from it, and with both the price of the best
-- assignment that takes any given choice, which is how runners-up are found (Viterbi's algorithm
-- with forward and backward values). `exhaustive` finds the same by trying everything.
--
-- Of equally cheap assignments the one with fewer conversions is taken, then the first by the order
-- of the candidates, compared at the entry, then layer by layer (where it lives, mixer, mode).
-- Everything is decided by integers (cplab.planner.menu), so that all ranks decide alike.
-- Layers count from 1 in lists, from 0 in words.
-- @module cplab.planner
-- @usage local plan = cplab.planner.plan(prices, { entry = "contiguous" })
--   print(plan.seconds, plan.choices[1].mixer, plan.choices[1].runner_up.seconds)
local costs = require "cplab.cost"
local menus = require "cplab.planner.menu"

local less, move = menus.less, menus.move

local M = {}

local NONE = { ps = math.huge, n = 0 } -- an option that cannot be had

local function best(menu, i, live)
    return menu.options[i][live][1] or NONE
end

-- ---- the two passes ---------------------------------------------------------------

-- arrive[i][l]: the least cost of all that comes before layer i's own work if that is done in l.
local function arrivals(menu, entry)
    local arrive = { ps = {}, n = {} }
    for i = 1, menu.n_layers do
        local ps_here, n_here = {}, {}
        for _, l in ipairs(menu.all) do
            local least, fewest = math.huge, 0
            for _, from in ipairs(i == 1 and { entry } or menu.all) do
                local ps, n = move(menu, i, from, l)
                if i > 1 then
                    local before = best(menu, i - 1, from)
                    ps = ps + arrive.ps[i - 1][from] + before.ps
                    n = n + arrive.n[i - 1][from] + before.n
                end
                if less(ps, n, least, fewest) then least, fewest = ps, n end
            end
            ps_here[l], n_here[l] = least, fewest
        end
        arrive.ps[i], arrive.n[i] = ps_here, n_here
    end
    return arrive
end

-- The cheapest exit after the last layer lived in l: picoseconds, conversions, layout.
local function leave(menu, entry, l)
    local least, fewest, exit = math.huge, 0, nil
    for _, x in ipairs(menu.exits) do
        local ps, n = move(menu, menu.n_layers + 1, l, x)
        ps = ps + menu.ends[entry][x]
        if less(ps, n, least, fewest) then least, fewest, exit = ps, n, x end
    end
    return least, fewest, exit
end

-- depart[i][l]: the least cost of all that comes after layer i's work if that was done in l.
local function departures(menu, entry)
    local depart = { ps = {}, n = {} }
    for i = menu.n_layers, 1, -1 do
        local ps_here, n_here = {}, {}
        for _, l in ipairs(menu.all) do
            if i == menu.n_layers then
                ps_here[l], n_here[l] = leave(menu, entry, l)
            else
                local least, fewest = math.huge, 0
                for _, to in ipairs(menu.all) do
                    local after = best(menu, i + 1, to)
                    local ps, n = move(menu, i + 1, l, to)
                    ps = ps + after.ps + depart.ps[i + 1][to]
                    n = n + after.n + depart.n[i + 1][to]
                    if less(ps, n, least, fewest) then least, fewest = ps, n end
                end
                ps_here[l], n_here[l] = least, fewest
            end
        end
        depart.ps[i], depart.n[i] = ps_here, n_here
    end
    return depart
end

-- Both passes from every entry.
local function passes(menu)
    local list = {}
    for k, entry in ipairs(menu.entries) do
        list[k] = { entry = entry, arrive = arrivals(menu, entry),
            depart = departures(menu, entry) }
    end
    return list
end

-- ---- the cheapest way, and the next ---------------------------------------------------

-- The whole price of the best assignment that takes an option in layer i.
local function whole(pass, i, option)
    local arrive, depart, l = pass.arrive, pass.depart, option.live
    return arrive.ps[i][l] + option.ps + depart.ps[i][l],
        arrive.n[i][l] + option.n + depart.n[i][l]
end

-- The pass of the entry from which all is cheapest.
local function cheapest_pass(menu, list)
    local least, fewest, chosen = math.huge, 0, nil
    for _, pass in ipairs(list) do
        for _, l in ipairs(menu.all) do
            local option = menu.options[1][l][1]
            if option then
                local ps, n = whole(pass, 1, option)
                if less(ps, n, least, fewest) then least, fewest, chosen = ps, n, pass end
            end
        end
    end
    return chosen, least, fewest
end

-- The options of the cheapest way, one a layer, each the first among equals.
local function walk(menu, pass)
    local chosen, at = {}, pass.entry
    for i = 1, menu.n_layers do
        local least, fewest = math.huge, 0
        for _, l in ipairs(menu.all) do
            local option = best(menu, i, l)
            local ps, n = move(menu, i, at, l)
            ps = ps + option.ps + pass.depart.ps[i][l]
            n = n + option.n + pass.depart.n[i][l]
            if less(ps, n, least, fewest) then least, fewest, chosen[i] = ps, n, option end
        end
        at = chosen[i].live
    end
    return chosen
end

-- The best assignment that takes another option in layer i, one that `differs` from the one taken:
-- the option and the price of the whole.
local function runner_up(menu, list, i, taken, differs)
    local least, fewest, other = math.huge, 0, nil
    for _, pass in ipairs(list) do
        for _, l in ipairs(menu.all) do
            for _, option in ipairs(menu.options[i][l]) do
                if differs(option, taken) then
                    local ps, n = whole(pass, i, option)
                    if less(ps, n, least, fewest) then least, fewest, other = ps, n, option end
                    break -- the others that live here are dearer
                end
            end
        end
    end
    return other, least
end

local function is_another(a, b)
    return a ~= b
end

-- Whether the mixer runs elsewhere or otherwise, wherever the layer lives.
local function mixes_otherwise(a, b)
    return a.mixer ~= b.mixer or a.cp_mode ~= b.cp_mode
end

-- ---- results in words --------------------------------------------------------------------

local function in_words(menu, option, ps)
    return { live = menu.names[option.live], mixer = menu.names[option.mixer],
        cp_mode = option.cp_mode, seconds = ps / menus.PS }
end

local function assignment_of(menu, entry, options, exit)
    local layers = {}
    for i, option in ipairs(options) do
        layers[i] = in_words(menu, option, 0)
        layers[i].seconds = nil
    end
    return { name = "auto", entry = menu.names[entry], exit = menu.names[exit], layers = layers }
end

-- What each layer costs (with the conversion that brings the residual stream to it), and what
-- would be the next best.
local function choices_of(menu, list, entry, options)
    local choices, at = {}, entry
    for i, option in ipairs(options) do
        local choice = in_words(menu, option, option.ps + (move(menu, i, at, option.live)))
        local other, ps = runner_up(menu, list, i, option, is_another)
        choice.runner_up = other and in_words(menu, other, ps)
        other, ps = runner_up(menu, list, i, option, mixes_otherwise)
        choice.instead = other and in_words(menu, other, ps)
        choices[i] = choice
        at = option.live
    end
    return choices
end

local function no_way(level)
    error("planner: no assignment of layouts can be had from entry to exit", level + 1)
end

--- The cheapest assignment.
-- @tparam table prices of cplab.cost, or anything with its methods: model, layouts, modes, mixer,
-- rest, convert, ends; seconds, or nil for what cannot be had
-- @tparam ?table options entry, exit (where tokens and embedding, head and loss live; none: chosen
-- too), layouts (candidates, in the order that settles ties; default prices.layouts)
-- @treturn table assignment { name, entry, exit, layers = { { live, mixer, cp_mode }, ... } };
-- seconds, of a step; conversions, of a forward pass; choices, a list of { live, mixer, cp_mode,
-- seconds (of the layer, with the conversions around and before it), runner_up = { live, mixer,
-- cp_mode, seconds (of the whole step that takes this in the layer and the best elsewhere) } or
-- nil where there is none; instead, likewise the best where the mixer runs in another layout or
-- mode (a runner-up may live elsewhere, and else do the same) }
-- @raise unknown options and layouts; prices that are no seconds; a layer that can run nowhere
function M.plan(prices, options)
    local menu = menus.new(prices, options, 2)
    local list = passes(menu)
    local pass, ps, n = cheapest_pass(menu, list)
    if not pass then no_way(2) end
    local chosen = walk(menu, pass)
    local _, _, exit = leave(menu, pass.entry, chosen[menu.n_layers].live)
    return {
        assignment = assignment_of(menu, pass.entry, chosen, exit),
        seconds = ps / menus.PS, conversions = n,
        choices = choices_of(menu, list, pass.entry, chosen),
    }
end

-- The cheapest mode of each layer for every pair of layouts, in the order that settles ties.
local function by_pair(menu)
    local pairs_of = {}
    for i, options in ipairs(menu.options) do
        pairs_of[i] = {}
        for _, live in ipairs(menu.all) do
            local first = {}
            for _, option in ipairs(options[live]) do
                first[option.mixer] = first[option.mixer] or option
            end
            for _, mixer in ipairs(menu.all) do table.insert(pairs_of[i], first[mixer]) end
        end
    end
    return pairs_of
end

--- The cheapest assignment by trying everything: the best mode of each layer for every pair of
-- layouts (live, mixer), then all sequences of pairs from every entry to every exit. It grows like
-- (layouts^2)^layers and is there to prove `plan`.
-- @treturn table assignment, seconds, conversions; as `plan`
function M.exhaustive(prices, options)
    local menu = menus.new(prices, options, 2)
    local tries, n_layers = by_pair(menu), menu.n_layers
    local least, fewest, found = math.huge, 0, nil
    local way, last = {}, {}
    local function arrive(entry, at, ps, n)
        ps, n = ps + last[at].ps, n + last[at].n
        if less(ps, n, least, fewest) then
            least, fewest = ps, n
            found = assignment_of(menu, entry, way, last[at].exit)
        end
    end
    local function try(entry, i, at, ps_so_far, n_so_far)
        for _, option in ipairs(tries[i]) do
            local ps, n = move(menu, i, at, option.live)
            ps, n = ps_so_far + ps + option.ps, n_so_far + n + option.n
            way[i] = option
            if i == n_layers then
                arrive(entry, option.live, ps, n)
            else
                try(entry, i + 1, option.live, ps, n)
            end
        end
    end
    for _, entry in ipairs(menu.entries) do
        for _, l in ipairs(menu.all) do
            last[l] = {}
            last[l].ps, last[l].n, last[l].exit = leave(menu, entry, l)
        end
        try(entry, 1, entry, 0, 0)
    end
    if not found then no_way(2) end
    return { assignment = found, seconds = least / menus.PS, conversions = fewest }
end

-- Why one of an assignment's layouts cannot be had.
local function refusal(prices, assignment)
    if not prices.refusal then return nil end
    local function why_not(name)
        local reason = prices:refusal(name)
        return reason and ("%s: %s"):format(name, reason)
    end
    local reason = why_not(assignment.entry) or why_not(assignment.exit)
    for _, layer in ipairs(assignment.layers) do
        reason = reason or why_not(layer.live) or why_not(layer.mixer)
    end
    return reason
end

--- The price of any assignment, as the planner counts it.
-- @tparam table prices
-- @tparam table assignment entry, exit, layers = { { live, mixer, cp_mode }, ... }
-- @treturn ?number seconds
-- @treturn ?string where it cannot be had: the first reason
function M.price(prices, assignment)
    local sum, at, reason = 0, assignment.entry, refusal(prices, assignment)
    if reason then return nil, reason end
    local function add(seconds, why_not)
        reason = reason or (seconds == nil and (why_not or "no reason given")) or nil
        sum = sum + (seconds or 0)
    end
    local function convert(from, to, place)
        if from ~= to then add(prices:convert(from, to, place)) end
    end
    add(prices:ends(assignment.entry, assignment.exit))
    for i, layer in ipairs(assignment.layers) do
        convert(at, layer.live, "residual")
        add(prices:rest(i, layer.live))
        convert(layer.live, layer.mixer, "there")
        add(prices:mixer(i, layer.mixer, layer.cp_mode))
        convert(layer.mixer, layer.live, "back")
        at = layer.live
    end
    convert(at, assignment.exit, "residual")
    if reason then return nil, reason end
    return sum
end

-- ---- the policy "auto" -------------------------------------------------------------------

--- What the policy "auto" of the prices' model takes: with the ends that its `auto` names.
-- @tparam table prices of cplab.cost
-- @treturn table as of `plan`
function M.auto(prices)
    local auto = prices.model.auto
    return (M.plan(prices, { entry = auto.entry, exit = auto.exit }))
end

--- The same on a stream: the model's `auto` says on which cluster, in which dtype, and from which
-- candidates (cplab.planner.options).
-- @tparam table model
-- @tparam table stream
-- @tparam table group { cp =, tp = }
-- @treturn table plan, as of `plan`
-- @treturn table prices, of cplab.cost
function M.for_model(model, stream, group)
    local auto = model.auto
    local prices = costs.new { cluster = auto.cluster, model = model, stream = stream,
        cp = group.cp, tp = group.tp, dtype = auto.dtype, layouts = auto.layouts }
    return M.auto(prices), prices
end

--- The assignment of the policy "auto" on a stream; the same on every rank that knows the same
-- cluster. Local: no rank is asked.
function M.assign(model, stream, group)
    return (M.for_model(model, stream, group)).assignment
end

return M
