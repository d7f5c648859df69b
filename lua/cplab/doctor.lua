--- What this machine and this build have, for the command `doctor`.
-- @module cplab.doctor
local clib = require "clib"
local environment = require "cplab.environment"

local C, ffi = clib.C, clib.ffi

local M = {}

-- The path itself, or nil.
local function is_file(path)
    local file = io.open(path, "rb")
    if not file then return nil end
    file:close()
    return path
end

local function in_path(program)
    for folder in (os.getenv "PATH" or ""):gmatch "[^:]+" do
        local path = is_file(folder .. "/" .. program)
        if path then return path end
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

local function version(number, minor)
    return ("%d.%d"):format(math.floor(number / 1000), math.floor(number % 1000 / minor))
end

-- Of a kind of device what its plug-in finds, or why there is no plug-in.
local function look(device)
    local found = ffi.new "cpl_devices_found"
    if C.cpl_host_look(device, found) == C.CPL_OK then return found end
    return nil, (ffi.string(C.cpl_last_error()):gsub("^device [%w-]+: ", ""))
end

local function devices_of(found)
    if found.n_devices == 0 then
        return (ffi.string(found.problem):gsub("^device [%w-]+: ", ""))
    end
    local names = {}
    for i = 0, found.n_devices - 1 do names[i + 1] = ffi.string(found.names[i]) end
    return ("%d device%s: %s"):format(#names, #names == 1 and "" or "s", table.concat(names, ", "))
end

-- What a user of GPUs asks: is it built, does it run, has it ever run?
local STATE = "compiled for sm_80 and sm_90, emulated on the CPU, not yet run on a GPU"

local function nccl(found)
    if found.nccl == 0 then return ffi.string(found.nccl_problem) end
    return ("NCCL %d.%d.%d"):format(found.nccl / 10000, found.nccl / 100 % 100, found.nccl % 100)
end

local function cublas(found)
    return environment.cublas(found)
        or ffi.string(found.cublas_problem) .. "; matrix products by cplab's own kernel"
end

local function cuda()
    local compiler = in_path "nvcc" or is_file "/usr/local/cuda/bin/nvcc"
    local lines = { compiler and "compiler " .. compiler or "no compiler (nvcc)" }
    local found, missing = look "cuda"
    if not found then
        lines[2] = "no plug-in: " .. missing
        return lines
    end
    lines[2] = ("plug-in for CUDA %s: %s"):format(version(found.runtime, 10), STATE)
    local driver = found.driver > 0 and ("driver for CUDA %s, "):format(version(found.driver, 10))
        or ""
    lines[3] = driver .. devices_of(found)
    lines[4], lines[5] = nccl(found), cublas(found)
    return lines
end

local function emulator()
    local found, missing = look "cuda-emulated"
    if not found then return "no emulator: " .. missing end
    return ("cuda-emulated, %d devices on the CPU"):format(found.n_devices)
end

--- One fact a line.
function M.lines()
    local commit, reason = environment.commit()
    local cpu, cores = environment.machine()
    local kernels = C.cpl_kernels_for("cpu", clib.dtypes.f64)
    local lines = {
        "cplab       " .. clib.ffi.string(C.cpl_version()),
        "commit      " .. (commit or ("unknown (%s)"):format(reason)),
        "folder      " .. environment.root(),
        "luajit      " .. jit.version,
        ("machine     %s, %d cores"):format(cpu, cores),
        "matrices    OpenBLAS, kernels " .. clib.ffi.string(C.cpl_host_blas_core()),
        "devices     " .. (kernels ~= nil and "cpu (f64, f32)" or "none"),
        "transports  local (threads of one process), " .. mpi(),
    }
    for i, line in ipairs(cuda()) do
        lines[#lines + 1] = (i == 1 and "cuda        " or "            ") .. line
    end
    lines[#lines + 1] = "emulator    " .. emulator()
    return lines
end

return M
