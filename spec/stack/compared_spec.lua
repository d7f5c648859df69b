-- What parity compares: each layer's output, the logits, each parameter's gradient and that of
-- the embedding's output. A tensor that is left out is one that may be wrong.
local clib = require "clib"
local cplab = require "cplab"
local labs = require "spec.support.labs"
local metrics = require "cplab.metrics"
local references = require "cplab.reference"
local stacks = require "cplab.stack"
local C, ffi = clib.C, clib.ffi

local function live()
    local fields = labs.model { policy = "zigzag" }
    fields.schedule, fields.pattern = cplab.schedule.pattern("G*", 2), nil
    local self = { comm = C.cpl_comm_self(), rank = 0, cp = 1, tp = 1,
        model = cplab.model(fields), stream = cplab.stream.thd { lengths = { 16 } }, streams = {} }
    self.experiment = { stream = function() return self.stream end }
    return stacks.new(self), references.parity(self)
end

-- The parity of a step whose tensor has one number changed, or NaN, and whose it is.
local function spoil(stack, key, tensor, value)
    local data = ffi.cast("double *", tensor.data)
    local last = tonumber(C.cpl_tensor_n_elements(tensor)) - 1
    local kept = data[last]
    data[last] = kept + value
    local m = metrics.compare(stack, key, true)
    data[last] = kept
    return m
end

describe("parity of a step", function()
    it("notices one wrong number, or a NaN, in each tensor, and names it", function()
        local stack, key = live()
        stack:step { backward = true }
        local m = metrics.compare(stack, key, true)
        assert.equal(0, m.parity_fwd)
        assert.equal(0, m.parity_grad)
        local n = 0
        for which, list in pairs { parity_fwd = { stack:outputs() },
            parity_grad = { stack:gradients(), stack:input_gradients() } } do
            for _, tensors in ipairs(list) do
                for _, entry in ipairs(tensors) do
                    m = spoil(stack, key, entry.tensor, 1)
                    assert.is_true(m[which] > 1e-3)
                    assert.equal(entry.name, m[which .. "_where"])
                    m = spoil(stack, key, entry.tensor, 0 / 0)
                    assert.is_true(m[which] ~= m[which])
                    assert.equal(entry.name, m[which .. "_where"])
                    n = n + 1
                end
            end
        end
        -- Two layers and logits; embedding, two norms and an MLP a layer, nine of GDN, six of
        -- GQA, final norm and head; the embedding's output.
        assert.equal(3 + (1 + 2 * (2 + 3) + 9 + 6 + 2) + 1, n)
    end)

    it("is of the outputs, not of what goes in", function()
        local stack = live()
        stack:step { backward = true }
        local outputs, seen = stack:outputs(), {}
        assert.equal("layers.0.gdn", outputs[1].name)
        assert.equal("layers.1.gqa", outputs[2].name)
        assert.equal("logits", outputs[3].name)
        assert.equal(17, tonumber(C.cpl_tensor_width(outputs[3].tensor)))
        -- The embedding's output is what goes into the first layer; each output is another one.
        clib.check(C.cpl_layer_forward(stack.embedding.ptr, stack.tokens, stack.t))
        seen[ffi.string(stack.t.data, C.cpl_tensor_bytes(stack.t))] = true
        for _, entry in ipairs(outputs) do
            local bytes = ffi.string(entry.tensor.data, C.cpl_tensor_bytes(entry.tensor))
            assert.is_nil(seen[bytes])
            seen[bytes] = true
        end
    end)

    it("without backward has no gradient to compare", function()
        local stack, key = live()
        stack:step {}
        assert.is_nil(metrics.compare(stack, key, false).parity_grad)
    end)
end)
