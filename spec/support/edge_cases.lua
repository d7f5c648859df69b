--- A case or two of every op of kernels/ops.h, for spec.support.cuda_compute: small, but of more
-- than a tile, a warp or a chunk in what matters, with rows of nobody, strides and lists. What an
-- array holds at first is an input, unless it is `out`; where it says so, only its first `open`
-- numbers may be anything. `free` names inputs, or all, of which Inf may give Inf or NaN.
-- @module spec.support.edge_cases
local compute = require "spec.support.cuda_compute"
local op_arrays = require "spec.support.op_arrays"

local random = compute.random(31)

local M = {}

-- ---- arrays -------------------------------------------------------------------------------------

local function array(n, more)
    local t = { n = n, values = random }
    for name, value in pairs(more or {}) do t[name] = value end
    return t
end

local function nothing() return -7 end

local function out(n, type) return array(n, { values = nothing, out = true, type = type }) end

local function wide(n, values) return array(n, { type = "wide", values = values }) end

local function list(type, n, values) return array(n, { type = type, values = values }) end

local function doubles(n, values) return array(n, { type = "f64", values = values }) end

-- Positive ones, for what is divided by or is a share.
local function share() return 0.55 + 0.45 * random() end

local function spans_of(lengths)
    return list("i64", 4 * #lengths, function(i)
        local span = lengths[math.floor(i / 4) + 1]
        return ({ 0, 0, span[1], span[2] })[i % 4 + 1]
    end)
end

-- ---- norms --------------------------------------------------------------------------------------

-- Rows, width, further elements of a stride: a warp's rows, a block's, and chunks of sums.
local norm_shapes = { { 3, 40, 8 }, { 2, 1040, 0 }, { 67, 5, 3 } }

local function rms_norm(shape)
    local n, width, stride = shape[1], shape[2], shape[2] + shape[3]
    return {
        arrays = { x = array(n * stride), weight = array(width), y = out(n * stride) },
        numbers = { n_rows = n, width = width, x_stride = stride, y_stride = stride, eps = 1e-5,
            weight_offset = 1 },
    }
end

local function rms_norm_backward(shape)
    local n, width, stride = shape[1], shape[2], shape[2] + shape[3]
    return {
        arrays = { x = array(n * stride), weight = array(width), dy = array(n * stride),
            dx = out(n * stride), grad_weight = wide(width) },
        numbers = { n_rows = n, width = width, x_stride = stride, dy_stride = stride,
            dx_stride = stride, eps = 1e-5, weight_offset = 0 },
    }
end

local function gated_rms_norm(shape, is_back)
    local n, width, stride = 2 * shape[1], shape[2], 2 * shape[2] + shape[3]
    local arrays = { x = array(n * width), z = array(n / 2 * stride), weight = array(width) }
    if is_back then
        arrays.dy, arrays.dx, arrays.dz = array(n * width), out(n * width), out(n / 2 * stride)
        arrays.grad_weight = wide(width)
    else
        arrays.y = out(n * width)
    end
    return { arrays = arrays, numbers = { n_rows = n, width = width, heads = 2, z_stride = stride,
        eps = 1e-5 } }
end

local function l2norm(shape, is_back)
    local n, width, stride = shape[1], shape[2], 3 * shape[2] + shape[3]
    local arrays = { x = array(n * stride) }
    local numbers = { n_rows = n, heads = 3, width = width, x_stride = stride, eps = 1e-6 }
    if is_back then
        arrays.dy, arrays.dx = array(n * stride), out(n * stride)
        numbers.dy_stride, numbers.dx_stride = stride, stride
    else
        arrays.y, numbers.y_stride = out(n * stride), stride
    end
    return { arrays = arrays, numbers = numbers }
end

-- ---- tokens -------------------------------------------------------------------------------------

local function rope(inverse)
    local n, heads, width, stride = 11, 3, 32, 104
    return {
        arrays = { x = array(n * stride), y = out(n * stride),
            positions = list("i64", n, function(i) return i * 777 end) },
        numbers = { n_rows = n, heads = heads, width = width, rotary_dim = 16, x_stride = stride,
            y_stride = stride, theta = 1e6, inverse = inverse },
    }
end

-- Rows of nobody before, between and behind, an empty span, one of a row, one over a tile's border.
local row_spans = { { 3, 5 }, { 8, 0 }, { 8, 1 }, { 10, 27 } }
local n_rows = 40

