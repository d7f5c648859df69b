--- The figures of a layout: what it costs to be in it rather than in another.
-- A function of the class Layout (see cplab.layout), which gains `figures` and `report` by it.
-- @module cplab.figures
local args = require "cplab.check_args"

local NODE_SIZE = 8

-- ---- counting -----------------------------------------------------------------

-- For every sequence, in order of offset: where a rank begins to hold it, and how many ranks
-- hold some of it up to there.
local function holders(layout)
    local list = {}
    for rank = 0, layout:n_ranks() - 1 do
        for _, span in ipairs(layout:spans(rank, true)) do
            list[span.sequence] = list[span.sequence] or {}
            table.insert(list[span.sequence], { offset = span.offset, rank = rank })
        end
    end
    for _, spans in pairs(list) do
        table.sort(spans, function(a, b) return a.offset < b.offset end)
        local seen, n = {}, 0
        for _, span in ipairs(spans) do
            n = n + (seen[span.rank] and 0 or 1)
            seen[span.rank], span.n_ranks = true, n
        end
    end
    return list
end

-- How many ranks hold the keys of a span of queries.
local function n_holders(spans, last)
    local n = 0
    for _, span in ipairs(spans) do
        if span.offset > last then break end
        n = span.n_ranks
    end
    return n
end

local function count_runs(layout, near)
    local runs, most, tiles, held = 0, 0, 0, holders(near)
    for rank = 0, layout:n_ranks() - 1 do
        local n = #layout:runs(rank)
        runs, most = runs + n, math.max(most, n)
        for _, span in ipairs(layout:spans(rank, true)) do
            tiles = tiles + n_holders(held[span.sequence], span.offset + span.length - 1)
        end
    end
    return runs, most, tiles
end

-- Rows that come from other ranks: all, the most on one rank, and those that `crosses` says.
local function count_received(route, crosses)
    local sum, most, crossing = 0, 0, 0
    for rank = 0, route:n_ranks() - 1 do
        local _, rows = route:split_sizes(rank)
        local here = 0
        for peer, n in ipairs(rows) do
            here = here + (peer - 1 ~= rank and n or 0)
            crossing = crossing + (crosses and crosses(peer - 1, rank) and n or 0)
        end
        sum, most = sum + here, math.max(most, here)
    end
    return sum, most, crossing
end

-- Whether two ranks lie on different nodes; the C options of cplab.h say how ranks lie on nodes.
local function node_test(layout, options)
    local size, tp = options.node_size or NODE_SIZE, layout:tp()
    local n_nodes = math.ceil(layout:n_ranks() / size)
    local function node(rank)
        if options.placement == "striped" then return math.floor(rank / tp) % n_nodes end
        return math.floor(rank / size)
    end
    return function(a, b) return node(a) ~= node(b) end
end

local FIELDS = { near = "any?", node_size = "integer?", placement = "string?" }

-- The layout that it is compared with, and how ranks lie on nodes: as given, or as it was made.
local function settle(layouts, layout, options, level)
    options = args.fields("layout.figures", options or {}, FIELDS, level + 1)
    local made, settled = layout._options, {}
    for name in pairs(FIELDS) do
        settled[name] = options[name]
        if settled[name] == nil then settled[name] = made[name] end
    end
    if settled.near ~= nil and not layouts.is(settled.near) then
        error(("layout.figures: near must be a layout (got %s)"):format(args.show(settled.near)),
            level + 1)
    end
    settled.near = settled.near or layouts.contiguous(layout:stream(), {
        cp = layout:cp(), tp = layout:tp(), group_order = made.group_order,
    })
    return settled
end

-- ---- text ----------------------------------------------------------------------

local function percent(part, whole)
    return ("%d of %d (%.1f %%)"):format(part, whole, whole > 0 and 100 * part / whole or 0)
end

local function lines_of(layout, near, f)
    local n, ranks = layout:stream():n_positions(), layout:n_ranks()
    local bound = near:moved_bound(math.max(0, f.imbalance - 1))
    return {
        tostring(layout),
        ("imbalance      %.4f of attention work; %s has %.4f"):format(f.imbalance, near.kind,
            near:imbalance()),
        ("moved rows     %s; at this imbalance no layout moves fewer than %d"):format(
            percent(f.moved_tokens, n), math.ceil(bound)),
        ("busiest rank   %s rows; %d of all rows change node"):format(
            percent(f.busiest_tokens, math.ceil(n / ranks)), f.cross_tokens),
        ("runs           %.1f per rank, %d at most"):format(f.runs / ranks, f.runs_max),
        ("tiles          %.1f per rank: spans of queries x ranks of %s with their keys"):format(
            f.tiles / ranks, near.kind),
        ("K/V to gather  %.0f rows per rank, %d at most"):format(f.gathered_tokens / ranks,
            f.gathered_max),
    }
end

--- Gives the class of layouts its figures.
-- @tparam table Layout the class
-- @tparam table layouts the module cplab.layout
return function(Layout, layouts)
    local function count(self, settled)
        local route, view = require "cplab.route", require "cplab.view"
        local conversion = route(settled.near, self)
        local stats = conversion:stats()
        local runs, runs_max, tiles = count_runs(self, settled.near)
        local gathered, gathered_max = count_received(route(self, view.keys(self)))
        local _, _, cross = count_received(conversion, node_test(self, settled))
        return {
            imbalance = self:imbalance(), moved_tokens = stats.moved_tokens,
            busiest_tokens = stats.busiest_tokens, cross_tokens = cross, messages = stats.messages,
            runs = runs, runs_max = runs_max, tiles = tiles, gathered_tokens = gathered,
            gathered_max = gathered_max,
        }
    end

    --- What it costs, as numbers; sums are over all ranks.
    -- @tparam ?table options near (the layout to convert from; default what a balanced layout was
    -- made from, else contiguous), node_size (8), placement ("plain", "striped")
    -- @treturn table imbalance, moved_tokens, busiest_tokens (the largest of out or in), messages,
    -- cross_tokens (moved to another node), runs, runs_max (of one rank), tiles (spans of real
    -- queries x ranks of `near` that hold their keys), gathered_tokens (keys and values that come
    -- from other ranks, a row each), gathered_max (of one rank)
    function Layout:figures(options)
        return count(self, settle(layouts, self, options, 2))
    end

    --- What it costs, as lines of text, with a lower bound of what any layout must move.
    -- @tparam ?table options as in `figures`
    -- @treturn string
    function Layout:report(options)
        local settled = settle(layouts, self, options, 2)
        return table.concat(lines_of(self, settled.near, count(self, settled)), "\n")
    end
end
