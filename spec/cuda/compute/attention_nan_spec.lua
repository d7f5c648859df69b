-- NaN and Inf in attention on a device that is emulated: what comes out is NaN, Inf and -Inf where
-- it is in the reference, and nowhere else, wherever tiles, windows and blocks have their borders.
local attention = require "spec.support.attention_calls"
local on_device = require "spec.support.on_device"

local it_there = on_device.it(it, pending)
local forward, backward = attention.forward, attention.backward
local REFERENCE, WAYS, DTYPES = attention.REFERENCE, attention.WAYS, attention.DTYPES

local nan, inf = 0 / 0, 1 / 0
local VALUES = { nan, inf, -inf }

local function is_finite(x) return x - x == 0 end

local function largest_finite(list)
    local largest = 0
    for _, x in ipairs(list) do
        if is_finite(x) then largest = math.max(largest, math.abs(x)) end
    end
    return largest
end

-- Both are NaN, the same Inf, or numbers that are close.
local function same_kind(name, actual, expected, bound)
    assert(#actual == #expected, name)
    for i, x in ipairs(expected) do
        local y = actual[i]
        local is_same = x ~= x and y ~= y or x == y or math.abs(x - y) <= bound
        if not is_same then error(("%s[%d]: %g, not %g"):format(name, i, y, x), 2) end
    end
end

-- How many numbers of the reference's outputs are not finite.
local function compare_kinds(what, f, c, place, dtype)
    local expected, n = f(c, REFERENCE, dtype), 0
    local actual = f(c, place, dtype)
    for name, list in pairs(expected) do
        -- Of bf16 some sums lose their largest numbers to a NaN: the bound is that of those.
        local bound = (dtype == "bf16" and 2 ^ -6 or 1e-4) * math.max(largest_finite(list), 1)
        same_kind(("%s %s %s %s"):format(what, name, dtype, place.way or "best"), actual[name],
            list, bound)
        for _, x in ipairs(list) do n = n + (is_finite(x) and 0 or 1) end
    end
    return n
end

-- ---- one number that is not finite -------------------------------------------------------------

-- Tiles of bf16 have 128 and 64 rows, strips 64 columns; of f32 64 and 64. `at`: the tokens whose
-- numbers are changed, in turn.
local SHAPES = {
    ["a causal triangle over several tiles"] = {
        blocks = { { 0, 130, 0, 130, 0 } }, heads = 2, kv_heads = 1, key_dim = 8, value_dim = 8,
        at = { 0, 63, 64, 127, 128, 20 },
    },
    ["a window"] = {
        blocks = { { 3, 130, 2, 140, 7 } }, heads = 1, kv_heads = 1, key_dim = 8, value_dim = 16,
        window = 40, at = { 65, 66, 5, 129, 130 },
    },
    ["several sequences"] = {
        blocks = { { 0, 20, 46, 20, 0 }, { 20, 45, 0, 45, 0 }, { 65, 70, 66, 70, 0 } }, heads = 2,
        kv_heads = 2, key_dim = 16, value_dim = 8, at = { 0, 19, 20, 44, 45, 64, 65, 66, 134 },
    },
    ["keys in parts, on top of what is there"] = {
        blocks = { { 0, 100, 0, 1, 0 }, { 0, 100, 1, 63, -1 }, { 0, 100, 64, 36, -64 } },
        heads = 4, kv_heads = 2, key_dim = 8, value_dim = 8, accumulate = true,
        at = { 64, 0, 1, 63, 65 },
    },
    ["keys in parts"] = {
        blocks = { { 0, 100, 0, 1, 0 }, { 0, 100, 1, 63, -1 }, { 0, 100, 64, 36, -64 } },
        heads = 1, kv_heads = 1, key_dim = 8, value_dim = 8, at = { 0, 1, 64 },
    },
    ["blind queries, and such as see all"] = {
        blocks = { { 1, 70, 0, 90, 300 }, { 75, 60, 95, 80, -10 } }, heads = 1, kv_heads = 1,
        key_dim = 8, value_dim = 8, at = { 70, 84, 86, 95, 134 },
    },
    ["blind queries, on top of what is there"] = {
        blocks = { { 1, 70, 0, 90, 300 }, { 75, 60, 95, 80, -10 } }, heads = 1, kv_heads = 1,
        key_dim = 8, value_dim = 8, accumulate = true, at = { 84, 75, 86, 72 },
    },
}
local FORWARD, BACKWARD = { "q", "k", "v" }, { "q", "k", "v", "d_o", "lse", "o" }

local function heads_of(c, name)
    return (name == "k" or name == "v") and c.kv_heads or c.heads
end

local function width_of(c, name)
    return name == "lse" and 1 or (name == "q" or name == "k") and c.key_dim or c.value_dim
end

-- The case with one number changed, of a token's last head.
local function changed(shape, name, token, x)
    local c = attention.complete(shape)
    local heads, width = heads_of(c, name), width_of(c, name)
    local at = (token * heads + heads - 1) * width + math.min(3, width)
    c.changes = { [name] = { [at] = x } }
    return c
end

-- visit(case, a word on it) for every input and number, at the tokens in turn.
local function each_change(shape, inputs, visit)
    local turn = 0
    for _, name in ipairs(inputs) do
        for _, x in ipairs(VALUES) do
            local token = shape.at[turn % #shape.at + 1]
            turn = turn + 1
            visit(changed(shape, name, token, x), ("%g in %s of %d:"):format(x, name, token))
        end
    end
end

local function inputs_of(shape, f)
    if f == backward then return BACKWARD end
    return shape.accumulate and { "q", "k", "v", "o", "lse" } or FORWARD
end

describe("one NaN or Inf in attention on a device goes where it goes in the reference:", function()
    for what, shape in pairs(SHAPES) do
        it_there(what, function()
            local n = 0
            for _, f in ipairs { forward, backward } do
                each_change(shape, inputs_of(shape, f), function(c, word)
                    for _, dtype in ipairs { "f32", "bf16" } do
                        n = n + compare_kinds(word, f, c, WAYS[1], dtype)
                    end
                    compare_kinds(word, f, c, WAYS[2], "bf16")
                end)
            end
            assert(n > 0, "nothing came out that is not finite")
        end)
    end

    it_there("keys and values in the same rows", function()
        for _, sizes in ipairs { { 24, 16 }, { 576, 512 } } do
            local shape = { blocks = { { 0, 21, 1, 25, 4 } }, heads = 2, kv_heads = 1,
                key_dim = sizes[1], value_dim = sizes[2], shared = true, scale = sizes[1] ^ -0.5,
                at = { 9, 1, 24 } }
            for _, f in ipairs { forward, backward } do
                each_change(shape, { "k" }, function(c, word)
                    for _, dtype in ipairs(sizes[1] < 576 and DTYPES or { "bf16" }) do
                        compare_kinds(word, f, c, WAYS[1], dtype)
                    end
                end)
            end
        end
    end)
end)

-- ---- several -----------------------------------------------------------------------------------

describe("NaN and Inf in attention on a device", function()
    local function case(changes)
        return attention.complete { blocks = { { 0, 40, 0, 40, 0 } }, heads = 1, kv_heads = 1,
            key_dim = 8, value_dim = 8, pad = 0, changes = changes, n_queries = 41, n_keys = 41 }
    end

    for name, change in pairs {
        ["a query and a key"] = { q = { [8 * 13 + 1] = nan }, k = { [8 * 20 + 3] = inf } },
        ["scores of -inf alone"] = { q = { [1] = inf }, k = { [1] = -1 } },
        ["a value that all see"] = { v = { [5] = nan } },
        ["both infinities in values"] = { v = { [8 * 3 + 2] = inf, [8 * 20 + 2] = -inf } },
    } do
        it_there("go the way that they go in the reference: " .. name, function()
            for _, place in ipairs(WAYS) do
                for _, dtype in ipairs(DTYPES) do
                    compare_kinds(name, forward, case(change), place, dtype)
                end
            end
        end)
    end

    it_there("stay with those who see them", function()
        -- Key 20 is seen by queries from 20 on.
        local change = { k = { [8 * 20 + 3] = nan }, v = { [8 * 20 + 3] = nan } }
        for _, place in ipairs(WAYS) do
            for _, dtype in ipairs(DTYPES) do
                local list = forward(case(change), place, dtype).o
                for i = 1, 40 * 8 do assert.equal(i > 20 * 8, list[i] ~= list[i]) end
            end
        end
    end)

    it_there("are not made by large scores", function()
        local c = attention.complete { blocks = { { 0, 20, 0, 20, 0 } }, scale = 500, heads = 1,
            kv_heads = 1 }
        for _, place in ipairs(WAYS) do
            for name, list in pairs(forward(c, place, "bf16")) do
                local expected = forward(c, REFERENCE, "bf16")[name]
                same_kind(name, list, expected, name == "o" and 2 ^ -7 or 1e-2)
            end
        end
    end)

    it_there("in any order of threads give the same", function()
        local c = changed(SHAPES["a window"], "v", 66, nan)
        for _, f in ipairs { forward, backward } do
            local once = f(c, WAYS[1], "bf16")
            for _, order in ipairs { "reverse", "random:5", "forward" } do
                on_device.set("order", order)
                for name, list in pairs(f(c, WAYS[1], "bf16")) do
                    same_kind(name, list, once[name], 0)
                end
            end
        end
    end)
end)