local function conv1d(shape, is_back)
    local channels, width, has_halo = unpack(shape)
    local stride = channels + 8
    local halo = #row_spans * (width - 1) * channels
    local arrays = {
        x = array(n_rows * stride), weight = array(channels * width), spans = spans_of(row_spans),
        bias = has_halo and array(channels) or nil, halo = has_halo and array(halo) or nil,
    }
    local numbers = { n_spans = #row_spans, n_rows = n_rows, channels = channels, width = width,
        x_stride = stride, silu = true }
    if is_back then
        arrays.dy, arrays.dx = array(n_rows * channels), out(n_rows * stride)
        arrays.dhalo = has_halo and out(halo) or nil
        arrays.grad_weight, arrays.grad_bias = wide(channels * width), wide(channels)
        numbers.dx_stride = stride
    else
        arrays.y = out(n_rows * channels)
    end
    return { arrays = arrays, numbers = numbers }
end

-- Channels, taps, whether there are a bias and halos.
local conv_shapes = { { 16, 4, true }, { 8, 4, false }, { 3, 3, true }, { 3, 3, false } }

local function cross_entropy(vocab, in_place, is_scaled)
    local n = 4
    return {
        arrays = {
            scale = is_scaled and doubles(1, share) or nil,
            logits = array(n * vocab), loss_sum = out(1, "f64"),
            labels = list("i32", n, function(i) return i == 1 and -1 or i * 7 % vocab end),
            dlogits = in_place and { same_as = "logits" } or out(n * vocab),
        },
        numbers = { n_rows = n, vocab = vocab, grad_scale = 0.25 },
        free = { scale = true }, -- times softmax less one-hot, or each of them times it
        bounds = { f64 = 3e-5 }, -- a sum of logarithms that are not
    }
end

local function token(i) return ({ 3, -1, 0, 3, 10, 11, 3, 5 })[i % 8 + 1] end

local function embedding(is_back)
    local n, width, vocabulary = 8, 16, 11
    local arrays = { tokens = list("i32", n, token) }
    if is_back then
        arrays.dy, arrays.grad_table = array(n * width), wide(vocabulary * width)
    else
        arrays.table, arrays.y = array(vocabulary * width), out(n * width)
    end
    return { arrays = arrays, numbers = { n_rows = n, width = width, vocabulary = vocabulary } }
end

-- ---- elements -----------------------------------------------------------------------------------

local function gates(is_back)
    local n, heads = is_back and 70 or 7, 5
    local stride = 2 * heads + 1
    return op_arrays.gates(n, heads, stride, {
        rows = function() return array(n * stride) end, wide = wide,
        out_rows = function() return out(n * stride) end,
        out_wide = function(count) return out(count, "wide") end,
    }, is_back)
end

local function merge(width, is_back)
    local n, heads = 5, 2
    local all = n * heads
    local arrays = { o = array(all * width), o_b = array(all * width),
        lse = wide(all, op_arrays.lse(random, false)),
        lse_b = wide(all, op_arrays.lse(random, true)) }
    if is_back then
        arrays.d_o, arrays.d_lse = array(all * width), wide(all)
        arrays.d_o_a, arrays.d_o_b = out(all * width), out(all * width)
        arrays.d_lse_a, arrays.d_lse_b = out(all, "wide"), out(all, "wide")
    end
    return { arrays = arrays, numbers = { n_rows = n, heads = heads, width = width } }
end

local function sigmoid_gate(width, is_back)
    local n, heads = 3, 3
    local stride = 2 * heads * width + 8
    local arrays = { x = array(n * heads * width), gate = array(n * stride) }
    if is_back then
        arrays.dy, arrays.dx = array(n * heads * width), out(n * heads * width)
        arrays.dgate = out(n * stride)
    else
        arrays.y = out(n * heads * width)
    end
    return { arrays = arrays, numbers = { n_rows = n, heads = heads, width = width,
        gate_stride = stride, gate_head_stride = 2 * width } }
end

local function swiglu(width, is_back)
    local n, stride = 3, width + 8
    local arrays = { gate = array(n * stride), up = array(n * stride) }
    if is_back then
        arrays.dy = array(n * width)
        arrays.dgate, arrays.dup = out(n * stride), out(n * stride)
    else
        arrays.y = out(n * width)
    end
    return { arrays = arrays, numbers = { n_rows = n, width = width, stride = stride } }
end

local function move_rows(width, add)
    local n = 5
    return {
        arrays = {
            x = array((n + 1) * width),
            y = add and array((n + 2) * width) or out((n + 2) * width),
            from = list("i64", n, function(i) return i % 3 == 1 and -1 or n - i end),
            to = list("i64", n, function(i) return i == 2 and -1 or n + 1 - i end),
        },
        numbers = { n = n, width = width, x_stride = width, y_stride = width, add = add },
    }
