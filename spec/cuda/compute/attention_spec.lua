-- Attention on a device that is emulated, both ways, against the reference on the same (rounded)
-- numbers: blocks of every kind, windows, queries that blocks share, accumulation, odd sizes.
local call = require "cplab.op.call"
local clib = require "clib"
local ffi = require("clib").ffi
local numbers = require "spec.kernels.numbers"
local on_device = require "spec.support.on_device"
local tensor = require "cplab.tensor"

local it_there = on_device.it(it, pending)

-- Bounds as shares of the largest number, but in bf16 that of o, a share of the largest |v|, which
-- is 1. Of f64 and f32 those of spec/kernels. bf16 is right to 2^-9 of a number. The naive way
-- rounds results alone. On tensor cores weights and gradients of scores are rounded too: o is a
-- mean of v by weights that are off by 2^-9 of them at most, and is then rounded: 2^-8. A gradient
-- is a sum of both signs, where what is rounded may be larger than what is left: twice that.
local BOUNDS = {
    f64 = { o = 1e-13, lse = 1e-13, dq = 1e-12, dk = 1e-12, dv = 1e-12 },
    f32 = { o = 2e-6, lse = 2e-6, dq = 1e-5, dk = 1e-5, dv = 1e-5 },
    bf16 = { o = 2 ^ -8, lse = 2e-6, dq = 2 ^ -7, dk = 2 ^ -7, dv = 2 ^ -7 },
}

-- ---- calls --------------------------------------------------------------------------------------

local GUARD = 2 ^ 30 -- stands between the rows of outputs; in those of inputs stands a NaN

