--- Steps as graphs. A step that comes for the first time is launched as it is; if it comes again it
-- is captured then, and replayed from then on, with what parameters, moments, tokens
-- and the learning rate are then, by a host that asks for one thing.
--
-- What is "the same step"? Where a stack has a mould (cplab.mould) a step is what its launches are:
-- each new stack is rehearsed once, and a graph serves it if the digest is that of the captured
-- step, on all ranks. So one graph serves sequences that it was not made for. Elsewhere (by NCCL,
-- whose captures hold counts) a step is its stack and its options.
-- @module cplab.step_graph
local capture = require "cplab.capture"
local comms = require "cplab.comm"
local optimizers = require "cplab.optimizer"

local M = {}

--- As many kinds of sequences may have graphs: each has a stack with its activations.
M.most = 1024

-- What of its options a step's launches depend on.
local NAMES = { "backward", "optimizer", "clip", "beta1", "beta2", "eps", "weight_decay" }

local function key_of(options, traced)
    local of = { traced = traced }
    for _, name in ipairs(NAMES) do of[name] = options[name] end
    return optimizers.text(of)
end

-- What conversions count while f walks through a step.
local function counting(stack, f)
    local counted = {}
    for _, c in pairs(stack.conversions) do c:reset() end
    local result = f()
    for i, c in pairs(stack.conversions) do
        counted[i] = c:counted()
        c:reset()
    end
    return result, counted
end

-- Collective. A step of a stack: what tells it from others, and what it counts.
local function new_step(stack, key, options)
    local step = { key = key }
    if not stack.mould then return step end
    optimizers.prepare(stack.parameters, options)
    step.rehearsal, step.counted = counting(stack, function()
        return stack.mould:rehearse(function() stack:run_step(options) end)
    end)
    return step
end

local function step_of(stack, options, traced)
    local key = key_of(options, traced)
    stack.steps[key] = stack.steps[key] or new_step(stack, key, options)
    return stack.steps[key]
end

-- Collective. Whether two steps have the same launches, on all ranks; each rank has both or lacks
-- both.
local function are_same(stack, a, b)
    if rawequal(a, b) then return true end
    if not (a and b and a.rehearsal and b.rehearsal) then return false end
    return comms.wrap(stack.comm):agree(a.rehearsal.digest == b.rehearsal.digest)
end

-- Collective. A graph of a step.
local function new_graph(stack, step, options)
    local graph = { step = step }
    optimizers.turn(stack.parameters, options)
    graph.capture, step.counted = counting(stack, function()
        return capture.of(stack.comm, function() stack:run_step(options) end, stack.mould)
    end)
    return graph
end

local function replay(graph, stack, step, options)
    optimizers.turn(stack.parameters, options)
    if step.rehearsal then
        graph.capture:replay_as(step.rehearsal)
    else
        graph.capture:replay()
    end
    for i, c in pairs(stack.conversions) do c:count_again(step.counted[i]) end
end

--- Collective. What to call for the next step of a stack; what is captured for it is captured here.
-- What is known of steps hangs on the stack's mould, if it has one: { ran = the step that was
-- launched last, graph = }.
-- @tparam table stack
-- @tparam table options of Stack:run_step
-- @tparam boolean traced whether rows carry their positions
-- @treturn function
-- @treturn string "launched", "captured" (and replayed) or "replayed"
-- @raise what cannot be captured
function M.step(stack, options, traced)
    local known = stack.mould or stack
    local step, how = step_of(stack, options, traced), "replayed"
    if not (known.graph and are_same(stack, known.graph.step, step)) then
        known.graph = nil
        if not are_same(stack, known.ran, step) then
            known.ran = step
            return function() stack:run_step(options) end, "launched"
        end
        known.graph, how = new_graph(stack, step, options), "captured"
    end
    return function() replay(known.graph, stack, step, options) end, how
end

return M
