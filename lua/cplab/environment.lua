--- What a result depends on beside its case: version, commit, machine.
-- @module cplab.environment
local clib = require "clib"
local C = clib.C

local M = {}

local function first_line(command)
    local pipe = io.popen(command .. " 2>/dev/null")
    local line = pipe and pipe:read "*l"
    if pipe then pipe:close() end
    return line
end

--- A text as one word of a shell command.
function M.shell_word(text)
    return "'" .. text:gsub("'", "'\\''") .. "'"
end

--- The folder of this checkout: where this file lies.
function M.root()
    return debug.getinfo(1, "S").source:match "^@(.*)/lua/cplab/[^/]*$" or "."
end

--- The commit of this checkout, with "-dirty" where files differ from it. The checkout may belong
-- to another user.
-- @tparam ?string root the checkout; else this one
-- @treturn ?string
-- @treturn ?string why there is none, as git says it
function M.commit(root)
    local folder = M.shell_word(root or M.root())
    local pipe = io.popen(("git -C %s -c safe.directory=%s describe --always --dirty --abbrev=12 "
        .. "--exclude='*' 2>&1"):format(folder, folder))
    local text = pipe and pipe:read "*a" or ""
    if pipe then pipe:close() end
    for line in text:gmatch "[^\n]+" do
        if line:find "^%x+$" or line:find "^%x+%-dirty$" then return line end
    end
    return nil, text:match "fatal: ([^\n]*)" or text:match ": (git: [^\n]*)"
        or text:match "[^\n]+" or "git says nothing"
end

--- The model of the processor, and how many of it this process may use.
-- @treturn string
-- @treturn number
function M.machine()
    local cpu = "unknown"
    local info = io.open("/proc/cpuinfo", "r")
    for line in info and info:lines() or function() end do
        cpu = line:match "^model name%s*:%s*(.+)$" or cpu
    end
    if info then info:close() end
    return cpu, tonumber(first_line "nproc") or 1
end

--- How ranks exchange bytes, and how many processes mpirun started, if it did.
-- @treturn string
-- @treturn ?number
function M.transport()
    local n = C.cpl_host_n_processes()
    if n == 0 then return "local" end
    return "mpi", n
end

--- Says where rows of ranks are from now on.
-- @tparam string device "cpu", "cuda", "cuda-emulated"
-- @tparam ?string transport "direct", "nccl"
-- @treturn boolean whether it is there
-- @treturn ?string what is missing
function M.use_device(device, transport)
    if C.cpl_host_use_device(device, transport) == C.CPL_OK then return true end
    return false, clib.ffi.string(C.cpl_last_error())
end

--- The version of cuBLAS that a plug-in of devices found.
-- @param found `cpl_devices_found`
-- @treturn ?string "cuBLAS 13.1.0"
function M.cublas(found)
    if found.cublas == 0 then return nil end
    return ("cuBLAS %d.%d.%d"):format(found.cublas / 10000, found.cublas / 100 % 100,
        found.cublas % 100)
end

--- The `env` of every result of one run; dtype and seed are the case's own.
-- @tparam table options device
-- @treturn table
function M.describe(options)
    local cpu, cores = M.machine()
    local commit = M.commit()
    local transport, processes = M.transport()
    return {
        version = clib.ffi.string(C.cpl_version()), commit = commit, cpu = cpu, cores = cores,
        transport = transport, processes = processes, luajit = jit.version,
        device = options.device, blas = clib.ffi.string(C.cpl_host_blas_core()),
    }
end

return M
