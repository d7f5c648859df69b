--- Ops that touch each number, or each pair, by itself: gates, rotary embedding, sums.
-- @module cplab.op.pointwise
local call = require "cplab.op.call"
local ffi = require("clib").ffi

local M = {}

local function rope(who, x, positions, options, inverse)
    options = call.options(who, options, { rotary_dim = "integer?", theta = "number?" })
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_rope"
    p.x = dims:take("x", x, "T H D")
    local rotary_dim = options.rotary_dim or dims.D
    if rotary_dim < 0 or rotary_dim > dims.D or rotary_dim % 2 ~= 0 then
        call.fail(who, "rotary_dim = %d is not even and in 0 .. D = %d", rotary_dim, dims.D)
    end
    local y = dims:new_like(x)
    p.y, p.positions = dims:at(y), dims:integers("positions", positions, "int64_t")
    p.n_rows, p.heads, p.width, p.rotary_dim = dims.T, dims.H, dims.D, rotary_dim
    p.x_stride, p.y_stride = dims.H * dims.D, dims.H * dims.D
    p.theta, p.inverse = options.theta or 1e7, inverse
    dims:call("rope", p)
    return y
end

--- Rotary position embedding, half-split.
-- @tparam cplab.tensor x [T, H, D]
-- @tparam {int,...} positions T of them, from 0 within each sequence
-- @tparam ?table options rotary_dim (D), theta (1e7), device
-- @treturn cplab.tensor y
function M.rope(x, positions, options)
    return rope("op.rope", x, positions, options, false)
end

--- The gradient of rope: the inverse rotation.
-- @treturn cplab.tensor dx
function M.rope_backward(dy, positions, options)
    return rope("op.rope_backward", dy, positions, options, true)
end

local function gate_parameters(who, ctype, a, b, A_log, dt_bias, options)
    local dims = call.dims(who, call.options(who, options, {}))
    local p = ffi.new(ctype)
    p.a, p.b = dims:take("a", a, "T H"), dims:take("b", b, "T H")
    p.a_log = dims:take_wide("A_log", A_log, "H")
    p.dt_bias = dims:take_wide("dt_bias", dt_bias, "H")
    p.n_rows, p.heads, p.a_stride, p.b_stride = dims.T, dims.H, dims.H, dims.H
    return p, dims
end

--- The gates of the delta rule: g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b).
-- @tparam cplab.tensor a [T, H]
-- @tparam cplab.tensor b [T, H]
-- @tparam cplab.tensor A_log [H]
-- @tparam cplab.tensor dt_bias [H]
-- @tparam ?table options device
-- @return g, beta
function M.gates(a, b, A_log, dt_bias, options)
    local p, dims = gate_parameters("op.gates", "cpl_gates", a, b, A_log, dt_bias, options)
    local g, beta = dims:new_wide(dims.T, dims.H), dims:new_wide(dims.T, dims.H)
    p.g, p.beta = dims:at(g), dims:at(beta)
    dims:call("gates", p)
    return g, beta
end

--- The gradients of gates.
-- @return da, db, dA_log, ddt_bias
function M.gates_backward(a, b, A_log, dt_bias, dg, dbeta, options)
    local p, dims = gate_parameters("op.gates_backward", "cpl_gates_backward", a, b, A_log,
        dt_bias, options)
    p.dg, p.dbeta = dims:take_wide("dg", dg, "T H"), dims:take_wide("dbeta", dbeta, "T H")
    local da, db = dims:new_like(a), dims:new_like(b)
    local dA_log, ddt_bias = dims:zeros(dims.H), dims:zeros(dims.H)
    p.da, p.db, p.da_stride, p.db_stride = dims:at(da), dims:at(db), dims.H, dims.H
    p.grad_a_log, p.grad_dt_bias = dims:at(dA_log), dims:at(ddt_bias)
    dims:call("gates_backward", p)
    return da, db, dA_log, ddt_bias
end

local function swiglu_parameters(who, ctype, gate, up, options)
    local dims = call.dims(who, call.options(who, options, {}))
    local p = ffi.new(ctype)
    p.gate, p.up = dims:take("gate", gate, "* F"), dims:take("up", up, "* F")
    p.n_rows, p.width, p.stride = dims.N, dims.F, dims.F
    return p, dims
