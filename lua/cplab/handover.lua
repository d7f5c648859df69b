--- A handover: hidden states go from one pipeline stage to the next, their gradient back.
-- The rows are copied as they are, with the mark that says in which layout they are and, if traced,
-- the position of each: that is all that a message between two machines could carry. The stage that
-- takes them compares the mark with the layout that it expects by the cut. It is no conversion.
-- @module cplab.handover
local clib = require "clib"
local pipeline = require "cplab.pipeline"
local C = clib.C

local Handover = {}
Handover.__index = Handover

local M = {}

-- The name of the layout whose rows a tensor says it holds; of equal ones the expected.
local function name_of(self, tensor)
    local mark, live = tensor.layout, self.stack.layouts.live
    local function is(layout)
        return C.cpl_layout_digest(layout._ptr) == mark
    end
    if is(live[self.expected]) then return self.expected end
    for name, layout in pairs(live) do
        if is(layout) then return name end
    end
    return "a layout of another stream or group"
end

local function give(self, owner, src, dst)
    clib.check(C.cpl_tensor_copy(dst, src))
    clib.check(C.cpl_tensor_mark_like(dst, src))
    pipeline.check_entry(owner, self.expected, name_of(self, dst), self.stack.cp, 0)
end

--- What a stage takes from the one before.
-- @tparam table stack
-- @tparam table stage of cplab.pipeline.place
-- @tparam table before the stage before
-- @treturn table with to(src, dst) and back(src, dst), as conversions have them
function M.new(stack, stage, before)
    return setmetatable({ stack = stack, expected = stage.entry, in_place = false,
        taker = pipeline.describe(stage),
        giver = "the end of " .. pipeline.describe(before) .. ", backward," }, Handover)
end

--- Local. Hidden states arrive at the stage.
-- @raise where they are in another layout than expected
function Handover:to(src, dst)
    give(self, self.taker, src, dst)
end

--- Local. The gradient arrives at the end of the stage before.
function Handover:back(src, dst)
    give(self, self.giver, src, dst)
end

return M
