-- Steps with a stream of their own, and what must not leak from one step into the next.
local labs = require "spec.support.labs"

local STREAMS = { { lengths = { 32, 16 } }, { lengths = { 16, 48 }, real = { 11, 47 } } }

local function run(calls, changes, options)
    local result, message = labs.run { streams = STREAMS, cp = 2, calls = calls,
        model = labs.model(changes), options = options }
    assert(result, message)
    return result.answers
end

describe("a stream for each step", function()
    it("goes on with the parameters of the step before", function()
        local losses = run({ { "step", { iters = 9, optimizer = "sgd", lr = 0.3 } } })[1].losses
        assert.is_true(losses[9] < losses[1] - 0.05) -- the first stream again, eight updates later
    end)

    it("is the same for the reference: training equals that of one rank", function()
        local training = { iters = 6, optimizer = "sgd", lr = 0.1 }
        for _, policy in ipairs { "zigzag", "native" } do
            local answers = run({ { "step", training }, { "reference", training } },
                { policy = policy })
            for i, loss in ipairs(answers[1].losses) do
                -- Six steps carry the 1e-15 of one on; 1e-12 leaves room for their growth.
                assert.is_true(math.abs(loss - answers[2].losses[i]) <= 1e-12 * loss)
            end
        end
    end)

    it("is that stream: its loss is the one that it has alone", function()
        local both = run({ { "step", { iters = 2 } } })[1].losses
        for i, stream in ipairs(STREAMS) do
            local result, message = labs.run { stream = stream, cp = 2, model = labs.model(),
                calls = { { "step", {} } } }
            assert(result, message)
            assert.equal(result.answers[1].loss, both[i])
        end
    end)

    it("gives its tokens to a stack with its sequences alone", function()
        local cplab, stacks = require "cplab", require "cplab.stack"
        local model = labs.model()
        model.schedule, model.pattern = cplab.schedule.pattern("G*", 2), nil
        local function stream(lengths) return cplab.stream.thd { lengths = lengths } end
        local stack = stacks.new { model = cplab.model(model), cp = 1,
            comm = require("clib").C.cpl_comm_self(), stream = stream { 16, 8 } }
        stack:take_tokens(stream { 16, 8 })
        local ok, message = pcall(stack.take_tokens, stack, stream { 8, 16 })
        assert.is_false(ok)
        assert.matches("stack: it was made for .*, and takes no tokens of .*, which has other "
            .. "sequences$", message)
    end)

    it("begins with that of step 0 in each call", function()
        local answers = run { { "step", { iters = 3 } }, { "step", { iters = 3 } } }
        assert.same(answers[1].losses, answers[2].losses)
        assert.equal(answers[1].losses[1], answers[1].losses[3])
        assert.not_equal(answers[1].losses[1], answers[1].losses[2])
    end)

    it("is compared with the reference at step 0 only; more is refused", function()
        assert.is_true(run({ { "step", { reference = true } } })[1].parity_grad <= 1e-12)
        local result, message = labs.run { streams = STREAMS, cp = 2, model = labs.model(),
            calls = { { "step", { reference = true, iters = 2 } } } }
        assert.is_nil(result)
        assert.truthy(message:find("lab:step: reference compares the first step; with an "
            .. "optimizer, or a stream for each step, iters must be 1 (got 2)", 1,
            true), message)
    end)
end)

describe("steps", function()
    local function one_stream(calls, changes, options)
        local result, message = labs.run { stream = STREAMS[1], cp = 2, calls = calls,
            model = labs.model(changes), options = options }
        return result and result.answers, message, result
    end

    it("count the lazy routes of one step, not of all", function()
        local answers = one_stream({ { "step", { iters = 3 } }, { "step", { iters = 3 } } },
            { routes = "lazy", policy = "mirror" })
        assert.equal(1, answers[1].routes_built_in_step)
        assert.equal(1, answers[2].routes_built_in_step)
    end)

    it("sum the wrong rows of all traced steps, and name the first", function()
        local swap = { faults = { swap_runs = { rank = 1 } } }
        local one = one_stream({ { "step", { trace = true } } }, nil, swap)
        local three, _, result = one_stream({ { "step", { trace = true, iters = 3 } } }, nil, swap)
        assert.is_true(one[1].wrong_rows > 0)
        assert.equal(3 * one[1].wrong_rows, three[1].wrong_rows)
        assert.truthy(result.checks[1].name:find("^trace: layers%.0%.norm1, rank 1, slot 0"))
    end)

    it("refuse to compare trained parameters with the first step", function()
        local _, message = one_stream { { "step", { reference = true, iters = 2,
            optimizer = "sgd", lr = 0.1 } } }
        assert.truthy(message:find("iters must be 1 (got 2)", 1, true), message)
    end)

    it("take --iters for training and for its reference alike, not for a comparison", function()
        local training = { optimizer = "sgd", lr = 0.1 }
        local answers = one_stream({ { "step", training }, { "reference", training },
            { "step", { reference = true } } }, nil, { iters = 4, warmup = 0 })
        assert.equal(4, #answers[1].losses)
        assert.equal(4, #answers[2].losses)
        assert.equal(1, #answers[3].losses)
    end)

    it("refuse tokens beyond the vocabulary", function()
        local tokens = {}
        for i = 1, 16 do tokens[i] = i == 7 and 17 or 3 end
        local _, message = labs.run { stream = { lengths = { 16 }, tokens = tokens }, cp = 2,
            model = labs.model(), calls = { { "step", {} } } }
        assert.truthy(message:find("stack: token 17 at position 6, vocabulary of 17", 1, true),
            message)
    end)
end)
