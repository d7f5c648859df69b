--- What is not finite, in every op: of every input NaN, Inf and -Inf at one place at a time. Which
-- numbers of a result are NaN, Inf, -Inf and finite is what the reference makes of it, and those
-- that are finite are close to its own. The cases are those of spec.support.edge_cases.
-- @module spec.support.edges
local cases = require("spec.support.edge_cases").cases
local compute = require "spec.support.cuda_compute"

local M = {}

local NAN, INF = 0 / 0, 1 / 0

--- What numbers are replaced by.
M.BAD = { NAN, INF, -INF }

local function kind_of(x)
    if x ~= x then return "NaN" end
    return x == INF and "inf" or x == -INF and "-inf" or "finite"
end

-- Both are NaN, the same Inf, or finite and close.
local function same_kind(x, y, is_close)
    return x == y or x ~= x and y ~= y or is_close(x, y)
end

-- Sums in which several numbers are not finite, so that their order says whether it is Inf or NaN.
local function same_finiteness(x, y, is_close)
    return kind_of(x) ~= "finite" and kind_of(y) ~= "finite" or is_close(x, y)
end

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
    return { arrays = arrays, numbers = case.numbers, bounds = case.bounds }
end

-- Where a number is replaced: the first, the last, and some between, in turns. There are seven, so
-- that dtypes and ways do not meet the same ones.
local PARTS = { 0, 0.37, 1, 0.71, 0.52, 0.86, 0.19 }
local turn = 0

--- Starts with the first place again.
function M.begin() turn = 0 end

local function next_place(n)
    turn = turn % #PARTS + 1
    return math.floor(PARTS[turn] * (n - 1) + 0.5)
end

--- Fails unless an op takes each of `bads` where the reference takes it.
-- @tparam table device one of spec.support.cuda_device, or spec.support.host_device
-- @tparam string op
-- @tparam string dtype
-- @tparam string way
-- @tparam table bads some of BAD
function M.try_op(device, op, dtype, way, bads)
    for i, case in ipairs(cases[op]) do
        for _, name in ipairs(inputs_of(case)) do
            for _, bad in ipairs(bads) do
                local at = next_place(case.arrays[name].open or case.arrays[name].n)
                local free = bad == bad and case.free or {}
                local is_free = free[name] or free.all
                local alike = is_free and same_finiteness or same_kind
                local ok, said = pcall(compute.try, device, op, spoilt(case, name, at, bad), dtype,
                    way, alike)
                if not ok then
                    error(("%s %s %s, case %d, %s[%d] = %s: %s"):format(op, dtype, way, i, name, at,
                        kind_of(bad), said), 0)
                end
            end
        end
    end
end

return M
