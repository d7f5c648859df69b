--- What every rank thread of a case runs.
--
-- The host calls this module's function with the rank's comm and one string, the case as
-- `case_run` encoded it. The script is loaded again here, since a rank has a Lua state of its own;
-- what its `run` raises ends the case on all ranks.
-- @module cplab.worker
local buffer = require "string.buffer"

local experiment = require "cplab.experiment"

--- @param comm a `cpl_comm *` of this rank
-- @tparam string payload { file =, case =, options = }
-- @treturn string the result of the lab, the same on all ranks
return function(comm, payload)
    local job = buffer.decode(payload)
    local script, message = experiment.load(job.file)
    if not script then error(message, 0) end
    local lab = require("cplab.lab").new {
        experiment = script, case = job.case, comm = comm, options = job.options,
    }
    script.run(lab)
    return buffer.encode(lab:result())
end
