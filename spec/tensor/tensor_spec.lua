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

describe("the mark of rows", function()
    local function layouts()
        local stream = cplab.stream.thd { lengths = { 8 } }
        return cplab.layout.contiguous(stream, { cp = 2 }), cplab.layout.zigzag(stream, { cp = 2 })
    end

    local function said(status)
        return status == C.CPL_OK and "" or ffi.string(C.cpl_last_error())
    end

    it("is what a place expects, or the rows are refused: with both names", function()
        local contiguous, zigzag = layouts()
        local x = tensor("f64", 4, 1)
        local function expect(layout)
            return said(C.cpl_tensor_expect(x, layout._ptr, 1, "here"))
        end
        clib.check(C.cpl_tensor_mark(x, contiguous._ptr, 1, false))
        assert.equal("", expect(contiguous))
        assert.equal("here: expected rows of " .. tostring(zigzag) .. ", got rows of contiguous",
            expect(zigzag))
        local other = cplab.layout.contiguous(cplab.stream.thd { lengths = { 4, 4 } }, { cp = 2 })
        assert.equal("here: expected rows of " .. tostring(other)
            .. ", got rows of another contiguous", expect(other))
    end)

    it("may be missing where nobody demands it, as of tensors that a user made", function()
        local contiguous, zigzag = layouts()
        local x, ptr = tensor("f64", 4, 1), contiguous._ptr
        assert.equal("", said(C.cpl_trace_check(x, ptr, 1, "here")))
        assert.matches("^here: expected rows of contiguous.*, got rows that nothing brought there",
            said(C.cpl_tensor_expect(x, ptr, 1, "here")))
        clib.check(C.cpl_tensor_mark(x, ptr, 1, true))
        C.cpl_tensor_unmark(x)
        assert.is_true(x.layout == 0 and x.layout_kind == nil and x.trace ~= nil)
        C.cpl_tensor_remark(x, zigzag._ptr)
        assert.equal("zigzag", ffi.string(x.layout_kind))
        assert.equal(4, tonumber(x.trace[0])) -- the trace stays
    end)

    it("travels with copies of it, and rows of two layouts do not add up", function()
        local contiguous, zigzag = layouts()
        local x, y = tensor("f64", 4, 1), tensor("f64", 4, 1)
        clib.check(C.cpl_tensor_mark(x, contiguous._ptr, 1, false))
        clib.check(C.cpl_tensor_mark(y, zigzag._ptr, 1, false))
        local rows, kernels = require "cplab.rows", C.cpl_kernels_for("cpu", C.CPL_F64)
        local ok, text = pcall(rows.add, kernels, x, y, tensor("f64", 4, 1))
        assert.is_false(ok)
        assert.truthy(text:find("rows.add: rows of contiguous and rows of zigzag do not add up", 1,
            true), text)
        clib.check(C.cpl_tensor_mark_like(y, x))
        assert.equal("contiguous", ffi.string(y.layout_kind))
        rows.add(kernels, x, y, tensor("f64", 4, 1))
    end)
end)
