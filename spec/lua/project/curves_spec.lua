-- When does it pay: sizes that are read, ranges between crossings, and their sentences.
local curves = require "cplab.project.curves"

local AXES = { "tokens", "cp", "nodes" }

-- Points at x = 1, 2, 4, .. of curves given as lists.
local function points(lists)
    local list = {}
    for policy, values in pairs(lists) do
        for i, seconds in ipairs(values) do
            list[i] = list[i] or { x = 2 ^ (i - 1), seconds = {} }
            list[i].seconds[policy] = seconds or nil
        end
    end
    return list
end

local function say(x) return curves.show(x) .. " tokens" end

local function sentences(lists, policies)
    return curves.sentences(points(lists), policies, say)
end

describe("curves", function()
    it("read ranges that double, and lists", function()
        assert.same({ axis = "tokens", values = { 8192, 16384, 32768 } },
            curves.read("tokens=8k..32k", AXES))
        assert.same({ axis = "tokens", values = { 2 ^ 19, 2 ^ 20 } },
            curves.read("tokens=512K..1m", AXES))
        assert.same({ axis = "cp", values = { 3, 6, 12 } }, curves.read("cp=3..23", AXES))
        assert.same({ axis = "nodes", values = { 1, 3 } }, curves.read("nodes=1,3", AXES))
    end)

    for _, text in ipairs { "tokens", "tokens=", "tokens=8k..", "tokens=8k..4k", "tokens=0..8",
        "cp=4,2", "cp=4,4", "cp=4,,8", "cp=x", "cp=1.5", "layers=1..8", "=1..8" } do
        it("refuse " .. text, function()
            local asked, message = curves.read(text, AXES)
            assert.is_nil(asked)
            assert.truthy(message:find("--sweep", 1, true))
            assert.truthy(message:find(text:match "=(.+)$" or text, 1, true))
        end)
    end

    it("show binary sizes", function()
        assert.equal("512", curves.show(512))
        assert.equal("8k", curves.show(8192))
        assert.equal("23.4k", curves.show(23.44 * 1024))
        assert.equal("1.5m", curves.show(1.5 * 2 ^ 20))
    end)

    it("cross where the ratio of times is 1, in logarithms", function()
        -- a / b goes from 1/2 at 2 to 2 at 4: half way in the logarithm of the size.
        local list = points { a = { 1, 1, 4 }, b = { 2, 2, 2 } }
        local ranges = curves.ranges(list, "a", "b")
        assert.equal(1, #ranges)
        assert.near(2 * 2 ^ 0.5, ranges[1].from, 1e-12)
        assert.is_nil(ranges[1].to)
        -- A size that is off by a factor is off.
        assert.truthy(math.abs(ranges[1].from - 3) > 0.1)
    end)

    it("say who pays against whom from where on", function()
        assert.same({ "b pays against a from 2.83 tokens on" },
            sentences({ a = { 1, 1, 4 }, b = { 2, 2, 2 } }, { "a", "b" }))
        -- Whoever is ahead at the largest size is said to pay, in whichever order they stand.
        assert.same({ "b pays against a from 2.83 tokens on" },
            sentences({ a = { 1, 1, 4 }, b = { 2, 2, 2 } }, { "b", "a" }))
    end)

    it("say two ranges, and one that ends", function()
        assert.same({ "b pays against a up to 1.41 tokens and from 2.83 tokens on" },
            sentences({ a = { 2, 1, 2 }, b = { 1, 2, 1 } }, { "a", "b" }))
        assert.same({ "b pays against a up to 2 tokens" },
            sentences({ a = { 2, 1, 1 }, b = { 1, 1, 1 } }, { "a", "b" }))
    end)

    it("say nothing of curves that do not cross or are the same", function()
        assert.same({}, sentences({ a = { 1, 2, 3 }, b = { 2, 3, 4 } }, { "a", "b" }))
        assert.same({}, sentences({ a = { 1, 2, 3 }, b = { 1, 2, 3 } }, { "a", "b" }))
    end)

    it("go over points that a policy lacks", function()
        assert.same({ "b pays against a from 2 tokens on" },
            sentences({ a = { 1, 3, 4 }, b = { 4, false, 1 } }, { "a", "b" }))
    end)

    it("tell the best of a point, all of them if they are alike", function()
        local list = points { a = { 1, 2 }, b = { 2, 2 }, c = { 3, false } }
        assert.same({ "a" }, curves.best(list[1], { "a", "b", "c" }))
        assert.same({ "a", "b" }, curves.best(list[2], { "a", "b", "c" }))
    end)
end)
