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
    dims:call_with_workspace("sum_squares", p)
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

-- { beta1, beta2 }
local function check_betas(who, betas)
    betas = betas or { 0.9, 0.95 }
    if #betas ~= 2 or type(betas[1]) ~= "number" or type(betas[2]) ~= "number" then
        call.fail(who, "betas must be two numbers")
    end
    return betas
end

local function check_step(who, step)
    step = step or 1
    if step < 1 then call.fail(who, "step = %d is not counted from 1", step) end
    return step
end

local STEP_FACTORS = { squares = "number?", clip = "number?", step = "integer?", betas = "list?" }

--- What all parameters share in a step of an optimizer.
-- @tparam ?table options squares (the sum of the squares of all gradients) and clip (the bound of
--   their norm): both or none; step (1, counted from 1), betas ({ 0.9, 0.95 }), device
-- @return the share of the gradients that is applied, 1 - beta1 ^ step, 1 - beta2 ^ step
function M.step_factors(options)
    local who = "op.step_factors"
    options = call.options(who, options, STEP_FACTORS)
    local betas, step = check_betas(who, options.betas), check_step(who, options.step)
    if (options.squares == nil) ~= (options.clip == nil) then
        call.fail(who, "squares and clip go together")
    end
    local dims = call.dims(who, options)
    local p, factors = ffi.new "cpl_step_factors", dims:new_array("double", 3)
    p.step, p.factors = dims:list("int64_t", { step - 1 }), dims:at(factors)
    if options.clip then
        p.squares, p.clip = dims:list("double", { options.squares }), options.clip
    end
    p.beta1, p.beta2 = betas[1], betas[2]
    dims.dtype = "f64" -- the table; there are no others
    dims:call("step_factors", p)
    return factors[0], factors[1], factors[2]
end

-- Where a kernel finds the factors of a step whose gradients are multiplied with `share`.
local function place_factors(dims, share, step, betas)
    local _, correction1, correction2 = M.step_factors { step = step, betas = betas }
    return dims:list("double", { share, correction1, correction2 })
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
    local betas, step = check_betas(who, options.betas), check_step(who, options.step)
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_adamw"
    dims:take("w", w, "* D")
    p.grad = dims:take_wide("grad", grad, "* D")
    dims:take_wide("m", m, "* D")
    dims:take_wide("v", v, "* D")
    local results = {}
    for i, t in ipairs { w, m, v } do results[i] = dims:copy(t) end
    p.w, p.m, p.v = dims:at(results[1]), dims:at(results[2]), dims:at(results[3])
    p.factors = place_factors(dims, options.grad_scale or 1, step, betas)
    p.n, p.lr, p.eps = w:n_elements(), options.lr, options.eps or 1e-8
    p.beta1, p.beta2, p.weight_decay = betas[1], betas[2], options.weight_decay or 0
    dims:call("adamw", p)
    return unpack(results)
end

--- One step down the gradient; a new tensor.
-- @tparam cplab.tensor w [..., D]
-- @tparam cplab.tensor grad [..., D]
-- @tparam table options lr, grad_scale (1: what the gradient is multiplied with), device
-- @treturn cplab.tensor w
function M.sgd(w, grad, options)
    local who = "op.sgd"
    options = call.options(who, options, { lr = "number", grad_scale = "number?" })
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_sgd"
    dims:take("w", w, "* D")
    p.grad = dims:take_wide("grad", grad, "* D")
    local result = dims:copy(w)
    p.factors = dims:list("double", { options.grad_scale or 1 })
    p.w, p.n, p.lr = dims:at(result), w:n_elements(), options.lr
    dims:call("sgd", p)
    return result
end

return M
