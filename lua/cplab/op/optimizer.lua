--- What an optimizer does to parameters, and the norm that clipping needs.
-- @module cplab.op.optimizer
local call = require "cplab.op.call"
local ffi = require("clib").ffi

local M = {}

--- The sum of the squares of every number, in double.
-- @tparam cplab.tensor x [..., D]
-- @tparam ?table options wide (false: true says that they are WIDE ones, f32, of a call of bf16),
--   device
-- @treturn number
function M.sum_squares(x, options)
    local who = "op.sum_squares"
    options = call.options(who, options, { wide = "boolean?" })
    local dims = call.dims(who, options)
    if options.wide then dims:set_wide() end
    local p, sum = ffi.new "cpl_sum_squares", dims:new_array("double", 1)
    p.x, p.sum, p.n = dims:take_wide("x", x, "* D"), dims:at(sum), x:n_elements()
    dims:call("sum_squares", p)
    return sum[0]
end

--- The gradient of sum_squares: 2 x times that of the sum.
-- @tparam cplab.tensor x [..., D]
-- @tparam number d_sum
-- @tparam ?table options device
-- @treturn cplab.tensor dx
function M.sum_squares_backward(x, d_sum, options)
    local who = "op.sum_squares_backward"
    local dims = call.dims(who, call.options(who, options, {}))
    local p = ffi.new "cpl_axpby"
    p.x = dims:take("x", x, "* D")
    if type(d_sum) ~= "number" then call.fail(who, "d_sum must be a number") end
    local dx = dims:new_like(x)
    p.y, p.n, p.alpha = dims:at(dx), x:n_elements(), 2 * d_sum
    dims:call("axpby", p)
    return dx
end

local ADAMW = {
    lr = "number", step = "integer?", betas = "list?", eps = "number?", weight_decay = "number?",
    grad_scale = "number?",
}

--- One step of AdamW; new tensors.
-- @tparam cplab.tensor w [..., D]
-- @tparam cplab.tensor grad [..., D]
-- @tparam cplab.tensor m [..., D], the first moments before the step
-- @tparam cplab.tensor v [..., D], the second moments before the step
-- @tparam table options lr, step (1, counted from 1), betas ({ 0.9, 0.95 }), eps (1e-8),
--   weight_decay (0), grad_scale (1: what the gradient is multiplied with), device
-- @return w, m, v
function M.adamw(w, grad, m, v, options)
    local who = "op.adamw"
    options = call.options(who, options, ADAMW)
    local betas, step = options.betas or { 0.9, 0.95 }, options.step or 1
    if #betas ~= 2 or type(betas[1]) ~= "number" or type(betas[2]) ~= "number" then
        call.fail(who, "betas must be two numbers")
    end
    if step < 1 then call.fail(who, "step = %d is not counted from 1", step) end
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_adamw"
    dims:take("w", w, "* D")
    p.grad = dims:take_wide("grad", grad, "* D")
    dims:take_wide("m", m, "* D")
    dims:take_wide("v", v, "* D")
    local results = {}
    for i, t in ipairs { w, m, v } do results[i] = dims:copy(t) end
    p.w, p.m, p.v = dims:at(results[1]), dims:at(results[2]), dims:at(results[3])
    p.n, p.step, p.lr = w:n_elements(), step, options.lr
    p.beta1, p.beta2, p.eps = betas[1], betas[2], options.eps or 1e-8
    p.weight_decay, p.grad_scale = options.weight_decay or 0, options.grad_scale or 1
    dims:call("adamw", p)
    return unpack(results)
end

return M
