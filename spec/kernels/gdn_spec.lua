-- The gated delta rule as a whole: known vectors, states, isolation, head map, gradients under
-- strong decay, and the mistakes that others made, planted as controls.
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local DEVICES = { "ref", "cpu" }
local close, far = numbers.close, numbers.far

local function sigmoid(list)
    local result = {}
    for i, x in ipairs(list) do result[i] = 1 / (1 + math.exp(-x)) end
    return result
end

-- Random inputs: k of norm about 1, so that the solve is well behaved.
local function inputs(shape, seed)
    local T, Hk, Hv, K, V = shape.T, shape.Hk or 1, shape.Hv or shape.Hk or 1, shape.K, shape.V
    local S = shape.S or 1
    local function make(j, dims, low, high) return numbers.tensor(seed or 7, j, dims, low, high) end
    return {
        q = make(0, { T, Hk, K }), k = make(1, { T, Hk, K }), v = make(2, { T, Hv, V }),
        g = make(3, { T, Hv }, shape.g_low or -0.5, shape.g_high or 0),
        beta = make(4, { T, Hv }, 0, 1), h0 = make(5, { S, Hv, K, V }),
        d_o = make(6, { T, Hv, V }), d_hT = make(7, { S, Hv, K, V }),
    }
end

local function forward(x, options)
    options.l2norm = true
    return op.gdn(x.q, x.k, x.v, x.g, x.beta, options)
end

local names = { "dq", "dk", "dv", "dg", "dbeta", "dh0" }

local function backward(x, options)
    options.l2norm = true
    local results = { op.gdn_backward(x.q, x.k, x.v, x.g, x.beta, x.d_o, x.d_hT, options) }
    local named = {}
    for i, name in ipairs(names) do named[name] = results[i] end
    return named
end

-- Five tokens of one head, K = V = 2; q and k are normalised by hand, printed to 9 digits.
local function small()
    return {
        q = tensor.from({ .375, .75, -1, -.625, -.25, .125, .5, .875, -.875, -.5 }, { 5, 1, 2 }),
        k = tensor.from({ .125, .5, .875, -.875, -.5, -.125, .25, .625, 1, -.75 }, { 5, 1, 2 }),
        v = tensor.from({ -.5, -.125, .25, .625, 1, -.75, -.375, 0, .375, .75 }, { 5, 1, 2 }),
        g = tensor.from({ -.625, -.25, -.125, -.5, -.875 }, { 5, 1 }),
        beta = tensor.from(sigmoid { .875, -.875, -.5, -.125, .25 }, { 5, 1 }),
        h0 = tensor.from({ -1, -.625, -.25, .125 }, { 1, 1, 2, 2 }),
        d_o = tensor.from({ 1, -.75, -.375, 0, .375, .75, -1, -.625, -.25, .125 }, { 5, 1, 2 }),
        d_hT = tensor.from({ -.25, .125, .5, .875 }, { 1, 1, 2, 2 }),
    }
end

local SMALL = {
    o = { -.370995441, -.116465945, .337409097, .128989694, .241112508, -.168067705, -.262320640,
        .017750638, .053605455, -.137012163 },
    hT = { .050915157, .368299527, -.241900657, -.253979227 },
    dq = { -.220290226, -.206980962, .096796839, .083858472, -.024444696, -.128569026, .182662467,
        .184971979, .023552773, .020313594 },
    dk = { .170832061, -.000884378, -.119386746, .065258524, .148441930, -.006421533, -.061831560,
        -.039005859, -.024543249, .437494183 },
    dv = { .567857337, -.320137604, -.031240069, -.112554781, .136523869, .174174753, -.240949698,
        -.064021524, -.241643280, -.258647377 },
    dg = { -.024561831, .015172684, .063544340, .105070732, -.055799623 },
    dbeta = { -.144049993, -.354707706, -.180853764, .033252059, -.504052358 },
    dh0 = { .110655811, -.184432322, .102943130, -.027523509 },
    M = { .026025811, -.002863885, .003018165, .009661347 },
    B = { .076224997, .384923645, -.236467155, -.253300543 },
}
local PRINTED = 2e-8 -- half a unit of the ninth digit, over the smallest of the largest numbers

