-- Tensors as C sees them: what a copy or a mark refuses, and what it leaves then.
local clib = require "clib"
local cplab = require "cplab"
local C, ffi = clib.C, clib.ffi

local function tensor(dtype, ...)
    local shape = ffi.new("int64_t[?]", select("#", ...), ...)
    return clib.create("cpl_tensor", C.cpl_tensor_destroy, 1, C.cpl_tensor_create,
        clib.dtypes[dtype], select("#", ...), shape, nil)
end

describe("tensor.from", function()
    it("refuses what an integer type cannot hold", function()
        local from = require("cplab.tensor").from
        assert.same({ 2 ^ 31 - 1 }, from({ 2 ^ 31 - 1 }, { 1 }, "i32"):totable())
        for _, value in ipairs { 2 ^ 31, -2 ^ 31 - 1, 0 / 0, math.huge } do
            assert.has_error(function() from({ value }, { 1 }, "i32") end)
        end
        local _, message = pcall(from, { 1, 2 ^ 40 }, { 2 }, "i32")
        assert.truthy(message:find("tensor.from: entry 2 is 1099511627776, beyond i32", 1, true))
    end)
end)

describe("a tensor", function()
    it("is copied to one of the same dtype, dimensions and shape alone", function()
        local src = tensor("f64", 2, 3)
        C.cpl_tensor_fill(src, 7)
        for _, dst in ipairs { tensor("f64", 3, 2), tensor("f64", 2, 3, 2), tensor("i64", 2, 3) } do
            assert.equal(C.CPL_MISMATCH, C.cpl_tensor_copy(dst, src))
            assert.equal("tensor: copy between two shapes", ffi.string(C.cpl_last_error()))
            assert.equal(0, C.cpl_dtype_load(dst.dtype, dst.data, 0))
        end
        local dst = tensor("f64", 2, 3)
        assert.equal(C.CPL_OK, C.cpl_tensor_copy(dst, src))
        assert.equal(7, C.cpl_dtype_load(dst.dtype, dst.data, 5))
    end)

    it("takes the mark of a layout, or of another tensor, with as many rows alone", function()
        local layout = cplab.layout.contiguous(cplab.stream.thd { lengths = { 4 } }, { cp = 2 })
        local two, three = tensor("f64", 2, 1), tensor("f64", 3, 1)
        assert.equal(C.CPL_MISMATCH, C.cpl_tensor_mark(three, layout._ptr, 1, true))
        assert.matches("^tensor: 3 rows, but rank 1 has 2 in contiguous",
            ffi.string(C.cpl_last_error()))
        assert.equal(C.CPL_OK, C.cpl_tensor_mark(two, layout._ptr, 1, true))
        assert.equal(C.CPL_MISMATCH, C.cpl_tensor_mark_like(three, two))
        assert.equal("tensor: 3 rows, not 2", ffi.string(C.cpl_last_error()))
        assert.is_true(three.layout == 0 and three.trace == nil)
        assert.equal(2, tonumber(two.trace[0]))
        assert.equal(C.CPL_OK, C.cpl_tensor_mark(two, layout._ptr, 1, false))
        assert.is_true(two.trace == nil and two.layout == C.cpl_layout_digest(layout._ptr))
    end)

    it("keeps a NaN in the largest row, too", function()
        local x, out = tensor("f64", 3, 1), ffi.new "cpl_difference"
        C.cpl_dtype_store(C.CPL_F64, x.data, 2, 0 / 0)
        clib.check(C.cpl_tensor_difference(x, tensor("f64", 3, 1), nil, out))
        assert.is_true(out.worst_row ~= out.worst_row)
        clib.check(C.cpl_tensor_difference(tensor("f64", 3, 1), x, nil, out))
        assert.is_true(out.largest_row ~= out.largest_row)
    end)
end)
