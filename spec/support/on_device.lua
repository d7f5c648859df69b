--- Runs of ranks whose rows are on emulated devices, from specs that run on the CPU.
local clib = require "clib"
local ranks = require "spec.support.ranks"

local C, ffi = clib.C, clib.ffi

local M = {}

--- Why there is no emulator in this build, or nil.
function M.missing()
    local found = ffi.new "cpl_devices_found"
    if C.cpl_host_look("cuda-emulated", found) == C.CPL_OK then return nil end
    return ffi.string(C.cpl_last_error())
end

--- Sets something of the emulator: kernels/emulation/emulation.h. Nothing where there is none.
function M.set(name, value)
    if M.missing() then return end
    pcall(ffi.cdef, "int cpl_emulation_set(const char *name, const char *value);")
    local build = package.searchpath("cplab_cdef", package.path):match "^(.*)/lua/"
    local kind = os.getenv "CPLAB_CUDA_CHECK" and "checked" or "emulated"
    local emulator = ffi.load(("%s/bin/libcplab_cuda_%s.so"):format(build, kind))
    assert(emulator.cpl_emulation_set(name, value) == 0, name)
end

--- f(...) while ranks have their rows on devices.
-- @tparam ?string transport "direct" or "nccl"
function M.with(transport, f, ...)
    clib.check(C.cpl_host_use_device("cuda-emulated", transport))
    local results = { pcall(f, ...) }
    clib.check(C.cpl_host_use_device("cpu", nil))
    assert(results[1], results[2])
    return unpack(results, 2, 8)
end

--- As ranks.try, with the rows of the ranks on devices.
-- @tparam ?string transport "direct" or "nccl"
function M.try(transport, n, f, payload, deadline)
    return M.with(transport, ranks.try, n, f, payload, deadline)
end

--- As ranks.run.
function M.run(transport, n, f, payload)
    local results, failure = M.try(transport, n, f, payload)
    assert(not failure, failure and failure.message .. failure.traceback)
    return results
end

--- busted's `it` where this build has the emulator; else a spec that is skipped, with the reason.
function M.it(it, pending)
    local why = M.missing()
    return why and function(name) pending(name .. ": " .. why) end or it
end

return M
