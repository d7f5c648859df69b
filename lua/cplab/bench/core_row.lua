--- Measures one row of `bench gqa` or `bench gdn`: a core against the machine's own gemm, and on a
-- device against copies there, by the device's clock.
--
-- First the core computes a small case, all of which the reference computes too; then the large
-- one, of which some rows or heads are known. Only where both are right is anything timed, and
-- what the last timed iteration left is looked at again.
-- @module cplab.bench.core_row
local arrays = require "cplab.bench.arrays"
local comms = require "cplab.comm"
local copies = require "cplab.bench.copy"
local cores = require "cplab.bench.core"
local device_timing = require "cplab.bench.device_timing"
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

-- The error of the small case; nil and a sentence where the kernel does not take such sizes.
local function small_error(kind, case, comm)
    local core, refusal = cores.new(kind, kind.small(case), nil, comm and comm._ptr)
    if not core then return nil, refusal end
    local reference = cores.new(kind, core.case, core)
    run(core)
    run(reference)
    return { core:error(reference) }
end

-- The core of the large case, and what it takes.
local function make(kind, case, measured, comm)
    local before = memory.begin()
    local core = cores.new(kind, case, nil, comm and comm._ptr)
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
            if case.fault == "wait" then core:wait() end
        end },
    }
end

local function time_here(measured, core, product)
    local case = core.case
    measured.wall, measured.allocations, measured.busy = timing.run(comms.self(),
        parts_of(core, product), case.warmup, case.iters)
end

local function time_there(measured, core, product, comm)
    local case, copy = core.case, copies.new(core.case.device, comm._ptr)
    local parts = parts_of(core, product)
    table.insert(parts, 1, { name = "copy", run = copy.run })
    device_timing.measure(measured, comm, parts, case)
    measured.copy_bytes = copy.bytes
end

--- Measures a row.
-- @tparam table kind gqa_core or gdn_core
-- @tparam table case
-- @tparam ?Comm comm of a rank that is alone on a device; nil: on the host
-- @treturn table refused (a sentence of the kernel), or errors by name of the case; bound; wrong (a
-- sentence) or the seconds of gemm, forward and both (busy: CPU time, or the device's), and wall;
-- of a device copy in busy, asking, host_syncs, copy_bytes; allocations, peak_bytes,
-- workspace_bytes, gemm_flops
function M.measure(kind, case, comm)
    local measured = { errors = {}, bound = case.bound }
    local small, refusal = small_error(kind, case, comm)
    if not small then return { refused = refusal } end
    note(measured, "small", unpack(small))
    case.is_large = true
    local core = make(kind, case, measured, comm)
    local expected = kind.expected(core)
    note(measured, "large", kind.error(core, expected))
    if measured.wrong then return measured end
    local product = gemm.new(case.gemm, case.dtype, comm and comm._ptr)
    local time = comm and time_there or time_here
    time(measured, core, product, comm)
    measured.gemm_flops = product.flops
    note(measured, "timed", kind.error(core, expected))
    return measured
end

return M