describe("five tokens", function()
    for _, device in ipairs(DEVICES) do
        for chunk = 1, 5 do
            it(("on %s, chunk %d"):format(device, chunk), function()
                local x = small()
                local options = { h0 = x.h0, device = device, chunk = chunk }
                local q, k = op.l2norm(x.q), op.l2norm(x.k)
                local o, hT = op.gdn(q, k, x.v, x.g, x.beta, options)
                close("o", o, SMALL.o, PRINTED)
                close("hT", hT, SMALL.hT, PRINTED)
                local results = { op.gdn_backward(q, k, x.v, x.g, x.beta, x.d_o, x.d_hT, options) }
                for i, name in ipairs(names) do close(name, results[i], SMALL[name], PRINTED) end
                local M, B = op.gdn_summary(k, x.v, x.g, x.beta, { device = device, chunk = chunk })
                close("M", M, SMALL.M, PRINTED)
                close("B", B, SMALL.B, PRINTED)
            end)
        end

        it("[reports 2, 3] stays finite where nearly all is forgotten: " .. device, function()
            local x = small()
            x.g = tensor.from({ -1e4, -300, 0, -1e4, -88 }, { 5, 1 })
            local o, hT = forward(x, { h0 = x.h0, device = device })
            close("o", o, { -.243589951, -.060897488, -.011695014, -.029237534, .161020058,
                -.256194479, -.123113953, 0, -.059167321, -.118334642 }, PRINTED)
            close("hT", hT, { .168652896, .337305793, -.126489672, -.252979344 }, PRINTED)
            for name, gradient in pairs(backward(x, { h0 = x.h0, device = device })) do
                numbers.finite(name, gradient)
            end
            -- The other way: exp(G_i) exp(-G_j) instead of exp(G_i - G_j) is 0 * inf.
            assert.is_true(math.exp(-1e4) * math.exp(1e4) ~= 1)
        end)
    end
end)

describe("strong decay", function()
    local function mixed()
        local x = inputs({ T = 130, Hk = 1, Hv = 3, K = 8, V = 6 })
        local g = x.g:totable()
        for i = 1, #g do
            if i % 7 == 0 then g[i] = -1e4 elseif i % 5 == 0 then g[i] = -200 end
            if i % 3 == 0 then g[i] = 0 end
        end
        x.g = tensor.from(g, x.g:shape())
        return x
    end

    it("loses nothing after a reset, in no gradient", function()
        local x = mixed()
        local o, hT = forward(x, { h0 = x.h0, device = "ref" })
        local expected = backward(x, { h0 = x.h0, device = "ref" })
        for _, chunk in ipairs { 1, 16, 64 } do
            local o_cpu, hT_cpu = forward(x, { h0 = x.h0, chunk = chunk })
            close("o", o_cpu, o, 1e-13)
            close("hT", hT_cpu, hT, 1e-13)
            for name, gradient in pairs(backward(x, { h0 = x.h0, chunk = chunk })) do
                close(name, gradient, expected[name], 1e-13)
            end
        end
    end)

    it("[reports 2, 3] is finite for every decay", function()
        for _, g in ipairs { 0, -1e-6, -50, -200, -1e4, -math.huge } do
            local x = inputs({ T = 130, K = 8, V = 6 })
            x.g:fill(g)
            -- A decay of two tokens as a quotient of products from the first one on has no value.
            local quotient = math.exp(129 * g) / math.exp(127 * g)
            assert.equal(g < -1, math.abs(quotient - math.exp(2 * g)) > 1e-12
                or quotient ~= quotient)
            local o, hT = forward(x, { h0 = x.h0 })
            numbers.finite("o", o)
            numbers.finite("hT", hT)
            for name, gradient in pairs(backward(x, { h0 = x.h0 })) do
                numbers.finite(name, gradient)
            end
        end
    end)
end)

