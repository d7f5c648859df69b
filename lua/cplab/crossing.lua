--- A crossing: the residual stream goes from the home of one block to that of the next.
-- Most have nothing to do: neighbours that live alike. Else it is a list of *hops*, conversions one
-- after the other; one, unless the stream has to pass through a layout in between. The way back is
-- the adjoint. Where a conversion only swaps rows between pairs of ranks it works in place, and the
-- rows that went away are not kept: neither backward nor recomputation reads them.
-- @module cplab.crossing
local clib = require "clib"
local conversion = require "cplab.conversion"
local C = clib.C

local M = {}

--- Collective. What is between two blocks.
-- @tparam table stack
-- @tparam table from the home of the block before, or the entry layout
-- @tparam {table,...} path the layouts to go to, in order: the last is the home of the block after,
-- or the exit layout
-- @tparam number index of the block after, from 0
-- @tparam ?table block the one after; nil: the final norm
-- @treturn {table,...} hops { way, from, to, index, name }
function M.new(stack, from, path, index, block)
    local hops = {}
    for _, to in ipairs(path) do
        local way = conversion.of_residual(stack, from, to)
        hops[#hops + 1] = way and { way = way, from = from, to = to, index = index,
            name = block and block.name or "final_norm" }
        from = to
    end
    return hops
end

--- Gives the hops their memory.
-- @tparam table stack
-- @tparam {table,...} hops
-- @param last the tensor into which the last one goes
-- @return the tensor from which the first one goes: `last` itself where all of them work in place
function M.prepare(stack, hops, last)
    for i = #hops, 1, -1 do
        local hop = hops[i]
        hop.result = last
        if not hop.way.in_place then
            last = stack:hidden_rows(hop.from)
            stack:add_gradient_rows(hop.from)
        end
    end
    return last
end

--- The layout of what the block before gave, once the crossing is done.
function M.kept_in(hops, live)
    for _, hop in ipairs(hops) do
        if not hop.way.in_place then return hop.from end
        live = hop.to
    end
    return live
end

--- Collective. Brings the residual stream over.
function M.forward(stack, hops, x)
    for _, hop in ipairs(hops) do
        stack:convert_residual(hop, false, x, hop.result)
        x = hop.result
        clib.check(C.cpl_trace_check(x, hop.to._ptr, stack.rank, hop.name .. " (residual)"))
    end
end

--- Collective. Brings its gradient back; returns the tensor that has it.
function M.backward(stack, hops, d)
    for i = #hops, 1, -1 do
        local hop = hops[i]
        local dst = hop.way.in_place and d or stack:gradient_rows(hop.from, d)
        stack:convert_residual(hop, true, d, dst)
        d = dst
        clib.check(C.cpl_trace_check(d, hop.from._ptr, stack.rank,
            hop.name .. " (residual gradient)"))
    end
    return d
end

return M
