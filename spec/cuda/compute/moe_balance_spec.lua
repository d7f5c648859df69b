-- The load of experts and the loss that balances it, on an emulated device.
local numbers = require "spec.kernels.numbers"
local on_device = require "spec.support.on_device"
local op = require "cplab.op"

local it_there = on_device.it(it, pending)

-- Offsets of experts that get so many rows each.
local function offsets_of(n_rows, experts)
    local offsets = { 0 }
    for e = 1, experts do offsets[e + 1] = offsets[e] + (e * 7) % (n_rows + 1) end
    return offsets
end

local function worst(a, b)
    local off = 0
    for i, value in ipairs(a) do
        off = math.max(off, math.abs(value - b[i]) / math.max(1, math.abs(value)))
    end
    return off
end

describe("moe_load and moe_balance on a device", function()
    for _, size in ipairs { { 0, 3 }, { 1, 1 }, { 9, 31 }, { 40, 33 }, { 70, 64 } } do
        local n, experts = size[1], size[2]
        it_there(("do what the reference does: %d rows, %d experts"):format(n, experts), function()
            local probs, offsets = numbers.tensor(1, 3, { n, experts }), offsets_of(n, experts)
            local counts, sums = op.moe_load(probs, offsets, { device = "ref" })
            local options = { top_k = 2, coefficient = 0.25 }
            local loss, dprobs = op.moe_balance(counts, sums, options)
            for _, order in ipairs { "forward", "reverse", "random:3" } do
                on_device.set("order", order)
                for _, way in ipairs { "best", "naive" } do
                    local place = { device = "cuda-emulated", way = way }
                    local c, s = op.moe_load(probs, offsets, place)
                    assert.same(counts, c)
                    -- Up to 70 terms in f64, in another order.
                    assert.is_true(worst(sums, s) <= 1e-14)
                    local l, d = op.moe_balance(counts, sums, { top_k = 2, coefficient = 0.25,
                        device = "cuda-emulated", way = way })
                    assert.is_true(worst({ loss }, { l }) <= 1e-14)
                    assert.is_true(worst(dprobs, d) <= 1e-14)
                end
            end
            on_device.set("order", "forward")
        end)
    end
end)
