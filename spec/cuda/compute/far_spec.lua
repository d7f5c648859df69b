-- More than 2^31 elements: every op that has strides, lists or rows that it passes over, with rows
-- so far apart, or a first one so far behind, that an index of 32 bits would be another. Between
-- them is no memory, but on the emulator there are zeros where such an index leads.
local compute = require "spec.support.cuda_compute"
local op_arrays = require "spec.support.op_arrays"

local random = compute.random(41)
local function nothing() return -7 end

local function array(n, values, type)
    return { n = n, values = values or random, type = type }
end

local function list(type, n, values) return array(n, values, type) end

local function spans(rows) return list("i64", 4, function(i) return i == 3 and rows or 0 end) end

local ROWS = 3 -- the last begins behind 2^32 elements

-- A width and a stride; those of packs, and others.
local shapes = { { 16, 2 ^ 31 + 64 }, { 5, 2 ^ 31 + 3 } }

local function far(shape, values, type)
    return { rows = ROWS, width = shape[1], stride = shape[2], values = values or random,
        type = type }
end

-- ---- strides ------------------------------------------------------------------------------------

local function rms_norm(shape)
    local width, stride = unpack(shape)
    return {
        arrays = { x = far(shape), weight = array(width), y = far(shape, nothing) },
        numbers = { n_rows = ROWS, width = width, x_stride = stride, y_stride = stride,
            eps = 1e-5 },
    }
end

local function rms_norm_backward(shape)
    local width, stride = unpack(shape)
    return {
        arrays = { x = far(shape), weight = array(width), dy = far(shape),
            dx = far(shape, nothing), grad_weight = array(width, random, "wide") },
        numbers = { n_rows = ROWS, width = width, x_stride = stride, dy_stride = stride,
            dx_stride = stride, eps = 1e-5 },
    }
end

local function gated_rms_norm(shape, is_back)
    local width, stride = unpack(shape)
    local arrays = { x = array(ROWS * width), z = far(shape), weight = array(width) }
    if is_back then
        arrays.dy, arrays.dx = array(ROWS * width), array(ROWS * width, nothing)
        arrays.dz, arrays.grad_weight = far(shape, nothing), array(width, random, "wide")
    else
        arrays.y = array(ROWS * width, nothing)
    end
    return { arrays = arrays, numbers = { n_rows = ROWS, width = width, heads = 1,
        z_stride = stride, eps = 1e-5 } }
end

local function l2norm(shape, is_back)
    local width, stride = unpack(shape)
    local arrays = { x = far(shape) }
    local numbers = { n_rows = ROWS, heads = 1, width = width, x_stride = stride, eps = 1e-6 }
    if is_back then
        arrays.dy, arrays.dx = far(shape), far(shape, nothing)
        numbers.dy_stride, numbers.dx_stride = stride, stride
    else
        arrays.y, numbers.y_stride = far(shape, nothing), stride
    end
    return { arrays = arrays, numbers = numbers }
end

local function rope(shape)
    local width, stride = unpack(shape)
    return {
        arrays = { x = far(shape), y = far(shape, nothing),
            positions = list("i64", ROWS, function(i) return i * 777 end) },
        numbers = { n_rows = ROWS, heads = 1, width = width, rotary_dim = width - width % 2,
            x_stride = stride, y_stride = stride, theta = 1e4 },
    }
end

local function conv1d(shape, is_back)
    local channels, stride = unpack(shape)
    local arrays = { x = far(shape), weight = array(channels * 4), spans = spans(ROWS) }
    local numbers = { n_spans = 1, n_rows = ROWS, channels = channels, width = 4,
        x_stride = stride, silu = true }
    if is_back then
        arrays.dy, arrays.dx = array(ROWS * channels), far(shape, nothing)
        arrays.grad_weight = array(channels * 4, random, "wide")
        numbers.dx_stride = stride
    else
        arrays.y = array(ROWS * channels, nothing)
    end
    return { arrays = arrays, numbers = numbers }
end

local function gates(shape, is_back)
    local heads, stride = unpack(shape)
    local function wide(n, values) return array(n, values, "wide") end
    return op_arrays.gates(ROWS, heads, stride, {
        rows = function() return far(shape) end, wide = wide,
        out_rows = function() return far(shape, nothing) end,
        out_wide = function(n) return wide(n, nothing) end,
    }, is_back)
end

-- Rows that are far apart, or heads.
local function sigmoid_gate(shape, is_back, by_heads)
    local width, stride = unpack(shape)
    local arrays = { x = array(ROWS * width), gate = far(shape) }
    if is_back then
        arrays.dy, arrays.dx = array(ROWS * width), array(ROWS * width, nothing)
        arrays.dgate = far(shape, nothing)
    else
        arrays.y = array(ROWS * width, nothing)
    end
    return { arrays = arrays, numbers = {
        n_rows = by_heads and 1 or ROWS, heads = by_heads and ROWS or 1, width = width,
        gate_stride = by_heads and width or stride,
        gate_head_stride = by_heads and stride or width,
    } }
