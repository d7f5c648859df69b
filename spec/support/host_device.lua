--- The host's fast kernels as spec.support.cuda_compute wants a device: memory, and the ops of
-- kernels/ops.h under the names that those of CUDA have.
-- @module spec.support.host_device
local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local Device = { orders = { "the only one" }, is_emulated = false, is_checked = false }
Device.__index = Device

local function kernels(dtype)
    local found = C.cpl_kernels_for("cpu", dtype)
    assert(found ~= nil, ffi.string(C.cpl_last_error()))
    return found
end

-- The launchers: cpl_cuda_<op> and cpl_cuda_<op>_workspace.
local lib = setmetatable({}, { __index = function(_, name)
    local entry = name:match "^cpl_cuda_(.*)$"
    return function(p, dtype)
        local result = kernels(dtype)[entry](p)
        return entry:match "_workspace$" and result or 0
    end
end })

function Device:check(code) -- luacheck: no self
    assert(code == 0)
end

function Device:alloc(bytes)
    local block = ffi.new("double[?]", math.ceil(math.max(bytes, 1) / 8) + 8)
    self.blocks[#self.blocks + 1] = block
    return ffi.cast("uint8_t *", math.ceil(tonumber(ffi.cast("uintptr_t", block)) / 64) * 64)
end

function Device:write(memory, array, bytes) -- luacheck: no self
    ffi.copy(memory, array, bytes)
end

function Device:upload(array, bytes)
    local memory = self:alloc(bytes)
    ffi.copy(memory, array, bytes)
    return memory
end

function Device:download(memory, bytes, ctype) -- luacheck: no self
    local array = ffi.new(ctype or "uint8_t[?]", bytes / (ctype and ffi.sizeof(ctype, 1) or 1))
    ffi.copy(array, memory, bytes)
    return array
end

function Device:free_all()
    self.blocks = {}
end

--- A device for f64 and f32; workspaces lie on multiples of 64 bytes, as layers have them.
return function()
    return setmetatable({ lib = lib, blocks = {} }, Device)
end