end

--- y = silu(gate) * up.
-- @tparam cplab.tensor gate [..., F]
-- @tparam cplab.tensor up [..., F]
-- @tparam ?table options device
-- @treturn cplab.tensor y
function M.swiglu(gate, up, options)
    local p, dims = swiglu_parameters("op.swiglu", "cpl_swiglu", gate, up, options)
    local y = dims:new_like(up)
    p.y = dims:at(y)
    dims:call("swiglu", p)
    return y
end

--- The gradients of swiglu.
-- @return dgate, dup
function M.swiglu_backward(gate, up, dy, options)
    local p, dims = swiglu_parameters("op.swiglu_backward", "cpl_swiglu_backward", gate, up,
        options)
    p.dy = dims:take("dy", dy, "* F")
    local dgate, dup = dims:new_like(gate), dims:new_like(up)
    p.dgate, p.dup = dims:at(dgate), dims:at(dup)
    dims:call("swiglu_backward", p)
    return dgate, dup
end

local function sigmoid_gate_parameters(who, ctype, x, gate, options)
    local dims = call.dims(who, call.options(who, options, {}))
    local p = ffi.new(ctype)
    p.x, p.gate = dims:take("x", x, "* D"), dims:take("gate", gate, "* D")
    p.n_rows, p.heads, p.width = dims.N, 1, dims.D
    p.gate_stride, p.gate_head_stride = dims.D, dims.D
    return p, dims
end

--- y = x * sigmoid(gate).
-- @tparam cplab.tensor x [..., D]
-- @tparam cplab.tensor gate [..., D]
-- @tparam ?table options device
-- @treturn cplab.tensor y
function M.sigmoid_gate(x, gate, options)
    local p, dims = sigmoid_gate_parameters("op.sigmoid_gate", "cpl_sigmoid_gate", x, gate, options)
    local y = dims:new_like(x)
    p.y = dims:at(y)
    dims:call("sigmoid_gate", p)
    return y
end

--- The gradients of sigmoid_gate.
-- @return dx, dgate
function M.sigmoid_gate_backward(x, gate, dy, options)
    local p, dims = sigmoid_gate_parameters("op.sigmoid_gate_backward",
        "cpl_sigmoid_gate_backward", x, gate, options)
    p.dy = dims:take("dy", dy, "* D")
    local dx, dgate = dims:new_like(x), dims:new_like(gate)
    p.dx, p.dgate = dims:at(dx), dims:at(dgate)
    dims:call("sigmoid_gate_backward", p)
    return dx, dgate
end

local function axpby_parameters(who, x, y, options)
    options = call.options(who, options, { alpha = "number?", beta = "number?",
        wide = "boolean?" })
    local dims = call.dims(who, options)
    if options.wide then dims:set_wide() end
    dims:take("x", x, "* D", options.wide)
    dims:take("y", y, "* D", options.wide)
    return dims, options.alpha or 1, options.beta or 1
end

-- alpha x + beta y in y's memory.
local function add_to(dims, x, alpha, y, beta)
    local p = ffi.new "cpl_axpby"
    p.x, p.y, p.n, p.alpha, p.beta = dims:at(x), dims:at(y), x:n_elements(), alpha, beta
    p.wide = dims.is_wide
    dims:call("axpby", p)
    return y
end

--- alpha x + beta y, a new tensor.
-- @tparam cplab.tensor x [..., D]
-- @tparam cplab.tensor y [..., D]
-- @tparam ?table options alpha (1), beta (1), wide (false: true says that the numbers are WIDE
--   ones, f32, of a call of bf16), device
-- @treturn cplab.tensor
function M.axpby(x, y, options)
    local dims, alpha, beta = axpby_parameters("op.axpby", x, y, options)
    return add_to(dims, x, alpha, dims:copy(y), beta)
end

--- The gradients of axpby.
-- @tparam cplab.tensor dz [..., D], the gradient of the sum
-- @return dx, dy
function M.axpby_backward(x, y, dz, options)
    local dims, alpha, beta = axpby_parameters("op.axpby_backward", x, y, options)
    dims:take("dz", dz, "* D", options and options.wide)
    return add_to(dims, dz, alpha, dims:new_like(x), 0),
        add_to(dims, dz, beta, dims:new_like(y), 0)
end

return M
