--- What copying costs where the arrays are: memory of the host, or of a device. It runs beside what
-- is held against it.
-- @module cplab.bench.copy
local arrays = require "cplab.bench.arrays"
local clib = require "clib"

local C = clib.C

local M = {}

-- More than the caches of a processor or a card hold. What is emulated has no rate.
local BYTES = { cpu = 2 ^ 25, cuda = 2 ^ 28, ["cuda-emulated"] = 2 ^ 20 }

--- Bytes that one copy brings over.
-- @tparam ?string device nil: the host
function M.bytes(device)
    return BYTES[device or "cpu"]
end

--- @tparam ?string device
-- @param comm `cpl_comm *` whose memory it is; nil: the host's
-- @treturn table run (a function), bytes (of a run)
function M.new(device, comm)
    local bytes = M.bytes(device)
    local a, b = arrays.new("f64", bytes / 8, 1, comm), arrays.new("f64", bytes / 8, 1, comm)
    for _, array in ipairs { a, b } do clib.check(C.cpl_tensor_fill(array, 1)) end
    return { bytes = bytes, run = function() clib.check(C.cpl_tensor_copy(b, a)) end }
end

return M
