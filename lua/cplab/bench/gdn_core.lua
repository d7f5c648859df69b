--- The gated delta rule as a core (cplab.bench.core), and one of its key heads, with the value
-- heads that share it, computed token by token in double over the whole length.
--
-- Cases: tokens, key_heads, value_heads, key_dim, value_dim, chunk, dtype.
-- @module cplab.bench.gdn_core
local arrays = require "cplab.bench.arrays"
local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local M = { op = "gdn" }

-- The chunk that operations are counted for, whichever one runs.
local CHUNK = 64

--- Operations forward and backward, by the formulas for dense products at chunk 64: a value head
-- and token forward 6 K V + 2 C (3 K + 2 V) + C^2 / 3, backward (with what it computes again)
-- 16 K V + 2 C (9 K + 5 V) + 4 C^2.
function M.flops(case)
    local K, V = case.key_dim, case.value_dim
    local n = case.tokens * case.value_heads
    local forward = 6 * K * V + 2 * CHUNK * (3 * K + 2 * V) + CHUNK ^ 2 / 3
    local backward = 16 * K * V + 2 * CHUNK * (9 * K + 5 * V) + 4 * CHUNK ^ 2
    return n * forward, n * backward
end

--- A case of the same shape class that the reference computes in a second.
function M.small(case)
    local small = {}
    for name, value in pairs(case) do small[name] = value end
    small.tokens, small.is_large = math.min(case.tokens, case.small), false
    return small
end

-- Keys and queries of length 1, as the layer gives them.
local function draw_units(name, width)
    return function(array)
        arrays.draw(array, name, -1, 1)
        local n = tonumber(C.cpl_tensor_n_elements(array)) / width
        local kernels = C.cpl_kernels_for("cpu", array.dtype)
        kernels.l2norm(ffi.new("cpl_l2norm", { x = array.data, y = array.data, n_rows = n,
            heads = 1, width = width, x_stride = width, y_stride = width, eps = 1e-6 }))
    end
end

local function draw_evenly(name, low, high)
    return function(array) arrays.draw(array, name, low, high) end
end

-- Some heads remember thousands of tokens, some forget within one: -g is log-uniform over heads
-- in (1e-3, 16), and varies by a factor of 2 from token to token.
local function decay_of(head)
    return 1e-3 * 16e3 ^ C.cpl_random_uniform(C.cpl_random_key(0, "gdn.A"), head)
end

local function draw_decays(array)
    arrays.draw(array, "gdn.g", 0.5, 1)
    local heads, data = tonumber(C.cpl_tensor_width(array)), arrays.pointer(array)
    for i = 0, tonumber(C.cpl_tensor_n_elements(array)) - 1 do
        data[i] = -data[i] * decay_of(i % heads)
    end
end

function M.inputs(case)
    local n, keys, values = case.tokens, case.key_heads * case.key_dim,
        case.value_heads * case.value_dim
    return {
        { "q", n, keys, draw = draw_units("gdn.q", case.key_dim) },
        { "k", n, keys, draw = draw_units("gdn.k", case.key_dim) },
        { "v", n, values, draw = draw_evenly("gdn.v", -1.7, 1.7) },
        { "g", n, case.value_heads, wide = true, draw = draw_decays },
        { "beta", n, case.value_heads, wide = true, draw = draw_evenly("gdn.beta", 0.1, 0.9) },
        { "d_o", n, values, draw = draw_evenly("gdn.d_o", -1.7, 1.7) },
    }
end

function M.outputs(case)
    local n, keys, values = case.tokens, case.key_heads * case.key_dim,
        case.value_heads * case.value_dim
    return { { "o", n, values }, { "dq", n, keys }, { "dk", n, keys },
        { "dg", n, case.value_heads, wide = true }, { "dbeta", n, case.value_heads, wide = true },
        { "dv", n, values } }
end

function M.parameters(core)
    local case = core.case
    local n, keys, values = case.tokens, case.key_heads * case.key_dim,
        case.value_heads * case.value_dim
    local p = ffi.new("cpl_gdn", {
        q = core.q.data, k = core.k.data, v = core.v.data, g = core.g.data, beta = core.beta.data,
        o = core.o.data, spans = core:array("cpl_span", { { 0, 0, 0, n } }), n_spans = 1,
        n_rows = n, key_heads = case.key_heads, value_heads = case.value_heads,
        key_dim = case.key_dim, value_dim = case.value_dim, q_stride = keys, k_stride = keys,
        v_stride = values, chunk = case.chunk, scale = case.key_dim ^ -0.5,
    })
    local b = ffi.new("cpl_gdn_backward", {
        d_o = core.d_o.data, dq = core.dq.data, dk = core.dk.data, dv = core.dv.data,
        dg = core.dg.data, dbeta = core.dbeta.data, dq_stride = keys, dk_stride = keys,
        dv_stride = values,
    })
    return p, b
end

--- The second half starts from a state of zeros.
function M.forget_half(core)
    local n = core.case.tokens
    local half = math.floor(n / 2)
    core.p.spans = core:array("cpl_span", { { 0, 0, 0, half }, { 0, half, half, n - half } })
    core.p.n_spans = 2
