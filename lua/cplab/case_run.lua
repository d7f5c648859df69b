--- Runs one case on rank threads and makes its result.
-- @module cplab.case_run
local buffer = require "string.buffer"

local clib = require "clib"
local sweep = require "cplab.sweep"

local C, ffi = clib.C, clib.ffi

local M = {}

local function text_of(value)
    if type(value) ~= "number" then return tostring(value) end
    return ("%.4g"):format(value)
end

local function first_failure(checks)
    local first, more = nil, 0
    for _, check in ipairs(checks) do
        if not check.passed then
            if first then more = more + 1 else first = check end
        end
    end
    if not first then return nil end
    local bound = first.bound
    local rule = type(bound) == "table" and "must be " .. text_of(bound.equals) or
        "must be at most " .. text_of(bound)
    local rest = more > 0 and (" (and %d more)"):format(more) or ""
    return ("check %s: %s, %s%s"):format(first.name, text_of(first.value), rule, rest)
end

local function failed_rank(run, rank)
    return {
        status = "error",
        reason = ("rank %d: %s"):format(rank, ffi.string(C.cpl_host_message(run))),
        traceback = ffi.string(C.cpl_host_traceback(run)),
    }
end

local function read_result(run)
    local rank = C.cpl_host_failed_rank(run)
    if rank >= 0 then return failed_rank(run, rank) end
    local bytes = clib.box "size_t"
    local data = C.cpl_host_result(run, 0, bytes)
    if data == nil then return { status = "error", reason = "rank 0 returned nothing" } end
    local result = buffer.decode(ffi.string(data, bytes[0]))
    result.reason = first_failure(result.checks or {})
    result.status = result.reason and "failed" or "passed"
    return result
end

--- Runs a case on cp * tp ranks. What goes wrong inside is a result with status `error`.
-- @tparam string file the script
-- @tparam table case
-- @tparam table options dtype, seed, iters, warmup, device, trace_tokens, params, deadline (s)
-- @treturn table status, reason, traceback (of an error), metrics, checks, samples, records
function M.run(file, case, options)
    local payload = buffer.encode { file = file, case = case, options = options }
    local out = ffi.new "cpl_host_run *[1]"
    local status = C.cpl_host_run_ranks(sweep.n_ranks(case), options.deadline, "cplab.worker",
        payload, #payload, out)
    if status ~= C.CPL_OK then
        return { status = "error", reason = ffi.string(C.cpl_last_error()) }
    end
    local run = ffi.gc(out[0], C.cpl_host_run_destroy)
    local result = read_result(run)
    C.cpl_host_run_destroy(ffi.gc(run, nil))
    return result
end

return M
