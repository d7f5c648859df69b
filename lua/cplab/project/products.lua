--- Products as the projections of layers are, forward and backward: rows times weights, gradients
-- times weights turned, rows turned times gradients. Calls go round over several copies of
-- everything, so that, as in a step, nothing is found in the nearest cache.
-- @module cplab.project.products
local arrays = require "cplab.bench.arrays"
local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local M = {}

-- Bytes that all copies take together.
local SPREAD = 2 ^ 24

--- How many copies of something go round.
-- @tparam number bytes of one
function M.copies(bytes)
    return math.max(1, math.min(64, math.ceil(SPREAD / bytes)))
end

--- An array in which every number is the same: times do not depend on numbers.
function M.constant(dtype, n_rows, width)
    local array = arrays.new(dtype, n_rows, width)
    C.cpl_tensor_fill(array, 0.5)
    return array
end

--- Calls in turn, over copies.
-- @tparam number n how many
-- @tparam function make a call of copy i
-- @treturn function
function M.rotating(n, make)
    local calls, i = {}, 0
    for copy = 1, n do calls[copy] = make(copy) end
    return function()
        i = i % n + 1
        calls[i]()
    end
end

-- The three products of a projection [rows, into] -> [rows, out].
local function triple(kernels, dtype, rows, into, out)
    local x, w = M.constant(dtype, rows, into), M.constant(dtype, into, out)
    local y = M.constant(dtype, rows, out)
    local list = {
        { a = x.data, b = w.data, c = y.data, m = rows, n = out, k = into, lda = into, ldb = out,
            ldc = out },
        { a = y.data, b = w.data, c = x.data, m = rows, n = into, k = out, lda = out, ldb = out,
            ldc = into, transpose_b = true },
        { a = x.data, b = y.data, c = w.data, m = into, n = out, k = rows, lda = into, ldb = out,
            ldc = out, transpose_a = true },
    }
    for i, p in ipairs(list) do
        -- Small enough that numbers which go into the next call never grow.
        p.alpha, p.beta = 1e-4, 0
        list[i] = ffi.new("cpl_matmul", p)
    end
    return function()
        assert(x and w and y) -- the parameters point into them
        for i = 1, 3 do kernels.matmul(list[i]) end
    end
end

--- The products of a projection.
-- @tparam string dtype "f32" or "f64"
-- @tparam number rows
-- @tparam number into
-- @tparam number out
-- @treturn function three products a call
-- @treturn number FLOP of one of them
function M.new(dtype, rows, into, out)
    local kernels = C.cpl_kernels_for("cpu", clib.dtypes[dtype])
    local bytes = (rows * into + into * out + rows * out) * (dtype == "f64" and 8 or 4)
    return M.rotating(M.copies(bytes), function()
        return triple(kernels, dtype, rows, into, out)
    end), 2 * rows * into * out
end

return M