end

-- ---- one key head, token by token -------------------------------------------------------

-- The reference keeps a state a token from forward to backward, so it goes by parts of so many.
local PART = 128

-- Whose heads: the columns of every array that belong to key head `head`.
local function columns_of(case, head)
    local group = case.value_heads / case.key_heads
    local keys = { head * case.key_dim, case.key_dim }
    local values = { head * group * case.value_dim, group * case.value_dim }
    local gates = { head * group, group }
    return { q = keys, k = keys, dq = keys, dk = keys, v = values, o = values, d_o = values,
        dv = values, g = gates, beta = gates, dg = gates, dbeta = gates }
end

local NAMES = { "q", "k", "v", "g", "beta", "d_o", "o", "dq", "dk", "dv", "dg", "dbeta" }

-- The arrays of the head alone, in double; outputs are NaN.
local function head_alone(core, columns)
    local alone = {}
    for _, name in ipairs(NAMES) do
        alone[name] = arrays.in_double(core[name], nil, nil, unpack(columns[name]))
    end
    for _, output in ipairs(core.outputs) do arrays.poison(alone[output.name]) end
    return alone
end

-- The kernel's parameters for rows `first` .. `first + n - 1` of the head alone.
local function part_of(case, alone, first, n)
    local group = case.value_heads / case.key_heads
    local function at(name, width) return arrays.pointer(alone[name]) + first * width end
    local keys, values = case.key_dim, group * case.value_dim
    local span = ffi.new("cpl_span[1]", { { 0, 0, 0, n } })
    local p = ffi.new("cpl_gdn", {
        q = at("q", keys), k = at("k", keys), v = at("v", values), g = at("g", group),
        beta = at("beta", group), o = at("o", values), spans = span, n_spans = 1, n_rows = n,
        key_heads = 1, value_heads = group, key_dim = keys, value_dim = case.value_dim,
        q_stride = keys, k_stride = keys, v_stride = values, chunk = CHUNK, scale = keys ^ -0.5,
    })
    local b = ffi.new("cpl_gdn_backward", {
        d_o = at("d_o", values), dq = at("dq", keys), dk = at("dk", keys), dv = at("dv", values),
        dg = at("dg", group), dbeta = at("dbeta", group), dq_stride = keys, dk_stride = keys,
        dv_stride = values,
    })
    return { p = p, b = b, span = span }
end

local function parts_of(case, alone)
    local parts = {}
    for first = 0, case.tokens - 1, PART do
        parts[#parts + 1] = part_of(case, alone, first, math.min(PART, case.tokens - first))
    end
    return parts
end

local function run_workspace(kernels, op, p)
    local array = arrays.new("f64", math.ceil(tonumber(kernels[op .. "_workspace"](p)) / 8), 1)
    p.workspace = array.data
    kernels[op](p)
end

-- Forward from part to part, then backward; the states between them lie in `states`.
local function run_parts(case, parts)
    local kernels = C.cpl_kernels_for("ref", C.CPL_F64)
    local size = case.value_heads / case.key_heads * case.key_dim * case.value_dim
    local states, d_states = arrays.new("f64", #parts + 1, size), arrays.new("f64", 2, size)
    local at, d_at = arrays.pointer(states), arrays.pointer(d_states)
    for i, part in ipairs(parts) do
        part.p.state_in, part.p.state_out = at + (i - 1) * size, at + i * size
        run_workspace(kernels, "gdn", part.p)
    end
    for i = #parts, 1, -1 do
        local b = parts[i].b
        b.forward, b.d_state_out, b.d_state_in = parts[i].p, d_at + i % 2 * size,
            d_at + (i - 1) % 2 * size
        run_workspace(kernels, "gdn_backward", b)
    end
end

-- The key head that is looked at: that of the value head which remembers longest.
local function head_of(case)
    local slowest = 0
    for head = 1, case.value_heads - 1 do
        if decay_of(head) < decay_of(slowest) then slowest = head end
    end
    return math.floor(slowest / (case.value_heads / case.key_heads))
end

--- What one key head of a core, with its value heads, must be.
-- @treturn {table,...} name, expected (in double), at and width (which columns they are)
function M.expected(core)
    local columns = columns_of(core.case, head_of(core.case))
    local alone, list = head_alone(core, columns), {}
    run_parts(core.case, parts_of(core.case, alone))
    for i, output in ipairs(core.outputs) do
        local at, width = unpack(columns[output.name])
        list[i] = { name = output.name, expected = alone[output.name], at = at, width = width }
    end
    return list
end

--- The worst error of the columns that `expected` has.
-- @treturn number
-- @treturn string whose it is
function M.error(core, expected)
    local errors = {}
    for i, entry in ipairs(expected) do
        local found = arrays.in_double(core[entry.name], nil, nil, entry.at, entry.width)
        errors[i] = { name = entry.name, error = arrays.error(found, entry.expected) }
    end
    return arrays.worst(errors)
end

return M