end

local function swiglu(shape, is_back)
    local width, stride = unpack(shape)
    local arrays = { gate = far(shape), up = far(shape) }
    if is_back then
        arrays.dy = array(ROWS * width)
        arrays.dgate, arrays.dup = far(shape, nothing), far(shape, nothing)
    else
        arrays.y = array(ROWS * width, nothing)
    end
    return { arrays = arrays, numbers = { n_rows = ROWS, width = width, stride = stride } }
end

local function move_rows(shape, add)
    local width, stride = unpack(shape)
    return {
        arrays = { x = far(shape), y = far(shape) },
        numbers = { n = ROWS, width = width, x_stride = stride, y_stride = stride, add = add },
    }
end

-- Of all three matrices the rows as they are stored.
local function matmul(shape, turns)
    local n, stride = unpack(shape)
    local square = { ROWS, stride }
    return {
        arrays = { a = far(square), b = far(turns and square or shape),
            c = far(turns and square or shape) },
        numbers = { m = ROWS, n = turns and ROWS or n, k = ROWS, lda = stride, ldb = stride,
            ldc = stride, transpose_a = turns, transpose_b = turns, alpha = 1, beta = 0.5 },
    }
end

local function matmul_batch(shape)
    local n, stride = unpack(shape)
    return {
        arrays = { a = far { 2 * n, stride }, b = far { n * n, stride },
            c = far { 2 * n, stride } },
        numbers = { m = 2, n = n, k = n, lda = n, ldb = n, ldc = n, alpha = 1, beta = 0.5,
            batch = ROWS, a_step = stride, b_step = stride, c_step = stride },
    }
end

-- Groups of a row and their matrices, or one group whose matrix has rows far apart.
local function grouped(shape, by_rows)
    local width, stride = unpack(shape)
    local groups, out = by_rows and 1 or ROWS, by_rows and ROWS or 2
    local w = by_rows and { width, stride } or { out * width, stride }
    return w, out, {
        groups = groups, max_rows = ROWS, ["in"] = width, out = out, x_stride = stride,
        y_stride = stride, w_stride = by_rows and stride or width,
        w_step = by_rows and 8 or stride,
    }, list("i64", groups + 1, function(i) return by_rows and i * ROWS or i end)
end

local function grouped_matmul(shape, by_rows)
    local w, out, numbers, offsets = grouped(shape, by_rows)
    return { arrays = { x = far(shape), w = far(w), offsets = offsets,
        y = far({ out, shape[2] }, nothing) }, numbers = numbers }
end

local function grouped_matmul_backward(shape, by_rows)
    local w, out, forward, offsets = grouped(shape, by_rows)
    local numbers = { dy_stride = shape[2], dx_stride = shape[2] }
    for name, value in pairs(forward) do numbers["forward." .. name] = value end
    return {
        arrays = { ["forward.x"] = far(shape), ["forward.w"] = far(w), dy = far { out, shape[2] },
            ["forward.offsets"] = offsets, dx = far(shape, nothing),
            grad_w = far(w, random, "wide") },
        numbers = numbers,
    }
end

-- Calls set(name) of what lies in `inner`, "forward.", or in the struct itself.
local function inside(inner, table_of)
    local made = {}
    for name, value in pairs(table_of) do made[inner .. name] = value end
    return made
end

-- One of a token, and one that begins behind 2^31 elements: chunks find both by their first row.
local function two_spans()
    local numbers = { 0, 0, 0, 1, 0, 0, 1, 2 }
    return list("i64", 8, function(i) return numbers[i + 1] end)
end

local function gdn(shape, inner, wanted)
    local width, stride = unpack(shape)
    local function wide(n, values) return array(n, values, "wide") end
    local all = { q = far(shape), k = far(shape), v = far(shape),
        g = wide(ROWS, function() return -math.abs(random()) end),
        beta = wide(ROWS, function() return math.abs(random()) end), spans = two_spans() }
    local arrays = {}
    for name in wanted:gmatch "%S+" do arrays[name] = all[name] end
    return inside(inner, arrays), inside(inner, {
        n_spans = 2, n_rows = ROWS, key_heads = 1, value_heads = 1, key_dim = width,
        value_dim = width, q_stride = stride, k_stride = stride, v_stride = stride, chunk = 16,
        scale = 0.3,
    })
end

local function gdn_forward(shape)
    local width = shape[1]
    local arrays, numbers = gdn(shape, "", "q k v g beta spans")
    arrays.o = array(ROWS * width, nothing)
    arrays.state_out = array(2 * width ^ 2, nothing, "wide")
    return { arrays = arrays, numbers = numbers }
