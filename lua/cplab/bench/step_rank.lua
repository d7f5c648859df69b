--- What every rank of a row of `bench step` runs: a step of the model on all ranks, and beside it
-- the same on one rank, a product of matrices and a copy. On devices the step is launched one by
-- one and replayed from a graph, and the rank that it is compared with is one of the host.
-- @module cplab.bench.step_rank
local buffer = require "string.buffer"

local capture = require "cplab.capture"
local clib = require "clib"
local comms = require "cplab.comm"
local copies = require "cplab.bench.copy"
local device_timing = require "cplab.bench.device_timing"
local figures = require "cplab.bench.compute_figures"
local gemm = require "cplab.bench.gemm"
local measure = require "cplab.measure"
local memory = require "cplab.bench.memory"
local metrics = require "cplab.metrics"
local parity = require "cplab.parity"
local rows = require "cplab.rows"
local stacks = require "cplab.stack"
local step_model = require "cplab.bench.step_model"
local timing = require "cplab.bench.timing"

local C, ffi = clib.C, clib.ffi

local KEY = "bench.step"
local STEP = { backward = true }

-- Faults of stacks and layers that a spec plants.
local FAULTS = { handoff = { drop_handoff = { rank = 1 } }, rank = { swap_runs = { rank = 0 } } }

local function live(comm, case, model, cp, faults)
    return stacks.new { model = model, stream = step_model.stream(case), comm = comm._ptr, cp = cp,
        tp = 1, faults = faults }
end

-- ---- the same numbers ---------------------------------------------------------------

-- Rank 0's step on one rank becomes what the others are compared with.
local function keep_reference(one)
    one:step(STEP)
    parity.capture(KEY, one:outputs())
    parity.capture(KEY, one:gradients())
    parity.capture(KEY, one:input_gradients())
end

-- The reference has no faults; those of the group come back when its turn does.
local function make_reference(comm, case, model, planted)
    local one
    if comm:rank() == 0 then
        one = live(comms.self(), case, model:with { dtype = clib.wide_dtype(case.dtype),
            policy = { "contiguous", "contiguous", "contiguous" } }, 1)
        keep_reference(one)
        planted:plant_faults()
    end
    comm:barrier()
    clib.check(C.cpl_store_share(comm._ptr, KEY))
    return one
end

-- Collective.
local function check(stack, measured, when)
    local found = metrics.compare(stack, KEY, true)
    local error, where = parity.larger(found.parity_fwd, found.parity_fwd_where,
        found.parity_grad, found.parity_grad_where)
    measured.errors[when] = error
    measured.wrong = measured.wrong or figures.complaint(("%s, %s"):format(where, when), error,
        measured.bound)
end

-- A spec's fault: the logits are others.
local function spoil(stack)
    clib.check(C.cpl_tensor_fill(stack.logits, 1))
end

-- ---- a row --------------------------------------------------------------------------

-- Seconds of each iteration as measure has them; warm-up iterations are written over.
local function step_part(stack, case, records)
    local n = -case.warmup
    return function()
        n = n + 1
        records[math.max(n, 1)] = measure.iteration(stack, function() return stack:step(STEP) end)
        if case.fault == "allocation" then rows.new(nil, "f64", 1, 1) end
    end
end

local function nothing() end

-- What rank 0 does before each step, while the others wait.
local function yardsticks(comm, case, measured)
    if comm:rank() > 0 then
        return { { name = "gemm", run = nothing }, { name = "copy", run = nothing } }
    end
    local where = case.device and comm._ptr or nil
    local product, copy = gemm.new(case.gemm, case.dtype, where), copies.new(case.device, where)
    measured.gemm_flops, measured.copy_bytes = product.flops, copy.bytes
    return { { name = "gemm", run = product.run }, { name = "copy", run = copy.run } }
end

local function time_here(comm, stack, one, case, measured)
    local parts, records = yardsticks(comm, case, measured), {}
    parts[3] = { name = "one", run = one and function() one:step(STEP) end or nothing }
    parts[4] = { name = "all", run = step_part(stack, case, records) }
    measured.wall, measured.allocations, measured.busy = timing.run(comm, parts, case.warmup,
        case.iters)
    measured.times, measured.step_ms = measure.times(measure.gather(comm._ptr, records))
end

-- A spec's fault.
local function wait(stack)
    clib.check(C.cpl_tensor_download(stack.loss_sum, ffi.new "double[1]"))
end

-- Collective. The step as a graph, of which a replay must leave what a step leaves; nil where it
-- cannot be one, and why is measured.
local function graph_of(comm, stack, case, measured)
    local ok, graph = pcall(capture.of, comm._ptr, function()
        stack:run_step(STEP)
        if case.fault == "capture" then wait(stack) end
    end)
    if not comm:agree(ok) then
        measured.graph_reason = (tostring(graph):gsub("^[^\n]-%.lua:%d+: ", ""))
        return nil
    end
    for _, output in ipairs(stack:outputs()) do
        clib.check(C.cpl_tensor_fill(output.tensor, 0 / 0))
    end
    graph:replay()
    check(stack, measured, "replayed")
    return graph
end

-- Nobody waits for a device here: a step is over when the devices say so.
local function time_there(comm, stack, _, case, measured)
    local graph = graph_of(comm, stack, case, measured)
    if measured.wrong then return end
    local parts = yardsticks(comm, case, measured)
    parts[3] = { name = "step", run = function()
        stack:run_step(STEP)
        if case.fault == "allocation" then rows.new(nil, "f64", 1, 1) end
        if case.fault == "wait" then wait(stack) end
    end }
    parts[4] = graph and { name = "graph", run = function() graph:replay() end }
    device_timing.measure(measured, comm, parts, case)
end

-- Collective. The stack after its first two steps, and what it takes.
local function make(comm, case, model, measured)
    local before = memory.begin_all(comm)
    local stack = live(comm, case, model, case.cp, FAULTS[case.fault])
    if case.fault == "memory" then stack.taken = rows.new(nil, "f64", case.tokens, case.tokens) end
    for _ = 1, 2 do measure.iteration(stack, function() stack:run_step(STEP) end) end
    measured.peak_bytes = memory.peak_all(comm, before)
    measured.counts = metrics.counts(stack)
    measured.experts = metrics.experts(stack)
    return stack
end

local function measure_row(comm, case)
    local measured, model = { errors = {}, bound = case.bound }, step_model.model(case)
    local stack = make(comm, case, model, measured)
    local one = make_reference(comm, case, model, stack)
    check(stack, measured, "before timing")
    if measured.wrong then return measured end
    local time = case.device and time_there or time_here
    time(comm, stack, one, case, measured)
    if case.fault == "loop" then spoil(stack) end
    check(stack, measured, "after timing")
    return measured
end

--- @param ptr the `cpl_comm *` of this rank
-- @tparam string payload the case
-- @treturn string errors, bound, wrong or times (of measure), step_ms, wall and busy seconds of
-- gemm, copy, one and all; on devices busy seconds of gemm, copy, step and graph, asking,
-- host_syncs, graph_reason; counts, experts, allocations, peak_bytes, gemm_flops, copy_bytes
return function(ptr, payload)
    return buffer.encode(measure_row(comms.wrap(ptr), buffer.decode(payload)))
end
