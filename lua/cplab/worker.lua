--- What every rank of a case runs.
--
-- The host calls this module's function with the rank's comm and one string, the case as
-- `case_run` encoded it. The script is loaded again here, since a rank has a Lua state of its own;
-- what its `run` raises ends the case on all ranks.
-- @module cplab.worker
local buffer = require "string.buffer"

local experiment = require "cplab.experiment"

-- Which method of the lab took what cannot be encoded.
local takers = {
    { "records", "lab:record" }, { "checks", "lab:check" }, { "metrics", "lab.metrics" },
    { "samples", "lab.samples" },
}

-- The result as a string; where it cannot be one, the host puts "rank N: " before the sentence.
local function encode(result)
    local ok, text = pcall(buffer.encode, result)
    if ok then return text end
    local where = "lab"
    for _, taker in ipairs(takers) do
        local is_fine, problem = pcall(buffer.encode, result[taker[1]])
        if not is_fine then
            where, text = taker[2], problem
            break
        end
    end
    error(("the result cannot be sent: %s: %s"):format(where,
        (tostring(text):gsub("^[^\n:]+:%d+: ", ""))), 0)
end

--- @param comm a `cpl_comm *` of this rank
-- @tparam string payload { file =, case =, options = }
-- @treturn string the result of the lab
return function(comm, payload)
    local job = buffer.decode(payload)
    local script, message = experiment.load(job.file)
    if not script then error(message, 0) end
    require("cplab.tensor").live_in(comm)
    local lab = require("cplab.lab").new {
        experiment = script, case = job.case, comm = comm, options = job.options,
    }
    experiment.call(script.run, lab)
    return encode(lab:result())
end
