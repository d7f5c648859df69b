-- Blocks of attention: which keys a query sees, windows, and queries that several blocks or several
-- calls share. Bounds as in table_spec: f64 1e-13, f32 2e-6 of the largest number.
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local raw = require "spec.kernels.raw"
local tensor = require "cplab.tensor"

local F64, F32 = 1e-13, 2e-6
local D, V, KV, GROUP = 5, 3, 2, 3
local HEADS = KV * GROUP

local function sees(block, window, i, j)
    local last = block.n_before + i
    return j >= 0 and j < block.n_keys and j <= last and (window == 0 or j > last - window)
end

local function rows_of(blocks)
    local n_q, n_k = 0, 0
    for _, b in ipairs(blocks) do
        n_q = math.max(n_q, b.q_slot + b.n_queries)
        n_k = math.max(n_k, b.kv_slot + b.n_keys)
    end
    return n_q + 2, n_k + 2
end

local function call(name, blocks, window, arrays, outputs)
    local n_q, n_k = rows_of(blocks)
    arrays.q = { rows = n_q, width = HEADS * D, stride = HEADS * D + 1 }
    arrays.k = { rows = n_k, width = KV * D, stride = KV * D + 2, low = -2, high = 2 }
    arrays.v = { rows = n_k, width = KV * V, stride = KV * V + 3 }
    return { op = name, parts = { "forward" }, arrays = arrays, outputs = outputs,
        workspace = true, blocks = blocks,
        scalars = { n_queries = n_q, n_keys = n_k, heads = HEADS, kv_heads = KV, key_dim = D,
            value_dim = V, scale = 0.7, window = window } }
end

-- With `accumulate` o and lse start at 0.5.
local function forward(blocks, window, accumulate)
    local n_q = rows_of(blocks)
    local c = call("attention", blocks, window, {}, {
        o = { rows = n_q, width = HEADS * V, grad = accumulate },
        lse = { rows = n_q, width = HEADS, grad = accumulate } })
    c.parts, c.scalars.accumulate = nil, accumulate or false
    return c
end

local function backward(blocks, window, accumulate)
    local n_q, n_k = rows_of(blocks)
    local c = call("attention_backward", blocks, window, {
        d_o = { rows = n_q, width = HEADS * V }, o = { rows = n_q, width = HEADS * V },
        lse = { rows = n_q, width = HEADS, low = 5, high = 6 } }, {
        dq = { rows = n_q, width = HEADS * D, stride = HEADS * D + 2, grad = accumulate },
        dk = { rows = n_k, width = KV * D, stride = KV * D + 1, grad = accumulate },
        dv = { rows = n_k, width = KV * V, stride = KV * V + 1, grad = accumulate } })
    c.scalars.accumulate = accumulate or false
    return c
end

-- One call of every way in which a block lies to its keys: causal, behind, all visible, partly
-- beyond the keys, nothing visible, no keys, no queries. `t` queries each.
local function blocks_of(t)
    local list, q, k = {}, 1, 2
    local function add(n_keys, n_before, n_queries)
        list[#list + 1] = { q_slot = q, n_queries = n_queries or t, kv_slot = k,
            n_keys = n_keys, n_before = n_before }
        q, k = q + (n_queries or t) + 1, k + n_keys + 1
    end
    add(t, 0)
    add(t + 70, 70)
    add(t + 5, t + 4)
    add(math.ceil(t / 2), 0)
    add(t, -math.floor(t / 2))
    add(3, -t)
    add(0, 5)
    add(4, 1, 0)
    return list
end

describe("a block of attention", function()
    it("shows each query exactly the keys that the definition says", function()
        local blocks = blocks_of(9)
        for _, window in ipairs { 0, 1, 3, 200 } do
            for _, device in ipairs { "ref", "cpu" } do
                local c = forward(blocks, window)
                c.scalars.scale = 0 -- all keys weigh the same: lse counts them
                local lse = raw.run(c, device, "f64").lse
                for _, b in ipairs(blocks) do
                    for i = 0, b.n_queries - 1 do
                        local n = 0
                        for j = -1, b.n_keys do n = n + (sees(b, window, i, j) and 1 or 0) end
                        for h = 1, HEADS do
                            local got = math.exp(lse[(b.q_slot + i) * HEADS + h])
                            assert.is_true(math.abs(got - n) <= 1e-13 * n)
                        end
                    end
                end
                for h = 1, HEADS do assert.equal(-math.huge, lse[h]) end -- no block has slot 0
            end
        end
    end)

    for _, t in ipairs { 1, 15, 64, 86, 130, 300 } do
        for _, window in ipairs { 0, 1, 3, 63, 64, 100, 257, 1000 } do
            it(("equals the reference: %d queries, window %d"):format(t, window), function()
                for _, accumulate in ipairs { false, true } do
                    raw.compare(forward(blocks_of(t), window, accumulate), F64, F32)
                    -- Sums over up to 300 queries.
                    raw.compare(backward(blocks_of(t), window, accumulate), 1e-12, 1e-5)
                end
            end)
        end
    end

    it("beyond one tile of keys in every direction", function()
        local blocks = { { q_slot = 0, n_queries = 300, kv_slot = 0, n_keys = 900,
            n_before = 700 } }
        for _, window in ipairs { 0, 2, 300, 512, 800 } do
            raw.compare(forward(blocks, window), F64, F32)
            raw.compare(backward(blocks, window), 1e-12, 1e-5)
        end
    end)

    it("needs its bounds: another n_keys, n_before or window gives other numbers", function()
        local function block(changes)
            local b = { q_slot = 0, n_queries = 20, kv_slot = 0, n_keys = 18, n_before = 3 }
            for name, value in pairs(changes or {}) do b[name] = value end
            return { b, { q_slot = 0, n_queries = 0, kv_slot = 30, n_keys = 0, n_before = 0 } }
        end
        local right = raw.run(forward(block(), 7), "cpu", "f64").o
        for _, changes in ipairs { { n_keys = 17 }, { n_before = 2 }, { n_before = 4 } } do
            local wrong = raw.run(forward(block(changes), 7), "cpu", "f64").o
            numbers.far("o", wrong, right, 1e-3)
        end
        numbers.far("o", raw.run(forward(block(), 8), "cpu", "f64").o, right, 1e-3)
    end)
end)

