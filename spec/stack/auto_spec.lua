-- Whatever is planned runs, and gives the numbers of one rank, in f64 at 1e-12 (DESIGN section 8).
-- All ranks run the same plan, made anew for each stream.
local fake_prices = require "spec.support.fake_prices"
local labs = require "spec.support.labs"
local planner = require "cplab.planner"

local BOUND = 1e-12

local function check(stream, model, cp, tp)
    local m = labs.parity_step(stream, model, cp, nil, tp)
    labs.assert_parity(m, BOUND)
    assert.equal(0, m.routes_built_in_step)
    return m
end

describe("an assignment planned on prices that nobody measured", function()
    local names = { "contiguous", "zigzag", "mirror", "balanced", "balanced@0.1" }
    local modes = {
        [2] = { gqa = { "p2p", "gather", "a2a" }, gdn = { "chunkwise", "headwise" } },
        [3] = { gqa = { "p2p", "gather" }, gdn = { "chunkwise" } },
    }

    for seed = 1, 8 do
        local cp = seed % 2 + 2
        it(("equals one rank, seed %d at cp %d"):format(seed, cp), function()
            local prices = fake_prices.new { pattern = "G*G*", names = names, seed = seed,
                style = "ties", modes = modes[cp] }
            local plan = planner.plan(prices)
            local m = check(labs.padded({ 7, 0, 9, 17 }, 2 * cp),
                labs.model { pattern = "G*G*", policy = plan.assignment }, cp)
            assert.equal(plan.conversions, m.conversions_fwd)
            assert.equal(plan.conversions, m.conversions_bwd)
        end)
    end
end)

describe("the policy auto", function()
    local PACKED, SINGLE = { 7, 0, 9, 17, 3 }, { 45 }

    -- What is cheap on a cluster decides; the numbers must not depend on it.
    for _, case in ipairs {
        { 2, 1, PACKED, {} }, { 4, 1, PACKED, {} }, { 4, 1, SINGLE, {} }, { 1, 1, PACKED, {} },
        { 2, 2, PACKED, {} }, { 2, 2, SINGLE, { cluster = "h100", dtype = "bf16" } },
        { 4, 1, SINGLE, { cluster = "h100", entry = "zigzag", exit = "mirror" } },
        { 4, 1, PACKED, { cluster = "gb200", layouts = { "balanced", "mirror" } } },
        { 2, 2, PACKED, { layouts = { "contiguous", "zigzag" }, entry = "zigzag",
            exit = "contiguous" } },
    } do
        local cp, tp, real, auto = unpack(case)
        it(("equals one rank at cp %d, tp %d, {%s}, %s from %s to %s"):format(cp, tp,
            table.concat(real, ","), auto.cluster or "local", auto.entry or "any",
            auto.exit or "any"), function()
            check(labs.padded(real, 2 * cp * tp), labs.model { policy = "auto", auto = auto }, cp,
                tp)
        end)
    end

    it("equals one rank on a batch of columns", function()
        check({ seqlen = 16, batch = 3 }, labs.model { policy = "auto" }, 2)
    end)

    it("takes what a stream can have", function()
        check({ lengths = { 6, 9, 1 } }, labs.model { policy = "auto" }, 2)
    end)

    it("equals one rank with experts, MTP and recomputation", function()
        local model = labs.model { policy = "auto", pattern = "G*",
            auto = { entry = "zigzag", exit = "contiguous" },
            moe = { experts = 6, top_k = 2, width = 8 }, mtp = { kind = "gqa", depth = 2 } }
        model.mlp = nil
        local result = labs.run { stream = labs.padded(PACKED, 8), model = model, cp = 4, calls = {
            { "step", { reference = true, trace = true, recompute = "layer" } } } }
        local m = assert(result).answers[1]
        assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND)
    end)

    it("keeps to the layouts that the model binds a kind to", function()
        local model = labs.model { policy = "auto", pattern = "G*" }
        model.gqa.layouts, model.gdn.layouts = { "zigzag" }, { "contiguous" }
        local texts = assert(labs.run { stream = labs.padded(PACKED, 8), model = model, cp = 4,
            calls = { { "assignments", 1 } } }).answers[1]
        assert.truthy(texts[1]:find("GDN %w+ in contiguous"), texts[1])
        assert.truthy(texts[1]:find("GQA %w+ in zigzag"), texts[1])
    end)

    -- The reference runs in contiguous all the same; striped is no candidate of its own.
    it("equals one rank where a kind is bound to a layout, under any policy", function()
        for _, policy in ipairs { "auto", "zigzag" } do
            local model = labs.model { policy = policy, pattern = "G*" }
            model.gqa.layouts = { policy == "auto" and "striped" or "zigzag" }
            check(labs.padded(PACKED, 8), model, 4)
        end
    end)

    it("takes tokens and loss where the model says", function()
        local texts = assert(labs.run { stream = labs.padded(PACKED, 8), cp = 4,
            model = labs.model { policy = "auto", auto = { entry = "mirror", exit = "zigzag" } },
            calls = { { "assignments", 1 } } }).answers[1]
        assert.truthy(texts[1]:find("^tokens and embedding live mirror; "), texts[1])
        assert.truthy(texts[1]:find("; head, labels and loss live zigzag$"), texts[1])
    end)

    it("plans for each stream", function()
        local streams = { labs.padded({ 64 }, 64), labs.padded({ 8, 8, 8, 8, 8, 8, 8, 8 }, 8) }
        local model = labs.model { policy = "auto", pattern = "GG*", auto = { cluster = "h100" } }
        model.gqa.cp_mode, model.gqa.heads, model.gqa.kv_heads = "p2p", 6, 3
        local texts = assert(labs.run { streams = streams, model = model, cp = 4,
            calls = { { "assignments", 2 } } }).answers[1]
        assert.not_equal(texts[1], texts[2])
    end)

    it("refuses to run where ranks plan differently", function()
        local result, message = labs.run { stream = labs.padded(PACKED, 8), cp = 2,
            model = labs.model { policy = "auto" }, calls = { { "plan_by_rank" } } }
        assert.is_nil(result)
        assert.truthy(message:find("stack: the ranks plan different layouts; rank %d: tokens and "
            .. "embedding live"), message)
    end)

    it("says which layouts a stream cannot have, where none is left", function()
        local result, message = labs.run { stream = { lengths = { 6, 9 } }, cp = 2,
            model = labs.model { policy = "auto", auto = { layouts = { "zigzag", "mirror" } } },
            calls = { { "step", {} } } }
        assert.is_nil(result)
        assert.truthy(message:find("can have none of the layouts zigzag, mirror; zigzag: ", 1,
            true), message)
    end)
end)
