-- What is not finite, in the host's fast kernels: every op, of every input NaN, Inf and -Inf at one
-- place at a time. It goes where the reference takes it and nowhere else, and the other numbers are
-- those of the reference.
local cases = require("spec.support.edge_cases").cases
local edges = require "spec.support.edges"
local host_device = require "spec.support.host_device"

local ops = {}
for op in pairs(cases) do ops[#ops + 1] = op end
table.sort(ops)

describe("what is not finite goes where the reference takes it:", function()
    for _, op in ipairs(ops) do
        it(op, function()
            edges.begin()
            for _, dtype in ipairs { "f64", "f32" } do
                edges.try_op(host_device(), op, dtype, "best", edges.BAD)
            end
        end)
    end
end)
