--- One op of kernels/launch.h on a device of the specs (cuda_device.lua) against its reference in
-- double. Arrays are said by their parts, so that strides, odd addresses and what shares memory can
-- be tried; both sides begin with the same bits, and what a kernel is not to touch is compared too.
-- @module spec.support.cuda_compute
local bit = require "bit"
local args = require "cplab.check_args"
local clib = require "clib"
local ffi = require "ffi"
local cuda_device = require "spec.support.cuda_device"
local environment = require "cplab.environment"
local holes = require "spec.support.holes"

local C = clib.C
local M = {}

-- The ops of a list of kernels/ops.h.
local function read_ops(list)
    local file = assert(io.open(environment.root() .. "/kernels/ops.h"))
    local text = file:read("*a"):gsub("\\\n", "")
    file:close()
    local ops = {}
    for op in text:match("#define " .. list .. "%(X%)([^\n]*)"):gmatch "X%(([%w_]+)%)" do
        ops[#ops + 1] = op
    end
    assert(#ops > 0, "no ops in " .. list)
    return ops
end

--- The ops of kernels/ops.h, in its order; those that need a workspace are the last.
M.ops = read_ops "CPLI_PLAIN_LIST"
local has_workspace = {}
for _, op in ipairs(read_ops "CPLI_WORKSPACE_LIST") do
    M.ops[#M.ops + 1], has_workspace[op] = op, true
end
for _, op in ipairs(M.ops) do
    ffi.cdef((([[
        int cpl_cuda_OP(const cpl_OP *p, int32_t dtype, int32_t way, cpl_cuda_stream stream);
        size_t cpl_cuda_OP_workspace(const cpl_OP *p, int32_t dtype);
    ]]):gsub("OP", op)))
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

-- A NaN of other bits than Lua's own may be no number for Lua.
local function from_bits(bits)
    pun.bits = bits
    if bit.band(bits, 0x7fffffff) > 0x7f800000 then return 0 / 0 end
    return pun.value
end

-- Of an f64.
local function is_nan(low, high)
    local over = bit.band(high, 0x7fffffff) - 0x7ff00000
    return over > 0 or over == 0 and low ~= 0
end

local function encode(memory, type, i, x)
    memory[i] = type == "bf16" and to_bf16(x) or x
end

local function decode(memory, type, i)
    if type == "bf16" then return from_bits(bit.lshift(memory[i], 16)) end
    local words = ffi.cast("uint32_t *", memory)
    if type == "f32" then return from_bits(words[i]) end
    if type == "f64" and is_nan(words[2 * i], words[2 * i + 1]) then return 0 / 0 end
    return tonumber(memory[i])
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

-- Calls visit(i, at) for each number of an array, where `at` is its place: i, or of an array with
-- holes, that among the columns of rows that lie a stride apart.
local function each_number(array, visit)
    if not array.rows then
        for i = 0, array.n - 1 do visit(i, i) end
        return
    end
    for row = 0, array.rows - 1 do
        for j = 0, array.width - 1 do visit(row * array.width + j, row * array.stride + j) end
    end
end

local function extent_of(array)
    return array.rows and (array.rows - 1) * array.stride + array.width or array.n
end

-- Memory of the host for an array: zeros.
local function memory_of(array, ctype)
    if not array.rows then return ffi.new(ctype .. "[?]", math.max(array.n, 1)) end
    return ffi.cast(ctype .. " *", holes.take(extent_of(array) * ffi.sizeof(ctype), 0))
end

-- Memory of the device, and where the host writes it: the same where there are holes, and where
-- an index that has lost its upper half meets zeros.
local function memory_there(device, array, layout)
    local is_far = array.rows or array.before
    if not is_far or not device.is_emulated or device.is_checked then
        assert(not array.rows, "holes are those of the host's addresses")
        local shift = (array.shift or 0) * layout.bytes
        return device:alloc(array.n * layout.bytes + 16) + shift,
            ffi.new(layout.name .. "[?]", math.max(array.n, 1))
    end
    local before = 2 ^ 31 + (array.before or 0)
    local at = holes.take(extent_of(array) * layout.bytes, before * layout.bytes)
    return at, ffi.cast(layout.name .. " *", at), true
end

-- An array of the device with its values, `shift` elements behind a multiple of 16 bytes; holes are
-- nothing but addresses there.
local function place(device, array, dtype)
    local type = type_of(array, dtype)
    local layout = types[type]
    local at, memory, is_shared = memory_there(device, array, layout)
    local here = memory_of(array, type:match "^i" and layout.name or "double")
    each_number(array, function(i, where)
        encode(memory, type, where, array.values(i))
        here[where] = type:match "^i" and memory[where] or decode(memory, type, where)
    end)
    if not is_shared then device:write(at, memory, array.n * layout.bytes) end
    return { type = type, array = array, there = at, here = here, shared = is_shared and memory }
end

-- What the device has of an array now.
local function fetch(device, placed)
    local layout = types[placed.type]
    if not placed.shared then
        return device:download(placed.there, placed.array.n * layout.bytes, layout.name .. "[?]")
    end
    device:check(device.lib.cudaDeviceSynchronize())
    return placed.shared
end

-- The device's result and the reference's; alike(x, y) says whether they may stand for each other.
local function compare(device, name, placed, alike)
    local got = fetch(device, placed)
    each_number(placed.array, function(i, at)
        local x = decode(got, placed.type, at)
        local y = decode(placed.here, placed.type:match "^i" and placed.type or "f64", at)
        if not alike(x, y) then
            error(("%s[%d] is %.17g, the reference has %.17g"):format(name, i, x, y), 0)
        end
    end)
    local bytes = placed.array.rows and 0 or placed.array.n * types[placed.type].bytes
    return ffi.string(got, bytes)
end

-- Sums of a few hundred numbers of about 1, in f64 and f32, and one rounding to bf16 of up to half
-- of 2^-7 of a number.
local bounds = { f64 = 1e-12, f32 = 3e-5, bf16 = 2 ^ -8 + 3e-5 }

-- By the type of the array, and `wide` of those of bf16 that are f32.
local function bound_of(case, type, dtype)
    local own = case.bounds or {}
    local is_wide = dtype == "bf16" and type == "f32"
    return is_wide and own.wide or own[type] or bounds[type] or 0 -- of integers
end

-- `bound` is what numbers may differ by, as a part of 1 + the size of the number.
local function within(bound)
    return function(x, y)
        local same = x == y or x ~= x and y ~= y
        local is_near = math.abs(x - y) <= bound * (1 + math.abs(y)) -- false of a NaN
        return same or is_near
    end
end

-- A field of a struct, or, "forward.x", of one in it.
local function set(p, name, value)
    local outer, inner = name:match "^([%w_]+)%.(.+)$"
    if outer then return set(p[outer], inner, value) end
    p[name] = value
end

-- As many bytes as kernels ask for, all NaN; none where they ask for none. Returns what is to live
-- as long as the structs.
local function give_workspaces(device, op, p, ref, code)
    if not has_workspace[op] then return nil end
    local kernels = C.cpl_kernels_for("ref", C.CPL_F64)
    local bytes = tonumber(device.lib["cpl_cuda_" .. op .. "_workspace"](p, code))
    local nans = ffi.new("uint8_t[?]", math.max(bytes, 1))
    ffi.fill(nans, bytes, 0xff)
    if bytes > 0 then p.workspace = device:upload(nans, bytes) end
    local kept = ffi.new("double[?]", tonumber(kernels[op .. "_workspace"](ref)) / 8 + 1)
    ref.workspace = kept
    return kept
end

local function fill(case, p, ref, placed)
    for name, array in pairs(case.arrays) do
        local at = placed[array.same_as or name]
        local before = array.before or 0
        set(p, name, ffi.cast("void *", ffi.cast("uint8_t *", at.there)
            - before * types[at.type].bytes))
        set(ref, name, ffi.cast("void *", at.here - before))
    end
    for name, value in pairs(case.numbers) do
        set(p, name, value)
        set(ref, name, value)
    end
end

-- Both structs of a case, what they point to by name, and what is to live as long as they do.
local function prepare(device, op, case, dtype)
    local p, ref, placed = ffi.new("cpl_" .. op), ffi.new("cpl_" .. op), {}
    -- Values may be drawn one after the other, and are the same in every run.
    for _, name in ipairs(args.sorted_names(case.arrays)) do
        local array = case.arrays[name]
        if not array.same_as then placed[name] = place(device, array, dtype) end
    end
    fill(case, p, ref, placed)
    return p, ref, placed, give_workspaces(device, op, p, ref, clib.dtypes[dtype])
end

local function give_back(device)
    device:free_all()
    holes.give_back()
end

--- Runs an op on both sides and compares every array, in and out.
-- @tparam table device
-- @tparam string op
-- @tparam table case `arrays` by name, "forward.x" in a struct of a struct: { n =, values =
--   function(i), type = "wide", "i32", "i64", "f64" or the dtype, shift =, same_as = another one,
--   before = elements that the pointer lies before its memory } or, with holes, { rows =, width =,
--   stride =, values = }; `numbers` of the struct, `bounds` by type, `wide` of f32 in bf16
-- @tparam string dtype
-- @tparam string way
-- @tparam ?function alike(x, y, is_close) whether two numbers may stand for each other, in place of
--   is_close(x, y)
-- @treturn table what the arrays on the device hold then, as strings of bytes by name
function M.try(device, op, case, dtype, way, alike)
    local p, ref, placed, kept = prepare(device, op, case, dtype)
    device:check(device.lib["cpl_cuda_" .. op](p, clib.dtypes[dtype], ways[way], nil))
    C.cpl_kernels_for("ref", C.CPL_F64)[op](ref)
    local results = {}
    for name, at in pairs(placed) do
        local is_close = within(bound_of(case, at.type, dtype))
        results[name] = compare(device, name, at, alike and function(x, y)
            return alike(x, y, is_close)
        end or is_close)
    end
    give_back(device)
    return results, kept
end

--- Launches an op with the number of another dtype than its arrays have, and fails where that has
-- changed one of them.
-- @treturn number what the launcher says, a cudaError_t
function M.misled(device, op, case, dtype, way)
    local p, _, placed, kept = prepare(device, op, case, "f32")
    local code = device.lib["cpl_cuda_" .. op](p, clib.dtypes[dtype], ways[way], nil)
    for name, at in pairs(placed) do compare(device, name, at, within(0)) end
    give_back(device)
    return code, kept
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
