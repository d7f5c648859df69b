--- The pointwise kernels of a GDN layer and of an MLP, forward and backward, as one call: the
-- convolution of q, k and v, the norms of q and k, the gated norm, SwiGLU. They compute
-- exponentials, so bytes alone do not say what they cost. Bytes are counted as the cost model
-- counts them (cplab.cost.sizes): what forward reads and writes, and twice that backward.
-- @module cplab.project.pointwise
local arrays = require "cplab.bench.arrays"
local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local M = {}

local HEAD, CONV, MLP = 64, 4, 3 -- width of a head; of the convolution; of the MLP, in rows

-- Keeps what the kernels' parameters point to. Inputs, which have names, are not zero.
local function allocator(kept)
    return function(name, n_rows, width)
        local array = arrays.new("f32", n_rows, width)
        if name then C.cpl_tensor_fill(array, 0.5) end
        kept[#kept + 1] = array
        return array.data
    end
end

local function conv1d(new, n, width)
    local span = ffi.new("cpl_span[1]", { { 0, 0, 0, n } })
    local c = 3 * width
    local p = { x = new("conv.x", n, c), weight = new("conv.w", c, CONV), spans = span,
        n_spans = 1, n_rows = n, channels = c, width = CONV, x_stride = c, silu = true }
    local b = {}
    for name, value in pairs(p) do b[name] = value end
    p.y = new(nil, n, c)
    b.dy, b.dx, b.grad_weight, b.dx_stride = new("conv.dy", n, c), new(nil, n, c),
        new(nil, c, CONV), c
    return ffi.new("cpl_conv1d", p), ffi.new("cpl_conv1d_backward", b), span
end

local function l2norm(new, n, width)
    local p = { x = new("l2.x", n, 2 * width), n_rows = n, heads = 2 * width / HEAD, width = HEAD,
        x_stride = 2 * width, eps = 1e-6 }
    local b = {}
    for name, value in pairs(p) do b[name] = value end
    p.y, p.y_stride = new(nil, n, 2 * width), 2 * width
    b.dy, b.dx = new("l2.dy", n, 2 * width), new(nil, n, 2 * width)
    b.dy_stride, b.dx_stride = 2 * width, 2 * width
    return ffi.new("cpl_l2norm", p), ffi.new("cpl_l2norm_backward", b)
end

local function gated_rms_norm(new, n, width)
    local heads = width / HEAD
    local p = { x = new("norm.x", n, width), z = new("norm.z", n, width),
        weight = new("norm.w", 1, HEAD), n_rows = n * heads, width = HEAD, heads = heads,
        z_stride = width, eps = 1e-6 }
    local b = {}
    for name, value in pairs(p) do b[name] = value end
    p.y = new(nil, n, width)
    b.dy, b.dx, b.dz = new("norm.dy", n, width), new(nil, n, width), new(nil, n, width)
    b.grad_weight = new(nil, 1, HEAD)
    return ffi.new("cpl_gated_rms_norm", p), ffi.new("cpl_gated_rms_norm_backward", b)
end

local function swiglu(new, n, width)
    local p = { gate = new("glu.gate", n, width), up = new("glu.up", n, width), n_rows = n,
        width = width, stride = width }
    local b = {}
    for name, value in pairs(p) do b[name] = value end
    p.y = new(nil, n, width)
    b.dy, b.dgate, b.dup = new("glu.dy", n, width), new(nil, n, width), new(nil, n, width)
    return ffi.new("cpl_swiglu", p), ffi.new("cpl_swiglu_backward", b)
end

--- One call over n rows.
-- @tparam number n rows
-- @tparam number width of keys and of values: whole heads of 64
-- @treturn function
-- @treturn number bytes, forward and backward
function M.new(n, width)
    local kernels, kept = C.cpl_kernels_for("cpu", C.CPL_F32), {}
    local new = allocator(kept)
    local conv, conv_backward, span = conv1d(new, n, width)
    local norm, norm_backward = l2norm(new, n, width)
    local gated, gated_backward = gated_rms_norm(new, n, width)
    local glu, glu_backward = swiglu(new, n, MLP * width)
    kept.span = span
    local elements = 2 * 3 * width + 2 * 2 * width + 3 * width + 3 * MLP * width
    return function()
        assert(kept)
        kernels.conv1d(conv)
        kernels.l2norm(norm)
        kernels.gated_rms_norm(gated)
        kernels.swiglu(glu)
        kernels.swiglu_backward(glu_backward)
        kernels.gated_rms_norm_backward(gated_backward)
        kernels.l2norm_backward(norm_backward)
        kernels.conv1d_backward(conv_backward)
    end, 3 * 4 * n * elements
end

return M
