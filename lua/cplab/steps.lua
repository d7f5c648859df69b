--- The steps of a lab: which stream each one has, the stack that runs it, and what was measured.
-- Where an experiment's stream(case, step) takes the step, each step has a stream of its own.
-- Streams with the same sequences are run by one stack, others have layouts, routes and a stack of
-- their own; the parameters are the same. With graphs each stack is made in a mould, and the next
-- one, for other sequences, in the mould of one that is gone: the graph stays.
-- Steps count from 0.
-- @module cplab.steps
local clib = require "clib"
local experiments = require "cplab.experiment"
local measure = require "cplab.measure"
local moulds = require "cplab.mould"
local optimizers = require "cplab.optimizer"
local stacks = require "cplab.stack"
local step_graph = require "cplab.step_graph"
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

-- Tokens do not count: a stack takes those of any stream with its sequences.
local function serves(stack, stream, fields)
    return stack:has_sequences_of(stream) and stack.recompute == fields.recompute
        and stack.cut == fields.stages
end

-- Collective. Parameters go on from one stack to the next.
local function new_stack(stream, fields, parameters, mould)
    local t = { stream = stream, parameters = parameters, mould = mould }
    for name, value in pairs(fields) do
        t[name] = value
    end
    return stacks.new(t)
end

--- Collective. A stack for a stream, with the parameters of the one before.
-- @tparam ?table old the stack before; returned where it has the same sequences, recomputation and
-- stages
-- @tparam table stream
-- @tparam table fields what cplab.stack.new takes beside the stream and the parameters
function M.stack_for(old, stream, fields)
    if old and serves(old, stream, fields) then
        old:take_tokens(stream)
        return old
    end
    return new_stack(stream, fields, old and old.parameters)
end

local function fields_of(lab)
    return { model = lab.model, comm = lab.comm, cp = lab.cp, tp = lab.tp,
        faults = lab.options.faults, recompute = lab.recompute, stages = lab.stages }
end

-- The place on the shelf of a stack for a stream: with graphs of one that is made in a mould, if
-- there are moulds, without graphs of one that is not.
local function find(lab, stream)
    local fields = fields_of(lab)
    for i = #lab.shelf, 1, -1 do
        local stack = lab.shelf[i]
        if serves(stack, stream, fields) and (stack.mould ~= nil) == (lab.mould ~= nil) then
            return i
        end
    end
end

-- Lets stacks go for the one that a step needs: those that were used longest ago, until there is
-- room on the shelf; the mould of the last one of them is the next one's. Whoever calls it collects
-- garbage then, as the collector does not know how much hangs on a stack, and has no stack in its
-- frame: what is left there is kept.
-- @treturn boolean whether any had to go
local function make_room(lab, step)
    local stream, n = M.stream_at(lab, step), #lab.shelf
    if find(lab, stream) then return false end
    lab.parameters = lab.stack and lab.stack.parameters or lab.parameters
    if lab.parameters then lab.parameters:unbind() end
    lab.stack = nil
    while #lab.shelf >= lab.n_stacks do
        local mould = table.remove(lab.shelf, 1).mould
        lab.mould = lab.mould and mould or lab.mould
    end
    return #lab.shelf < n
end

-- Collective. A stack for the stream of the lab, in the lab's mould, which is its own from then on.
local function on_shelf(lab)
    local i = find(lab, lab.stream)
    if i then return M.stack_for(table.remove(lab.shelf, i), lab.stream, fields_of(lab)) end
    local mould = lab.mould
    lab.mould = mould and moulds.new(lab.comm)
    return new_stack(lab.stream, fields_of(lab), lab.parameters, mould)
end

--- Collective. The live stack of a lab for a step. On its shelf are the `n_stacks` that were used
-- last: one, or with graphs as many as the caller wants.
function M.stack_at(lab, step)
    if make_room(lab, step) then collectgarbage() end
    lab.stream = M.stream_at(lab, step)
    lab.stack = on_shelf(lab)
    lab.shelf[#lab.shelf + 1] = lab.stack
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

-- Collective. A step, launched or as a graph: see cplab.step_graph.
local function next_step(run, stack, options, traced)
    if not options.graphs then return function() stack:run_step(options) end end
    local step, how = step_graph.step(stack, options, traced)
    run.captured = run.captured + (how == "captured" and 1 or 0)
    run.replayed = run.replayed + (how == "launched" and 0 or 1)
    return step
end

-- Warm-up leaves nothing behind: its steps are all step 0, and the parameters are drawn again.
local function warm_up(lab, options)
    for _ = 1, options.warmup do
        M.stack_at(lab, 0):step(optimizers.at(options, 0))
    end
    M.stack_at(lab, 0).parameters:draw(lab.model.seed)
end

-- Collective. Step i, from 1, of a run.
local function run_step(lab, run, options, traced, i)
    run.stack = M.stack_at(lab, i - 1)
    run.stack:set_trace(traced)
    local step = next_step(run, run.stack, optimizers.at(options, i - 1), traced)
    run.records[i] = measure.iteration(run.stack, step)
    run.losses[i] = run.stack:read_step(options)
    M.add_trace(lab.comm, run.trace)
end

--- Collective. Runs warm-up steps and then the measured ones, from the initial parameters.
-- @tparam table lab
-- @tparam table options iters, warmup, backward, graphs, and the settings of an optimizer, of which
-- lr may be a list of those of all steps
-- @tparam boolean traced
-- @treturn table stack (of the last step), records and losses (one a measured step), trace
-- { wrong_rows (this rank's), first (cpl_first_wrong) }, captured and replayed (steps)
function M.run(lab, options, traced)
    local run = { records = {}, losses = {}, captured = 0, replayed = 0,
        trace = { wrong_rows = 0, first = ffi.new "cpl_first_wrong" } }
    lab.n_stacks, lab.mould = options.graphs or 1, options.graphs and moulds.new(lab.comm)
    warm_up(lab, options)
    for i = 1, options.iters do
        run.stack = nil
        if make_room(lab, i - 1) then collectgarbage() end
        run_step(lab, run, options, traced, i)
    end
    return run
end

return M
