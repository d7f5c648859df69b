--- A plan in words: what was chosen for each run of layers, at which price, and what would have
-- been next; beside it the policies that could have been set by hand.
-- Times are of a whole step, forward and backward, in milliseconds. Layers count from 0.
-- @module cplab.explain
local planner = require "cplab.planner"

local M = {}

local function ms(seconds)
    return ("%.3f ms"):format(seconds * 1e3)
end

-- ---- the parts of a price ----------------------------------------------------------

local function add(parts, name, seconds)
    parts[name] = parts[name] + seconds
    parts.seconds = parts.seconds + seconds
end

-- What is computed, and all else that the work itself takes: exchanges and the host.
local function add_work(parts, seconds, detail)
    local compute = math.min(detail and detail.compute or seconds, seconds)
    add(parts, "compute", compute)
    add(parts, "comm", seconds - compute)
end

local function new_parts()
    return { seconds = 0, compute = 0, comm = 0, convert = 0 }
end

-- How keys come to queries where a mode leaves that open (cplab.cost).
local VARIANTS = { exact = " (exact keys)", node = " (one copy a node)", all = " (all keys)" }

-- The parts of layer i of an assignment, and the variant of its mode in words.
local function parts_of(prices, i, layer)
    local parts = new_parts()
    add_work(parts, prices:rest(i, layer.live))
    local seconds, detail = prices:mixer(i, layer.mixer, layer.cp_mode)
    add_work(parts, seconds, detail)
    if layer.mixer ~= layer.live then
        add(parts, "convert", (prices:convert(layer.live, layer.mixer, "there")))
        add(parts, "convert", (prices:convert(layer.mixer, layer.live, "back")))
    end
    return parts, VARIANTS[detail and detail.variant] or ""
end

local function conversion(prices, from, to)
    local parts = new_parts()
    add(parts, "convert", (prices:convert(from, to, "residual")))
    return parts
end

local function ends(prices, assignment)
    local parts = new_parts()
    add_work(parts, prices:ends(assignment.entry, assignment.exit))
    return parts
end

-- "91/6/3 %": compute, comm, convert.
local function shares(parts)
    local all = math.max(parts.seconds, 1e-300)
    return ("%.0f/%.0f/%.0f %%"):format(100 * parts.compute / all, 100 * parts.comm / all,
        100 * parts.convert / all)
end

-- ---- lines -------------------------------------------------------------------------

-- "p2p in mirror"; where the layer would live elsewhere than it does, that too.
local function choice_text(choice, live)
    local moved = choice.live ~= live
        and (choice.live == choice.mixer and ", living there" or ", living in " .. choice.live)
    return ("%s in %s%s"):format(choice.cp_mode, choice.mixer, moved or "")
end

-- Of what the mixers of a group's layers could do instead the nearest; how near it is also depends
-- on where the layers beside them live.
local function next_text(g, total)
    local nearest, furthest
    for _, choice in ipairs(g.choices) do
        local other = choice.instead
        if other and (not nearest or other.seconds < nearest.seconds) then nearest = other end
        if other and (not furthest or other.seconds > furthest) then furthest = other.seconds end
    end
    if not nearest then return "nothing else is possible" end
    return ("next: %s, %s+%s"):format(choice_text(nearest, g.live),
        furthest > nearest.seconds and "from " or "", ms(nearest.seconds - total))
end

