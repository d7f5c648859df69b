--- Rows for specs of exchanges: each element holds a number that only its position and column
-- have, so a wrong move is visible, and comparison is equality of bits. Runs on rank threads.
local clib = require "clib"
local layouts = require "cplab.layout"
local streams = require "cplab.stream"
local views = require "cplab.view"

local C, ffi = clib.C, clib.ffi

local M = {}

local bits = { f64 = "uint64_t", f32 = "uint32_t", bf16 = "uint16_t", i64 = "uint64_t",
    i32 = "uint32_t" }

local Tensor = {}
Tensor.__index = Tensor

--- A tensor of n_rows rows of `width` elements, with what the Lua face of an exchange needs; in
-- the memory of `comm`, or in the heap's. Where rows are on a device all are in the rank's memory
-- there, and the host has a picture of them.
function M.tensor(dtype, n_rows, width, comm)
    local shape = ffi.new("int64_t[2]", n_rows, width)
    local memory = comm and comm._ptr or M.device_memory()
    local ptr = clib.create("cpl_tensor", C.cpl_tensor_destroy, 2, C.cpl_tensor_create,
        clib.dtypes[dtype], 2, shape, memory)
    local bytes = tonumber(C.cpl_tensor_bytes(ptr))
    return setmetatable({
        _ptr = ptr, dtype = dtype, n_rows = n_rows, width = width, bytes = bytes,
        picture = ffi.new("uint64_t[?]", math.ceil(bytes / 8) + 1),
    }, Tensor)
end

--- The rank's comm where its memory is on a device, else nil: the heap's.
function M.device_memory()
    local memory = require("cplab.tensor").memory()
    if memory == nil then return nil end
    local name = ffi.string(C.cpl_comm_transport(memory))
    return (name ~= "local" and name ~= "mpi" and name ~= "self") and memory or nil
end

--- The elements as they are now, as unsigned integers of their bits; a picture.
function Tensor:look()
    clib.check(C.cpl_tensor_download(self._ptr, self.picture), 2)
    return ffi.cast(bits[self.dtype] .. " *", self.picture)
end

--- Makes the tensor what the picture is.
function Tensor:show()
    clib.check(C.cpl_tensor_upload(self._ptr, self.picture), 2)
    return self
end

--- The trace as it is now: n_rows positions (a picture), or nil.
function Tensor:trace()
    if self._ptr.trace == nil then return nil end
    local trace = ffi.new("int64_t[?]", self.n_rows + 1)
    clib.check(C.cpl_tensor_get_trace(self._ptr, trace), 2)
    return trace
end

--- The bits of column `column` of the row of a position; fill (-1) is 0.
local function bits_at(position, width, column)
    return position < 0 and 0 or position * width + column + 1
end

--- Fills the rows with those of `positions` (a Lua list, -1 for fill).
function Tensor:fill_positions(positions)
    local row = ffi.cast(bits[self.dtype] .. " *", self.picture)
    for slot = 0, self.n_rows - 1 do
        for column = 0, self.width - 1 do
            row[slot * self.width + column] = bits_at(positions[slot + 1], self.width, column)
        end
    end
    return self:show()
end

--- The first slot whose row is not that of its position, or nil.
function Tensor:first_wrong(positions)
    local limit = self.dtype == "bf16" and 65536 or 2 ^ 53
    local row = self:look()
    for slot = 0, self.n_rows - 1 do
        for column = 0, self.width - 1 do
            local expected = bits_at(positions[slot + 1], self.width, column) % limit
            if row[slot * self.width + column] ~= expected then
                return slot
            end
        end
    end
end

--- The first slot whose trace is not its position, or nil; without a trace slot 0 is wrong.
function Tensor:first_untraced(positions)
    local trace = self:trace()
    for slot = 0, self.n_rows - 1 do
        if trace == nil or trace[slot] ~= positions[slot + 1] then
            return slot
        end
    end
end

--- Sets every bit, so that a row that nothing was written to is no row of any position.
function Tensor:poison()
    ffi.fill(self.picture, self.bytes, 0xee)
    return self:show()
end

--- All elements as Lua numbers.
function Tensor:values()
    local list = {}
    self:look()
    for i = 0, self.n_rows * self.width - 1 do
        list[i + 1] = C.cpl_dtype_load(self._ptr.dtype, self.picture, i)
    end
    return list
end

