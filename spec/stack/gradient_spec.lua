-- The gradients of a whole stack against finite differences of its loss, on one rank. Parity
-- compares a stack with itself: a residual that backward forgets is forgotten on one rank too.
local clib = require "clib"
local cplab = require "cplab"
local labs = require "spec.support.labs"
local layers = require "spec.support.layers"
local stacks = require "cplab.stack"
local C, ffi = clib.C, clib.ffi

-- A loss of a few units rounds at 1e-15, which a step of 1e-6 makes 1e-9 in a difference.
local STEP, TOLERANCE = 1e-6, 1e-5

local function live(changes)
    local fields = labs.model(changes)
    fields.schedule = cplab.schedule.pattern(fields.pattern, #fields.pattern)
    fields.pattern, fields.mlp = nil, fields.mlp or nil
    local stack = stacks.new { model = cplab.model(fields), cp = 1, tp = 1,
        stream = cplab.stream.thd { lengths = { 10, 0, 6 }, real = { 7, 0, 6 } },
        comm = C.cpl_comm_self() }
    layers.fill(stack.parameters.weights, "weights") -- no weight is at a special point
    return stack
end

local function numbers(tensor)
    return ffi.cast("double *", tensor.data), tonumber(C.cpl_tensor_n_elements(tensor))
end

local function check(stack, entry, gradient, n, bound)
    local weights = numbers(entry.weight)
    for i = 0, n - 1, math.max(1, math.floor(n / 3)) do
        local kept = weights[i]
        weights[i] = kept + STEP
        local up = stack:step {}
        weights[i] = kept - STEP
        local down = stack:step {}
        weights[i] = kept
        local expected = (up - down) / (2 * STEP)
        assert.is_true(math.abs(expected - gradient[i]) <= bound,
            ("%s[%d]: differences %.10g, backward %.10g"):format(entry.name, i, expected,
                gradient[i]))
    end
end

describe("the gradients of a stack equal finite differences", function()
    local MODELS = { ["with an MLP"] = {}, ["with a tied head"] = { tied = true },
        ["without"] = { mlp = false, pattern = "G*" },
        ["with experts behind a dense layer"] = { pattern = "G*", moe = { experts = 5, top_k = 2,
            width = 6, shared_width = 4, first_layer = 1 } } }
    for name, changes in pairs(MODELS) do
        it(name, function()
            local stack = live(changes)
            stack:step { backward = true }
            local all, n_all = numbers(stack.parameters.grads)
            local kept = ffi.new("double[?]", n_all)
            ffi.copy(kept, all, n_all * 8)
            for _, entry in ipairs(stack.parameters.list) do
                local grads, n = numbers(entry.grad)
                local gradient, largest = kept + (grads - all), 1e-3
                for i = 0, n - 1 do largest = math.max(largest, math.abs(gradient[i])) end
                check(stack, entry, gradient, n, TOLERANCE * largest)
            end
        end)
    end

    it("and the optimizer goes against them: w - lr * gradient, to the bit", function()
        local stack = live {}
        local weights, n = numbers(stack.parameters.weights)
        local before = ffi.new("double[?]", n)
        ffi.copy(before, weights, n * 8)
        stack:step { backward = true, optimizer = "sgd", lr = 0.25 }
        local gradients = numbers(stack.parameters.grads)
        for i = 0, n - 1 do
            assert.equal(before[i] - 0.25 * gradients[i], weights[i])
        end
    end)
end)
