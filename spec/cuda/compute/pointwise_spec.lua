-- Gates, merges, lists of rows, embeddings and the optimizer's ops on a device against their
-- references: with packs and without, by strides, from odd addresses, and what kernels.h says of
-- rows that are not there.
local compute = require "spec.support.cuda_compute"
local op_arrays = require "spec.support.op_arrays"

local random = compute.random(23)
local function nothing() return -7 end

local function array(n, values, more)
    local t = { n = n, values = values or random }
    for name, value in pairs(more or {}) do t[name] = value end
    return t
end

-- rows, heads, width, further elements of a stride, elements that arrays are askew by
local shapes = { { 0, 2, 8, 0, 0 }, { 1, 1, 1, 0, 0 }, { 5, 2, 24, 8, 0 }, { 3, 3, 7, 2, 1 },
    { 2, 1, 520, 0, 0 } }

local function swiglu(shape, backward)
    local n, _, width, more, shift = unpack(shape)
    local stride = width + more
    local function rows(values) return array(n * stride, values, { shift = shift }) end
    local arrays = { gate = rows(), up = rows() }
    if backward then
        arrays.dy = array(n * width)
        arrays.dgate, arrays.dup = rows(nothing), rows(nothing)
    else
        arrays.y = array(n * width, nothing)
    end
    return { arrays = arrays, numbers = { n_rows = n, width = width, stride = stride } }
end

local function sigmoid_gate(shape, backward)
    local n, heads, width, more, shift = unpack(shape)
    local head_stride = 2 * width
    local stride = heads * head_stride + more
    local function dense(values) return array(n * heads * width, values, { shift = shift }) end
    local arrays = { x = dense(), gate = array(n * stride, random, { shift = shift }) }
    if backward then
        arrays.dy, arrays.dx = dense(), dense(nothing)
        arrays.dgate = array(n * stride, nothing, { shift = shift })
    else
        arrays.y = dense(nothing)
    end
    return { arrays = arrays, numbers = { n_rows = n, heads = heads, width = width,
        gate_stride = stride, gate_head_stride = head_stride } }
end

local function gates(n, heads, backward)
    local stride = 2 * heads + 1
    local function wide(count, values) return array(count, values, { type = "wide" }) end
    return op_arrays.gates(n, heads, stride, {
        rows = function() return array(n * stride) end, wide = wide,
        out_rows = function() return array(n * stride, nothing) end,
        out_wide = function(count) return wide(count, nothing) end,
    }, backward)
end

local function merge(shape, backward)
    local n, heads, width, _, shift = unpack(shape)
    local function rows(values) return array(n * heads * width, values, { shift = shift }) end
    local function one(values) return array(n * heads, values, { type = "wide" }) end
    local arrays = { o = rows(), o_b = rows(),
        lse = one(op_arrays.lse(random, false)), lse_b = one(op_arrays.lse(random, true)) }
    if backward then
        arrays.d_o, arrays.d_lse = rows(), one()
        arrays.d_o_a, arrays.d_o_b = rows(nothing), rows(nothing)
        arrays.d_lse_a, arrays.d_lse_b = one(nothing), one(nothing)
    end
    return { arrays = arrays, numbers = { n_rows = n, heads = heads, width = width } }
end

local function move_rows(shape, options)
    local n, _, width, more, shift = unpack(shape)
    local type = options.wide and "wide" or nil
    local arrays = {
        x = array((n + 1) * (width + more), random, { shift = shift, type = type }),
        y = array((n + 2) * width, random, { type = type }),
    }
    if options.lists then
        arrays.from = array(n, function(i) return i % 3 == 1 and -1 or n - i end, { type = "i64" })
        arrays.to = array(n, function(i) return i == 2 and -1 or n + 1 - i end, { type = "i64" })
    end
    return { arrays = arrays, numbers = { n = n, width = width, x_stride = width + more,
        y_stride = width, add = options.add or false, wide = options.wide or false } }
