-- The number that the proof rests on: each way to be wrong must show in it.
local parity = require "cplab.parity"
local ranks = require "spec.support.ranks"
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

    it("is NaN whatever the bits of the NaN, and wherever its row is", function()
        for _, dtype in ipairs { C.CPL_F64, C.CPL_F32, C.CPL_BF16 } do
            local shape = ffi.new("int64_t[2]", 3, 1)
            local function zeros()
                return clib.create("cpl_tensor", C.cpl_tensor_destroy, 1, C.cpl_tensor_create,
                    dtype, 2, shape, nil)
            end
            local x, out = zeros(), ffi.new "cpl_difference"
            local bytes = tonumber(C.cpl_dtype_bytes(dtype))
            ffi.fill(ffi.cast("char *", x.data) + bytes, bytes, 0xff) -- the middle row
            clib.check(C.cpl_tensor_difference(x, zeros(), nil, out))
            assert.equal("number", type(out.difference2))
            assert.is_true(out.worst_row ~= out.worst_row)
            local value = parity.ratio(out)
            assert.is_true(value ~= value)
        end
    end)

    it("keeps a NaN between two values", function()
        local value, where = parity.larger(0 / 0, "a", 3, "b")
        assert.is_true(value ~= value and where == "a")
        value, where = parity.larger(3, "a", 0 / 0, "b")
        assert.is_true(value ~= value and where == "b")
        value, where = parity.larger(3, "a", 4, "b")
        assert.is_true(value == 4 and where == "b")
    end)

    it("is of the worst tensor of a list, the first, the last or one that holds a NaN", function()
        local names = { "first", "middle", "last" }
        local function worst(values)
            local list = {}
            for i, name in ipairs(names) do
                parity.capture("spec", { { name = name, tensor = tensor { { 2 } } } })
                list[i] = { name = name, tensor = tensor { { values[i] } } }
            end
            return parity.compare_same("spec", list)
        end
        for i, name in ipairs(names) do
            local values = { 2, 2, 2 }
            values[i] = 3
            local value, where = worst(values)
            assert.equal(0.5, value)
            assert.equal(name, where)
            values[i], values[i % 3 + 1] = 0 / 0, 1e9
            value, where = worst(values)
            assert.is_true(value ~= value and where == name)
        end
        assert.equal(0, (worst { 2, 2, 2 }))
    end)

    it("is of the rows of all ranks, whichever rank is wrong, and the same on each", function()
        local results = ranks.run(3, function(comm)
            local cplab = require "cplab"
            local parity = require "cplab.parity" -- luacheck: ignore 431
            local rank = comm:rank()
            local layout = cplab.layout.mirror(cplab.stream.thd { lengths = { 6 } }, { cp = 3 })
            if rank == 0 then
                local x = cplab.tensor.from({ 2, 2, 2, 2, 2, 4 }, { 6, 1 }, "f64")
                parity.capture("spec rows", { { name = "x", tensor = x._ptr } })
            end
            comm:barrier()
            local seen = {}
            for wrong = 0, 5 do
                local values = {}
                for slot, position in ipairs(layout:positions(rank)) do
                    values[slot] = (position == 5 and 4 or 2) + (position == wrong and 1 or 0)
                end
                local x = cplab.tensor.from(values, { #values, 1 }, "f64")
                seen[wrong + 1] = parity.compare_rows(comm._ptr, "spec rows",
                    { { name = "x", tensor = x._ptr } }, layout, rank)
            end
            return seen
        end)
        -- One row is off by 1: the largest row of the reference is 4, its norm is 6.
        for rank = 1, 3 do
            assert.same({ 0.25, 0.25, 0.25, 0.25, 0.25, 0.25 }, results[rank])
        end
    end)

    it("refuses shapes and rows that do not fit", function()
        assert.has_error(function() ratio({ { 1, 2 } }, { { 1 } }) end,
            "compare: 1 x 2 against a reference of 1 x 1")
        assert.has_error(function() ratio({ { 1 } }, { { 1 } }, { 1 }) end,
            "compare: row 1 of a reference of 1 rows")
    end)
end)
