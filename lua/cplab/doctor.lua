--- What this machine and this build have, for the command `doctor`.
-- @module cplab.doctor
local clib = require "clib"
local environment = require "cplab.environment"

local C = clib.C

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

-- What mpirun says of itself in its first line: "mpirun (Open MPI) 4.1.4".
local function mpirun_version()
    if not in_path "mpirun" then return nil end
    local pipe = io.popen "mpirun --version 2>/dev/null"
    local line = pipe and pipe:read "*l" or ""
    if pipe then pipe:close() end
    local version = line:match "^mpirun %(Open MPI%) (%S+)$"
    return version and "Open MPI " .. version
end

local function mpi()
    local _, processes = environment.transport()
    local version = mpirun_version()
    if processes then
        return ("mpi (%d process%s, %s)"):format(processes, processes == 1 and "" or "es",
            version or "Open MPI")
    elseif not version then
        return "no mpi: no mpirun of Open MPI (./cplab mpirun brings it)"
    elseif not C.cpl_host_has_mpi() then
        return "no mpi: this build is without it (./cplab mpirun builds it)"
    end
    return ("mpi (processes that ./cplab mpirun starts, %s)"):format(version)
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
    local kernels = C.cpl_kernels_for("cpu", clib.dtypes.f64)
    return {
        "cplab       " .. clib.ffi.string(C.cpl_version()),
        "commit      " .. (commit or ("unknown (%s)"):format(reason)),
        "folder      " .. environment.root(),
        "luajit      " .. jit.version,
        ("machine     %s, %d cores"):format(cpu, cores),
        "matrices    OpenBLAS, kernels " .. clib.ffi.string(C.cpl_host_blas_core()),
        "devices     " .. (kernels ~= nil and "cpu (f64, f32)" or "none"),
        "transports  local (threads of one process), " .. mpi(),
        "cuda        " .. cuda(),
    }
end

return M
