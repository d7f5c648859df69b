-- The mixture of experts as a layer: against its ops put together in another way, what padding may
-- not do, and what is refused. Gradients, padding rows and traces: layer_spec; parity: spec/stack.
local clib = require "clib"
local layers = require "spec.support.layers"
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local tensor = require "cplab.tensor"
local C, ffi = clib.C, clib.ffi

local STREAM = { lengths = { 9, 0, 1, 6 }, real = { 7, 0, 1, 6 } }
local REAL = 14

local function list_of(t)
    local list = {}
    for i = 1, tonumber(C.cpl_tensor_n_elements(t)) do
        list[i] = C.cpl_dtype_load(t.dtype, t.data, i - 1)
    end
    return list
end

local function tokens_of(live)
    local report, list = layers.moe_report(live), {}
    for e = 0, tonumber(report.experts) - 1 do
        list[e + 1] = tonumber(report.offsets[e + 1] - report.offsets[e])
    end
    return list, report
end

local function sum(list)
    local s = 0
    for _, x in ipairs(list) do s = s + x end
    return s
end

-- Weights by name, as tensors.
local function weights_of(live)
    local weights = {}
    for _, entry in ipairs(live.parameters.list) do
        local shape = { tonumber(entry.weight.shape[0]), tonumber(entry.weight.shape[1]) }
        weights[entry.name:match "%.([%w_]+)$"] = tensor.from(list_of(entry.weight), shape)
    end
    return weights
end

local T_B = { transpose_b = true }

local function swiglu(x, gate, up, down)
    return op.matmul(op.swiglu(op.matmul(x, gate, T_B), op.matmul(x, up, T_B)), down, T_B)
end

