--- Steps as graphs. The first step of a stack is launched as it is, and takes the memory that a
-- step needs; if the same step comes again it is captured then, and replayed from then on, with
-- what parameters, moments, tokens and the learning rate are at that time, by a host that asks for
-- one thing. Other sequences mean another stack, and so another graph; cplab.steps keeps several.
-- @module cplab.step_graph
local capture = require "cplab.capture"
local optimizers = require "cplab.optimizer"

local Graph = {}
Graph.__index = Graph

local M = {}

-- What of its options a step's launches depend on.
local NAMES = { "backward", "optimizer", "clip", "beta1", "beta2", "eps", "weight_decay" }

local function key_of(options, traced)
    local of = { traced = traced }
    for _, name in ipairs(NAMES) do of[name] = options[name] end
    return optimizers.text(of)
end

-- Collective. What is counted while it is captured is what each replay counts.
local function new(stack, options)
    local self = setmetatable({ counted = {} }, Graph)
    optimizers.turn(stack.parameters, options)
    for _, c in pairs(stack.conversions) do c:reset() end
    self.capture = capture.of(stack.comm, function() stack:run_step(options) end)
    for i, c in pairs(stack.conversions) do
        self.counted[i] = c:counted()
        c:reset()
    end
    return self
end

local function replay(self, stack, options)
    optimizers.turn(stack.parameters, options)
    self.capture:replay()
    for i, c in pairs(stack.conversions) do c:count_again(self.counted[i]) end
end

--- Collective. What to call for the next step of a stack; what is captured for it is captured here.
-- @tparam table stack
-- @tparam table options of Stack:run_step
-- @tparam boolean traced whether rows carry their positions
-- @treturn function
-- @treturn string "launched", "captured" (and replayed) or "replayed"
-- @raise what cannot be captured
function M.step(stack, options, traced)
    local key = key_of(options, traced)
    if stack.ran ~= key then
        stack.ran, stack.graph = key, nil
        return function() stack:run_step(options) end, "launched"
    end
    local is_new = not stack.graph
    stack.graph = stack.graph or new(stack, options)
    return function() replay(stack.graph, stack, options) end, is_new and "captured" or "replayed"
end

return M
