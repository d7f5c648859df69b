-- Cluster files: what they must hold, and what is said where they do not.
local cplab = require "cplab"

local cluster = cplab.cluster

-- The text of an error, without where it was raised.
local function message_of(f, ...)
    local ok, message = pcall(f, ...)
    assert.is_false(ok)
    return message
end

-- A file that is right, for specs to break.
local function file()
    local function copy(t)
        local c = {}
        for key, value in pairs(t) do c[key] = type(value) == "table" and copy(value) or value end
        return c
    end
    return copy(require "cplab.clusters.h100")
end

describe("a cluster file", function()
    for _, name in ipairs(cluster.names) do
        it(name .. " is complete, and every number has its source", function()
            local c = cluster.load(name)
            assert.equal(name, c.name)
            local n = 0
            for path, source in pairs(c.sources) do
                n = n + 1
                assert.is_true(#source > 2, path)
            end
            assert.is_true(n >= 36)
        end)
    end

    local function rejects(pattern, change)
        local t = file()
        change(t)
        assert.matches(pattern, message_of(cluster.check, "mine", t), 1, true)
    end

    it("without a number is rejected by its name", function()
        rejects("cluster mine: links.inside.alpha is missing",
            function(t) t.links.inside.alpha = nil end)
        rejects("cluster mine: memory is missing", function(t) t.memory = nil end)
        rejects("cluster mine: flops.f64 must be a number > 0 (got nil)",
            function(t) t.flops.f64[1] = nil end)
    end)

    it("with a number out of its range is rejected by its name", function()
        for _, case in ipairs {
            { "links.between.alpha must be a number >= 0 (got -1)", "links", "between", "alpha",
                -1 },
            { "links.between.beta must be a number > 0 (got 0)", "links", "between", "beta", 0 },
            { "efficiency.gemm.max must be a number in (0, 1]", "efficiency", "gemm", "max", 1.5 },
            { "flops.bf16 must be a number > 0 (got nan)", "flops", nil, "bf16", 0 / 0 },
            { "flops.bf16 must be a number > 0 (got inf)", "flops", nil, "bf16", math.huge },
            { "flops.bf16 must be a number > 0 (got \"fast\")", "flops", nil, "bf16", "fast" },
            { "overlap.ring must be a number in [0, 1] (got 2)", "overlap", nil, "ring", 2 },
            { "host.lazy_syncs must be an integer >= 0", "host", nil, "lazy_syncs", 1.5 },
        } do
            local words, group, part, name, value = unpack(case, 1, 5)
            local t = file()
            local where = part and t[group][part] or t[group]
            where[name][1] = value
            local message = message_of(cluster.check, "mine", t):gsub("%-nan", "nan")
            assert.matches(words, message, 1, true)
        end
        rejects("ranks_per_node must be an integer >= 1 (got 0)",
            function(t) t.ranks_per_node[1] = 0 end)
    end)

    it("without a source is rejected", function()
        rejects("cluster mine: host.sync has no source", function(t) t.host.sync.source = nil end)
        rejects("cluster mine: host.sync has no source", function(t) t.host.sync.source = "" end)
        rejects("cluster mine: the unit of host.sync must be a text (got 7)",
            function(t) t.host.sync.unit = 7 end)
        rejects("cluster mine: host.sync must be { value, source = \"...\" } (got 2)",
            function(t) t.host.sync = 2 end)
    end)

    it("with a name that is not known is rejected with the nearest one", function()
        rejects("unknown field \"flop\"; did you mean \"flops\"?", function(t) t.flop = {} end)
        rejects("unknown field of links.inside \"aplha\"; did you mean \"alpha\"?",
            function(t) t.links.inside.aplha = { 1, source = "x" } end)
        rejects("unknown field of host.sync \"sorce\"; did you mean \"source\"?",
            function(t) t.host.sync.sorce = "x" end)
    end)

    it("is found by name or by path", function()
        assert.matches("unknown cluster \"h10\"; did you mean \"h100\"?",
            message_of(cluster.load, "h10"), 1, true)
        assert.matches("cannot open /nowhere/x.lua", message_of(cluster.load, "/nowhere/x.lua"))
        local path = os.tmpname()
        local function written(text)
            local f = assert(io.open(path, "w"))
            f:write(text)
            f:close()
            return path
        end
        assert.matches("must be a table (got 7)", message_of(cluster.load, written "return 7"), 1,
            true)
        assert.matches("cluster: ", message_of(cluster.load, written "return nothing.at.all"))
        assert.matches("efficiency is missing", message_of(cluster.load, written "return {}"))
        -- A sentence names the file and the line; a copy of one that comes with cplab is a file.
        assert.equal(("cluster: %s:2: unexpected symbol near '<eof>'"):format(path),
            message_of(cluster.load, written "return\n{"))
        assert.equal(("cluster: %s:2: attempt to call global 'error' (a nil value)"):format(path),
            message_of(cluster.load, written "\nerror 'no'"))
        assert.matches('require: unknown cluster file "os"; there are cplab.clusters.local',
            message_of(cluster.load, written "local os = require 'os' return os"), 1, true)
        local source = package.searchpath("cplab.clusters.h100", package.path)
        local f = assert(io.open(source))
        local copy = cluster.load(written(f:read "*a"))
        f:close()
        copy.name = "h100"
        assert.same(cluster.load "h100", copy)
        -- Compiled text is refused: it could do anything.
        assert.matches("wrong mode", message_of(cluster.load,
            written(string.dump(loadstring "return {}"))))
        os.remove(path)
    end)
end)

describe("a cluster", function()
    it("with other numbers leaves the first as it was", function()
        local h100 = cluster.load "h100"
        local slow = h100:with { ranks_per_node = 4, links = { between = { beta = 23e9 } } }
        assert.same({ 4, 23e9 }, { slow.ranks_per_node, slow.links.between.beta })
        assert.same({ 8, 46e9 }, { h100.ranks_per_node, h100.links.between.beta })
        assert.equal(h100.links.between.alpha, slow.links.between.alpha)
        assert.is_true(cluster.is(slow))
    end)

    it("refuses changes that a file could not have", function()
        local h100 = cluster.load "h100"
        assert.matches("unknown field of links \"betwen\"; did you mean \"between\"?",
            message_of(h100.with, h100, { links = { betwen = {} } }), 1, true)
        assert.matches("cluster.with: the changes must be a table (got nil)",
            message_of(h100.with, h100), 1, true)
        assert.matches("cluster.with: host.sync must be a number >= 0 (got -1)",
            message_of(h100.with, h100, { host = { sync = -1 } }), 1, true)
    end)

    -- 2e9 FLOP in 2 pieces of 1e9, at half of the rate each.
    it("prices work by what a large piece reaches and what a small one costs more", function()
        local c = cluster.load("h100"):with {
            flops = { bf16 = 1e12 }, efficiency = { gemm = { max = 0.5, half = 1e9 } },
            memory = { bandwidth = 1e9, half = 1000 },
        }
        assert.near((2e9 + 2e9) / 5e11, c:work("gemm", "bf16", 2e9, 2), 1e-18)
        assert.near((5000 + 3000) / 1e9, c:move(5000, 3), 1e-18)
    end)

    it("prices an exchange level by level", function()
        local links = { inside = { alpha = 1, message = 0.1, beta = 10, half = 5 },
            between = { alpha = 2, message = 0.2, beta = 1, half = 0 }, overlap = 1 }
        local c = cluster.load("h100"):with { links = links }
        assert.equal(0, c:exchange(0, 0, 0, 0))
        assert.near(1 + 0.3 + (95 + 5) / 10, c:exchange(95, 3, 0, 0), 1e-12)
        assert.near(2 + 0.2 + 20, c:exchange(95, 3, 20, 1), 1e-12) -- side by side
        links.overlap = 0
        assert.near(11.3 + 22.2, c:with { links = links }:exchange(95, 3, 20, 1), 1e-12)
    end)

    it("waits for the slowest rank, and where cores are shared for ranks in turns", function()
        local c = cluster.load "h100"
        local shared = c:with { cores = 2 }
        assert.equal(3, c:slowest { 1, 3, 2 })
        assert.equal(4, shared:slowest { 2, 2, 2, 2 }) -- all busy to the end
        assert.equal(3, shared:slowest { 1, 3 }) -- a core each
        assert.equal(4, shared:slowest { 3, 2, 3 }) -- 2/3 of a core each, then a core each
        assert.equal(1 * 1.5 + 1 + 1, shared:slowest { 1, 3, 2 }) -- the last alone at the end
        assert.equal(0, shared:slowest {})
    end)

    it("hides a share of the shorter of two things", function()
        assert.equal(5, cluster.together(5, 3, 1))
        assert.equal(8, cluster.together(5, 3, 0))
        assert.equal(6.5, cluster.together(5, 3, 0.5))
    end)
end)