end

-- ---- optimizer ----------------------------------------------------------------------------------

local function axpby(is_wide)
    local n, type = 37, is_wide and "wide" or nil
    return { arrays = { x = array(n, { type = type }), y = array(n, { type = type }) },
        numbers = { n = n, alpha = 2, beta = -0.5, wide = is_wide } }
end

-- Of the factors the first is the share of the gradient; the others lie between 0 and 1.
local function adamw(has_rate)
    local n = 37
    local factors = doubles(3, share)
    factors.open = 1
    return {
        arrays = { grad = wide(n), w = array(n), m = wide(n), v = wide(n, share),
            factors = factors, rate = has_rate and doubles(1, share) or nil },
        numbers = { n = n, lr = 0.01, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1 },
    }
end

local function sgd(has_rate)
    return {
        arrays = { grad = wide(37), w = array(37), factors = doubles(1, share),
            rate = has_rate and doubles(1, share) or nil },
        numbers = { n = 37, lr = 0.25 },
    }
end

local function step_factors()
    return {
        arrays = { squares = doubles(1, share), step = list("i64", 1, function() return 3 end),
            factors = out(3, "f64") },
        numbers = { clip = 0.5, beta1 = 0.9, beta2 = 0.999 },
    }
end

local function sum_squares()
    return { arrays = { x = wide(300), sum = out(1, "f64") }, numbers = { n = 300 } }
end

-- ---- products -----------------------------------------------------------------------------------

-- m, n, k: more than a tile of the tensor cores, and of the others; a batch that is added to.
local function matmul(m, n, k, turns, batch)
    local lda, ldb = turns and m or k, turns and k or n
    local a_step, b_step, c_step = m * k + 8, k * n + 8, m * (n + 3)
    return {
        arrays = { a = array(batch * a_step), b = array(batch * b_step),
            c = array(batch * c_step) },
        numbers = { m = m, n = n, k = k, lda = lda, ldb = ldb, ldc = n + 3, transpose_a = turns,
            transpose_b = turns, alpha = 2, beta = -0.25, batch = batch, a_step = a_step,
            b_step = b_step, c_step = c_step },
    }
end

local function grouped_matmul(offsets, inner, width)
    local groups, rows = #offsets - 1, offsets[#offsets] + 1
    return {
        arrays = {
            x = array(rows * inner), w = array(groups * width * inner), y = out(rows * width),
            offsets = list("i64", groups + 1, function(i) return offsets[i + 1] end),
        },
        numbers = { groups = groups, max_rows = rows, ["in"] = inner, out = width,
            x_stride = inner, w_stride = inner, w_step = inner * width, y_stride = width },
    }
end

-- The same arrays and numbers in a struct of that name, without what it writes.
local function within(name, case, ...)
    local made = { arrays = {}, numbers = {}, bounds = case.bounds }
    for key, value in pairs(case.arrays) do made.arrays[name .. "." .. key] = value end
    for key, value in pairs(case.numbers) do made.numbers[name .. "." .. key] = value end
    for _, key in ipairs { ... } do made.arrays[name .. "." .. key] = nil end
    return made
end

local function grouped_matmul_backward(offsets, inner, width)
    local case = within("forward", grouped_matmul(offsets, inner, width), "y")
    local groups, rows = #offsets - 1, offsets[#offsets] + 1
    case.arrays.dy, case.arrays.dx = array(rows * width), array(rows * inner)
    case.arrays.grad_w = wide(groups * width * inner)
    case.numbers.dy_stride, case.numbers.dx_stride = width, inner
    case.numbers.accumulate = true
    return case
end

local groups = { 0, 3, 3, 20 }

-- ---- experts ------------------------------------------------------------------------------------

local moe_spans = { { 1, 2 }, { 3, 0 }, { 4, 3 }, { 7, 0 } }

local function moe_route(experts, top_k, renormalise)
    local n = 8
    return {
        arrays = {
            logits = array(n * experts, { values = function() return 4 * random() end }),
            probs = out(n * experts, "wide"), weights = out(n * top_k, "wide"),
            chosen = list("i32", n * top_k, nothing), margin = out(1, "f64"),
            spans = spans_of(moe_spans),
        },
        numbers = { n_spans = #moe_spans, n_rows = n, experts = experts, top_k = top_k,
            renormalise = renormalise },
    }
end

