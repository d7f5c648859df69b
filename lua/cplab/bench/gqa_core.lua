--- The causal attention kernel as a core (cplab.bench.core), and some of its rows computed the
-- naive way in double: a query's output and gradient from all keys that it sees, a key's gradients
-- from all queries that see it (by the output and lse that the kernel left).
--
-- Cases: tokens, heads, kv_heads, head_dim, window (0: none), dtype.
-- @module cplab.bench.gqa_core
local arrays = require "cplab.bench.arrays"
local clib = require "clib"

local ffi = clib.ffi

local M = { op = "attention" }

-- Rows of q, k, v have a variance of about 1, so that the weights are neither all alike nor one.
local SPREAD = 1.7

--- Queries and the keys that each sees, itself included.
function M.pairs_of(tokens, window)
    local w = window > 0 and math.min(window, tokens) or tokens
    return w * (w + 1) / 2 + (tokens - w) * w
end

--- Operations forward and backward: two products of D forward, four backward, a pair and head;
-- that backward computes the weights again is not counted.
function M.flops(case)
    local pairs_seen = M.pairs_of(case.tokens, case.window)
    local forward = 4 * case.head_dim * case.heads * pairs_seen
    return forward, 2 * forward
end

--- A case of the same shape class that the reference computes in a second.
function M.small(case)
    local small = {}
    for name, value in pairs(case) do small[name] = value end
    small.tokens = math.min(case.tokens, case.small)
    local few = math.max(2, math.ceil(small.tokens * 3 / 8))
    small.window = math.min(case.window, few)
    small.is_large = false
    return small
end

local function drawn(name, case, heads)
    return { name, case.tokens, heads * case.head_dim, draw = function(array)
        arrays.draw(array, "gqa." .. name, -SPREAD, SPREAD)
    end }
end

function M.inputs(case)
    return { drawn("q", case, case.heads), drawn("k", case, case.kv_heads),
        drawn("v", case, case.kv_heads), drawn("d_o", case, case.heads) }
end

function M.outputs(case)
    local n, queries, keys = case.tokens, case.heads * case.head_dim, case.kv_heads * case.head_dim
    return { { "o", n, queries }, { "lse", n, case.heads, wide = true }, { "dq", n, queries },
        { "dk", n, keys }, { "dv", n, keys } }
end

local function block(q_slot, n_queries, kv_slot, n_keys)
    return { q_slot = q_slot, n_queries = n_queries, kv_slot = kv_slot, n_keys = n_keys,
        n_before = 0 }
end

function M.parameters(core)
    local case = core.case
    local n, queries, keys = case.tokens, case.heads * case.head_dim, case.kv_heads * case.head_dim
    local p = ffi.new("cpl_attention", {
        q = core.q.data, k = core.k.data, v = core.v.data, o = core.o.data, lse = core.lse.data,
        blocks = core:array("cpl_attention_block", { block(0, n, 0, n) }), n_blocks = 1,
        n_queries = n, n_keys = n, heads = case.heads, kv_heads = case.kv_heads,
        key_dim = case.head_dim, value_dim = case.head_dim, q_stride = queries, k_stride = keys,
        v_stride = keys, window = case.window, scale = case.head_dim ^ -0.5,
    })
    local b = ffi.new("cpl_attention_backward", {
        d_o = core.d_o.data, dq = core.dq.data, dk = core.dk.data, dv = core.dv.data,
        dq_stride = queries, dk_stride = keys, dv_stride = keys,
    })
    return p, b
end

--- The second half of the queries sees no key of the first.
function M.forget_half(core)
    local n = core.case.tokens
    local half = math.floor(n / 2)
    core.p.blocks = core:array("cpl_attention_block", { block(0, half, 0, half),
        block(half, n - half, half, n - half) })
    core.p.n_blocks = 2
end

-- ---- rows the naive way -----------------------------------------------------------------

local function dot(a, i, b, j, n)
    local sum = 0
    for d = 0, n - 1 do sum = sum + a[i + d] * b[j + d] end
    return sum
end

local function add(y, i, factor, x, j, n)
    for d = 0, n - 1 do y[i + d] = y[i + d] + factor * x[j + d] end
end

-- The arrays of a core as pointers, and its sizes.
local function view(core)
    local case = core.case
    local x = { n = case.tokens, D = case.head_dim, heads = case.heads, kv_heads = case.kv_heads,
        window = case.window, scale = case.head_dim ^ -0.5, kept = {} }
    for _, name in ipairs { "q", "k", "v", "d_o", "o", "lse" } do
        x.kept[name] = arrays.here(core[name])
        x[name] = arrays.pointer(x.kept[name])
    end
    x.weights = ffi.new("double[?]", x.n)
    return x
