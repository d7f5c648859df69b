--- What this machine and this build have, for the command `doctor`.
-- @module cplab.doctor
local clib = require "clib"
local environment = require "cplab.environment"

local M = {}

local function in_path(program)
    for folder in (os.getenv "PATH" or ""):gmatch "[^:]+" do
        local file = io.open(folder .. "/" .. program, "rb")
        if file then
            file:close()
            return folder .. "/" .. program
        end
    end
    return nil
end

local function cuda()
    local compiler = in_path "nvcc"
    local device = io.open("/dev/nvidia0", "rb")
    if device then device:close() end
    local parts = { compiler and "compiler " .. compiler or "no compiler",
        device and "a device" or "no device" }
    return table.concat(parts, ", ") .. "; this build does not use it"
end

--- One fact a line.
function M.lines()
    local commit, reason = environment.commit()
    local cpu, cores = environment.machine()
    local kernels = clib.C.cpl_kernels_for("cpu", clib.dtypes.f64)
    return {
        "cplab       " .. clib.ffi.string(clib.C.cpl_version()),
        "commit      " .. (commit or ("unknown (%s)"):format(reason)),
        "folder      " .. environment.root(),
        "luajit      " .. jit.version,
        ("machine     %s, %d cores"):format(cpu, cores),
        "matrices    OpenBLAS, kernels " .. clib.ffi.string(clib.C.cpl_host_blas_core()),
        "devices     " .. (kernels ~= nil and "cpu (f64, f32)" or "none"),
        "transports  local (threads of one process)",
        "cuda        " .. cuda(),
    }
end

return M
