local assignment = require "cplab.assignment"
local cplab = require "cplab"
local message = require "spec.support.message"
local pipeline = require "cplab.pipeline"

local function schedule(n)
    return cplab.schedule.pattern("GGG*", n)
end

-- "0+3 3+5 8+4": first layer and count of each stage.
local function cut(n, options)
    local words = {}
    for i, stage in ipairs(pipeline.cut(schedule(n), options)) do
        assert.equal(i - 1, stage.index)
        words[i] = ("%d+%d"):format(stage.first, stage.count)
    end
    return table.concat(words, " ")
end

describe("a schedule is cut", function()
    it("evenly, as listed, with ends of their own, in virtual stages", function()
        assert.equal("0+3 3+3 6+3 9+3", cut(12, { pp = 4 }))
        assert.equal("0+12", cut(12, { pp = 1 }))
        assert.equal("0+3 3+5 8+4", cut(12, { stages = { 3, 5, 4 } }))
        assert.equal("0+3 3+5 8+4", cut(12, { stages = { 3, 5, 4 }, pp = 3 }))
        assert.equal("0+1 1+4 5+4 9+3", cut(12, { pp = 4, first = 1, last = 3 }))
        assert.equal("0+2 2+5 7+5", cut(12, { pp = 3, first = 2 }))
        assert.equal("0+5 5+7", cut(12, { pp = 2, last = 7 }))
        assert.equal("0+3 3+3 6+3 9+3", cut(12, { pp = 2, virtual = 2 }))
        assert.equal("0+1 1+2 3+3 6+6", cut(12, { stages = { 1, 2, 3, 6 }, virtual = 2 }))
        assert.equal(4, #pipeline.cut(8, { pp = 4 })) -- a number of layers will do
    end)

    it("so that stage k is chunk k / pp of rank k mod pp", function()
        local stages = pipeline.cut(12, { pp = 2, virtual = 3 })
        local seen = {}
        for i, stage in ipairs(stages) do seen[i] = { stage.pp_rank, stage.virtual } end
        assert.same({ { 0, 0 }, { 1, 0 }, { 0, 1 }, { 1, 1 }, { 0, 2 }, { 1, 2 } }, seen)
        assert.equal(10, pipeline.find(stages, 1, 2).first)
        assert.equal(2, pipeline.find(stages, 1).first)
        assert.equal("stage 3 (layers 6-7)", pipeline.describe(stages[4]))
        assert.equal("stage 0 (layer 0)", pipeline.describe(pipeline.cut(2, { pp = 2 })[1]))
    end)

    local REFUSED = {
        { 10, { pp = 4 }, "10 layers, not a multiple of pp = 4" },
        { 2, { pp = 4 }, "2 layers, not a multiple of pp = 4" },
        { 12, { pp = 4, virtual = 2 }, "12 layers, not a multiple of pp * virtual = 8" },
        { 12, { stages = { 3, 5, 3 } }, "11 layers in 3 stages, the schedule has 12" },
        { 12, { stages = { 3, 5, 4 }, pp = 2 }, "3 stages are listed, pp * virtual = 2" },
        { 12, { stages = { 6, 6 }, pp = 2, virtual = 2 }, "2 stages are listed, pp * virtual = 4" },
        { 12, { stages = { 3, 5, 4 }, virtual = 2 }, "3 stages, not a multiple of virtual = 2" },
        { 12, { stages = { 3, 5, 4 }, first = 3 },
            "stages lists every count, so there is no first or last beside it" },
        { 12, { stages = { 3, 5, 4 }, last = 4 },
            "stages lists every count, so there is no first or last beside it" },
        { 12, { stages = { 0, 12 } }, "stages[1] must be an integer >= 1 (got 0)" },
        { 12, { pp = 4, first = 3, last = 2 },
            "7 layers, not a multiple of the stages that share them = 2" },
        { 12, { pp = 2, first = 3, last = 2 },
            "first = 3 and last = 2 leave 7 of 12 layers to 0 stages" },
        { 12, { pp = 2, virtual = 2, first = 3 }, "first and last do not go with virtual = 2" },
        { 12, { pp = 2, first = 99 },
            "first = 99 and last = nil leave -87 of 12 layers to 1 stages" },
        { 12, { pp = 3, first = 11 },
            "first = 11 and last = nil leave 1 of 12 layers to 2 stages" },
        { 12, { pp = 2, first = 4, last = 4 },
            "first = 4 and last = 4 leave 4 of 12 layers to 0 stages" },
        { 12, {}, "give pp, how many stages, or stages, their layers" },
        { 12, { pp = 0 }, "pp must be an integer >= 1 (got 0)" },
        { 12, { pp = 2, vpp = 2 }, 'unknown field "vpp"; did you mean "pp"?' },
        { 12, { pp = 2, entries = { [2] = "zigzag" } },
            "a stage of entries must be an integer in 1 .. 1 (got 2)" },
        { 12, { pp = 2, entries = { [1] = "zigzak" } },
            'unknown layout "zigzak"; did you mean "zigzag"?' },
    }
    for _, case in ipairs(REFUSED) do
        it("but not if: " .. case[3], function()
            assert.equal("pipeline.cut: " .. case[3], message(pipeline.cut,
                case[1] == 12 and schedule(12) or case[1], case[2]))
        end)
    end

    it("into stages that can be asked for, and no others", function()
        local stages = pipeline.cut(12, { pp = 2, virtual = 2 })
        assert.has_error(function() pipeline.find(stages, 2) end,
            "pipeline.find: pp_rank must be an integer in 0 .. 1 (got 2)")
        assert.has_error(function() pipeline.find(stages, -1) end,
            "pipeline.find: pp_rank must be an integer in 0 .. 1 (got -1)")
        assert.has_error(function() pipeline.find(stages, 0, 2) end,
            "pipeline.find: virtual must be an integer in 0 .. 1 (got 2)")
        assert.has_error(function() pipeline.find({}, 0) end, "pipeline.find: there are no stages")
        assert.has_error(function() pipeline.find(nil, 0) end,
            "pipeline.find: stages must be a list (got nil)")
    end)
end)

-- Layers that cplab has for those of the published table: attention (M, *), the delta rule
-- chunkwise (G chunkwise, D under dsv4_hybrid, C), any layout (-, E, G headwise).
local LAYER = { ["*"] = "gqa", G = "gdn", ["-"] = { "gdn", cp_mode = "headwise" },
    E = { "gqa", cp_mode = "a2a" } }

local function wants(pattern)
    local list = {}
    for symbol in pattern:gmatch "." do list[#list + 1] = LAYER[symbol] end
    return pipeline.preferences(cplab.schedule.list(list))
end

describe("the layout in which hidden states arrive at a stage", function()
    local TABLE = {
        { "*-G", 0, "zigzag" }, { "*-G", 2, "zigzag" }, { "*-G", 3, "contiguous" },
        { "-G", 0, "contiguous" }, { "-*", 0, "zigzag" }, { "G-E", 0, "contiguous" },
        { "G-E", 2, "contiguous" }, { "-E-", 0, nil }, { "-E-", 3, nil },
        { "G*G*", 0, "contiguous" }, { "G*G*", 2, "zigzag" }, { "-*", 1, "zigzag" },
        { "--G", 1, "contiguous" },
    }
    for _, case in ipairs(TABLE) do
        it(("is %s at layer %d of %s"):format(tostring(case[3]), case[2], case[1]), function()
            assert.equal(case[3], pipeline.entry_layout(wants(case[1]), case[2]))
        end)
    end

    it("is worked out from a list of layouts, and nothing else", function()
        local function refused(text, ...)
            assert.equal("pipeline.entry_layout: " .. text, message(pipeline.entry_layout, ...))
        end
        refused("preferences must be a list (got nil)")
        refused('preferences must be a list (got "zigzag")', "zigzag", 0)
        refused('unknown layout "zigzak"; did you mean "zigzag"?', { "zigzak" }, 0)
        assert.equal('pipeline.preferences: the first argument must be a schedule (got "1:3")',
            message(pipeline.preferences, "1:3"))
    end)

    it("T-40: is what the stage before works out for its end", function()
        local list = wants "G*-GG-*E"
        for first = 1, #list do
            local last -- of the layers that run before
            for i = 1, first do last = list[i] or last end
            assert.equal(last, pipeline.entry_layout(list, first))
        end
    end)

    it("follows what layers are told to want", function()
        local list = pipeline.preferences(schedule(4), { attention = "balanced@0.1" })
        assert.same({ "contiguous", "contiguous", "contiguous", "balanced@0.1" }, list)
        assert.has_error(function() pipeline.preferences(schedule(4), { gdn = "zigzak" }) end,
            'pipeline.preferences: unknown layout "zigzak"; did you mean "zigzag"?')
        assert.has_error(function() pipeline.entry_layout(list, 5) end,
            "pipeline.entry_layout: first must be an integer in 0 .. 4 (got 5)")
    end)

    it("T-39: is that of the homes before it in an assignment, or as given", function()
        local of = { entry = "mirror", exit = "zigzag", layers = { { live = "zigzag" },
            { live = "zigzag" }, { live = "contiguous" }, { live = "contiguous" } } }
        local model = { layers = function() return schedule(4):with_modes {
            gqa = "p2p", gdn = "chunkwise" }.layers end, schedule = schedule(4) }
        local fitted = assignment.fit(of, model)
        local placed = pipeline.place(fitted, pipeline.cut(4, { pp = 4,
            entries = { [3] = "snake" } }))
        local entries = {}
        for i, stage in ipairs(placed.stages) do entries[i] = stage.entry end
        assert.same({ "mirror", "zigzag", "zigzag", "snake" }, entries)
        local words = {}
        for _, step in ipairs(assignment.steps(placed, 2, function() end)) do
            words[#words + 1] = step.op == "convert" and step.from .. ">" .. step.to or nil
        end
        assert.same({ "mirror>zigzag", "zigzag>contiguous", "contiguous>snake",
            "snake>contiguous", "contiguous>zigzag" }, words)
    end)
end)

describe("what arrives at a stage", function()
    it("must be what is expected, on several CP ranks", function()
        pipeline.check_entry("stage 1", "zigzag", "zigzag", 4)
        pipeline.check_entry("stage 1", "zigzag", "contiguous", 1)
        pipeline.check_entry("stage 1", nil, nil, 1)
        assert.has_error(function() pipeline.check_entry("stage 1", "zigzag", "mirror", 2) end,
            "pipeline: stage 1 expects hidden states in zigzag, but they arrived in mirror")
        assert.has_error(function() pipeline.check_entry("stage 1", nil, "mirror", 2) end,
            "pipeline: stage 1: the layout that is expected is unknown, and at cp 2 it matters")
        assert.has_error(function() pipeline.check_entry("stage 1", "zigzag", nil, 2) end,
            "pipeline: stage 1: the layout that arrived is unknown, and at cp 2 it matters")
    end)
end)
