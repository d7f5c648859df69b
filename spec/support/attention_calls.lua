--- Calls of attention on a device that is emulated and on the reference, on the same (rounded)
-- numbers.
--
-- A case has blocks, { q_slot, n_queries, kv_slot, n_keys, n_before } each, and what it says of the
-- other sizes; `changes` are numbers of inputs by name and index.
-- @module spec.support.attention_calls
local call = require "cplab.op.call"
local clib = require "clib"
local ffi = require("clib").ffi
local numbers = require "spec.kernels.numbers"
local tensor = require "cplab.tensor"

local M = {}

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

--- Where calls go, and in which dtypes.
M.REFERENCE = { device = "ref" }
M.WAYS = { { device = "cuda-emulated" }, { device = "cuda-emulated", way = "naive" } }
M.DTYPES = { "f64", "f32", "bf16" }

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

--- What a case says, and what it need not say.
function M.complete(case)
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

--- What comes out of a call of a complete case, lists by name, and its workspace.
function M.forward(c, place, dtype)
    local at, p = new_call(c, place, dtype), ffi.new "cpl_attention"
    fill(p, c, at)
    p.o, p.lse = at.output "o", at.output "lse"
    local kept = at.dims:call_with_workspace("attention", p)
    return at.results(), kept
end

--- The same of the backward.
function M.backward(case, place, dtype)
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

--- How far an output may be from the reference's, as numbers.close wants it.
function M.bound_of(dtype, name, expected)
    local bound = BOUNDS[dtype][name]
    if dtype ~= "bf16" or name ~= "o" then return bound end
    return bound / math.max(numbers.largest(expected), 2 ^ -8)
end

--- Fails unless both ways give what the reference gives, in the dtypes that are named or in all.
function M.compare(case, dtypes)
    local c = M.complete(case)
    for _, dtype in ipairs(dtypes or M.DTYPES) do
        for _, f in ipairs { M.forward, M.backward } do
            local expected = f(c, M.REFERENCE, dtype)
            for _, place in ipairs(M.WAYS) do
                for name, list in pairs(f(c, place, dtype)) do
                    numbers.close(("%s %s %s"):format(name, dtype, place.way or "best"), list,
                        expected[name], M.bound_of(dtype, name, expected[name]))
                end
            end
        end
    end
end

return M
