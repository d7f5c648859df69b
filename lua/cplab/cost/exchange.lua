--- Exchanges: from rows between pairs of ranks to the seconds of the busiest one.
-- A matrix is { rows =, n_from =, n_to = }: rows[i * n_to + j] go from rank i to rank j. Ranks are
-- CP ranks; with tensor parallelism all tp ranks of one do the same side by side, and those of CP
-- rank c lie on node floor(c * tp / ranks_per_node). What stays on its rank crosses no link.
--
-- A load is what each rank's links carry, in units of bytes or of rows: C arrays by rank, from 0.
-- An exchange is a load priced: { seconds =, busy =, bytes =, messages =, total_bytes =,
-- total_messages = }: C arrays by rank of seconds and of the larger of out and in, and the sums of
-- what all ranks send.
-- @module cplab.cost.exchange
local clib = require "clib"
local ffi = clib.ffi

local M = {}

ffi.cdef [[
typedef struct cplab_link_load {
    double inside, between;      /* within and between nodes */
    double n_inside, n_between;  /* messages */
} cplab_link_load;
]]

-- ---- loads ----------------------------------------------------------------------

--- An empty load of n ranks.
function M.load(n)
    return { n = n, out = ffi.new("cplab_link_load[?]", n),
        into = ffi.new("cplab_link_load[?]", n) }
end

--- Empties a load.
function M.clear(load)
    local bytes = load.n * ffi.sizeof "cplab_link_load"
    ffi.fill(load.out, bytes)
    ffi.fill(load.into, bytes)
    return load
end

local function add(side, is_inside, amount)
    if is_inside then
        side.inside, side.n_inside = side.inside + amount, side.n_inside + 1
    else
        side.between, side.n_between = side.between + amount, side.n_between + 1
    end
end

--- Adds one message between two ranks; to itself it is none.
-- @tparam table load
-- @tparam table nodes rank, from 0, -> node
function M.send(load, nodes, from, to, amount)
    if from == to or amount == 0 then return end
    local is_inside = nodes[from] == nodes[to]
    add(load.out[from], is_inside, amount)
    add(load.into[to], is_inside, amount)
end

--- The load of a square matrix, in rows. Made once for each matrix and division into nodes.
-- @tparam table env cluster, cp, tp, nodes
-- @tparam table matrix
function M.of_matrix(env, matrix)
    local known = env.loads[matrix]
    if known then return known end
    local n, rows, nodes = matrix.n_to, matrix.rows, env.nodes
    local load = M.load(n)
    for i = 0, n - 1 do
        for j = 0, n - 1 do M.send(load, nodes, i, j, tonumber(rows[i * n + j])) end
    end
    env.loads[matrix] = load
    return load
end

-- The load of a matrix of cp * tp ranks; `column` says which one holds what goes to rank j.
local function of_group(env, matrix, column)
    local n, rows = env.cp * env.tp, matrix.rows
    local load, nodes = M.load(n), {}
    for i = 0, n - 1 do nodes[i] = math.floor(i / env.cluster.ranks_per_node) end
    for i = 0, n - 1 do
        for j = 0, n - 1 do
            M.send(load, nodes, i, j, tonumber(rows[i * matrix.n_to + column(j)]))
        end
    end
    return load
end

--- Every rank gives each other rank of its group of `size` a slice of each of its rows; in rows.
-- @tparam table env
-- @tparam table rows by CP rank, from 1
-- @tparam number size
function M.of_slices(env, rows, size)
    local n = #rows
    local load = M.load(n)
    for i = 0, n - 1 do
        local first = i - i % size
        for j = first, math.min(first + size, n) - 1 do
            M.send(load, env.nodes, i, j, rows[i + 1])
        end
    end
    return load
end

-- ---- prices ---------------------------------------------------------------------

--- An exchange to fill again and again: what `price` returns, for n ranks.
function M.exchange(n)
    return { n = n, busy = ffi.new("double[?]", n), bytes = ffi.new("double[?]", n),
        messages = ffi.new("double[?]", n), total_bytes = 0, total_messages = 0 }
