-- NaN and Inf in the host's attention: what comes out is NaN, Inf and -Inf where it is in the
-- reference, and nowhere else, and the other numbers are those of the reference.
local edges = require "spec.support.attention_edges"
local forward = require("spec.support.attention_calls").forward

local HOST, DTYPES = { device = "cpu" }, { "f64", "f32" }

-- Of the reference's numbers so many are not finite.
local function compare(word, f, c)
    return edges.compare_kinds(word, f, c, HOST, "f64")
        + edges.compare_kinds(word, f, c, HOST, "f32")
end

describe("one NaN or Inf in attention goes where it goes in the reference:", function()
    for what, shape in pairs(edges.SHAPES) do
        it(what, function() edges.each_change(shape, compare) end)
    end

    it("keys and values in the same rows", function()
        edges.each_change(edges.shared(24, 16), compare)
    end)
end)

describe("NaN and Inf in attention", function()
    for name, changes in pairs(edges.SEVERAL) do
        it("go the way that they go in the reference: " .. name, function()
            assert.is_true(compare(name, forward, edges.of_forty(changes)) > 0)
        end)
    end

    it("stay with those who see them", function()
        -- Key 20 is seen by queries from 20 on.
        local change = { k = { [8 * 20 + 3] = 0 / 0 }, v = { [8 * 20 + 3] = 0 / 0 } }
        for _, dtype in ipairs(DTYPES) do
            local list = forward(edges.of_forty(change), HOST, dtype).o
            for i = 1, 40 * 8 do assert.equal(i > 20 * 8, list[i] ~= list[i]) end
        end
    end)

    -- Scores of -Inf in the keys that come first weigh nothing beside those that come later.
    it("leave rows finite whose first keys weigh nothing", function()
        local changes = { k = {}, q = {} }
        for key = 0, 69 do changes.k[8 * key + 1] = -math.huge end
        for query = 0, 79 do changes.q[8 * query + 1] = 1 end
        local c = edges.of_forty(changes)
        c.blocks, c.n_queries, c.n_keys = { { 0, 80, 0, 80, 0 } }, 81, 81
        assert.is_true(compare("far", forward, c) > 0)
        local list = forward(c, HOST, "f64").o
        for i = 1, 80 * 8 do assert.equal(i > 70 * 8, list[i] - list[i] == 0) end
    end)
end)
