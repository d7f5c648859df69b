--- Products that specs of matmul on a device try, in specs and on ranks: matrices of every size and
-- orientation, strides, batches, and what is at the edges. Each raises what is wrong.
-- @module spec.support.matmul_cases
local call = require "cplab.op.call"
local cases = require "spec.support.device_cases"
local clib = require "clib"
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local ffi = clib.ffi

local M = {}

-- Sums of up to 130 products of numbers below 1: of f32 each addition rounds by 2^-24 of the sum so
-- far, and the largest result is about the root of their number. A result of bf16 is rounded by
-- 2^-9; its sums are those of f32, whose products of two numbers of 8 bits are exact.
M.BOUNDS = { f64 = 1e-14, f32 = 2e-6, bf16 = 2 ^ -8 }
M.WIDE_BOUNDS = { f64 = 1e-14, f32 = 2e-6, bf16 = 2e-6 }

-- m, n, k: one, odd, of exactly a tile, one more and one less, and flat; multiples of 8, which
-- tensor cores take, of more than their tile of 128 x 128 and of more than a strip of 32.
local SIZES = { { 1, 1, 1 }, { 3, 5, 7 }, { 64, 64, 32 }, { 65, 63, 33 }, { 1, 130, 17 },
    { 70, 1, 40 }, { 2, 3, 130 }, { 136, 24, 40 }, { 8, 136, 72 } }
--- How many products `sizes` makes.
M.n_sizes = #SIZES * 4

local function random(j, rows, columns, transposed, dtype)
    return numbers.tensor(3, j, transposed and { columns, rows } or { rows, columns }, -1, 1,
        dtype)
end

--- All sizes and orientations; `wide`: with a WIDE result.
function M.sizes(there, dtype, bound, wide)
    for i, size in ipairs(SIZES) do
        local m, n, k = unpack(size)
        for turns = 0, 3 do
            local ta, tb = turns % 2 == 1, turns >= 2
            local a, b = random(i, m, k, ta, dtype), random(i + 50, k, n, tb, dtype)
            local c = op.matmul(a, b, there { transpose_a = ta, transpose_b = tb, alpha = -0.5,
                wide = wide })
            assert(c:dtype() == (wide and dtype == "bf16" and "f32" or dtype))
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

-- Row strides of a and b, and the steps of the batch; the second ones are multiples of 8, but the
-- rows are not.
local STRIDES = { { 9, 8, 50, 60 }, { 8, 8, 48, 64 } }

local function strided(strides, dtype, wide)
    local p = ffi.new "cpl_matmul"
    p.m, p.n, p.k, p.ldc = 5, 7, 3, 11
    p.lda, p.ldb, p.a_step, p.b_step = unpack(strides)
    p.transpose_b, p.alpha, p.beta = true, 2, -0.25
    p.batch, p.c_step = 3, 70
    p.wide_c = wide or false
    return p, numbers.tensor(5, 1, { 150 }, -1, 1, dtype),
        numbers.tensor(5, 2, { 180 }, -1, 1, dtype),
        numbers.tensor(5, 3, { 210 }, -1, 1, wide and dtype == "bf16" and "f32" or dtype)
end

local function check_gaps(before, after)
    for i = 0, 209 do
        local column, row = i % 70 % 11, math.floor(i % 70 / 11)
        if column >= 7 or row >= 5 then
            assert(before[i + 1] == after[i + 1], "a number between the rows of c has changed")
        end
    end
end

--- A batch with strides, added to a part of what was there.
function M.strided(there, dtype, bound, wide)
    for i, strides in ipairs(STRIDES) do
        local p, a, b, c = strided(strides, dtype, wide)
        local got = multiply(there(), p, a, b, c)
        local ref = ffi.new("cpl_matmul", p)
        numbers.close(("%s with strides %d"):format(dtype, i), got, multiply({ device = "ref" },
            ref, cases.exact(a), cases.exact(b), cases.exact(c)), bound)
        check_gaps(c:totable(), got:totable())
    end
end

--- Where c is only written, NaN that was there does not matter.
function M.beta_zero(there, dtype)
    local p, a, b, c = strided(STRIDES[2], dtype, false)
    p.beta, p.batch = 0, 0
    local nan = c:totable()
    for i = 1, #nan do nan[i] = 0 / 0 end
    local got = multiply(there(), p, a, b, tensor.from(nan, { 210 }, dtype)):totable()
    for i = 0, 4 do
        for j = 1, 7 do
            assert(got[i * 11 + j] == got[i * 11 + j], "a NaN that was there before")
        end
    end
end

--- Matrices without elements, and sums of nothing.
function M.empty(there, dtype)
    local function t(...) return tensor.zeros({ ... }, dtype) end
    assert(op.matmul(t(0, 3), t(3, 2), there()):n_elements() == 0)
    assert(op.matmul(t(2, 3), t(3, 0), there()):n_elements() == 0)
    numbers.close("a sum of nothing", op.matmul(t(2, 0), t(0, 1), there()), { 0, 0 }, 0)
end

--- NaN and infinity go through, and no further than their rows.
function M.infinite(there, dtype)
    local a = tensor.from({ 1, 0 / 0, math.huge, 0, 1, 2 }, { 3, 2 }, dtype)
    local c = op.matmul(a, tensor.from({ 1, 2, 3, 4 }, { 2, 2 }, dtype), there()):totable()
    assert(c[1] ~= c[1] and c[2] ~= c[2], "a NaN is lost")
    numbers.close("the other rows", { unpack(c, 3) }, { math.huge, math.huge, 7, 10 }, 0)
end

return M