-- Rows of numbers, `pad` more of the guard in each.
local function padded(list, width, pad, guard)
    local result = {}
    for i = 1, #list, width do
        for j = i, i + width - 1 do result[#result + 1] = list[j] end
        for _ = 1, pad do result[#result + 1] = guard end
    end
    if #result == 0 then result[1] = guard end
    return result
end

-- The numbers of rows, whose guards must be whole.
local function unpadded(name, list, width, pad)
    local result = {}
    for i, x in ipairs(list) do
        if (i - 1) % (width + pad) < width then
            result[#result + 1] = x
        elseif x ~= GUARD then
            error(("%s: the guard at %d was overwritten"):format(name, i))
        end
    end
    return result
end

-- What a case says, and what it need not say.
local function complete(case)
    local c = { heads = 4, kv_heads = 2, key_dim = 16, value_dim = 16, window = 0, scale = 0.3,
        pad = 8, accumulate = false, changes = {} }
    for name, value in pairs(case) do c[name] = value end
    c.n_queries, c.n_keys = c.n_queries or 1, c.n_keys or 1
    for _, b in ipairs(c.blocks) do
        c.n_queries = math.max(c.n_queries, b[1] + b[2] + 1)
        c.n_keys = math.max(c.n_keys, b[3] + b[4] + 1)
    end
    return c
end

-- Rows and widths by name. With `shared` values are the first of each key's row.
local function shapes_of(c)
    local q, k, o = c.heads * c.key_dim, c.kv_heads * c.key_dim, c.heads * c.value_dim
    local v = c.kv_heads * c.value_dim
    return {
        q = { c.n_queries, q, c.pad }, k = { c.n_keys, k, c.pad }, v = { c.n_keys, v, c.pad },
        o = { c.n_queries, o, 0 }, lse = { c.n_queries, c.heads, 0 },
        d_o = { c.n_queries, o, 0 }, dq = { c.n_queries, q, c.pad },
        dk = { c.n_keys, k, c.pad }, dv = { c.n_keys, v, c.pad },
    }
end

local ORDER = { q = 1, k = 2, v = 3, o = 4, lse = 5, d_o = 6, dq = 7, dk = 8, dv = 9 }

-- A tensor of the host with the case's numbers, in `dtype`, as it is after rounding to `rounded`.
local function numbers_of(c, name, shape, rounded, dtype, guard)
    local low, high = -1, 1
    if name == "lse" and c.op == "attention_backward" then low, high = 3, 4 end
    local list = numbers.list(7, ORDER[name], shape[1] * shape[2], low, high)
    for i, x in pairs(c.changes[name] or {}) do list[i] = x end
    list = padded(list, shape[2], shape[3], guard)
    return tensor.from(tensor.from(list, { #list }, rounded):totable(), { #list }, dtype)
end

local function blocks_at(c, dims)
    local blocks = ffi.new("cpl_attention_block[?]", #c.blocks + 1)
    for i, b in ipairs(c.blocks) do
        blocks[i - 1].q_slot, blocks[i - 1].n_queries = b[1], b[2]
        blocks[i - 1].kv_slot, blocks[i - 1].n_keys, blocks[i - 1].n_before = b[3], b[4], b[5]
    end
    return dims:at(blocks)
end

-- A call on its way: arrays by name, on the device or not.
local function new_call(c, place, rounded)
    local dims = call.dims("attention", place)
    dims.dtype = place.device == "ref" and "f64" or rounded
    local self = { dims = dims, shapes = shapes_of(c), outputs = {} }
    local function dtype_of(name, of) return name == "lse" and clib.wide_dtype(of) or of end
    function self.input(name)
        return dims:at(numbers_of(c, name, self.shapes[name], dtype_of(name, rounded),
            dtype_of(name, dims.dtype), 0 / 0))
    end
    -- Starts as the case's numbers where kernels go on from them, else as NaN.
    function self.output(name)
        local t = numbers_of(c, name, self.shapes[name], dtype_of(name, rounded),
            dtype_of(name, dims.dtype), GUARD)
        if not c.accumulate then
            local list, shape = t:totable(), self.shapes[name]
            for i = 1, #list do
                if list[i] ~= GUARD and shape[1] > 0 then list[i] = 0 / 0 end
            end
            t = tensor.from(list, t:shape(), t:dtype())
        end
        self.outputs[name] = dims:copy(t)
        return dims:at(self.outputs[name])
    end
    function self.results()
        local lists = {}
        for name, t in pairs(self.outputs) do
            lists[name] = unpadded(name, t:totable(), self.shapes[name][2], self.shapes[name][3])
        end
        return lists
    end
    return self
end

local function fill(p, c, at)
    p.q, p.k = at.input "q", at.input "k"
    p.v = c.shared and p.k or at.input "v"
    p.blocks, p.n_blocks = blocks_at(c, at.dims), #c.blocks
    p.n_queries, p.n_keys, p.heads, p.kv_heads = c.n_queries, c.n_keys, c.heads, c.kv_heads
    p.key_dim, p.value_dim, p.window, p.scale = c.key_dim, c.value_dim, c.window, c.scale
    p.q_stride = at.shapes.q[2] + c.pad
    p.k_stride = at.shapes.k[2] + c.pad
    p.v_stride = c.shared and p.k_stride or at.shapes.v[2] + c.pad
    p.accumulate = c.accumulate
end

local function forward(c, place, dtype)
    local at, p = new_call(c, place, dtype), ffi.new "cpl_attention"
    fill(p, c, at)
    p.o, p.lse = at.output "o", at.output "lse"
    local kept = at.dims:call_with_workspace("attention", p)
    return at.results(), kept
end

local function backward(case, place, dtype)
    local c = setmetatable({ op = "attention_backward" }, { __index = case })
    local at, b = new_call(c, place, dtype), ffi.new "cpl_attention_backward"
    fill(b.forward, c, at)
    b.forward.o, b.forward.lse = at.input "o", at.input "lse"
    b.d_o, b.dq, b.dk = at.input "d_o", at.output "dq", at.output "dk"
    b.dv = c.shared and b.dk or at.output "dv"
    b.dq_stride, b.dk_stride, b.dv_stride = b.forward.q_stride, b.forward.k_stride,
        b.forward.v_stride
    local kept = at.dims:call_with_workspace("attention_backward", b)
    return at.results(), kept
end

local REFERENCE = { device = "ref" }
local WAYS = { { device = "cuda-emulated" }, { device = "cuda-emulated", way = "naive" } }
local DTYPES = { "f64", "f32", "bf16" }

local function bound_of(dtype, name, expected)
    local bound = BOUNDS[dtype][name]
    if dtype ~= "bf16" or name ~= "o" then return bound end
    return bound / math.max(numbers.largest(expected), 2 ^ -8)
end

local function compare(case)
    local c = complete(case)
    for _, dtype in ipairs(DTYPES) do
        for _, f in ipairs { forward, backward } do
            local expected = f(c, REFERENCE, dtype)
            for _, place in ipairs(WAYS) do
                for name, list in pairs(f(c, place, dtype)) do
                    numbers.close(("%s %s %s"):format(name, dtype, place.way or "best"), list,
                        expected[name], bound_of(dtype, name, expected[name]))
                end
            end
        end
    end
end

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

    it_there("adds up what dv and dk give to a row that holds keys and values", function()
        for _, accumulate in ipairs { false, true } do
            compare { blocks = { { 0, 21, 1, 25, 4 } }, kv_heads = 1, key_dim = 24,
                value_dim = 16, shared = true, accumulate = accumulate }
        end
    end)

    it_there("without blocks, queries or keys gives zeros, or leaves what is there", function()
        for _, accumulate in ipairs { false, true } do
            compare { blocks = {}, n_queries = 5, n_keys = 3, accumulate = accumulate }
            compare { blocks = {}, n_queries = 0, n_keys = 3, accumulate = accumulate }
            compare { blocks = {}, n_queries = 5, n_keys = 0, accumulate = accumulate }
        end
    end)

    it_there("gives the same bits in every order of threads, and every time", function()
        local c = complete { blocks = cut(140, { 0, 40, 41, 140 }), heads = 2, kv_heads = 1,
            key_dim = 8, value_dim = 8 }
        for _, f in ipairs { forward, backward } do
            for _, place in ipairs(WAYS) do
                local once = f(c, place, "bf16")
                for _, order in ipairs { "reverse", "random:5", "forward" } do
                    on_device.set("order", order)
                    for name, list in pairs(f(c, place, "bf16")) do
                        assert.equal(0, numbers.error(list, once[name]))
                    end
                end
            end
        end
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

-- ---- NaN and Inf --------------------------------------------------------------------------------

-- Both are NaN, or the numbers are close.
local function same_kind(name, actual, expected, bound)
    for i, x in ipairs(expected) do
        local y = actual[i]
        local is_same = x ~= x and y ~= y or x == y or math.abs(x - y) <= bound
        if not is_same then error(("%s[%d]: %g, not %g"):format(name, i, y, x), 2) end
    end
end

describe("NaN and Inf in attention on a device", function()
    local function case(changes)
        return complete { blocks = { { 0, 40, 0, 40, 0 } }, heads = 1, kv_heads = 1,
            key_dim = 8, value_dim = 8, pad = 0, changes = changes, n_queries = 41, n_keys = 41 }
    end
    local nan, inf = 0 / 0, 1 / 0
    local changes = {
        ["a query"] = { q = { [8 * 13 + 1] = nan } },
        ["a key"] = { k = { [8 * 20 + 3] = nan } },
        ["an infinite query"] = { q = { [8 * 13 + 1] = inf } },
        ["an infinite key"] = { k = { [8 * 20 + 3] = inf } },
        ["scores of -inf alone"] = { q = { [1] = inf }, k = { [1] = -1 } },
        ["a value that all see"] = { v = { [5] = nan } },
        ["an infinite value that all see"] = { v = { [5] = inf } },
    }
    for name, change in pairs(changes) do
        it_there("go the way that they go in the reference: " .. name, function()
            for _, place in ipairs(WAYS) do
                for _, dtype in ipairs(DTYPES) do
                    local expected = forward(case(change), REFERENCE, dtype)
                    local actual = forward(case(change), place, dtype)
                    same_kind("o", actual.o, expected.o, 2 ^ -7)
                    same_kind("lse", actual.lse, expected.lse, 2 ^ -7)
                end
            end
        end)
    end

    it_there("stay with those who see them", function()
        -- Key 20 is seen by queries from 20 on; a tile may spread it, the naive way must not.
        local change = { k = { [8 * 20 + 3] = nan }, v = { [8 * 20 + 3] = nan } }
        for _, dtype in ipairs(DTYPES) do
            local list = forward(case(change), WAYS[2], dtype).o
            for i = 1, 40 * 8 do assert.equal(i > 20 * 8, list[i] ~= list[i]) end
        end
    end)

    it_there("are not made by large scores", function()
        local c = complete { blocks = { { 0, 20, 0, 20, 0 } }, scale = 500, heads = 1,
            kv_heads = 1 }
        for _, place in ipairs(WAYS) do
            for name, list in pairs(forward(c, place, "bf16")) do
                local expected = forward(c, REFERENCE, "bf16")[name]
                same_kind(name, list, expected, name == "o" and 2 ^ -7 or 1e-2)
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
