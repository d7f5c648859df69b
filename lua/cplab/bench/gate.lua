--- Lets the devices of all ranks begin together, without a word of the host: an exchange of one row
-- of every rank with every other. What a rank puts into its order of work behind it begins when all
-- ranks have come to it.
-- @classmod cplab.bench.gate
local clib = require "clib"
local exchange = require "cplab.exchange"
local layouts = require "cplab.layout"
local routes = require "cplab.route"
local rows = require "cplab.rows"
local streams = require "cplab.stream"

local C = clib.C

local Gate = {}
Gate.__index = Gate

local M = {}

--- Collective.
-- @tparam Comm comm
function M.new(comm)
    local n = comm:size()
    local stream, group = streams.thd { lengths = { n * n } }, { cp = n }
    local dealt = layouts.striped(stream, group)
    local plan = exchange.plan(routes(dealt, layouts.contiguous(stream, group)), comm, "i64", 1)
    return setmetatable({
        _plan = plan, _src = rows.new(comm._ptr, "i64", n, 1),
        _dst = rows.new(comm._ptr, "i64", n, 1),
    }, Gate)
end

--- Collective, and waits for nothing.
function Gate:pass()
    clib.check(C.cpl_plan_start(self._plan._ptr, self._src, self._dst))
    clib.check(C.cpl_plan_finish(self._plan._ptr))
end

return M
