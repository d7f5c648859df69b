-- AdamW, SGD, what their steps share, and the sum of squares: against a step written out here,
-- table against table, and the odd sizes and numbers.
local numbers = require "spec.kernels.numbers"
local clib = require "clib"
local op = require "cplab.op"
local tensor = require "cplab.tensor"
local C, ffi = clib.C, clib.ffi

-- Shares of the largest number: a few roundings each.
local BOUNDS = { f64 = 1e-14, f32 = 1e-6 }

local function inputs(n, dtype)
    local x = {}
    for j = 1, 3 do x[j] = numbers.tensor(3, j, { n }, -1, 1, dtype) end
    x[4] = numbers.tensor(3, 4, { n }, 0, 1, dtype) -- squares
    return x
end

-- Loshchilov and Hutter, arXiv 1711.05101, algorithm 2, for one number; the decay is part of what
-- the learning rate multiplies, as in PyTorch.
local function by_hand(w, g, m, v, o)
    m = o.betas[1] * m + (1 - o.betas[1]) * g
    v = o.betas[2] * v + (1 - o.betas[2]) * g * g
    local m_hat, v_hat = m / (1 - o.betas[1] ^ o.step), v / (1 - o.betas[2] ^ o.step)
    return w - o.lr * (m_hat / (math.sqrt(v_hat) + o.eps) + o.weight_decay * w), m, v
end

describe("adamw", function()
    for _, device in ipairs { "ref", "cpu" } do
        it(("is the step of the paper, for two steps: %s"):format(device), function()
            local x, lists = inputs(7), {}
            for i, t in ipairs(x) do lists[i] = t:totable() end
            for step = 1, 2 do
                local o = { lr = 0.1, betas = { 0.8, 0.7 }, eps = 1e-3, weight_decay = 0.5,
                    step = step, device = device }
                for i = 1, 7 do
                    lists[1][i], lists[3][i], lists[4][i] = by_hand(lists[1][i], lists[2][i],
                        lists[3][i], lists[4][i], o)
                end
                x[1], x[3], x[4] = op.adamw(x[1], x[2], x[3], x[4], o)
                for _, i in ipairs { 1, 3, 4 } do
                    numbers.close("state " .. i, x[i], lists[i], 1e-14)
                end
            end
        end)
    end

    it("agrees between the tables, at any size and far from the first step", function()
        for _, n in ipairs { 0, 1, 15, 64, 67 } do
            for _, step in ipairs { 1, 3, 100000 } do
                local o = { lr = 1e-2, step = step, weight_decay = 0.1, grad_scale = 0.25,
                    device = "ref" }
                local x = inputs(n)
                local expected = { op.adamw(x[1], x[2], x[3], x[4], o) }
                o.device = "cpu"
                for dtype, bound in pairs(BOUNDS) do
                    x = inputs(n, dtype)
                    local actual = { op.adamw(x[1], x[2], x[3], x[4], o) }
                    for i = 1, 3 do numbers.close(dtype, actual[i], expected[i], bound) end
                end
            end
        end
    end)

    it("has betas 0.9 and 0.95, eps 1e-8 and no decay where nothing else is said", function()
        local x = inputs(5)
        local named = { lr = 0.1, betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0, step = 1 }
        local a, b = op.adamw(x[1], x[2], x[3], x[4], named),
            op.adamw(x[1], x[2], x[3], x[4], { lr = 0.1 })
        assert.same(a:totable(), b:totable())
    end)

    it("goes by lr in the first step, whatever the gradient's size", function()
        local zero = tensor.zeros { 3 }
        local w = op.adamw(zero, tensor.from({ 1e-3, -7, 0 }, { 3 }), zero, zero, { lr = 0.1 })
        numbers.close("first step", w, { -0.1, 0.1, 0 }, 1e-4) -- eps / 1e-3 is missing
    end)

    it("is not Adam with decay in the gradient", function()
        local x = inputs(5)
        local zero = tensor.zeros { 5 }
        local decoupled = op.adamw(x[1], x[2], zero, zero, { lr = 0.1, weight_decay = 0.5 })
        local coupled = op.adamw(x[1], op.axpby(x[1], x[2], { alpha = 0.5 }), zero, zero,
            { lr = 0.1 })
        numbers.far("coupled", coupled, decoupled, 1e-3)
    end)

    it("refuses what breaks a rule, at the caller's line", function()
        local x = inputs(5)
        local function refused(message, options, grad)
            local ok, got = pcall(function()
                local _ = op.adamw(x[1], grad or x[2], x[3], x[4], options)
            end)
            assert.is_false(ok)
            assert.equal(message, (got:gsub("^%.?/?spec/kernels/optimizer_spec%.lua:%d+: ", "")))
        end
        refused('op.adamw: field "lr" is missing', {})
        refused("op.adamw: betas must be two numbers", { lr = 1, betas = { 0.9 } })
        refused("op.adamw: step = 0 is not counted from 1", { lr = 1, step = 0 })
        refused("op.adamw: grad has D = 4, but w has 5", { lr = 1 }, tensor.zeros { 4 })
    end)
end)