describe("NaN", function()
    local function n_nan(list, first, last)
        local n = 0
        for i = first, last do n = n + (list[i] ~= list[i] and 1 or 0) end
        return n
    end

    it("in gives NaN out, and never in an earlier chunk", function()
        for _, device in ipairs(DEVICES) do
            for _, name in ipairs { "q", "k", "v", "g", "beta" } do
                local x = inputs({ T = 20, K = 4, V = 3 })
                local list = x[name]:totable()
                list[#list / 20 * 10] = 0 / 0 -- token 9, in the second chunk of 7
                x[name] = tensor.from(list, x[name]:shape())
                local o, hT = forward(x, { device = device, chunk = 7 })
                o, hT = o:totable(), hT:totable()
                assert.equal(0, n_nan(o, 1, 7 * 3), name)
                assert.is_true(n_nan(o, 9 * 3 + 1, 10 * 3) > 0, name)
                assert.equal(name ~= "q", n_nan(hT, 1, #hT) > 0, name)
            end
        end
    end)

    it("in the state survives a decay to nothing", function()
        for _, device in ipairs(DEVICES) do
            local x = inputs({ T = 3, K = 2, V = 2 })
            x.g:fill(-1e4)
            local _, hT = forward(x, { h0 = x.h0:fill(0 / 0), device = device })
            for _, value in ipairs(hT:totable()) do assert.is_true(value ~= value) end
        end
    end)
end)

describe("the state", function()
    it("carries a sequence across a split at every token", function()
        local x = inputs({ T = 37, Hk = 2, Hv = 4, K = 5, V = 3 })
        local o, hT = forward(x, { h0 = x.h0, chunk = 16 })
        local whole = backward(x, { h0 = x.h0, chunk = 16 })
        for split = 0, 37 do
            local first, second = {}, {}
            for _, name in ipairs { "q", "k", "v", "g", "beta", "d_o" } do
                first[name] = numbers.rows(x[name], 0, split)
                second[name] = numbers.rows(x[name], split, 37 - split)
            end
            local o_1, h_1 = forward(first, { h0 = x.h0, chunk = 16 })
            local o_2, h_2 = forward(second, { h0 = h_1, chunk = 16 })
            close("first part", o_1, numbers.rows(o, 0, split), 1e-13)
            close("second part", o_2, numbers.rows(o, split, 37 - split), 1e-13)
            close("last state", h_2, hT, 1e-13)
            second.d_hT = x.d_hT
            local grad_2 = backward(second, { h0 = h_1, chunk = 16 })
            first.d_hT = grad_2.dh0
            local grad_1 = backward(first, { h0 = x.h0, chunk = 16 })
            close("dh0", grad_1.dh0, whole.dh0, 1e-13)
            for _, name in ipairs { "dq", "dk", "dv", "dg", "dbeta" } do
                close(name, grad_2[name], numbers.rows(whole[name], split, 37 - split), 1e-12)
                close(name, grad_1[name], numbers.rows(whole[name], 0, split), 1e-12)
            end
        end
    end)

    it("[report 36] passes through an empty sequence, and its gradient too", function()
        for _, device in ipairs(DEVICES) do
            local x = inputs({ T = 9, Hv = 2, K = 4, V = 3, S = 5 })
            local options = { h0 = x.h0, cu_seqlens = { 0, 0, 5, 5, 9, 9 }, device = device }
            local _, hT = forward(x, options)
            local gradients = backward(x, options)
            local h0, d_hT, dh0 = x.h0:totable(), x.d_hT:totable(), gradients.dh0:totable()
            hT = hT:totable()
            for _, sequence in ipairs { 0, 2, 4 } do
                for i = sequence * 24 + 1, sequence * 24 + 24 do
                    assert.equal(h0[i], hT[i])
                    assert.equal(d_hT[i], dh0[i])
                end
            end
            assert.is_true(hT[25] ~= h0[25])
        end
    end)

    it("[report 20] is left alone by rows of zeros", function()
        local x = inputs({ T = 13, K = 4, V = 3 })
        local padded = {}
        for _, name in ipairs { "q", "k", "v", "g", "beta" } do
            local list, shape = x[name]:totable(), x[name]:shape()
            for i = 1, #list / 13 * 7 do list[#list + 1] = 0 * i end
            shape[1] = 20
            padded[name] = tensor.from(list, shape)
        end
        local o, hT = forward(x, { h0 = x.h0, chunk = 16 })
        local o_padded, hT_padded = forward(padded, { h0 = x.h0, chunk = 16 })
        close("o", numbers.rows(o_padded, 0, 13), o, 1e-14)
        close("hT", hT_padded, hT, 1e-14)
        -- Rows that are no zeros in the gates, as a layer makes of zeros, are another matter.
        local g = padded.g:totable()
        for i = 14, 20 do g[i] = -0.1 end
        padded.g = tensor.from(g, padded.g:shape())
        far("hT", select(2, forward(padded, { h0 = x.h0, chunk = 16 })), hT, 1e-3)
    end)

    it("reaches from the first token to the last where nothing decays", function()
        local x = inputs({ T = 200, K = 8, V = 3, g_low = 0, g_high = 0 })
        x.beta:fill(0.01)
        local before = forward(x, {}):totable()
        local v = x.v:totable()
        v[1] = v[1] + 1
        x.v = tensor.from(v, x.v:shape())
        local after = forward(x, {}):totable()
        assert.is_true(math.abs(after[199 * 3 + 1] - before[199 * 3 + 1]) > 1e-5)
    end)
end)

describe("documents", function()
    it("[report 33] do not see each other, in the fast kernel and in the reference", function()
        for _, device in ipairs(DEVICES) do
            local x = inputs({ T = 33, Hk = 2, Hv = 4, K = 5, V = 3, S = 3 })
            local options = { h0 = x.h0, cu_seqlens = { 0, 7, 20, 33 }, device = device }
            local o, hT = forward(x, options)
            local gradients = backward(x, options)
            for _, name in ipairs { "q", "k", "v", "g", "beta", "d_o" } do
                local list, width = x[name]:totable(), x[name]:n_elements() / 33
                for i = 7 * width + 1, 20 * width do list[i] = list[i] * 0.5 end
                x[name] = tensor.from(list, x[name]:shape())
            end
            local o_other, hT_other = forward(x, options)
            local others = backward(x, options)
            local function same(name, a, b, first, n)
                close(name, numbers.rows(a, first, n), numbers.rows(b, first, n), 0)
            end
            same("o", o, o_other, 0, 7)
            same("o", o, o_other, 20, 13)
            same("hT", hT, hT_other, 0, 1)
            same("hT", hT, hT_other, 2, 1)
            for name, gradient in pairs(gradients) do
                local rows = name == "dh0" and { { 0, 1 }, { 2, 1 } } or { { 0, 7 }, { 20, 13 } }
                for _, r in ipairs(rows) do same(name, gradient, others[name], r[1], r[2]) end
            end
            far("the changed document", numbers.rows(o_other, 7, 13), numbers.rows(o, 7, 13), 0.01)
        end
    end)

    it("equal their runs alone", function()
        local x = inputs({ T = 33, Hk = 2, Hv = 4, K = 5, V = 3 })
        local o = forward(x, { cu_seqlens = { 0, 7, 20, 33 } })
        local alone = {}
        for _, name in ipairs { "q", "k", "v", "g", "beta" } do
            alone[name] = numbers.rows(x[name], 7, 13)
        end
        close("o", forward(alone, {}), numbers.rows(o, 7, 13), 0)
        far("one long sequence", forward(x, {}), o, 0.01)
    end)
end)

-- Rows of heads [T, H, W] to other heads: head h of the result is head map(h) of t.
local function map_heads(t, n_heads, map)
    local shape, list, result = t:shape(), t:totable(), {}
    for token = 0, shape[1] - 1 do
        for h = 0, n_heads - 1 do
            for i = 1, shape[3] do
                result[#result + 1] = list[(token * shape[2] + map(h)) * shape[3] + i]
            end
        end
    end
    return tensor.from(result, { shape[1], n_heads, shape[3] })
end

describe("heads", function()
    it("[report 9] of values use key head h div (Hv / Hk): repeated, not tiled", function()
        for _, device in ipairs(DEVICES) do
            local x = inputs({ T = 20, Hk = 2, Hv = 8, K = 5, V = 3 })
            local o = forward(x, { device = device })
            local function run(map)
                local y = {}
                for name, t in pairs(x) do y[name] = t end
                y.q, y.k = map_heads(x.q, 8, map), map_heads(x.k, 8, map)
                return forward(y, { device = device })
            end
            close("repeated", run(function(h) return math.floor(h / 4) end), o, 1e-14)
            far("tiled", run(function(h) return h % 2 end), o, 0.1)
        end
    end)

    it("have gates of their own", function()
        local x = inputs({ T = 20, Hk = 1, Hv = 2, K = 5, V = 3 })
        local g = {}
        for i = 1, 40 do g[i] = i % 2 == 1 and 0 or -10 end
        x.g = tensor.from(g, { 20, 2 })
        local both = map_heads(forward(x, {}), 1, function() return 1 end)
        local alone = {}
        for name, t in pairs(x) do alone[name] = t end
        alone.v = map_heads(x.v, 1, function() return 1 end)
        local beta, g_1, beta_1 = x.beta:totable(), {}, {}
        for i = 1, 20 do g_1[i], beta_1[i] = -10, beta[2 * i] end
        alone.g, alone.beta = tensor.from(g_1, { 20, 1 }), tensor.from(beta_1, { 20, 1 })
        close("head 1", forward(alone, {}), both, 1e-14)
        alone.g:fill(0)
        far("head 1 with the gate of head 0", forward(alone, {}), both, 0.1)
    end)
end)

-- The recurrence by hand, for one head; `undecayed` makes the published mistake of predicting
-- from the state before its decay.
local function by_hand(x, undecayed)
    local shape, V = x.q:shape(), x.v:shape()[3]
    local T, K = shape[1], shape[3]
    local q, k = op.l2norm(x.q):totable(), op.l2norm(x.k):totable()
    local v, g, beta = x.v:totable(), x.g:totable(), x.beta:totable()
    local S, o = x.h0:totable(), {}
    for t = 0, T - 1 do
        local decay = math.exp(g[t + 1])
        for j = 1, V do
            local prediction, out = 0, 0
            for i = 1, K do
                local s = S[(i - 1) * V + j]
                prediction = prediction + k[t * K + i] * s * (undecayed and 1 or decay)
            end
            for i = 1, K do
                local at = (i - 1) * V + j
                S[at] = decay * S[at] + k[t * K + i] * beta[t + 1] * (v[t * V + j] - prediction)
                out = out + q[t * K + i] * S[at]
            end
            o[#o + 1] = out * K ^ -0.5
        end
    end
    return o
end

describe("the rule", function()
    it("predicts from the decayed state", function()
        local x = inputs({ T = 20, K = 4, V = 3, g_low = -2 })
        for _, device in ipairs(DEVICES) do
            local o = forward(x, { h0 = x.h0, device = device })
            close("decayed", o, by_hand(x, false), 1e-13)
            far("undecayed", o, by_hand(x, true), 0.05)
        end
    end)

    -- FLA#913, FLA#1000, FLA#953: some tile shapes were wrong; each is held to the oracle here.
    it("[report 14] is right with every chunk", function()
        local x = inputs({ T = 129, Hk = 2, Hv = 2, K = 12, V = 9 })
        local o, hT = forward(x, { h0 = x.h0, device = "ref" })
        local expected = backward(x, { h0 = x.h0, device = "ref" })
        for chunk = 1, 64 do
            local o_here, hT_here = forward(x, { h0 = x.h0, chunk = chunk })
            close("o", o_here, o, 1e-13)
            close("hT", hT_here, hT, 1e-13)
            if chunk % 9 == 1 then
                for name, gradient in pairs(backward(x, { h0 = x.h0, chunk = chunk })) do
                    close(name, gradient, expected[name], 1e-12)
                end
            end
        end
        -- A tile that begins anew is seen.
        far("o", forward(x, { cu_seqlens = { 0, 64, 129 } }), o, 1e-3)
    end)
end)

-- M h + B, or M' h + B, head by head.
local function affine(M, B, h, transposed)
    local shape = B:shape()
    local n_heads, K, V = shape[1] * shape[2], shape[3], shape[4]
    M, B, h = M:totable(), B:totable(), h:totable()
    local result = {}
    for head = 0, n_heads - 1 do
        for i = 0, K - 1 do
            for j = 1, V do
                local sum = B[(head * K + i) * V + j]
                for l = 0, K - 1 do
                    local m = transposed and M[(head * K + l) * K + i + 1]
                        or M[(head * K + i) * K + l + 1]
                    sum = sum + m * h[(head * K + l) * V + j]
                end
                result[#result + 1] = sum
            end
        end
    end
    return result
end

describe("the summary", function()
    for _, device in ipairs(DEVICES) do
        for _, T in ipairs { 1, 15, 64, 65, 130 } do
            it(("on %s, %d tokens: M h0 + B = hT, M' d_hT + b = dh0"):format(device, T), function()
                local x = inputs({ T = T, Hk = 2, Hv = 4, K = 5, V = 3, S = 3, g_low = -0.1 })
                local options = { cu_seqlens = { 0, math.floor(T / 3), math.floor(T / 3), T },
                    device = device, l2norm = true }
                local M, B = op.gdn_summary(x.k, x.v, x.g, x.beta, options)
                local b = op.gdn_summary_backward(x.q, x.k, x.v, x.g, x.beta, x.d_o, options)
                options.h0 = x.h0
                local _, hT = forward(x, options)
                close("hT", affine(M, B, x.h0), hT, 1e-13)
                close("dh0", affine(M, b, x.d_hT, true), backward(x, options).dh0, 1e-13)
                if T > 1 then -- the map of one token is symmetric
                    far("M, not M'", affine(M, b, x.d_hT), backward(x, options).dh0, 1e-6)
                end
            end)
        end
    end
end)

describe("gdn_carry", function()
    local function drawn(j, ...) return numbers.tensor(5, j, { ... }) end

    -- By entries: states, transitions, offsets.
    local LISTS = { { 3, -1, 0, 2 }, { 1, 0, -1, 1 }, { 0, -1, 1, 1 } }

    for _, device in ipairs(DEVICES) do
        it("goes on with states as lists say, and leaves the others: " .. device, function()
            for _, transpose in ipairs { false, true } do
                local M, B, h = drawn(1, 2, 3, 5, 5), drawn(2, 2, 3, 5, 4), drawn(3, 4, 3, 5, 4)
                local given = h:totable()
                for i = 1, 60 do given[i] = 0 / 0 end -- what goes on from nothing is not read
                local carried = op.gdn_carry(M, B, tensor.from(given, h:shape()), {
                    device = device, transpose = transpose, states = LISTS[1],
                    transitions = LISTS[2], offsets = LISTS[3] })
                close("begun", numbers.rows(carried, 0, 1), numbers.rows(B, 1, 1), 0)
                close("nobody's", numbers.rows(carried, 1, 1), numbers.rows(h, 1, 1), 0)
                for _, i in ipairs { 1, 4 } do
                    local state, m, b = LISTS[1][i], LISTS[2][i], LISTS[3][i]
                    close("state " .. state, numbers.rows(carried, state, 1),
                        affine(numbers.rows(M, m, 1), numbers.rows(B, b, 1),
                            numbers.rows(h, state, 1), transpose), 1e-15)
                end
            end
        end)

        it("carries a state through a sequence in two parts, and its gradient back: " .. device,
            function()
                local x = inputs({ T = 40, Hv = 2, K = 5, V = 3, g_low = -0.1 })
                local options = { cu_seqlens = { 0, 17, 40 }, device = device, l2norm = true }
                local M, B = op.gdn_summary(x.k, x.v, x.g, x.beta, options)
                local b = op.gdn_summary_backward(x.q, x.k, x.v, x.g, x.beta, x.d_o, options)
                local function through(offset, h, transpose, parts)
                    for _, part in ipairs(parts) do
                        h = op.gdn_carry(M, offset, h, { device = device, transpose = transpose,
                            transitions = { part }, offsets = { part } })
                    end
                    return h
                end
                local _, hT = forward(x, { h0 = x.h0, device = device })
                close("hT", through(B, x.h0, false, { 0, 1 }), hT, 1e-13)
                close("dh0", through(b, x.d_hT, true, { 1, 0 }),
                    backward(x, { h0 = x.h0, device = device }).dh0, 1e-13)
                far("back in the order of tokens", through(b, x.d_hT, true, { 0, 1 }),
                    backward(x, { h0 = x.h0, device = device }).dh0, 1e-3)
            end)
    end

    it("takes no states, and lists of nothing", function()
        for _, device in ipairs(DEVICES) do
            local M, B, h = drawn(1, 1, 2, 3, 3), drawn(2, 1, 2, 3, 4), drawn(3, 2, 2, 3, 4)
            local none = tensor.zeros { 0, 2, 3, 4 }
            assert.same({ 0, 2, 3, 4 }, op.gdn_carry(M, B, none, { device = device }):shape())
            assert.same(h:totable(), op.gdn_carry(M, B, h, { device = device, states = {} })
                :totable())
            assert.same(h:totable(), op.gdn_carry(M, none, h, { device = device,
                states = { -1, -1 } }):totable())
        end
    end)

    it("refuses entries that are not there, states twice, and lists of other lengths", function()
        local M, B, h = drawn(1, 1, 2, 3, 3), drawn(2, 2, 2, 3, 4), drawn(3, 3, 2, 3, 4)
        local function refused(message, options)
            local ok, got = pcall(function() local _ = op.gdn_carry(M, B, h, options) end)
            assert.is_false(ok)
            assert.equal("op.gdn_carry: " .. message,
                (got:gsub("^%.?/?spec/kernels/gdn_spec%.lua:%d+: ", "")))
        end
        refused("transitions[2] must be an integer in -1 .. 0 (got 1)")
        refused("states[1] must be an integer in -1 .. 2 (got 3)", { states = { 3 } })
        refused("offsets[1] must be an integer in -1 .. 1 (got 2)",
            { states = { 0 }, offsets = { 2 } })
        refused("states[3] = 0 stands twice", { states = { 0, -1, 0, -1 },
            transitions = { 0, 0, 0, 0 } })
        refused("transitions has 1 entries, but states has 2",
            { states = { 0, 1 }, transitions = { 0 } })
        refused("offsets[2] = -1, but states[2] = 1 goes on",
            { states = { 0, 1 }, transitions = { 0, 0 }, offsets = { 0, -1 } })
        refused("wide numbers are those of bf16, on a device", { wide = true })
    end)
end)

it("many sequences of one token run, one chunk each", function()
    local n = 3000
    local x = inputs({ T = n, K = 2, V = 2, S = n })
    local cu = {}
    for i = 0, n do cu[i + 1] = i end
    local o, hT = forward(x, { h0 = x.h0, cu_seqlens = cu })
    local o_ref, hT_ref = forward(x, { h0 = x.h0, cu_seqlens = cu, device = "ref" })
    close("o", o, o_ref, 1e-14)
    close("hT", hT, hT_ref, 1e-14)
end)
