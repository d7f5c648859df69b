-- Causal attention and the merge of partial results as wholes; entry by entry they are compared
-- in table_spec.
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local DEVICES = { "ref", "cpu" }
local close, far = numbers.close, numbers.far

local function inputs(T, Hq, Hkv, D, V)
    local function make(j, shape) return numbers.tensor(11, j, shape, -2, 2) end
    return make(0, { T, Hq, D }), make(1, { T, Hkv, D }), make(2, { T, Hkv, V }),
        make(3, { T, Hq, V })
end

-- Rows `first` .. of a list of rows halved.
local function halve(t, first, n)
    local shape, list = t:shape(), t:totable()
    local width = #list / shape[1]
    for i = first * width + 1, (first + n) * width do list[i] = list[i] / 2 end
    return tensor.from(list, shape)
end

describe("gqa", function()
    it("is indifferent to how keys and queries are tiled", function()
        for _, T in ipairs { 1, 63, 64, 65, 130, 257, 300 } do
            local q, k, v, d_o = inputs(T, 4, 2, 6, 5)
            local o, lse = op.gqa(q, k, v, { device = "ref" })
            local o_cpu, lse_cpu = op.gqa(q, k, v)
            close("o", o_cpu, o, 1e-13)
            close("lse", lse_cpu, lse, 1e-13)
            local expected = { op.gqa_backward(q, k, v, o, lse, d_o, { device = "ref" }) }
            local results = { op.gqa_backward(q, k, v, o, lse, d_o) }
            for i = T == 1 and 3 or 1, 3 do -- of one key only dv is more than a rounding error
                close("gradient " .. i, results[i], expected[i], 1e-13)
            end
        end
    end)

    it("lets query head h use kv head h div (Hq / Hkv)", function()
        for _, device in ipairs(DEVICES) do
            local q, k, v = inputs(20, 6, 2, 4, 3)
            local o = op.gqa(q, k, v, { device = device })
            local function heads(t, map)
                local shape, list, result = t:shape(), t:totable(), {}
                for token = 0, 19 do
                    for h = 0, 5 do
                        for i = 1, shape[3] do
                            result[#result + 1] = list[(token * 2 + map(h)) * shape[3] + i]
                        end
                    end
                end
                return tensor.from(result, { 20, 6, shape[3] })
            end
            local function run(map)
                return (op.gqa(q, heads(k, map), heads(v, map), { device = device }))
            end
            close("repeated", run(function(h) return math.floor(h / 3) end), o, 1e-14)
            far("tiled", run(function(h) return h % 2 end), o, 0.1)
        end
    end)

    it("keeps documents apart, and the future out: exactly", function()
        for _, device in ipairs(DEVICES) do
            local q, k, v, d_o = inputs(33, 4, 2, 4, 3)
            local options = { cu_seqlens = { 0, 7, 7, 20, 33 }, device = device }
            local o, lse = op.gqa(q, k, v, options)
            local dq, dk, dv = op.gqa_backward(q, k, v, o, lse, d_o, options)
            -- Change the end of the third document.
            local q_2, k_2, v_2 = halve(q, 15, 5), halve(k, 15, 5), halve(v, 15, 5)
            local o_2, lse_2 = op.gqa(q_2, k_2, v_2, options)
            local dq_2, dk_2, dv_2 = op.gqa_backward(q_2, k_2, v_2, o_2, lse_2, d_o, options)
            for _, r in ipairs { { 0, 15 }, { 20, 13 } } do
                close("o", numbers.rows(o_2, r[1], r[2]), numbers.rows(o, r[1], r[2]), 0)
            end
            far("the changed rows", numbers.rows(o_2, 15, 5), numbers.rows(o, 15, 5), 0.01)
            for _, pair in ipairs { { dq, dq_2 }, { dk, dk_2 }, { dv, dv_2 } } do
                for _, rows in ipairs { { 0, 7 }, { 20, 13 } } do
                    close("gradient", numbers.rows(pair[2], rows[1], rows[2]),
                        numbers.rows(pair[1], rows[1], rows[2]), 0)
                end
            end
        end
    end)

    -- RFA#78: the longest length was that of another slice. There is none here: boundaries say all.
    it("[report 59] takes lengths that grow and that shrink", function()
        local q, k, v, d_o = inputs(30, 4, 2, 4, 3)
        for _, cu in ipairs { { 0, 1, 4, 11, 30 }, { 0, 19, 26, 29, 30 }, { 0, 2, 28, 30 } } do
            local options = { cu_seqlens = cu }
            local o, lse = op.gqa(q, k, v, options)
            local packed = { op.gqa_backward(q, k, v, o, lse, d_o, options) }
            for i = 1, #cu - 1 do
                local first, n = cu[i], cu[i + 1] - cu[i]
                local function rows(t) return numbers.rows(t, first, n) end
                local o_i, lse_i = op.gqa(rows(q), rows(k), rows(v))
                close("o", o_i, rows(o), 1e-14)
                close("lse", lse_i, rows(lse), 1e-14)
                local list = { op.gqa_backward(rows(q), rows(k), rows(v), o_i, lse_i, rows(d_o)) }
                for j = n == 1 and 3 or 1, 3 do
                    close("gradient " .. j, list[j], rows(packed[j]), 1e-13)
                end
            end
            -- Boundaries of the same lengths in the other order are others.
            local turned = {}
            for i = 1, #cu do turned[i] = 30 - cu[#cu + 1 - i] end
            if turned[2] ~= cu[2] then
                far("o", op.gqa(q, k, v, { cu_seqlens = turned }), o, 1e-3)
            end
        end
    end)

    it("stands scores of any size", function()
        local q, k, v = inputs(100, 2, 1, 4, 3)
        for _, device in ipairs(DEVICES) do
            for _, scale in ipairs { 1e4, -1e4, 0 } do
                local o, lse = op.gqa(q, k, v, { scale = scale, device = device })
                numbers.finite("o", o)
                numbers.finite("lse", lse)
            end
        end
    end)

    it("gives NaN for NaN", function()
        for _, device in ipairs(DEVICES) do
            local q, k, v = inputs(10, 1, 1, 2, 2)
            local list = k:totable()
            list[2 * 4 + 1] = 0 / 0 -- key 4
            local o, lse = op.gqa(q, tensor.from(list, { 10, 1, 2 }), v, { device = device })
            o, lse = o:totable(), lse:totable()
            for i = 1, 10 do assert.equal(i > 4, lse[i] ~= lse[i]) end
            for i = 9, 20 do assert.is_true(o[i] ~= o[i]) end
        end
    end)

    it("has a smooth row sum: equal values come back", function()
        for _, dtype in ipairs { "f64", "f32" } do
            local q = numbers.tensor(1, 0, { 300, 1, 8 }, -3, 3, dtype)
            local v = tensor.zeros({ 300, 1, 2 }, dtype):fill(3)
            close("o", op.gqa(q, q, v), v, dtype == "f64" and 1e-14 or 1e-6)
        end
    end)
end)

-- Attention over keys first .. first + n - 1 without a mask, by hand.
local function part(q, k, v, first, n, D, V)
    local T = q:shape()[1]
    q, k, v = q:totable(), k:totable(), v:totable()
    local o, lse = {}, {}
    for t = 0, T - 1 do
        local sum, out = 0, {}
        for j = first, first + n - 1 do
            local score = 0
            for i = 1, D do score = score + q[t * D + i] * k[j * D + i] end
            local weight = math.exp(score)
            sum = sum + weight
            for i = 1, V do out[i] = (out[i] or 0) + weight * v[j * V + i] end
        end
        for i = 1, V do o[#o + 1] = n > 0 and out[i] / sum or 0 end
        lse[#lse + 1] = math.log(sum)
    end
    return tensor.from(o, { T, 1, V }), tensor.from(lse, { T, 1 })
end

describe("merge", function()
    it("of two sets of keys is attention over both", function()
        for _, device in ipairs(DEVICES) do
            local q, k, v = inputs(9, 1, 1, 4, 3)
            local o, lse = part(q, k, v, 0, 9, 4, 3)
            for split = 0, 9 do
                local o_a, lse_a = part(q, k, v, 0, split, 4, 3)
                local o_b, lse_b = part(q, k, v, split, 9 - split, 4, 3)
                local merged, merged_lse = op.merge(o_a, lse_a, o_b, lse_b, { device = device })
                close("o", merged, o, 1e-14)
                close("lse", merged_lse, lse, 1e-14)
            end
        end
    end)

    it("[report 57] stands far apart sums and sides without keys", function()
        local inf = math.huge
        local cases = { -- lse, o, lse_b, o_b -> lse, o
            { -1000, 1, 1000, 2, 1000, 2 }, { 1000, 1, -1000, 2, 1000, 1 },
            { -inf, 0, -inf, 0, -inf, 0 }, { -inf, 0, 3, 2, 3, 2 }, { 3, 2, -inf, 0, 3, 2 },
            { -1000, 1, -1000, 3, -1000 + math.log(2), 2 },
        }
        for _, device in ipairs(DEVICES) do
            for _, c in ipairs(cases) do
                local function t(x, ...) return tensor.from({ x }, { ... }) end
                local o, lse = op.merge(t(c[2], 1, 1, 1), t(c[1], 1, 1), t(c[4], 1, 1, 1),
                    t(c[3], 1, 1), { device = device })
                assert.equal(c[5], lse:totable()[1])
                assert.equal(c[6], o:totable()[1])
            end
        end
        -- The control: the form that others wrote overflows.
        assert.equal(inf, math.log(1 + math.exp(1000 - -1000)))
    end)

    -- RFA#42, RFA#22, RFA#67: partial results of bf16, so that errors grew with the ranks.
    it("[report 58] of many parts is as exact as of two, with results kept in full", function()
        local q, k, v = inputs(16, 1, 1, 4, 3)
        local o = part(q, k, v, 0, 16, 4, 3):totable()
        local function f32(t) return tensor.from(t:totable(), t:shape(), "f32") end
        local function bf16(t)
            return tensor.from(tensor.from(t:totable(), t:shape(), "bf16"):totable(), t:shape(),
                "f32")
        end
        local function error_of(W, keep)
            local merged, lse
            for r = 0, W - 1 do
                local o_r, lse_r = part(q, k, v, r * 16 / W, 16 / W, 4, 3)
                o_r, lse_r = keep(o_r), f32(lse_r)
                if merged then
                    merged, lse = op.merge(merged, lse, o_r, lse_r)
                    merged = keep(merged)
                else
                    merged, lse = o_r, lse_r
                end
            end
            return numbers.error(merged:totable(), o)
        end
        for _, W in ipairs { 2, 4, 8, 16 } do
            assert.is_true(error_of(W, f32) <= 5e-7)
            assert.is_true(error_of(W, bf16) > 1e-3)
        end
        assert.is_true(error_of(16, bf16) > error_of(2, bf16))
    end)

    it("gives its gradient to the side that has keys, and to both as their weights are", function()
        local inf = math.huge
        -- lse, o, lse_b, o_b, d_o, d_lse -> do, dlse, do_b, dlse_b
        local cases = {
            { -1000, 1, 1000, 2, 3, 5, 0, 0, 3, 5 }, { 1000, 1, -1000, 2, 3, 5, 3, 5, 0, 0 },
            { -inf, 0, -inf, 0, 3, 5, 3, 5, 0, 0 }, { -inf, 0, 3, 2, 3, 5, 0, 0, 3, 5 },
            { 3, 2, -inf, 0, 3, 5, 3, 5, 0, 0 },
            -- Equal weights: each half of both, and 1/4 * 3 * (3 - 1) from one lse to the other.
            { -1000, 1, -1000, 3, 3, 5, 1.5, 2.5 - 1.5, 1.5, 2.5 + 1.5 },
        }
        for _, device in ipairs(DEVICES) do
            for _, c in ipairs(cases) do
                local function t(x, ...) return tensor.from({ x }, { ... }) end
                local list = { op.merge_backward(t(c[2], 1, 1, 1), t(c[1], 1, 1), t(c[4], 1, 1, 1),
                    t(c[3], 1, 1), t(c[5], 1, 1, 1), t(c[6], 1, 1), { device = device }) }
                for i = 1, 4 do assert.equal(c[6 + i], list[i]:totable()[1]) end
            end
        end
    end)

    -- A ring's backward uses the merged lse for every part; the gradient of merge says the same.
    it("and back is the backward of attention over both sets of keys", function()
        local q, k, v = inputs(9, 1, 1, 4, 3)
        local o, lse = op.gqa(q, k, v)
        local d_o = numbers.tensor(21, 0, { 9, 1, 3 })
        local _, _, dv = op.gqa_backward(q, k, v, o, lse, d_o)
        -- Keys 0 .. 3 and 4 .. 8 apart, where queries 4 .. 8 see all of the first.
        local function last(t) return numbers.rows(t, 4, 5) end
        local o_a, lse_a = part(op.axpby(last(q), last(q), { alpha = 0.5, beta = 0 }), k, v, 0, 4,
            4, 3)
        local o_b, lse_b = op.gqa(last(q), last(k), last(v))
        close("o", (op.merge(o_a, lse_a, o_b, lse_b)), last(o), 1e-14)
        local do_a, dlse_a, do_b, dlse_b = op.merge_backward(o_a, lse_a, o_b, lse_b, last(d_o))
        -- The value of key 8 is seen by query 8 alone: its gradient comes through do_b.
        local _, _, dv_b = op.gqa_backward(last(q), last(k), last(v), o_b, lse_b, do_b)
        close("dv", numbers.rows(dv_b, 4, 1), numbers.rows(dv, 8, 1), 1e-14)
        far("dv without the merge", numbers.rows(select(3, op.gqa_backward(last(q), last(k),
            last(v), o_b, lse_b, last(d_o))), 4, 1), numbers.rows(dv, 8, 1), 1e-3)
        -- The weights of both sides sum to 1: so do their gradients of o; lse's cancel.
        close("do", op.axpby(do_a, do_b), last(d_o), 1e-15)
        local sum = op.axpby(dlse_a, dlse_b):totable()
        for _, x in ipairs(sum) do assert.is_true(math.abs(x) <= 1e-15) end
    end)
end)
