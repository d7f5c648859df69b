-- The norms on a device against their references: widths that a warp and that a block has a row of,
-- packs and none, rows enough for several chunks of sums, strides, and dx in the place of dy.
local compute = require "spec.support.cuda_compute"

local random = compute.random(17)

local function array(n, more)
    local t = { n = n, values = random }
    for name, value in pairs(more or {}) do t[name] = value end
    return t
end

local function nothing() return -7 end

-- n rows, width, further elements of a stride, elements that arrays are askew by.
local shapes = {
    { 0, 8, 0, 0 }, { 1, 1, 0, 0 }, { 3, 40, 8, 0 }, { 2, 37, 0, 0 }, { 4, 16, 3, 1 },
    { 70, 24, 8, 0 }, { 67, 5, 0, 1 }, { 2, 1040, 0, 0 }, { 34, 264, 0, 1 },
}

local function name_of(shape) return ("%d rows of %d"):format(shape[1], shape[2]) end

local function rms_norm(shape)
    local n, width, more, shift = unpack(shape)
    local stride = width + more
    return {
        arrays = {
            x = array(n * stride, { shift = shift }),
            weight = array(width, { shift = shift }),
            y = array(n * (stride + more), { shift = shift, values = nothing }),
        },
        numbers = { n_rows = n, width = width, x_stride = stride, y_stride = stride + more,
            eps = 1e-5, weight_offset = 1 },
    }
end

local function rms_norm_backward(shape, in_place, without_weight)
    local n, width, more, shift = unpack(shape)
    local stride = width + more
    local arrays = {
        x = array(n * stride, { shift = shift }),
        weight = array(width, { shift = shift }),
        dy = array(n * stride, { shift = shift }),
        dx = array(n * stride, { shift = shift, values = nothing }),
        grad_weight = array(width, { type = "wide" }),
    }
    if in_place then arrays.dx = { same_as = "dy" } end
    if without_weight then arrays.grad_weight = nil end
    return { arrays = arrays, numbers = { n_rows = n, width = width, x_stride = stride,
        dy_stride = stride, dx_stride = stride, eps = 1e-5, weight_offset = 0 } }
end

local function gated(shape, more_arrays)
    local n, width, more, shift = unpack(shape)
    local heads = n % 2 == 0 and 2 or 1
    local stride = heads * width + more
    local case = {
        arrays = {
            x = array(n * width, { shift = shift }),
            z = array(n / heads * stride, { shift = shift }),
            weight = array(width, { shift = shift }),
        },
        numbers = { n_rows = n, width = width, heads = heads, z_stride = stride, eps = 1e-5 },
    }
    for name, of in pairs(more_arrays) do
        local n_elements = of == "z" and n / heads * stride or of == "weight" and width or n * width
        case.arrays[name] = array(n_elements, { shift = of ~= "weight" and shift or 0,
            values = (of == "weight" or name == "dy") and random or nothing,
            type = of == "weight" and "wide" or nil })
    end
    return case
end

local function l2norm(shape, backward)
    local n, width, more, shift = unpack(shape)
    local stride = 3 * width + more
    local function rows(values) return array(n * stride, { shift = shift, values = values }) end
    local case = { arrays = { x = rows() }, numbers = { n_rows = n, heads = 3, width = width,
        x_stride = stride, eps = 1e-6 } }
    case.arrays.x.values = random
    if backward then
        case.arrays.dy, case.arrays.dx = rows(random), rows(nothing)
        case.numbers.dy_stride, case.numbers.dx_stride = stride, stride
    else
        case.arrays.y, case.numbers.y_stride = rows(nothing), stride
    end
    return case
end

compute.describe({ describe, it, pending }, "norms", function(device, each)
    for _, shape in ipairs(shapes) do
        each("of " .. name_of(shape), function(dtype, way)
            compute.try(device, "rms_norm", rms_norm(shape), dtype, way)
            compute.try(device, "rms_norm_backward", rms_norm_backward(shape), dtype, way)
            compute.try(device, "gated_rms_norm", gated(shape, { y = "x" }), dtype, way)
            compute.try(device, "gated_rms_norm_backward",
                gated(shape, { dy = "x", dx = "x", dz = "z", grad_weight = "weight" }), dtype, way)
            compute.try(device, "l2norm", l2norm(shape), dtype, way)
            compute.try(device, "l2norm_backward", l2norm(shape, true), dtype, way)
        end)
    end

    each("in the place of their inputs, and without a gradient of the weight",
        function(dtype, way)
            for _, shape in ipairs { { 70, 24, 8, 0 }, { 3, 5, 0, 0 } } do
                compute.try(device, "rms_norm_backward", rms_norm_backward(shape, true), dtype, way)
                compute.try(device, "rms_norm_backward", rms_norm_backward(shape, false, true),
                    dtype, way)
                local forward = rms_norm({ shape[1], shape[2], 0, 0 })
                forward.arrays.y = { same_as = "x" }
                compute.try(device, "rms_norm", forward, dtype, way)
                local l2 = l2norm(shape)
                l2.arrays.y = { same_as = "x" }
                compute.try(device, "l2norm", l2, dtype, way)
            end
        end)

    each("of NaN and infinity", function(dtype, way)
        local case = rms_norm { 4, 16, 0, 0 }
        local bad = { [0] = 0 / 0, 1 / 0, -1 / 0, 1 }
        case.arrays.x.values = function(i) return i % 16 == 3 and bad[math.floor(i / 16)] or 1 end
        compute.try(device, "rms_norm", case, dtype, way)
    end)
end)