end

local function first_key(x, i)
    return x.window > 0 and math.max(0, i - x.window + 1) or 0
end

-- Fills x.weights with the softmax of head h of query i; returns its lse.
local function softmax(x, q, h, i)
    local weights, largest, sum = x.weights, -math.huge, 0
    local kv = math.floor(h / (x.heads / x.kv_heads))
    for j = first_key(x, i), i do
        weights[j] = x.scale * dot(x.q, q, x.k, (j * x.kv_heads + kv) * x.D, x.D)
        largest = math.max(largest, weights[j])
    end
    for j = first_key(x, i), i do
        weights[j] = math.exp(weights[j] - largest)
        sum = sum + weights[j]
    end
    for j = first_key(x, i), i do weights[j] = weights[j] / sum end
    return largest + math.log(sum)
end

-- One head of one query: o, lse, dq of row `row` of the results.
local function query_head(x, i, h, out, row)
    local D, weights = x.D, x.weights
    local q, to = (i * x.heads + h) * D, (row * x.heads + h) * D
    local kv = math.floor(h / (x.heads / x.kv_heads))
    out.lse[row * x.heads + h] = softmax(x, q, h, i)
    for j = first_key(x, i), i do
        add(out.o, to, weights[j], x.v, (j * x.kv_heads + kv) * D, D)
    end
    local along = dot(x.d_o, q, out.o, to, D)
    for j = first_key(x, i), i do
        local key = (j * x.kv_heads + kv) * D
        local d_score = weights[j] * (dot(x.d_o, q, x.v, key, D) - along)
        add(out.dq, to, x.scale * d_score, x.k, key, D)
    end
end

-- One kv head of one key: dk, dv from every query that sees it.
local function key_head(x, j, kv, out, row)
    local D, group = x.D, x.heads / x.kv_heads
    local key, to = (j * x.kv_heads + kv) * D, (row * x.kv_heads + kv) * D
    local last = x.window > 0 and math.min(x.n - 1, j + x.window - 1) or x.n - 1
    for i = j, last do
        for h = kv * group, (kv + 1) * group - 1 do
            local q = (i * x.heads + h) * D
            local weight = math.exp(x.scale * dot(x.q, q, x.k, key, D) - x.lse[i * x.heads + h])
            local along = dot(x.d_o, q, x.o, q, D)
            local d_score = weight * (dot(x.d_o, q, x.v, key, D) - along)
            add(out.dv, to, weight, x.d_o, q, D)
            add(out.dk, to, x.scale * d_score, x.q, q, D)
        end
    end
end

local N_DRAWN = 4

--- Rows that are looked at: the ends, the middle, and some more.
function M.sample(tokens)
    local chosen, list = {}, {}
    local key = clib.C.cpl_random_key(0, "gqa.rows")
    local function choose(row)
        if not chosen[row] then chosen[row], list[#list + 1] = true, row end
    end
    choose(0)
    choose(tokens - 1)
    choose(math.floor(tokens / 2))
    for i = 0, N_DRAWN - 1 do
        choose(math.floor(clib.C.cpl_random_uniform(key, i) * tokens))
    end
    table.sort(list)
    return list
end

--- What some rows of a core that has run must be.
-- @treturn {table,...} name, expected (in double), rows (which they are)
function M.expected(core)
    local x, rows, out, list = view(core), M.sample(core.case.tokens), {}, {}
    for i, output in ipairs(core.outputs) do
        local width = tonumber(clib.C.cpl_tensor_width(output.array))
        list[i] = { name = output.name, rows = rows, expected = arrays.new("f64", #rows, width) }
        out[output.name] = arrays.pointer(list[i].expected)
    end
    for row, i in ipairs(rows) do
        for h = 0, x.heads - 1 do query_head(x, i, h, out, row - 1) end
        for kv = 0, x.kv_heads - 1 do key_head(x, i, kv, out, row - 1) end
    end
    return list
end

--- The worst error of the rows that `expected` has.
-- @treturn number
-- @treturn string whose it is
function M.error(core, expected)
    local errors = {}
    for i, entry in ipairs(expected) do
        errors[i] = { name = entry.name,
            error = arrays.error(core[entry.name], entry.expected, entry.rows) }
    end
    return arrays.worst(errors)
end

return M
