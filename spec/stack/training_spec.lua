-- Training: the loss curve of an optimizer is the same in every layout and at every CP size,
-- clipping knows all gradients at once, and what decays is what the module says.
local clib = require "clib"
local cplab = require "cplab"
local labs = require "spec.support.labs"
local optimizers = require "cplab.optimizer"
local stacks = require "cplab.stack"
local C, ffi = clib.C, clib.ffi

local STREAM = { lengths = { 48, 24 }, real = { 46, 19 } }

local TRAINING = {
    sgd = { iters = 20, optimizer = "sgd", lr = 0.2, clip = 0.5 },
    adamw = { iters = 20, optimizer = "adamw", lr = 3e-3, weight_decay = 0.1, clip = 0.5 },
}

local function train(policy, cp, training, streams)
    local result, message = labs.run {
        stream = STREAM, streams = streams, cp = cp, model = labs.model { policy = policy },
        calls = { { "step", training }, { "step", training }, { "reference", training } },
    }
    if not result then error(message, 2) end
    return result.answers[1], result.answers[2], result.answers[3].losses
end

-- Adam divides by a root of squares: where a gradient is a few roundings, so is its direction's
-- error against eps = 1e-8 of it. Twenty steps of that stay below 1e-10 of the loss.
local function same(expected, losses)
    assert.equal(#expected, #losses)
    for i = 1, #losses do
        assert.is_true(math.abs(losses[i] - expected[i]) <= 1e-10 * expected[i],
            ("step %d: %.17g, expected %.17g"):format(i, losses[i], expected[i]))
    end
end

describe("the loss curve of 20 steps", function()
    for name, training in pairs(TRAINING) do
        for _, case in ipairs { { "zigzag", 2 }, { "contiguous", 3 }, { "mirror", 4 },
            { "balanced", 2 }, { "native", 3 }, { "native", 1 } } do
            it(("%s: is that of one rank under %s at cp %d, and falls"):format(name, case[1],
                case[2]), function()
                local m, again, reference = train(case[1], case[2], training)
                same(reference, m.losses)
                assert.is_true(m.losses[20] < m.losses[1] - 0.01)
                assert.same(m.losses, again.losses) -- moments do not outlive a call
                assert.equal(m.grad_norm, again.grad_norm)
            end)
        end
    end

    it("is another one for another optimizer, decay, beta or clip", function()
        local seen = {}
        for _, changes in ipairs { {}, { weight_decay = 0 }, { betas = { 0.9, 0.99 } },
            { clip = 0.25, eps = 1 }, { eps = 1 } } do
            local training = { iters = 3, optimizer = "adamw", lr = 3e-3 }
            for name, value in pairs(changes) do training[name] = value end
            local m, _, reference = train("mirror", 2, training)
            same(reference, m.losses)
            assert.is_nil(seen[m.losses[3]])
            seen[m.losses[3]] = true
        end
    end)

    it("goes on over stacks: moments move where each step has a stream of its own", function()
        local training = { iters = 6, optimizer = "adamw", lr = 3e-3 }
        local m = train("mirror", 2, training)
        local moved = train("mirror", 2, training, { STREAM, STREAM })
        assert.same(m.losses, moved.losses)
    end)

    it("starts after a warm-up as if there had been none", function()
        local training = { iters = 3, optimizer = "adamw", lr = 3e-3 }
        local m = train("zigzag", 2, training)
        training.warmup = 2
        local result = assert(labs.run { stream = STREAM, cp = 2,
            model = labs.model { policy = "zigzag" }, calls = { { "step", training } } })
        assert.same(m.losses, result.answers[1].losses)
    end)
end)

describe("a learning rate that is a function of the step", function()
    local function run(calls, options)
        return labs.run { stream = STREAM, cp = 2, model = labs.model { policy = "zigzag" },
            calls = calls, options = options }
    end

    local function losses_of(calls, options)
        local lists = {}
        for i, answer in ipairs(assert(run(calls, options)).answers) do lists[i] = answer.losses end
        return unpack(lists)
    end

    local function training(name, changes)
        local t = { iters = 4, optimizer = name }
        for key, value in pairs(changes or {}) do t[key] = value end
        return t
    end

    for name, lr in pairs { sgd = 0.2, adamw = 3e-3 } do
        it("is asked for each step from 0, and for warm-up as for step 0: " .. name, function()
            local number, same_rates, planned, warmed, reference = losses_of {
                { "step", training(name, { lr = lr }) },
                { "with_rates", "step", training(name), { lr, lr, lr, lr } },
                { "with_rates", "step", training(name), { lr, lr / 2, 0, lr } },
                { "with_rates", "step", training(name, { warmup = 2 }), { lr, lr / 2, 0, lr } },
                { "with_rates", "reference", training(name), { lr, lr / 2, 0, lr } },
            }
            assert.same(number, same_rates) -- to the bit
            assert.same({ number[1], number[2] }, { planned[1], planned[2] })
            assert.is_true(math.abs(planned[3] - number[3]) > 1e-4)
            assert.equal(planned[3], planned[4]) -- by a rate of 0
            assert.same(planned, warmed)
            same(reference, planned)
        end)
    end

    it("is of as many steps as --iters says", function()
        local step, reference = losses_of({
            { "with_rates", "step", { optimizer = "sgd" }, { 0.2, 0.1, 0.3 } },
            { "with_rates", "reference", { optimizer = "sgd" }, { 0.2, 0.1, 0.3 } },
        }, { iters = 3 })
        assert.equal(3, #step)
        same(reference, step)
    end)

    it("is refused where it is no rate, and so is a number", function()
        local function refused(rule, call)
            local result, message = run { call }
            assert.is_nil(result)
            local said = message:match "lab_rank%.lua:%d+: (.*)" -- the line of the call
            assert.equal(1, said:find(rule, 1, true), message)
            return said
        end
        local rule = "must be a finite number, at least 0 (got %s)"
        for _, case in ipairs { { -0.5, "-0.5" }, { 1 / 0, "inf" }, { 0 / 0, "nan" },
            { "x", '"x"' }, { nil, "nil" } } do
            for _, method in ipairs { "step", "reference" } do
                refused(("lab:%s: lr(1) "):format(method) .. rule:format(case[2]),
                    { "with_rates", method, training "sgd", { 0.1, case[1] } })
            end
            if type(case[1]) == "number" and case[1] == case[1] then
                refused("lab:step: lr " .. rule:format(case[2]),
                    { "step", training("sgd", { lr = case[1] }) })
            end
        end
        local said = refused("lab:step: the ranks ask for different steps; rank ", { "with_rates",
            "step", training("sgd", { iters = 2 }), { 0.5, { 0.125, 0.25 } } })
        assert.matches("lr=0%.5,0%.1?25 optimizer=sgd", said)
    end)
end)

-- A stack on one rank.
local function live()
    local fields = labs.model()
    fields.schedule, fields.pattern = cplab.schedule.pattern(fields.pattern, 4), nil
    return stacks.new { model = cplab.model(fields), cp = 1, tp = 1,
        stream = cplab.stream.thd { lengths = { 10, 6 }, real = { 7, 6 } },
        comm = C.cpl_comm_self() }
end

local function list_of(tensor)
    local list, data = {}, ffi.cast("double *", tensor.data)
    for i = 1, tonumber(C.cpl_tensor_n_elements(tensor)) do list[i] = data[i - 1] end
    return list
end

local function norm(list)
    local sum = 0
    for _, x in ipairs(list) do sum = sum + x * x end
    return math.sqrt(sum)
end

describe("grad_norm", function()
    it("is the norm of all gradients together", function()
        local stack = live()
        stack:step { backward = true }
        local expected = norm(list_of(stack.parameters.grads))
        assert.is_true(math.abs(stack.grad_norm / expected - 1) < 1e-13)
    end)

    it("is the same at every CP size: it is taken after the sum over ranks", function()
        local first
        for _, cp in ipairs { 1, 2, 4 } do
            local m = labs.parity_step(STREAM, labs.model { policy = "mirror" }, cp)
            first = first or m.grad_norm
            assert.is_true(m.grad_norm > 0.01)
            assert.is_true(math.abs(m.grad_norm / first - 1) < 1e-12)
        end
    end)

    it("is absent without a backward pass", function()
        local result = assert(labs.run { stream = STREAM, cp = 2, model = labs.model(),
            calls = { { "step", { backward = true } }, { "step", {} } } })
        assert.is_number(result.answers[1].grad_norm)
        assert.is_nil(result.answers[2].grad_norm)
    end)
end)

describe("clipping", function()
    -- How far one SGD step of rate 1 goes.
    local function way(clip)
        local stack = live()
        local before = list_of(stack.parameters.weights)
        stack:step { backward = true, optimizer = "sgd", lr = 1, clip = clip }
        local after, moved = list_of(stack.parameters.weights), {}
        for i = 1, #after do moved[i] = before[i] - after[i] end
        return moved, stack
    end

    it("makes the norm of what is applied the bound; stored gradients stay", function()
        local free, stack = way(nil)
        local clipped, other = way(stack.grad_norm / 3)
        assert.is_true(math.abs(norm(clipped) / (stack.grad_norm / 3) - 1) < 1e-5)
        for i = 1, #free do assert.is_true(math.abs(free[i] - 3 * clipped[i]) < 1e-5) end
        assert.equal(stack.grad_norm, other.grad_norm)
        assert.same(list_of(stack.parameters.grads), list_of(other.parameters.grads))
    end)

    it("does nothing below the bound, to the bit", function()
        local free, stack = way(nil)
        assert.same(free, (way(stack.grad_norm * 1.01)))
        assert.not_same(free, (way(stack.grad_norm * 0.99)))
    end)

    it("hides no NaN", function()
        local stack = live()
        stack:step { backward = true }
        local settings = optimizers.settings("spec", { optimizer = "sgd", lr = 1, clip = 1 }, 1)
        C.cpl_tensor_fill(stack.parameters.grads, 1)
        C.cpl_tensor_fill(stack.parameters.squares, 0 / 0)
        optimizers.update(stack.parameters, settings)
        local w = list_of(stack.parameters.weights)[1]
        assert.is_true(w ~= w)
    end)
end)

describe("weight decay", function()
    it("concerns matrices alone", function()
        local stack = live()
        C.cpl_tensor_fill(stack.parameters.grads, 0)
        local before = {}
        for i, entry in ipairs(stack.parameters.list) do before[i] = list_of(entry.weight) end
        local settings = optimizers.settings("spec", { optimizer = "adamw", lr = 0.5,
            weight_decay = 0.5 }, 1)
        optimizers.update(stack.parameters, settings)
        local kept = {}
        for i, entry in ipairs(stack.parameters.list) do
            local factor = entry.decays and 0.75 or 1
            for j, x in ipairs(list_of(entry.weight)) do
                assert.equal(factor * before[i][j], x)
            end
            if not entry.decays then kept[entry.name:gsub("^layers%.%d+%.", "")] = true end
        end
        assert.same({ ["final_norm.weight"] = true, ["norm1.weight"] = true,
            ["norm2.weight"] = true, ["gdn.A_log"] = true, ["gdn.dt_bias"] = true,
            ["gdn.norm"] = true, ["gqa.q_norm"] = true, ["gqa.k_norm"] = true }, kept)
    end)
end)
