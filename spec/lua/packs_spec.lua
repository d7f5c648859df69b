local message = require "spec.support.message"
local packs = require "cplab.packs"

local function sum(list)
    local n = 0
    for _, x in ipairs(list) do n = n + x end
    return n
end

describe("packs", function()
    it("fill the stream in whole units, and are the same every time", function()
        for _, name in ipairs(packs.names) do
            for _, case in ipairs { { 2 ^ 16, 64, 1 }, { 4800, 48 }, { 14, 7, 0 }, { 2, 1, 3 } } do
                local lengths = packs.draw(name, unpack(case))
                assert.equal(case[1], sum(lengths))
                for _, n in ipairs(lengths) do
                    assert.is_true(n > 0 and n % case[2] == 0)
                end
                assert.same(lengths, packs.draw(name, unpack(case)))
            end
        end
        assert.same({}, packs.draw("pareto", 0, 64))
    end)

    it("have the shape of their names", function()
        assert.same({ 512 }, packs.draw("one", 512, 64))
        assert.same({ 256, 256 }, packs.draw("two", 512, 64))
        assert.equal(2 ^ 17, packs.draw("long+short", 2 ^ 18, 64)[1])
        -- The mean of some 250 log-normal lengths is within a fifth of exp(6.9) = 992.
        local short = packs.draw("log-normal 1k", 2 ^ 18, 1, 5)
        assert.is_true(math.abs(2 ^ 18 / #short / 992 - 1) < 0.2)
        assert.not_same(short, packs.draw("log-normal 1k", 2 ^ 18, 1, 6))
    end)

    it("refuse what they cannot fill", function()
        assert.equal('packs.draw: unknown pack "parreto"; did you mean "pareto"?',
            message(packs.draw, "parreto", 64, 64))
        assert.equal("packs.draw: 100 tokens are not a multiple of 64",
            message(packs.draw, "one", 100, 64))
        assert.equal("packs.draw: 192 tokens are not a multiple of 128",
            message(packs.draw, "two", 192, 64))
        assert.equal("packs.draw: unit must be an integer >= 1 (got 0)",
            message(packs.draw, "one", 64, 0))
    end)
end)