-- y token by token, expert by expert: no groups.
local function naive(live, top_k, renormalise)
    local w, hidden, width = weights_of(live), 6, 7
    local x = tensor.from(list_of(live.x), { 16, hidden })
    local weights, chosen = op.moe_route(op.matmul(x, w.router, T_B),
        { top_k = top_k, renormalise = renormalise })
    local y = {}
    for i = 0, 15 do
        local row = numbers.rows(x, i, 1)
        local out = tensor.zeros { 1, hidden }
        for j = 1, top_k do
            local e = chosen[i * top_k + j]
            local h = swiglu(row, numbers.rows(w.expert_gate_proj, e * width, width),
                numbers.rows(w.expert_up_proj, e * width, width),
                numbers.rows(w.expert_down_proj, e * hidden, hidden))
            out = op.axpby(h, out, { alpha = weights:totable()[i * top_k + j] })
        end
        if w.shared_expert_gate then
            local gate = op.matmul(row, w.shared_expert_gate, T_B):totable()[1]
            out = op.axpby(swiglu(row, w.shared_gate_proj, w.shared_up_proj,
                w.shared_down_proj), out, { alpha = 1 / (1 + math.exp(-gate)) })
        end
        for _, value in ipairs(out:totable()) do
            y[#y + 1] = (i == 7 or i == 8) and 0 or value -- padding
        end
    end
    return y
end

describe("a mixture of experts", function()
    for _, case in ipairs { { "as Qwen3-Next", {} }, { "one choice", { top_k = 1 } },
        { "all experts", { top_k = 5 } }, { "not renormalised", { renormalise = false } },
        { "no shared expert", { shared_width = 0 } } } do
        it("is the sum of its experts, token by token: " .. case[1], function()
            local live = layers.live("moe", STREAM, case[2])
            layers.forward(live)
            numbers.close("y", list_of(live.y), naive(live, case[2].top_k or 2,
                case[2].renormalise), 1e-13)
            assert.is_true(layers.moe_report(live).margin > 1e-4)
        end)
    end

    it("routes every real token once a choice, and no padding", function()
        local live = layers.live("moe", STREAM)
        layers.forward(live)
        local tokens, report = tokens_of(live)
        assert.equal(2 * REAL, sum(tokens))
        assert.equal(5, #tokens)
        assert.is_true(report.aux_loss > 0)
    end)

    it("shows a fault that routes padding: counts, outputs and the balance", function()
        local live = layers.live("moe", STREAM)
        layers.forward(live)
        local right = list_of(live.y)
        local aux = tonumber(layers.moe_report(live).aux_loss)
        C.cpl_faults_here().route_padding = 1
        layers.forward(live)
        C.cpl_faults_here().route_padding = 0
        assert.equal(2 * 16, sum(tokens_of(live)))
        assert.not_equal(aux, tonumber(layers.moe_report(live).aux_loss))
        local wrong = list_of(live.y)
        for i = 1, #wrong do
            local is_padding = i > 7 * 6 and i <= 9 * 6
            assert.equal(not is_padding, wrong[i] == right[i])
        end
    end)

    it("adds the loss of Switch Transformers: E sum f P, by hand", function()
        local live = layers.live("moe", STREAM, { aux_coefficient = 0.25 })
        layers.forward(live)
        local x = tensor.from(list_of(live.x), { 16, 6 })
        local _, _, probs = op.moe_route(op.matmul(x, weights_of(live).router, T_B),
            { top_k = 2, spans = { { 0, 7 }, { 9, 7 } } })
        local tokens, expected = tokens_of(live), 0
        for e = 1, 5 do
            local p = 0
            for i = 0, 15 do p = p + probs:totable()[i * 5 + e] end
            expected = expected + 0.25 * 5 * (tokens[e] / REAL) * (p / REAL)
        end
        local aux = layers.moe_report(live).aux_loss
        assert.is_true(math.abs(aux - expected) < 1e-13)
    end)

    it("is balanced by that loss: coefficient * k where all experts get the same", function()
        local live = layers.live("moe", STREAM, { aux_coefficient = 1 })
        for _, entry in ipairs(live.parameters.list) do
            if entry.name == "moe.router" then C.cpl_tensor_fill(entry.weight, 0) end
        end
        layers.forward(live)
        -- Equal logits: everybody chooses experts 0 and 1, probs are 1/5 each.
        assert.same({ REAL, REAL, 0, 0, 0 }, (tokens_of(live)))
        assert.is_true(math.abs(layers.moe_report(live).aux_loss - 2) < 1e-13)
        assert.equal(0, layers.moe_report(live).margin)
    end)

    it("runs with no rows, with padding alone, and with experts that nobody chooses", function()
        for _, stream in ipairs { { lengths = {} }, { lengths = { 4 }, real = { 0 } },
            { lengths = { 1 } } } do
            local live = layers.live("moe", stream)
            layers.forward(live)
            layers.backward(live)
            local real = stream.real and 0 or #stream.lengths
            assert.equal(2 * real, sum(tokens_of(live)))
            for _, x in ipairs(list_of(live.parameters.grads)) do
                assert.is_true(real > 0 and x == x or x == 0)
            end
        end
    end)

    it("reads nothing of an earlier step, nor what it never wrote", function()
        local live = layers.live("moe", STREAM)
        layers.forward(live)
        layers.backward(live)
        local y, grads, dx = list_of(live.y), list_of(live.parameters.grads), list_of(live.dx)
        -- Another x, with other choices, in between; and outputs that start as NaN.
        local x = list_of(live.x)
        for i = 1, #x do ffi.cast("double *", live.x.data)[i - 1] = -x[i] end
        layers.forward(live)
        layers.backward(live)
        assert.not_same(y, list_of(live.y))
        for i = 1, #x do ffi.cast("double *", live.x.data)[i - 1] = x[i] end
        C.cpl_tensor_fill(live.y, 0 / 0)
        C.cpl_tensor_fill(live.dx, 0 / 0)
        layers.forward(live)
        layers.backward(live)
        assert.same(y, list_of(live.y))
        assert.same(grads, list_of(live.parameters.grads))
        assert.same(dx, list_of(live.dx))
    end)

    it("allocates nothing in a step", function()
        local live = layers.live("moe", STREAM)
        layers.forward(live)
        layers.backward(live)
        local before, after = ffi.new "cpl_memory_stats", ffi.new "cpl_memory_stats"
        C.cpl_memory(before)
        layers.forward(live)
        layers.backward(live)
        C.cpl_memory(after)
        assert.equal(before.n_allocations, after.n_allocations)
    end)

    it("gives back all memory where one allocation of its preparation fails", function()
        local live, stats = layers.live("moe", STREAM), ffi.new "cpl_memory_stats"
        local layer = layers.create "moe"
        local function blocks()
            C.cpl_memory(stats)
            return tonumber(stats.live_blocks)
        end
        collectgarbage()
        collectgarbage "stop" -- what other specs left must not be freed in between
        finally(function() collectgarbage "restart" end)
        local before, failures = blocks(), 0
        while true do
            C.cpl_memory_fail_after(failures)
            local status = C.cpl_layer_prepare(layer, "moe", live.place)
            C.cpl_memory_fail_after(-1)
            if status == C.CPL_OK then break end
            assert.equal(C.CPL_MEMORY, status)
            assert.equal(before, blocks())
            failures = failures + 1
        end
        assert.is_true(failures > 15)
    end)

    it("refuses sizes that break a rule, and backward without dx", function()
        local function refused(message, changes)
            assert.has_error(function() layers.create("moe", changes) end, message)
        end
        refused("moe: hidden, experts and width must be positive (got 6, 5, 0)", { width = 0 })
        refused("moe: top_k 6 is not in 1 to 5 experts", { top_k = 6 })
        refused("moe: top_k 0 is not in 1 to 5 experts", { top_k = 0 })
        refused("moe: shared_width -1 and aux_coefficient 0.5 must not be negative",
            { shared_width = -1 })
        refused("moe: shared_width 4 and aux_coefficient nan must not be negative",
            { aux_coefficient = math.abs(0 / 0) })
        local live = layers.live("moe", STREAM)
        assert.equal(C.CPL_INVALID, C.cpl_layer_moe_report(live.layer,
            ffi.new "cpl_moe_report"))
        layers.forward(live)
        assert.equal(C.CPL_INVALID, C.cpl_layer_backward(live.layer, live.dy, nil))
        assert.equal("moe: backward needs dx", ffi.string(C.cpl_last_error()))
        local mlp = layers.live("mlp", STREAM)
        assert.equal(C.CPL_INVALID, C.cpl_layer_moe_report(mlp.layer, ffi.new "cpl_moe_report"))
    end)
end)
