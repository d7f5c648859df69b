--- Optimizers: what a step may be told about them, and how they change parameters.
-- `sgd`: w -= lr g. `adamw`: Adam with decoupled weight decay (Loshchilov and Hutter, arXiv
-- 1711.05101), eps 1e-8 outside the root, decay multiplied by lr.
--
-- What decays: matrices, the embedding and convolution kernels among them. What does not: vectors,
-- that is the weights of norms, A_log, dt_bias and biases. It is the rule of Megatron-LM
-- (core/optimizer: parameters of one dimension and biases are left out) and of
-- flash-linear-attention (layers/gated_deltanet.py marks A_log and dt_bias). Qwen3-Next was trained
-- with decay on its zero-centred norms too, which this is not.
--
-- `clip` bounds the norm of all gradients together, once, after they were summed over the ranks:
-- g is multiplied by clip / (norm + 1e-6) where that is below 1 (Megatron-LM, PyTorch). The stored
-- gradients stay as they are. Every rank has the same gradients, so every rank has the same norm.
--
-- The host never reads what an update depends on: norm and number of the step lie where the
-- parameters do (step_factors in kernels.h). So nobody waits for a device, and a captured update
-- clips and counts anew in each replay. The learning rate lies there as well, on a dial that the
-- host turns: another rate is no other update.
-- @module cplab.optimizer
local args = require "cplab.check_args"
local clib = require "clib"
local dials = require "cplab.dial"
local rows = require "cplab.rows"
local C, ffi = clib.C, clib.ffi

local M = {}

--- What an optimizer may be told, as types for check_args.fields.
M.fields = {
    optimizer = "string?", lr = "number|function?", clip = "number?", betas = "list?",
    eps = "number?", weight_decay = "number?",
}

local NAMES = { "adamw", "sgd" }
local OF_ADAMW = { "betas", "eps", "weight_decay" }

local function check_number(who, name, value, allowed, rule, level)
    if not allowed then
        error(("%s: %s must be %s (got %s)"):format(who, name, rule, args.show(value)), level + 1)
    end
end

local function check_rate(who, name, value, level)
    local fits = type(value) == "number" and value >= 0 and value < math.huge
    check_number(who, name, value, fits, "a finite number, at least 0", level + 1)
end

