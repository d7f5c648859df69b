--- A CUDA device as a spec needs it: memory, the kernels of kernels/cuda.h, and waiting. Here it is
-- the emulated one: the kernels' sources as the host's compiler made functions of them, in a
-- library that only specs open.
-- @module spec.support.cuda_device
local ffi = require "ffi"

ffi.cdef [[
int cudaMalloc(void **out, size_t bytes);
int cudaFree(void *memory);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaDeviceSynchronize(void);
typedef struct cpli_sums {
    cpl_cuda_sum *sums;
    cpl_cuda_source *sources;
    int64_t *tile_ends;
    int64_t n_sums, n_sources;
} cpli_sums;
int cpli_sums_create(const cpl_cuda_piece *pieces, int64_t n, cpli_sums *out);
void cpli_sums_destroy(cpli_sums *sums);
int cpl_emulation_set(const char *name, const char *value);
const char *cpl_emulation_why(void);
]]

local M = {}

local Device = {}
Device.__index = Device

local to_device, to_host = 1, 2 -- cudaMemcpyKind

--- Opens the library of the emulated kernels.
-- @tparam string name "plain" or "checked": whether a checker looks at every access
-- @treturn[1] table a device
-- @treturn[2] nil
-- @treturn[2] string why there is none
function M.open(name)
    local build = package.searchpath("cplab_cdef", package.path):match "^(.*)/lua/"
    local path = ("%s/bin/libcuda_kernels_%s.so"):format(build, name)
    local loaded, lib = pcall(ffi.load, path)
    if not loaded then return nil, lib end
    return setmetatable({ lib = lib, blocks = {} }, Device)
end

--- Raises what the device has to say unless an error code is 0.
function Device:check(code, level)
    if code ~= 0 then
        error(("CUDA error %d: %s"):format(code, ffi.string(self.lib.cpl_emulation_why())),
            (level or 1) + 1)
    end
end

--- Device memory of that many bytes, as `uint8_t *`; freed by free_all.
function Device:alloc(bytes)
    local out = ffi.new "void *[1]"
    self:check(self.lib.cudaMalloc(out, math.max(bytes, 1)), 2)
    self.blocks[#self.blocks + 1] = out[0]
    return ffi.cast("uint8_t *", out[0])
end

--- Device memory with the contents of an array of the host.
function Device:upload(array, bytes)
    local memory = self:alloc(bytes)
    self:write(memory, array, bytes)
    return memory
end

function Device:write(memory, array, bytes)
    if bytes > 0 then self:check(self.lib.cudaMemcpy(memory, array, bytes, to_device), 2) end
end

--- Waits, and returns the bytes as an array of the host.
function Device:download(memory, bytes, ctype)
    local array = ffi.new(ctype or "uint8_t[?]", bytes / (ctype and ffi.sizeof(ctype, 1) or 1))
    self:check(self.lib.cudaDeviceSynchronize(), 2)
    if bytes > 0 then self:check(self.lib.cudaMemcpy(array, memory, bytes, to_host), 2) end
    return array
end

function Device:set(name, value)
    if self.lib.cpl_emulation_set(name, value) ~= 0 then
        error(("the emulator has no %s %s"):format(name, value), 2)
    end
end

function Device:free_all()
    for _, block in ipairs(self.blocks) do self:check(self.lib.cudaFree(block)) end
    self.blocks = {}
end

return M
