-- Traps and bug reports of other systems that have a counterpart in a kernel: each with the input
-- that shows it, and with what the wrong rule would give.
local message = require "spec.support.message"
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local DEVICES = { "ref", "cpu" }
local close, far = numbers.close, numbers.far

-- The rows, from 0, in which two tensors differ in one bit at least.
local function differing(a, b)
    local rows, width = {}, 1
    for i, n in ipairs(a:shape()) do width = i > 1 and width * n or width end
    a, b = a:totable(), b:totable()
    for i = 1, #a do
        local row = math.floor((i - 1) / width)
        if a[i] ~= b[i] and rows[#rows] ~= row then rows[#rows + 1] = row end
    end
    return rows
end

local function interval(first, last)
    local list = {}
    for i = first, last do list[#list + 1] = i end
    return list
end

local function gdn_inputs(T, dtype)
    local function make(j, shape, low, high)
        return numbers.tensor(17, j, shape, low, high, dtype)
    end
    return { q = make(0, { T, 2, 5 }), k = make(1, { T, 2, 5 }), v = make(2, { T, 4, 3 }),
        a = make(3, { T, 4 }), b = make(4, { T, 4 }), d_o = make(5, { T, 4, 3 }),
        A_log = make(6, { 4 }), dt_bias = make(7, { 4 }) }
end

describe("packed sequences in a kernel", function()
    -- Two leaks, and each has boundaries of its own to forget.
    it("T-78: leak W - 1 rows of the convolution, and all that follows of the rule", function()
        for _, device in ipairs(DEVICES) do
            local options, whole = { cu_seqlens = { 0, 13, 30 }, device = device },
                { device = device }
            local x, w = numbers.tensor(3, 0, { 30, 8 }), numbers.tensor(3, 1, { 8, 4 })
            assert.same(interval(13, 15),
                differing((op.conv1d(x, w, options)), (op.conv1d(x, w, whole))))
            options.silu, whole.silu = false, false -- whose slope is that of another output
            local dx = op.conv1d_backward(x, w, x, options)
            assert.same(interval(10, 12), differing(dx, (op.conv1d_backward(x, w, x, whole))))
            local t = gdn_inputs(30)
            local g, beta = op.gates(t.a, t.b, t.A_log, t.dt_bias)
            for _, o in ipairs { options, whole } do
                o.silu, o.l2norm, o.chunk = nil, true, 13 -- chunks end where the first one does
            end
            assert.same(interval(13, 29), differing((op.gdn(t.q, t.k, t.v, g, beta, options)),
                (op.gdn(t.q, t.k, t.v, g, beta, whole))))
        end
    end)
end)

describe("gates that are nearly open", function()
    -- dg is of a number next to 0, which no check of its own can judge; trained are the leaves.
    it("T-91: have in f32 the gradients of f64 at A_log, dt_bias and a", function()
        local function leaves(dtype, shift, late)
            local t = gdn_inputs(40, dtype)
            local list = t.a:totable()
            for i = 1, #list do list[i] = list[i] + shift end
            t.a = tensor.from(list, t.a:shape(), dtype)
            local g, beta = op.gates(t.a, t.b, t.A_log, t.dt_bias)
            local _, _, _, dg, dbeta = op.gdn_backward(t.q, t.k, t.v, g, beta, t.d_o, nil,
                { l2norm = true })
            if late then -- the control: the gradient of the token before
                list = dg:totable()
                for i = #list, 5, -1 do list[i] = list[i - 4] end
                dg = tensor.from(list, dg:shape(), dtype)
            end
            assert.is_true(numbers.largest(g:totable()) < 3 * math.exp(shift + 2))
            local da, _, dA_log, ddt_bias = op.gates_backward(t.a, t.b, t.A_log, t.dt_bias, dg,
                dbeta)
            return { da = da, dA_log = dA_log, ddt_bias = ddt_bias }
        end
        for _, shift in ipairs { -9, -30 } do
            local expected, late = leaves("f64", shift), leaves("f32", shift, true)
            for name, gradient in pairs(leaves("f32", shift)) do
                close(name, gradient, expected[name], 1e-5)
                far(name .. ", late", late[name], expected[name], 1e-2)
            end
        end
    end)
end)

describe("attention", function()
    -- 16 tokens, 4 heads over 2, keys of 6 and values of 5: no two sizes agree.
    local function inputs(dtype)
        local function make(j, shape) return numbers.tensor(19, j, shape, -2, 2, dtype) end
        return make(0, { 16, 4, 6 }), make(1, { 16, 2, 6 }), make(2, { 16, 2, 5 }),
            make(3, { 16, 4, 5 })
    end

    it("[report 61] gives gradients of the dtype of its inputs, and refuses two dtypes", function()
        for _, dtype in ipairs { "f32", "f64" } do
            local q, k, v, d_o = inputs(dtype)
            local o, lse = op.gqa(q, k, v)
            local list = { o, lse, op.gqa_backward(q, k, v, o, lse, d_o) }
            assert.equal(5, #list)
            for _, result in ipairs(list) do assert.equal(dtype, result:dtype()) end
        end
        local q, k = inputs "f32"
        local _, _, v = inputs "f64"
        assert.equal("op.gqa: v is f64, but q is f32",
            message(function() local _ = op.gqa(q, k, v) end))
    end)

    it("[report 62] has the lse of its definition, and a gradient for each input", function()
        local q, k, v, d_o = inputs()
        local rows, keys = q:totable(), k:totable()
        local function naive(scale)
            local lse = {}
            for t = 0, 15 do
                for h = 0, 3 do
                    local sum = 0
                    for j = 0, t do
                        local score = 0
                        for c = 1, 6 do
                            score = score + rows[(t * 4 + h) * 6 + c]
                                * keys[(j * 2 + math.floor(h / 2)) * 6 + c]
                        end
                        sum = sum + math.exp(scale * score)
                    end
                    lse[#lse + 1] = math.log(sum)
                end
            end
            return lse
        end
        for _, device in ipairs(DEVICES) do
            local o, lse = op.gqa(q, k, v, { device = device })
            assert.same({ 16, 4 }, lse:shape())
            close("lse", lse, naive(6 ^ -0.5), 1e-14)
            far("lse without scale", lse, naive(1), 0.1)
            local gradients = { op.gqa_backward(q, k, v, o, lse, d_o, { device = device }) }
            assert.equal(3, #gradients)
            for i, input in ipairs { q, k, v } do
                assert.same(input:shape(), gradients[i]:shape())
            end
            -- The backward pass reads it: with another one its gradients are wrong.
            local wrong = op.gqa_backward(q, k, v, o, tensor.from(naive(1), { 16, 4 }), d_o,
                { device = device })
            far("dq of a wrong lse", wrong, gradients[1], 1e-2)
        end
    end)
end)

describe("tensors with heads", function()
    it("[report 78] are taken in their order of axes alone, and states by value heads", function()
        local T, Hk, Hv, K, V = 7, 2, 4, 5, 3
        local q, v = tensor.zeros { T, Hk, K }, tensor.zeros { T, Hv, V }
        local g = tensor.zeros { T, Hv }
        local o, hT = op.gdn(q, q, v, g, g)
        assert.same({ T, Hv, V }, o:shape())
        assert.same({ 1, Hv, K, V }, hT:shape())
        local function refused(words, ...)
            local arguments = { ... }
            assert.equal(words, message(function() local _ = op.gdn(unpack(arguments)) end))
        end
        refused("op.gdn: k has T = 2, but q has 7", q, tensor.zeros { Hk, T, K }, v, g, g)
        refused("op.gdn: v has T = 4, but q has 7", q, q, tensor.zeros { Hv, T, V }, g, g)
        refused("op.gdn: h0 has Hv = 2, but v has 4", q, q, v, g, g,
            { h0 = tensor.zeros { 1, Hk, K, V } })
        refused("op.gdn: h0 has K = 3, but q has 5", q, q, v, g, g,
            { h0 = tensor.zeros { 1, Hv, V, K } })
    end)
end)