local function moe_route_backward(experts, top_k, renormalise)
    local n = 8
    return {
        arrays = {
            probs = wide(n * experts, share), dweights = wide(n * top_k),
            dprobs = doubles(experts, random), dlogits = out(n * experts),
            chosen = list("i32", n * top_k, function(i)
                local row, j = math.floor(i / top_k), i % top_k
                return row == 5 and -1 or (3 * row + 2 * j) % experts
            end),
        },
        numbers = { n_rows = n, experts = experts, top_k = top_k, renormalise = renormalise },
    }
end

-- Slots of 6 rows with 2 choices, of which row 4 has none.
local n_slots = 10
local function place(i)
    local row = math.floor(i / 2)
    if row == 4 then return -1 end
    return 7 * (i - (row > 4 and 2 or 0)) % n_slots
end

local function moe_dispatch(width)
    return { arrays = { x = array(6 * width), places = list("i64", 12, place),
        y = out(n_slots * width) }, numbers = { n_rows = 6, top_k = 2, width = width } }
end

local function moe_combine(width)
    return {
        arrays = { h = array(n_slots * width), weights = wide(12), shared = array(6 * width),
            shared_gate = array(6), places = list("i64", 12, place), y = out(6 * width) },
        numbers = { n_rows = 6, top_k = 2, width = width },
    }
end

local function moe_combine_backward(width)
    local case = within("forward", moe_combine(width), "y")
    case.arrays.dy, case.arrays.dh = array(6 * width), out(n_slots * width)
    case.arrays.dweights = out(12, "wide")
    case.arrays.dshared, case.arrays.dshared_gate = out(6 * width), out(6)
    return case
end

local function moe_group()
    return {
        arrays = { chosen = list("i32", 12, function(i) return (5 * i) % 7 - 1 end),
            places = list("i64", 12, nothing), offsets = list("i64", 7, nothing) },
        numbers = { n_rows = 6, experts = 6, top_k = 2 },
    }
end

local function moe_load()
    local experts, n = 33, 9
    return {
        arrays = { probs = wide(n * experts, share), load = out(2 * experts, "f64"),
            offsets = list("i64", experts + 1, function(i) return 2 * i end) },
        numbers = { n_rows = n, experts = experts },
    }
end

local function moe_balance()
    local experts = 33
    return {
        arrays = { load = doubles(2 * experts, function() return 5 + share() end),
            loss = out(1, "f64"), dprobs = out(experts, "f64") },
        numbers = { experts = experts, top_k = 2, coefficient = 0.5 },
    }
end

-- ---- the delta rule -----------------------------------------------------------------------------

-- Two chunks and three rows of a third; an empty span; one that has nothing to do with the others.
local gdn_spans = { { 1, 35 }, { 36, 0 }, { 36, 4 } }
local T, KEY, VALUE, HEADS, CHUNK = 42, 8, 6, 2, 16

