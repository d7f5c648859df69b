--- Measures one row of `bench gqa` or `bench gdn`: a core against the machine's own gemm.
--
-- First the core computes a small case, all of which the reference computes too; then the large
-- one, of which some rows or heads are known. Only where both are right is anything timed, and
-- what the last timed iteration left is looked at again.
-- @module cplab.bench.core_row
local arrays = require "cplab.bench.arrays"
local comms = require "cplab.comm"
local cores = require "cplab.bench.core"
local figures = require "cplab.bench.compute_figures"
local gemm = require "cplab.bench.gemm"
local memory = require "cplab.bench.memory"
local timing = require "cplab.bench.timing"

local M = {}

local function run(core)
    core:poison()
    core:forward()
    core:backward()
end

-- The error of the small case.
local function small_error(kind, case)
    local core = cores.new(kind, kind.small(case))
    local reference = cores.new(kind, core.case, core)
    run(core)
    run(reference)
    return core:error(reference)
end

-- The core of the large case, and what it takes.
local function make(kind, case, measured)
    local before = memory.begin()
    local core = cores.new(kind, case)
    run(core)
    measured.peak_bytes, measured.workspace_bytes = memory.peak(before), core.workspace_bytes
    return core
end

local function note(measured, name, error, where)
    measured.errors[name] = error
    measured.wrong = measured.wrong or figures.complaint(where .. ", " .. name .. " case", error,
        measured.bound)
end

-- What one iteration measures, in this order.
local function parts_of(core, product)
    local case = core.case
    return {
        { name = "gemm", run = product.run },
        { name = "forward", run = function() core:forward() end },
        { name = "both", run = function()
            core:forward()
            core:backward()
            if case.fault == "loop" then core:spoil() end
            if case.fault == "allocation" then arrays.new("f64", 1, 1) end
        end },
    }
end

--- Measures a row.
-- @tparam table kind gqa_core or gdn_core
-- @tparam table case
-- @treturn table errors by name of the case; bound; wrong (a sentence) or the CPU and wall seconds
-- of gemm, forward and both; allocations, peak_bytes, workspace_bytes, gemm_flops
function M.measure(kind, case)
    local measured = { errors = {}, bound = case.bound }
    note(measured, "small", small_error(kind, case))
    case.is_large = true
    local core = make(kind, case, measured)
    local expected = kind.expected(core)
    note(measured, "large", kind.error(core, expected))
    if measured.wrong then return measured end
    local product = gemm.new(case.gemm, case.dtype)
    local wall, taken, busy = timing.run(comms.self(), parts_of(core, product), case.warmup,
        case.iters)
    measured.wall, measured.busy, measured.allocations = wall, busy, taken
    measured.gemm_flops = product.flops
    note(measured, "timed", kind.error(core, expected))
    return measured
end

return M
