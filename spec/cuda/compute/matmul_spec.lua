-- matmul on a device that is emulated, against the reference in double: by the project's own
-- kernels, and by cuBLAS, whose double computes what it is told to as its documents have it.
local cases = require "spec.support.device_cases"
local matmul = require "spec.support.matmul_cases"
local numbers = require "spec.kernels.numbers"
local on_device = require "spec.support.on_device"
local op = require "cplab.op"
local ranks = require "spec.support.ranks"

local it_there = on_device.it(it, pending)

describe("matmul on a device", function()
    it_there("multiplies matrices of any size, transposed or not", function()
        cases.each(matmul.BOUNDS, matmul.sizes)
    end)

    it_there("makes a wide result of bf16, without rounding it", function()
        cases.each(matmul.WIDE_BOUNDS, function(there, dtype, bound)
            matmul.sizes(there, dtype, bound, true)
        end)
    end)

    it_there("keeps to strides, and adds to a part of what was there", function()
        cases.each(matmul.BOUNDS, matmul.strided)
        cases.each(matmul.WIDE_BOUNDS, function(there, dtype, bound)
            matmul.strided(there, dtype, bound, true)
        end)
        cases.each(matmul.BOUNDS, matmul.beta_zero)
    end)

    it_there("takes matrices without elements, and sums of nothing", function()
        cases.each(matmul.BOUNDS, matmul.empty)
    end)

    it_there("lets NaN and infinity through, and no further than their rows", function()
        cases.each(matmul.BOUNDS, matmul.infinite)
    end)

    it_there("gives the same bits in every order of threads", function()
        local a = numbers.tensor(1, 1, { 70, 40 }, -1, 1, "f32")
        local b = numbers.tensor(1, 2, { 40, 66 }, -1, 1, "f32")
        local first
        cases.each({ f32 = 0 }, function(there)
            local c = op.matmul(a, b, there()):totable()
            first = first or c
            assert.same(first, c) -- both ways add in the order of the inner index
        end)
    end)
end)

-- In a thread of its own, whose device has cuBLAS if that was switched on before. Returns how many
-- kernels were launched.
local function multiply_all()
    local ffi = require "ffi"
    local matmul_cases = require "spec.support.matmul_cases"
    pcall(ffi.cdef, "uint64_t cpl_emulation_count(const char *what);")
    local build = package.searchpath("cplab_cdef", package.path):match "^(.*)/lua/"
    local emulator = ffi.load(build .. "/bin/libcplab_cuda_emulated.so")
    local function there(options)
        options = options or {}
        options.device = "cuda-emulated"
        return options
    end
    local before = emulator.cpl_emulation_count "launches"
    for dtype, bound in pairs(matmul_cases.BOUNDS) do
        matmul_cases.sizes(there, dtype, bound)
        matmul_cases.strided(there, dtype, bound)
        matmul_cases.beta_zero(there, dtype)
        matmul_cases.infinite(there, dtype)
        local wide = matmul_cases.WIDE_BOUNDS[dtype]
        matmul_cases.sizes(there, dtype, wide, true)
        matmul_cases.strided(there, dtype, wide, true)
    end
    local launches = tonumber(emulator.cpl_emulation_count "launches" - before)
    for dtype in pairs(matmul_cases.BOUNDS) do matmul_cases.empty(there, dtype) end
    return launches
end

describe("matmul by cuBLAS", function()
    it_there("is told the same products, by columns, and no kernel of ours is launched", function()
        on_device.set("cublas", "1")
        local ok, launches = pcall(ranks.run, 1, multiply_all)
        on_device.set("cublas", "0")
        assert(ok, launches)
        assert.equal(0, launches[1])
        -- The control: without it, one each.
        local sizes, strided, others = 2 * matmul.n_sizes, 4, 2
        assert.equal(3 * (sizes + strided + others), ranks.run(1, multiply_all)[1])
    end)
end)
