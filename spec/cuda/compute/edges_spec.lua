-- What is not finite, on a device: every op, of every input NaN, Inf and -Inf at one place at a
-- time. Which numbers of a result are NaN, Inf, -Inf and finite is what the reference makes of it,
-- for the best kernels and the naive ones.
local cases = require("spec.support.edge_cases").cases
local compute = require "spec.support.cuda_compute"
local cuda_device = require "spec.support.cuda_device"

-- Attention has blocks that see parts of a tile: attention_spec.lua says what becomes of those.
local elsewhere = { attention = true, attention_backward = true }

local NAN, INF = 0 / 0, 1 / 0
local BAD = { NAN, INF, -INF }

local function kind_of(x)
    if x ~= x then return "NaN" end
    return x == INF and "inf" or x == -INF and "-inf" or "finite"
end

local function same_kind(x, y) return kind_of(x) == kind_of(y) end

-- Sums in which several numbers are not finite, so that their order says whether it is Inf or NaN.
local function same_finiteness(x, y) return (kind_of(x) == "finite") == (kind_of(y) == "finite") end

-- What an op reads and computes with, in the order of names.
local function inputs_of(case)
    local names = {}
    for name, array in pairs(case.arrays) do
        local is_number = not (array.type or ""):match "^i"
        if is_number and not array.out and not array.same_as then names[#names + 1] = name end
    end
    table.sort(names)
    return names
end

-- The case with one number of one input replaced.
local function spoilt(case, name, at, bad)
    local array = {}
    for key, value in pairs(case.arrays[name]) do array[key] = value end
    local values = array.values
    array.values = function(i)
        local x = values(i)
        return i == at and bad or x
    end
    local arrays = {}
    for key, value in pairs(case.arrays) do arrays[key] = value end
    arrays[name] = array
    return { arrays = arrays, numbers = case.numbers }
end

-- Where a number is replaced: the first, the last, and some between, in turns. There are seven, so
-- that dtypes and ways do not meet the same ones.
local PARTS = { 0, 0.37, 1, 0.71, 0.52, 0.86, 0.19 }
local turn = 0
local function next_place(n)
    turn = turn % #PARTS + 1
    return math.floor(PARTS[turn] * (n - 1) + 0.5)
end

local function try_op(device, op, dtype, way, bads)
    for i, case in ipairs(cases[op]) do
        for _, name in ipairs(inputs_of(case)) do
            for _, bad in ipairs(bads) do
                local at = next_place(case.arrays[name].open or case.arrays[name].n)
                local free = bad == bad and case.free or {}
                local is_free = free[name] or free.all
                local ok, said = pcall(compute.try, device, op, spoilt(case, name, at, bad), dtype,
                    way, function() return is_free and same_finiteness or same_kind end)
                if not ok then
                    error(("%s %s %s, case %d, %s[%d] = %s: %s"):format(op, dtype, way, i, name, at,
                        kind_of(bad), said), 0)
                end
            end
        end
    end
end

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
    turn = 0
    for i, dtype in ipairs { "f32", "bf16" } do
        for j, way in ipairs { "best", "naive" } do
            device:set_order(device.orders[(i + j) % #device.orders + 1])
            if not device.is_checked then
                try_op(device, op, dtype, way, BAD)
            elseif dtype == "bf16" and way == "best" then
                try_op(device, op, dtype, way, { NAN })
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
