-- grouped_matmul on a device that is emulated, against the reference in double.
local cases = require "spec.support.device_cases"
local numbers = require "spec.kernels.numbers"
local on_device = require "spec.support.on_device"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local it_there = on_device.it(it, pending)

-- As in matmul_spec.lua: sums of up to 150 products. grad_w is WIDE, and so not rounded to bf16.
local BOUNDS = { f64 = 1e-14, f32 = 2e-6, bf16 = 2 ^ -8 }
local WIDE_BOUNDS = { f64 = 1e-14, f32 = 2e-6, bf16 = 2e-6 }

-- Groups without rows stand first, last, and two together; one has more rows than a tile; some rows
-- belong to nobody. Widths that tensor cores take. More groups than a warp has lanes.
local CASES = {
    { rows = 150, inner = 17, width = 70, offsets = { 0, 0, 1, 131, 131, 131, 140, 140 } },
    { rows = 135, inner = 8, width = 136, offsets = { 0, 131, 131, 135 } },
    { rows = 21, inner = 40, width = 16, offsets = { 0, 3, 20 } },
    { rows = 9, inner = 66, width = 3, offsets = { 2, 5, 8 } },
    { rows = 1, inner = 1, width = 1, offsets = { 0, 1 } },
    { rows = 4, inner = 5, width = 2, offsets = { 0, 0, 0 } },
    { rows = 0, inner = 3, width = 2, offsets = { 0, 0 } },
}
do
    local many = { rows = 80, inner = 8, width = 9, offsets = { 0 } }
    for group = 1, 70 do many.offsets[group + 1] = many.offsets[group] + group % 3 end
    CASES[#CASES + 1] = many
end

local function inputs(case, dtype)
    local groups = #case.offsets - 1
    return numbers.tensor(9, 1, { case.rows, case.inner }, -1, 1, dtype),
        numbers.tensor(9, 2, { groups, case.width, case.inner }, -1, 1, dtype),
        numbers.tensor(9, 3, { case.rows, case.width }, -1, 1, dtype),
        numbers.tensor(9, 4, { case.rows, case.inner }, -1, 1, dtype)
end

-- Results of rows in groups; the others are to be what they were.
local function grouped_rows(case, t)
    local list, width, part = t:totable(), t:shape()[2], {}
    for i = case.offsets[1] * width + 1, case.offsets[#case.offsets] * width do
        part[#part + 1] = list[i]
    end
    return part
end

local function others_are_nan(case, t)
    local list, width = t:totable(), t:shape()[2]
    for i = 1, case.rows * width do
        local row = math.floor((i - 1) / width)
        local is_inside = row >= case.offsets[1] and row < case.offsets[#case.offsets]
        assert.equal(not is_inside, list[i] ~= list[i])
    end
end

local function try_forward(there, dtype, bound)
    for i, case in ipairs(CASES) do
        local x, w = inputs(case, dtype)
        local y = op.grouped_matmul(x, w, case.offsets, there())
        others_are_nan(case, y)
        numbers.close(("%s case %d"):format(dtype, i), grouped_rows(case, y),
            grouped_rows(case, op.grouped_matmul(cases.exact(x), cases.exact(w), case.offsets,
                { device = "ref" })), bound)
    end
end

local function try_backward(there, dtype, bound)
    for i, case in ipairs(CASES) do
        local name = ("%s case %d"):format(dtype, i)
        local x, w, dy, before = inputs(case, dtype)
        local dx, dw = op.grouped_matmul_backward(x, w, case.offsets, dy, there())
        local more = op.grouped_matmul_backward(x, w, case.offsets, dy, there { dx = before })
        local exact_x, exact_w, exact_dy = cases.exact(x), cases.exact(w), cases.exact(dy)
        local dx_ref, dw_ref = op.grouped_matmul_backward(exact_x, exact_w, case.offsets,
            exact_dy, { device = "ref" })
        others_are_nan(case, dx)
        numbers.close(name .. " dx", grouped_rows(case, dx), grouped_rows(case, dx_ref), bound)
        numbers.close(name .. " dw", dw, dw_ref, WIDE_BOUNDS[dtype])
        numbers.close(name .. " dx added", more, op.grouped_matmul_backward(exact_x, exact_w,
            case.offsets, exact_dy, { device = "ref", dx = cases.exact(before) }), bound)
    end
end

describe("grouped_matmul on a device", function()
    it_there("multiplies the rows of each group by its matrix, and touches no other", function()
        cases.each(BOUNDS, try_forward)
    end)

    it_there("gives gradients, of rows and, added up, of matrices", function()
        cases.each(BOUNDS, try_backward)
    end)

    it_there("lets a NaN through to its own row and its group's matrix alone", function()
        cases.each(BOUNDS, function(there, dtype)
            local x = tensor.from({ 1, 2, 0 / 0, 4, 5, 6 }, { 3, 2 }, dtype)
            local w, dy = numbers.tensor(1, 1, { 2, 2, 2 }, -1, 1, dtype),
                numbers.tensor(1, 2, { 3, 2 }, -1, 1, dtype)
            local y = op.grouped_matmul(x, w, { 0, 2, 3 }, there()):totable()
            for i = 1, 6 do assert.equal(i == 3 or i == 4, y[i] ~= y[i]) end
            local _, dw = op.grouped_matmul_backward(x, w, { 0, 2, 3 }, dy, there())
            dw = dw:totable()
            for i = 1, 8 do assert.equal(i == 1 or i == 3, dw[i] ~= dw[i]) end
        end)
    end)
end)
