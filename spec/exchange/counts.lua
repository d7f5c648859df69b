--- The numbers of ranks, and the methods, that specs of exchanges run with. Rank threads come in
-- any number; under mpirun there are as many as processes were started, and what needs more is
-- left out.
local ranks = require "spec.support.ranks"

local M = {}

--- Those of a list that this run has.
M.of = ranks.sizes

--- Those of a list of methods that this run's ranks can have: NCCL lets none read another's memory.
function M.methods(list)
    local some = {}
    for _, method in ipairs(list) do
        if method ~= "copy" or ranks.carrier() ~= "nccl" then some[#some + 1] = method end
    end
    return some
end

--- For single specs: `local on = counts.on(it)`, then `on(4)("moves rows", function() ... end)`.
function M.on(it)
    return function(n) return ranks.with(n, it) end
end

return M
