-- The kernels of a mixture of experts on a device that is emulated, against the reference in double
-- of the numbers as they are stored; what is chosen, and where it goes, exactly.
local cases = require "spec.support.device_cases"
local numbers = require "spec.kernels.numbers"
local on_device = require "spec.support.on_device"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local it_there = on_device.it(it, pending)

-- Of f32: a softmax over 130 experts, a few roundings of 2^-24 each and the one of exp; products of
-- up to 33 numbers. A result of bf16 is rounded by 2^-9; what is WIDE is not.
local BOUNDS = { f64 = 1e-13, f32 = 3e-6, bf16 = 2 ^ -8 }
local WIDE_BOUNDS = { f64 = 1e-13, f32 = 3e-6, bf16 = 3e-6 }

local function wide(dtype)
    return dtype == "bf16" and "f32" or dtype
end

local SPANS = { { 1, 2 }, { 3, 0 }, { 4, 3 }, { 7, 0 } }

-- Logits from a few values, so that many are equal, in bf16, too.
local function coarse(rows, experts, dtype)
    local list = numbers.list(6, experts, rows * experts, -8, 8)
    for i = 1, #list do list[i] = math.floor(list[i]) / 4 end
    return tensor.from(list, { rows, experts }, dtype)
end

local function each_routing(body)
    for _, experts in ipairs { 1, 3, 31, 32, 33, 130 } do
        for _, top_k in ipairs { 1, 2, 10 } do
            if top_k <= experts then
                body(experts, top_k, experts % 2 == 0)
            end
        end
    end
end

local function try_routing(there, dtype)
    each_routing(function(experts, top_k, renormalise)
        local function options()
            return { top_k = top_k, renormalise = renormalise, spans = SPANS }
        end
        local logits = coarse(8, experts, dtype)
        local expected = options()
        expected.device = "ref"
        local w, c, p, m = op.moe_route(cases.exact(logits), expected)
        local w2, c2, p2, m2 = op.moe_route(logits, there(options()))
        local name = ("%s, %d of %d"):format(dtype, top_k, experts)
        assert.same(c, c2)
        assert.equal(m, m2)
        numbers.close(name, p2, p, WIDE_BOUNDS[dtype])
        numbers.close(name, w2, w, WIDE_BOUNDS[dtype])
        assert.equal(wide(dtype), p2:dtype())
    end)
end

-- With all experts chosen and renormalised, or one expert, gradients are cancellations to 0.
local function try_routing_back(there, dtype, bound)
    each_routing(function(experts, top_k, renormalise)
        if experts == 1 or top_k == experts then return end
        local function options(place)
            place.top_k, place.renormalise, place.spans = top_k, renormalise, SPANS
            place.dprobs = numbers.list(4, 4, experts, -1, 1)
            return place
        end
        local logits = coarse(8, experts, dtype)
        local dweights = numbers.tensor(7, 1, { 8, top_k }, -1, 1, wide(dtype))
        numbers.close(("%s, %d of %d"):format(dtype, top_k, experts),
            op.moe_route_backward(logits, dweights, options(there())),
            op.moe_route_backward(cases.exact(logits), cases.exact(dweights),
                options { device = "ref" }), bound)
    end)
end

describe("moe_route on a device", function()
    it_there("chooses as the reference does, equal logits too, and weighs them", function()
        cases.each(BOUNDS, try_routing)
    end)

    it_there("gives gradients", function()
        cases.each(BOUNDS, try_routing_back)
    end)

    it_there("does not overflow, lets NaN show, and stays inside of its arrays", function()
        cases.each(BOUNDS, function(there, dtype)
            local nan, inf = 0 / 0, math.huge
            local logits = tensor.from({ nan, 1, 2, nan, nan, nan, inf, -inf, 0, 1e4, -1e4, 9e3 },
                { 4, 3 }, dtype)
            local weights, chosen, _, margin = op.moe_route(logits, there { top_k = 2 })
            for i = 1, 8, 2 do
                local a, b = chosen[i], chosen[i + 1]
                assert.is_true(a >= 0 and a < 3 and b >= 0 and b < 3 and a ~= b)
            end
            local w = weights:totable()
            for i = 1, 6 do assert.is_true(w[i] ~= w[i]) end
            assert.same({ 1, 0 }, { w[7], w[8] })
            -- Of the last row; a NaN is no gap.
            assert.is_true(math.abs(margin - 19000) <= 19000 * 2 ^ -8)
        end)
    end)

    it_there("takes no rows, and rows of no span", function()
        cases.each(BOUNDS, function(there, dtype)
            local _, chosen, _, margin = op.moe_route(tensor.zeros({ 0, 3 }, dtype),
                there { top_k = 2 })
            assert.same({}, chosen)
            assert.equal(math.huge, margin)
            local w, none, p = op.moe_route(coarse(2, 3, dtype), there { top_k = 2, spans = {} })
            assert.same({ -1, -1, -1, -1 }, none)
            assert.same({ 0, 0, 0, 0 }, w:totable())
            assert.same({ 0, 0, 0, 0, 0, 0 }, p:totable())
        end)
    end)
end)

