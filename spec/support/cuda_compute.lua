--- One op of kernels/launch.h on a device of the specs (cuda_device.lua) against its reference in
-- double. Arrays are said by their parts, so that strides, odd addresses and what shares memory can
-- be tried; both sides begin with the same bits, and what a kernel is not to touch is compared too.
-- @module spec.support.cuda_compute
local bit = require "bit"
local clib = require "clib"
local ffi = require "ffi"
local cuda_device = require "spec.support.cuda_device"

local C = clib.C
local M = {}

local ops = {
    "rms_norm", "rms_norm_backward", "gated_rms_norm", "gated_rms_norm_backward", "l2norm",
    "l2norm_backward", "rope", "conv1d", "conv1d_backward", "gates", "gates_backward", "merge",
    "merge_backward", "sigmoid_gate", "sigmoid_gate_backward", "swiglu", "swiglu_backward",
    "embedding", "embedding_backward", "cross_entropy", "move_rows", "sum_squares",
    "step_factors", "adamw", "sgd", "axpby",
}
for _, op in ipairs(ops) do
    ffi.cdef(("int cpl_cuda_%s(const cpl_%s *p, int32_t dtype, int32_t way, void *stream);")
        :format(op, op))
end
local need_workspace = { rms_norm_backward = true, cross_entropy = true, sum_squares = true }
for op in pairs(need_workspace) do
    ffi.cdef(("size_t cpl_cuda_%s_workspace(const cpl_%s *p, int32_t dtype);"):format(op, op))
end

local ways = { best = 0, naive = 1 }
M.dtypes = { "f64", "f32", "bf16" }

-- How numbers of a type lie in memory.
local types = {
    f64 = { name = "double", bytes = 8 },
    f32 = { name = "float", bytes = 4 },
    bf16 = { name = "uint16_t", bytes = 2 },
    i64 = { name = "int64_t", bytes = 8 },
    i32 = { name = "int32_t", bytes = 4 },
}

local pun = ffi.new "union { float value; uint32_t bits; }"

-- Rounded to the nearest, halves to the even one; a NaN stays one.
local function to_bf16(x)
    pun.value = x
    if x ~= x then return 0x7fc0 end
    local bits = pun.bits
    local odd = bit.band(bit.rshift(bits, 16), 1)
    return bit.band(bit.rshift(bits + 0x7fff + odd, 16), 0xffff)
end

local function from_bf16(bits)
    pun.bits = bit.lshift(bits, 16)
    return pun.value
end

local function encode(memory, type, i, x)
    memory[i] = type == "bf16" and to_bf16(x) or x
end

local function decode(memory, type, i)
    return type == "bf16" and from_bf16(memory[i]) or tonumber(memory[i])
end

--- Numbers in -1 .. 1, the same for the same seed.
function M.random(seed)
    local state = seed * 2654435761 % 2 ^ 31
    return function()
        state = (state * 1103515245 + 12345) % 2 ^ 31
        return math.floor(state / 2 ^ 11) / 2 ^ 19 - 1
    end
end

local function type_of(array, dtype)
    if array.type == "wide" then return dtype == "bf16" and "f32" or dtype end
    return array.type or dtype
end

-- An array of the device with its values, `shift` elements behind a multiple of 16 bytes.
local function place(device, array, dtype)
    local type = type_of(array, dtype)
    local layout = types[type]
    local memory = ffi.new(layout.name .. "[?]", math.max(array.n, 1))
    for i = 0, array.n - 1 do encode(memory, type, i, array.values(i)) end
    local at = device:alloc(array.n * layout.bytes + 16) + (array.shift or 0) * layout.bytes
    device:write(at, memory, array.n * layout.bytes)
    local wide = type:match "^i" and memory or ffi.new("double[?]", math.max(array.n, 1))
    for i = 0, array.n - 1 do
        if wide ~= memory then wide[i] = decode(memory, type, i) end
    end
    return { at = at, type = type, n = array.n, there = at, here = wide }
end

