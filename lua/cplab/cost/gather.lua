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

-- keys[i * n + j]: rank i needs so many rows of rank j, which j sends.
local function exact(env, keys, row_bytes)
    local load = env.loads[keys]
    if not load then
        local n = env.cp
        load = exchanges.load(n)
        for i = 0, n - 1 do
            for j = 0, n - 1 do
                exchanges.send(load, env.nodes, j, i, tonumber(keys.keys[i * n + j]))
            end
        end
        env.loads[keys] = load
    end
    return exchanges.price(env.cluster, load, row_bytes)
end

local function zeros(n)
    local list = {}
    for i = 1, n do list[i] = 0 end
    return list
end

-- Rows that a node gets from and gives to other nodes are spread evenly over its ranks; what a rank
-- then needs its neighbours fetched or hold, but for its own part.
local function by_node(env, needed_by_node, needed_by_rank, row_bytes)
    local n, size, n_nodes = env.cp, env.node_size, math.ceil(env.cp / env.node_size)
    local into, out, load = zeros(n_nodes), zeros(n_nodes), exchanges.load(n)
    for node = 0, n_nodes - 1 do
        for j = 0, n - 1 do
            local other = math.floor(j / size)
            local rows = other ~= node and needed_by_node(node, j) or 0
            into[node + 1] = into[node + 1] + rows
            out[other + 1] = out[other + 1] + rows
        end
    end
    for i = 0, n - 1 do
        local node = math.floor(i / size)
        local ranks = math.min(size, n - node * size)
        local mine = load.out[i] -- of both directions the one that has more
        mine.between = math.max(into[node + 1], out[node + 1]) / ranks
        mine.inside = needed_by_rank(i) * (ranks - 1) / ranks
        mine.n_between = mine.between > 0 and n_nodes - 1 or 0
        mine.n_inside = mine.inside > 0 and ranks - 1 or 0
    end
    return exchanges.price(env.cluster, load, row_bytes)
end

local function sum_of_others(row, n, i)
    local sum = 0
    for j = 0, n - 1 do sum = sum + (i ~= j and tonumber(row[j]) or 0) end
    return sum
end

local function node(env, keys, row_bytes)
    local n = env.cp
    return by_node(env, function(at, j) return tonumber(keys.node_keys[at * n + j]) end,
        function(i) return sum_of_others(keys.keys + i * n, n, i) end, row_bytes)
end

local function all(env, rows, row_bytes)
    local sum = 0
    for i = 1, #rows do sum = sum + rows[i] end
    return by_node(env, function(_, j) return rows[j + 1] end,
        function(i) return sum - rows[i + 1] end, row_bytes)
end

--- The exchanges of a gather.
-- @tparam table env of cplab.cost.exchange, and node_size (CP ranks of a node)
-- @tparam table keys of Counts:keys
-- @tparam table rows by CP rank
-- @tparam number row_bytes
-- @treturn table variant -> exchange
function M.variants(env, keys, rows, row_bytes)
    local list = { exact = exact(env, keys, row_bytes) }
    if not env.cluster.cores then
        list.node, list.all = node(env, keys, row_bytes), all(env, rows, row_bytes)
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
