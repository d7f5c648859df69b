-- Quantiles by nearest rank.
local statistics = require "cplab.bench.statistics"

local function count_to(n)
    local list = {}
    for i = 1, n do list[i] = n + 1 - i end
    return list
end

describe("statistics of a bench", function()
    it("takes what was measured, and the lower middle of an even number", function()
        assert.same({ min = 1, median = 2, p99 = 3 }, statistics.summary { 3, 1, 2 })
        assert.same({ min = 1, median = 2, p99 = 4 }, statistics.summary { 4, 3, 2, 1 })
        assert.same({ min = 7, median = 7, p99 = 7 }, statistics.summary { 7 })
    end)

    it("leaves out one of a hundred for p99", function()
        assert.equal(99, statistics.summary(count_to(99)).p99)
        assert.equal(99, statistics.summary(count_to(100)).p99)
        assert.equal(100, statistics.summary(count_to(101)).p99)
        assert.equal(198, statistics.summary(count_to(200)).p99)
    end)

    it("leaves the list as it was", function()
        local list = { 3, 1, 2 }
        statistics.summary(list)
        assert.same({ 3, 1, 2 }, list)
    end)
end)
