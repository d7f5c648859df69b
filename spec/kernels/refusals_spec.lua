-- Every op, called rightly once, and then with each of its tensors wrong: absent, of another dtype,
-- of another shape. None may reach a kernel; each is one sentence that names the op.
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local function t(...) return numbers.tensor(2, 1, { ... }, 0.1, 1) end

local T, HQ, HKV, D, HK, HV, K, V = 6, 4, 2, 3, 2, 4, 3, 5
local q, k, v = t(T, HQ, D), t(T, HKV, D), t(T, HKV, V)
local o, lse = t(T, HQ, V), t(T, HQ)
local gq, gv, gate = t(T, HK, K), t(T, HV, V), t(T, HV)
local top2, places = { top_k = 2 }, { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 }
local positions, tokens, labels = { 0, 1, 2, 3, 4, 5 }, { 0, 1, 2, 2, -1, 0 }, { 1, 2, 0, -1, 4, 1 }
local x, w = t(T, D), t(D)

-- Arguments of one right call of each op.
local CALLS = {
    rms_norm = { x, w }, rms_norm_backward = { x, w, x },
    gated_rms_norm = { x, x, w }, gated_rms_norm_backward = { x, x, w, x },
    l2norm = { x }, l2norm_backward = { x, x },
    rope = { t(T, 2, 4), positions }, rope_backward = { t(T, 2, 4), positions },
    gates = { x, x, w, w }, gates_backward = { x, x, w, w, x, x },
    swiglu = { x, x }, swiglu_backward = { x, x, x },
    sigmoid_gate = { x, x }, sigmoid_gate_backward = { x, x, x },
    axpby = { x, x }, axpby_backward = { x, x, x },
    conv1d = { x, t(D, 4) }, conv1d_backward = { x, t(D, 4), x },
    gqa = { q, k, v }, gqa_backward = { q, k, v, o, lse, o }, merge = { o, lse, o, lse },
    merge_backward = { o, lse, o, lse, o, lse },
    gdn = { gq, gq, gv, gate, gate }, gdn_backward = { gq, gq, gv, gate, gate, gv, t(1, HV, K, V) },
    gdn_summary = { gq, gv, gate, gate },
    gdn_summary_backward = { gq, gq, gv, gate, gate, gv },
    gdn_carry = { t(3, HV, K, K), t(3, HV, K, V), t(3, HV, K, V) },
    matmul = { t(2, 3), t(3, 5) }, matmul_backward = { t(2, 3), t(3, 5), t(2, 5) },
    grouped_matmul = { t(T, 3), t(2, 5, 3), { 0, 2, 6 } },
    grouped_matmul_backward = { t(T, 3), t(2, 5, 3), { 0, 2, 6 }, t(T, 5) },
    move_rows = { x, t(2, D), { from = { 1, 0 } } },
    embedding = { t(3, D), tokens }, embedding_backward = { t(3, D), tokens, x },
    cross_entropy = { t(T, 5), labels }, cross_entropy_backward = { t(T, 5), labels },
    sum_squares = { x }, sum_squares_backward = { x, 2 }, adamw = { x, x, x, x, { lr = 0.1 } },
    sgd = { x, x, { lr = 0.1 } }, step_factors = {},
    moe_route = { t(T, 5), top2 }, moe_route_backward = { t(T, 5), t(T, 2), top2 },
    moe_group = { { 0, 1, 1, 2 }, { experts = 3, top_k = 2 } },
    moe_load = { t(T, 3), { 0, 4, 4, 6 } }, moe_balance = { { 2, 4 }, { 3, 3 }, top2 },
    moe_dispatch = { x, places, top2 }, moe_dispatch_backward = { x, places, t(12, D), top2 },
    moe_combine = { t(12, D), t(T, 2), places },
    moe_combine_backward = { t(12, D), t(T, 2), places, x },
}
-- Gradients that may be left out.
local OPTIONAL = { gdn_backward = { [7] = true }, merge_backward = { [6] = true } }

local function call(name, args)
    return pcall(function()
        local _ = { op[name](unpack(args, 1, 8)) }
    end)
end

local function replaced(args, i, value)
    local copy = {}
    for j = 1, 8 do copy[j] = args[j] end
    copy[i] = value
    return copy
end

local function check_sentence(name, text)
    local sentence = text:match "^%.?/?spec/kernels/refusals_spec%.lua:%d+: (.*)$"
    assert.truthy(sentence, text)
    assert.truthy(sentence:find("op." .. name .. ": ", 1, true) == 1, sentence)
    assert.is_nil(sentence:find "\n")
end

-- With one size changed at a time; true where one of them was refused.
local function refuses_a_shape(name, args, i)
    local shape, refused = args[i]:shape(), false
    for d = 1, #shape do
        local other = { unpack(shape) }
        other[d] = other[d] + 1
        local ok, text = call(name, replaced(args, i, tensor.zeros(other)))
        if not ok then
            check_sentence(name, text)
            refused = true
        end
    end
    return refused
end

local function tensors_of(args)
    local list = {}
    for i = 1, #args do
        if tensor.is_tensor(args[i]) then list[#list + 1] = i end
    end
    return list
end

describe("refusals", function()
    it("are checked for every op", function()
        for name in pairs(op) do assert.is_table(CALLS[name], name) end
    end)

    for name, args in pairs(CALLS) do
        it("of " .. name, function()
            local ok, text = call(name, args)
            assert.is_true(ok, text)
            local tensors = tensors_of(args)
            for _, i in ipairs(tensors) do
                for _, wrong in ipairs { "x", tensor.zeros(args[i]:shape(), "i32"), false } do
                    ok, text = call(name, replaced(args, i, wrong))
                    assert.is_false(ok, ("argument %d"):format(i))
                    check_sentence(name, text)
                end
                if not (OPTIONAL[name] or {})[i] then
                    ok, text = call(name, replaced(args, i, nil))
                    assert.is_false(ok, ("argument %d"):format(i))
                    check_sentence(name, text)
                end
                if #tensors > 1 then
                    ok, text = call(name, replaced(args, i, tensor.zeros(args[i]:shape(), "f32")))
                    assert.is_false(ok)
                    check_sentence(name, text)
                    assert.is_true(refuses_a_shape(name, args, i), ("argument %d"):format(i))
                end
            end
        end)
    end
end)
