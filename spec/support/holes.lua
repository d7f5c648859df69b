--- Addresses with next to nothing behind them, for arrays of more than 2^31 elements of which only
-- some are touched: pages of the host, which are there when somebody writes to them, and zeros
-- before. An emulated device works on them as on its own memory.
-- @module spec.support.holes
local ffi = require "ffi"

ffi.cdef [[
void *mmap(void *at, size_t bytes, int protection, int flags, int file, long offset);
int munmap(void *at, size_t bytes);
]]

local M = {}

local readable, writable = 1, 2
local private, anonymous, without_reserve = 2, 0x20, 0x4000

local taken = {}

--- Takes `bytes` and as many as `before` that lie before them: where an index that has lost its
-- upper half goes, so that it meets zeros there and does not end the process.
-- @treturn cdata where the bytes begin
function M.take(bytes, before)
    local all = before + bytes
    local at = ffi.C.mmap(nil, all, readable + writable, private + anonymous + without_reserve,
        -1, 0)
    assert(ffi.cast("intptr_t", at) ~= -1, "the host has no addresses for holes")
    taken[#taken + 1] = { at, all }
    return ffi.cast("uint8_t *", at) + before
end

--- Gives all of them back.
function M.give_back()
    for _, one in ipairs(taken) do ffi.C.munmap(one[1], one[2]) end
    taken = {}
end

return M
