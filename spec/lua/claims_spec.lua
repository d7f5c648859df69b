-- Published results, recomputed by counts and by sizes. That a claim is reproduced says little if
-- every number would do: for each there is an input that makes it another one.
local claims = require "cplab.claims"

local by_name = {}
for _, claim in ipairs(claims.list) do by_name[claim.name] = claim end

local function copy(t)
    local c = {}
    for name, value in pairs(t) do c[name] = value end
    return c
end

-- A claim about a set-up that differs in one field, at most one table down.
local function with(claim, path, value)
    local changed, given = copy(claim), copy(claim.given)
    local outer, inner = path:match "^(%w+)%.(%w+)$"
    if outer then
        given[outer] = copy(given[outer])
        given[outer][inner] = value
    else
        given[path] = value
    end
    changed.given = given
    return changed
end

describe("a claim", function()
    it("is within half a unit of the last published digit", function()
        assert.truthy(claims.agrees(4.0156, "4.02"))
        assert.falsy(claims.agrees(4.0144, "4.02"))
        assert.falsy(claims.agrees(4.0256, "4.02"))
        assert.truthy(claims.agrees(66.67, "67"))
        assert.falsy(claims.agrees(67.51, "67"))
        assert.truthy(claims.agrees(623, "6.2e2"))
        assert.falsy(claims.agrees(626, "6.2e2"))
        assert.falsy(claims.agrees(0 / 0, "1"))
    end)

    it("may be about a side", function()
        assert.truthy(claims.agrees(1.01, "> 1"))
        assert.falsy(claims.agrees(1, "> 1"))
        assert.truthy(claims.agrees(0.9, "< 1"))
        assert.falsy(claims.agrees(0 / 0, "< 1"))
    end)

    for _, claim in ipairs(claims.list) do
        it(("is %s: %s"):format(claim.open and "open" or "reproduced", claim.name), function()
            local row = claims.evaluate(claim)
            assert.equal(claim.open and "open" or "reproduced", row.verdict)
            assert.equal(claim.compute and #row.published or 0, #(row.ours or {}))
            assert.truthy(#row.unknown > 0)
        end)
    end

    it("is not judged where it is open", function()
        local row = claims.evaluate(by_name["the same projected, CP 16 on H100 nodes"])
        assert.equal("open", row.verdict)
        -- A contiguous base pays, prebuilt routes do, and neither by what was published.
        for _, number in ipairs(row.ours) do assert.truthy(number > 1 and number < 1.2) end
    end)

    it("has as many numbers as were published", function()
        local claim = copy(by_name["conversions at 1:3"])
        claim.compute = function() return { 6, 2 } end
        assert.equal("off", claims.evaluate(claim).verdict)
    end)
end)

describe("a claim about another set-up", function()
    local changes = {
        { "conversions at 1:3", "k", 4 },
        { "1.20 x 1.075 = 1.29, and what it implies", "k", 2 },
        { "a conversion over InfiniBand", "cp", 2 }, -- half a shard
        { "a conversion over InfiniBand", "preset", "qwen35_35b" },
        { "a step without its host syncs", "syncs", 3.3 },
        { "chunkwise against headwise", "syncs", 1 },
        { "projections against hidden states", "presets", { "qwen35_397b", "qwen35_35b" } },
        { "one exchange over TP x CP", "shape.tp", 8 },
        { "one exchange over TP x CP", "layers", 5 },
        { "a contiguous base for 5 layers", "shape.hidden", 4096 },
        { "efficiency of the chain at CP 4", "value_dim", 256 },
        { "ring attention in contiguous layout, 8 ranks", "cp", 4 },
        { "keys of a causal ring that nobody reads", "kinds",
            { "contiguous", "zigzag", "contiguous" } },
        { "documents of 4 and 12 on 2 ranks", "kind", "contiguous" },
        { "state of a KDA layer", "bytes", 2 },
        { "tokens a rank where states cost what K/V do", "preset", "qwen35_397b" },
        { "tokens a rank from which zigzag-native pays, 512 (P - 1)", "cps", { 4, 8, 32 } },
    }
    for _, change in ipairs(changes) do
        local name, field, value = unpack(change)
        it(("is off: %s, %s"):format(name, field), function()
            assert.equal("off", claims.evaluate(with(by_name[name], field, value)).verdict)
        end)
    end

    it("is tried for every claim that is computed", function()
        local tried = {}
        for _, change in ipairs(changes) do tried[change[1]] = true end
        for _, claim in ipairs(claims.list) do
            assert.equal(not claim.open, tried[claim.name] == true, claim.name)
        end
    end)
end)
