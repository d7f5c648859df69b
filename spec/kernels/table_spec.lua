-- The table "cpu" against the table "ref", entry by entry, on raw memory: strides wider than the
-- rows, poisoned outputs and workspaces, guards between rows, widths around the vector and tile
-- sizes, and a prime.
--
-- Bounds are shares of the largest number: f64 1e-13 (450 roundings; sums here have up to 260
-- terms, and the order of a sum differs between the tables), f32 2e-6 (34 roundings; the inputs'
-- own rounding included). Longer chains say their own.
local raw = require "spec.kernels.raw"
local numbers = require "spec.kernels.numbers"
local clib = require "clib"
local C, ffi = clib.C, clib.ffi

local SIZES = { 1, 15, 31, 63, 64, 65, 127, 130 }
local F64, F32 = 1e-13, 2e-6

local function for_sizes(name, make, bound, bound_f32)
    for _, size in ipairs(SIZES) do
        it(("%s: size %d"):format(name, size), function()
            raw.compare(make(size), bound or F64, bound_f32 or F32)
        end)
    end
end

describe("kernels_for", function()
    it("has cpu f32, cpu f64 and ref f64", function()
        for _, case in ipairs { { "cpu", "f32" }, { "cpu", "f64" }, { "ref", "f64" } } do
            local kernels = C.cpl_kernels_for(case[1], clib.dtypes[case[2]])
            assert.equal(case[1], ffi.string(kernels.device))
            assert.equal(clib.dtypes[case[2]], tonumber(kernels.dtype))
        end
    end)

    it("names what it lacks", function()
        for _, case in ipairs { { "ref", "f32" }, { "cpu", "i32" }, { "gpu", "f64" } } do
            assert.is_true(C.cpl_kernels_for(case[1], clib.dtypes[case[2]]) == nil)
            assert.equal(("kernels: no table for device '%s' and dtype %s (there are cpu f64, "
                .. "cpu f32, ref f64)"):format(case[1], case[2]), ffi.string(C.cpl_last_error()))
        end
    end)
end)

-- eps is large, so that a norm of one dim has a gradient that is no mere rest of a cancellation.
local EPS = 0.3

describe("rms_norm", function()
    for offset = 0, 1 do
        local function scalars(d)
            return { n_rows = 5, width = d, eps = EPS, weight_offset = offset }
        end
        for_sizes("forward, offset " .. offset, function(d)
            return { op = "rms_norm", scalars = scalars(d),
                arrays = { x = { rows = 5, width = d, stride = d + 3 },
                    weight = { rows = 1, width = d } },
                outputs = { y = { rows = 5, width = d, stride = d + 1 } } }
        end)
        for_sizes("backward, offset " .. offset, function(d)
            return { op = "rms_norm_backward", scalars = scalars(d),
                arrays = { x = { rows = 5, width = d, stride = d + 3 },
                    dy = { rows = 5, width = d, stride = d + 2 },
                    weight = { rows = 1, width = d } },
                outputs = { dx = { rows = 5, width = d, stride = d + 4 },
                    grad_weight = { rows = 1, width = d, grad = true } } }
        end)
    end
end)

describe("gated_rms_norm", function()
    -- Two tokens of three heads: z has a token stride.
    local function call(op, d, arrays, outputs)
        arrays.x = { rows = 6, width = d }
        arrays.z = { rows = 2, width = 3 * d, stride = 3 * d + 5, low = -3, high = 3 }
        arrays.weight = { rows = 1, width = d }
        return { op = op, arrays = arrays, outputs = outputs,
            scalars = { n_rows = 6, width = d, heads = 3, eps = EPS } }
    end
    for_sizes("forward", function(d)
        return call("gated_rms_norm", d, {}, { y = { rows = 6, width = d } })
    end)
    for_sizes("backward", function(d)
        return call("gated_rms_norm_backward", d, { dy = { rows = 6, width = d } }, {
            dx = { rows = 6, width = d },
            dz = { rows = 2, width = 3 * d, stride = 3 * d + 5 },
            grad_weight = { rows = 1, width = d, grad = true } })
    end)
end)

