-- Attention on a device that is emulated, both ways, against the reference on the same (rounded)
-- numbers: blocks of every kind, windows, queries that blocks share, accumulation, odd sizes.
local attention = require "spec.support.attention_calls"
local numbers = require "spec.kernels.numbers"
local on_device = require "spec.support.on_device"

local it_there = on_device.it(it, pending)
local compare, complete = attention.compare, attention.complete
local forward, backward = attention.forward, attention.backward
local WAYS, DTYPES = attention.WAYS, attention.DTYPES

-- ---- cases --------------------------------------------------------------------------------------

-- Every way in which a block lies to its keys, { q_slot, n_queries, kv_slot, n_keys, n_before }:
-- causal, behind, all visible, partly beyond the keys, the first blind, all blind, none.
local function all_kinds(t)
    local list, q, k = {}, 1, 2
    local function add(n_keys, n_before, n_queries)
        list[#list + 1] = { q, n_queries or t, k, n_keys, n_before }
        q, k = q + (n_queries or t) + 1, k + n_keys + 1
    end
    add(t, 0)
    add(t + 20, 20)
    add(t + 5, 10 * t)
    add(math.ceil(t / 2), 0)
    add(t, -math.floor(t / 2))
    add(3, -t)
    add(0, 5)
    add(4, 1, 0)
    return list
end

-- The causal triangle of t tokens, its keys cut at `cuts`.
local function cut(t, cuts)
    local list = {}
    for i = 1, #cuts - 1 do list[i] = { 0, t, cuts[i], cuts[i + 1] - cuts[i], -cuts[i] } end
    return list
end

-- Sequences of one token, each with the key that lies as far from the other end.
local function tokens(n)
    local list = {}
    for i = 1, n do list[i] = { i - 1, 1, n - i, 1, 0 } end
    return list
end

describe("attention on a device", function()
    it_there("equals the reference for every kind of block and window", function()
        for _, t in ipairs { 1, 9, 30 } do
            for _, window in ipairs { 0, 1, 7 } do
                for _, accumulate in ipairs { false, true } do
                    compare { blocks = all_kinds(t), window = window, accumulate = accumulate,
                        heads = 2, kv_heads = 1 }
                end
            end
        end
    end)

    it_there("equals it where queries and keys fill several tiles", function()
        compare { blocks = { { 3, 150, 2, 170, 20 } }, heads = 1, kv_heads = 1, key_dim = 8,
            value_dim = 8 }
        compare { blocks = { { 3, 150, 2, 170, 20 } }, heads = 1, kv_heads = 1, key_dim = 8,
            value_dim = 8, window = 50, accumulate = true }
    end)

    it_there("joins blocks that share queries, in any order of the list", function()
        local parts = cut(70, { 0, 1, 2, 35, 69, 70 })
        compare { blocks = parts, heads = 1, kv_heads = 1 }
        compare { blocks = { parts[5], parts[3], parts[1], parts[4], parts[2] }, heads = 1,
            kv_heads = 1, accumulate = true, window = 40 }
    end)

    it_there("finds its blocks among many", function()
        compare { blocks = tokens(100), heads = 1, kv_heads = 1, key_dim = 8, value_dim = 8 }
    end)

    it_there("takes heads of any width, of keys and of values, and groups of heads", function()
        local blocks = { { 0, 21, 1, 25, 4 } }
        for _, sizes in ipairs { { 1, 1 }, { 5, 3 }, { 17, 40 }, { 64, 64 }, { 72, 128 },
            { 24, 8 }, { 256, 136 }, { 264, 8 } } do
            compare { blocks = blocks, heads = 1, kv_heads = 1, key_dim = sizes[1],
                value_dim = sizes[2], scale = sizes[1] ^ -0.5 }
        end
        compare { blocks = blocks, heads = 6, kv_heads = 2, key_dim = 8, value_dim = 8 }
        -- Rows that no 16 bytes at once can take.
        compare { blocks = blocks, key_dim = 8, value_dim = 8, pad = 3 }
    end)

    it_there("fills several tiles of heads of every width that tiles have", function()
        for _, sizes in ipairs { { 128, 40 }, { 40, 128 }, { 256, 192 }, { 192, 256 },
            { 576, 300 }, { 257, 576 } } do
            compare { blocks = { { 1, 66, 2, 70, 3 } }, heads = 1, kv_heads = 1,
                key_dim = sizes[1], value_dim = sizes[2], scale = sizes[1] ^ -0.5, window = 65 }
        end
    end)

    it_there("adds up what dv and dk give to a row that holds keys and values", function()
        for _, accumulate in ipairs { false, true } do
            compare { blocks = { { 0, 21, 1, 25, 4 } }, kv_heads = 1, key_dim = 24,
                value_dim = 16, shared = true, accumulate = accumulate }
            -- Latent attention: 512 of 576 numbers are values.
            compare { blocks = { { 0, 21, 1, 25, 4 } }, kv_heads = 1, key_dim = 576,
                value_dim = 512, shared = true, accumulate = accumulate, scale = 1 / 24 }
        end
    end)

    it_there("fills several tiles of latent heads, whose values are in the keys' rows", function()
        for _, sizes in ipairs { { 576, 512 }, { 264, 72 }, { 576, 576 } } do
            compare({ blocks = { { 1, 66, 2, 70, 3 } }, heads = 1, kv_heads = 1,
                key_dim = sizes[1], value_dim = sizes[2], shared = true,
                scale = sizes[1] ^ -0.5 }, { "bf16" })
        end
        compare({ blocks = cut(70, { 0, 40, 41, 70 }), heads = 2, kv_heads = 1, key_dim = 272,
            value_dim = 256, shared = true, scale = 1 / 16, window = 50, accumulate = true },
            { "bf16" })
    end)

    it_there("without blocks, queries or keys gives zeros, or leaves what is there", function()
        for _, accumulate in ipairs { false, true } do
            compare { blocks = {}, n_queries = 5, n_keys = 3, accumulate = accumulate }
            compare { blocks = {}, n_queries = 0, n_keys = 3, accumulate = accumulate }
            compare { blocks = {}, n_queries = 5, n_keys = 0, accumulate = accumulate }
        end
    end)

    it_there("gives the same bits in every order of threads, and every time", function()
        local function compare_orders(c, place, dtype)
            for _, f in ipairs { forward, backward } do
                local once = f(c, place, dtype)
                for _, order in ipairs { "reverse", "random:5", "forward" } do
                    on_device.set("order", order)
                    for name, list in pairs(f(c, place, dtype)) do
                        assert.equal(0, numbers.error(list, once[name]))
                    end
                end
            end
        end
        local several = complete { blocks = cut(140, { 0, 40, 41, 140 }), heads = 2, kv_heads = 1,
            key_dim = 8, value_dim = 8 }
        for _, dtype in ipairs(DTYPES) do
            for _, place in ipairs(WAYS) do compare_orders(several, place, dtype) end
        end
        compare_orders(complete { blocks = { { 0, 21, 1, 25, 4 } }, heads = 2, kv_heads = 1,
            key_dim = 576, value_dim = 512, shared = true, scale = 1 / 24 }, WAYS[1], "bf16")
    end)

    it_there("needs its bounds: another n_keys, n_before or window gives other numbers", function()
        local function block(n_keys, n_before, window)
            return complete { blocks = { { 0, 70, 0, n_keys, n_before } }, n_keys = 80,
                window = window, heads = 1, kv_heads = 1 }
        end
        for _, place in ipairs(WAYS) do
            for _, f in ipairs { forward, backward } do
                local name = f == forward and "lse" or "dv"
                local right = f(block(66, 3, 40), place, "bf16")[name]
                for _, wrong in ipairs { block(65, 3, 40), block(66, 2, 40), block(66, 4, 40),
                    block(66, 3, 39), block(66, 3, 41), block(66, 3, 0) } do
                    numbers.far(name, f(wrong, place, "bf16")[name], right, 1e-3)
                end
            end
        end
    end)
end)

describe("attention that no device takes", function()
    it_there("is refused with what is taken", function()
        local c = complete { blocks = {}, heads = 3, kv_heads = 2 }
        local ok, said = pcall(forward, c, WAYS[1], "f32")
        assert.is_false(ok)
        assert.matches("attention on a device takes heads of any width from 1 on, as many as a "
            .. "multiple of kv_heads; here are 3 heads, 2 kv_heads, widths 16 and 16", said)
    end)
end)

-- Of a sequence of one token the output is its value, and that has the whole gradient.
it_there("70,000 sequences of one token in bf16, both ways", function()
    local op, n, D = require "cplab.op", 70000, 8
    local cu = {}
    for i = 0, n do cu[i + 1] = i end
    local function rows(j) return numbers.tensor(1, j, { n, 1, D }, -1, 1, "bf16") end
    local q, k, v, d_o = rows(1), rows(2), rows(3), rows(4)
    for _, way in ipairs { "best", "naive" } do
        local options = { device = "cuda-emulated", way = way, cu_seqlens = cu }
        local o, lse = op.gqa(q, k, v, options)
        assert.equal(0, numbers.error(o:totable(), v:totable()))
        local dq, dk, dv = op.gqa_backward(q, k, v, o, lse, d_o, options)
        assert.equal(0, numbers.error(dv:totable(), d_o:totable()))
        for _, zero in ipairs { dq, dk } do
            assert.is_true(numbers.largest(zero:totable()) < 1e-6)
        end
    end
end)
