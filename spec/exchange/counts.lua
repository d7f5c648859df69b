--- The numbers of ranks that specs of exchanges run with: those of a list that this run has.
-- Rank threads come in any number; under mpirun there are as many as processes were started.
local ranks = require "spec.support.ranks"

return function(list)
    local world = ranks.world and ranks.world() or math.huge
    local some = {}
    for _, n in ipairs(list) do
        if n <= world then some[#some + 1] = n end
    end
    return some
end
