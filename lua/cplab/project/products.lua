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

-- The three products of a projection [rows, into] -> [rows, out]; the gradient of the weights adds
-- up, in steps so small that it never grows.
local function triple(kernels, dtype, rows, into, out)
    local new = M.constant
    local x, w, dy = new(dtype, rows, into), new(dtype, into, out), new(dtype, rows, out)
    local y, dx, dw = new(dtype, rows, out), new(dtype, rows, into), new(dtype, into, out)
    local list = {
        ffi.new("cpl_matmul", { a = x.data, b = w.data, c = y.data, m = rows, n = out, k = into,
            lda = into, ldb = out, ldc = out, alpha = 1, beta = 0 }),
        ffi.new("cpl_matmul", { a = dy.data, b = w.data, c = dx.data, m = rows, n = into, k = out,
            lda = out, ldb = out, ldc = into, alpha = 1, beta = 0, transpose_b = true }),
        ffi.new("cpl_matmul", { a = x.data, b = dy.data, c = dw.data, m = into, n = out, k = rows,
            lda = into, ldb = out, ldc = out, alpha = 1e-9, beta = 1, transpose_a = true }),
    }
    local kept = { x, w, dy, y, dx, dw } -- the parameters point into them
    return function()
        assert(kept)
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
    local bytes = 2 * (rows * into + into * out + rows * out) * (dtype == "f64" and 8 or 4)
    return M.rotating(M.copies(bytes), function()
        return triple(kernels, dtype, rows, into, out)
    end), 2 * rows * into * out
end

return M
