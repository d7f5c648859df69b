--- All assignments of a schedule, priced one by one: the oracle of the planner's specs. Shares
-- nothing with the planner but the rule that prices are whole picoseconds.
local M = {}

local TAKES_ANY = { a2a = true, headwise = true }

local function ps(seconds)
    return seconds and math.floor(seconds * 1e12 + 0.5) or math.huge
end

-- Everything that a layer may do: { live, mixer, cp_mode, ps, n } by number of the candidate.
local function ways_of(prices, i)
    local ways, names = {}, prices.layouts
    for live, live_name in ipairs(names) do
        for mixer, name in ipairs(names) do
            for order, mode in ipairs(prices:modes(i)) do
                local away = mixer ~= live
                if not (away and TAKES_ANY[mode]) then
                    local sum = ps(prices:rest(i, live_name)) + ps(prices:mixer(i, name, mode))
                    if away then
                        sum = sum + ps(prices:convert(live_name, name))
                            + ps(prices:convert(name, live_name))
                    end
                    ways[#ways + 1] = { live = live, mixer = mixer, order = order, cp_mode = mode,
                        ps = sum, n = away and 2 or 0 }
                end
            end
        end
    end
    return ways
end

-- Whether a list of numbers comes before another.
local function before(a, b)
    for i = 1, #a do
        if a[i] ~= b[i] then return a[i] < b[i] end
    end
    return false
end

local function moves_of(prices)
    local moves = {}
    for a, from in ipairs(prices.layouts) do
        moves[a] = {}
        for b, to in ipairs(prices.layouts) do
            moves[a][b] = a == b and 0 or ps(prices:convert(from, to))
        end
    end
    return moves
end

--- Visits every assignment from an entry to an exit (numbers of candidates) that can be had, with
-- its price, conversions and the ways that the layers go.
function M.each(prices, entry, exit, visit)
    local ways, moves, way = {}, moves_of(prices), {}
    local n_layers, n_scheduled = #prices.model:layers(), prices.model.schedule:count()
    for i = 1, n_layers do ways[i] = ways_of(prices, i) end
    local function go(i, at, sum, n)
        if sum == math.huge then return end
        if i > n_layers then
            visit(sum + moves[at][exit], n + (at == exit and 0 or 1), way)
            return
        end
        for _, w in ipairs(ways[i]) do
            if i <= n_scheduled or w.live == exit then
                way[i] = w
                go(i + 1, w.live, sum + moves[at][w.live] + w.ps,
                    n + w.n + (at == w.live and 0 or 1))
            end
        end
    end
    go(1, entry, ps(prices:ends(prices.layouts[entry], prices.layouts[exit])), 0)
end

-- What a way is compared by between equally cheap ones.
local function numbers(entry, way, exit)
    local list = { entry }
    for _, w in ipairs(way) do
        list[#list + 1], list[#list + 2], list[#list + 3] = w.live, w.mixer, w.order
    end
    list[#list + 1] = exit
    return list
end

local function words(names, entry, way, exit)
    local layers = {}
    for i, w in ipairs(way) do
        layers[i] = { live = names[w.live], mixer = names[w.mixer], cp_mode = w.cp_mode }
    end
    return { name = "auto", entry = names[entry], exit = names[exit], layers = layers }
end

local function is_less(sum, n, best)
    return sum < best.ps or (sum == best.ps and n < best.n)
end

-- The least price of the whole for every choice of every layer.
local function note_choices(choices, sum, n, way)
    for i, w in ipairs(way) do
        local key = w.live .. " " .. w.mixer .. " " .. w.order
        choices[i] = choices[i] or {}
        local c = choices[i][key]
        if not c or is_less(sum, n, c) then choices[i][key] = { ps = sum, n = n } end
    end
end

local function candidates(names, name)
    local list = {}
    for l, known in ipairs(names) do
        if name == nil or known == name then list[#list + 1] = l end
    end
    return list
end

--- The best of all: { assignment, ps, n, choices }, choices[i] = least ps of the whole by
-- "live mixer mode" in numbers, if wanted; nil where nothing can be had.
function M.best(prices, options, with_choices)
    local names, best, choices = prices.layouts, { ps = math.huge, n = 0 }, {}
    for _, entry in ipairs(candidates(names, options.entry)) do
        for _, exit in ipairs(candidates(names, options.exit)) do
            M.each(prices, entry, exit, function(sum, n, way)
                if sum == math.huge then return end
                if with_choices then note_choices(choices, sum, n, way) end
                if best.assignment and not is_less(sum, n, best)
                    and (sum ~= best.ps or n ~= best.n) then
                    return
                end
                local key = numbers(entry, way, exit)
                if not best.assignment or is_less(sum, n, best) or before(key, best.key) then
                    best = { ps = sum, n = n, key = key,
                        assignment = words(names, entry, way, exit) }
                end
            end)
        end
    end
    best.choices = choices
    return best.assignment and best
end

-- Of what a layer may do while it lives in a layout the least price: { ps, n } by layout.
local function least_by_home(prices, i)
    local least = {}
    for _, w in ipairs(ways_of(prices, i)) do
        if not least[w.live] or is_less(w.ps, w.n, least[w.live]) then least[w.live] = w end
    end
    return least
end

--- The least price of all sequences of homes, and its conversions: what mixers do is their own
-- business once it is known where they live, so each layer takes its best and only homes are tried.
-- @treturn number ps (infinite where nothing can be had)
-- @treturn number conversions
function M.best_homes(prices, options)
    local names, moves, by_home = prices.layouts, moves_of(prices), {}
    local n_layers, all = #prices.model:layers(), candidates(names, nil)
    for i = 1, n_layers do by_home[i] = least_by_home(prices, i) end
    local best_ps, best_n = math.huge, 0
    for _, exit in ipairs(candidates(names, options.exit)) do
        local function go(i, at, sum, n)
            if i > n_layers then
                sum, n = sum + moves[at][exit], n + (at == exit and 0 or 1)
                if sum < best_ps or (sum == best_ps and n < best_n) then
                    best_ps, best_n = sum, n
                end
                return
            end
            for l = 1, #all do
                local w = by_home[i][l]
                if w then
                    go(i + 1, l, sum + moves[at][l] + w.ps, n + w.n + (at == l and 0 or 1))
                end
            end
        end
        for _, entry in ipairs(candidates(names, options.entry)) do
            go(1, entry, ps(prices:ends(names[entry], names[exit])), 0)
        end
    end
    return best_ps, best_n
end

return M