local function state(width) return wide(#gdn_spans * HEADS * KEY * (width or VALUE)) end

local function state_out(width)
    return out(#gdn_spans * HEADS * KEY * (width or VALUE), "wide")
end

local function gdn()
    return {
        arrays = {
            q = array(T * KEY), k = array(T * KEY), v = array(T * HEADS * VALUE),
            g = wide(T * HEADS, function() return -share() / 2 end), beta = wide(T * HEADS, share),
            state_in = state(), o = out(T * HEADS * VALUE), state_out = state_out(),
            spans = spans_of(gdn_spans),
        },
        numbers = { n_spans = #gdn_spans, n_rows = T, key_heads = 1, value_heads = HEADS,
            key_dim = KEY, value_dim = VALUE, q_stride = KEY, k_stride = KEY,
            v_stride = HEADS * VALUE, chunk = CHUNK, scale = 0.35 },
        free = { state_in = true }, -- Inf of a state meets all tokens, by keys of both signs
        bounds = { wide = 1e-4 }, -- as in spec/cuda/compute/gdn_spec.lua
    }
end

local function gdn_backward()
    local case = within("forward", gdn(), "o", "state_out")
    local arrays = case.arrays
    arrays.d_o, arrays.d_state_out = array(T * HEADS * VALUE), state()
    arrays.dq, arrays.dk, arrays.dv = out(T * KEY), out(T * KEY), out(T * HEADS * VALUE)
    arrays.dg, arrays.dbeta = out(T * HEADS, "wide"), out(T * HEADS, "wide")
    arrays.d_state_in = state_out()
    case.numbers.dq_stride, case.numbers.dk_stride = KEY, KEY
    case.numbers.dv_stride = HEADS * VALUE
    case.free = { ["forward.state_in"] = true, d_state_out = true }
    return case
end

-- In place of what they go on from, as layers have them.
local function gdn_summary()
    local case = within("gdn", gdn(), "o", "state_out", "q")
    case.arrays.transition, case.arrays.offset = state_out(KEY), { same_as = "gdn.state_in" }
    -- By chunks a state is one sum over their tokens, by tokens one step after the other: which of
    -- their terms are Inf, and whether of both signs, is not the same.
    case.free = { all = true }
    return case
end

local function gdn_summary_backward()
    local case = within("gdn", gdn(), "o", "state_out", "state_in", "v")
    case.arrays.d_o, case.arrays.d_state_out = array(T * HEADS * VALUE), state()
    case.arrays.offset = { same_as = "d_state_out" }
    case.free = { all = true } -- likewise
    return case
end

-- Four states; entries that do nothing, that go on from nothing, and that share a summary.
local function gdn_carry(key, value, transpose)
    local function states(n, width) return wide(n * HEADS * key * width) end
    local function entries(given)
        return list("i64", #given, function(i) return given[i + 1] end)
    end
    return {
        arrays = {
            transition = states(2, key), offset = states(2, value), ["in"] = states(4, value),
            out = out(4 * HEADS * key * value, "wide"), span = entries { 3, -1, 0, 2 },
            transition_of = entries { 1, 0, -1, 1 }, offset_of = entries { 0, 1, 1, 0 },
        },
        numbers = { n = 4, heads = HEADS, key_dim = key, value_dim = value,
            transpose = transpose },
    }
end

-- ---- the table ----------------------------------------------------------------------------------

-- make(what, ...) for each of a list.
local function each(whats, make, ...)
    local cases = {}
    for i, what in ipairs(whats) do cases[i] = make(what, ...) end
    return cases
end

local widths = { 24, 7 } -- in packs of 8 or 4, and by themselves

--- Cases by op; all that there are but attention, which has a spec of its own.
M.cases = {
    rms_norm = each(norm_shapes, rms_norm),
    rms_norm_backward = each(norm_shapes, rms_norm_backward),
    gated_rms_norm = each(norm_shapes, gated_rms_norm),
    gated_rms_norm_backward = each(norm_shapes, gated_rms_norm, true),
    l2norm = each(norm_shapes, l2norm),
    l2norm_backward = each(norm_shapes, l2norm, true),
    rope = { rope(false), rope(true) },
    conv1d = each(conv_shapes, conv1d),
    conv1d_backward = each(conv_shapes, conv1d, true),
    gates = { gates() },
    gates_backward = { gates(true) },
    merge = each(widths, merge),
    merge_backward = each(widths, merge, true),
    sigmoid_gate = each(widths, sigmoid_gate),
    sigmoid_gate_backward = each(widths, sigmoid_gate, true),
    swiglu = each(widths, swiglu),
    swiglu_backward = each(widths, swiglu, true),
    embedding = { embedding() },
    embedding_backward = { embedding(true) },
    cross_entropy = { cross_entropy(40), cross_entropy(37, true), cross_entropy(3),
        cross_entropy(40, false, true), cross_entropy(3, true, true) },
    matmul = { matmul(130, 24, 40, false, 1), matmul(66, 70, 17, true, 1),
        matmul(5, 7, 3, false, 3) },
    grouped_matmul = { grouped_matmul(groups, 40, 16), grouped_matmul(groups, 5, 67) },
    grouped_matmul_backward = { grouped_matmul_backward(groups, 40, 16),
        grouped_matmul_backward(groups, 5, 67) },
    move_rows = { move_rows(24, false), move_rows(7, true) },
    axpby = { axpby(false), axpby(true) },
    moe_route = { moe_route(33, 3, true), moe_route(5, 5, false) },
    moe_route_backward = { moe_route_backward(33, 3, true), moe_route_backward(5, 2, false) },
    moe_group = { moe_group() },
    moe_load = { moe_load() },
    moe_balance = { moe_balance() },
    moe_dispatch = each(widths, moe_dispatch),
    moe_combine = each(widths, moe_combine),
    moe_combine_backward = each(widths, moe_combine_backward),
    sum_squares = { sum_squares() },
    adamw = { adamw(), adamw(true) },
    sgd = { sgd(), sgd(true) },
    step_factors = { step_factors() },
    gdn = { gdn() },
    gdn_backward = { gdn_backward() },
    gdn_summary = { gdn_summary() },
    gdn_summary_backward = { gdn_summary_backward() },
    gdn_carry = { gdn_carry(8, 6, false), gdn_carry(66, 3, true) },
}

return M
