--- What every rank of a row of `bench step` runs: a step of the model on all ranks, and beside it
-- the same on one rank, a product of matrices and a memcpy.
-- @module cplab.bench.step_rank
local buffer = require "string.buffer"

local arrays = require "cplab.bench.arrays"
local clib = require "clib"
local comms = require "cplab.comm"
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

local C = clib.C

local KEY = "bench.step"
local STEP = { backward = true }
local COPY_BYTES = 2 ^ 25

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
        one = live(comms.self(), case, model:with {
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

-- A spec's fault: the first logit is another one.
local function spoil(stack)
    local logits = arrays.pointer(stack.logits)
    logits[0] = 2 * logits[0] + 1
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

local function copy_part()
    local a, b = arrays.new("f64", COPY_BYTES / 8, 1), arrays.new("f64", COPY_BYTES / 8, 1)
    for _, array in ipairs { a, b } do C.cpl_tensor_fill(array, 1) end
    return function() clib.check(C.cpl_tensor_copy(b, a)) end
end

local function parts_of(stack, one, case, measured, records)
    local parts = { { name = "all", run = step_part(stack, case, records) } }
    local product = one and gemm.new(case.gemm, case.dtype)
    local alone = { gemm = one and product.run, copy = one and copy_part(),
        one = one and function() one:step(STEP) end }
    for _, name in ipairs { "one", "copy", "gemm" } do
        table.insert(parts, 1, { name = name, run = alone[name] or function() end })
    end
    measured.gemm_flops, measured.copy_bytes = product and product.flops, COPY_BYTES
    return parts
end

-- Collective. The stack after its first two steps, and what it takes.
local function make(comm, case, model, measured)
    local before = memory.begin_all(comm)
    local stack = live(comm, case, model, case.cp, FAULTS[case.fault])
    if case.fault == "memory" then stack.taken = rows.new(nil, "f64", case.tokens, case.tokens) end
    for _ = 1, 2 do measure.iteration(stack, function() return stack:step(STEP) end) end
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
    local records = {}
    local parts = parts_of(stack, one, case, measured, records)
    measured.wall, measured.allocations, measured.busy = timing.run(comm, parts, case.warmup,
        case.iters)
    measured.times, measured.step_ms = measure.times(measure.gather(comm._ptr, records))
    if case.fault == "loop" then spoil(stack) end
    check(stack, measured, "after timing")
    return measured
end

--- @param ptr the `cpl_comm *` of this rank
-- @tparam string payload the case
-- @treturn string errors, bound, wrong or times (of measure), step_ms, wall and busy seconds of
-- gemm, copy, one and all; counts, experts, allocations, peak_bytes, gemm_flops, copy_bytes
return function(ptr, payload)
    return buffer.encode(measure_row(comms.wrap(ptr), buffer.decode(payload)))
end