describe("blocks that share queries", function()
    -- The causal triangle of t tokens, its keys cut at `cuts`, in the order given.
    local function cut(t, cuts)
        local list = {}
        for i = 1, #cuts - 1 do
            list[i] = { q_slot = 0, n_queries = t, kv_slot = cuts[i],
                n_keys = cuts[i + 1] - cuts[i], n_before = -cuts[i] }
        end
        return list
    end

    local function reversed(list)
        local result = {}
        for i = #list, 1, -1 do result[#result + 1] = list[i] end
        return result
    end

    it("join what each of them sees, in any order", function()
        for _, t in ipairs { 7, 130, 300 } do
            local whole = cut(t, { 0, t })
            local parts = cut(t, { 0, 1, 2, math.floor(t / 2), t - 1, t })
            for _, window in ipairs { 0, 4, 100 } do
                for _, device in ipairs { "ref", "cpu" } do
                    local one = raw.run(forward(whole, window), device, "f64")
                    local back = raw.run(backward(whole, window), device, "f64")
                    for _, blocks in ipairs { parts, reversed(parts) } do
                        local many = raw.run(forward(blocks, window), device, "f64")
                        numbers.close("o", many.o, one.o, F64)
                        numbers.close("lse", many.lse, one.lse, F64)
                        many = raw.run(backward(blocks, window), device, "f64")
                        for _, name in ipairs { "dq", "dk", "dv" } do
                            numbers.close(name, many[name], back[name], 1e-12)
                        end
                    end
                    local dropped = { parts[4], parts[5] } -- the merge forgets the first ones
                    numbers.far("o", raw.run(forward(dropped, window), device, "f64").o, one.o,
                        1e-3)
                end
            end
        end
    end)

    it("give the same bits each time", function()
        local parts = cut(130, { 0, 40, 41, 130 })
        for _, f in ipairs { forward, backward } do
            local once = raw.run(f(parts, 0), "cpu", "f64")
            for name, list in pairs(raw.run(f(parts, 0), "cpu", "f64")) do
                numbers.close(name, list, once[name], 0)
            end
        end
    end)
end)

