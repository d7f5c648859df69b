-- NaN and Inf in attention on a device that is emulated: what comes out is NaN, Inf and -Inf where
-- it is in the reference, and nowhere else, wherever tiles, windows and blocks have their borders.
local attention = require "spec.support.attention_calls"
local edges = require "spec.support.attention_edges"
local on_device = require "spec.support.on_device"

local it_there = on_device.it(it, pending)
local forward, backward = attention.forward, attention.backward
local REFERENCE, WAYS, DTYPES = attention.REFERENCE, attention.WAYS, attention.DTYPES
local compare_kinds, same_kind = edges.compare_kinds, edges.same_kind

describe("one NaN or Inf in attention on a device goes where it goes in the reference:", function()
    for what, shape in pairs(edges.SHAPES) do
        it_there(what, function()
            edges.each_change(shape, function(word, f, c)
                compare_kinds(word, f, c, WAYS[2], "bf16")
                return compare_kinds(word, f, c, WAYS[1], "f32")
                    + compare_kinds(word, f, c, WAYS[1], "bf16")
            end)
        end)
    end

    it_there("keys and values in the same rows", function()
        for _, sizes in ipairs { { 24, 16 }, { 576, 512 } } do
            edges.each_change(edges.shared(sizes[1], sizes[2]), function(word, f, c)
                local n = 0
                for _, dtype in ipairs(sizes[1] < 576 and DTYPES or { "bf16" }) do
                    n = n + compare_kinds(word, f, c, WAYS[1], dtype)
                end
                return n
            end)
        end
    end)
end)

-- ---- several -----------------------------------------------------------------------------------

describe("NaN and Inf in attention on a device", function()
    for name, changes in pairs(edges.SEVERAL) do
        it_there("go the way that they go in the reference: " .. name, function()
            for _, place in ipairs(WAYS) do
                for _, dtype in ipairs(DTYPES) do
                    compare_kinds(name, forward, edges.of_forty(changes), place, dtype)
                end
            end
        end)
    end

    it_there("stay with those who see them", function()
        -- Key 20 is seen by queries from 20 on.
        local change = { k = { [8 * 20 + 3] = 0 / 0 }, v = { [8 * 20 + 3] = 0 / 0 } }
        for _, place in ipairs(WAYS) do
            for _, dtype in ipairs(DTYPES) do
                local list = forward(edges.of_forty(change), place, dtype).o
                for i = 1, 40 * 8 do assert.equal(i > 20 * 8, list[i] ~= list[i]) end
            end
        end
    end)

    it_there("are not made by large scores", function()
        local c = attention.complete { blocks = { { 0, 20, 0, 20, 0 } }, scale = 500, heads = 1,
            kv_heads = 1 }
        for _, place in ipairs(WAYS) do
            for name, list in pairs(forward(c, place, "bf16")) do
                local expected = forward(c, REFERENCE, "bf16")[name]
                same_kind(name, list, expected, name == "o" and 2 ^ -7 or 1e-2)
            end
        end
    end)

    it_there("in any order of threads give the same", function()
        local c = edges.changed(edges.SHAPES["a window"], "v", 66, 0 / 0)
        for _, f in ipairs { forward, backward } do
            local once = f(c, WAYS[1], "bf16")
            for _, order in ipairs { "reverse", "random:5", "forward" } do
                on_device.set("order", order)
                for name, list in pairs(f(c, WAYS[1], "bf16")) do
                    same_kind(name, list, once[name], 0)
                end
            end
        end
    end)
end)
