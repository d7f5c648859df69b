-- Multi-latent attention: the absorbed form against the expanded one, and over ranks in every mode
-- against one rank. Gradients against differences, padding and documents: see layer_spec.
local clib = require "clib"
local layers = require "spec.support.layers"
local modes = require "spec.support.gqa_modes"
local C, ffi = clib.C, clib.ffi

local BOUND = 1e-12

-- ---- the expanded form, as its definition reads -----------------------------------

local function weights_of(live)
    local by_name = {}
    for _, entry in ipairs(live.parameters.list) do
        local list = {}
        for i = 0, tonumber(C.cpl_tensor_n_rows(entry.weight)) - 1 do
            list[i + 1] = layers.row(entry.weight, i)
        end
        by_name[entry.name:match "%.(.*)$"] = list
    end
    return by_name
end

local function times(matrix, x)
    local y = {}
    for i, row in ipairs(matrix) do
        y[i] = 0
        for j, w in ipairs(row) do y[i] = y[i] + w * x[j] end
    end
    return y
end

local function slice(x, first, n)
    return { unpack(x, first + 1, first + n) }
end

local function rms_norm(x, weight, eps)
    local sum = 0
    for _, value in ipairs(x) do sum = sum + value * value end
    local y = {}
    for i, value in ipairs(x) do y[i] = value / math.sqrt(sum / #x + eps) * weight[i][1] end
    return y
end

local function rope(x, position, theta)
    if theta == 0 then return x end
    local y, half = {}, #x / 2
    for i = 1, half do
        local angle = position * theta ^ (-2 * (i - 1) / #x)
        local c, s = math.cos(angle), math.sin(angle)
        y[i], y[i + half] = x[i] * c - x[i + half] * s, x[i + half] * c + x[i] * s
    end
    return y
end

local function dot(a, b)
    local sum = 0
    for i, value in ipairs(a) do sum = sum + value * b[i] end
    return sum
end

-- Queries, keys and values of one token: lists of heads.
local function heads_of(w, x, position, c)
    local q_up = times(w.q_up,
        c.q_rank == 0 and x or rms_norm(times(w.q_down, x), w.q_norm, c.eps))
    local down = times(w.kv_down, x)
    local latent = rms_norm(slice(down, 0, c.kv_rank), w.kv_norm, c.eps)
    local up = times(w.kv_up, latent)
    local k_rope = rope(slice(down, c.kv_rank, c.rope_dim), position, c.rope_theta)
    local q, k, v = {}, {}, {}
    for h = 1, c.heads do
        local at, up_at = (h - 1) * (c.nope_dim + c.rope_dim), (h - 1) * (c.nope_dim + c.value_dim)
        q[h], k[h] = slice(q_up, at, c.nope_dim), slice(up, up_at, c.nope_dim)
        local q_rope = rope(slice(q_up, at + c.nope_dim, c.rope_dim), position, c.rope_theta)
        for i = 1, c.rope_dim do
            q[h][c.nope_dim + i], k[h][c.nope_dim + i] = q_rope[i], k_rope[i]
        end
        v[h] = slice(up, up_at + c.nope_dim, c.value_dim)
    end
    return { q = q, k = k, v = v }
end

-- One sequence of n tokens.
local function expanded(w, xs, c)
    local tokens, ys = {}, {}
    for t, x in ipairs(xs) do tokens[t] = heads_of(w, x, t - 1, c) end
    for t, token in ipairs(tokens) do
        local out = {}
        for h = 1, c.heads do
            local sum, o = 0, {}
            for j = math.max(1, c.window > 0 and t - c.window + 1 or 1), t do
                local weight = math.exp(dot(token.q[h], tokens[j].k[h])
                    / math.sqrt(c.nope_dim + c.rope_dim))
                sum = sum + weight
                for i, value in ipairs(tokens[j].v[h]) do o[i] = (o[i] or 0) + weight * value end
            end
            for _, value in ipairs(o) do out[#out + 1] = value / sum end
        end
        ys[t] = times(w.o_proj, out)
    end
    return ys
end

describe("mla", function()
    it("in its absorbed form equals the expanded one", function()
        for _, changes in ipairs { { window = 0 }, { window = 3 }, { rope_dim = 0, window = 0 },
            { q_rank = 0, window = 0 }, { q_rank = 0, rope_theta = 0, window = 3 } } do
            local c = { heads = 4, q_rank = 5, kv_rank = 4, nope_dim = 3, rope_dim = 2,
                value_dim = 7, rope_theta = 100, eps = 1e-6 }
            for name, value in pairs(changes) do c[name] = value end
            local live = layers.live("mla", { lengths = { 9 } }, changes)
            layers.forward(live)
            local xs, ys = {}, {}
            for t = 0, 8 do xs[t + 1], ys[t + 1] = layers.row(live.x, t), layers.row(live.y, t) end
            assert.is_true(modes.parity(ys, expanded(weights_of(live), xs, c)) <= 1e-13)
            c.window = 2 -- the control
            assert.is_true(modes.parity(ys, expanded(weights_of(live), xs, c)) > 1e-3)
        end
    end)

    for _, cp in ipairs { 2, 3, 4, 5, 8 } do
        for _, mode in ipairs { "gather", "p2p", "a2a", "a2a+p2p" } do
            it(("over %d ranks by %s equals one rank in every layout"):format(cp, mode), function()
                local config = { cp_mode = mode, heads = 2 * cp,
                    a2a = mode == "a2a+p2p" and (cp % 2 == 0 and 2 or cp) or nil,
                    q_rank = mode == "p2p" and 0 or nil }
                local cases, n = {}, 0
                for _, layout in ipairs(modes.LAYOUTS) do
                    for _, i in ipairs { 1, 2, 5, 8 } do
                        n = n + 1
                        local windowed = { window = n % 2 == 0 and 3 or nil }
                        for name, value in pairs(config) do windowed[name] = value end
                        cases[n] = modes.case(layout, modes.LISTS[i], cp, windowed,
                            { kind = "mla", trace = n % 3 == 0 })
                    end
                end
                for i, result in ipairs(modes.run(cp, cases)) do
                    local worst, where = modes.worst(result, modes.alone(cases[i]))
                    assert.is_true(worst <= BOUND, ("%g at %s, %s"):format(worst, where,
                        cases[i].layout))
                    assert.equal(0, result.wrong_rows)
                end
            end)
        end
    end

    it("moves latents: kv_rank + rope_dim numbers a token, whatever the heads are", function()
        for _, heads in ipairs { 2, 8 } do
            local result = modes.run(4, { { stream = { lengths = { 64 } }, layout = "zigzag",
                kind = "mla", config = { cp_mode = "p2p", heads = heads } } })[1]
            assert.equal(3 * 64 * (4 + 2) * 8, result.forward.bytes)
            assert.equal(2 * result.forward.bytes, result.backward.bytes)
        end
    end)

    it("allocates nothing while it runs, and leaves nothing of what was there", function()
        for _, mode in ipairs { "gather", "p2p", "a2a" } do
            local case = { stream = { lengths = { 24, 16 }, real = { 21, 16 } }, layout = "zigzag",
                kind = "mla", config = { cp_mode = mode }, again = true }
            local again = modes.run(4, { case })[1]
            assert.equal(0, again.allocations)
            case.poison = true
            local poisoned = modes.run(4, { case })[1]
            for _, name in ipairs { "y", "dx", "grads" } do
                assert.same(again[name], poisoned[name])
            end
        end
    end)

    it("refuses sizes that break a rule", function()
        local function refused(message, changes)
            assert.has_error(function() layers.create("mla", changes) end, message)
        end
        refused("mla: hidden, heads, kv_rank, nope_dim and value_dim must be positive "
            .. "(got 6, 4, 0, 3, 7)", { kv_rank = 0 })
        refused("mla: q_rank must be >= 0 (got -1)", { q_rank = -1 })
        refused("mla: rope_theta must be >= 0 (got -2)", { rope_theta = -2 })
        refused("mla: rope_dim 3 must be even and not negative", { rope_dim = 3 })
        refused("mla: window must be >= 0 (got -2)", { window = -2 })
        refused('mla: unknown cp_mode "ring"; there are gather, p2p, a2a, a2a+p2p',
            { cp_mode = "ring" })
        assert.equal("mla", ffi.string(C.cpl_layer_kind(layers.create "mla")))
    end)
end)
