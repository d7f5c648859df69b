--- Parity: how far a step on many ranks is from the same step on one.
-- Per tensor the larger of |X-R|/|R| (norms of the whole tensor) and (largest row error) /
-- (largest row norm); R = 0 demands X = 0; NaN stays NaN and fails every bound. The second
-- norm is there because one permuted row hides in a ratio of norms at large T.
-- References are kept in the store of the process, in global order, under a key.
-- @module cplab.parity
local clib = require "clib"
local rows = require "cplab.rows"
local C, ffi = clib.C, clib.ffi

local M = {}

local function put(key, tensor)
    clib.check(C.cpl_store_put(key, tensor.data, C.cpl_tensor_bytes(tensor)))
end

-- A reference has the dtype of what it is compared with, but that of bf16 was computed in f32.
local function dtype_of_reference(tensor)
    return tensor.dtype == C.CPL_BF16 and C.CPL_F32 or tensor.dtype
end

local function get(key, like)
    local box = clib.box "size_t"
    local data = C.cpl_store_get(key, box)
    if data == nil then
        error("parity: no reference for " .. key)
    end
    local width = C.cpl_tensor_width(like)
    local dtype = dtype_of_reference(like)
    local bytes = width * C.cpl_dtype_bytes(dtype)
    local n_rows = bytes == 0 and 0 or box[0] / bytes
    local shape = ffi.new("int64_t[2]", n_rows, width)
    return clib.create("cpl_tensor", C.cpl_tensor_destroy, 1, C.cpl_tensor_wrap,
        ffi.cast("void *", data), dtype, 2, shape)
end

--- Keeps the tensors of a step on one rank (contiguous, so in global order) as references.
-- @tparam string key
-- @tparam {table,...} list { name =, tensor = }
function M.capture(key, list)
    for _, entry in ipairs(list) do
        put(key .. "/" .. entry.name, entry.tensor)
    end
end

local function difference(tensor, reference, positions)
    local out = ffi.new "cpl_difference"
    clib.check(C.cpl_tensor_difference(rows.at_home(tensor), reference, positions, out))
    return out
end

--- The parity of one sum of differences.
function M.ratio(d)
    local function quotient(x, r)
        if r == 0 then
            return x == 0 and 0 or (x ~= x and x or math.huge)
        end
        return x / r
    end
    local whole = quotient(math.sqrt(d.difference2), math.sqrt(d.reference2))
    local row = quotient(d.worst_row, d.largest_row)
    if whole ~= whole or row ~= row then
        return 0 / 0
    end
    return math.max(whole, row)
end

local function worst(list, differences)
    local value, where = 0, nil
    for i, entry in ipairs(list) do
        local ratio = M.ratio(differences[i])
        if ratio ~= ratio or ratio > value or where == nil then
            value, where = ratio, entry.name
        end
        if ratio ~= ratio then
            break
        end
    end
    return value, where
end

--- Tensors that are the same on all ranks: parameters' gradients.
-- @treturn number the worst parity
-- @treturn string whose it is
function M.compare_same(key, list)
    local differences = {}
    for i, entry in ipairs(list) do
        differences[i] = difference(entry.tensor, get(key .. "/" .. entry.name, entry.tensor))
    end
    return worst(list, differences)
end

-- Collective. The worst of what all ranks found, one difference for each name.
local function over_ranks(comm, list, found)
    local n = #list
    local sums, maxima = ffi.new("double[?]", 2 * n), ffi.new("double[?]", 2 * n)
    for i, d in ipairs(found) do
        sums[2 * i - 2], sums[2 * i - 1] = d.difference2, d.reference2
        maxima[2 * i - 2], maxima[2 * i - 1] = d.worst_row, d.largest_row
    end
    clib.check(C.cpl_comm_sum(comm, sums, 2 * n, C.CPL_F64))
    clib.check(C.cpl_comm_max(comm, maxima, 2 * n))
    local differences = {}
    for i = 1, n do
        differences[i] = {
            difference2 = sums[2 * i - 2], reference2 = sums[2 * i - 1],
            worst_row = maxima[2 * i - 2], largest_row = maxima[2 * i - 1],
        }
    end
    return worst(list, differences)
end

-- A function: the positions that a rank holds in a layout, made once.
local function reader(rank)
    local made = {}
    return function(layout)
        if not made[layout] then
            made[layout] = ffi.new("int64_t[?]", math.max(layout:n_local(rank), 1))
            clib.check(C.cpl_layout_positions(layout._ptr, rank, made[layout]))
        end
        return made[layout]
    end
end

--- Collective. Tensors of which each rank holds rows.
-- @param comm a `cpl_comm *`
-- @tparam string key
-- @tparam {table,...} list { name =, tensor =, layout = whose rows they are }
-- @tparam ?table layout that of entries which name none
-- @tparam number rank
function M.compare_rows(comm, key, list, layout, rank)
    local found, positions_in = {}, reader(rank)
    for i, entry in ipairs(list) do
        found[i] = difference(entry.tensor, get(key .. "/" .. entry.name, entry.tensor),
            positions_in(entry.layout or layout))
    end
    return over_ranks(comm, list, found)
end

-- Rows slot .. slot + length - 1 of a tensor as a tensor.
local function part(tensor, slot, length)
    local width = tonumber(C.cpl_tensor_width(tensor))
    local bytes = width * tonumber(C.cpl_dtype_bytes(tensor.dtype))
    local shape = ffi.new("int64_t[2]", length, width)
    return clib.create("cpl_tensor", C.cpl_tensor_destroy, 1, C.cpl_tensor_wrap,
        ffi.cast("char *", tensor.data) + slot * bytes, tensor.dtype, 2, shape)
end

--- Some rows of tensors, for those who compare a tensor bit by bit, over many steps.
-- @tparam table sums empty at first; what was found is added
-- @tparam {table,...} list { name =, tensor =, layout = }, the same names each time
-- @tparam function spans_in of a layout: { slot =, length =, row = }, ...: rows from slot on are
-- the reference's from row on
function M.add_rows(sums, key, list, spans_in)
    for i, entry in ipairs(list) do
        local tensor = rows.at_home(entry.tensor)
        local sum = sums[i] or { name = entry.name, difference2 = 0, reference2 = 0, worst_row = 0,
            largest_row = 0 }
        local reference = get(key .. "/" .. entry.name, entry.tensor)
        for _, span in ipairs(spans_in(entry.layout)) do
            local indices = ffi.new("int64_t[?]", span.length)
            for j = 0, span.length - 1 do indices[j] = span.row + j end
            local d = difference(part(tensor, span.slot, span.length), reference, indices)
            sum.difference2 = sum.difference2 + d.difference2
            sum.reference2 = sum.reference2 + d.reference2
            -- a NaN stays in the sums
            sum.worst_row = math.max(sum.worst_row, d.worst_row)
            sum.largest_row = math.max(sum.largest_row, d.largest_row)
        end
        sums[i] = sum
    end
end

--- Collective. The worst parity of what all ranks added, and whose it is; 0 where nothing was.
function M.total(comm, sums)
    if #sums == 0 then return 0 end
    return over_ranks(comm, sums, sums)
end

--- The larger of two parities with their names; NaN wins.
function M.larger(a, where_a, b, where_b)
    if a ~= a or (b == b and a >= b) then
        return a, where_a
    end
    return b, where_b
end

return M