-- The reference's result and the device's; `bound` of an array is what they may differ by, as a
-- part of 1 + the size of the number.
local function compare(device, name, placed, bound)
    local layout = types[placed.type]
    local got = device:download(placed.there, placed.n * layout.bytes, layout.name .. "[?]")
    for i = 0, placed.n - 1 do
        local x, y = decode(got, placed.type, i), tonumber(placed.here[i])
        local same = x == y or x ~= x and y ~= y
        local is_near = math.abs(x - y) <= bound * (1 + math.abs(y)) -- false of a NaN
        if not same and not is_near then
            error(("%s[%d] is %.17g, the reference has %.17g"):format(name, i, x, y), 0)
        end
    end
    return ffi.string(got, placed.n * layout.bytes)
end

-- As many bytes as the kernel asks for, all NaN; none where it asks for none.
local function make_workspace(device, op, p, code)
    if not need_workspace[op] then return end
    local bytes = tonumber(device.lib[("cpl_cuda_%s_workspace"):format(op)](p, code))
    if bytes == 0 then return end
    local nans = ffi.new("uint8_t[?]", bytes)
    ffi.fill(nans, bytes, 0xff)
    p.workspace = device:upload(nans, bytes)
end

-- Sums of a few hundred numbers of about 1, in f64 and f32, and one rounding to bf16 of up to half
-- of 2^-7 of a number.
local bounds = { f64 = 1e-12, f32 = 3e-5, bf16 = 2 ^ -8 + 3e-5 }

--- Runs an op on both sides and compares every array, in and out.
-- @tparam table device
-- @tparam string op
-- @tparam table case `arrays` by name: { n =, values = function(i), type = "wide", "i32", "i64",
--   "f64" or the dtype, shift =, same_as = another one, before = elements that the pointer lies
--   before its memory }, `numbers` of the struct, `bounds` by type
-- @tparam string dtype
-- @tparam string way
-- @treturn table what the arrays on the device hold then, as strings of bytes by name
function M.try(device, op, case, dtype, way)
    local p, ref = ffi.new("cpl_" .. op), ffi.new("cpl_" .. op)
    local placed = {}
    for name, array in pairs(case.arrays) do
        if not array.same_as then placed[name] = place(device, array, dtype) end
    end
    for name, array in pairs(case.arrays) do
        local at = placed[array.same_as or name]
        p[name] = ffi.cast("void *", at.there - (array.before or 0) * types[at.type].bytes)
        ref[name] = ffi.cast("void *", at.here - (array.before or 0))
    end
    for name, value in pairs(case.numbers) do p[name], ref[name] = value, value end
    local code = C[("CPL_%s"):format(dtype:upper())]
    make_workspace(device, op, p, code)
    device:check(device.lib["cpl_cuda_" .. op](p, code, ways[way], nil))
    C.cpl_kernels_for("ref", C.CPL_F64)[op](ref)
    local results = {}
    for name, at in pairs(placed) do
        local bound = case.bounds and case.bounds[at.type] or bounds[at.type]
        results[name] = compare(device, name, at, bound or 0) -- integers are the same
    end
    device:free_all()
    return results
end

--- A block for each kind of device that is here: `body(device, each)`, where each(what, f) makes a
-- test for each way, of f(dtype, way) in all dtypes and several orders of threads.
-- @tparam table busted the file's own `describe`, `it` and `pending`, in that order
-- @tparam string what
-- @tparam function body
function M.describe(busted, what, body)
    local describe, it, pending = unpack(busted)
    for _, kind in ipairs { "plain", "checked", "device" } do
        describe(("%s, %s:"):format(what, kind), function()
            local device, why = cuda_device.open(kind)
            if not device then
                it("keep their contracts", function() pending(why) end)
                return
            end
            body(device, function(sentence, f)
                for _, way in ipairs { "naive", "best" } do
                    it(("%s (%s)"):format(sentence, way), function()
                        for i, dtype in ipairs(M.dtypes) do
                            device:set_order(device.orders[i % #device.orders + 1])
                            f(dtype, way)
                        end
                        device:set_order(device.orders[1])
                    end)
                end
            end)
        end)
    end
end

return M
