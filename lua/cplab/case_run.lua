--- Runs one case on ranks and makes its result.
-- @module cplab.case_run
local clib = require "clib"
local ranks = require "cplab.ranks"
local sweep = require "cplab.sweep"

local C = clib.C

--- `is_stuck`: a rank of an earlier case does not return. Its thread takes time from every later
-- case, or its process is missing there, and the program must end with `cpl_host_exit`.
local M = { is_stuck = false }

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

-- ---- one result of all ranks' --------------------------------------------------

-- Whether two plain values say the same; NaN is like NaN.
local function is_same(a, b)
    if type(a) ~= "table" or type(b) ~= "table" then
        return a == b or a ~= a and b ~= b
    end
    for key, value in pairs(a) do
        if not is_same(value, b[key]) then return false end
    end
    for key in pairs(b) do
        if a[key] == nil then return false end
    end
    return true
end

local function name_of(check)
    return check and ('"%s"'):format(check.name) or "none"
end

-- A rank that makes no checks leaves them to rank 0; one that makes any makes the same.
local function different_checks(checks, first, rank)
    if #checks == 0 then return nil end
    for i = 1, math.max(#checks, #first) do
        local mine, other = name_of(checks[i]), name_of(first[i])
        if mine ~= other then
            return ("ranks made different checks: rank %d has %s, rank 0 has %s"):format(rank, mine,
                other)
        end
    end
end

local function add_checks(into, checks, first, rank)
    for i, check in ipairs(checks) do
        local other = first[i]
        if check.passed ~= other.passed or not is_same(check.value, other.value) then
            check.name = ("%s (rank %d)"):format(check.name, rank)
            into[#into + 1] = check
        end
    end
end

local function has_same(list, value)
    for _, other in ipairs(list) do
        if is_same(value, other) then return true end
    end
    return false
end

-- What all ranks record is there once, as rank 0's.
local function add_records(into, records, first, rank)
    for i, record in ipairs(records) do
        if not is_same(record, first[i]) and not has_same(first, record) then
            if record.rank == nil then record.rank = rank end
            into[#into + 1] = record
        end
    end
end

local function copy(list)
    local result = {}
    for i, value in ipairs(list or {}) do result[i] = value end
    return result
end

-- Rank 0's result, with what the other ranks have to add.
local function merge(results)
    local result = results[1]
    local checks, records = copy(result.checks), copy(result.records)
    for i = 2, #results do
        local rank, mine = i - 1, results[i].checks or {}
        local reason = different_checks(mine, checks, rank)
        if reason then return { status = "error", reason = reason } end
        result.checks = result.checks or {}
        result.records = result.records or {}
        add_checks(result.checks, mine, checks, rank)
        add_records(result.records, results[i].records or {}, records, rank)
    end
    result.reason = first_failure(result.checks or {})
    result.status = result.reason and "failed" or "passed"
    return result
end

--- Runs a case on cp * tp ranks. What goes wrong inside is a result with status `error`.
-- @tparam string file the script
-- @tparam table case
-- @tparam table options dtype, seed, iters, warmup, device, trace_tokens, graphs, params,
-- deadline (s)
-- @treturn table status, reason, traceback (of an error), metrics (rank 0's), checks and records
-- (rank 0's, then those of other ranks that differ), samples; stuck (a rank does not return)
function M.run(file, case, options)
    local results, failure = ranks.run(sweep.n_ranks(case), options.deadline, "cplab.worker",
        { file = file, case = case, options = options })
    M.is_stuck = C.cpl_host_has_stuck()
    if results then return merge(results) end
    return {
        status = "error", reason = failure.reason, traceback = failure.traceback,
        stuck = failure.is_stuck or nil,
    }
end

return M
