-- What a validation says of measured and predicted times; nothing is measured here.
local steps = require "cplab.project.steps"
local validate = require "cplab.project.validate"

local CASES = {
    { pattern = "G*", policy = "mirror", cp = 2, tokens = 64, hidden = 64, parts = { 1 } },
    { pattern = "G*", policy = "mirror", cp = 4, tokens = 64, hidden = 64, parts = { 0.5, 0.5 } },
}

local function judged(a, b, busy)
    local measured = { { seconds = 1, busy = busy or 2 }, { seconds = 2, busy = busy or 4 } }
    return validate.judge(CASES, measured, { a, b }, 2)
end

describe("a validation", function()
    it("passes within 15 % on the mean and 30 % at worst", function()
        local verdict = judged(1.1, 1.8)
        assert.near(0.10, verdict.mean, 1e-12)
        assert.near(0.10, verdict.worst, 1e-12)
        assert.truthy(verdict.passed)
    end)

    it("fails where the mean is larger, or one error alone", function()
        assert.falsy(judged(1.16, 1.66).passed)
        local verdict = judged(1, 1.39) -- a mean of 15.25 %, and -30.5 %
        assert.near(0.305, verdict.worst, 1e-12)
        assert.falsy(verdict.passed)
        assert.falsy(judged(1.31, 2).passed)
        assert.falsy(judged(0 / 0, 2).passed)
    end)

    it("tells signed errors against wall clock and CPU time", function()
        local rows = judged(1.1, 1.8).rows
        assert.near(0.1, rows[1].error, 1e-12)
        assert.near(-0.1, rows[2].error, 1e-12)
        -- 4 ranks on 2 cores spend their 4 CPU seconds in 2.
        assert.equal(2, rows[2].cpu)
        assert.falsy(rows[2].is_disturbed)
        rows = judged(1.1, 1.8, 1).rows
        assert.truthy(rows[1].is_disturbed and rows[2].is_disturbed)
    end)

    it("says so where something else used the machine", function()
        local function text(...)
            return table.concat(validate.lines(judged(...), "a machine"), "\n")
        end
        assert.truthy(text(1.1, 1.8, 1):find "2 steps took much longer than the CPU time")
        assert.truthy(text(1.1, 1.8, 1):find("against CPU time the error is 190.0 and 260.0 %", 1,
            true))
        assert.falsy(text(1.1, 1.8):find "longer")
        assert.truthy(text(1.1, 1.8):find("mean 10.0 %, worst 10.0 %; aim 15 and 30 %", 1, true))
    end)
end)

describe("held-out steps", function()
    it("can be built, several schedules, policies and group sizes of them", function()
        local seen = { pattern = {}, policy = {}, cp = {} }
        for _, case in ipairs(steps.cases) do
            local model, stream = steps.model(case), steps.stream(case)
            assert.equal(case.tokens, stream:n_positions())
            local group = { cp = case.cp, tp = 1 }
            local assignment = model:assignment(stream, group)
            assert.truthy(model:layouts(assignment, stream, group))
            for field, set in pairs(seen) do set[case[field]] = true end
        end
        assert.truthy(seen.cp[1] and seen.cp[2] and seen.cp[4])
        for _, name in ipairs { "zigzag", "contiguous", "mirror", "balanced", "native" } do
            assert.truthy(seen.policy[name], name)
        end
    end)

    it("are of other sizes than those of the fit", function()
        local fitted = require("cplab.project.fit").sizes
        for _, case in ipairs(steps.cases) do
            assert.are_not.equal(fitted.width, case.hidden)
            for _, list in ipairs { fitted.attention, fitted.delta } do
                for _, tokens in ipairs(list) do
                    assert.are_not.equal(tokens, case.tokens / case.cp)
                end
            end
        end
    end)
end)
