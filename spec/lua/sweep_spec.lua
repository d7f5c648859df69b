-- The product of the axes, and what --set and --only make of it.
local experiment = require "cplab.experiment"
local sweep = require "cplab.sweep"

local function with(axes, params)
    return experiment.new { name = "x", run = function() end, sweep = axes, params = params }
end

local function labels(cases, axes)
    local list = {}
    for i, case in ipairs(cases) do list[i] = sweep.describe(case, axes) end
    return list
end

describe("sweep.axes", function()
    it("puts ratio, policy, cp and tp first, then the others by name", function()
        local axes = { z = { 1 }, a = { 1 }, tp = { 1 }, cp = { 1 }, policy = { "native" },
            ratio = { "1:1" } }
        assert.same({ "ratio", "policy", "cp", "tp", "a", "z" }, sweep.axes(axes))
    end)

    it("follows the order that the script gives", function()
        assert.same({ "cp", "a", "ratio" },
            sweep.axes { order = { "cp", "a" }, ratio = { "1:1" }, a = { 1 }, cp = { 1 } })
    end)
end)

describe("sweep.cases", function()
    it("varies the last axis fastest", function()
        local axes = { policy = { "zigzag", "native" }, cp = { 1, 2 } }
        assert.same({
            "policy=zigzag cp=1", "policy=zigzag cp=2", "policy=native cp=1", "policy=native cp=2",
        }, labels(sweep.cases(axes, {}), { "policy", "cp" }))
    end)

    it("gives one case of one rank where there is no axis", function()
        assert.same({ { cp = 1, tp = 1, multiple = 2, tokens = 7 } },
            sweep.cases({}, { tokens = 7 }))
    end)

    it("computes the one multiple that serves all cases", function()
        assert.equal(24, sweep.cases({ cp = { 1, 3, 4 } }, {})[1].multiple)
        assert.equal(60, sweep.cases({ cp = { 5 }, tp = { 2, 3 } }, {})[1].multiple)
    end)

    for _, bad in ipairs { 0, -1, 1.5 } do
        it("refuses cp = " .. bad, function()
            local cases, message = sweep.cases({ cp = { bad } }, {})
            assert.is_nil(cases)
            assert.equal(("sweep: cp must be an integer >= 1 (got %s)"):format(bad), message)
        end)
    end
end)

describe("sweep.set", function()
    it("replaces an axis by values of the axis' own type", function()
        local axes = sweep.set(with { cp = { 1, 2 }, ratio = { "1:1" } },
            { "cp=4,8", "ratio=1:3" })
        assert.same({ cp = { 4, 8 }, ratio = { "1:3" } }, axes)
    end)

    it("sets a param to the whole text, commas too", function()
        local _, params = sweep.set(with({}, { corpus = "a", tokens = 1, deep = false }),
            { "corpus=b,c", "tokens=64", "deep=true" })
        assert.same({ corpus = "b,c", tokens = 64, deep = true }, params)
    end)

    it("leaves the experiment as it is", function()
        local e = with({ cp = { 1 } }, { tokens = 1 })
        sweep.set(e, { "cp=2", "tokens=3" })
        assert.same({ { cp = { 1 } }, { tokens = 1 } }, { e.sweep, e.params })
    end)

    local bad = {
        { "cp", "--set cp: the form is name=value" },
        { "cp=two", '--set cp: takes a number, got "two"' },
        { "cp=nan", '--set cp: takes a number, got "nan"' },
        { "cp=", '--set cp: takes a number, got ""' },
        { "deep=maybe", '--set deep: takes a boolean, got "maybe"' },
        { "corpus=", '--set corpus: takes a string, got ""' },
    }
    for _, row in ipairs(bad) do
        it("refuses " .. row[1], function()
            local e = with({ cp = { 1 } }, { deep = false, corpus = "x" })
            assert.same({ nil, row[2] }, { sweep.set(e, { row[1] }) })
        end)
    end

    it("names the nearest of what there is", function()
        local _, message = sweep.set(with({ ratio = { "1:1" } }, { corpus = "x" }),
            { "ration=1:1" })
        assert.equal('--set: unknown axis or param "ration"; did you mean "ratio"?', message)
        _, message = sweep.set(with({ cp = { 1 } }, { corpus = "x" }), { "zzz=1" })
        assert.equal('--set: unknown axis or param "zzz"; there are cp, corpus', message)
    end)
end)

describe("sweep.only", function()
    local axes = { policy = { "zigzag", { "zigzag", "mirror", "contiguous" } }, cp = { 1, 2, 4 } }
    local cases = sweep.cases(axes, {})

    it("keeps the cases that every filter lets through", function()
        local kept = sweep.only(cases, axes, { "cp=2,4", "policy=zigzag" })
        assert.same({ "policy=zigzag cp=2", "policy=zigzag cp=4" },
            labels(kept, { "policy", "cp" }))
    end)

    it("knows a policy of three layouts by their names", function()
        assert.equal(3, #sweep.only(cases, axes, { "policy=zigzag/mirror/contiguous" }))
    end)

    it("knows an assignment of layers by its name", function()
        local layers = { { live = "zigzag" } }
        assert.equal("mixed", sweep.label { name = "mixed", layers = layers })
        assert.equal("assignment", sweep.label { layers = layers })
    end)

    it("refuses a value that the axis does not have", function()
        assert.same({ nil, "--only cp=3: the sweep has no cp 3 (it has 1, 2, 4)" },
            { sweep.only(cases, axes, { "cp=3" }) })
    end)

    it("refuses filters that leave nothing", function()
        assert.same({ nil, "--only: no case is left" },
            { sweep.only(cases, axes, { "cp=1", "cp=2" }) })
    end)
end)

describe("sweep.reasons", function()
    local cases = sweep.cases({ cp = { 1, 2, 4 } }, {})

    it("skips what needs more ranks than there are", function()
        local reasons, n = sweep.reasons(with { cp = { 1 } }, cases, 2)
        assert.same({ 2, nil, "needs 4 ranks, --ranks is 2" },
            { n, reasons[cases[2]], reasons[cases[3]] })
    end)

    it("asks the experiment", function()
        local e = with { cp = { 1 } }
        e.skip = function(case) return case.cp == 1 and "too small" or case.cp == 4 end
        local reasons = sweep.reasons(e, cases)
        assert.same({ "too small", "the experiment skips it" },
            { reasons[cases[1]], reasons[cases[3]] })
    end)

    it("is an error where nothing is left", function()
        local _, message = sweep.reasons(with { cp = { 1 } }, { cases[3] }, 1)
        assert.equal("nothing to run: the one case is skipped (needs 4 ranks, --ranks is 1)",
            message)
    end)
end)
