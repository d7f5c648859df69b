--- Moulds: memory of a device in which a stack after the other is made, for other sequences each
-- time, so that one graph serves their steps; and rehearsals, which say whether it does. See
-- cpl_mould and cpl_rehearsal in cplab.h.
-- @classmod cplab.mould
local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local Mould = {}
Mould.__index = Mould

local M = {}

--- Local. A mould, or nil where there are none: on the cpu, and by NCCL.
-- @param comm `cpl_comm *`
-- @treturn ?Mould
function M.new(comm)
    local out = ffi.new "cpl_mould *[1]"
    if C.cpl_mould_create(comm, out) == C.CPL_UNSUPPORTED then return nil end
    assert(out[0] ~= nil, "out of memory")
    return setmetatable({ comm = comm, _ptr = ffi.gc(out[0], C.cpl_mould_destroy) }, Mould)
end

local function while_open(self, anew, f, ...)
    C.cpl_mould_open(self._ptr, anew)
    local result = { pcall(f, ...) }
    C.cpl_mould_close(self._ptr)
    if not result[1] then error(result[2], 0) end
    return unpack(result, 2, table.maxn(result))
end

--- What f makes takes the memory of the mould, from the beginning: what was made before is gone.
function Mould:fill(f, ...)
    return while_open(self, true, f, ...)
end

--- Collective as f is. Walks through f, in which no device is told anything; what it takes for the
-- first time it takes from the mould.
-- @treturn a `cpl_rehearsal`
function Mould:rehearse(f)
    local rehearsal = ffi.new "cpl_rehearsal"
    clib.check(C.cpl_rehearsal_begin(self.comm, rehearsal))
    local worked, message = pcall(while_open, self, false, f)
    local status = C.cpl_rehearsal_end(self.comm, rehearsal)
    if not worked then error(message, 0) end
    clib.check(status)
    return rehearsal
end

return M
