--- Running a module on ranks from the controller, and reading what became of them.
-- Ranks count from 0, Lua lists from 1.
-- @module cplab.ranks
local buffer = require "string.buffer"

local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local M = {}

local function failure_of(run)
    local rank = C.cpl_host_failed_rank(run)
    if rank < 0 then return nil end
    return {
        reason = ("rank %d: %s"):format(rank, ffi.string(C.cpl_host_message(run))),
        traceback = ffi.string(C.cpl_host_traceback(run)),
        is_stuck = C.cpl_host_is_stuck(run),
    }
end

local function results_of(run, n_ranks)
    local bytes, results = clib.box "size_t", {}
    for rank = 0, n_ranks - 1 do
        local data = C.cpl_host_result(run, rank, bytes)
        if data == nil then
            return nil, { reason = ("rank %d returned nothing"):format(rank) }
        end
        results[rank + 1] = buffer.decode(ffi.string(data, bytes[0]))
    end
    return results
end

--- Calls require(module)(comm, payload) on every rank; the payload and what they return are encoded
-- by string.buffer.
-- @tparam number n_ranks
-- @tparam number deadline seconds after which a wait of a rank fails
-- @tparam string module
-- @param payload
-- @treturn ?table results by rank + 1, or nil
-- @treturn ?table the failure: reason, traceback (of a rank), is_stuck (a rank does not return)
function M.run(n_ranks, deadline, module, payload)
    local text, out = buffer.encode(payload), ffi.new "cpl_host_run *[1]"
    local status = C.cpl_host_run_ranks(n_ranks, deadline, module, text, #text, out)
    if status ~= C.CPL_OK then
        return nil, {
            reason = ffi.string(C.cpl_last_error()), is_stuck = C.cpl_host_has_stuck(),
        }
    end
    local run = ffi.gc(out[0], C.cpl_host_run_destroy)
    local failure, results = failure_of(run), nil
    if not failure then results, failure = results_of(run, n_ranks) end
    C.cpl_host_run_destroy(ffi.gc(run, nil))
    return results, failure
end

return M