end

local function seconds(cluster, side, unit)
    return cluster:exchange(side.inside * unit, side.n_inside, side.between * unit,
        side.n_between)
end

--- The price of a load. Links are full duplex: of a rank's two directions the longer one counts.
-- @tparam table cluster
-- @tparam table load
-- @tparam number unit bytes of one unit of the load
-- @tparam ?table x an exchange to fill; else a new one
function M.price(cluster, load, unit, x)
    local n = load.n
    local bytes, messages = 0, 0
    x = x or M.exchange(n)
    for i = 0, n - 1 do
        local out, into = load.out[i], load.into[i]
        bytes = bytes + out.inside + out.between
        messages = messages + out.n_inside + out.n_between
        x.busy[i] = math.max(seconds(cluster, out, unit), seconds(cluster, into, unit))
        x.bytes[i] = unit * math.max(out.inside + out.between, into.inside + into.between)
        x.messages[i] = math.max(out.n_inside + out.n_between, into.n_inside + into.n_between)
    end
    x.seconds = cluster:slowest(x.busy, n)
    x.total_bytes, x.total_messages = bytes * unit, messages
    return x
end

--- An exchange between CP ranks.
function M.between(env, matrix, row_bytes)
    return M.price(env.cluster, M.of_matrix(env, matrix), row_bytes)
end

-- Group ranks as CP ranks: of the tp ranks of one the one that has most.
local function folded(env, x)
    local out = M.exchange(env.cp)
    for _, name in ipairs { "busy", "bytes", "messages" } do
        for i = 0, x.n - 1 do
            local c = math.floor(i / env.tp)
            out[name][c] = math.max(out[name][c], x[name][i])
        end
    end
    out.seconds = x.seconds
    out.total_bytes, out.total_messages = x.total_bytes, x.total_messages
    return out
end

--- An exchange from the windows of cp * tp ranks to the shards of CP ranks, each of whose tp ranks
-- gets all rows.
function M.to_shards(env, matrix, row_bytes)
    local load = of_group(env, matrix, function(j) return math.floor(j / env.tp) end)
    return folded(env, M.price(env.cluster, load, row_bytes))
end

--- An exchange from windows to windows.
function M.to_windows(env, matrix, row_bytes)
    local load = of_group(env, matrix, function(j) return j end)
    return folded(env, M.price(env.cluster, load, row_bytes))
end

--- An exchange of equal slices.
function M.slices(env, rows, size, slice_bytes)
    return M.price(env.cluster, M.of_slices(env, rows, size), slice_bytes)
end

-- ---- what happens beside the links -------------------------------------------------

--- Adds the packing of an exchange of equal slices to a pass: one side reads and writes its rows.
-- @tparam table pass
-- @tparam table rows by CP rank, from 1
-- @tparam number size
-- @tparam number slice_bytes of a row
function M.pack_slices(pass, rows, size, slice_bytes)
    local list = {}
    for i = 1, #rows do list[i] = pass.cluster:move(2 * rows[i] * size * slice_bytes, 1) end
    pass:work(list)
end

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

--- Seconds by rank, from 1, of packing, unpacking and keeping rows: none where rows are swapped in
-- place.
-- @tparam table env
-- @tparam table matrix square
-- @tparam number row_bytes
-- @treturn table
-- @treturn boolean whether rows are swapped
function M.packing(env, matrix, row_bytes)
    local load, list, n = M.of_matrix(env, matrix), {}, matrix.n_from
    local is_swap = M.swaps(matrix)
    for i = 0, n - 1 do
        local out, into = load.out[i], load.into[i]
        local moved = (out.inside + out.between + into.inside + into.between) / 2
        local kept = tonumber(matrix.rows[i * n + i])
        local bytes = (env.cluster.memory.pack * moved + 2 * kept) * row_bytes
        list[i + 1] = is_swap and 0 or env.cluster:move(bytes, 2)
    end
    return list, is_swap
end

return M