describe("sgd", function()
    it("is w - lr share grad on both tables, at any size", function()
        for _, n in ipairs { 0, 1, 15, 64, 67 } do
            for _, case in ipairs { { "ref", "f64", 1e-15 }, { "cpu", "f64", 1e-15 },
                { "cpu", "f32", 1e-6 } } do
                local x = inputs(n, case[2])
                local w, grad, expected = x[1]:totable(), x[2]:totable(), {}
                for i = 1, n do expected[i] = w[i] - 0.1 * 0.25 * grad[i] end
                local moved = op.sgd(x[1], x[2],
                    { lr = 0.1, grad_scale = 0.25, device = case[1] })
                numbers.close("w", moved, expected, case[3])
                assert.same(w, x[1]:totable())
            end
        end
    end)

    it("takes the whole gradient where nothing else is said", function()
        local x = inputs(5)
        assert.same(op.sgd(x[1], x[2], { lr = 0.5, grad_scale = 1 }):totable(),
            op.sgd(x[1], x[2], { lr = 0.5 }):totable())
    end)

    it("has the bits of w + (-lr share) grad", function()
        for _, dtype in ipairs { "f64", "f32" } do
            local x = inputs(67, dtype)
            assert.same(op.axpby(x[2], x[1], { alpha = -0.3 * 0.7 }):totable(),
                op.sgd(x[1], x[2], { lr = 0.3, grad_scale = 0.7 }):totable())
        end
    end)
end)

-- Both read it where it lies, and the number beside it not at all.
describe("a learning rate in memory", function()
    local function moved(name, kernels, dtype, fields)
        local p, x = ffi.new("cpl_" .. name), inputs(67, dtype)
        p.w, p.grad, p.n = x[1]._ptr.data, x[2]._ptr.data, 67
        local factors = ffi.new("double[3]", 0.5, 0.75, 0.5)
        p.factors = factors
        if name == "adamw" then
            p.m, p.v, p.beta1, p.beta2 = x[3]._ptr.data, x[4]._ptr.data, 0.9, 0.95
            p.eps, p.weight_decay = 1e-3, 0.5
        end
        for field, value in pairs(fields) do p[field] = value end
        kernels[name](p)
        return x[1]:totable(), factors
    end

    for _, case in ipairs { { "ref", "f64" }, { "cpu", "f64" }, { "cpu", "f32" } } do
        for _, name in ipairs { "adamw", "sgd" } do
            local title = ("gives the bits of one that is said: %s %s %s"):format(name,
                unpack(case))
            it(title, function()
                local kernels = C.cpl_kernels_for(case[1], clib.dtypes[case[2]])
                local rate = ffi.new("double[1]", 0.1)
                local read = moved(name, kernels, case[2], { rate = rate, lr = 0 / 0 })
                assert.same(moved(name, kernels, case[2], { lr = 0.1 }), read)
                rate[0] = 0.2
                assert.not_same(read, (moved(name, kernels, case[2], { rate = rate, lr = 0.1 })))
            end)
        end
    end
end)

