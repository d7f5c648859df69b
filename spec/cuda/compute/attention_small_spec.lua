-- Attention on a device that is emulated, every kernel on sizes that are small enough for the
-- checker: spec/devices.txt has it judge all accesses, in random order of threads, too.
local attention = require "spec.support.attention_calls"
local on_device = require "spec.support.on_device"

local it_there = on_device.it(it, pending)

describe("attention on a device, on small sizes,", function()
    it_there("equals the reference, over a border of tiles and on top of what is there", function()
        attention.compare { blocks = { { 1, 66, 2, 70, 3 } }, heads = 2, kv_heads = 1, key_dim = 8,
            value_dim = 8, window = 65, accumulate = true }
    end)

    it_there("equals it where rows are made anew, since a value is not finite", function()
        local c = attention.complete { blocks = { { 1, 66, 2, 70, 3 } }, heads = 2, kv_heads = 1,
            key_dim = 8, value_dim = 8, changes = { v = { [8 * 40 + 3] = 1 / 0 } } }
        for _, dtype in ipairs { "f32", "bf16" } do
            local o = attention.forward(c, attention.WAYS[1], dtype).o
            local naive = attention.forward(c, attention.WAYS[2], dtype).o
            for i, x in ipairs(o) do assert.equal(x - x == 0, naive[i] - naive[i] == 0) end
            attention.backward(c, attention.WAYS[1], dtype)
        end
    end)

    it_there("equals it with wide heads, and with values in the keys' rows", function()
        attention.compare { blocks = { { 0, 9, 1, 12, 3 } }, heads = 1, kv_heads = 1,
            key_dim = 264, value_dim = 136, scale = 1 / 16 }
        attention.compare({ blocks = { { 0, 34, 1, 40, 6 } }, heads = 2, kv_heads = 1,
            key_dim = 264, value_dim = 256, scale = 1 / 16, shared = true, accumulate = true },
            { "bf16" })
    end)
end)