-- "0-2, 4-6": layers from 0 of places from 1. What comes before layer n comes after the last of n.
local function ranges(list)
    local words, i = {}, 1
    while i <= #list do
        local first = list[i]
        while list[i + 1] == list[i] + 1 do i = i + 1 end
        words[#words + 1] = first == list[i] and tostring(first - 1)
            or ("%d-%d"):format(first - 1, list[i] - 1)
        i = i + 1
    end
    local n = #words
    if n > 6 then words = { words[1], words[2], words[3], ("... (%d runs)"):format(n) } end
    return table.concat(words, ", ")
end

-- Things that are priced and shown alike share a line: { cells, parts, places, choices }.
local function collect(groups, cells, parts, place)
    cells[#cells + 1], cells[#cells + 2] = ms(parts.seconds), shares(parts)
    local key = table.concat(cells, "|")
    local g = groups[key]
    if not g then
        g = { cells = cells, parts = parts, places = {}, choices = {} }
        groups[key], groups[#groups + 1] = g, g
    end
    if place then table.insert(g.places, place) end
    return g
end

local function collect_all(prices, plan)
    local groups, a, layers = {}, plan.assignment, prices.model:layers()
    local at = a.entry
    local function go_to(live, place)
        if live ~= at then
            collect(groups, { "residual", live, "from " .. at }, conversion(prices, at, live),
                place)
        end
        at = live
    end
    for i, choice in ipairs(plan.choices) do
        go_to(choice.live, i)
        local parts, variant = parts_of(prices, i, choice)
        local text = choice_text(choice, at) .. variant
        local g = collect(groups, { layers[i].kind:upper(), at, text }, parts, i)
        g.live = at
        table.insert(g.choices, choice)
    end
    go_to(a.exit, #layers + 1)
    collect(groups, { "ends", a.entry == a.exit and a.entry or a.entry .. ", " .. a.exit,
        "embedding, head, loss" }, ends(prices, a), nil)
    return groups
end

local function whole_of(groups)
    local whole = new_parts()
    for _, g in ipairs(groups) do
        for name, seconds in pairs(g.parts) do
            whole[name] = whole[name] + math.max(#g.places, 1) * seconds
        end
    end
    return whole
end

local HEAD = { "layers", "what", "lives in", "runs", "each", "compute/comm/convert", "" }

-- Rows of cells as lines, columns aligned.
local function align(rows)
    local widths, lines = {}, {}
    for _, row in ipairs(rows) do
        for c, cell in ipairs(row) do widths[c] = math.max(widths[c] or 0, #cell) end
    end
    for r, row in ipairs(rows) do
        local cells = {}
        for c, cell in ipairs(row) do
            cells[c] = (c == 5 and ("%%%ds"):format(widths[c]) or ("%%-%ds"):format(widths[c]))
                :format(cell)
        end
        lines[r] = "    " .. table.concat(cells, "  "):gsub("%s+$", "")
    end
    return lines
end

-- The price of each fixed policy beside the plan's, the cheapest first.
local function beside(prices, plan, fixed)
    local list = {}
    for i, assignment in ipairs(fixed) do
        local seconds, why_not = planner.price(prices, assignment)
        list[i] = { name = assignment.name, seconds = seconds, why_not = why_not, order = i }
    end
    table.sort(list, function(a, b)
        local x, y = a.seconds or math.huge, b.seconds or math.huge
        return x < y or (x == y and a.order < b.order)
    end)
    for i, f in ipairs(list) do
        list[i] = f.seconds and ("%s %s (x%.3f)"):format(f.name, ms(f.seconds),
            f.seconds / plan.seconds) or ("%s impossible: %s"):format(f.name, f.why_not)
    end
    return list
end

--- Lines that explain a plan.
-- @tparam table prices that it was made with
-- @tparam table plan of cplab.planner.plan
-- @tparam ?table fixed assignments of other policies, to be priced beside it
-- @tparam ?string where what the prices are of, such as "local"
-- @treturn {string,...}
function M.lines(prices, plan, fixed, where)
    local groups, a, rows = collect_all(prices, plan), plan.assignment, { HEAD }
    for _, g in ipairs(groups) do
        local before = g.cells[1] == "residual" and "before " or ""
        rows[#rows + 1] = { before .. ranges(g.places), unpack(g.cells) }
        table.insert(rows[#rows], g.live and next_text(g, plan.seconds) or "")
    end
    local lines = { ("plan         %s a step%s (%s); tokens in %s, loss in %s"):format(
        ms(plan.seconds), where and " on " .. where or "", shares(whole_of(groups)), a.entry,
        a.exit) }
    for _, line in ipairs(align(rows)) do lines[#lines + 1] = line end
    for i, text in ipairs(beside(prices, plan, fixed or {})) do
        lines[#lines + 1] = (i == 1 and "beside       " or "             ") .. text
    end
    local refused = {}
    for name in pairs(prices.refused or {}) do refused[#refused + 1] = name end
    table.sort(refused)
    for i, name in ipairs(refused) do
        lines[#lines + 1] = ("%s%s: %s"):format(i == 1 and "refused      " or "             ", name,
            prices.refused[name])
    end
    return lines
end

return M
