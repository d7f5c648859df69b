--- Normalisations, over the last dimension. See kernels.h for the formulas.
-- @module cplab.op.norm
local call = require "cplab.op.call"
local ffi = require("clib").ffi

local M = {}

local function rms_parameters(who, ctype, x, weight, options)
    options = call.options(who, options, { eps = "number?", zero_centred = "boolean?" })
    local dims = call.dims(who, options)
    local p = ffi.new(ctype)
    p.x, p.weight = dims:take("x", x, "* D"), dims:take("weight", weight, "D")
    p.n_rows, p.width, p.x_stride = dims.N, dims.D, dims.D
    p.eps, p.weight_offset = options.eps or 1e-6, options.zero_centred and 1 or 0
    return p, dims
end

--- y = x / sqrt(mean(x^2) + eps) * weight, or * (1 + weight) where it is zero-centred.
-- @tparam cplab.tensor x [..., D]
-- @tparam cplab.tensor weight [D]
-- @tparam ?table options eps (1e-6), zero_centred (false), device
-- @treturn cplab.tensor y
function M.rms_norm(x, weight, options)
    local p, dims = rms_parameters("op.rms_norm", "cpl_rms_norm", x, weight, options)
    local y = dims:new_like(x)
    p.y, p.y_stride = dims:at(y), dims.D
    dims:call("rms_norm", p)
    return y
end

--- The gradients of rms_norm.
-- @return dx, dweight
function M.rms_norm_backward(x, weight, dy, options)
    local p, dims = rms_parameters("op.rms_norm_backward", "cpl_rms_norm_backward", x, weight,
        options)
    p.dy, p.dy_stride, p.dx_stride = dims:take("dy", dy, "* D"), dims.D, dims.D
    local dx, dweight = dims:new_like(x), dims:zeros(dims.D)
    p.dx, p.grad_weight = dims:at(dx), dims:at(dweight)
    dims:call_with_workspace("rms_norm_backward", p)
    return dx, dweight
end

local function gated_parameters(who, ctype, x, z, weight, options)
    options = call.options(who, options, { eps = "number?" })
    local dims = call.dims(who, options)
    local p = ffi.new(ctype)
    p.x, p.z = dims:take("x", x, "* D"), dims:take("z", z, "* D")
    p.weight = dims:take("weight", weight, "D")
    p.n_rows, p.width, p.heads, p.z_stride = dims.N, dims.D, 1, dims.D
    p.eps = options.eps or 1e-6
    return p, dims
end

--- y = x / sqrt(mean(x^2) + eps) * weight * silu(z).
-- @tparam cplab.tensor x [..., D]
-- @tparam cplab.tensor z [..., D]
-- @tparam cplab.tensor weight [D]
-- @tparam ?table options eps (1e-6), device
-- @treturn cplab.tensor y
function M.gated_rms_norm(x, z, weight, options)
    local p, dims = gated_parameters("op.gated_rms_norm", "cpl_gated_rms_norm", x, z, weight,
        options)
    local y = dims:new_like(x)
    p.y = dims:at(y)
    dims:call("gated_rms_norm", p)
    return y
end

--- The gradients of gated_rms_norm.
-- @return dx, dz, dweight
function M.gated_rms_norm_backward(x, z, weight, dy, options)
    local p, dims = gated_parameters("op.gated_rms_norm_backward", "cpl_gated_rms_norm_backward",
        x, z, weight, options)
    p.dy = dims:take("dy", dy, "* D")
    local dx, dz, dweight = dims:new_like(x), dims:new_like(z), dims:zeros(dims.D)
    p.dx, p.dz, p.grad_weight = dims:at(dx), dims:at(dz), dims:at(dweight)
    dims:call("gated_rms_norm_backward", p)
    return dx, dz, dweight
end

local function l2_parameters(who, ctype, x, options)
    options = call.options(who, options, { eps = "number?" })
    local dims = call.dims(who, options)
    local p = ffi.new(ctype)
    p.x = dims:take("x", x, "* D")
    p.n_rows, p.heads, p.width, p.x_stride = dims.N, 1, dims.D, dims.D
    p.eps = options.eps or 1e-6
    return p, dims
end

--- y = x / sqrt(sum(x^2) + eps).
-- @tparam cplab.tensor x [..., D]
-- @tparam ?table options eps (1e-6), device
-- @treturn cplab.tensor y
function M.l2norm(x, options)
    local p, dims = l2_parameters("op.l2norm", "cpl_l2norm", x, options)
    local y = dims:new_like(x)
    p.y, p.y_stride = dims:at(y), dims.D
    dims:call("l2norm", p)
    return y
end

--- The gradient of l2norm.
-- @treturn cplab.tensor dx
function M.l2norm_backward(x, dy, options)
    local p, dims = l2_parameters("op.l2norm_backward", "cpl_l2norm_backward", x, options)
    p.dy, p.dy_stride, p.dx_stride = dims:take("dy", dy, "* D"), dims.D, dims.D
    local dx = dims:new_like(x)
    p.dx = dims:at(dx)
    dims:call("l2norm_backward", p)
    return dx
end

return M
