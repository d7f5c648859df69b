--- What this machine can do at all: its own product of two square matrices, of the dtype that is
-- measured, on one thread of the host or on a device. It is warm, and runs beside what is held
-- against it.
-- @module cplab.bench.gemm
local arrays = require "cplab.bench.arrays"
local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local M = {}

--- @tparam integer n rows and columns
-- @tparam string dtype
-- @param comm `cpl_comm *` on whose device; nil: on the host
-- @treturn table run (a function), flops (of a run)
function M.new(n, dtype, comm)
    local function drawn(name)
        local array = arrays.draw(arrays.new(clib.wide_dtype(dtype), n, n), name, -1, 1)
        return comm and arrays.there(array, dtype, comm) or array
    end
    local a, b, c = drawn "gemm.a", drawn "gemm.b", arrays.new(dtype, n, n, comm)
    local kernels = comm and C.cpl_comm_kernels(comm, clib.dtypes[dtype])
        or C.cpl_kernels_for("cpu", clib.dtypes[dtype])
    local self = { flops = 2 * n ^ 3, a = a, b = b, c = c }
    self.p = ffi.new("cpl_matmul", {
        a = a.data, b = b.data, c = c.data, m = n, n = n, k = n, lda = n, ldb = n, ldc = n,
        alpha = 1, beta = 0,
    })
    self.run = function() kernels.matmul(self.p) end -- and keeps the arrays
    return self
end

return M
