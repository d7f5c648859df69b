--- The command `bench gdn`: how fast the gated delta rule runs on this machine, beside its own
-- product of matrices, and what spreading the layer over ranks adds to the work.
-- @module cplab.bench_gdn
local kernels = require "cplab.bench.kernels"

local M = {}

--- Carries the command out.
-- @tparam table arguments words of the command line
-- @treturn number exit status
-- @treturn ?string what to tell the user
function M.run(arguments)
    return kernels.run("gdn", arguments)
end

return M