end

local vocabulary = 11
local function token(i) return ({ 3, -1, 0, 3, 10, 11, 3, 5 })[i % 8 + 1] end

local function embedding(n, width, backward)
    local arrays = { tokens = array(n, token, { type = "i32" }) }
    if backward then
        arrays.dy = array(n * width)
        arrays.grad_table = array(vocabulary * width, random, { type = "wide" })
    else
        arrays.table, arrays.y = array(vocabulary * width), array(n * width, nothing)
    end
    return { arrays = arrays, numbers = { n_rows = n, width = width, vocabulary = vocabulary } }
end

-- Doubles, whatever the table's dtype is.
local function doubles(list)
    return array(#list, function(i) return list[i + 1] end, { type = "f64" })
end

-- With `rate` the learning rate is read where that says, and the number beside it is NaN.
local function adamw(n, rate)
    local function wide(values) return array(n, values, { type = "wide" }) end
    return {
        arrays = { grad = wide(), w = array(n), m = wide(),
            v = wide(function() return random() ^ 2 end),
            factors = doubles { 0.5, 1 - 0.9 ^ 3, 1 - 0.95 ^ 3 },
            rate = rate and doubles { rate } or nil },
        numbers = { n = n, lr = rate and 0 / 0 or 0.01, beta1 = 0.9, beta2 = 0.95, eps = 1e-8,
            weight_decay = 0.1 },
    }
end

local function sgd(n, rate)
    return {
        arrays = { grad = array(n, random, { type = "wide" }), w = array(n),
            factors = doubles { -0.75 }, rate = rate and doubles { rate } or nil },
        numbers = { n = n, lr = rate and 0 / 0 or 0.25 },
    }
end

local function step_factors(squares, clip, step)
    return {
        arrays = {
            squares = squares and doubles { squares },
            step = step and array(1, function() return step end, { type = "i64" }),
            factors = doubles { -7, -7, -7 },
        },
        numbers = { clip = clip, beta1 = 0.9, beta2 = 0.999 },
        bounds = { f64 = 1e-15 }, -- a root, a power, a quotient: a rounding or two each
    }
end

local function axpby(n, alpha, beta, wide)
    local type = wide and "wide" or nil
    return {
        arrays = { x = array(n, random, { type = type }), y = array(n, random, { type = type }) },
        numbers = { n = n, alpha = alpha, beta = beta, wide = wide },
    }
end

local function sum_squares(n, shift, values)
    return {
        arrays = { x = array(n, values or random, { type = "wide", shift = shift }),
            sum = array(1, nothing, { type = "f64" }) },
        numbers = { n = n },
        -- The sums are in double, of the same numbers: a rounding for each of them.
        bounds = { f64 = math.max(n, 64) * 2 ^ -53 },
    }
end

compute.describe({ describe, it, pending }, "elements", function(device, each)
    each("of gates", function(dtype, way)
        for _, shape in ipairs(shapes) do
            for _, backward in ipairs { false, true } do
                local suffix = backward and "_backward" or ""
                compute.try(device, "swiglu" .. suffix, swiglu(shape, backward), dtype, way)
                compute.try(device, "sigmoid_gate" .. suffix, sigmoid_gate(shape, backward),
                    dtype, way)
            end
        end
        for _, n in ipairs { 0, 1, 7, 100 } do
            compute.try(device, "gates", gates(n, 5), dtype, way)
            compute.try(device, "gates_backward", gates(n, 5, true), dtype, way)
        end
    end)

    each("of attention over other keys, merged", function(dtype, way)
        for _, shape in ipairs(shapes) do
            compute.try(device, "merge", merge(shape), dtype, way)
            compute.try(device, "merge_backward", merge(shape, true), dtype, way)
            local silent = merge(shape, true)
            silent.arrays.d_lse = nil
            compute.try(device, "merge_backward", silent, dtype, way)
        end
    end)

    each("moved by lists", function(dtype, way)
        for _, shape in ipairs(shapes) do
            for _, options in ipairs { {}, { lists = true }, { lists = true, add = true },
                { lists = true, wide = true } } do
                compute.try(device, "move_rows", move_rows(shape, options), dtype, way)
            end
        end
    end)

    each("of embeddings, also of tokens that no row has", function(dtype, way)
        for _, size in ipairs { { 0, 8 }, { 8, 16 }, { 7, 5 }, { 300, 8 } } do
            compute.try(device, "embedding", embedding(size[1], size[2]), dtype, way)
            compute.try(device, "embedding_backward", embedding(size[1], size[2], true), dtype, way)
        end
    end)

    each("of an optimizer's step", function(dtype, way)
        for _, n in ipairs { 0, 1, 24, 37 } do
            for _, rate in ipairs { false, 0.03 } do -- false: there is none
                compute.try(device, "adamw", adamw(n, rate), dtype, way)
                compute.try(device, "sgd", sgd(n, rate), dtype, way)
            end
            for _, factors in ipairs { { 2, -0.5 }, { 2, 0 }, { 0, 3 } } do
                compute.try(device, "axpby", axpby(n, factors[1], factors[2], n == 24), dtype, way)
            end
            for shift = 0, 1 do
                compute.try(device, "sum_squares", sum_squares(n, shift), dtype, way)
            end
        end
    end)

    -- Of the factors it is the share of the gradient: the others lie between 0 and 1.
    each("of an optimizer's step where one is NaN or infinite", function(dtype, way)
        for op, make in pairs { adamw = adamw, sgd = sgd } do
            for name, one in pairs(make(1, 0.5).arrays) do
                for _, bad in ipairs { 0 / 0, 1 / 0, -1 / 0 } do
                    local case = make(21, 0.5)
                    local array_of, place = case.arrays[name], one.type == "f64" and 0 or 20
                    local values = array_of.values
                    array_of.values = function(i) return i == place and bad or values(i) end
                    compute.try(device, op, case, dtype, way)
                end
            end
        end
    end)

    each("that all parameters share in a step", function(dtype, way)
        for _, squares in ipairs { 0, 1e-300, 0.25, 4, 1e300, 1 / 0, 0 / 0 } do
            for _, step in ipairs { 0, 1, 99999, 2 ^ 40 } do
                compute.try(device, "step_factors", step_factors(squares, 0.5, step), dtype, way)
            end
            compute.try(device, "step_factors", step_factors(squares, 0.5), dtype, way)
        end
        compute.try(device, "step_factors", step_factors(nil, 0, 6), dtype, way)
        compute.try(device, "step_factors", step_factors(nil, 0), dtype, way)
    end)

    -- Five blocks leave parts of such a sum. Sizes of 10^-4 .. 10^4: added in another order, as by
    -- the other way, it has other bits.
    local many = 5 * 4096
    local function uneven(i) return math.sin(i) * 10 ^ (i % 9 - 4) end

    each("squared and added, to the same bits in every order of threads", function(dtype, way)
        local other = way == "best" and "naive" or "best"
        for n = many - 1, many do
            local case = sum_squares(n, 0, uneven)
            local bits = compute.try(device, "sum_squares", case, dtype, way).sum
            for _, order in ipairs(device.orders) do
                device:set_order(order)
                local again = compute.try(device, "sum_squares", case, dtype, way).sum
                assert.is_true(bits == again, order)
            end
            assert.is_true(bits ~= compute.try(device, "sum_squares", case, dtype, other).sum)
        end
    end)

    each("squared and added where one is NaN or infinite", function(dtype, way)
        for _, bad in ipairs { 0 / 0, 1 / 0, -1 / 0 } do
            for _, place in ipairs { 0, 4096, many - 1 } do
                local case = sum_squares(many, 0, function(i) return i == place and bad or 1 end)
                compute.try(device, "sum_squares", case, dtype, way)
            end
        end
    end)
end)
