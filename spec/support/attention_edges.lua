--- NaN and Inf in attention: cases, and whether what comes out is NaN, Inf and -Inf where it is in
-- the reference, and nowhere else, wherever tiles, windows and blocks have their borders.
-- @module spec.support.attention_edges
local attention = require "spec.support.attention_calls"

local M = {}

local REFERENCE = attention.REFERENCE
local forward, backward = attention.forward, attention.backward

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

--- Fails unless both are NaN, the same Inf, or numbers that are close, one by one.
function M.same_kind(name, actual, expected, bound)
    assert(#actual == #expected, name)
    for i, x in ipairs(expected) do
        local y = actual[i]
        local is_same = x ~= x and y ~= y or x == y or math.abs(x - y) <= bound
        if not is_same then error(("%s[%d]: %g, not %g"):format(name, i, y, x), 2) end
    end
end

-- Of bf16 some sums lose their largest numbers to a NaN: the bound is that of those.
local BOUNDS = { f64 = 1e-10, f32 = 1e-4, bf16 = 2 ^ -6 }

--- Fails unless a call gives numbers of the reference's kinds.
-- @tparam string what
-- @tparam function f attention_calls.forward or backward
-- @tparam table c a complete case
-- @tparam table place
-- @tparam string dtype
-- @treturn number how many numbers of the reference's outputs are not finite
function M.compare_kinds(what, f, c, place, dtype)
    local expected, n = f(c, REFERENCE, dtype), 0
    local actual = f(c, place, dtype)
    for name, list in pairs(expected) do
        local bound = BOUNDS[dtype] * math.max(largest_finite(list), 1)
        M.same_kind(("%s %s %s %s"):format(what, name, dtype, place.way or "best"), actual[name],
            list, bound)
        for _, x in ipairs(list) do n = n + (is_finite(x) and 0 or 1) end
    end
    return n
end

-- ---- one number that is not finite -------------------------------------------------------------

--- Cases by name. On devices tiles of bf16 have 128 and 64 rows, strips 64 columns, of f32 64 and
-- 64; on the host tiles have 256 rows and keys, 64 keys where not all see all. `at`: the tokens
-- whose numbers are changed, in turn.
M.SHAPES = {
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

--- The case with one number changed, of a token's last head.
function M.changed(shape, name, token, x)
    local c = attention.complete(shape)
    local heads, width = heads_of(c, name), width_of(c, name)
    local at = (token * heads + heads - 1) * width + math.min(3, width)
    c.changes = { [name] = { [at] = x } }
    return c
end

local function inputs_of(shape, f)
    if shape.shared then return { "k" } end
    if f == backward then return BACKWARD end
    return shape.accumulate and { "q", "k", "v", "o", "lse" } or FORWARD
end

--- Calls try(a word on it, forward or backward, case) for every input of both and every number, at
-- the tokens in turn. `try` says how many numbers came out that are not finite; fails if none did.
function M.each_change(shape, try)
    local turn, n = 0, 0
    for _, f in ipairs { forward, backward } do
        for _, name in ipairs(inputs_of(shape, f)) do
            for _, x in ipairs(VALUES) do
                local token = shape.at[turn % #shape.at + 1]
                turn = turn + 1
                n = n + try(("%g in %s of %d:"):format(x, name, token), f,
                    M.changed(shape, name, token, x))
            end
        end
    end
    assert(n > 0, "nothing came out that is not finite")
end

--- Keys with their values in the same rows.
-- @tparam number key_dim
-- @tparam number value_dim
function M.shared(key_dim, value_dim)
    return { blocks = { { 0, 21, 1, 25, 4 } }, heads = 2, kv_heads = 1, key_dim = key_dim,
        value_dim = value_dim, shared = true, scale = key_dim ^ -0.5, at = { 9, 1, 24 } }
end

-- ---- several -----------------------------------------------------------------------------------

--- A complete case of 40 tokens with numbers changed.
function M.of_forty(changes)
    return attention.complete { blocks = { { 0, 40, 0, 40, 0 } }, heads = 1, kv_heads = 1,
        key_dim = 8, value_dim = 8, pad = 0, changes = changes, n_queries = 41, n_keys = 41 }
end

--- What is changed in those, by name.
M.SEVERAL = {
    ["a query and a key"] = { q = { [8 * 13 + 1] = nan }, k = { [8 * 20 + 3] = inf } },
    ["scores of -inf alone"] = { q = { [1] = inf }, k = { [1] = -1 } },
    ["a value that all see"] = { v = { [5] = nan } },
    ["both infinities in values"] = { v = { [8 * 3 + 2] = inf, [8 * 20 + 2] = -inf } },
}

return M
