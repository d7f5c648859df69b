-- A tied head: one table for the embedding and for the logits, whose two gradients add.
-- Finite differences of it are in gradient_spec.
local clib = require "clib"
local cplab = require "cplab"
local labs = require "spec.support.labs"
local stacks = require "cplab.stack"
local C, ffi = clib.C, clib.ffi

local function live(tied)
    local fields = labs.model { tied = tied }
    fields.schedule, fields.pattern = cplab.schedule.pattern(fields.pattern, 4), nil
    return stacks.new { model = cplab.model(fields), cp = 1, tp = 1,
        stream = cplab.stream.thd { lengths = { 10, 6 }, real = { 7, 6 } },
        comm = C.cpl_comm_self() }
end

local function by_name(stack, name)
    for _, entry in ipairs(stack.parameters.list) do
        if entry.name == name then return entry end
    end
end

local function list_of(tensor)
    local list, data = {}, ffi.cast("double *", tensor.data)
    for i = 1, tonumber(C.cpl_tensor_n_elements(tensor)) do list[i] = data[i - 1] end
    return list
end

describe("a tied head", function()
    it("is no parameter of its own", function()
        local tied, untied = live(true), live(false)
        assert.is_nil(by_name(tied, "head.weight"))
        assert.is_not_nil(by_name(untied, "head.weight"))
        assert.equal(untied.parameters.n, tied.parameters.n + 17 * 12)
    end)

    it("has the sum of the gradients that two tables with the same numbers have", function()
        local tied, untied = live(true), live(false)
        local table_ = by_name(untied, "embedding.weight")
        clib.check(C.cpl_tensor_copy(by_name(untied, "head.weight").weight, table_.weight))
        assert.equal(untied:step { backward = true }, tied:step { backward = true })
        local a = list_of(by_name(untied, "head.weight").grad)
        local b, sum = list_of(table_.grad), list_of(by_name(tied, "embedding.weight").grad)
        local far = 0
        for i = 1, #sum do
            assert.is_true(math.abs(sum[i] - a[i] - b[i]) < 1e-15)
            far = math.max(far, math.abs(sum[i] - a[i]))
        end
        assert.is_true(far > 1e-3)
    end)

    it("equals one rank under every policy, and trains as it does", function()
        local training = { iters = 10, optimizer = "adamw", lr = 3e-3, clip = 1 }
        for _, policy in ipairs { "zigzag", "mirror", "native" } do
            local result = assert(labs.run { cp = 4, stream = { lengths = { 32, 16 },
                real = { 30, 13 } }, model = labs.model { policy = policy, tied = true },
                calls = { { "step", { backward = true, reference = true, trace = true } },
                    { "step", training }, { "reference", training } } })
            local m, trained, reference = unpack(result.answers)
            assert.is_true(m.parity_fwd <= 1e-12 and m.parity_grad <= 1e-12)
            assert.is_true(trained.losses[10] < trained.losses[1] - 0.01)
            for i = 1, 10 do
                assert.is_true(math.abs(trained.losses[i] - reference.losses[i])
                    <= 1e-10 * trained.losses[i])
            end
        end
    end)

    it("is another model: its reference is its own", function()
        local fields = labs.model()
        fields.schedule, fields.pattern = cplab.schedule.pattern(fields.pattern, 4), nil
        local untied = cplab.model(fields):signature()
        fields.tied = true
        assert.not_equal(untied, cplab.model(fields):signature())
    end)
end)
