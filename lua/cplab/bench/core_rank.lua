--- What the rank of a row of `bench gqa` or `bench gdn` runs: a core on its device.
-- @module cplab.bench.core_rank
local buffer = require "string.buffer"

local comms = require "cplab.comm"
local core_row = require "cplab.bench.core_row"

--- @param ptr the `cpl_comm *` of this rank, which is alone
-- @tparam string payload the case
-- @treturn string what cplab.bench.core_row.measure returns
return function(ptr, payload)
    local case = buffer.decode(payload)
    local kind = require("cplab.bench." .. case.kind .. "_core")
    return buffer.encode(core_row.measure(kind, case, comms.wrap(ptr)))
end
