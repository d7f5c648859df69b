-- Bug reports about the delta rule and its convolution (gdn_and_attention.md, sections 7.1 and 7.2)
-- that have a counterpart in a kernel: each with the input that shows it.
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local close, far = numbers.close, numbers.far

local NAMES = { "dq", "dk", "dv", "dg", "dbeta", "dh0" }

local function inputs(shape)
    local T, Hk, Hv, K, V = shape.T, shape.Hk or 1, shape.Hv or shape.Hk or 1, shape.K, shape.V
    local S = shape.S or 1
    local function make(j, dims, low, high) return numbers.tensor(11, j, dims, low, high) end
    return {
        q = make(0, { T, Hk, K }), k = make(1, { T, Hk, K }), v = make(2, { T, Hv, V }),
        g = make(3, { T, Hv }, shape.g_low or -0.5, 0), beta = make(4, { T, Hv }, 0, 1),
        h0 = make(5, { S, Hv, K, V }), d_o = make(6, { T, Hv, V }), d_hT = make(7, { S, Hv, K, V }),
    }
end

-- o, hT and all gradients.
local function run(x, options)
    local result = {}
    options.l2norm, options.h0 = true, x.h0
    result.o, result.hT = op.gdn(x.q, x.k, x.v, x.g, x.beta, options)
    local list = { op.gdn_backward(x.q, x.k, x.v, x.g, x.beta, x.d_o, x.d_hT, options) }
    for i, name in ipairs(NAMES) do result[name] = list[i] end
    return result
end

local function same(a, b, bound)
    for name, expected in pairs(b) do close(name, a[name], expected, bound) end
end

describe("the delta rule", function()
    -- FLA#792, FLA#1143: rows beyond the end of a partial last chunk were evaluated.
    for _, T in ipairs { 1, 15, 63, 64, 65, 75, 127, 129 } do
        it(("with a last chunk that is not full: %d tokens, strong decay"):format(T), function()
            local x = inputs { T = T, Hk = 2, Hv = 4, K = 7, V = 9, g_low = -70 }
            same(run(x, { chunk = 64 }), run(x, { device = "ref" }), 1e-13)
        end)
    end

    -- FLA#463: half of the decays forced to 0, the others strong: masking, not clamping.
    it("with half of the decays 0", function()
        local x = inputs { T = 130, Hk = 1, Hv = 2, K = 7, V = 9, g_low = -200 }
        local g = x.g:totable()
        for i = 1, #g, 2 do g[i] = 0 end
        x.g = tensor.from(g, x.g:shape())
        same(run(x, {}), run(x, { device = "ref" }), 1e-13)
    end)

    -- fla debug.md: a hard-coded block filled a part of V; the initial state must be kept for the
    -- backward pass.
    for _, V in ipairs { 64, 96, 128, 192, 256 } do
        it(("with %d values a head, from a state that is not 0"):format(V), function()
            local x = inputs { T = 70, K = 6, V = V }
            local result = run(x, {})
            same(result, run(x, { device = "ref" }), 1e-12)
            local h0 = x.h0
            x.h0 = h0:copy():fill(0)
            far("dq without the state", run(x, {}).dq, result.dq, 1e-3)
        end)
    end

    -- FLA#1077, FLA#1097: more sequences than a grid has blocks.
    it("of 70,000 sequences of one token", function()
        local n, cu = 70000, {}
        local x = inputs { T = n, K = 1, V = 1, S = n }
        for i = 0, n do cu[i + 1] = i end
        same(run(x, { cu_seqlens = cu }), run(x, { cu_seqlens = cu, device = "ref" }), 1e-13)
    end)

    -- slime#1686, transformers#46859: boundaries must reach the rule and the convolution.
    it("and the convolution: the second of two documents equals its run alone", function()
        local x = inputs { T = 30, Hk = 2, Hv = 4, K = 5, V = 3, S = 2 }
        local cu, second = { cu_seqlens = { 0, 13, 30 } }, {}
        local both = run(x, cu)
        for name, t in pairs(x) do
            second[name] = t:shape()[1] == 30 and numbers.rows(t, 13, 17) or numbers.rows(t, 1, 1)
        end
        local alone = run(second, {})
        close("o", alone.o, numbers.rows(both.o, 13, 17), 0)
        close("dk", alone.dk, numbers.rows(both.dk, 13, 17), 0)
        local rows, w = numbers.tensor(3, 0, { 30, 8 }), numbers.tensor(3, 1, { 8, 4 })
        local y = op.conv1d(rows, w, { cu_seqlens = { 0, 13, 30 } })
        close("y", op.conv1d(numbers.rows(rows, 13, 17), w), numbers.rows(y, 13, 17), 0)
        far("without boundaries", op.conv1d(rows, w), y, 1e-3)
    end)

    -- FLA#537: the inverse of a unit triangular matrix explodes for keys that are not normalised;
    -- with unit keys and beta <= 1 the solve is right even where all keys are equal.
    it("with equal keys and beta 1", function()
        local x = inputs { T = 64, K = 8, V = 3, g_low = 0 }
        local k = x.k:totable()
        for i = 9, #k do k[i] = k[(i - 1) % 8 + 1] end
        x.k = tensor.from(k, x.k:shape())
        x.beta:fill(1)
        same(run(x, {}), run(x, { device = "ref" }), 1e-12)
    end)
end)

