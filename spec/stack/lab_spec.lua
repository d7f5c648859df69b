-- The lab as an experiment sees it: training, references, checks, moving tensors, misuse.
local labs = require "spec.support.labs"

local STREAM = { lengths = { 32, 16 }, real = { 30, 13 } }

local function run(cp, calls, options, model)
    local result, message, rank = labs.run { stream = STREAM, cp = cp, calls = calls,
        options = options, model = model or labs.model { policy = "mirror" } }
    return result, message, rank
end

describe("lab", function()
    it("trains: losses fall and equal those of one rank, whatever the policy", function()
        local training = { iters = 10, optimizer = "sgd", lr = 0.1 }
        local first
        for _, policy in ipairs { "zigzag", "contiguous", "mirror", "native" } do
            local result = assert(run(4, { { "step", training }, { "reference", training } }, nil,
                labs.model { policy = policy }))
            local losses, reference = result.answers[1].losses, result.answers[2].losses
            assert.equal(10, #losses)
            assert.is_true(losses[10] < losses[1] - 0.01)
            for i = 1, 10 do
                -- Ten steps carry the 1e-15 of one on; 1e-12 leaves room for their growth.
                assert.is_true(math.abs(losses[i] - reference[i]) <= 1e-12 * reference[i])
            end
            first = first or reference
            assert.same(first, reference)
        end
    end)

    it("starts each step call from the initial parameters", function()
        local training = { iters = 3, optimizer = "sgd", lr = 0.5 }
        local result = assert(run(2, { { "step", training }, { "step", training } }))
        assert.same(result.answers[1].losses, result.answers[2].losses)
        assert.is_true(result.answers[1].losses[3] < result.answers[1].losses[1])
    end)

    it("warms up without a trace: training starts from the initial parameters", function()
        local training = { iters = 2, optimizer = "sgd", lr = 0.5 }
        local warmed = { iters = 2, warmup = 3, optimizer = "sgd", lr = 0.5 }
        local answers = assert(run(2, { { "step", training }, { "step", warmed },
            { "step", { warmup = 2, reference = true } } })).answers
        assert.same(answers[1].losses, answers[2].losses)
        assert.equal(answers[2].losses[2], answers[2].loss)
        assert.is_true(answers[3].parity_grad <= 1e-12)
    end)

    it("compares outputs alone where backward is false", function()
        local m = assert(run(2, { { "step", { backward = false, reference = true } } })).answers[1]
        assert.is_true(m.parity_fwd <= 1e-12)
        assert.is_nil(m.parity_grad)
        assert.equal(0, m.conversions_bwd)
    end)

    it("keeps the parity of the traced step and the times of the later ones", function()
        local result = assert(run(2, {
            { "step", { backward = true, reference = true, trace = true } },
            { "step", { iters = 4, warmup = 2, backward = true } },
        }))
        assert.is_nil(result.answers[2].parity_grad)
        assert.is_nil(result.answers[2].wrong_rows)
        assert.is_true(result.metrics.parity_grad <= 1e-12)
        assert.equal(0, result.metrics.wrong_rows)
        assert.equal(result.answers[2].step_ms, result.metrics.step_ms)
    end)

    it("takes dtype and seed from the command line", function()
        local one = assert(run(2, { { "step", {} } }, { seed = 11 })).answers[1]
        local other = assert(run(2, { { "step", {} } })).answers[1]
        assert.not_equal(one.loss, other.loss)
        local f32 = assert(run(2, { { "step", { reference = true } } }, { dtype = "f32" }))
        assert.is_true(f32.metrics.parity_grad > 1e-12 and f32.metrics.parity_grad < 1e-4)
    end)

    it("passes a check iff value <= bound or equals it; nil and NaN fail", function()
        local result = assert(run(1, {
            { "check", "below", 1, 2 }, { "check", "at", 2, 2 }, { "check", "above", 3, 2 },
            { "check", "equal", 4, { equals = 4 } }, { "check", "unequal", 5, { equals = 4 } },
            { "check", "less", 3, { equals = 4 } },
            { "check", "absent", nil, 2 }, { "check", "nan", 0 / 0, 2 },
            { "check", "nan equals", 0 / 0, { equals = 0 } },
        }))
        local verdicts = {}
        for i, check in ipairs(result.checks) do verdicts[i] = check.passed end
        assert.same({ true, true, false, true, false, false, false, false, false }, verdicts)
    end)

    it("refuses unknown options, with the nearest, at the caller's line", function()
        local function refused(message, call)
            local result, got, rank = run(2, { call })
            assert.is_nil(result)
            assert.truthy(got:find(message, 1, true), got)
            assert.is_true(rank == 0 or rank == 1)
        end
        refused('lab:step: unknown field "iter"; did you mean "iters"?',
            { "step", { iter = 3 } })
        refused("lab:step: an optimizer needs backward, which is false",
            { "step", { optimizer = "sgd", lr = 1, backward = false } })
        refused("lab:step: optimizer 'sgd' needs lr", { "step", { optimizer = "sgd" } })
        refused('lab:step: unknown optimizer "sgdd"; did you mean "sgd"?',
            { "step", { optimizer = "sgdd", lr = 1 } })
        refused("lab:step: clip is an option of an optimizer, and there is none",
            { "step", { backward = true, clip = 1 } })
        refused("lab:step: betas is an option of adamw",
            { "step", { optimizer = "sgd", lr = 1, betas = { 0.9, 0.9 } } })
        refused("lab:step: betas[2] must be one of two numbers in [0, 1) (got 1)",
            { "step", { optimizer = "adamw", lr = 1, betas = { 0.9, 1 } } })
        refused("lab:step: betas[3] must be one of two numbers in [0, 1) (got 0.5)",
            { "step", { optimizer = "adamw", lr = 1, betas = { 0.9, 0.9, 0.5 } } })
        refused("lab:step: eps must be at least 0 (got -1)",
            { "step", { optimizer = "adamw", lr = 1, eps = -1 } })
        refused("lab:reference: clip must be above 0 (got 0)",
            { "reference", { optimizer = "sgd", lr = 1, clip = 0 } })
        refused("lab:step: iters must be at least 1 (got 0)", { "step", { iters = 0 } })
        refused("lab:step: options must be a table (got 3)", { "step", 3 })
        -- What reads a tensor goes by its pointer.
        refused('lab:convert: tensor must be a cplab.tensor (got "x")',
            { "convert", "x", "zigzag", "contiguous" })
        refused("lab:gather: tensor must be a cplab.tensor (got a table)", { "gather", { 1 } })
        refused('lab:reference: unknown field "trace"; there are backward, betas, '
            .. "clip, eps, iters, lr, optimizer, weight_decay",
            { "reference", { trace = true } })
        refused("lab:check: the bound of 'x' must be a number or { equals = number }",
            { "check", "x", 1, "2" })
    end)

    it("refuses steps that differ between ranks", function()
        local result, message = run(2, { { "step_by_rank" } })
        assert.is_nil(result)
        assert.truthy(message:find("lab:step: the ranks ask for different steps; rank %d: "
            .. "backward=true iters=1 lr=[%d.]+ optimizer=sgd"), message)
    end)

    it("converts and gathers tensors of the script", function()
        for _, cp in ipairs { 1, 2, 4 } do
            local result = assert(run(cp, { { "convert_and_gather", "zigzag", "mirror" } }))
            local expected = {}
            for position = 0, 47 do
                expected[2 * position + 1], expected[2 * position + 2] = position, -position
            end
            assert.same(expected, result.answers[1])
        end
    end)
end)
