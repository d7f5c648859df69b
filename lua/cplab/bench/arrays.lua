--- Arrays that a kernel reads and writes: drawn, poisoned, compared. They are the host's, or lie on
-- the device of a group, where the host only sees copies of them.
-- @module cplab.bench.arrays
local clib = require "clib"
local parity = require "cplab.parity"
local rows = require "cplab.rows"

local C, ffi = clib.C, clib.ffi

local M = {}

local POINTERS = { [tonumber(C.CPL_F64)] = "double *", [tonumber(C.CPL_F32)] = "float *" }

--- A zeroed array [n_rows, width].
-- @tparam string dtype
-- @tparam integer n_rows
-- @tparam integer width
-- @param comm `cpl_comm *` whose memory it is; nil: the host's
function M.new(dtype, n_rows, width, comm)
    return rows.new(comm, dtype, n_rows, width)
end

--- A typed pointer to the first number. It does not keep the array alive.
-- @raise the array is on a device
function M.pointer(array)
    if rows.is_away(array) then error("arrays.pointer: the array is on a device", 2) end
    return ffi.cast(POINTERS[tonumber(array.dtype)], array.data)
end

local function n_elements(array)
    return tonumber(C.cpl_tensor_n_elements(array))
end

-- A copy of an array of the host in another dtype.
local function cast(array, dtype)
    local n, width = n_elements(array), tonumber(C.cpl_tensor_width(array))
    local copy = M.new(dtype, n / width, width)
    for i = 0, n - 1 do
        C.cpl_dtype_store(copy.dtype, copy.data, i, C.cpl_dtype_load(array.dtype, array.data, i))
    end
    return copy
end

--- What an array holds now, as one that the host reads: itself, or of a device a copy; bf16 as f32.
function M.here(array)
    local here = rows.at_home(array)
    return here.dtype == C.CPL_BF16 and cast(here, "f32") or here
end

local function release(array)
    C.cpl_tensor_destroy(ffi.gc(array, nil))
end

--- The numbers of an array of the host on the device of a group, rounded to a dtype. The array is
-- gone then, so that no more of them are held than there must be.
function M.there(array, dtype, comm)
    local rounded, width = cast(array, dtype), tonumber(C.cpl_tensor_width(array))
    local there = M.new(dtype, n_elements(array) / width, width, comm)
    clib.check(C.cpl_tensor_upload(there, rounded.data))
    release(array)
    release(rounded)
    return there
end

--- Uniform numbers in (low, high) that depend on the name and the place alone.
function M.draw(array, name, low, high)
    local key, data = C.cpl_random_key(0, name), M.pointer(array)
    for i = 0, n_elements(array) - 1 do
        data[i] = low + (high - low) * C.cpl_random_uniform(key, i)
    end
    return array
end

--- Every number becomes NaN, so that what a kernel does not write is seen.
function M.poison(array)
    C.cpl_tensor_fill(array, 0 / 0)
end

local function copy_rows(from, to, first, n_rows, width, at, stride)
    for row = 0, n_rows - 1 do
        for j = 0, width - 1 do
            to[row * width + j] = from[(first + row) * stride + at + j]
        end
    end
end

--- Columns `at` .. `at + width - 1` of some rows, in double.
-- @param array
-- @tparam ?integer first row; 0
-- @tparam ?integer n_rows; all
-- @tparam ?integer at; 0
-- @tparam ?integer width; all
function M.in_double(array, first, n_rows, at, width)
    array = M.here(array)
    local stride = tonumber(C.cpl_tensor_width(array))
    first, at, width = first or 0, at or 0, width or stride
    n_rows = n_rows or n_elements(array) / stride
    local copy = M.new("f64", n_rows, width)
    copy_rows(M.pointer(array), M.pointer(copy), first, n_rows, width, at, stride)
    return copy
end

--- How far an array is from what it must be: the larger of the ratio of norms and the worst row
-- over the largest row, as in cplab.parity.
-- @param array
-- @param expected in double, as many rows as `array` or as `list`
-- @tparam ?{integer,...} list the rows of `array` that `expected` has
function M.error(array, expected, list)
    local found = M.here(array)
    if list then
        local all, width = found, tonumber(C.cpl_tensor_width(array))
        found = M.new("f64", #list, width)
        for i, row in ipairs(list) do
            copy_rows(M.pointer(all), M.pointer(found) + (i - 1) * width, row, 1, width, 0, width)
        end
    end
    local out = ffi.new "cpl_difference"
    clib.check(C.cpl_tensor_difference(found, expected, nil, out))
    return parity.ratio(out)
end

--- The worst of a list of { name =, error = }; NaN is worse than any number.
-- @treturn number
-- @treturn string whose it is
function M.worst(list)
    local error, name = 0, nil
    for _, entry in ipairs(list) do
        error, name = parity.larger(error, name, entry.error, entry.name)
    end
    return error, name or list[1].name
end

return M
