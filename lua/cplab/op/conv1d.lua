--- The causal depthwise convolution of a GDN layer, over packed sequences.
-- Letters: T tokens, C channels, W taps (the last one is the token's own), S sequences.
-- @module cplab.op.conv1d
local call = require "cplab.op.call"
local clib = require "clib"
local C, ffi = clib.C, clib.ffi

local M = {}

local option_types = { bias = "any?", init = "any?", cu_seqlens = "list?", silu = "boolean?" }

local function parameters(who, ctype, x, w, options)
    options = call.options(who, options, option_types)
    local dims = call.dims(who, options)
    local p = ffi.new(ctype)
    p.x, p.weight = dims:take("x", x, "T C"), dims:take("w", w, "C W")
    if dims.W < 1 then call.fail(who, "w has no taps") end
    local cu
    p.spans, cu = dims:spans(options.cu_seqlens)
    dims.H, dims.origin.H = dims.W - 1, "w, less one,"
    p.bias = dims:take_if("bias", options.bias, "C")
    p.halo = dims:take_if("init", options.init, "S H C")
    p.n_spans, p.n_rows = dims.S, dims.T
    p.channels, p.width, p.x_stride = dims.C, dims.W, dims.C
    p.silu = options.silu ~= false
    return p, dims, cu, options.init
end

-- Row i of [S, H, C] becomes row t of the sequence, or of its init where t < 0, or 0.
local function copy_last_rows(state, x, init, cu, dims)
    local size = tonumber(C.cpl_dtype_bytes(x._ptr.dtype)) * dims.C
    local to, rows = ffi.cast("char *", state._ptr.data), ffi.cast("const char *", x._ptr.data)
    local halo = init and ffi.cast("const char *", init._ptr.data)
    for i = 0, dims.S - 1 do
        for j = 0, dims.H - 1 do
            local t = cu[i + 2] - cu[i + 1] - dims.H + j
            if t >= 0 then
                ffi.copy(to, rows + (cu[i + 1] + t) * size, size)
            elseif halo then
                ffi.copy(to, halo + (i * dims.H + dims.H + t) * size, size)
            else
                ffi.fill(to, size)
            end
            to = to + size
        end
    end
end

--- y[t, c] = silu(bias[c] + sum_j w[c, j] x[t - (W-1) + j, c]) within each sequence.
-- @tparam cplab.tensor x [T, C]
-- @tparam cplab.tensor w [C, W]
-- @tparam ?table options bias [C], init [S, W-1, C] (what comes before each sequence; zeros),
--   cu_seqlens, silu (true), device
-- @return y [T, C], and the last W-1 rows of every sequence with its init, [S, W-1, C]
function M.conv1d(x, w, options)
    local p, dims, cu, init = parameters("op.conv1d", "cpl_conv1d", x, w, options)
    local y, state = dims:new_like(x), dims:new(dims.S, dims.H, dims.C)
    p.y = dims:at(y)
    dims:call("conv1d", p)
    copy_last_rows(state, x, init, cu, dims)
    return y, state
end

--- The gradients of conv1d.
-- @return dx, dw, dbias, dinit (zeros where conv1d had no bias or no init)
function M.conv1d_backward(x, w, dy, options)
    local p, dims = parameters("op.conv1d_backward", "cpl_conv1d_backward", x, w, options)
    p.dy = dims:take("dy", dy, "T C")
    local dx, dinit = dims:new_like(x), dims:new(dims.S, dims.H, dims.C)
    local dw, dbias = dims:zeros(dims.C, dims.W), dims:zeros(dims.C)
    p.dx, p.dhalo, p.dx_stride = dims:at(dx), dims:at(dinit), dims.C
    p.grad_weight, p.grad_bias = dims:at(dw), dims:at(dbias)
    dims:call("conv1d_backward", p)
    return dx, dw, dbias, dinit
end

return M
