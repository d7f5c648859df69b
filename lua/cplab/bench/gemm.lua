--- What this machine can do at all: its own product of two square matrices, on one thread, of the
-- dtype that is measured. It is warm, and runs beside what is held against it.
-- @module cplab.bench.gemm
local arrays = require "cplab.bench.arrays"
local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local M = {}

--- @tparam integer n rows and columns
-- @tparam string dtype "f32" or "f64"
-- @treturn table run (a function), flops (of a run)
function M.new(n, dtype)
    local a = arrays.draw(arrays.new(dtype, n, n), "gemm.a", -1, 1)
    local b = arrays.draw(arrays.new(dtype, n, n), "gemm.b", -1, 1)
    local c = arrays.new(dtype, n, n)
    local kernels = C.cpl_kernels_for("cpu", clib.dtypes[dtype])
    local self = { flops = 2 * n ^ 3, a = a, b = b, c = c }
    self.p = ffi.new("cpl_matmul", {
        a = a.data, b = b.data, c = c.data, m = n, n = n, k = n, lda = n, ldb = n, ldc = n,
        alpha = 1, beta = 0,
    })
    self.run = function() kernels.matmul(self.p) end -- and keeps the arrays
    return self
end

return M
