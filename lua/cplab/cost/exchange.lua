--- Exchanges: from rows between pairs of ranks to the seconds of the busiest one.
-- A matrix is { rows =, n_from =, n_to = }: rows[i * n_to + j] go from rank i to rank j. Ranks are
-- CP ranks; with tensor parallelism all tp ranks of one do the same side by side, and those of CP
-- rank c lie on node floor(c * tp / ranks_per_node). What stays on its rank crosses no link.
-- @module cplab.cost.exchange
local M = {}

-- Bytes and messages of one direction by rank, inside and between nodes.
local function new_side(n)
    local side = { inside = {}, between = {}, n_inside = {}, n_between = {} }
    for _, list in pairs(side) do
        for i = 1, n do list[i] = 0 end
    end
    return side
end

local function add(side, i, is_inside, bytes)
    if is_inside then
        side.inside[i], side.n_inside[i] = side.inside[i] + bytes, side.n_inside[i] + 1
    else
        side.between[i], side.n_between[i] = side.between[i] + bytes, side.n_between[i] + 1
    end
end

local function seconds(cluster, side, i)
    return cluster:exchange(side.inside[i], side.n_inside[i], side.between[i], side.n_between[i])
end

-- Links are full duplex: of a rank's two directions the longer one counts.
local function finish(cluster, out, into, n)
    local x = { bytes = {}, messages = {}, busy = {} }
    for i = 1, n do
        x.busy[i] = math.max(seconds(cluster, out, i), seconds(cluster, into, i))
        x.bytes[i] = math.max(out.inside[i] + out.between[i], into.inside[i] + into.between[i])
        x.messages[i] = math.max(out.n_inside[i] + out.n_between[i],
            into.n_inside[i] + into.n_between[i])
    end
    x.seconds = cluster:slowest(x.busy)
    return x
end

--- An exchange between CP ranks.
-- @tparam table env cluster, cp, tp, nodes (CP rank, from 0, -> node)
-- @tparam table matrix
-- @tparam number row_bytes
-- @treturn table seconds; by rank, from 1: busy (seconds), bytes and messages (the larger of out
-- and in)
function M.between(env, matrix, row_bytes)
    local n, rows, nodes = matrix.n_to, matrix.rows, env.nodes
    local out, into = new_side(n), new_side(n)
    for i = 0, n - 1 do
        local node = nodes[i]
        for j = 0, n - 1 do
            local count = i ~= j and tonumber(rows[i * n + j]) or 0
            if count > 0 then
                local is_inside = nodes[j] == node
                add(out, i + 1, is_inside, count * row_bytes)
                add(into, j + 1, is_inside, count * row_bytes)
            end
        end
    end
    return finish(env.cluster, out, into, n)
end

-- Of the tp ranks of a CP rank the one that has most.
local function fold(x, cp, tp)
    for _, name in ipairs { "busy", "bytes", "messages" } do
        local folded = {}
        for i = 1, cp * tp do
            local c = math.ceil(i / tp)
            folded[c] = math.max(folded[c] or 0, x[name][i])
        end
        x[name] = folded
    end
    return x
end

--- An exchange from the windows of cp * tp ranks to the shards of CP ranks, each of whose tp ranks
-- gets all rows.
function M.to_shards(env, matrix, row_bytes)
    local cp, tp, rows = matrix.n_to, env.tp, matrix.rows
    local n = cp * tp
    local out, into = new_side(n), new_side(n)
    local per_node = env.cluster.ranks_per_node
    for i = 0, n - 1 do
        local node = math.floor(i / per_node)
        for j = 0, n - 1 do
            local count = i ~= j and tonumber(rows[i * cp + math.floor(j / tp)]) or 0
            if count > 0 then
                local is_inside = math.floor(j / per_node) == node
                add(out, i + 1, is_inside, count * row_bytes)
                add(into, j + 1, is_inside, count * row_bytes)
            end
        end
    end
    return fold(finish(env.cluster, out, into, n), cp, tp)
end

--- An exchange given as a list of messages { from, to, bytes }, ranks from 0.
function M.of_messages(env, messages)
    local n = env.cp
    local out, into = new_side(n), new_side(n)
    for _, m in ipairs(messages) do
        local from, to, bytes = m[1], m[2], m[3]
        if from ~= to then
            local is_inside = env.nodes[from] == env.nodes[to]
            add(out, from + 1, is_inside, bytes)
            add(into, to + 1, is_inside, bytes)
        end
    end
    return finish(env.cluster, out, into, n)
end

--- An exchange given by what each rank's two levels carry, in the direction that has more: lists by
-- rank, from 1, of bytes and messages.
function M.of_lists(env, inside, n_inside, between, n_between)
    local side = { inside = inside, between = between, n_inside = n_inside,
        n_between = n_between }
    return finish(env.cluster, side, side, #inside)
end

--- Every rank gives each other rank of its group of `size` an equal slice of its rows.
-- @tparam table env
-- @tparam table rows by CP rank, from 1
-- @tparam number size
-- @tparam number slice_bytes of a row
function M.slices(env, rows, size, slice_bytes)
    local n = #rows
    local out, into = new_side(n), new_side(n)
    for i = 0, n - 1 do
        local first = i - i % size
        for j = first, math.min(first + size, n) - 1 do
            if i ~= j and rows[i + 1] > 0 then
                local is_inside = env.nodes[i] == env.nodes[j]
                add(out, i + 1, is_inside, rows[i + 1] * slice_bytes)
                add(into, j + 1, is_inside, rows[i + 1] * slice_bytes)
            end
        end
    end
    return finish(env.cluster, out, into, n)
end

-- ---- what happens beside the links -------------------------------------------------

--- Whether a square matrix only swaps equally many rows between pairs of ranks: such a conversion
-- works in place, and rows that stay are not touched (mirror and contiguous).
function M.swaps(matrix)
    local n, rows = matrix.n_from, matrix.rows
    for i = 0, n - 1 do
        local partner
        for j = 0, n - 1 do
            local count = rows[i * n + j]
            if i ~= j and count > 0 then
                if partner or rows[j * n + i] ~= count then return false end
                partner = j
            end
        end
    end
    return true
end

--- Seconds by rank of packing, unpacking and keeping rows: none where rows are swapped in place.
-- @tparam table env
-- @tparam table matrix square
-- @tparam number row_bytes
function M.packing(env, matrix, row_bytes)
    local n, rows, list = matrix.n_from, matrix.rows, {}
    local is_swap = M.swaps(matrix)
    for i = 0, n - 1 do
        local moved, kept = 0, tonumber(rows[i * n + i])
        for j = 0, n - 1 do
            if i ~= j then moved = moved + tonumber(rows[i * n + j] + rows[j * n + i]) / 2 end
        end
        local bytes = (env.cluster.memory.pack * moved + 2 * kept) * row_bytes
        list[i + 1] = is_swap and 0 or env.cluster:move(bytes, 2)
    end
    return list, is_swap
end

return M
