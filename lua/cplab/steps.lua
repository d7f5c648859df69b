--- The steps of a lab: which stream each one has, the stack that runs it, and what was measured.
-- Where an experiment's stream(case, step) takes the step, each step has a stream of its own, and
-- with it layouts, routes and a stack of its own; the parameters go on from one to the next.
-- Steps count from 0.
-- @module cplab.steps
local clib = require "clib"
local experiments = require "cplab.experiment"
local measure = require "cplab.measure"
local stacks = require "cplab.stack"
local streams = require "cplab.stream"
local C, ffi = clib.C, clib.ffi

local M = {}

--- What stream(case, step) of an experiment returns, checked.
function M.make_stream(experiment, case, step)
    local stream = experiments.call(experiment.stream, case, step)
    if not streams.is(stream) then
        error("lab: stream(case) must return a cplab.stream", 0)
    end
    return stream
end

--- Whether each step of a lab has a stream of its own.
function M.vary(lab)
    return debug.getinfo(lab.experiment.stream, "u").nparams >= 2
end

--- The stream of a step; made once.
function M.stream_at(lab, step)
    step = M.vary(lab) and step or 0
    lab.streams[step] = lab.streams[step] or M.make_stream(lab.experiment, lab.case, step)
    return lab.streams[step]
end

--- Collective. A stack for a stream, with the parameters of the one before.
-- @tparam ?table old the stack before; returned where it has the same stream, recomputation and
-- stages
-- @tparam table stream
-- @tparam table fields what cplab.stack.new takes beside the stream
function M.stack_for(old, stream, fields)
    if old and old.stream == stream and old.recompute == fields.recompute
        and old.cut == fields.stages then
        return old
    end
    local t = { stream = stream }
    for name, value in pairs(fields) do
        t[name] = value
    end
    local stack = stacks.new(t)
    if old then
        stack.parameters:take(old.parameters)
    end
    return stack
end

--- Collective. The live stack of a lab for a step.
function M.stack_at(lab, step)
    lab.stream = M.stream_at(lab, step)
    lab.stack = M.stack_for(lab.stack, lab.stream, {
        model = lab.model, comm = lab.comm, cp = lab.cp, tp = lab.tp, faults = lab.options.faults,
        recompute = lab.recompute, stages = lab.stages,
    })
    return lab.stack
end

--- Adds the wrong rows of the step that just ran on this rank to those of all steps, and keeps the
-- first sentence about them. Checks on a device are asked here what they found.
-- @param comm a `cpl_comm *`
-- @tparam table trace { wrong_rows =, first = cpl_first_wrong }
function M.add_trace(comm, trace)
    clib.check(C.cpl_trace_settle(comm))
    local wrong = tonumber(C.cpl_counters_here().wrong_rows)
    if wrong > 0 and trace.wrong_rows == 0 then
        C.cpl_trace_first_wrong(trace.first)
    end
    trace.wrong_rows = trace.wrong_rows + wrong
end

-- Warm-up leaves nothing behind: its steps are all step 0, and the parameters are drawn again.
local function warm_up(lab, options)
    for _ = 1, options.warmup do
        M.stack_at(lab, 0):step(options)
    end
    M.stack_at(lab, 0).parameters:draw(lab.model.seed)
end

--- Collective. Runs warm-up steps and then the measured ones, from the initial parameters.
-- @tparam table lab
-- @tparam table options iters, warmup, backward, and the settings of an optimizer
-- @tparam boolean traced
-- @treturn table stack (of the last step), records and losses (one a measured step), trace
-- { wrong_rows (this rank's), first (cpl_first_wrong) }
function M.run(lab, options, traced)
    local run = { records = {}, losses = {},
        trace = { wrong_rows = 0, first = ffi.new "cpl_first_wrong" } }
    warm_up(lab, options)
    for i = 1, options.iters do
        run.stack = M.stack_at(lab, i - 1)
        run.stack:set_trace(traced)
        run.records[i] = measure.iteration(run.stack, function()
            run.stack:run_step(options)
        end)
        run.losses[i] = run.stack:read_step(options)
        M.add_trace(lab.comm, run.trace)
    end
    return run
end

return M