describe("l2norm", function()
    local function call(op, d, arrays, outputs)
        arrays.x = { rows = 4, width = 2 * d, stride = 2 * d + 3 }
        return { op = op, arrays = arrays, outputs = outputs,
            scalars = { n_rows = 4, heads = 2, width = d, eps = EPS } }
    end
    for_sizes("forward", function(d)
        return call("l2norm", d, {}, { y = { rows = 4, width = 2 * d, stride = 2 * d + 1 } })
    end)
    for_sizes("backward", function(d)
        return call("l2norm_backward", d,
            { dy = { rows = 4, width = 2 * d, stride = 2 * d + 2 } },
            { dx = { rows = 4, width = 2 * d, stride = 2 * d + 5 } })
    end)
end)

describe("rope", function()
    for _, inverse in ipairs { false, true } do
        -- rotary_dim 128 + 2: more frequencies than are computed at a time. An angle of 262143 in
        -- double is known to 3e-11.
        for_sizes("inverse " .. tostring(inverse), function(half)
            local d = 2 * half + 3
            return { op = "rope",
                scalars = { n_rows = 4, heads = 2, width = d, rotary_dim = 2 * half, theta = 1e4,
                    inverse = inverse },
                integers = { positions = { ctype = "int64_t", 0, 1, 77, 262143 } },
                arrays = { x = { rows = 4, width = 2 * d, stride = 2 * d + 1 } },
                outputs = { y = { rows = 4, width = 2 * d, stride = 2 * d + 2 } } }
        end, 1e-10)
    end
end)

describe("gates", function()
    local function call(op, h, arrays, outputs)
        arrays.a = { rows = 7, width = h, stride = h + 2, low = -9, high = 9 }
        arrays.b = { rows = 7, width = h, stride = h + 1, low = -9, high = 9 }
        arrays.a_log = { rows = 1, width = h, low = -6, high = 2 }
        arrays.dt_bias = { rows = 1, width = h }
        return { op = op, arrays = arrays, outputs = outputs,
            scalars = { n_rows = 7, heads = h } }
    end
    for_sizes("forward", function(h)
        return call("gates", h, {},
            { g = { rows = 7, width = h }, beta = { rows = 7, width = h } })
    end)
    for_sizes("backward", function(h)
        return call("gates_backward", h,
            { dg = { rows = 7, width = h }, dbeta = { rows = 7, width = h } },
            { da = { rows = 7, width = h, stride = h + 3 },
                db = { rows = 7, width = h, stride = h + 4 },
                grad_a_log = { rows = 1, width = h, grad = true },
                grad_dt_bias = { rows = 1, width = h, grad = true } })
    end)
end)

describe("conv1d", function()
    -- Two sequences with gaps before, between and after; the second is shorter than the taps.
    local SPANS = { { 1, 35 }, { 40, 2 } }
    local function call(op, c, w, arrays, outputs, silu)
        arrays.x = { rows = 45, width = c, stride = c + 2 }
        arrays.weight = { rows = 1, width = c * w }
        return { op = op, arrays = arrays, outputs = outputs, spans = SPANS,
            scalars = { n_rows = 45, channels = c, width = w, silu = silu } }
    end
    for _, w in ipairs { 1, 4 } do
        for _, silu in ipairs { false, true } do
            local name = (", %d taps, silu %s"):format(w, tostring(silu))
            for_sizes("forward" .. name, function(c)
                return call("conv1d", c, w, { bias = { rows = 1, width = c },
                    halo = { rows = 2 * (w - 1), width = c } },
                    { y = { rows = 45, width = c } }, silu)
            end)
            for_sizes("backward" .. name, function(c)
                return call("conv1d_backward", c, w, { dy = { rows = 45, width = c },
                    bias = { rows = 1, width = c }, halo = { rows = 2 * (w - 1), width = c } }, {
                    dx = { rows = 45, width = c, stride = c + 3 },
                    dhalo = { rows = 2 * (w - 1), width = c },
                    grad_weight = { rows = 1, width = c * w, grad = true },
                    grad_bias = { rows = 1, width = c, grad = true } }, silu)
            end)
        end
    end
    for_sizes("without bias, halo and gradients of parameters", function(c)
        return call("conv1d_backward", c, 4, { dy = { rows = 45, width = c } },
            { dx = { rows = 45, width = c, stride = c + 3 } }, true)
    end)
end)

