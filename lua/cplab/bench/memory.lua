--- How much memory something takes: bytes that the library holds at the most, beyond those that it
-- held before.
-- @module cplab.bench.memory
local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local M = {}

local function stats()
    local out = ffi.new "cpl_memory_stats"
    C.cpl_memory(out)
    return out
end

--- Forgets earlier peaks. Returns the bytes that are held.
function M.begin()
    collectgarbage()
    collectgarbage()
    C.cpl_memory_reset_peak()
    return tonumber(stats().live_bytes)
end

--- The peak since `begin`, of this process.
function M.peak(before)
    return tonumber(stats().peak_bytes) - before
end

-- Ranks that are threads share one memory, of which rank 0 speaks.
local function speaks(comm)
    return comm:rank() == 0 or C.cpl_host_n_processes() > 0
end

--- Collective. As begin, for all ranks.
function M.begin_all(comm)
    comm:barrier()
    local before = M.begin()
    comm:barrier()
    return before
end

--- Collective. The peaks of all processes together.
function M.peak_all(comm, before)
    comm:barrier()
    return comm:sum({ speaks(comm) and M.peak(before) or 0 })[1]
end

return M
