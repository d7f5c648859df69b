--- The rank's end of specs that look at the results of spec.support.gdn_layer: of each case what
-- the rank sent, its rows, gradients, and how far all is from one rank.
return function(comm, cases)
    local gdn, results = require "spec.support.gdn_layer", {}
    for i, p in ipairs(cases) do
        local reference = gdn.reference(p)
        results[i] = gdn.run(comm._ptr, p)
        results[i].distance, results[i].where = gdn.distance(results[i], reference)
    end
    return results
end
