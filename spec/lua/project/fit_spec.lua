-- A fit: lines through times, the numbers that follow, and a file that the loader takes. Times are
-- made up here, but for one measurement of tiny sizes.
local clusters = require "cplab.cluster"
local fit = require "cplab.project.fit"
local line = require "cplab.project.line"

-- What a machine of these rates would be measured at.
local RATE = { gemm_f32 = 100e9, gemm_f64 = 50e9, attention_forward = 60e9,
    attention_backward = 50e9, gdn_forward = 40e9, gdn_backward = 30e9, memory = 20e9,
    pointwise = 8e9, route = 25e6, exchange = 10e9 }
local FIXED = { attention_forward = 1e-5, memory = 2e-6, exchange = 3e-6 }

local function points(changes)
    local list = {}
    for kind, rate in pairs(RATE) do
        for _, x in ipairs { 1e6, 1e7, 1e8 } do
            local seconds = (FIXED[kind] or 0) + x / (changes and changes[kind] or rate)
            list[#list + 1] = { kind = kind, x = x, seconds = seconds, wall = seconds + 5e-6,
                n_messages = 1 }
        end
    end
    return list
end

local function fitted(changes)
    return fit.cluster(fit.text(fit.numbers(points(changes), 2), "a machine"))
end

describe("a line", function()
    it("finds what is fixed and what grows", function()
        local found = line.fit { { x = 1, seconds = 3 }, { x = 2, seconds = 5 },
            { x = 10, seconds = 21 } }
        assert.near(1, found.fixed, 1e-12)
        assert.near(2, found.slope, 1e-12)
    end)

    it("knows several calls in one time", function()
        local found = line.fit { { x = 1, seconds = 3 }, { x = 2, seconds = 8, calls = 4 } }
        assert.near(1, found.fixed, 1e-12)
        assert.near(2, found.slope, 1e-12)
    end)

    it("goes through zero rather than below", function()
        local found = line.fit { { x = 1, seconds = 1 }, { x = 2, seconds = 3 } }
        assert.equal(0, found.fixed)
        assert.truthy(found.slope > 1 and found.slope < 1.5)
    end)

    local wrong = {
        { "one size", { { x = 1, seconds = 1 }, { x = 1, seconds = 2 } }, "line: takes two sizes" },
        { "times that fall", { { x = 1, seconds = 2 }, { x = 2, seconds = 1 } },
            "line: the times do not grow with the size" },
        { "no time", { { x = 1, seconds = 0 }, { x = 2, seconds = 1 } },
            "line: a time of 0 s at 1" },
    }
    for _, row in ipairs(wrong) do
        it("refuses " .. row[1], function()
            assert.error_matches(function() line.fit(row[2]) end, row[3] .. "$")
        end)
    end
end)

describe("a fit", function()
    it("finds the rates of a machine that has them", function()
        local found = fitted()
        assert.near(100e9, found.flops.f32, 1e8)
        assert.near(50e9, found.flops.f64, 1e8)
        for kind, curve in pairs(found.efficiency) do
            assert.near((RATE[kind] or RATE.gemm_f32) / 100e9, curve.max, 1e-3)
        end
        assert.near(1e-5 * 60e9, found.efficiency.attention_forward.half, 600)
        assert.near(20e9, found.memory.bandwidth, 1e7)
        assert.near(4e4, found.memory.half, 100)
        assert.near(8e9, found.memory.pointwise, 1e7)
        assert.near(10e9, found.links.inside.beta, 1e7)
        assert.near(5e-6, found.links.inside.alpha, 1e-9)
        assert.near(3e-6, found.links.inside.message, 1e-9)
        assert.near(40e-9, found.host.segment, 1e-10)
        assert.equal(2, found.cores)
    end)

    it("has another number for another machine", function()
        assert.near(0.2, fitted({ gdn_forward = 20e9 }).efficiency.gdn_forward.max, 1e-3)
    end)

    it("leaves out rows that stay when it prices those that cross", function()
        local list = points()
        for _, point in ipairs(list) do
            if point.kind == "exchange" then
                point.kept = point.x
                point.seconds = point.seconds + 2 * point.x / 20e9
            end
        end
        local found = fit.cluster(fit.text(fit.numbers(list, 2), "a machine"))
        assert.near(10e9, found.links.inside.beta, 2e7)
    end)

    it("is never above its own peak", function()
        local found = fitted { gdn_forward = 150e9 }
        assert.near(150e9, found.flops.f32, 1e9)
        assert.near(2 / 3, found.efficiency.gemm.max, 1e-2)
    end)

    it("says of every number where it is from", function()
        local n = 0
        for path, source in pairs(fitted().sources) do
            n = n + 1
            assert.truthy(source:find("measured by project --fit on a machine: ", 1, true)
                or source:find("set by project --fit, not measured: ", 1, true), path)
        end
        assert.equal(38, n)
    end)

    it("has lines of at most 100 characters, whatever the machine is called", function()
        local text = fit.text(fit.numbers(points(), 2), ("long name "):rep(8))
        for row in text:gmatch "[^\n]+" do
            if not row:find "long name" then assert.truthy(#row <= 100, row) end
        end
        assert.truthy(fit.cluster(text).memory.bandwidth > 0)
    end)

    it("gives equal texts for equal times", function()
        assert.equal(fit.text(fit.numbers(points(), 2), "m"),
            fit.text(fit.numbers(points(), 2), "m"))
    end)

    it("would be refused by the loader with a number broken", function()
        local text = fit.text(fit.numbers(points(), 2), "a machine")
        local broken, n = text:gsub("f64 = { [^,]*", "f64 = { -1", 1)
        assert.equal(1, n)
        assert.error_matches(function() fit.cluster(broken) end, "flops.f64 must be a number > 0")
    end)

    it("measures a machine: tiny sizes", function()
        local sizes = { width = 64, gemm = { f32 = { 8, 32 }, f64 = { 8 } },
            gqa = { heads = 2, kv_heads = 1, head_dim = 16, window = 0 }, attention = { 16, 64 },
            spans = 4,
            gdn = { key_heads = 1, value_heads = 1, key_dim = 16, value_dim = 16, chunk = 16 },
            delta = { 16, 64 }, memory = { 64, 512 }, pointwise = { 16, 64 },
            exchange = { 16, 1024 }, routes = { 4, 64 } }
        local measured = assert(fit.measure(sizes, 1))
        local kinds = {}
        for _, point in ipairs(measured) do
            kinds[point.kind] = (kinds[point.kind] or 0) + 1
            assert.truthy(point.x > 0 and point.seconds > 0 and point.wall > 0)
        end
        assert.same({ gemm_f32 = 4, gemm_f64 = 2, attention_forward = 3, attention_backward = 3,
            gdn_forward = 2, gdn_backward = 2, memory = 6, pointwise = 2, exchange = 4,
            route = 2 }, kinds)
    end)

    it("writes what a path can load", function()
        local path = os.tmpname()
        local file = assert(io.open(path, "w"))
        file:write(fit.text(fit.numbers(points(), 2), "a machine"))
        file:close()
        local ok, cluster = pcall(clusters.load, path)
        os.remove(path)
        assert.truthy(ok, cluster)
        assert.near(20e9, cluster.memory.bandwidth, 1e7)
    end)
end)