-- Choices of rows, some of which choose nobody.
local function choices(rows, top_k, experts)
    local list = {}
    numbers.each(8, experts, rows, 0, 1, function(row, u)
        local first = math.floor(u * experts)
        for j = 0, top_k - 1 do
            list[#list + 1] = row % 7 == 0 and -1 or (first + j * j) % experts
        end
    end)
    return list
end

-- Chunks have 1024 choices, or as many as there are experts: one, two, an even number, and a first
-- one with a single choice.
local SORTS = { { 0, 2, 3 }, { 1, 1, 1 }, { 5, 2, 4 }, { 300, 2, 40 }, { 1025, 1, 37 },
    { 1024, 2, 5 }, { 700, 3, 1100 } }

describe("moe_group on a device", function()
    it_there("gives the reference's places", function()
        for _, sort in ipairs(SORTS) do
            local rows, top_k, experts = unpack(sort)
            local chosen = choices(rows, top_k, experts)
            -- The reference takes the square of them.
            local expected = { op.moe_group(chosen, { experts = experts, top_k = top_k,
                device = rows < 100 and "ref" or "cpu" }) }
            cases.each({ f64 = 0 }, function(there)
                if there().way == "naive" and rows > 400 then return end -- likewise
                assert.same(expected, { op.moe_group(chosen, there { experts = experts,
                    top_k = top_k }) })
            end)
        end
    end)
end)

-- Places of 8 rows, and as many slots.
local function places_of(top_k, experts)
    return op.moe_group(choices(8, top_k, experts), { experts = experts, top_k = top_k })
end

local function try_rows(there, dtype, bound)
    for _, top_k in ipairs { 1, 3 } do
        for _, width in ipairs { 1, 16, 33 } do
            local places = places_of(top_k, 6)
            local slots = 7 * top_k
            local x = numbers.tensor(1, 1, { 8, width }, -1, 1, dtype)
            local y = op.moe_dispatch(x, places, there { top_k = top_k })
            assert.same(op.moe_dispatch(cases.exact(x), places, { top_k = top_k,
                device = "ref" }):totable(), y:totable())
            local dy = numbers.tensor(1, 2, { slots, width }, -1, 1, dtype)
            numbers.close("dispatch back", op.moe_dispatch_backward(x, places, dy,
                there { top_k = top_k }), op.moe_dispatch_backward(cases.exact(x), places,
                cases.exact(dy), { top_k = top_k, device = "ref" }), bound)
        end
    end
end

local function combine_inputs(top_k, width, dtype)
    return numbers.tensor(2, 1, { 7 * top_k, width }, -1, 1, dtype),
        numbers.tensor(2, 2, { 8, top_k }, 0, 1, wide(dtype)),
        numbers.tensor(2, 3, { 8, width }, -1, 1, dtype),
        numbers.tensor(2, 4, { 8, width }, -1, 1, dtype),
        numbers.tensor(2, 5, { 8 }, -2, 2, dtype)
end

local function try_combining(there, dtype, bound, has_shared)
    for _, size in ipairs { { 1, 1 }, { 3, 16 }, { 2, 33 }, { 2, 80 } } do
        local top_k, width = unpack(size)
        local name = ("%s, %d of %d wide"):format(dtype, top_k, width)
        local places = places_of(top_k, 6)
        local h, weights, dy, shared, gate = combine_inputs(top_k, width, dtype)
        local exact = { device = "ref" }
        local given = there()
        if has_shared then
            given.shared, given.shared_gate = shared, gate
            exact.shared, exact.shared_gate = cases.exact(shared), cases.exact(gate)
        end
        numbers.close(name, op.moe_combine(h, weights, places, given),
            op.moe_combine(cases.exact(h), cases.exact(weights), places, exact), bound)
        local got = { op.moe_combine_backward(h, weights, places, dy, given) }
        local wanted = { op.moe_combine_backward(cases.exact(h), cases.exact(weights), places,
            cases.exact(dy), exact) }
        assert.equal(has_shared and 4 or 2, #got)
        for i, gradient in ipairs(got) do
            numbers.close(name .. " gradient " .. i, gradient, wanted[i],
                i == 2 and WIDE_BOUNDS[dtype] or bound)
        end
    end
end

describe("the ways to experts and back on a device", function()
    it_there("move rows to their slots, and add up what comes back", function()
        cases.each(BOUNDS, try_rows)
    end)

    it_there("weigh what the experts made, with a shared expert or without, and back", function()
        cases.each(BOUNDS, function(there, dtype, bound)
            try_combining(there, dtype, bound, false)
            try_combining(there, dtype, bound, true)
        end)
    end)
end)
