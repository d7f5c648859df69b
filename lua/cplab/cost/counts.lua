--- Counts: what a stream in its layouts makes ranks hold, see and hand over. Integers only; nothing
-- here knows a cluster or a model. Everything is counted when first asked for, once.
--
-- Arrays are C arrays of int64_t from 0; tonumber() what is read from them. Batches of an unpacked
-- stream count once here; who prices multiplies.
-- @classmod cplab.cost.counts
local clib = require "clib"
local named_layouts = require "cplab.named_layouts"
local C, ffi = clib.C, clib.ffi

local Counts = {}
Counts.__index = Counts

local M = {}

--- A layout over the CP ranks alone.
-- @raise what the stream cannot have
function Counts:layout(name)
    return self.over_cp(name)
end

--- The same over cp * tp ranks: the windows in which the residual stream lives.
function Counts:windows(name)
    return self.over_all(name)
end

local function array(n)
    return ffi.new("int64_t[?]", n)
end

-- Remembers what make(...) gives under a key.
local function once(self, key, make, ...)
    local known = self.known[key]
    if known == nil then
        known = make(self, ...)
        self.known[key] = known
    end
    return known
end

local function overlap(_, from, to)
    local n_from, n_to = from:n_ranks(), to:n_ranks()
    local rows, segments = array(n_from * n_to), array(n_from)
    clib.check(C.cpl_layout_overlap(from._ptr, to._ptr, rows, segments))
    local n_segments = 0
    for i = 0, n_from - 1 do n_segments = math.max(n_segments, tonumber(segments[i])) end
    return { rows = rows, n_from = n_from, n_to = n_to, segments = n_segments }
end

--- How many rows each rank of one layout shares with each of another.
-- @tparam string from
-- @tparam string to
-- @treturn table rows (at i * n_to + j), n_from, n_to, segments (that the rank with most of them
-- gives away)
function Counts:overlap(from, to)
    return once(self, "overlap " .. from .. " " .. to, overlap, self:layout(from),
        self:layout(to))
end

--- The same from the windows of a layout to the shards of one.
function Counts:window_overlap(from, to)
    return once(self, "windows " .. from .. " " .. to, overlap, self:windows(from),
        self:layout(to))
end

--- The same from the windows of a layout to those of another, square.
function Counts:windows_between(from, to)
    return once(self, "windows only " .. from .. " " .. to, overlap, self:windows(from),
        self:windows(to))
end

local function keys(self, layout, window, node_size)
    local n = self.cp
    local n_nodes = math.ceil(n / node_size)
    local t = { pairs = array(n * n), blocks = array(n * n), keys = array(n * n),
        node_keys = array(n_nodes * n), n_nodes = n_nodes }
    local out = ffi.new("cpl_key_traffic", { t.pairs, t.blocks, t.keys, t.node_keys })
    clib.check(C.cpl_layout_key_traffic(layout._ptr, window, node_size, out))
    return t
end

--- Who sees whose keys: the arrays of cpl_key_traffic, and n_nodes.
-- @tparam string name of a layout
-- @tparam number window keys that a query sees; 0: no limit
-- @tparam number node_size CP ranks of a node
function Counts:keys(name, window, node_size)
    return once(self, ("keys %s %d %d"):format(name, window, node_size), keys, self:layout(name),
        window, node_size)
end

local function loads(self, layout, chunk, width)
    local n = self.cp
    local t = { loads = ffi.new("cpl_chain_loads[?]", n), rows = array(n * n), n_from = n,
        n_to = n }
    clib.check(C.cpl_layout_chain_loads(layout._ptr, chunk, width, t.loads, t.rows))
    return t
end

--- What each rank scans: `loads`, an array of cpl_chain_loads; and the halos, as a matrix from who
-- reads (row) to who holds (column): rows, n_from, n_to.
-- @tparam string name of a layout
-- @tparam number chunk
-- @tparam number width rows before each span
function Counts:loads(name, chunk, width)
    return once(self, ("loads %s %d %d"):format(name, chunk, width), loads, self:layout(name),
        chunk, width)
end

local function hops(_, layout)
    local items, n = ffi.new "cpl_hop *[1]", ffi.new "int64_t[1]"
    clib.check(C.cpl_layout_hops(layout._ptr, items, n))
    return { items = ffi.gc(items[0], C.cpl_free), n = tonumber(n[0]) }
end

--- What chains hand over: `items`, an array of n cpl_hop by level.
function Counts:hops(name)
    return once(self, "hops " .. name, hops, self:layout(name))
end

local function rows_of(self, layout)
    local list = {}
    for rank = 0, self.cp - 1 do list[rank + 1] = layout:n_local(rank) end
    return list
end

--- Rows of each CP rank, padding included, as a list.
function Counts:rows(name)
    return once(self, "rows " .. name, rows_of, self:layout(name))
end

--- A text that is equal for layouts in which every rank has as many rows.
function Counts:rows_key(name)
    return once(self, "rows key " .. name, function() return table.concat(self:rows(name), " ") end)
end

local function whole_chunks(self, chunk)
    local sums = { rows = 0, chunks = 0, squares = 0, cubes = 0 }
    local function add(n, rows)
        sums.rows, sums.chunks = sums.rows + n * rows, sums.chunks + n
        sums.squares = sums.squares + n * rows ^ 2
        sums.cubes = sums.cubes + n * rows ^ 3
    end
    for i = 0, self.stream:n_sequences() - 1 do
        local real = self.stream:sequence(i).real
        add(math.floor(real / chunk), chunk)
        add(real % chunk > 0 and 1 or 0, real % chunk)
    end
    return sums
end

--- Real tokens of the stream (rows), the chunks of whole sequences, and the sums of the squares and
-- cubes of their rows.
function Counts:whole(chunk)
    return once(self, "whole " .. chunk, whole_chunks, chunk)
end

--- Counts of a stream over cp * tp ranks.
-- @tparam table t stream, cp, tp, near (the layout that balanced ones stay near: contiguous),
-- balance (their options)
function M.new(t)
    local over_cp = named_layouts.maker(t.stream, { cp = t.cp, tp = 1 }, t.near,
        t.balance)
    return setmetatable({
        stream = t.stream, cp = t.cp, tp = t.tp, known = {}, over_cp = over_cp,
        over_all = t.tp == 1 and over_cp
            or named_layouts.maker(t.stream, { cp = t.cp, tp = t.tp }, t.near, t.balance),
    }, Counts)
end

return M
