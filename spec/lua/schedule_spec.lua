local schedule = require "cplab.schedule"

describe("schedule", function()
    it("ratio 1:k puts GQA at every (k+1)th layer", function()
        assert.equal("GGG*GGG*", schedule.ratio("1:3", 8):describe())
        assert.equal("G*G*", schedule.ratio("1:1", 4):describe())
        assert.equal("***", schedule.ratio("1:0", 3):describe())
        local s = schedule.ratio("1:7", 16)
        assert.equal(16, s:count())
        assert.equal(2, s:count "gqa")
        assert.equal(14, s:count "gdn")
    end)

    it("list takes kinds, and kinds with a cp_mode", function()
        local s = schedule.list { "gdn", { "gdn", cp_mode = "headwise" }, "gqa",
            { "gqa", cp_mode = "p2p", window = 5 } }
        assert.equal("GG**", s:describe())
        assert.is_nil(s.layers[3].cp_mode)
        assert.same({ kind = "gqa", cp_mode = "p2p", window = 5 }, s.layers[4])
    end)

    it("takes the mode of its kind where a layer says none, in a copy", function()
        local s = schedule.list { "gqa", { "gqa", cp_mode = "p2p", window = 5 }, "gdn",
            { "gdn", cp_mode = "headwise" } }
        assert.same({ { kind = "gqa", cp_mode = "a2a" },
            { kind = "gqa", cp_mode = "p2p", window = 5 }, { kind = "gdn", cp_mode = "chunkwise" },
            { kind = "gdn", cp_mode = "headwise" } },
            s:with_modes { gqa = "a2a", gdn = "chunkwise" }.layers)
        assert.is_nil(s.layers[1].cp_mode)
    end)

    it("pattern is repeated and cut", function()
        assert.equal("GGG*GGG*GG", tostring(schedule.pattern("GGG*", 10)))
        assert.equal("*", schedule.pattern("*GG", 1):describe())
        assert.equal("GL*", schedule.list { "gdn", "mla", "gqa" }:describe())
        assert.equal("mla", schedule.pattern("GL", 2).layers[2].kind)
    end)

    it("T-41: refuses what is none, with the rule", function()
        local function refused(message, f, ...)
            local arguments = { ... }
            assert.has_error(function() f(unpack(arguments)) end, message)
        end
        refused("schedule.ratio: expected '1:k' (GQA:GDN), got '2:3'", schedule.ratio, "2:3", 8)
        refused("schedule.ratio: expected '1:k' (GQA:GDN), got '3'", schedule.ratio, 3, 8)
        refused("schedule.ratio: 10 layers, not a multiple of 1 + 3 for ratio 1:3",
            schedule.ratio, "1:3", 10)
        refused("schedule.ratio: the number of layers must be a positive integer (got 0)",
            schedule.ratio, "1:3", 0)
        refused("schedule.pattern: the number of layers must be a positive integer (got 2.5)",
            schedule.pattern, "G", 2.5)
        refused("schedule.pattern: unknown symbol 'M' in 'GM*' (G: GDN, *: GQA, L: MLA)",
            schedule.pattern, "GM*", 3)
        refused('schedule.list: unknown layer kind "gqn"; did you mean "gqa"?',
            schedule.list, { "gqn" })
        refused('schedule.list: unknown option of a gdn layer "cpmode"; did you mean "cp_mode"?',
            schedule.list, { { "gdn", cpmode = "chunkwise" } })
        refused('schedule.list: unknown cp_mode of a gqa layer "ring"; there are gather, p2p, '
            .. "a2a, a2a+p2p", schedule.list, { { "gqa", cp_mode = "ring" } })
        refused("schedule.list: window of a gqa layer must be an integer in 0 .. 2147483647 (got "
            .. "-1)", schedule.list, { { "gqa", window = -1 } })
        refused('schedule.list: unknown option of a gdn layer "window"; there are cp_mode',
            schedule.list, { { "gdn", window = 3 } })
        refused("schedule.list: expected a list of at least one layer", schedule.list, {})
    end)

    it("blames the line that called", function()
        local _, message = pcall(function() schedule.ratio("1:x", 4) end)
        assert.equal("schedule_spec.lua", message:match "([%w_]+%.lua):%d+:" )
        _, message = pcall(function() schedule.list { "gqn" } end)
        assert.equal("schedule_spec.lua", message:match "([%w_]+%.lua):%d+:" )
    end)
end)
