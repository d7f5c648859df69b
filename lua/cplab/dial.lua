--- Dials: numbers of a step that may differ from step to step without being another step, such as
-- the learning rate. A dial lies where the tensors of a group do, and kernels read it there; the
-- host turns it between steps, and waits for nothing. So a step that was captured goes on with what
-- its dials say at each replay.
-- @classmod cplab.dial
-- @usage local rate = dials.new(comm._ptr)
--   rate:turn(0.1)
--   kernels.sgd(ffi.new("cpl_sgd", { rate = rate:at(), .. }))
local clib = require "clib"
local rows = require "cplab.rows"
local C, ffi = clib.C, clib.ffi

local Dial = {}
Dial.__index = Dial

local M = {}

--- A dial that says 0.
-- @param comm a `cpl_comm *`
-- @treturn Dial
function M.new(comm)
    return setmetatable({ tensor = rows.new(comm, "f64", 1, 1), value = 0 }, Dial)
end

--- What is launched or replayed from now on reads `value`. Of a dial that says so already nothing
-- is asked.
-- @tparam number value
-- @raise another value while a capture is made: replays would not turn the dial
function Dial:turn(value)
    if value == self.value then return end
    clib.check(C.cpl_tensor_send(self.tensor, ffi.new("double[1]", value)))
    self.value = value
end

--- Where kernels read it; valid as long as the dial.
-- @return a `const double *`
function Dial:at()
    return ffi.cast("const double *", self.tensor.data)
end

return M
