-- Every backward against central differences of its forward, once per op, in f64 on the fast
-- kernels (and the references of gdn and gqa, which the others are compared with).
--
-- The loss is the sum of the outputs times fixed weights. A step of 1e-5 leaves 1e-10 times the
-- third derivative, and rounding 1e-16 / 1e-5 = 1e-11 times the loss: 1e-7 of the largest gradient
-- has room for both, and a wrong term is far larger.
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local STEP, BOUND = 1e-5, 1e-7

local function weights_like(outputs)
    local weights = {}
    for i, t in ipairs(outputs) do weights[i] = numbers.tensor(99, i, t:shape(), -1, 1) end
    return weights
end

local function loss(outputs, weights)
    local sum = 0
    for i, t in ipairs(outputs) do
        local a, b = t:totable(), weights[i]:totable()
        for j = 1, #a do sum = sum + a[j] * b[j] end
    end
    return sum
end

-- inputs: a list of tensors; f(inputs) gives a list of outputs.
local function differences(f, inputs, weights, index)
    local list, shape, result = inputs[index]:totable(), inputs[index]:shape(), {}
    local function at(i, x)
        local moved, old = {}, list[i]
        for j, t in ipairs(inputs) do moved[j] = t end
        list[i] = x
        moved[index] = tensor.from(list, shape)
        list[i] = old
        return loss(f(moved), weights)
    end
    for i = 1, #list do
        result[i] = (at(i, list[i] + STEP) - at(i, list[i] - STEP)) / (2 * STEP)
    end
    return result
end

