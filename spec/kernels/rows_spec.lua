-- Products of groups of rows, products in batches, and rows by lists: the fast kernels against the
-- reference, and what the ops refuse.
--
-- Bounds: f64 1e-13 (sums of up to 70 terms in another order), f32 2e-6 (the inputs' rounding
-- included).
local clib = require "clib"
local message = require "spec.support.message"
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local tensor = require "cplab.tensor"
local C, ffi = clib.C, clib.ffi

local BOUNDS = { f64 = 1e-13, f32 = 2e-6 }
local random = numbers.tensor

-- The numbers of rows first .. last - 1 (from 0) of a matrix.
local function rows(t, first, last)
    local list, width = {}, t:shape()[2]
    local all = t:totable()
    for i = first * width + 1, last * width do list[#list + 1] = all[i] end
    return list
end

local function each_dtype(name, body)
    for dtype, bound in pairs(BOUNDS) do
        it(name .. ", " .. dtype, function() body(dtype, bound) end)
    end
end

-- What `device` makes of random numbers in `shapes`, and the reference of them in f64.
local function both(dtype, shapes, f)
    local given, exact = {}, {}
    for j, shape in ipairs(shapes) do
        given[j] = random(3, j, shape, -1, 1, dtype)
        exact[j] = tensor.from(given[j]:totable(), shape, "f64")
    end
    return { f(given, "cpu") }, { f(exact, "ref") }
end

local GROUPS = {
    { offsets = { 0, 0, 5, 5, 6, 13 }, widths = { 7, 11 } },
    { offsets = { 0, 70 }, widths = { 1, 1 } },
    { offsets = { 2, 3, 9 }, widths = { 33, 5 } },
    { offsets = { 0, 0 }, widths = { 3, 2 } },
}

describe("grouped_matmul", function()
    each_dtype("gives the reference's numbers in the rows of groups", function(dtype, bound)
        for _, case in ipairs(GROUPS) do
            local groups, last = #case.offsets - 1, case.offsets[#case.offsets]
            local n, d, f = last + 2, case.widths[1], case.widths[2]
            local fast, slow = both(dtype, { { n, d }, { groups, f, d }, { n, f } },
                function(i, device)
                    local y = op.grouped_matmul(i[1], i[2], case.offsets, { device = device })
                    local dx, dw = op.grouped_matmul_backward(i[1], i[2], case.offsets, i[3],
                        { device = device })
                    return y, dx, dw
                end)
            for j = 1, 2 do
                numbers.close("rows of groups", rows(fast[j], case.offsets[1], last),
                    rows(slow[j], case.offsets[1], last), bound)
                for _, x in ipairs(rows(fast[j], last, n)) do assert.is_true(x ~= x) end
            end
            numbers.close("dw", fast[3], slow[3], bound)
        end
    end)

    it("is a product with each group's own matrix", function()
        local x, w = random(1, 1, { 5, 3 }), random(1, 2, { 2, 4, 3 })
        local y = op.grouped_matmul(x, w, { 0, 2, 5 }, { device = "ref" })
        for e, range in ipairs { { 0, 2 }, { 2, 5 } } do
            local one = tensor.from(rows(x, range[1], range[2]), { range[2] - range[1], 3 })
            local all, matrix = w:totable(), {}
            for i = 1, 12 do matrix[i] = all[(e - 1) * 12 + i] end
            local product = op.matmul(one, tensor.from(matrix, { 4, 3 }),
                { transpose_b = true, device = "ref" })
            numbers.close("group", rows(y, range[1], range[2]), product, 0)
        end
    end)

    it("adds its gradient to a dx that is given", function()
        for _, device in ipairs { "ref", "cpu" } do
            local x, w, dy = random(1, 1, { 5, 3 }), random(1, 2, { 2, 4, 3 }),
                random(1, 3, { 5, 4 })
            local alone = op.grouped_matmul_backward(x, w, { 0, 2, 5 }, dy, { device = device })
            local before = random(1, 4, { 5, 3 })
            local added = op.grouped_matmul_backward(x, w, { 0, 2, 5 }, dy,
                { device = device, dx = before })
            numbers.close("sum", added, op.axpby(alone, before), 1e-15)
        end
    end)

    it("refuses offsets that are no groups of its rows", function()
        local x, w = tensor.zeros { 5, 3 }, tensor.zeros { 2, 4, 3 }
        for offsets, wanted in pairs {
            [{ 0, 5 }] = "op.grouped_matmul: offsets has 2 entries, not one more than w has "
                .. "groups, 2",
            [{ 0, 3, 2 }] = "op.grouped_matmul: offsets[3] = 2 comes after 3",
            [{ 0, 3, 6 }] = "op.grouped_matmul: offsets[3] must be an integer in 0 .. 5 (got 6)",
        } do
            assert.equal(wanted, message(function()
                local _ = op.grouped_matmul(x, w, offsets)
            end))
        end
    end)
end)

describe("matmul of a batch", function()
    each_dtype("gives the reference's numbers, transposed or not", function(dtype, bound)
        for way = 0, 3 do
            local ta, tb = way % 2 == 1, way > 1
            local fast, slow = both(dtype, {
                ta and { 3, 7, 5 } or { 3, 5, 7 }, tb and { 3, 9, 7 } or { 3, 7, 9 }, { 3, 5, 9 },
            }, function(i, device)
                local options = { transpose_a = ta, transpose_b = tb, device = device }
                local c = op.matmul(i[1], i[2], options)
                return c, op.matmul_backward(i[1], i[2], i[3], options)
            end)
            for j = 1, 3 do numbers.close("result " .. j, fast[j], slow[j], bound) end
        end
    end)

    it("is the product of each pair", function()
        local a, b = random(1, 1, { 2, 3, 4 }), random(1, 2, { 2, 4, 5 })
        local c = op.matmul(a, b, { device = "ref" }):totable()
        for i = 0, 1 do
            local function part(t, n, shape)
                return tensor.from({ unpack(t:totable(), i * n + 1, (i + 1) * n) }, shape)
            end
            local one = op.matmul(part(a, 12, { 3, 4 }), part(b, 20, { 4, 5 }), { device = "ref" })
            assert.same(one:totable(), { unpack(c, i * 15 + 1, (i + 1) * 15) })
        end
    end)

    it("may be empty, but not half of one", function()
        assert.same({ 0, 3, 5 },
            op.matmul(tensor.zeros { 0, 3, 4 }, tensor.zeros { 0, 4, 5 }):shape())
        assert.equal("op.matmul: b must be [batch, k, n] (got [4, 5] f64)", message(function()
            local _ = op.matmul(tensor.zeros { 2, 3, 4 }, tensor.zeros { 4, 5 })
        end))
    end)
end)

describe("move_rows", function()
    local CASES = {
        { from = { 2, 0, 2, -1 }, to = { 5, 1, 0, 3 } },
        { from = { 1, -1, 0, 2, -1 }, to = { -1, 2, 4, -1, -1 } },
        { from = { 1, -1, 0 } },
        { to = { 3, 0, 4 } },
        {},
        { from = {}, to = {} },
    }

    each_dtype("carries rows as loops over the lists do, to the bit", function(dtype)
        for _, device in ipairs { "cpu", dtype == "f64" and "ref" or "cpu" } do
            for i, case in ipairs(CASES) do
                for _, add in ipairs { false, true } do
                    local x, y = random(i, 1, { 3, 5 }, -1, 1, dtype),
                        random(i, 2, { 6, 5 }, -1, 1, dtype)
                    local moved = op.move_rows(x, y, { from = case.from, to = case.to, add = add,
                        device = device })
                    local wanted, source = y:totable(), x:totable()
                    for k = 1, #(case.from or case.to or { 1, 2, 3 }) do
                        local from, to = case.from and case.from[k] or k - 1,
                            case.to and case.to[k] or k - 1
                        for j = 1, to < 0 and 0 or 5 do
                            local before = add and wanted[to * 5 + j] or 0
                            wanted[to * 5 + j] = before + (from < 0 and 0 or source[from * 5 + j])
                        end
                    end
                    assert.same(tensor.from(wanted, { 6, 5 }, dtype):totable(), moved:totable())
                end
            end
        end
    end)

    it("leaves the row before y alone where one goes to -1", function()
        for _, case in ipairs { { "cpu", "f64" }, { "cpu", "f32" }, { "ref", "f64" } } do
            local ctype = case[2] == "f64" and "double" or "float"
            local x, y = ffi.new(ctype .. "[4]", 1, 2, 3, 4), ffi.new(ctype .. "[6]", -7)
            local to = ffi.new("int64_t[2]", -1, 1)
            for _, add in ipairs { false, true } do
                C.cpl_kernels_for(case[1], clib.dtypes[case[2]]).move_rows(ffi.new("cpl_move_rows",
                    { x = x, y = y + 2, to = to, n = 2, width = 2, x_stride = 2, y_stride = 2,
                        add = add }))
            end
            assert.same({ -7, -7, -7, -7, 6, 8 }, { y[0], y[1], y[2], y[3], y[4], y[5] })
        end
    end)

    it("refuses rows that are not there, and a row of y twice", function()
        local x, y = tensor.zeros { 3, 2 }, tensor.zeros { 4, 2 }
        for options, wanted in pairs {
            [{ from = { 3 } }] = "op.move_rows: from[1] must be an integer in -1 .. 2 (got 3)",
            [{ to = { 4 } }] = "op.move_rows: to[1] must be an integer in -1 .. 3 (got 4)",
            [{ to = { -1, 1, -1, 1 }, from = { 0, 0, 0, 0 } }] =
                "op.move_rows: to[4] = 1 stands twice",
            [{ from = { 0, 0, 0, 0, 0 } }] = "op.move_rows: 5 rows do not fit x of 3 and y of 4",
            [{ from = { 0 }, to = { 1, 2 } }] =
                "op.move_rows: to has 2 entries, but from has 1",
            [{ wide = true }] =
                "op.move_rows: wide numbers are those of bf16, on a device",
        } do
            assert.equal(wanted, message(function() local _ = op.move_rows(x, y, options) end))
        end
    end)
end)
