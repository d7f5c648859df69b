-- The kernels of a mixture of experts: what they choose, table against table, gradients against
-- differences, and rows that nobody may choose for.
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local TABLES = { { "ref", "f64" }, { "cpu", "f64" }, { "cpu", "f32" } }

local function each_table(name, body)
    for _, t in ipairs(TABLES) do
        it(("%s: %s %s"):format(name, t[1], t[2]), function() body(t[1], t[2]) end)
    end
end

-- Logits of a row are a shuffle of multiples of 0.01, so that no two are near each other: a choice
-- is discontinuous, and rounding must not decide it.
local function separated(rows, experts, dtype)
    local list = {}
    for row = 0, rows - 1 do
        for e = 0, experts - 1 do
            local step = 7
            while experts % step == 0 do step = step + 2 end
            list[#list + 1] = 0.01 * ((step * e + 3 * row) % experts) - 0.3
        end
    end
    return tensor.from(list, { rows, experts }, dtype or "f64")
end

describe("moe_route", function()
    each_table("chooses the largest, the largest first, ties to the lower index",
        function(device, dtype)
            local logits = tensor.from({
                1, 3, 2, 0,
                2, 2, 2, 2,
                0, 5, 5, 5,
                -1, -2, -2, -1,
            }, { 4, 4 }, dtype)
            local _, chosen = op.moe_route(logits, { top_k = 2, device = device })
            assert.same({ 1, 2, 0, 1, 1, 2, 0, 3 }, chosen)
            _, chosen = op.moe_route(logits, { top_k = 4, device = device })
            assert.same({ 1, 2, 0, 3, 0, 1, 2, 3, 1, 2, 3, 0, 0, 3, 1, 2 }, chosen)
        end)

    each_table("weighs by the softmax over all experts, renormalised or not",
        function(device, dtype)
            local logits = tensor.from({ math.log(1), math.log(4), math.log(3), math.log(2) },
                { 1, 4 }, dtype)
            local options = { top_k = 2, renormalise = false, device = device }
            local weights, _, probs = op.moe_route(logits, options)
            numbers.close("probs", probs, { 0.1, 0.4, 0.3, 0.2 }, 1e-6)
            numbers.close("weights", weights, { 0.4, 0.3 }, 1e-6)
            options.renormalise = nil
            numbers.close("renormalised", (op.moe_route(logits, options)), { 4 / 7, 3 / 7 }, 1e-6)
        end)

    each_table("tells the least gap between chosen and not chosen", function(device, dtype)
        local logits = tensor.from({ 4, 1, 2.5, 0, 8, 7.5, 7.25, 7 }, { 2, 4 }, dtype)
        local function margin(top_k, spans)
            local _, _, _, m = op.moe_route(logits, { top_k = top_k, device = device,
                spans = spans })
            return m
        end
        assert.equal(0.5, margin(1))
        assert.equal(1.5, margin(1, { { 0, 1 } }))
        assert.equal(0.25, margin(2))
        assert.equal(math.huge, margin(4))
        local equal = tensor.from({ 1, 1, 0 }, { 1, 3 }, dtype)
        assert.equal(0, (select(4, op.moe_route(equal, { top_k = 1, device = device }))))
    end)

    each_table("does not overflow, and chooses nobody for rows outside of the spans",
        function(device, dtype)
            local logits = tensor.from({ 1e4, -1e4, 9e3, 1, 2, 3, -50, -60, -70 }, { 3, 3 },
                dtype)
            local weights, chosen, probs = op.moe_route(logits, { top_k = 2, device = device,
                spans = { { 0, 1 }, { 2, 1 } } })
            assert.same({ 0, 2, -1, -1, 0, 1 }, chosen)
            assert.same({ 1, 0, 0, 0 }, { unpack(weights:totable(), 1, 4) })
            assert.same({ 1, 0, 0, 0, 0, 0 }, { unpack(probs:totable(), 1, 6) })
            numbers.finite("weights", weights)
            local dlogits = op.moe_route_backward(logits, tensor.from({ 1, 2, 3, 4, 5, 6 },
                { 3, 2 }, dtype), { top_k = 2, device = device, dprobs = { 1, 2, 3 },
                spans = { { 0, 1 }, { 2, 1 } } })
            assert.same({ 0, 0, 0 }, { unpack(dlogits:totable(), 4, 6) })
        end)

    it("agrees between the tables at every size", function()
        for _, experts in ipairs { 1, 2, 3, 15, 31, 64, 65, 127 } do
            for _, top_k in ipairs { 1, 2, 10 } do
                top_k = math.min(top_k, experts)
                for _, renormalise in ipairs { true, false } do
                    local options = { top_k = top_k, renormalise = renormalise, device = "ref",
                        spans = { { 1, 2 }, { 4, 1 } } }
                    local w, c, p, m = op.moe_route(separated(5, experts), options)
                    for dtype, bound in pairs { f64 = 1e-14, f32 = 2e-6 } do
                        options.device = "cpu"
                        local w2, c2, p2, m2 = op.moe_route(separated(5, experts, dtype), options)
                        assert.same(c, c2)
                        numbers.close("weights", w2, w, bound)
                        numbers.close("probs", p2, p, bound)
                        assert.is_true(m == m2 or math.abs(m - m2) < 1e-6)
                    end
                end
            end
        end
    end)

    it("agrees between the tables backwards", function()
        for _, experts in ipairs { 1, 3, 15, 64, 65 } do
            for _, renormalise in ipairs { true, false } do
                local top_k = math.min(4, experts)
                local dprobs = numbers.list(4, 4, experts, -1, 1)
                local options = { top_k = top_k, renormalise = renormalise, device = "ref",
                    dprobs = dprobs }
                local d = numbers.tensor(4, 1, { 5, top_k })
                local expected = op.moe_route_backward(separated(5, experts), d, options)
                options.device = "cpu"
                -- With one expert all is a cancellation: probs are 1, and dlogits 0.
                if experts > 1 then
                    numbers.close("f64", op.moe_route_backward(separated(5, experts), d, options),
                        expected, 1e-13)
                    numbers.close("f32", op.moe_route_backward(separated(5, experts, "f32"),
                        numbers.tensor(4, 1, { 5, top_k }, -1, 1, "f32"), options), expected, 1e-5)
                else
                    assert.is_true(numbers.largest(expected:totable()) < 1e-15)
                end
            end
        end
    end)

    it("lets a NaN show, and stays inside of its arrays", function()
        local logits = tensor.from({ 0 / 0, 1, 2, 0 / 0, 0 / 0, 0 / 0 }, { 2, 3 })
        local weights, chosen = op.moe_route(logits, { top_k = 2 })
        for _, e in ipairs(chosen) do assert.is_true(e >= 0 and e < 3) end
        for _, w in ipairs(weights:totable()) do assert.is_true(w ~= w) end
    end)
end)

describe("moe_group", function()
    local CHOSEN = { 2, 0, -1, -1, 0, 3, 2, 3 }
    for _, device in ipairs { "ref", "cpu" } do
        it("sorts by expert, then by row: " .. device, function()
            local places, offsets = op.moe_group(CHOSEN, { experts = 5, top_k = 2,
                device = device })
            assert.same({ 2, 0, -1, -1, 1, 4, 3, 5 }, places)
            assert.same({ 0, 2, 2, 4, 6, 6 }, offsets)
        end)

        it("takes no rows: " .. device, function()
            local places, offsets = op.moe_group({}, { experts = 3, top_k = 2, device = device })
            assert.same({}, places)
            assert.same({ 0, 0, 0, 0 }, offsets)
        end)
    end

    it("agrees between the tables on many rows", function()
        local _, chosen = op.moe_route(separated(67, 15), { top_k = 5, spans = { { 3, 50 } } })
        local a, b = op.moe_group(chosen, { experts = 15, top_k = 5, device = "ref" })
        local c, d = op.moe_group(chosen, { experts = 15, top_k = 5 })
        assert.same(a, c)
        assert.same(b, d)
        assert.equal(250, d[16])
    end)
end)

describe("moe_dispatch and moe_combine", function()
    -- Row 1 is padding.
    local PLACES = { 2, 0, -1, -1, 1, 3 }

    each_table("bring each row to its slots, and back with weights", function(device, dtype)
        local x = tensor.from({ 1, 2, 3, 4, 5, 6 }, { 3, 2 }, dtype)
        local h = op.moe_dispatch(x, PLACES, { top_k = 2, device = device })
        assert.same({ 1, 2, 5, 6, 1, 2, 5, 6 }, h:totable())
        local w = tensor.from({ 0.5, 0.25, 9, 9, 1, 2 }, { 3, 2 }, dtype)
        h = tensor.from({ 1, 2, 3, 4, 5, 6, 7, 8 }, { 4, 2 }, dtype)
        assert.same({ 2.75, 3.5, 0, 0, 17, 20 },
            op.moe_combine(h, w, PLACES, { device = device }):totable())
        local shared = tensor.from({ 2, 4, 6, 8, 10, 12 }, { 3, 2 }, dtype)
        local gate = tensor.from({ 0, 0, 0 }, { 3 }, dtype)
        assert.same({ 3.75, 5.5, 0, 0, 22, 26 }, op.moe_combine(h, w, PLACES,
            { device = device, shared = shared, shared_gate = gate }):totable())
    end)

    it("agree between the tables at every width", function()
        for _, d in ipairs { 1, 15, 64, 67 } do
            local function results(device, dtype)
                local function random(j, ...) return numbers.tensor(6, j, { ... }, -1, 1, dtype) end
                local o = { device = device, shared = random(1, 3, d), shared_gate = random(2, 3) }
                local h, w, dy = random(3, 4, d), random(4, 3, 2), random(5, 3, d)
                local list = { op.moe_combine_backward(h, w, PLACES, dy, o) }
                list[#list + 1] = op.moe_combine(h, w, PLACES, o)
                list[#list + 1] = op.moe_dispatch(dy, PLACES, { top_k = 2, device = device })
                return list
            end
            local expected = results("ref", "f64")
            assert.equal(6, #expected)
            for dtype, bound in pairs { f64 = 1e-14, f32 = 2e-6 } do
                for i, t in ipairs(results("cpu", dtype)) do
                    numbers.close(("result %d"):format(i), t, expected[i], bound)
                end
            end
        end
    end)

    it("give rows without places 0, and no gradient", function()
        local d = 3
        local function random(j, ...) return numbers.tensor(6, j, { ... }) end
        local dh, dw, dshared, dgate = op.moe_combine_backward(random(3, 4, d), random(4, 3, 2),
            PLACES, random(5, 3, d), { shared = random(1, 3, d), shared_gate = random(2, 3) })
        numbers.finite("dh", dh)
        assert.same({ 0, 0 }, { unpack(dw:totable(), 3, 4) })
        assert.same({ 0, 0, 0 }, { unpack(dshared:totable(), 4, 6) })
        assert.equal(0, dgate:totable()[2])
        local dx = op.moe_dispatch_backward(random(5, 3, d), PLACES, dh, { top_k = 2 })
        assert.same({ 0, 0, 0 }, { unpack(dx:totable(), 4, 6) })
    end)
end)

describe("what the ops of a mixture refuse", function()
    local function refused(message, f)
        local ok, got = pcall(f)
        assert.is_false(ok)
        assert.equal(message, (got:gsub("^%.?/?spec/kernels/moe_spec%.lua:%d+: ", "")))
    end

    it("is said in one sentence at the caller's line", function()
        local logits, x = tensor.zeros { 2, 3 }, tensor.zeros { 2, 4 }
        refused("op.moe_route: top_k = 4 is not in 1 .. E = 3",
            function() local _ = op.moe_route(logits, { top_k = 4 }) end)
        refused("op.moe_route: spans[1] is no { first, rows } in order within T = 2",
            function() local _ = op.moe_route(logits, { top_k = 1, spans = { { 1, 2 } } }) end)
        refused("op.moe_route_backward: dprobs has 1 numbers, but E is 3", function()
            local _ = op.moe_route_backward(logits, tensor.zeros { 2, 1 },
                { top_k = 1, dprobs = { 1 } })
        end)
        refused("op.moe_group: chosen[2] = 3 is not below the 3 experts",
            function() local _ = op.moe_group({ 0, 3 }, { experts = 3, top_k = 1 }) end)
        refused("op.moe_group: chosen has 3 entries, not a multiple of top_k = 2",
            function() local _ = op.moe_group({ 0, 1, 2 }, { experts = 3, top_k = 2 }) end)
        refused("op.moe_dispatch: places[2] = 0 stands twice",
            function() local _ = op.moe_dispatch(x, { 0, 0 }, { top_k = 1 }) end)
        refused("op.moe_dispatch: place 5 is not below the 2 that are taken",
            function() local _ = op.moe_dispatch(x, { 0, 5 }, { top_k = 1 }) end)
        refused("op.moe_dispatch: places are for 3 rows, but x has 2",
            function() local _ = op.moe_dispatch(x, { 0, 1, 2 }, { top_k = 1 }) end)
        refused("op.moe_combine: places take 2 slots, but h has 3", function()
            local _ = op.moe_combine(tensor.zeros { 3, 4 }, tensor.zeros { 2, 1 }, { 0, 1 })
        end)
        refused("op.moe_combine: shared and shared_gate go together", function()
            local _ = op.moe_combine(x, tensor.zeros { 2, 1 }, { 0, 1 }, { shared = x })
        end)
    end)
end)
