--- The module table of cplab. Parts load when they are first named, so that a script pays for what
-- it uses, and a name that does not exist says which one was meant.
-- @module cplab
-- @usage local cplab = require "cplab"
--   local s = cplab.stream.thd { lengths = { 16, 24 } }
--   local z = cplab.layout.zigzag(s, { cp = 4 })
local args = require "cplab.check_args"

local names = {
    "stream", "layout", "view", "route", "tensor", "op", "model", "schedule", "policy",
    "assignment", "pipeline", "rules", "exchange", "experiment", "corpus", "packs", "lab",
    "boundary", "contract", "cluster", "cost", "planner",
}

local is_part = {}
for _, name in ipairs(names) do is_part[name] = true end

local function load_part(self, name)
    if not is_part[name] then args.unknown("cplab", "name", name, names) end
    local part = require("cplab." .. name)
    rawset(self, name, part)
    return part
end

return setmetatable({}, { __index = load_part })
