-- Lengths of sequences that fill shards.
local lengths = require "cplab.bench.lengths"

local function sum(list)
    local total = 0
    for _, length in ipairs(list) do total = total + length end
    return total
end

describe("lengths of a bench", function()
    it("are multiples of what all its layouts need", function()
        assert.equal(8, lengths.unit(4, 1, { "zigzag", "contiguous" }))
        assert.equal(64, lengths.unit(4, 1, { "zigzag", "balanced" }))
        assert.equal(192, lengths.unit(3, 2, { "balanced" }))
        assert.equal(12, lengths.unit(3, 2, { "mirror" }))
    end)

    it("cut equally leave out what does not divide", function()
        assert.same({ 1024 }, lengths.make({ sequences = 1 }, 1031, 8))
        assert.same({ 336, 336, 336 }, lengths.make({ sequences = 3 }, 1031, 8))
        local list, reason = lengths.make({ sequences = 200 }, 1031, 8)
        assert.is_nil(list)
        assert.equal("200 sequences of at least 8 rows need 1600; the shards hold 1031", reason)
    end)

    it("given as a list keep their proportions", function()
        assert.same({ 96, 32 }, lengths.make({ lengths = { 3, 1 } }, 128, 8))
        assert.same({ 344, 680 }, lengths.make({ lengths = { 100, 197 } }, 1031, 8))
        local list, reason = lengths.make({ lengths = { 1000, 1 } }, 1024, 8)
        assert.is_nil(list)
        assert.equal("sequence 1 of the list would have 1.0 of 1024 rows; it needs at least 8",
            reason)
    end)

    it("drawn from a pack are the same for the same seed", function()
        local first = lengths.make({ pack = "log-normal 1k" }, 2 ^ 16 + 5, 8, 1)
        assert.equal(2 ^ 16, sum(first))
        assert.same(first, lengths.make({ pack = "log-normal 1k" }, 2 ^ 16 + 5, 8, 1))
        assert.not_same(first, lengths.make({ pack = "log-normal 1k" }, 2 ^ 16 + 5, 8, 2))
        assert.is_nil((lengths.make({ pack = "one" }, 15, 8, 1)))
    end)
end)