describe("merge", function()
    for_sizes("of two", function(v)
        local results = { o_b = { rows = 6, width = v }, lse_b = { rows = 6, width = 1 } }
        return { op = "merge", arrays = results, scalars = { n_rows = 2, heads = 3, width = v },
            outputs = { o = { rows = 6, width = v, grad = true },
                lse = { rows = 6, width = 1, grad = true } } }
    end)
    local function backward(v)
        local rows, sums = { rows = 6, width = v }, { rows = 6, width = 1, low = -3, high = 3 }
        return { op = "merge_backward", scalars = { n_rows = 2, heads = 3, width = v },
            arrays = { o = rows, o_b = rows, d_o = rows, lse = sums, lse_b = sums, d_lse = sums },
            outputs = { d_o_a = rows, d_o_b = rows, d_lse_a = sums, d_lse_b = sums } }
    end
    for_sizes("backward", backward)
    it("does without a gradient of lse", function()
        local c = backward(7)
        c.arrays.d_lse = nil
        raw.compare(c, F64, F32)
    end)
end)

describe("sigmoid_gate", function()
    -- The gate stands beside each head: strides of 2 d + 1 between heads.
    local function call(op, d, arrays, outputs)
        local head = 2 * d + 1
        arrays.x = { rows = 6, width = d }
        arrays.gate = { rows = 6, width = d, stride = head, low = -5, high = 5 }
        return { op = op, arrays = arrays, outputs = outputs,
            scalars = { n_rows = 2, heads = 3, width = d, gate_stride = 3 * head,
                gate_head_stride = head } }
    end
    for_sizes("forward", function(d)
        return call("sigmoid_gate", d, {}, { y = { rows = 6, width = d } })
    end)
    for_sizes("backward", function(d)
        return call("sigmoid_gate_backward", d, { dy = { rows = 6, width = d } },
            { dx = { rows = 6, width = d }, dgate = { rows = 6, width = d, stride = 2 * d + 1 } })
    end)
end)

describe("swiglu", function()
    local function call(op, f, arrays, outputs)
        arrays.gate = { rows = 3, width = f, stride = 2 * f + 1, low = -6, high = 6 }
        arrays.up = { rows = 3, width = f, stride = 2 * f + 1 }
        return { op = op, arrays = arrays, outputs = outputs,
            scalars = { n_rows = 3, width = f, stride = 2 * f + 1 } }
    end
    for_sizes("forward", function(f)
        return call("swiglu", f, {}, { y = { rows = 3, width = f } })
    end)
    for_sizes("backward", function(f)
        return call("swiglu_backward", f, { dy = { rows = 3, width = f } },
            { dgate = { rows = 3, width = f, stride = 2 * f + 1 },
                dup = { rows = 3, width = f, stride = 2 * f + 1 } })
    end)
end)

describe("embedding", function()
    local tokens = { ctype = "int32_t", 2, -1, 0, 2, 4 }
    for_sizes("forward", function(d)
        return { op = "embedding", scalars = { n_rows = 5, width = d },
            integers = { tokens = tokens }, arrays = { table = { rows = 5, width = d } },
            outputs = { y = { rows = 5, width = d } } }
    end, 0, 1e-7)
    for_sizes("backward", function(d)
        return { op = "embedding_backward", scalars = { n_rows = 5, width = d },
            integers = { tokens = tokens }, arrays = { dy = { rows = 5, width = d } },
            outputs = { grad_table = { rows = 5, width = d, grad = true } } }
    end)
end)

