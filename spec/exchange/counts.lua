--- The numbers of ranks that specs of exchanges run with. Rank threads come in any number; under
-- mpirun there are as many as processes were started, and what needs more is left out.
local ranks = require "spec.support.ranks"

local M = {}

local function has(n)
    return n <= (ranks.world and ranks.world() or math.huge)
end

--- Those of a list that this run has.
function M.of(list)
    local some = {}
    for _, n in ipairs(list) do
        if has(n) then some[#some + 1] = n end
    end
    return some
end

--- For single specs: `local on = counts.on(it)`, then `on(4)("moves rows", function() ... end)`.
function M.on(it)
    return function(n)
        return has(n) and it or function() end
    end
end

return M
