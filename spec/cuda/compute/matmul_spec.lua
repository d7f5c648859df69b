-- matmul on a device that is emulated, against the reference in double.
local call = require "cplab.op.call"
local cases = require "spec.support.device_cases"
local clib = require "clib"
local numbers = require "spec.kernels.numbers"
local on_device = require "spec.support.on_device"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local ffi = clib.ffi

local it_there = on_device.it(it, pending)

-- Sums of up to 130 products of numbers below 1: of f32 each addition rounds by 2^-24 of the sum so
-- far, and the largest result is about the root of their number. A result of bf16 is rounded by
-- 2^-9; its sums are those of f32, whose products of two numbers of 8 bits are exact.
local BOUNDS = { f64 = 1e-14, f32 = 2e-6, bf16 = 2 ^ -8 }
local WIDE_BOUNDS = { f64 = 1e-14, f32 = 2e-6, bf16 = 2e-6 }

-- m, n, k: one, odd, of exactly a tile, one more and one less, and flat.
local SIZES = { { 1, 1, 1 }, { 3, 5, 7 }, { 64, 64, 32 }, { 65, 63, 33 }, { 1, 130, 17 },
    { 70, 1, 40 }, { 2, 3, 130 } }

local function random(j, rows, columns, transposed, dtype)
    return numbers.tensor(3, j, transposed and { columns, rows } or { rows, columns }, -1, 1,
        dtype)
end

local function try_sizes(there, dtype, bound, wide)
    for i, size in ipairs(SIZES) do
        local m, n, k = unpack(size)
        for turns = 0, 3 do
            local ta, tb = turns % 2 == 1, turns >= 2
            local a, b = random(i, m, k, ta, dtype), random(i + 50, k, n, tb, dtype)
            local c = op.matmul(a, b, there { transpose_a = ta, transpose_b = tb, alpha = -0.5,
                wide = wide })
            assert.equal(wide and dtype == "bf16" and "f32" or dtype, c:dtype())
            numbers.close(("%s %d x %d x %d, turns %d"):format(dtype, m, n, k, turns), c,
                op.matmul(cases.exact(a), cases.exact(b), { transpose_a = ta, transpose_b = tb,
                    alpha = -0.5, device = "ref" }), bound)
        end
    end
end

-- The struct itself, for what cplab.op does not offer: rows further apart than they are wide, a c
-- that is kept in part, matrices of a batch in other places.
local function multiply(options, p, a, b, c)
    local dims = call.dims("spec", options)
    dims.dtype = a:dtype()
    p.a, p.b = dims:at(a), dims:at(b)
    local result = dims:copy(c)
    p.c = dims:at(result)
    dims:call("matmul", p)
    return result
end

local function strided(dtype, wide)
    local p = ffi.new "cpl_matmul"
    p.m, p.n, p.k, p.lda, p.ldb, p.ldc = 5, 7, 3, 9, 8, 11
    p.transpose_a, p.transpose_b, p.alpha, p.beta = false, true, 2, -0.25
    p.batch, p.a_step, p.b_step, p.c_step = 3, 50, 60, 70
    p.wide_c = wide
    return p, numbers.tensor(5, 1, { 150 }, -1, 1, dtype),
        numbers.tensor(5, 2, { 180 }, -1, 1, dtype),
        numbers.tensor(5, 3, { 210 }, -1, 1, wide and dtype == "bf16" and "f32" or dtype)
end

local function try_strided(there, dtype, bound, wide)
    local p, a, b, c = strided(dtype, wide)
    local got = multiply(there(), p, a, b, c)
    local ref = ffi.new("cpl_matmul", p)
    numbers.close(dtype .. " with strides", got, multiply({ device = "ref" }, ref,
        cases.exact(a), cases.exact(b), cases.exact(c)), bound)
    -- What lies between the rows of c is as it was.
    local before, after = c:totable(), got:totable()
    for i = 0, 209 do
        local column, row = i % 70 % 11, math.floor(i % 70 / 11)
        if column >= 7 or row >= 5 then assert.equal(before[i + 1], after[i + 1]) end
    end
end

local function try_beta_zero(there, dtype)
    local p, a, b, c = strided(dtype, false)
    p.beta, p.batch = 0, 0
    local nan = c:totable()
    for i = 1, #nan do nan[i] = 0 / 0 end
    local got = multiply(there(), p, a, b, tensor.from(nan, { 210 }, dtype)):totable()
    for i = 0, 4 do
        for j = 1, 7 do assert.equal(got[i * 11 + j], got[i * 11 + j], "a NaN of before") end
    end
end

local function try_empty(there, dtype)
    local function t(...) return tensor.zeros({ ... }, dtype) end
    assert.same({}, op.matmul(t(0, 3), t(3, 2), there()):totable())
    assert.same({}, op.matmul(t(2, 3), t(3, 0), there()):totable())
    assert.same({ 0, 0 }, op.matmul(t(2, 0), t(0, 1), there()):totable())
end

local function try_infinite(there, dtype)
    local a = tensor.from({ 1, 0 / 0, math.huge, 0, 1, 2 }, { 3, 2 }, dtype)
    local c = op.matmul(a, tensor.from({ 1, 2, 3, 4 }, { 2, 2 }, dtype), there()):totable()
    assert.is_true(c[1] ~= c[1] and c[2] ~= c[2])
    assert.same({ math.huge, math.huge, 7, 10 }, { unpack(c, 3) })
end

describe("matmul on a device", function()
    it_there("multiplies matrices of any size, transposed or not", function()
        cases.each(BOUNDS, function(there, dtype, bound)
            try_sizes(there, dtype, bound, false)
        end)
    end)

    it_there("makes a wide result of bf16, without rounding it", function()
        cases.each(WIDE_BOUNDS, function(there, dtype, bound)
            try_sizes(there, dtype, bound, true)
        end)
    end)

    it_there("keeps to strides, and adds to a part of what was there", function()
        cases.each(BOUNDS, function(there, dtype, bound)
            try_strided(there, dtype, bound, false)
            try_strided(there, dtype, dtype == "bf16" and 2e-6 or bound, true)
            try_beta_zero(there, dtype)
        end)
    end)

    it_there("takes matrices without elements, and sums of nothing", function()
        cases.each(BOUNDS, try_empty)
    end)

    it_there("lets NaN and infinity through, and no further than their rows", function()
        cases.each(BOUNDS, try_infinite)
    end)

    it_there("gives the same bits in every order of threads", function()
        local a, b = random(1, 70, 40, false, "f32"), random(2, 40, 66, false, "f32")
        local first
        cases.each({ f32 = 0 }, function(there)
            local c = op.matmul(a, b, there()):totable()
            first = first or c
            assert.same(first, c) -- both ways add in the order of the inner index
        end)
    end)
end)
