--- Gathers: how attention brings keys to its queries before it begins, in three variants.
--   exact        every rank gets exactly the keys that its queries see, its own copy of each
--   node         one copy of each key that some rank of a node sees, over all of its links, then on
--                to the ranks that see it
--   all          the same for all keys: a plain all-gather
-- On one machine (cores) exact is what runs; elsewhere the cheapest is taken. Backward sends the
-- gradients of keys the same ways home, where they are added up.
-- @module cplab.cost.gather
local exchanges = require "cplab.cost.exchange"

local M = {}

-- A load of `about` (counts of keys, or rows), made once.
local function once(env, about, name, make)
    local known = env.loads[about] or {}
    env.loads[about] = known
    known[name] = known[name] or make()
    return known[name]
end

-- keys[i * n + j]: rank i needs so many rows of rank j, which j sends.
local function exact(env, keys)
    local n = env.cp
    local load = exchanges.load(n)
    for i = 0, n - 1 do
        for j = 0, n - 1 do
            exchanges.send(load, env.nodes, j, i, tonumber(keys.keys[i * n + j]))
        end
    end
    return load
end

local function zeros(n)
    local list = {}
    for i = 0, n - 1 do list[i] = 0 end
    return list
end

-- Sums over the rows that ranks need of others: by rank, from its node (near) and from elsewhere
-- (far), and what its neighbours need of it; by node, the far ones of all of its ranks.
local function sums_of(env, needed)
    local n, size = env.cp, env.node_size
    local s = { near = zeros(n), far = zeros(n), given = zeros(n), far_of_node = zeros(n) }
    for i = 0, n - 1 do
        local node = math.floor(i / size)
        for j = 0, n - 1 do
            local rows = i ~= j and needed(i, j) or 0
            if math.floor(j / size) == node then
                s.near[i], s.given[j] = s.near[i] + rows, s.given[j] + rows
            else
                s.far[i], s.far_of_node[node] = s.far[i] + rows, s.far_of_node[node] + rows
            end
        end
    end
    return s
end

local function add_side(side, between, inside, n_nodes, ranks)
    side.between, side.inside = between, inside
    side.n_between = between > 0 and n_nodes - 1 or 0
    side.n_inside = inside > 0 and ranks - 1 or 0
end

-- Rows that a node gets from and gives to other nodes are spread evenly over its ranks, each of
-- which hands what it fetched on to those that need it; rows of the node itself come from their
-- rank.
local function by_node(env, needed_by_node, needed)
    local n, size, n_nodes = env.cp, env.node_size, math.ceil(env.cp / env.node_size)
    local into, out, load = zeros(n_nodes), zeros(n_nodes), exchanges.load(n)
    for node = 0, n_nodes - 1 do
        for j = 0, n - 1 do
            local other = math.floor(j / size)
            local rows = other ~= node and needed_by_node(node, j) or 0
            into[node] = into[node] + rows
            out[other] = out[other] + rows
        end
    end
    local s = sums_of(env, needed)
    for i = 0, n - 1 do
        local node = math.floor(i / size)
        local ranks = math.min(size, n - node * size)
        local handed_on = (s.far_of_node[node] - s.far[i]) / ranks
        add_side(load.into[i], into[node] / ranks, s.near[i] + s.far[i] * (ranks - 1) / ranks,
            n_nodes, ranks)
        add_side(load.out[i], out[node] / ranks, s.given[i] + handed_on, n_nodes, ranks)
    end
    return load
end

local function node(env, keys)
    local n = env.cp
    return by_node(env, function(at, j) return tonumber(keys.node_keys[at * n + j]) end,
        function(i, j) return tonumber(keys.keys[i * n + j]) end)
end

local function all(env, rows)
    local function of_rank(_, j) return rows[j + 1] end
    return by_node(env, of_rank, of_rank)
end

--- The exchanges of a gather.
-- @tparam table env of cplab.cost.exchange, and node_size (CP ranks of a node)
-- @tparam table keys of Counts:keys
-- @tparam table rows by CP rank
-- @tparam number row_bytes
-- @treturn table variant -> exchange
function M.variants(env, keys, rows, row_bytes)
    local list = {}
    local function add(name, about, make)
        local load = once(env, about, name, function() return make(env, about) end)
        list[name] = exchanges.price(env.cluster, load, row_bytes)
    end
    add("exact", keys, exact)
    if not env.cluster.cores then
        add("node", keys, node)
        add("all", rows, all)
    end
    return list
end

local ORDER = { "exact", "node", "all" }

--- The cheapest variant; of equal ones the first.
-- @treturn string its name
-- @treturn table its exchange
function M.cheapest(variants)
    local best
    for _, name in ipairs(ORDER) do
        if variants[name] and (not best or variants[name].seconds < variants[best].seconds) then
            best = name
        end
    end
    return best, variants[best]
end

return M