local function check_adamw(who, o, level)
    local betas = o.betas or { 0.9, 0.95 }
    for i = 1, math.max(#betas, 2) do
        local beta = betas[i]
        local fits = i <= 2 and type(beta) == "number" and beta >= 0 and beta < 1
        check_number(who, ("betas[%d]"):format(i), beta, fits, "one of two numbers in [0, 1)",
            level + 1)
    end
    local eps, decay = o.eps or 1e-8, o.weight_decay or 0.01
    check_number(who, "eps", eps, eps >= 0, "at least 0", level + 1)
    check_number(who, "weight_decay", decay, decay >= 0, "at least 0", level + 1)
    return { beta1 = betas[1], beta2 = betas[2], eps = eps, weight_decay = decay }
end

-- What the chosen optimizer does not take.
local function check_others(who, o, names, level)
    for _, name in ipairs(names) do
        if o[name] ~= nil then
            error(("%s: %s is an option of %s"):format(who, name, o.optimizer and "adamw"
                or "an optimizer, and there is none"), level + 1)
        end
    end
end

--- The numbers of an optimizer, checked, with what was left open: optimizer, lr (a number, or a
-- function of the step: see M.plan_rates), clip, and for adamw beta1 (0.9), beta2 (0.95), eps
-- (1e-8), weight_decay (0.01). Empty where there is none.
-- @tparam string who
-- @tparam table o fields of M.fields; others are not looked at
-- @tparam number level
function M.settings(who, o, level)
    if o.optimizer == nil then
        check_others(who, o, { "clip", unpack(OF_ADAMW) }, level + 1)
        return {}
    end
    args.one_of(who, "optimizer", o.optimizer, NAMES, level + 1)
    if not o.lr then
        error(("%s: optimizer '%s' needs lr"):format(who, o.optimizer), level + 1)
    end
    if type(o.lr) == "number" then check_rate(who, "lr", o.lr, level + 1) end
    if o.clip then check_number(who, "clip", o.clip, o.clip > 0, "above 0", level + 1) end
    local settings = {}
    if o.optimizer == "adamw" then
        settings = check_adamw(who, o, level + 1)
    else
        check_others(who, o, OF_ADAMW, level + 1)
    end
    settings.optimizer, settings.lr, settings.clip = o.optimizer, o.lr, o.clip
    return settings
end

--- A learning rate that is a function of the step, from 0, becomes a list of those of n steps, of
-- which M.at takes one. All are asked for before any step is done, and checked.
-- @tparam string who
-- @tparam table settings of M.settings; of others lr stays
-- @tparam number n
-- @tparam number level
-- @treturn table settings
function M.plan_rates(who, settings, n, level)
    local rate = settings.lr
    if type(rate) ~= "function" then return settings end
    settings.lr = {}
    for step = 0, n - 1 do
        settings.lr[step + 1] = rate(step)
        check_rate(who, ("lr(%d)"):format(step), settings.lr[step + 1], level + 1)
    end
    return settings
end

--- What of settings, or of options among which they are, holds for one step: lr is a number.
-- @tparam table settings of M.plan_rates
-- @tparam number step from 0
function M.at(settings, step)
    if type(settings.lr) ~= "table" then return settings end
    local now = {}
    for name, value in pairs(settings) do now[name] = value end
    now.lr = settings.lr[step + 1]
    return now
end

local function exact(value)
    if type(value) == "table" then
        local words = {}
        for i, part in ipairs(value) do words[i] = exact(part) end
        return table.concat(words, ",")
    end
    return type(value) == "number" and ("%.17g"):format(value) or tostring(value)
end

--- A text that is equal exactly for equal settings, or options among which they are; values may be
-- lists.
function M.text(settings)
    local words = {}
    for name, value in pairs(settings) do words[#words + 1] = name .. "=" .. exact(value) end
    table.sort(words)
    return table.concat(words, " ")
end

local function doubles(parameters, n)
    return rows.new(parameters.comm, "f64", n, 1)
end

local function doubles_at(tensor)
    return ffi.cast("double *", tensor.data)
end

local function squares_of(parameters)
    local p = ffi.new("cpl_sum_squares", { x = parameters.grads.data, n = parameters.n })
    if not parameters.squares then
        local bytes = tonumber(parameters:kernels(parameters.wide).sum_squares_workspace(p))
        parameters.squares = doubles(parameters, 1)
        parameters.squares_workspace = doubles(parameters, math.ceil(bytes / 8))
    end
    return p
end

--- Adds up the squares of all gradients, where they lie.
-- @tparam table parameters cplab.parameters
function M.measure(parameters)
    local kernels, p = parameters:kernels(parameters.wide), squares_of(parameters)
    p.sum, p.workspace = doubles_at(parameters.squares), parameters.squares_workspace.data
    kernels.sum_squares(p)
end

--- The norm of all gradients together, as it was last measured.
-- @tparam table parameters cplab.parameters
function M.norm(parameters)
    local sum = ffi.new "double[1]"
    clib.check(C.cpl_tensor_download(parameters.squares, sum))
    return math.sqrt(sum[0])
end

--- Whether weight decay concerns a parameter of so many dimensions.
function M.decays(n_dims)
    return n_dims >= 2
end

-- The moments of all parameters and how many steps they have seen, made when they are first needed.
local function moments_of(parameters)
    local function zeros() return rows.new(parameters.comm, parameters.wide, parameters.n, 1) end
    parameters.moments = parameters.moments
        or { step = rows.new(parameters.comm, "i64", 1, 1), m = zeros(), v = zeros() }
    return parameters.moments
end

-- What all parameters share in a step, made where they lie; adamw's counts it.
-- @return where it lies
local function factors_of(parameters, settings)
    parameters.factors = parameters.factors or doubles(parameters, 3)
    local p = ffi.new("cpl_step_factors", { factors = doubles_at(parameters.factors) })
    if settings.clip then
        p.squares, p.clip = doubles_at(parameters.squares), settings.clip
    end
    if settings.optimizer == "adamw" then
        p.step = ffi.cast("int64_t *", moments_of(parameters).step.data)
        p.beta1, p.beta2 = settings.beta1, settings.beta2
    end
    parameters:kernels(parameters.wide).step_factors(p)
    return p.factors
end

local function adamw(parameters, settings, factors)
    local moments = moments_of(parameters)
    local p = ffi.new("cpl_adamw", {
        factors = factors, rate = parameters.rate:at(), beta1 = settings.beta1,
        beta2 = settings.beta2, eps = settings.eps,
    })
    local size = tonumber(C.cpl_dtype_bytes(moments.m.dtype))
    for _, entry in ipairs(parameters.list) do
        local at = entry.at * size
        p.w, p.grad, p.n = entry.weight.data, entry.grad.data, entry.n
        p.m = ffi.cast("char *", moments.m.data) + at
        p.v = ffi.cast("char *", moments.v.data) + at
        p.weight_decay = entry.decays and settings.weight_decay or 0
        parameters:kernels(entry.dtype).adamw(p)
    end
end

local function sgd(parameters, _, factors)
    local p = ffi.new("cpl_sgd", { factors = factors, rate = parameters.rate:at() })
    for _, entry in ipairs(parameters.list) do
        p.w, p.grad, p.n = entry.weight.data, entry.grad.data, entry.n
        parameters:kernels(entry.dtype).sgd(p)
    end
end

local UPDATES = { adamw = adamw, sgd = sgd }

--- Updates from now on, those of replays as well, go by the learning rate of `settings`.
-- @tparam table parameters cplab.parameters
-- @tparam table settings of M.settings, lr a number; without an optimizer nothing is done
-- @raise another rate while a capture is made
function M.turn(parameters, settings)
    if not settings.optimizer then return end
    parameters.rate = parameters.rate or dials.new(parameters.comm)
    parameters.rate:turn(settings.lr)
end

--- Takes the memory that steps with such options need beside the parameters, and keep; and turns
-- their dials.
-- @tparam table parameters cplab.parameters
-- @tparam table options of Stack:run_step
function M.prepare(parameters, options)
    if options.backward then squares_of(parameters) end
    if options.optimizer then parameters.factors = parameters.factors or doubles(parameters, 3) end
    if options.optimizer == "adamw" then moments_of(parameters) end
    M.turn(parameters, options)
end

--- Changes parameters by their gradients, which are measured, and summed over the group already.
-- @tparam table parameters cplab.parameters
-- @tparam table settings of M.settings, lr a number
-- @raise in a capture: its learning rate is another one than that of the last update or M.turn
function M.update(parameters, settings)
    M.turn(parameters, settings)
    UPDATES[settings.optimizer](parameters, settings, factors_of(parameters, settings))
end

--- The moments become 0: training begins anew.
function M.forget(parameters)
    local moments = parameters.moments
    if moments then
        for _, tensor in pairs(moments) do clib.check(C.cpl_tensor_fill(tensor, 0)) end
    end
end

return M
