--- The numbers of ranks that specs of exchanges run with. Rank threads come in any number; under
-- mpirun there are as many as processes were started, and what needs more is left out.
local ranks = require "spec.support.ranks"

local M = {}

--- Those of a list that this run has.
M.of = ranks.sizes

--- For single specs: `local on = counts.on(it)`, then `on(4)("moves rows", function() ... end)`.
function M.on(it)
    return function(n) return ranks.with(n, it) end
end

return M
