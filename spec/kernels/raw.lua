-- Runs an entry of a kernel table on raw memory, as C callers do: rows with strides, poisoned
-- outputs and workspaces, and guards around everything.
--
-- A call is { op =, parts = { "forward" }, scalars = { n_rows = .. },
-- arrays = { x = { rows =, width =, stride = } }, outputs = { y = { .. } },
-- integers = { tokens = { ctype = "int32_t", .. } } (any list; of doubles, too),
-- spans = { { slot, length }, .. }, blocks = { { q_slot =, .. }, .. }, workspace = true }. Entries
-- of arrays and outputs:
--   rows, width   the numbers that count
--   stride        between rows, >= width (the default); also set as the field <name>_stride
--   low, high     the range of an input (-1, 1)
-- Outputs start as NaN ("grad" ones as 0.5: kernels add to them). Between the rows stands a guard
-- that must survive: NaN in inputs, which spreads if it is read, and 1e30 in outputs.
local args = require "cplab.check_args"
local clib = require "clib"
local numbers = require "spec.kernels.numbers"
local C, ffi = clib.C, clib.ffi

local M = {}

local GUARD = 1e30
local ctypes = { f64 = "double[?]", f32 = "float[?]" }

local function allocate(array, dtype, guard)
    local n = array.rows * (array.stride or array.width)
    local memory = ffi.new(ctypes[dtype], n + 1)
    for i = 0, n do memory[i] = guard end
    return memory
end

local function at(array, i)
    local row = math.floor((i - 1) / array.width)
    return row * (array.stride or array.width) + (i - 1) % array.width
end

local function input(array, seed, j, dtype)
    local memory = allocate(array, dtype, 0 / 0)
    numbers.each(seed, j, array.rows * array.width, array.low or -1, array.high or 1,
        function(i, x) memory[at(array, i)] = x end)
    return memory
end

local function output(array, dtype)
    local memory = allocate(array, dtype, GUARD)
    for i = 1, array.rows * array.width do
        memory[at(array, i)] = array.grad and 0.5 or 0 / 0
    end
    return memory
end

-- The numbers of an output; fails where a guard is gone.
local function read(name, array, memory)
    local list, inside = {}, {}
    for i = 1, array.rows * array.width do
        local offset = at(array, i)
        list[i], inside[offset] = memory[offset], true
    end
    for i = 0, array.rows * (array.stride or array.width) do
        if not inside[i] and math.abs(memory[i] / GUARD - 1) > 1e-6 then
            error(("%s: the guard at %d was overwritten"):format(name, i))
        end
    end
    return list
end

-- A field lives in the struct itself, in its part `forward` or `gdn`, or in both.
local function set(p, parts, name, value)
    local found = false
    for _, part in ipairs { p, unpack(parts) } do
        if pcall(function() return part[name] end) then
            part[name], found = value, true
        end
    end
    return found
end

-- A misspelt name must not pass unseen.
local function must_set(p, parts, name, value)
    if not set(p, parts, name, value) then error("no field " .. name) end
end

-- The row strides, where the struct has a field for them.
local function set_strides(p, parts, arrays)
    for name, array in pairs(arrays) do
        set(p, parts, name .. "_stride", array.stride or array.width)
    end
end

local function parts_of(p, call)
    local parts = {}
    for i, name in ipairs(call.parts or {}) do parts[i] = p[name] end
    return parts
end

local function set_spans(p, parts, call, keep)
    if not call.spans then return end
    local spans = ffi.new("cpl_span[?]", #call.spans + 1)
    for i, span in ipairs(call.spans) do
        spans[i - 1].sequence, spans[i - 1].slot, spans[i - 1].length = i - 1, span[1], span[2]
    end
    keep[#keep + 1] = spans
    must_set(p, parts, "spans", spans)
    must_set(p, parts, "n_spans", #call.spans)
end

local function set_blocks(p, parts, call, keep)
    if not call.blocks then return end
    local blocks = ffi.new("cpl_attention_block[?]", #call.blocks + 1)
    for i, block in ipairs(call.blocks) do
        blocks[i - 1] = ffi.new("cpl_attention_block", block)
    end
    keep[#keep + 1] = blocks
    must_set(p, parts, "blocks", blocks)
    must_set(p, parts, "n_blocks", #call.blocks)
end

-- A workspace of the size that the kernel asks for, NaN, with a guard behind it.
local function make_workspace(kernels, call, p)
    if not call.workspace then return nil end
    local bytes = tonumber(kernels[call.op .. "_workspace"](p))
    local memory = ffi.new("uint8_t[?]", bytes + 128)
    ffi.fill(memory, bytes + 128, 0xff)
    local base = math.ceil(tonumber(ffi.cast("uintptr_t", memory)) / 64) * 64
    p.workspace = ffi.cast("void *", base)
    return { memory = memory, tail = ffi.cast("uint8_t *", base) + bytes }
end

--- Runs a call on a device and dtype. Returns { output name = list of numbers }.
function M.run(call, device, dtype)
    local kernels = C.cpl_kernels_for(device, clib.dtypes[dtype])
    assert(kernels ~= nil)
    local p = ffi.new("cpl_" .. call.op)
    local parts = parts_of(p, call)
    local keep, made, results = {}, {}, {}
    set_strides(p, parts, call.arrays)
    set_strides(p, parts, call.outputs)
    for _, name in ipairs(args.sorted_names(call.scalars)) do
        must_set(p, parts, name, call.scalars[name])
    end
    for j, name in ipairs(args.sorted_names(call.arrays)) do
        local memory = input(call.arrays[name], call.seed or 1, j, dtype)
        keep[#keep + 1] = memory
        must_set(p, parts, name, memory)
    end
    for name, list in pairs(call.integers or {}) do
        local memory = ffi.new(list.ctype .. "[?]", #list + 1, list)
        keep[#keep + 1] = memory
        must_set(p, parts, name, memory)
    end
    set_spans(p, parts, call, keep)
    set_blocks(p, parts, call, keep)
    for _, name in ipairs(args.sorted_names(call.outputs)) do
        made[name] = output(call.outputs[name], dtype)
        must_set(p, parts, name, made[name])
    end
    local workspace = make_workspace(kernels, call, p)
    kernels[call.op](p)
    for name, memory in pairs(made) do results[name] = read(name, call.outputs[name], memory) end
    for i = 0, workspace and 63 or -1 do
        assert(workspace.tail[i] == 0xff, "the workspace was overrun")
    end
    assert(#keep >= 0)
    return results
end

--- Compares a fast kernel with its reference.
-- @tparam table call
-- @tparam number bound for f64, and bound_f32 for f32: shares of the largest number
function M.compare(call, bound, bound_f32)
    local expected = M.run(call, "ref", "f64")
    for dtype, limit in pairs { f64 = bound, f32 = bound_f32 } do
        local actual = M.run(call, "cpu", dtype)
        for name, list in pairs(expected) do
            numbers.close(("%s %s %s"):format(call.op, name, dtype), actual[name], list, limit)
        end
    end
end

return M