end

local function gdn_backward(shape)
    local width, stride = unpack(shape)
    local arrays, numbers = gdn(shape, "forward.", "q k v g beta spans")
    arrays.d_o = array(ROWS * width)
    for _, name in ipairs { "dq", "dk", "dv" } do
        arrays[name], numbers[name .. "_stride"] = far(shape, nothing), stride
    end
    arrays.dg, arrays.dbeta = array(ROWS, nothing, "wide"), array(ROWS, nothing, "wide")
    return { arrays = arrays, numbers = numbers }
end

local function gdn_summary(shape)
    local arrays, numbers = gdn(shape, "gdn.", "k v g beta spans")
    local size = 2 * shape[1] ^ 2
    arrays.transition, arrays.offset = array(size, nothing, "wide"), array(size, nothing, "wide")
    return { arrays = arrays, numbers = numbers }
end

local function gdn_summary_backward(shape)
    local arrays, numbers = gdn(shape, "gdn.", "q k g beta spans")
    arrays.d_o = array(ROWS * shape[1])
    arrays.offset = array(2 * shape[1] ^ 2, nothing, "wide")
    return { arrays = arrays, numbers = numbers }
end

local function attention_arrays(shape, inner)
    local width, stride = unpack(shape)
    local block = { 0, ROWS, 0, ROWS, 0 }
    local arrays = { q = far(shape), k = far(shape), v = far(shape),
        o = array(ROWS * width, nothing),
        lse = array(ROWS, function() return 1 end, "wide"),
        blocks = list("i64", 5, function(i) return block[i + 1] end) }
    return inside(inner, arrays), inside(inner, {
        n_blocks = 1, n_queries = ROWS, n_keys = ROWS, heads = 1, kv_heads = 1, key_dim = width,
        value_dim = width, q_stride = stride, k_stride = stride, v_stride = stride, scale = 0.3,
    })
end

-- Weights and gradients of scores are rounded to bf16 as well: attention_spec.lua.
local attention_bounds = { f64 = 1e-12, f32 = 3e-5, bf16 = 2 ^ -7 }

local function attention(shape)
    local arrays, numbers = attention_arrays(shape, "")
    return { arrays = arrays, numbers = numbers, bounds = attention_bounds }
end

local function attention_backward(shape)
    local arrays, numbers = attention_arrays(shape, "forward.")
    arrays.d_o = array(ROWS * shape[1])
    for _, name in ipairs { "dq", "dk", "dv" } do
        arrays[name], numbers[name .. "_stride"] = far(shape, nothing), shape[2]
    end
    return { arrays = arrays, numbers = numbers, bounds = attention_bounds }
end

-- ---- lists, and rows that are passed over -------------------------------------------------------

local BEFORE, WIDTH = 2 ^ 31, 64
local first = BEFORE / WIDTH -- the row that begins there

local function behind(values, type)
    return { n = 3 * WIDTH, values = values or random, type = type, before = BEFORE }
end

local function far_rows(type) return list(type, 3, function(i) return first + 2 - i end) end

local function move_listed()
    return {
        arrays = { x = behind(), y = behind(nothing), from = far_rows "i64", to = far_rows "i64" },
        numbers = { n = 3, width = WIDTH, x_stride = WIDTH, y_stride = WIDTH },
    }
end

local function embedding(is_back)
    local arrays = { tokens = far_rows "i32" }
    if is_back then
        arrays.dy, arrays.grad_table = array(3 * WIDTH), behind(nil, "wide")
    else
        arrays.table, arrays.y = behind(), array(3 * WIDTH, nothing)
    end
    return { arrays = arrays, numbers = { n_rows = 3, width = WIDTH } }
end

local function moe_dispatch()
    return { arrays = { x = array(3 * WIDTH), places = far_rows "i64", y = behind(nothing) },
        numbers = { n_rows = 3, top_k = 1, width = WIDTH } }
end

local function moe_combine()
    return {
        arrays = { h = behind(), weights = array(3, random, "wide"), places = far_rows "i64",
            y = array(3 * WIDTH, nothing) },
        numbers = { n_rows = 3, top_k = 1, width = WIDTH },
    }
end

local function moe_combine_backward()
    local case = moe_combine()
    case.arrays.y = nil
    return {
        arrays = {
            ["forward.h"] = case.arrays.h, ["forward.weights"] = case.arrays.weights,
            ["forward.places"] = case.arrays.places, dy = array(3 * WIDTH), dh = behind(nothing),
            dweights = array(3, nothing, "wide"),
        },
        numbers = inside("forward.", case.numbers),
    }
end