describe("the summary that starts somewhere", function()
    for _, device in ipairs { "ref", "cpu" } do
        it(("on %s ends where the rule ends, forward and back"):format(device), function()
            local x = inputs { T = 70, Hk = 2, Hv = 4, K = 5, V = 3, S = 3, g_low = -0.1 }
            local options = { cu_seqlens = { 0, 30, 30, 70 }, device = device, l2norm = true,
                h0 = x.h0 }
            local result = run(x, { cu_seqlens = options.cu_seqlens, device = device })
            local _, hT = op.gdn_summary(x.k, x.v, x.g, x.beta, options)
            close("hT", hT, result.hT, 1e-13)
            options.h0, options.d_hT = nil, x.d_hT
            local dh0 = op.gdn_summary_backward(x.q, x.k, x.v, x.g, x.beta, x.d_o, options)
            close("dh0", dh0, result.dh0, 1e-13)
            options.d_hT = nil
            far("without d_hT", op.gdn_summary_backward(x.q, x.k, x.v, x.g, x.beta, x.d_o, options),
                result.dh0, 1e-3)
        end)
    end
end)

describe("the convolution", function()
    -- FLA#1140, FLA#1141, FLA#714: sequences shorter than the kernel, whose init is in part still
    -- what comes out; the gradient of the init with and without bias.
    for _, T in ipairs { 1, 2, 3, 4, 9 } do
        it(("of %d rows after an init equals a run over both"):format(T), function()
            local init, x = numbers.tensor(5, 0, { 1, 3, 6 }), numbers.tensor(5, 1, { T, 6 })
            local w, dy = numbers.tensor(5, 2, { 6, 4 }), numbers.tensor(5, 3, { T, 6 })
            local list = init:totable()
            for _, value in ipairs(x:totable()) do list[#list + 1] = value end
            local joined = tensor.from(list, { T + 3, 6 })
            local zeros = {}
            for i = 1, 18 do zeros[i] = 0 end
            for _, value in ipairs(dy:totable()) do zeros[#zeros + 1] = value end
            local y, last = op.conv1d(x, w, { init = init })
            close("y", y, numbers.rows(op.conv1d(joined, w), 3, T), 1e-15)
            close("last rows", tensor.from(last:totable(), { 3, 6 }), numbers.rows(joined, T, 3), 0)
            local dx, dw, _, dinit = op.conv1d_backward(x, w, dy, { init = init })
            local dx_both, dw_both = op.conv1d_backward(joined, w, tensor.from(zeros, { T + 3, 6 }))
            close("dx", dx, numbers.rows(dx_both, 3, T), 1e-15)
            dinit = tensor.from(dinit:totable(), { 3, 6 })
            close("dinit", dinit, numbers.rows(dx_both, 0, 3), 1e-15)
            close("dw", dw, dw_both, 1e-14)
        end)
    end
end)