describe("cross_entropy", function()
    for_sizes("gradient", function(vocab)
        return { op = "cross_entropy",
            scalars = { n_rows = 4, vocab = vocab, grad_scale = 0.25,
                loss_sum = ffi.new "double[1]" },
            integers = { labels = { ctype = "int32_t", vocab - 1, -1, 0, vocab - 1 } },
            arrays = { logits = { rows = 4, width = vocab, low = -20, high = 20 } },
            outputs = { dlogits = { rows = 4, width = vocab } } }
    end, 1e-12, 1e-5) -- logits of 20 are known to 20 roundings

    for_sizes("gradient, scaled by a number in memory", function(vocab)
        return { op = "cross_entropy",
            scalars = { n_rows = 4, vocab = vocab, grad_scale = 0.25,
                loss_sum = ffi.new "double[1]" },
            integers = { labels = { ctype = "int32_t", vocab - 1, -1, 0, vocab - 1 },
                scale = { ctype = "double", -3 } },
            arrays = { logits = { rows = 4, width = vocab, low = -20, high = 20 } },
            outputs = { dlogits = { rows = 4, width = vocab } } }
    end, 1e-12, 1e-5)

    it("sums the loss, also without a gradient", function()
        for _, size in ipairs(SIZES) do
            local loss = {}
            for i, case in ipairs { { "ref", "f64" }, { "cpu", "f64" }, { "cpu", "f32" } } do
                local sum = ffi.new "double[1]"
                raw.run({ op = "cross_entropy", outputs = {},
                    scalars = { n_rows = 3, vocab = size, grad_scale = 1, loss_sum = sum },
                    integers = { labels = { ctype = "int32_t", 0, -5, size - 1 } },
                    arrays = { logits = { rows = 3, width = size } } }, case[1], case[2])
                loss[i] = sum[0]
            end
            assert.is_true(math.abs(loss[2] - loss[1]) <= 1e-13 * size)
            assert.is_true(math.abs(loss[3] - loss[1]) <= 1e-6 * size)
        end
    end)
end)

describe("matmul", function()
    for _, ta in ipairs { false, true } do
        for _, tb in ipairs { false, true } do
            for_sizes(("transposed %s %s"):format(tostring(ta), tostring(tb)), function(k)
                local m, n = 7, 9
                local a = { rows = ta and k or m, width = ta and m or k }
                local b = { rows = tb and n or k, width = tb and k or n }
                a.stride, b.stride = a.width + 2, b.width + 3
                return { op = "matmul", arrays = { a = a, b = b },
                    scalars = { m = m, n = n, k = k, lda = a.stride, ldb = b.stride, ldc = n + 1,
                        transpose_a = ta, transpose_b = tb, alpha = 0.5, beta = 0 },
                    outputs = { c = { rows = m, width = n, stride = n + 1 } } }
            end)
        end
    end
    for_sizes("added to what is there", function(k)
        return { op = "matmul",
            arrays = { a = { rows = 3, width = k }, b = { rows = k, width = 4 } },
            scalars = { m = 3, n = 4, k = k, lda = k, ldb = 4, ldc = 4, alpha = 1, beta = -2 },
            outputs = { c = { rows = 3, width = 4, grad = true } } }
    end)
end)

describe("axpby", function()
    for_sizes("written", function(n)
        return { op = "axpby", scalars = { n = n, alpha = -3, beta = 0 },
            arrays = { x = { rows = 1, width = n } }, outputs = { y = { rows = 1, width = n } } }
    end)
    for_sizes("added", function(n)
        return { op = "axpby", scalars = { n = n, alpha = -3, beta = 0.25 },
            arrays = { x = { rows = 1, width = n } },
            outputs = { y = { rows = 1, width = n, grad = true } } }
    end)
end)

