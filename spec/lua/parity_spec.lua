-- The number that the proof rests on: each way to be wrong must show in it.
local parity = require "cplab.parity"
local clib = require "clib"
local C, ffi = clib.C, clib.ffi

local function tensor(rows)
    local shape = ffi.new("int64_t[2]", #rows, #rows[1])
    local t = clib.create("cpl_tensor", C.cpl_tensor_destroy, 1, C.cpl_tensor_create, C.CPL_F64, 2,
        shape, nil)
    for i, row in ipairs(rows) do
        for j, value in ipairs(row) do
            C.cpl_dtype_store(C.CPL_F64, t.data, (i - 1) * #row + j - 1, value)
        end
    end
    return t
end

local function ratio(x, r, positions)
    local out = ffi.new "cpl_difference"
    positions = positions and ffi.new("int64_t[?]", #positions, positions)
    clib.check(C.cpl_tensor_difference(tensor(x), tensor(r), positions, out))
    return parity.ratio(out)
end

describe("parity", function()
    it("is 0 for equal tensors and the ratio of norms for scaled ones", function()
        local r = { { 3, 4 }, { 0, 12 } }
        assert.equal(0, ratio(r, r))
        assert.is_true(math.abs(ratio({ { 3.03, 4.04 }, { 0, 12.12 } }, r) - 0.01) < 1e-15)
    end)

    it("is the worst row where that is worse: one wrong row of a thousand shows", function()
        local r, x = {}, {}
        for i = 1, 1000 do r[i], x[i] = { 1 }, { 1 } end
        x[700] = { 1.5 }
        assert.equal(0.5, ratio(x, r))
    end)

    it("reads the reference at the rows' positions", function()
        local r = { { 1 }, { 2 }, { 3 } }
        assert.equal(0, ratio({ { 3 }, { 1 } }, r, { 2, 0 }))
        assert.is_true(ratio({ { 1 }, { 3 } }, r, { 2, 0 }) > 0.5)
    end)

    it("demands X = 0 where R = 0 (even where squares vanish), and keeps a NaN", function()
        assert.equal(0, ratio({ { 0 } }, { { 0 } }))
        assert.equal(math.huge, ratio({ { 1e-290 } }, { { 0 } }))
        local nan = ratio({ { 1, 0 / 0 }, { 1, 1 } }, { { 1, 1 }, { 1, 1 } })
        assert.is_true(nan ~= nan)
        nan = ratio({ { 1, 1 }, { 1, 1 } }, { { 1, 1 }, { 1, 0 / 0 } })
        assert.is_true(nan ~= nan)
    end)

    it("keeps a NaN between two values", function()
        local value, where = parity.larger(0 / 0, "a", 3, "b")
        assert.is_true(value ~= value and where == "a")
        value, where = parity.larger(3, "a", 0 / 0, "b")
        assert.is_true(value ~= value and where == "b")
        value, where = parity.larger(3, "a", 4, "b")
        assert.is_true(value == 4 and where == "b")
    end)

    it("refuses shapes and rows that do not fit", function()
        assert.has_error(function() ratio({ { 1, 2 } }, { { 1 } }) end,
            "compare: 1 x 2 against a reference of 1 x 1")
        assert.has_error(function() ratio({ { 1 } }, { { 1 } }, { 1 }) end,
            "compare: row 1 of a reference of 1 rows")
    end)
end)