-- backward(inputs, outputs, weights) gives one gradient an input.
local function check(name, inputs, f, backward)
    it(name, function()
        local outputs = f(inputs)
        local weights = weights_like(outputs)
        local gradients = backward(inputs, outputs, weights)
        assert.equal(#inputs, #gradients)
        for i, gradient in ipairs(gradients) do
            local expected = differences(f, inputs, weights, i)
            numbers.close(("%s, input %d"):format(name, i), gradient, expected, BOUND)
            local wrong = gradient:totable()
            wrong[1] = wrong[1] + 1e-5 * numbers.largest(expected)
            numbers.far("a wrong gradient", wrong, expected, BOUND)
        end
    end)
end

local function random(j, ...) return numbers.tensor(5, j, { ... }, -1, 1) end

describe("gradients of", function()
    local x, w = random(0, 3, 5), random(1, 5)
    check("rms_norm", { x, w }, function(i) return { op.rms_norm(i[1], i[2]) } end,
        function(i, _, d) return { op.rms_norm_backward(i[1], i[2], d[1]) } end)
    local zero_centred = { zero_centred = true }
    check("rms_norm, zero-centred", { x, w },
        function(i) return { op.rms_norm(i[1], i[2], zero_centred) } end,
        function(i, _, d) return { op.rms_norm_backward(i[1], i[2], d[1], zero_centred) } end)
    check("gated_rms_norm", { x, random(2, 3, 5), w },
        function(i) return { op.gated_rms_norm(i[1], i[2], i[3]) } end,
        function(i, _, d) return { op.gated_rms_norm_backward(i[1], i[2], i[3], d[1]) } end)
    check("l2norm", { random(0, 2, 2, 3) }, function(i) return { op.l2norm(i[1]) } end,
        function(i, _, d) return { op.l2norm_backward(i[1], d[1]) } end)
    check("swiglu", { x, random(2, 3, 5) }, function(i) return { op.swiglu(i[1], i[2]) } end,
        function(i, _, d) return { op.swiglu_backward(i[1], i[2], d[1]) } end)
    check("sigmoid_gate", { x, random(2, 3, 5) },
        function(i) return { op.sigmoid_gate(i[1], i[2]) } end,
        function(i, _, d) return { op.sigmoid_gate_backward(i[1], i[2], d[1]) } end)
    check("gates", { x, random(2, 3, 5), w, random(3, 5) },
        function(i) return { op.gates(i[1], i[2], i[3], i[4]) } end,
        function(i, _, d) return { op.gates_backward(i[1], i[2], i[3], i[4], d[1], d[2]) } end)

    local weighted = { alpha = 0.5, beta = -2 }
    check("axpby", { x, random(2, 3, 5) },
        function(i) return { op.axpby(i[1], i[2], weighted) } end,
        function(i, _, d) return { op.axpby_backward(i[1], i[2], d[1], weighted) } end)
    check("sum_squares", { x },
        function(i) return { tensor.from({ op.sum_squares(i[1]) }, { 1 }) } end,
        function(i, _, d) return { op.sum_squares_backward(i[1], d[1]:totable()[1]) } end)

    local positions, rope = { 0, 7, 2 }, { rotary_dim = 4, theta = 100 }
    check("rope", { random(0, 3, 2, 6) }, function(i) return { op.rope(i[1], positions, rope) } end,
        function(_, _, d) return { op.rope_backward(d[1], positions, rope) } end)

    check("conv1d", { random(0, 7, 3), random(1, 3, 4), random(2, 3), random(3, 2, 3, 3) },
        function(i)
            return { (op.conv1d(i[1], i[2], { bias = i[3], init = i[4],
                cu_seqlens = { 0, 5, 7 } })) }
        end,
        function(i, _, d)
            return { op.conv1d_backward(i[1], i[2], d[1], { bias = i[3], init = i[4],
                cu_seqlens = { 0, 5, 7 } }) }
        end)

    for _, ta in ipairs { false, true } do
        for _, tb in ipairs { false, true } do
            local options = { transpose_a = ta, transpose_b = tb, alpha = 0.5 }
            check(("matmul, transposed %s %s"):format(tostring(ta), tostring(tb)),
                { ta and random(0, 4, 3) or random(0, 3, 4),
                    tb and random(1, 5, 4) or random(1, 4, 5) },
                function(i) return { op.matmul(i[1], i[2], options) } end,
                function(i, _, d) return { op.matmul_backward(i[1], i[2], d[1], options) } end)
        end
    end

    check("matmul of a batch", { random(0, 2, 3, 4), random(1, 2, 4, 5) },
        function(i) return { op.matmul(i[1], i[2]) } end,
        function(i, _, d) return { op.matmul_backward(i[1], i[2], d[1]) } end)
    check("grouped_matmul", { random(0, 6, 3), random(1, 3, 2, 3) },
        function(i) return { op.grouped_matmul(i[1], i[2], { 0, 4, 4, 6 }) } end,
        function(i, _, d)
            return { op.grouped_matmul_backward(i[1], i[2], { 0, 4, 4, 6 }, d[1]) }
        end)

    -- Logits lie 0.3 apart, far more than a step: no choice changes.
    local logits = tensor.from({ 0.1, 0.7, -0.5, 0.4, -0.2, 0.3, 0.9, -0.6, 0.6, -0.3, 0, -0.9 },
        { 3, 4 })
    for _, renormalise in ipairs { true, false } do
        local route = { top_k = 2, renormalise = renormalise, spans = { { 0, 1 }, { 2, 1 } } }
        check("moe_route, renormalised " .. tostring(renormalise), { logits },
            function(i) return { (op.moe_route(i[1], route)) } end,
            function(i, _, d) return { op.moe_route_backward(i[1], d[1], route) } end)
        local balance = { top_k = 2, renormalise = renormalise, dprobs = { 1, -2, 3, 0.5 } }
        check("moe_route with dprobs, renormalised " .. tostring(renormalise), { logits },
            function(i)
                local weights, _, probs = op.moe_route(i[1], { top_k = 2,
                    renormalise = renormalise })
                return { weights, probs }
            end,
            function(i, _, d) -- the same gradient for every row's probs
                for j = 1, 12 do
                    d[2]:pointer()[j - 1] = balance.dprobs[(j - 1) % 4 + 1]
                end
                return { op.moe_route_backward(i[1], d[1], balance) }
            end)
    end
    local places = { 2, 0, -1, -1, 1, 3 }
    check("moe_dispatch", { random(0, 3, 4) },
        function(i) return { op.moe_dispatch(i[1], places, { top_k = 2 }) } end,
        function(i, _, d)
            return { op.moe_dispatch_backward(i[1], places, d[1], { top_k = 2 }) }
        end)
    check("moe_combine", { random(0, 4, 5), random(1, 3, 2), random(2, 3, 5), random(3, 3) },
        function(i)
            return { op.moe_combine(i[1], i[2], places, { shared = i[3], shared_gate = i[4] }) }
        end,
        function(i, _, d)
            return { op.moe_combine_backward(i[1], i[2], places, d[1],
                { shared = i[3], shared_gate = i[4] }) }
        end)

    local tokens = { 2, -1, 0, 2 }
    check("embedding", { random(0, 3, 4) },
        function(i) return { op.embedding(i[1], tokens) } end,
        function(i, _, d) return { op.embedding_backward(i[1], tokens, d[1]) } end)

    local labels = { 3, -1, 0 }
    check("cross_entropy", { x },
        function(i) return { tensor.from({ (op.cross_entropy(i[1], labels)) }, { 1 }) } end,
        function(i, _, d)
            local options = { grad_scale = d[1]:totable()[1] }
            return { op.cross_entropy_backward(i[1], labels, options) }
        end)

    for _, device in ipairs { "ref", "cpu" } do
        for _, window in ipairs { 0, 3 } do
            local gqa = { cu_seqlens = { 0, 4, 4, 9 }, device = device, scale = 0.8,
                window = window }
            check(("gqa on %s, window %d"):format(device, window),
                { random(0, 9, 4, 3), random(1, 9, 2, 3), random(2, 9, 2, 2) },
                function(i) return { (op.gqa(i[1], i[2], i[3], gqa)) } end,
                function(i, o, d)
                    local _, lse = op.gqa(i[1], i[2], i[3], gqa)
                    return { op.gqa_backward(i[1], i[2], i[3], o[1], lse, d[1], gqa) }
                end)
        end

        local merge = { device = device }
        check("merge on " .. device,
            { random(0, 4, 2, 3), random(1, 4, 2), random(2, 4, 2, 3), random(3, 4, 2) },
            function(i) return { op.merge(i[1], i[2], i[3], i[4], merge) } end,
            function(i, _, d)
                return { op.merge_backward(i[1], i[2], i[3], i[4], d[1], d[2], merge) }
            end)

        for _, l2norm in ipairs { false, true } do
            local function options(h0)
                return { cu_seqlens = { 0, 4, 4, 9 }, device = device, chunk = 3, scale = 0.8,
                    l2norm = l2norm, h0 = h0 }
            end
            check(("gdn on %s, l2norm %s"):format(device, tostring(l2norm)),
                { random(0, 9, 1, 3), random(1, 9, 1, 3), random(2, 9, 2, 2),
                    numbers.tensor(5, 3, { 9, 2 }, -1, 0), numbers.tensor(5, 4, { 9, 2 }, 0, 1),
                    random(5, 3, 2, 3, 2) },
                function(i) return { op.gdn(i[1], i[2], i[3], i[4], i[5], options(i[6])) } end,
                function(i, _, d)
                    return { op.gdn_backward(i[1], i[2], i[3], i[4], i[5], d[1], d[2],
                        options(i[6])) }
                end)
        end
    end
end)