describe("attention", function()
    local D, V, KV, GROUP = 5, 3, 2, 3
    -- Queries and keys of two sequences with gaps; the first sees 4 keys before its own.
    local function call(op, t, arrays, outputs)
        local heads, n_q, n_k = KV * GROUP, t + 12, t + 16
        arrays.q = { rows = n_q, width = heads * D, stride = heads * D + 1 }
        arrays.k = { rows = n_k, width = KV * D, stride = KV * D + 2, low = -2, high = 2 }
        arrays.v = { rows = n_k, width = KV * V, stride = KV * V + 3 }
        return { op = op, parts = { "forward" }, arrays = arrays, outputs = outputs,
            workspace = true,
            blocks = { { q_slot = 1, n_queries = t, kv_slot = 2, n_keys = t + 4, n_before = 4 },
                { q_slot = t + 3, n_queries = 8, kv_slot = t + 7, n_keys = 8 } },
            scalars = { n_queries = n_q, n_keys = n_k, heads = heads, kv_heads = KV, key_dim = D,
                value_dim = V, scale = 0.7 } }
    end
    local function forward(t)
        local heads = KV * GROUP
        local c = call("attention", t, {}, { o = { rows = t + 12, width = heads * V },
            lse = { rows = t + 12, width = heads } })
        c.parts = nil
        return c
    end
    -- Beyond one tile of keys (256) and several of queries.
    local sizes = { 1, 15, 64, 85, 86, 127, 257, 600 }
    for _, t in ipairs(sizes) do
        it("forward: size " .. t, function() raw.compare(forward(t), F64, F32) end)

        it("backward: size " .. t, function()
            local heads = KV * GROUP
            -- Any o and lse will do: large enough an lse, so that weights are below 1.
            raw.compare(call("attention_backward", t, {
                d_o = { rows = t + 12, width = heads * V },
                o = { rows = t + 12, width = heads * V },
                lse = { rows = t + 12, width = heads, low = 5, high = 6 } }, {
                dq = { rows = t + 12, width = heads * D, stride = heads * D + 2 },
                dk = { rows = t + 16, width = KV * D, stride = KV * D + 1 },
                dv = { rows = t + 16, width = KV * V, stride = KV * V + 1 } }),
                1e-12, 1e-5) -- sums over up to 600 queries
        end)
    end

    it("leaves -inf and 0 where no query is", function()
        local c = forward(3)
        for _, device in ipairs { "ref", "cpu" } do
            local r = raw.run(c, device, "f64")
            for i = 1, KV * GROUP do assert.equal(-math.huge, r.lse[i]) end
            for i = 1, KV * GROUP * V do assert.equal(0, r.o[i]) end
        end
    end)

    it("sees no key where n_before says so", function()
        local c = forward(3)
        c.blocks[1].n_before = -2 -- the first query sees keys 0 .. -2, the second 0 .. -1
        raw.compare(c, F64, F32)
        local r = raw.run(c, "cpu", "f64")
        assert.equal(-math.huge, r.lse[KV * GROUP * 2 + 1])
        assert.is_true(r.lse[KV * GROUP * 3 + 1] > -math.huge)
    end)
end)

