-- What is not finite, on a device: every op, of every input NaN, Inf and -Inf at one place at a
-- time. Which numbers of a result are NaN, Inf, -Inf and finite is what the reference makes of it,
-- for the best kernels and the naive ones.
local cases = require("spec.support.edge_cases").cases
local compute = require "spec.support.cuda_compute"
local cuda_device = require "spec.support.cuda_device"
local edges = require "spec.support.edges"

-- Attention has blocks that see parts of a tile: attention_spec.lua says what becomes of those.
local elsewhere = { attention = true, attention_backward = true }

describe("every op", function()
    it("is in the table of cases, or has a spec of its own", function()
        for _, op in ipairs(compute.ops) do
            assert.is_true((cases[op] ~= nil) ~= (elsewhere[op] or false), op)
        end
        for op in pairs(cases) do
            local is_there = false
            for _, known in ipairs(compute.ops) do is_there = is_there or known == op end
            assert.is_true(is_there, op)
        end
    end)
end)

-- The checker looks at every access, of NaN alone.
local function try_in_all_ways(device, op)
    edges.begin()
    for i, dtype in ipairs { "f32", "bf16" } do
        for j, way in ipairs { "best", "naive" } do
            device:set_order(device.orders[(i + j) % #device.orders + 1])
            if not device.is_checked then
                edges.try_op(device, op, dtype, way, edges.BAD)
            elseif dtype == "bf16" and way == "best" then
                edges.try_op(device, op, dtype, way, { 0 / 0 })
            end
        end
    end
    device:set_order(device.orders[1])
end

for _, kind in ipairs { "plain", "checked", "device" } do
    describe(("what is not finite, %s:"):format(kind), function()
        local device, why = cuda_device.open(kind)
        if not device then
            it("goes where the reference takes it", function() pending(why) end)
            return
        end
        for _, op in ipairs(compute.ops) do
            if cases[op] then
                it(op, function() try_in_all_ways(device, op) end)
            end
        end
    end)
end