describe("blocks of few keys", function()
    -- Blocks of these lengths one behind the other; all keys are seen.
    local function packed(queries, keys)
        local list, q, k = {}, 0, 0
        for i, n in ipairs(queries) do
            list[i] = { q_slot = q, n_queries = n, kv_slot = k, n_keys = keys[i],
                n_before = keys[i] }
            q, k = q + n, k + keys[i]
        end
        return list
    end

    local function compare(blocks)
        raw.compare(forward(blocks, 0), F64, F32)
        raw.compare(backward(blocks, 0), 1e-12, 1e-5)
        local r, b = raw.run(forward(blocks, 0), "cpu", "f64"), raw.run(backward(blocks, 0), "cpu",
            "f64")
        for _, list in ipairs { r.o, b.dq, b.dk, b.dv } do
            for _, x in ipairs(list) do assert.is_true(x - x == 0) end
        end
        return r, b
    end

    -- flash-attention#1537, #1713, #2568: sums went to the rows of another sequence.
    it("[report 37] without queries or keys leave the others where they are", function()
        local r = compare(packed({ 0, 1, 0, 1 }, { 0, 3, 0, 5 }))
        local own = compare(packed({ 1, 1 }, { 3, 5 }))
        numbers.close("o", r.o, own.o, 0)
        numbers.close("lse", r.lse, own.lse, 0)
        -- A query of keys 0 .. 4 instead of 3 .. 7 has another sum.
        local wrong = packed({ 0, 1, 0, 1 }, { 0, 3, 0, 5 })
        wrong[4].kv_slot = 0
        numbers.far("lse", raw.run(forward(wrong, 0), "cpu", "f64").lse, r.lse, 1e-3)
        -- Queries whose block has no key see none, and have no gradient.
        r = compare(packed({ 2, 1 }, { 0, 3 }))
        for i = 1, 2 * HEADS do assert.equal(-math.huge, r.lse[i]) end
        for i = 1, 2 * HEADS * V do assert.equal(0, r.o[i]) end
    end)

    -- flash-attention#443: one key for 76, 34 and 146 queries.
    it("[report 38] of one key for many queries have finite gradients", function()
        local blocks = packed({ 76, 34, 146 }, { 1, 1, 1 })
        local r = compare(blocks)
        -- Of one key the output is its value, whatever the query.
        for h = 1, HEADS * V do numbers.close("o", { r.o[h] }, { r.o[75 * HEADS * V + h] }, 0) end
        numbers.far("o of another key", { unpack(r.o, 76 * HEADS * V + 1, 77 * HEADS * V) },
            { unpack(r.o, 1, HEADS * V) }, 1e-3)
        -- The other way: softmax over a row without keys is 0 / 0.
        blocks[2].n_keys = 0
        for i, lse in ipairs(raw.run(forward(blocks, 0), "cpu", "f64").lse) do
            local row = math.floor((i - 1) / HEADS)
            if row >= 76 and row < 110 then assert.equal(-math.huge, lse) end
        end
    end)
end)

describe("accumulate", function()
    it("is what merge does with the result of another call", function()
        local blocks = { { q_slot = 0, n_queries = 40, kv_slot = 0, n_keys = 30, n_before = 4 } }
        local n_q = rows_of(blocks)
        for _, device in ipairs { "ref", "cpu" } do
            local own = raw.run(forward(blocks, 0), device, "f64")
            local onto = raw.run(forward(blocks, 0, true), device, "f64")
            local function o_of(list) return tensor.from(list, { n_q, HEADS, V }) end
            local function lse_of(list) return tensor.from(list, { n_q, HEADS }) end
            local half = tensor.zeros({ n_q, HEADS, V }):fill(0.5)
            local half_lse = tensor.zeros({ n_q, HEADS }):fill(0.5)
            local o, lse = op.merge(half, half_lse, o_of(own.o), lse_of(own.lse))
            numbers.close("o", onto.o, o, F64)
            numbers.close("lse", onto.lse, lse, F64)
            numbers.far("o", onto.o, own.o, 1e-3) -- without the merge
        end
    end)

    it("leaves alone what sees no key, to the bit", function()
        local blocks = { { q_slot = 0, n_queries = 6, kv_slot = 0, n_keys = 4, n_before = -3 } }
        for _, device in ipairs { "ref", "cpu" } do
            local r = raw.run(forward(blocks, 0, true), device, "f64")
            for i = 1, 3 * HEADS do assert.equal(0.5, r.lse[i]) end
            for i = 1, 3 * HEADS * V do assert.equal(0.5, r.o[i]) end
            assert.not_equal(0.5, r.lse[3 * HEADS + 1])
            local b = raw.run(backward(blocks, 0, true), device, "f64")
            for i = 1, 3 * HEADS * D do assert.equal(0.5, b.dq[i]) end
            for i = 3 * KV * D + 1, 6 * KV * D do assert.equal(0.5, b.dk[i]) end
            assert.not_equal(0.5, b.dk[1])
        end
    end)
end)

describe("the window of op.gqa", function()
    it("of 1 gives each token its own value, of the sequence or more changes nothing", function()
        local q = numbers.tensor(3, 0, { 12, 4, 3 })
        local k, v = numbers.tensor(3, 1, { 12, 2, 3 }), numbers.tensor(3, 2, { 12, 2, 2 })
        local cu = { 0, 5, 5, 12 }
        local own = op.gqa(q, k, v, { window = 1, cu_seqlens = cu }):totable()
        v = v:totable()
        for t = 0, 11 do
            for h = 0, 3 do
                for i = 1, 2 do
                    assert.is_true(math.abs(own[(t * 4 + h) * 2 + i]
                        - v[(t * 2 + math.floor(h / 2)) * 2 + i]) < 1e-15)
                end
            end
        end
        v = tensor.from(v, { 12, 2, 2 })
        local full = op.gqa(q, k, v, { cu_seqlens = cu })
        numbers.close("o", op.gqa(q, k, v, { cu_seqlens = cu, window = 7 }), full, 0)
        numbers.far("o", op.gqa(q, k, v, { cu_seqlens = cu, window = 6 }), full, 1e-3)
    end)

    it("must be 0 or more", function()
        local q = tensor.zeros { 2, 1, 1 }
        assert.has_error(function() op.gqa(q, q, q, { window = -1 }) end,
            "op.gqa: window must be an integer >= 0 (got -1)")
    end)
end)
