-- A stack with experts: CP = N equals CP = 1 at 1e-12 in f64, no padding is routed, and training
-- goes on alike. A choice of experts is discontinuous: where a logit lies within rounding of the
-- next, ranks may choose differently and both be right; every case here checks that none does.
local labs = require "spec.support.labs"

local BOUND = 1e-12

local MOE = { experts = 6, top_k = 2, width = 10, shared_width = 7 }

local function model(changes, moe)
    local m = labs.model(changes)
    m.moe, m.mlp = {}, changes and changes.mlp
    for name, value in pairs(MOE) do m.moe[name] = value end
    for name, value in pairs(moe or {}) do m.moe[name] = value end
    return m
end

-- Padded to a multiple of 2 * cp, or as given: tokens are drawn from the padded stream.
local function check(real, m, cp, n_layers, multiple)
    local metrics = labs.parity_step(labs.padded(real, multiple or 2 * cp), m, cp)
    assert.is_true(metrics.moe_margin > 1e-9, "a choice within rounding: take another seed")
    labs.assert_parity(metrics, BOUND)
    local tokens = 0
    for _, n in ipairs(real) do tokens = tokens + n end
    assert.equal(tokens * 2 * (n_layers or 4), metrics.moe_choices)
    return metrics
end

describe("a stack with experts", function()
    for _, policy in ipairs { "zigzag", "contiguous", "mirror", "balanced", "native" } do
        for _, cp in ipairs { 2, 3, 4, 5 } do
            it(("equals one rank under %s at cp %d"):format(policy, cp), function()
                check({ 17, 0, 7 }, model { policy = policy }, cp)
                check({ 1, 1, 1, 21 }, model { policy = policy }, cp)
            end)
        end
    end

    it("equals one rank at cp 8, with more ranks than tokens", function()
        check({ 5 }, model { policy = "mirror" }, 8)
        check({ 5, 6, 8, 5 }, model { policy = "native" }, 8)
    end)

    it("equals one rank in every other form of it", function()
        for _, moe in ipairs { { renormalise = false }, { shared_width = 0 },
            { aux_coefficient = 1 },
            { experts = 9, top_k = 2, width = 3, aux_coefficient = 0.01 } } do
            check({ 17, 0, 7 }, model({ policy = "mirror" }, moe), 4)
        end
        local dense = model({ policy = "zigzag", mlp = { width = 20 } }, { first_layer = 3 })
        check({ 17, 0, 7 }, dense, 4, 1)
    end)

    it("sums the loss that balances over layers and ranks", function()
        local balanced = model({ policy = "mirror" }, { aux_coefficient = 1 })
        local one = check({ 17, 0, 7 }, balanced, 1, 4, 8)
        local four = check({ 17, 0, 7 }, balanced, 4, 4, 8)
        -- Each layer has at least coefficient * k where the load is even; here it is nearly so.
        assert.is_true(one.aux_loss > 4 * 2 * 0.9)
        assert.is_true(math.abs(one.aux_loss / four.aux_loss - 1) < 1e-13)
        local m = check({ 17, 0, 7 }, model { policy = "mirror" }, 4)
        assert.equal(0, m.aux_loss)
    end)

    it("counts tokens by expert and layer, the same at every CP size", function()
        local one = check({ 17, 0, 7 }, model { policy = "mirror" }, 1, 4, 8)
        local four = check({ 17, 0, 7 }, model { policy = "mirror" }, 4)
        assert.same(one.expert_tokens, four.expert_tokens)
        assert.equal(4, #one.expert_tokens)
        local most = 0
        for _, list in ipairs(one.expert_tokens) do
            assert.equal(6, #list)
            for _, n in ipairs(list) do most = math.max(most, n) end
        end
        assert.equal(most / (48 / 6), one.moe_imbalance)
        assert.equal(one.moe_imbalance, four.moe_imbalance)
    end)

    it("has none of these metrics without experts", function()
        local m = labs.parity_step(labs.padded({ 17, 0, 7 }, 8), labs.model(), 4)
        for _, name in ipairs { "moe_choices", "moe_imbalance", "moe_margin", "aux_loss",
            "expert_tokens" } do
            assert.is_nil(m[name])
        end
    end)

    it("T-33: shows padding that one rank routes: in the counts and in parity", function()
        local stream = labs.padded({ 17, 0, 7 }, 8)
        local m = labs.parity_step(stream, model { policy = "zigzag", seed = 21 }, 4,
            { faults = { route_padding = { rank = 1 } } })
        assert.is_true(m.moe_choices > 24 * 2 * 4)
        assert.is_true(m.parity_fwd > 1e-6)
        -- The reference, made between, is without it, also where rank 0 makes it.
        m = labs.parity_step(stream, model { policy = "zigzag", seed = 22 }, 4,
            { faults = { route_padding = { rank = 0 } } })
        assert.is_true(m.parity_fwd > 1e-6)
    end)

    it("gives the same bits in every run", function()
        local first
        for _ = 1, 3 do
            local m = check({ 17, 0, 7 }, model({ policy = "native" }, { aux_coefficient = 0.1 }),
                4)
            first = first or m
            assert.equal(first.loss, m.loss)
            assert.equal(first.parity_grad, m.parity_grad)
            assert.equal(first.grad_norm, m.grad_norm)
        end
    end)

    it("trains as one rank does", function()
        local training = { iters = 12, optimizer = "adamw", lr = 3e-3, clip = 1 }
        for _, case in ipairs { { "zigzag", 4 }, { "native", 3 } } do
            local result = assert(labs.run { stream = { lengths = { 48, 24 }, real = { 46, 19 } },
                cp = case[2], calls = { { "step", training }, { "reference", training } },
                model = model({ policy = case[1] }, { aux_coefficient = 0.01 }) })
            local losses, reference = result.answers[1].losses, result.answers[2].losses
            assert.is_true(result.answers[1].moe_margin > 1e-9)
            assert.is_true(losses[12] < losses[1] - 0.01)
            for i = 1, 12 do
                assert.is_true(math.abs(losses[i] - reference[i]) <= 1e-10 * reference[i])
            end
        end
    end)

    -- f32 rounds at 6e-8; sums of some 100 terms through four layers stay below 1e-4.
    it("equals one rank in f32 at 1e-4", function()
        local m = labs.parity_step(labs.padded({ 17, 0, 7 }, 8),
            model { policy = "native", dtype = "f32" }, 4)
        assert.is_true(m.moe_margin > 1e-5)
        assert.is_true(m.parity_fwd <= 1e-4 and m.parity_grad <= 1e-4 and m.parity_fwd > 0)
    end)

    it("allocates nothing in a step after the first", function()
        local cplab, clib = require "cplab", require "clib"
        local fields = model { policy = "mirror" }
        fields.schedule, fields.pattern = cplab.schedule.pattern(fields.pattern, 4), nil
        local stack = require("cplab.stack").new { model = cplab.model(fields), cp = 1, tp = 1,
            stream = cplab.stream.thd { lengths = { 10, 6 } }, comm = clib.C.cpl_comm_self() }
        local options = require("cplab.optimizer").settings("spec",
            { optimizer = "adamw", lr = 1e-3, clip = 1 }, 1)
        options.backward = true
        stack:step(options)
        local before, after = clib.ffi.new "cpl_memory_stats", clib.ffi.new "cpl_memory_stats"
        clib.C.cpl_memory(before)
        stack:step(options)
        clib.C.cpl_memory(after)
        assert.equal(before.n_allocations, after.n_allocations)
    end)
end)

describe("a model with experts", function()
    it("refuses what cannot be", function()
        local cplab = require "cplab"
        local function refused(message, moe, mlp)
            local fields = model({ mlp = mlp }, moe)
            fields.schedule, fields.pattern = cplab.schedule.pattern(fields.pattern, 4), nil
            local ok, got = pcall(function() return cplab.model(fields) end)
            assert.is_false(ok)
            assert.equal(message, (got:gsub("^.-moe_spec%.lua:%d+: ", "")))
        end
        refused('model.moe: unknown field "topk"; did you mean "top_k"?', { topk = 2 })
        refused("moe: top_k 7 is not in 1 to 6 experts", { top_k = 7 })
        refused("model.moe: experts must be an integer in 1 .. 2147483647 (got 0)",
            { experts = 0 })
        refused("model.moe: shared_width must be an integer in 0 .. 2147483647 (got -1)",
            { shared_width = -1 })
        refused("model.moe: first_layer = 1, but there is no 'mlp' for the layers before it",
            { first_layer = 1 })
        refused("model.moe: first_layer = 0, but there is an 'mlp', which only layers before it "
            .. "could use", {}, { width = 3 })
        refused("moe: shared_width 7 and aux_coefficient -1 must not be negative",
            { aux_coefficient = -1 })
    end)

    it("has another signature for other experts", function()
        local cplab, seen = require "cplab", {}
        for _, moe in ipairs { {}, { top_k = 3 }, { renormalise = false }, { shared_width = 8 },
            { aux_coefficient = 0.5 } } do
            local fields = model({}, moe)
            fields.schedule, fields.pattern = cplab.schedule.pattern(fields.pattern, 4), nil
            local text = cplab.model(fields):signature()
            assert.is_nil(seen[text])
            seen[text] = true
        end
    end)
end)