--- Sets element i (from 0) to f(i).
function Tensor:set(f)
    for i = 0, self.n_rows * self.width - 1 do
        C.cpl_dtype_store(self._ptr.dtype, self.picture, i, f(i))
    end
    return self:show()
end

--- Its bytes as a string.
function Tensor:contents()
    self:look()
    return ffi.string(self.picture, self.bytes)
end

function Tensor:mark(layout, rank, traced)
    clib.check(C.cpl_tensor_mark(self._ptr, layout._ptr, rank, traced), 2)
    return self
end

--- Rows of 2 integers that rank, seed and place determine.
function M.draw(rank, n_rows, seed)
    return M.tensor("i64", n_rows, 2):set(function(i)
        return (i * 7919 + rank * 104729 + seed) % 2003 - 1001
    end)
end

--- Collective. The dot product of two tensors over all ranks; exact for small integers.
function M.dot(comm, a, b)
    local sum, bs = 0, b:values()
    for i, value in ipairs(a:values()) do
        sum = sum + value * bs[i]
    end
    return comm:sum({ sum })[1]
end

--- The positions of a view's rows, -1 for fill.
function M.view_positions(view, rank)
    local list = {}
    for _, run in ipairs(view:runs(rank)) do
        for i = 0, run[2] - 1 do
            list[#list + 1] = run[1] < 0 and -1 or run[1] + i
        end
    end
    return list
end

function M.positions(thing, rank)
    return views.is(thing) and M.view_positions(thing, rank) or thing:positions(rank)
end

-- Runs of 1 to 5 positions dealt to ranks by lot; with `fair` all ranks get as many positions.
local function deal(stream, cp, tp, seed, fair)
    local key = C.cpl_random_key(seed, "deal")
    local ranks, order, n = {}, {}, cp * tp
    for rank = 1, n do
        ranks[rank] = {}
    end
    local start, draw = 0, 0
    local function random(limit)
        draw = draw + 1
        return math.floor(C.cpl_random_uniform(key, draw) * limit)
    end
    while start < stream:n_positions() do
        local length = fair and 1 or math.min(1 + random(5), stream:n_positions() - start)
        order[#order + 1] = { start, length }
        start = start + length
    end
    for i = #order, 2, -1 do
        local j = random(i) + 1
        order[i], order[j] = order[j], order[i]
    end
    for i, run in ipairs(order) do
        local runs = ranks[fair and (i - 1) % n + 1 or random(n) + 1]
        runs[#runs + 1] = run
    end
    return layouts.custom(stream, { tp = tp, ranks = ranks })
end

--- The layouts of the specs by name. "random" and "fair" are custom ones; fair: equal counts.
function M.layout(name, stream, cp, tp)
    tp = tp or 1
    if name == "random" or name == "other random" then
        return deal(stream, cp, tp, name == "random" and 1 or 2, false)
    elseif name == "fair" then
        return deal(stream, cp, tp, 3, true)
    elseif name == "striped" then
        return layouts.striped(stream, { cp = cp, tp = tp, block = 2 })
    elseif name == "balanced" then
        return layouts.balanced(stream, { cp = cp, tp = tp, block = 1, tolerance = 0.1 })
    end
    return layouts[name](stream, { cp = cp, tp = tp })
end

M.names = { "contiguous", "zigzag", "mirror", "random", "fair" }

--- One name for each kind of layout.
M.kinds = { "contiguous", "zigzag", "mirror", "snake", "striped", "random", "balanced" }

--- The streams of the specs by name; every length is a multiple of 2 * cp * tp.
function M.stream(name, cp, tp)
    local unit = 2 * cp * (tp or 1)
    if name == "sbhd" then
        return streams.sbhd { seqlen = 6 * unit, batch = 2 }
    elseif name == "empty" then
        return streams.thd { lengths = { 0, 0 } }
    end
    return streams.thd {
        lengths = { 0, 2 * unit, unit, 0, 3 * unit, 0 },
        real = { 0, 2 * unit - 1, 1, 0, 3 * unit - 3, 0 },
    }
end

--- The views of the specs by name.
function M.view(name, layout)
    if name == "halo" then
        return views.halo(layout, 3)
    elseif name == "shift" then
        return views.shift(layout, 1)
    elseif name == "shift back" then
        return views.shift(layout, -2)
    elseif name == "window" then
        return views.keys(layout, { window = 5 })
    end
    return views[name](layout)
end

M.view_names = { "halo", "keys", "shift", "shift back", "whole", "window" }

return M
