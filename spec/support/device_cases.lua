--- What the specs of kernels on an emulated device go through, and what they hold results against:
-- the reference in double, of the numbers as they are stored.
-- @module spec.support.device_cases
local on_device = require "spec.support.on_device"
local tensor = require "cplab.tensor"

local M = {}

local ORDERS, WAYS = { "forward", "reverse", "random:7" }, { "best", "naive" }

--- Calls body(options of an op, dtype) for each way of the kernels and each dtype that `bounds` has
-- one for, in each order of threads; `bounds[dtype]` comes third.
function M.each(bounds, body)
    for _, order in ipairs(ORDERS) do
        on_device.set("order", order)
        for _, way in ipairs(WAYS) do
            for dtype, bound in pairs(bounds) do
                body(function(options)
                    options = options or {}
                    options.device, options.way = "cuda-emulated", way
                    return options
                end, dtype, bound)
            end
        end
    end
    on_device.set("order", "forward")
end

--- The same numbers in double.
function M.exact(t)
    return tensor.from(t:totable(), t:shape(), "f64")
end

return M
