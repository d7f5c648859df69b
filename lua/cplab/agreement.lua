--- Agreement: whether all ranks of a group are about to do the same.
-- @module cplab.agreement
local clib = require "clib"
local C, ffi = clib.C, clib.ffi

local M = {}

--- Collective. Whether the texts of all ranks are the same; all ranks get the same answer.
-- @param comm `cpl_comm *`
-- @tparam string text this rank's
-- @treturn boolean
function M.is_same(comm, text)
    -- 52 bits are exact in a double; the maximum and the minimum are equal if all are.
    local hash = tonumber(C.cpl_hash(0, text, #text) % 2 ^ 52)
    local votes = ffi.new("double[2]", hash, -hash)
    clib.check(C.cpl_comm_max(comm, votes, 2))
    return votes[0] == -votes[1]
end

return M
