--- A CUDA device as a spec needs it: memory, the kernels of kernels/cuda.h, and waiting. It is an
-- emulated one (the kernels' sources as the host's compiler made functions of them), or a real one
-- where there is a GPU; both in libraries that only specs open.
-- @module spec.support.cuda_device
local ffi = require "ffi"
local lfs = require "lfs"

ffi.cdef [[
int cudaMalloc(void **out, size_t bytes);
int cudaFree(void *memory);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaDeviceSynchronize(void);
int cudaGetDeviceCount(int *out);
const char *cudaGetErrorString(int code);
typedef struct cpli_sums {
    cpl_cuda_sum *sums;
    cpl_cuda_source *sources;
    int64_t *tile_ends;
    int64_t n_sums, n_sources;
} cpli_sums;
int cpli_sums_create(const cpl_cuda_piece *pieces, int64_t n, cpli_sums *out);
void cpli_sums_destroy(cpli_sums *sums);
int cudaStreamCreate(cpl_cuda_stream *out);
int cudaStreamDestroy(cpl_cuda_stream stream);
int cudaStreamBeginCapture(cpl_cuda_stream stream, int mode);
int cudaStreamEndCapture(cpl_cuda_stream stream, void **graph);
int cudaGraphInstantiate(void **out, void *graph, unsigned long long flags);
int cudaGraphLaunch(void *executable, cpl_cuda_stream stream);
int cudaGraphExecDestroy(void *executable);
int cudaGraphDestroy(void *graph);
int cpl_emulation_set(const char *name, const char *value);
const char *cpl_emulation_why(void);
void cpl_emulation_forgive(void);
]]

local M = {}

local Device = {}
Device.__index = Device

local to_device, to_host = 1, 2 -- cudaMemcpyKind

local libraries = {
    plain = "the headers of CUDA and a C++ compiler",
    checked = "the headers of CUDA, a C++ compiler, and no sanitizer",
    device = "nvcc",
}

--- Opens a library of the kernels.
-- @tparam string name "plain" or "checked": emulated, with a checker that looks at every access or
--   without; "device": on a GPU
-- @treturn[1] table a device; `orders` are those of threads and blocks that it can be set to
-- @treturn[2] nil
-- @treturn[2] string why there is none
function M.open(name)
    local build = package.searchpath("cplab_cdef", package.path):match "^(.*)/lua/"
    local path = ("%s/bin/libcuda_kernels_%s.so"):format(build, name)
    if not lfs.attributes(path) then
        return nil, ("this build has no kernels of the kind %s: that needs %s"):format(name,
            libraries[name])
    end
    local is_emulated = name ~= "device"
    local orders = is_emulated and { "forward", "reverse", "random:7" } or { "as it comes" }
    local self = setmetatable({ lib = ffi.load(path), blocks = {}, is_emulated = is_emulated,
        is_checked = name == "checked", orders = orders }, Device)
    local n = ffi.new("int[1]", 0)
    local code = self.lib.cudaGetDeviceCount(n)
    if code ~= 0 then return nil, "no GPU: " .. self:text(code) end
    return self
end

--- What the device says of an error code.
function Device:text(code)
    local lib = self.lib
    local why = self.is_emulated and lib.cpl_emulation_why() or lib.cudaGetErrorString(code)
    return ffi.string(why)
end

--- Raises what the device has to say unless an error code is 0.
function Device:check(code, level)
    if code ~= 0 then
        error(("CUDA error %d: %s"):format(code, self:text(code)), (level or 1) + 1)
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

--- Carries out what is expected to fail, forgives it, and returns what the emulator says of it.
function Device:fault_of(launch)
    self.lib.cpl_emulation_set("quiet", "1")
    launch()
    assert(self.lib.cudaDeviceSynchronize() ~= 0, "no kernel has failed")
    local why = ffi.string(self.lib.cpl_emulation_why())
    self.lib.cpl_emulation_forgive()
    self.lib.cpl_emulation_set("quiet", "0")
    return why
end

local thread_local = 1 -- cudaStreamCaptureModeThreadLocal

--- A graph of what launch(stream) enqueues; replay() carries it out, close() ends it.
function Device:capture(launch)
    local stream, graph, executable = ffi.new "cpl_cuda_stream[1]", ffi.new "void *[1]",
        ffi.new "void *[1]"
    local lib = self.lib
    self:check(lib.cudaStreamCreate(stream))
    self:check(lib.cudaStreamBeginCapture(stream[0], thread_local))
    launch(stream[0])
    self:check(lib.cudaStreamEndCapture(stream[0], graph))
    self:check(lib.cudaGraphInstantiate(executable, graph[0], 0))
    return {
        replay = function() self:check(lib.cudaGraphLaunch(executable[0], stream[0])) end,
        close = function()
            self:check(lib.cudaGraphExecDestroy(executable[0]))
            self:check(lib.cudaGraphDestroy(graph[0]))
            self:check(lib.cudaStreamDestroy(stream[0]))
        end,
    }
end

--- Sets the order of threads and blocks: one of `orders`.
function Device:set_order(order)
    if self.is_emulated and self.lib.cpl_emulation_set("order", order) ~= 0 then
        error("the emulator has no order " .. order, 2)
    end
end

function Device:free_all()
    for _, block in ipairs(self.blocks) do self:check(self.lib.cudaFree(block)) end
    self.blocks = {}
end

return M
