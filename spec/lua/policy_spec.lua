local assignment = require "cplab.assignment"
local layout = require "cplab.layout"
local policy = require "cplab.policy"
local schedule = require "cplab.schedule"
local stream = require "cplab.stream"

local function mlp() return "mlp" end

local function steps_of(name, of, cp)
    return assignment.steps(assignment.from_policy(policy.resolve(name), of.layers), cp, mlp)
end

local function steps(name, pattern, cp)
    return steps_of(name, schedule.pattern(pattern, #pattern), cp)
end

-- The layouts of a policy on a stream, for a layer of each kind.
local function layouts_of(name, s, balance)
    local of = policy.resolve(name)
    local layouts = assignment.layouts(assignment.from_policy(of,
        schedule.pattern("G*", 2):with_modes({ gqa = "p2p", gdn = "chunkwise" }).layers), s,
        { cp = 2 }, balance)
    return { live = layouts.live[of.live], gqa = layouts.shard[of.gqa],
        gdn = layouts.shard[of.gdn] }
end

local function words(list)
    local out = {}
    for i, step in ipairs(list) do
        out[i] = step.op == "convert" and (step.from .. ">" .. step.to) or step.op
    end
    return table.concat(out, " ")
end

describe("policy", function()
    it("names triples: where the model lives, where GQA and GDN run", function()
        local p = policy.resolve "mirror"
        assert.same({ name = "mirror", live = "contiguous", gqa = "mirror", gdn = "contiguous" }, p)
        p = policy.resolve { "zigzag", "contiguous", "mirror" }
        assert.equal("zigzag/contiguous/mirror", p.name)
        assert.equal("mirror", p.gdn)
    end)

    it("converts around each mixer that runs elsewhere, and never coalesces", function()
        assert.equal("zigzag>contiguous mixer contiguous>zigzag mlp "
            .. "zigzag>contiguous mixer contiguous>zigzag mlp mixer mlp",
            words(steps("zigzag", "GG*", 2)))
        assert.equal("mixer mlp contiguous>mirror mixer mirror>contiguous mlp",
            words(steps("mirror", "G*", 4)))
        assert.equal("mixer mlp mixer mlp", words(steps("native", "G*", 4)))
    end)

    it("has nothing to convert at cp 1", function()
        assert.equal("mixer mlp mixer mlp", words(steps("zigzag", "G*", 1)))
    end)

    it("counts 8 / 12 / 14, 8 / 4 / 2 and 0 conversions at 8 layers", function()
        local expected = {
            zigzag = { 8, 12, 14 }, contiguous = { 8, 4, 2 }, mirror = { 8, 4, 2 },
            balanced = { 8, 4, 2 },
            native = { 0, 0, 0 },
        }
        for name, counts in pairs(expected) do
            for i, ratio in ipairs { "1:1", "1:3", "1:7" } do
                local list = steps_of(name, schedule.ratio(ratio, 8), 2)
                local _, n = words(list):gsub(">", "")
                assert.equal(counts[i], n)
            end
        end
    end)

    it("shares one layout between equal names", function()
        local s = stream.thd { lengths = { 8, 16 } }
        local layouts = layouts_of("zigzag", s)
        assert.equal(layouts.live, layouts.gqa)
        assert.not_equal(layouts.live, layouts.gdn)
    end)

    it("balances near to where the model lives, in blocks that divide", function()
        local s = stream.thd { lengths = { 96, 8, 24 } }
        local layouts = layouts_of("balanced", s)
        assert.equal(layouts.live, layouts.gdn)
        assert.equal("balanced", layouts.gqa.kind)
        assert.is_true(layouts.gqa:equals(layout.balanced(s, { cp = 2, block = 8 })))
        local loose = layouts_of("balanced", s, { tolerance = 1 })
        assert.is_true(loose.gqa:equals(layouts.live))
        layouts = layouts_of({ "zigzag", "balanced", "balanced" }, s)
        assert.is_true(layouts.gqa:equals(layouts.live)) -- zigzag is as balanced as can be
        assert.equal(layouts.gqa, layouts.gdn)
        layouts = layouts_of({ "balanced", "balanced", "zigzag" }, s)
        assert.is_true(layouts.live:equals(layout.balanced(s, { cp = 2, block = 8 })))
    end)

    it("refuses a block that does not divide", function()
        local s = stream.thd { lengths = { 96, 8, 24 } }
        assert.has_error(function()
            layouts_of("balanced", s, { block = 16 })
        end, "layout.balanced: sequence 1 has 8 tokens, not a multiple of block = 16")
    end)

    it("refuses unknown names, with the nearest", function()
        assert.has_error(function() policy.resolve "mirrow" end,
            'policy: unknown policy "mirrow"; did you mean "mirror"?')
        assert.has_error(function() policy.resolve { "zigzag", "spiral", "contiguous" } end,
            'policy: unknown layout "spiral"; there are contiguous, zigzag, mirror, '
                .. "balanced, snake, striped")
        for _, other in ipairs { { "zigzag" }, { "zigzag", "zigzag", "zigzag", gdn = "mirror" },
            { live = "zigzag", gqa = "zigzag", gdn = "contiguous" }, 3, true } do
            assert.has_error(function() policy.resolve(other) end,
                "policy: expected a name, three layouts { model, gqa, gdn } or an assignment")
        end
    end)
end)