describe("gdn", function()
    local K, V, HK, HV = 5, 3, 2, 6
    -- Three spans with gaps, one of them empty, of which the first has t rows.
    local function call(op, t, chunk, arrays, outputs, g_low)
        local n = t + 13
        arrays.q = { rows = n, width = HK * K, stride = HK * K + 1 }
        arrays.k = { rows = n, width = HK * K, stride = HK * K + 2, low = -0.4, high = 0.4 }
        arrays.v = { rows = n, width = HV * V, stride = HV * V + 3 }
        arrays.g = { rows = n, width = HV, low = g_low or -0.4, high = 0 }
        arrays.beta = { rows = n, width = HV, low = 0, high = 1 }
        return { op = op, parts = { op == "gdn_backward" and "forward" or "gdn" },
            arrays = arrays, outputs = outputs, workspace = true,
            spans = { { 2, t }, { t + 3, 0 }, { t + 4, 7 } },
            scalars = { n_rows = n, key_heads = HK, value_heads = HV, key_dim = K, value_dim = V,
                chunk = chunk, scale = 0.4 } }
    end
    local function state()
        return { rows = 3 * HV, width = K * V }
    end
    local function forward(t, chunk, g_low)
        local c = call("gdn", t, chunk, { state_in = state() },
            { o = { rows = t + 13, width = HV * V }, state_out = state() }, g_low)
        c.parts = nil
        return c
    end
    local function backward(t, chunk, g_low)
        return call("gdn_backward", t, chunk, { state_in = state(), d_state_out = state(),
            d_o = { rows = t + 13, width = HV * V } }, {
            dq = { rows = t + 13, width = HK * K, stride = HK * K + 2 },
            dk = { rows = t + 13, width = HK * K, stride = HK * K + 4 },
            dv = { rows = t + 13, width = HV * V, stride = HV * V + 1 },
            dg = { rows = t + 13, width = HV }, dbeta = { rows = t + 13, width = HV },
            d_state_in = state() }, g_low)
    end
    local function summary(t, chunk)
        return call("gdn_summary", t, chunk, {},
            { transition = { rows = 3 * HV, width = K * K }, offset = state() })
    end
    local function summary_backward(t, chunk)
        return call("gdn_summary_backward", t, chunk,
            { d_o = { rows = t + 13, width = HV * V } }, { offset = state() })
    end

    for _, chunk in ipairs { 1, 7, 16, 64 } do
        for _, t in ipairs(SIZES) do
            it(("chunk %d, size %d"):format(chunk, t), function()
                raw.compare(forward(t, chunk), F64, F32)
                raw.compare(backward(t, chunk), F64, F32)
                raw.compare(summary(t, chunk), F64, F32)
                raw.compare(summary_backward(t, chunk), F64, F32)
            end)
        end
    end

    it("agrees where heads forget at once and where they do not", function()
        for _, g_low in ipairs { -1e4, -50, -1e-6, 0 } do
            raw.compare(forward(130, 64, g_low), F64, F32)
            raw.compare(backward(130, 64, g_low), F64, F32)
        end
    end)

    it("does without states, and without one half of the summary", function()
        local c = forward(65, 64)
        c.arrays.state_in, c.outputs.state_out = nil, nil
        raw.compare(c, F64, F32)
        c = backward(65, 64)
        c.arrays.state_in, c.arrays.d_state_out, c.outputs.d_state_in = nil, nil, nil
        raw.compare(c, F64, F32)
        for _, name in ipairs { "transition", "offset" } do
            c = summary(65, 64)
            c.arrays.q, c.outputs[name] = nil, nil
            raw.compare(c, F64, F32)
        end
    end)

    it("gives the same bits every time", function()
        local first = raw.run(backward(130, 64), "cpu", "f32")
        for _ = 1, 20 do
            local again = raw.run(backward(130, 64), "cpu", "f32")
            for name, list in pairs(first) do assert.same(list, again[name]) end
        end
    end)
end)

describe("gdn_carry", function()
    -- Five states. Of six entries two do nothing, one goes on from nothing, two share a summary.
    local HEADS, V = 2, 7
    for _, transpose in ipairs { false, true } do
        for_sizes("transposed " .. tostring(transpose), function(k)
            local function states(n, width) return { rows = n * HEADS, width = k * width } end
            local before, out = states(5, V), states(5, V)
            out.grad = true -- what no entry names stays
            return { op = "gdn_carry",
                scalars = { n = 6, heads = HEADS, key_dim = k, value_dim = V,
                    transpose = transpose },
                integers = { span = { ctype = "int64_t", 3, -1, 0, 4, -1, 2 },
                    transition_of = { ctype = "int64_t", 1, 0, -1, 0, -1, 1 },
                    offset_of = { ctype = "int64_t", 0, 2, 1, 2, 0, 0 } },
                arrays = { transition = states(2, k), offset = states(3, V), ["in"] = before },
                outputs = { out = out } }
        end)
    end
end)

describe("the comparison", function()
    it("finds a kernel that reads or writes another row", function()
        local function call(stride)
            return { op = "l2norm",
                scalars = { n_rows = 4, heads = 1, width = 5, eps = EPS, x_stride = stride,
                    y_stride = 5 },
                arrays = { x = { rows = 4, width = 5, stride = 6 } },
                outputs = { y = { rows = 4, width = 5 } } }
        end
        local right = raw.run(call(6), "cpu", "f64")
        local wrong = raw.run(call(5), "cpu", "f64")
        numbers.far("a guard was read", wrong.y, right.y, 1)
        local narrow = call(6)
        narrow.outputs.y = { rows = 4, width = 4, stride = 5 }
        assert.has_error(function() raw.run(narrow, "cpu", "f64") end,
            "y: the guard at 4 was overwritten")
    end)
end)
