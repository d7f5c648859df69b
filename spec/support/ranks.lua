--- Runs a function on ranks from a spec, and brings back what the ranks return. Ranks are threads,
-- or, where mpirun runs the specs, its first processes.
--
--     local results = ranks.run(4, function(comm, p) return comm:rank() * p.k end, { k = 2 })
--
-- The function sees nothing of the spec file: a rank has a Lua state of its own. It gets a comm
-- (cplab.comm) and the payload, and may require modules. Instead of a function, the name of a
-- module that returns one. What goes in and out is what string.buffer encodes. Lists count from 1:
-- the first result is rank 0's.
local buffer = require "string.buffer"

local M = { deadline = 20 }

-- CPLAB_TRANSPORT=cuda-emulated (or cuda, or cuda-emulated+nccl) has all ranks of all specs keep
-- their rows on devices.
local function use_device(words)
    local clib = require "clib"
    local device, transport = words:match "^([^+]+)%+?(.*)$"
    clib.check(clib.C.cpl_host_use_device(device, transport ~= "" and transport or nil))
end
use_device(os.getenv "CPLAB_TRANSPORT" or "cpu")

--- How many ranks can be had: what mpirun started, or 8 threads.
function M.world()
    local n = require("clib").C.cpl_host_n_processes()
    return n > 0 and n or 8
end

--- Whether n ranks can be had, and are wanted: CPLAB_SIZES is the most that are, or "whole", where
-- those of mpirun all take part. `./cplab test --all` sets it where other stages have the rest.
function M.has(n)
    local wanted = os.getenv "CPLAB_SIZES"
    if wanted == "whole" then return n == M.world() end
    return n <= M.world() and n <= (tonumber(wanted) or n)
end

--- Of a list of numbers of ranks, those that can be had.
function M.sizes(list)
    local sizes = {}
    for _, n in ipairs(list) do
        if M.has(n) then sizes[#sizes + 1] = n end
    end
    return sizes
end

--- busted's `it` where n ranks can be had; else what takes a spec and forgets it.
function M.with(n, it)
    return M.has(n) and it or function() end
end

--- Where rows of ranks are: "cpu", "cuda", "cuda-emulated".
function M.device()
    return (os.getenv "CPLAB_TRANSPORT" or "cpu"):match "^[^+]+"
end

--- What their comms call the transport that carries rows.
function M.carrier()
    local device, transport = (os.getenv "CPLAB_TRANSPORT" or "cpu"):match "^([^+]+)%+?(.*)$"
    if device == "cpu" then return M.transport() end
    return transport == "nccl" and transport or device
end

--- How a run's ranks, as the host knows them, exchange bytes: "local" or "mpi".
function M.transport()
    return (require("cplab.environment").transport())
end

local function dump(f)
    local name = debug.getupvalue(f, 1)
    if name then
        error(("ranks.run: the function uses the local \"%s\" of its file; require it inside, or "
            .. "pass it as payload"):format(name), 3)
    end
    return string.dump(f)
end

local function failure_of(C, ffi, run)
    local rank = C.cpl_host_failed_rank(run)
    if rank < 0 then
        return nil
    end
    return {
        rank = rank,
        message = ffi.string(C.cpl_host_message(run)),
        traceback = ffi.string(C.cpl_host_traceback(run)),
    }
end

local function results_of(C, ffi, run, n)
    local list, size = {}, ffi.new "size_t[1]"
    for rank = 0, n - 1 do
        local bytes = C.cpl_host_result(run, rank, size)
        if bytes ~= nil then list[rank + 1] = buffer.decode(ffi.string(bytes, size[0])) end
    end
    return list
end

--- Runs and tells what happened, also when a rank failed.
-- @treturn {any,...} results by rank + 1 (nil: that rank gave none)
-- @treturn ?table the failure: rank, message, traceback
function M.try(n, f, payload, deadline)
    local clib = require "clib"
    local C, ffi = clib.C, clib.ffi
    local job = buffer.encode {
        code = type(f) == "function" and dump(f) or nil,
        module = type(f) == "string" and f or nil,
        payload = payload,
    }
    local run = clib.create("cpl_host_run", C.cpl_host_run_destroy, 2, C.cpl_host_run_ranks, n,
        deadline or M.deadline, "spec.support.rank", job, #job)
    return results_of(C, ffi, run, n), failure_of(C, ffi, run)
end

--- Runs and raises what the first failing rank raised.
-- @treturn {any,...} results by rank + 1
function M.run(n, f, payload, deadline)
    local results, failure = M.try(n, f, payload, deadline)
    if failure then
        error(("rank %d: %s%s"):format(failure.rank, failure.message, failure.traceback), 2)
    end
    return results
end

return M
