-- Runtime contracts: a layer that gets rows of another layout than the one that it was prepared for
-- says so, in every step, whether rows are traced or not. Conversions are left out to prove it.
local labs = require "spec.support.labs"

local STREAM = { lengths = { 16, 8 }, real = { 13, 8 } }

-- Steps that are not traced; returns the result, or nil and the message.
local function run(fault, fields)
    fields = fields or {}
    return labs.run {
        stream = fields.stream or STREAM, cp = fields.cp or 2, tp = fields.tp,
        model = labs.model { pattern = "G*", policy = fields.policy or "zigzag" },
        options = { faults = fault and { leave_out = fault } },
        calls = { { "step", { backward = true, iters = fields.iters,
            recompute = fields.recompute } } },
    }
end

-- What is raised without the rank's place in front.
local function refused(wanted, fault, fields)
    local result, got = run(fault, fields)
    assert.is_nil(result)
    assert.truthy(got:find(wanted), got)
end

-- The rows of a layout, in words, for a pattern.
local function rows_of(kind)
    return kind .. ", cp 2, thd of 2 sequences, 24 positions, 21 real"
end
-- Mirror swaps halves of one sequence in place, so rows that stayed say where they still are.
local SWAPS = { policy = "mirror", stream = { lengths = { 16 } } }
local UNMARKED = ", got rows that nothing brought there: they carry no mark"

describe("a conversion that was left out is caught untraced", function()
    it("[T-25] before a layer, which names itself, what it expected and what it got", function()
        refused("layers%.0%.gdn: expected rows of " .. rows_of "contiguous" .. UNMARKED,
            { layer = 0, way = "to" })
        refused("layers%.1%.gqa: expected rows of " .. rows_of "zigzag" .. UNMARKED,
            { layer = 1, way = "to" }, { policy = "contiguous" })
        refused("layers%.1%.gqa: expected rows of mirror, cp 2, .*, got rows of contiguous",
            { layer = 1, way = "to" }, SWAPS)
    end)

    it("[T-23] behind a layer: what it gave does not join the residual stream", function()
        refused("layers%.0%.gdn %(output%): expected rows of " .. rows_of "zigzag" .. UNMARKED,
            { layer = 0, way = "back" })
        refused("layers%.1%.gqa %(output%): expected rows of contiguous, .*, got rows of mirror",
            { layer = 1, way = "back" }, SWAPS)
    end)

    it("on the way back: gradients are held to the same", function()
        refused("layers%.0%.gdn: expected rows of " .. rows_of "contiguous" .. UNMARKED,
            { layer = 0, way = "to", gradient = true })
        refused("layers%.0%.gdn %(gradient%): expected rows of " .. rows_of "zigzag" .. UNMARKED,
            { layer = 0, way = "back", gradient = true })
    end)

    local policy = { entry = "contiguous", exit = "mirror",
        layers = { { live = "contiguous" }, { live = "zigzag" } } }

    it("[T-43] of the residual stream, forward and backward, and before the loss", function()
        refused("layers%.1%.gqa %(residual%): expected rows of " .. rows_of "zigzag" .. UNMARKED,
            { layer = 1, way = "residual" }, { policy = policy })
        refused("final_norm %(residual%): expected rows of " .. rows_of "mirror" .. UNMARKED,
            { layer = 2, way = "residual" }, { policy = policy })
        refused("layers%.1%.gqa %(residual gradient%): expected rows of " .. rows_of "contiguous",
            { layer = 1, way = "residual", gradient = true }, { policy = policy })
    end)

    -- Without depths the loss sees it; with one its input, which the first labels are, comes first.
    it("of labels, which are held to the layout of the logits", function()
        local deep = { entry = policy.entry, exit = policy.exit,
            layers = { policy.layers[1], policy.layers[2], { live = "mirror" } } }
        local function labels_in(layout, mtp)
            local result, got = labs.run { stream = STREAM, cp = 2,
                model = labs.model { pattern = "G*", policy = mtp and deep or policy, mtp = mtp },
                options = { faults = { labels_in = layout } }, calls = { { "step", {} } } }
            return result or got
        end
        assert.truthy(labels_in("mirror").answers)
        assert.matches("loss %(labels%): expected rows of " .. rows_of "mirror"
            .. ", got rows of contiguous", labels_in "contiguous")
        assert.matches("mtp%.1 %(tokens%): expected rows of " .. rows_of "mirror"
            .. ", got rows of contiguous", labels_in("contiguous", { depth = 1, kind = "gqa" }))
    end)

    it("[T-37] in any step, though the buffer still holds the rows of the step before", function()
        assert.truthy(run({ layer = 0, way = "to", after = 2 }, { iters = 2 }))
        refused("layers%.0%.gdn: expected rows of " .. rows_of "contiguous" .. UNMARKED,
            { layer = 0, way = "to", after = 2 }, { iters = 3 })
        refused("layers%.0%.gdn %(output%)", { layer = 0, way = "back", after = 1 }, { iters = 2 })
        for _, gradient in ipairs { false, true } do
            refused("layers%.1%.gqa %(residual.*%): expected rows of .*" .. UNMARKED,
                { layer = 1, way = "residual", gradient = gradient, after = 1 },
                { policy = policy, iters = 2 })
        end
    end)

    it("[T-42] in the forward that recomputation runs again", function()
        assert.truthy(run(nil, { recompute = "layer" }))
        refused("layers%.0%.gdn: expected rows of", { layer = 0, way = "to", after = 1 },
            { recompute = "layer" })
    end)

    it("[T-44] of windows and shards, with tensor parallelism", function()
        assert.truthy(run(nil, { cp = 2, tp = 2 }))
        refused("layers%.0%.gdn: expected rows of contiguous", { layer = 0, way = "to" },
            { cp = 2, tp = 2 })
        refused("layers%.0%.gdn %(output%): expected rows of zigzag", { layer = 0, way = "back" },
            { cp = 2, tp = 2 })
    end)
end)

describe("the contract", function()
    it("[T-53] of documents that zigzag cannot cut: refused there, right elsewhere", function()
        local documents = { lengths = { 5, 11 } }
        local m = labs.parity_step(documents, labs.model { policy = { "snake", "snake", "snake" } },
            2)
        assert.is_true(m.parity_fwd <= 1e-12 and m.parity_grad <= 1e-12)
        assert.equal(0, m.wrong_rows)
        local result, got = run(nil, { stream = documents })
        assert.is_nil(result)
        assert.truthy(got:find("sequence 0 has 5 tokens, not a multiple of 2*cp = 4", 1, true), got)
    end)

    it("is kept by every policy, and looks at no row where nothing is traced", function()
        for _, policy in ipairs { "zigzag", "mirror", "native" } do
            assert.truthy(run(nil, { policy = policy }))
        end
    end)

    it("[T-37] believes marks: who forges one needs the trace to be caught", function()
        local function step(trace)
            return assert(labs.run { stream = STREAM, cp = 2, model = labs.model { pattern = "G*",
                policy = "zigzag" }, options = { faults = { skip_back = { layer = 0 } } },
                calls = { { "step", { backward = true, reference = true, trace = trace } } } })
        end
        local untraced, traced = step(false), step(true)
        assert.is_true(untraced.answers[1].parity_fwd > 1e-3)
        assert.equal(0, #untraced.checks)
        assert.is_true(traced.answers[1].wrong_rows > 0)
        assert.is_false(traced.checks[1].passed)
    end)
end)
