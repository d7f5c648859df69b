--- What a compiled kernel consists of, read from the cubin that nvcc made: no GPU and none of the
-- toolkit's disassemblers is needed. A cubin is an ELF file of 64 bits; the section ".text.NAME"
-- holds a kernel's instructions of 16 bytes each, and ".nv.info" says how many registers it uses.
--
-- NVIDIA does not publish the encoding. What is used here was found by comparing with nvdisasm for
-- sm_80 and sm_90: the lowest 12 bits are the opcode, bits 73 to 75 the width of an access. Of the
-- records in ".nv.info" those with the head 04 2f hold (symbol, registers), 04 11 (symbol, frame).
-- @module spec.support.cubin
local bit = require "bit"

local M = {}

local instruction_bytes = 16
local machine_cuda = 190 -- EM_CUDA

-- What an opcode does: { kind, whether its width matters }. LD and ST reach any memory; a kernel
-- that has its pointers from tables uses them for device memory.
local opcodes = {
    [0x980] = { "loads", true }, [0x981] = { "loads", true }, -- LD, LDG
    [0x385] = { "stores", true }, [0x985] = { "stores", true }, -- ST
    [0x386] = { "stores", true }, [0x986] = { "stores", true }, -- STG
    [0x984] = { "shared_loads", true }, -- LDS
    [0x388] = { "shared_stores", true }, [0x988] = { "shared_stores", true }, -- STS
    [0x983] = { "local_loads", true }, -- LDL
    [0x387] = { "local_stores", true }, [0x987] = { "local_stores", true }, -- STL
    [0x83b] = { "matrix_loads" }, -- LDSM
    [0xfae] = { "async_copies" }, -- LDGSTS
    [0x23c] = { "tensor_cores" }, -- HMMA
    [0xb1d] = { "barriers" }, -- BAR
    [0xf89] = { "shuffles" }, [0x589] = { "shuffles" }, -- SHFL
    [0x98e] = { "reductions" }, [0x9a6] = { "reductions" }, -- RED
    [0x9a8] = { "atomics" }, -- ATOMG
}

local widths = { [0] = "8", "8", "16", "16", "32", "64", "128" }

local function unsigned(text, at, bytes)
    local value = 0
    for i = bytes, 1, -1 do value = value * 256 + text:byte(at + i) end
    return value
end

-- The sections of an ELF file of 64 bits by index: { name =, offset =, bytes = }.
local function sections(text)
    if text:sub(1, 5) ~= "\127ELF\2" then error("cubin: not an ELF file of 64 bits", 3) end
    local table_at, size = unsigned(text, 0x28, 8), unsigned(text, 0x3a, 2)
    local n, names_index = unsigned(text, 0x3c, 2), unsigned(text, 0x3e, 2)
    local list = {}
    for i = 0, n - 1 do
        local at = table_at + i * size
        list[i] = { name = unsigned(text, at, 4), offset = unsigned(text, at + 0x18, 8),
            bytes = unsigned(text, at + 0x20, 8) }
    end
    local names_at = list[names_index].offset
    for i = 0, n - 1 do
        list[i].name = text:match("^[^%z]*", names_at + list[i].name + 1)
        list[list[i].name] = list[i]
    end
    return list
end

local symbol_bytes = 24

local function symbol_name(text, list, index)
    local at = list[".symtab"].offset + index * symbol_bytes
    return text:match("^[^%z]*", list[".strtab"].offset + unsigned(text, at, 4) + 1)
end

-- The records of .nv.info with that head: { name of the kernel = its number }.
local function facts(text, list, head)
    local out, info = {}, list[".nv.info"]
    local at, past = info.offset, info.offset + info.bytes
    while at < past do
        local has_size = text:byte(at + 1) == 4 -- else the two bytes are the value
        local size = has_size and unsigned(text, at + 2, 2) or 0
        if text:sub(at + 1, at + 2) == head then
            out[symbol_name(text, list, unsigned(text, at + 4, 4))] = unsigned(text, at + 8, 4)
        end
        at = at + 4 + size
    end
    return out
end

-- What an instruction does, and its width; nil where that does not matter, and of one whose
-- predicate is never true (bits 12 to 15 all set), which compilers put between others.
local function decode(text, at)
    local low, high = text:byte(at + 1, at + 2)
    local known = opcodes[low + bit.band(high, 0xf) * 256]
    if not known or high >= 0xf0 then return nil end
    local width = known[2] and widths[bit.band(bit.rshift(text:byte(at + 10), 1), 7)]
    return known[1], width
end

-- Loads that stand together with no store between them can be in flight at once: the most of them,
-- by width.
local function count(text, section)
    local kernel = { instructions = section.bytes / instruction_bytes, in_flight = {} }
    local together = {}
    for at = section.offset, section.offset + section.bytes - 1, instruction_bytes do
        local kind, width = decode(text, at)
        if width then
            kernel[kind] = kernel[kind] or {}
            kernel[kind][width] = (kernel[kind][width] or 0) + 1
        elseif kind then
            kernel[kind] = (kernel[kind] or 0) + 1
        end
        if kind == "loads" then
            together[width] = (together[width] or 0) + 1
            kernel.in_flight[width] = math.max(kernel.in_flight[width] or 0, together[width])
        elseif kind == "stores" then
            together = {}
        end
    end
    return kernel
end

--- Counts what the kernels of a cubin consist of.
-- @tparam string text the file's bytes; what stands behind its end does not matter
-- @treturn table by kernel name: `registers` a thread, `frame` (bytes of local memory), `shared`
--   (bytes of shared memory that it declares), `instructions`, `in_flight` (by width the most loads
--   with no store between them); `loads`, `stores`, `shared_*`, `local_*` by width in bits ("8" to
--   "128"; absent where there is none); `tensor_cores`, `async_copies`, `matrix_loads`, `barriers`,
--   `shuffles`, `atomics`, `reductions` (nil where there is none)
-- @raise where it is no ELF file of 64 bits
function M.kernels(text)
    local kernels = {}
    local list = sections(text)
    local registers, frames = facts(text, list, "\4\47"), facts(text, list, "\4\17")
    for i = 0, #list do
        local name = list[i].name:match "^%.text%.(.+)$"
        if name then
            kernels[name] = count(text, list[i])
            kernels[name].registers, kernels[name].frame = registers[name], frames[name]
            local shared = list[".nv.shared." .. name]
            kernels[name].shared = shared and shared.bytes or 0
        end
    end
    return kernels
end

-- From sm_90 on a block's shared memory begins with 1 KiB of the system's own.
local function leave_out_reserved(kernels)
    for _, kernel in pairs(kernels) do
        kernel.shared = math.max(kernel.shared - 1024, 0)
    end
end

--- The cubins in an object, a library or a fat binary that was made with --no-compress.
-- @tparam string text its bytes
-- @treturn table list of { arch = 80, kernels = as M.kernels gives them }
function M.images(text)
    local images, at = {}, 1
    while true do
        at = text:find("\127ELF\2", at, true)
        if not at then return images end
        if unsigned(text, at - 1 + 18, 2) == machine_cuda then
            local image = text:sub(at)
            local arch, kernels = image:byte(0x30 + 2), M.kernels(image)
            if arch >= 90 then leave_out_reserved(kernels) end
            images[#images + 1] = { arch = arch, kernels = kernels }
        end
        at = at + 5
    end
end

return M
