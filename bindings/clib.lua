--- The one place that declares and loads the C library.
-- Under the host program its symbols are already there; under a plain LuaJIT
-- the library is loaded from CPLAB_BUILD (the folder of the build).
-- @module clib
local blame = require "blame"
local ffi = require "ffi"

ffi.cdef(require "cplab_cdef")

local M = { ffi = ffi }

local function load_library()
    if pcall(function() return ffi.C.cpl_version end) then
        return ffi.C
    end
    local build = os.getenv "CPLAB_BUILD"
    return ffi.load(build and build .. "/bin/libcplab.so" or "cplab")
end

--- The namespace of the C library.
M.C = load_library()
local C = M.C

--- Raises the thread's last error at the caller's line unless the status is OK; from there on at
-- the innermost line that is not ours.
-- @param status a cpl_status
-- @tparam ?number level as in error(): 1 is the function that calls check
function M.check(status, level)
    if status ~= C.CPL_OK then
        error(ffi.string(C.cpl_last_error()), blame((level or 1) + 1))
    end
end

local boxes = {}

--- A reusable out-parameter box of one C type, `T[1]`; its first element is cleared.
-- @tparam string ctype for example "int64_t" or "cpl_layout *"
function M.box(ctype)
    local box = boxes[ctype]
    if not box then
        box = ffi.new(ctype .. "[1]")
        boxes[ctype] = box
    end
    return box
end

--- Calls a creating function f(..., out) and returns the object, to be destroyed
-- by the collector.
function M.create(ctype, destroy, level, f, ...)
    local box = ffi.new(ctype .. " *[1]")
    local n = select("#", ...)
    local arguments = { ... }
    arguments[n + 1] = box
    M.check(f(unpack(arguments, 1, n + 1)), level + 1)
    return ffi.gc(box[0], destroy)
end

--- The dtype of what kernels.h calls WIDE, beside numbers of a dtype.
function M.wide_dtype(dtype)
    return dtype == "bf16" and "f32" or dtype
end

M.dtypes = { f64 = C.CPL_F64, f32 = C.CPL_F32, bf16 = C.CPL_BF16, i64 = C.CPL_I64, i32 = C.CPL_I32 }

return M
