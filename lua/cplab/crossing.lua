--- A crossing: the residual stream goes from the home of one block to that of the next.
-- Most have nothing to do: neighbours that live alike. Else it is a list of *hops*, one after the
-- other: a conversion; at the start of a pipeline stage also a handover, before it perhaps another
-- conversion to the layout in which the rows are handed over. The way back is the adjoint. Where a
-- conversion only swaps rows between pairs of ranks it works in place, and the rows that went away
-- are not kept: neither backward nor recomputation reads them.
-- @module cplab.crossing
local clib = require "clib"
local conversion = require "cplab.conversion"
local handover = require "cplab.handover"
local C = clib.C

local M = {}

--- Collective. What is between two blocks.
-- @tparam table stack
-- @tparam table from the home of the block before, or the entry layout
-- @tparam table to the home of the block after, or the exit layout
-- @tparam table after index (from 0) and name of what comes after; stage and before, where that is
-- the first block of a pipeline stage: it and the one before
-- @treturn {table,...} hops { way, from, to, index, name }
function M.new(stack, from, to, after)
    local hops = {}
    local function add(way, goal)
        hops[#hops + 1] = way and { way = way, from = from, to = goal, index = after.index,
            name = after.name }
        from = goal
    end
    if after.stage then
        local entry = stack.layouts.live[stack:handed_over_in(after.stage)]
        add(conversion.of_residual(stack, from, entry), entry)
        add(handover.new(stack, after.stage, after.before), entry)
    end
    add(conversion.of_residual(stack, from, to), to)
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
