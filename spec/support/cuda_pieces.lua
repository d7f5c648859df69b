--- Lists of pieces for the kernels of exchanges: made at random, put on a device, and carried out
-- by a loop over bytes to compare with.
-- @module spec.support.cuda_pieces
local ffi = require "ffi"

local M = {}

local tile = 4096 -- CPL_CUDA_TILE

--- A generator of whole numbers 0 .. n - 1, the same in every run.
function M.random(seed)
    local state = seed
    return function(n)
        state = (state * 16807) % 2147483647
        return state % n
    end
end

-- Sizes on both sides of what the kernels decide by: empty, heads and tails, a warp, a tile.
local sizes = { 0, 1, 3, 15, 16, 17, 32, 255, 512, 513, tile - 1, tile, tile + 1, 2 * tile + 5 }

--- Pieces of which no two ends overlap, whichever memory they lie in.
-- @tparam function random
-- @tparam table options n, unit (of all offsets and sizes), peers
-- @treturn table list of { from, to, bytes, peer }
-- @treturn number bytes of each memory that hold them all
function M.make(random, options)
    local unit, list, from, to = options.unit, {}, 0, 0
    for i = 1, options.n do
        local bytes = math.ceil(sizes[random(#sizes) + 1] / unit) * unit
        from, to = from + random(3) * unit, to + random(3) * unit
        list[i] = { peer = random(options.peers), bytes = bytes, from = from, to = to }
        from, to = from + bytes, to + bytes
    end
    -- The order of the list says nothing about the order in memory.
    for i = #list, 2, -1 do
        local j = random(i) + 1
        list[i], list[j] = list[j], list[i]
    end
    return list, math.max(from, to) + 16
end

--- The list as an array of cpl_cuda_piece.
function M.array(list, shift)
    local array = ffi.new("cpl_cuda_piece[?]", math.max(#list, 1))
    for i, piece in ipairs(list) do
        local one = array[i - 1]
        one.from, one.to = piece.from + (shift or 0), piece.to + (shift or 0)
        one.bytes, one.peer = piece.bytes, piece.peer
    end
    return array
end

--- Lists in device memory, as a launch wants them; `capacity` pieces can be put there later.
-- @treturn table pieces, tile_ends, n_pieces (device memory), max_tiles
function M.on_device(device, list, capacity, shift)
    local room = math.max(capacity or #list, 1)
    local tables = { pieces = device:alloc(room * ffi.sizeof "cpl_cuda_piece"),
        tile_ends = device:alloc(room * 8), n_pieces = device:alloc(8) }
    M.put(device, tables, list, shift)
    return tables
end

--- Puts another list into the tables.
function M.put(device, tables, list, shift)
    local array, ends = M.array(list, shift), ffi.new("int64_t[?]", math.max(#list, 1))
    tables.max_tiles = tonumber(device.lib.cpl_cuda_tiles(array, #list, ends))
    device:write(tables.pieces, array, #list * ffi.sizeof "cpl_cuda_piece")
    device:write(tables.tile_ends, ends, #list * 8)
    device:write(tables.n_pieces, ffi.new("int64_t[1]", #list), 8)
end

--- Random bytes in an array of the host.
function M.bytes(random, n)
    local array = ffi.new("uint8_t[?]", n)
    for i = 0, n - 1 do array[i] = random(256) end
    return array
end

--- Of two arrays the first byte that differs, or nil.
function M.difference(a, b, n)
    for i = 0, n - 1 do
        if a[i] ~= b[i] then return ("byte %d: expected %d, got %d"):format(i, a[i], b[i]) end
    end
    return nil
end

return M