-- States of 8 x 8, of which each entry has another one.
local function gdn_carry(transpose)
    local arrays = { transition = behind(nil, "wide"), offset = behind(nil, "wide"),
        ["in"] = behind(nil, "wide"), out = behind(nothing, "wide") }
    for _, name in ipairs { "span", "transition_of", "offset_of" } do
        arrays[name] = far_rows "i64"
    end
    return { arrays = arrays, numbers = { n = 3, heads = 1, key_dim = 8, value_dim = 8,
        transpose = transpose } }
end

-- Rows without a label are not read where no gradient is wanted.
local function cross_entropy()
    local vocab = 2 ^ 16
    local n = BEFORE / vocab + 1
    return {
        arrays = {
            logits = { n = vocab, values = random, before = BEFORE },
            labels = list("i32", n, function(i) return i == n - 1 and 12345 or -1 end),
            loss_sum = list("f64", 1, nothing),
        },
        numbers = { n_rows = n, vocab = vocab, grad_scale = 1 },
        bounds = { f64 = 1e-5 }, -- of f32 and bf16 65536 exponentials are those of f32
    }
end

-- What saw no key on the side b stays as it is.
local function merge()
    local width = 2 ^ 15
    local n = BEFORE / width + 1
    return {
        arrays = {
            o = { n = width, values = random, before = BEFORE },
            o_b = { n = width, values = random, before = BEFORE },
            lse = list("wide", n, function() return 0.5 end),
            lse_b = list("wide", n, function(i) return i == n - 1 and 0.25 or -1 / 0 end),
        },
        numbers = { n_rows = n, heads = 1, width = width },
    }
end

-- ---- the table ----------------------------------------------------------------------------------

local function each(make, ...)
    local cases = {}
    for i, shape in ipairs(shapes) do cases[i] = make(shape, ...) end
    return cases
end

local function both(a, b)
    for _, case in ipairs(b) do a[#a + 1] = case end
    return a
end

local cases = {
    rms_norm = each(rms_norm), rms_norm_backward = each(rms_norm_backward),
    gated_rms_norm = each(gated_rms_norm), gated_rms_norm_backward = each(gated_rms_norm, true),
    l2norm = each(l2norm), l2norm_backward = each(l2norm, true), rope = each(rope),
    conv1d = each(conv1d), conv1d_backward = each(conv1d, true),
    gates = each(gates), gates_backward = each(gates, true),
    sigmoid_gate = both(each(sigmoid_gate, false), each(sigmoid_gate, false, true)),
    sigmoid_gate_backward = both(each(sigmoid_gate, true), each(sigmoid_gate, true, true)),
    swiglu = each(swiglu), swiglu_backward = each(swiglu, true),
    move_rows = both(both(each(move_rows, false), each(move_rows, true)), { move_listed() }),
    matmul = both(both(each(matmul, false), each(matmul, true)), each(matmul_batch)),
    grouped_matmul = both(each(grouped_matmul), each(grouped_matmul, true)),
    grouped_matmul_backward = both(each(grouped_matmul_backward),
        each(grouped_matmul_backward, true)),
    gdn = each(gdn_forward), gdn_backward = each(gdn_backward), gdn_summary = each(gdn_summary),
    gdn_summary_backward = each(gdn_summary_backward),
    attention = each(attention), attention_backward = each(attention_backward),
    embedding = { embedding() }, embedding_backward = { embedding(true) },
    moe_dispatch = { moe_dispatch() }, moe_combine = { moe_combine() },
    moe_combine_backward = { moe_combine_backward() },
    cross_entropy = { cross_entropy() }, merge = { merge() },
    gdn_carry = { gdn_carry(false), gdn_carry(true) },
}

-- Those that touch every element of dense arrays: 2^31 of them would take minutes here, and memory
-- that is there. (So it is with dense arrays of the others: outputs of conv1d and the delta rule,
-- whose rows outside of spans become zero, and states.)
local dense = {
    merge_backward = true, moe_route = true, moe_route_backward = true, moe_group = true,
    moe_load = true, moe_balance = true, axpby = true, sum_squares = true, adamw = true,
    sgd = true, step_factors = true,
}

describe("every op", function()
    it("is tried with more than 2^31 elements, or touches all that it has", function()
        for _, op in ipairs(compute.ops) do
            assert.is_true((cases[op] ~= nil) ~= (dense[op] or false), op)
        end
    end)
end)

local function has_holes(case)
    for _, one in pairs(case.arrays) do
        if one.rows then return true end
    end
    return false
end

compute.describe({ describe, it, pending }, "more than 2^31 elements", function(device, each_way)
    for _, op in ipairs(compute.ops) do
        local tried = {}
        for _, case in ipairs(cases[op] or {}) do
            local is_here = device.is_emulated and not device.is_checked
            if is_here or not has_holes(case) then tried[#tried + 1] = case end
        end
        if #tried > 0 then
            each_way(op, function(dtype, way)
                for _, case in ipairs(tried) do compute.try(device, op, case, dtype, way) end
            end)
        end
    end
end)
