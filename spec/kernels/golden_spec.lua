-- Every op against numbers that a public framework's automatic differentiation made in float64
-- (spec/golden/ops.json, 14 digits), for every table.
--
-- Bounds are shares of the largest expected number. f64: 1e-11, though the 14 printed digits are
-- nearly all that is missing (5e-14 at worst), also for dg under strong decay. f32: one rounding is
-- 6e-8, and inputs are rounded before anything is computed; the worst case is 9 roundings (5.3e-7),
-- the bound 80.
local dkjson = require "dkjson"
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local function read(path)
    local file = assert(io.open(path))
    local text = file:read "*a"
    file:close()
    return assert(dkjson.decode(text))
end

local golden = read "spec/golden/ops.json"

local tables = {
    { device = "ref", dtype = "f64", bound = 1e-11 },
    { device = "cpu", dtype = "f64", bound = 1e-11 },
    { device = "cpu", dtype = "f32", bound = 5e-6 },
}

local function zero_rows(list, rows, shape)
    local width = #list / shape[1]
    for _, row in ipairs(rows or {}) do
        for i = 1, width do list[row * width + i] = 0 end
    end
end

-- The inputs of a case as tensors of one dtype.
local function inputs_of(case, dtype)
    local inputs = {}
    for name, input in pairs(case.inputs) do
        local n = 1
        for _, size in ipairs(input.shape) do n = n * size end
        local list = input.values
        if not list then list = numbers.list(case.seed, input.j, n, input.lo, input.hi) end
        zero_rows(list, (case.zero_rows or {})[name], input.shape)
        inputs[name] = tensor.from(list, input.shape, dtype)
    end
    return inputs
end

local function check(case, table_, results)
    for name, result in pairs(results) do
        if case[name] then
            numbers.close(case.name .. " " .. name, result, case[name], table_.bound)
        end
    end
end

local function each_case(cases, body)
    for _, case in ipairs(cases) do
        for _, table_ in ipairs(tables) do
            it(("%s: %s %s"):format(case.name, table_.device, table_.dtype), function()
                body(case, table_, inputs_of(case, table_.dtype))
            end)
        end
    end
end

describe("golden gdn", function()
    each_case(golden.gdn_cases, function(case, table_, x)
        local options = { device = table_.device, cu_seqlens = case.cu_seqlens,
            l2norm = case.l2norm, h0 = x.h0 }
        local o, ht = op.gdn(x.q, x.k, x.v, x.g, x.beta, options)
        local dq, dk, dv, dg, dbeta, dh0 = op.gdn_backward(x.q, x.k, x.v, x.g, x.beta, x["do"],
            x.dht, options)
        check(case, table_, { o = o, ht = ht, dq = dq, dk = dk, dv = dv, dg = dg, dbeta = dbeta,
            dh0 = dh0 })
    end)
end)

describe("golden gates", function()
    each_case(golden.gate_cases, function(case, table_, x)
        local options = { device = table_.device }
        local g, beta = op.gates(x.a, x.b, x.A_log, x.dt_bias, options)
        local da, db, dA_log, ddt_bias = op.gates_backward(x.a, x.b, x.A_log, x.dt_bias, x.dg,
            x.dbeta, options)
        check(case, table_, { g = g, beta = beta, da = da, db = db, dA_log = dA_log,
            ddt_bias = ddt_bias })
    end)
end)

describe("golden gqa", function()
    each_case(golden.attn_cases, function(case, table_, x)
        local options = { device = table_.device, cu_seqlens = case.cu_seqlens }
        local o, lse = op.gqa(x.q, x.k, x.v, options)
        local dq, dk, dv = op.gqa_backward(x.q, x.k, x.v, o, lse, x["do"], options)
        if case.T == 1 then -- one key: dq and dk are rounding errors around 0
            numbers.close("dq + 1", op.axpby(dq, dq:copy():fill(1)), dq:copy():fill(1), 1e-6)
            dq, dk = nil, nil
        end
        check(case, table_, { o = o, lse = lse, dq = dq, dk = dk, dv = dv })
    end)
end)

describe("golden conv1d", function()
    each_case(golden.conv_cases, function(case, table_, x)
        local options = { device = table_.device, cu_seqlens = case.cu_seqlens, bias = x.bias,
            init = x.init, silu = case.silu }
        local y, state = op.conv1d(x.x, x.w, options)
        local dx, dw, dbias, dinit = op.conv1d_backward(x.x, x.w, x.dy, options)
        check(case, table_, { y = y, final_state = state, dx = dx, dw = dw, dbias = dbias,
            dinit = dinit })
    end)
end)

describe("golden norms", function()
    each_case(golden.norm_cases, function(case, table_, x)
        local options = { device = table_.device, eps = case.eps }
        assert.equal("gated", case.kind)
        local y = op.gated_rms_norm(x.x, x.z, x.w, options)
        local dx, dz, dw = op.gated_rms_norm_backward(x.x, x.z, x.w, x.dy, options)
        check(case, table_, { y = y, dx = dx, dz = dz, dw = dw })
    end)
end)

describe("golden rope", function()
    each_case(golden.rope_cases, function(case, table_, x)
        local options = { device = table_.device, rotary_dim = case.rotary_dim,
            theta = case.theta }
        check(case, table_, {
            y = op.rope(x.x, case.positions, options),
            dx = op.rope_backward(x.dy, case.positions, options),
        })
    end)
end)