describe("step_factors", function()
    local function factors(options, device)
        options.device = device
        return { op.step_factors(options) }
    end

    for _, device in ipairs { "ref", "cpu" } do
        it("clips the norm of the gradients, and says how far moments are: " .. device, function()
            for _, squares in ipairs { 0, 1e-300, 0.25, 0.2499999, 4, 1e300, 1 / 0 } do
                local share = factors({ squares = squares, clip = 0.5 }, device)[1]
                assert.equal(math.min(1, 0.5 / (math.sqrt(squares) + 1e-6)), share)
            end
            assert.equal(1, factors({}, device)[1])
            for _, step in ipairs { 1, 2, 100000 } do
                local _, first, second = unpack(factors({ step = step, betas = { 0.8, 0.99 } },
                    device))
                assert.is_true(math.abs(first - (1 - 0.8 ^ step)) <= 1e-15)
                assert.is_true(math.abs(second - (1 - 0.99 ^ step)) <= 1e-15)
            end
        end)

        it("clips no NaN away: " .. device, function()
            local squares, out = ffi.new("double[1]", 0 / 0), ffi.new "double[3]"
            C.cpl_kernels_for(device, C.CPL_F64).step_factors(ffi.new("cpl_step_factors",
                { squares = squares, clip = 1, factors = out }))
            assert.is_true(out[0] ~= out[0])
        end)
    end

    it("counts in memory, once a call, and without a count leaves the rest alone", function()
        for _, device in ipairs { "ref", "cpu" } do
            local kernels = C.cpl_kernels_for(device, C.CPL_F64)
            local step, out = ffi.new("int64_t[1]", 6), ffi.new("double[3]", -7, -7, -7)
            local p = ffi.new("cpl_step_factors", { factors = out, beta1 = 0.5, beta2 = 0.25 })
            kernels.step_factors(p)
            assert.same({ 1, -7, -7 }, { out[0], out[1], out[2] })
            p.step = step
            kernels.step_factors(p)
            kernels.step_factors(p)
            assert.equal(8, tonumber(step[0]))
            assert.same({ 1 - 2 ^ -8, 1 - 2 ^ -16 }, { out[1], out[2] })
        end
    end)

    it("refuses what breaks a rule", function()
        local function refused(message, options)
            local ok, got = pcall(function() local _ = op.step_factors(options) end)
            assert.is_false(ok)
            assert.equal(message, (got:gsub("^%.?/?spec/kernels/optimizer_spec%.lua:%d+: ", "")))
        end
        refused("op.step_factors: squares and clip go together", { clip = 1 })
        refused("op.step_factors: squares and clip go together", { squares = 1 })
        refused("op.step_factors: step = 0 is not counted from 1", { step = 0 })
        refused("op.step_factors: betas must be two numbers", { betas = { 0.9 } })
    end)
end)

describe("sum_squares", function()
    it("is the sum of squares on both tables", function()
        for _, n in ipairs { 0, 1, 7, 64, 1001 } do
            local expected = 0
            for _, x in ipairs(numbers.list(9, n, n, -2, 2)) do expected = expected + x * x end
            for _, case in ipairs { { "ref", "f64", 1e-13 }, { "cpu", "f64", 1e-13 },
                { "cpu", "f32", 1e-6 } } do
                local x = numbers.tensor(9, n, { n }, -2, 2, case[2])
                local sum = op.sum_squares(x, { device = case[1] })
                assert.is_true(math.abs(sum - expected) <= case[3] * expected)
                assert.equal(sum, op.sum_squares(x, { device = case[1] }))
            end
        end
    end)

    it("adds in double, also squares that f32 cannot hold", function()
        local sum = op.sum_squares(tensor.from({ 1e25, 1e25 }, { 2 }, "f32"))
        assert.is_true(math.abs(sum / 2e50 - 1) < 1e-6)
        local nan = op.sum_squares(tensor.from({ 1, 0 / 0 }, { 2 }))
        assert.is_true(nan ~= nan)
    end)
end)
