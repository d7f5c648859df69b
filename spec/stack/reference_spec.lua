-- References are kept in the process under a key: whatever changes the numbers must change it.
-- A key that is too weak gives the second of two cases the reference of the first.
local labs = require "spec.support.labs"

local function tokens(first)
    local list = {}
    for i = 1, 24 do list[i] = (first + 3 * i) % 17 end
    return list
end

-- Each differs from the first in one thing, and in no number of elements where that can be.
local CASES = {
    ["the first"] = {},
    ["the seed"] = { model = { seed = 4 } },
    ["the dtype"] = { model = { dtype = "f32" } },
    ["eps"] = { model = { eps = 1e-3 } },
    ["the order of layers"] = { model = { pattern = "G*GG" } },
    ["theta"] = { model = { gqa = { heads = 4, kv_heads = 2, head_dim = 8, rotary_dim = 4,
        rope_theta = 50 } } },
    ["heads"] = { model = { gdn = { key_heads = 1, value_heads = 4, key_dim = 10, value_dim = 6,
        conv = 4, chunk = 4 } } },
    ["the MLP"] = { model = { mlp = { width = 24 } } },
    ["the stream"] = { stream = { lengths = { 8, 16 } } },
    ["padding"] = { stream = { lengths = { 24, 8 }, real = { 16, 8 } } },
    ["real lengths"] = { stream = { lengths = { 16, 8 }, real = { 16, 7 } } },
    ["tokens"] = { stream = { lengths = { 16, 8 }, tokens = tokens(0) } },
    ["one token"] = { stream = { lengths = { 16, 8 }, tokens = tokens(1) } },
}
local STREAM = { lengths = { 16, 8 } }

local function model(changes)
    local all = { policy = "mirror" }
    for name, value in pairs(changes or {}) do all[name] = value end
    return labs.model(all)
end

describe("a reference", function()
    it("T-90: is of this model and this stream, its padding for another cp too", function()
        for name, case in pairs(CASES) do
            local m = labs.parity_step(case.stream or STREAM, model(case.model), 2)
            local bound = name == "the dtype" and 1e-4 or 1e-12
            assert.is_true(m.parity_fwd <= bound and m.parity_grad <= bound,
                ("%s: %g, %g"):format(name, m.parity_fwd, m.parity_grad))
        end
    end)

    it("keeps every bit of a loss", function()
        local options = { iters = 5, optimizer = "sgd", lr = 0.5 }
        local answers = assert(labs.run { stream = STREAM, cp = 1,
            model = labs.model { policy = "contiguous" },
            calls = { { "step", options }, { "reference", options } } }).answers
        assert.equal(5, #answers[1].losses)
        assert.same(answers[1].losses, answers[2].losses)
    end)

    it("is of these steps: how many, which optimizer, which lr", function()
        local calls, list = {}, {
            { iters = 2, optimizer = "sgd", lr = 0.5 }, { iters = 2, optimizer = "sgd", lr = 0.25 },
            { iters = 2, backward = true, lr = 0.5 }, { iters = 3, optimizer = "sgd", lr = 0.5 },
        }
        for i, options in ipairs(list) do
            calls[2 * i - 1], calls[2 * i] = { "step", options }, { "reference", options }
        end
        local answers = assert(labs.run { stream = STREAM, cp = 2, model = model(),
            calls = calls }).answers
        for i, options in ipairs(list) do
            local losses, reference = answers[2 * i - 1].losses, answers[2 * i].losses
            assert.equal(options.iters, #losses)
            assert.equal(options.iters, #reference)
            for j = 1, options.iters do
                assert.is_true(math.abs(losses[j] - reference[j]) <= 1e-12 * reference[j])
            end
        end
        assert.is_true(answers[1].losses[2] < answers[3].losses[2])
        assert.is_true(answers[3].losses[2] < answers[5].losses[2])
        assert.equal(answers[5].losses[1], answers[5].losses[2])
    end)
end)
