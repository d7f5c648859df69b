--- What every rank of a step of `project --validate` runs: some steps of a model, timed.
-- @module cplab.project.validate_rank
local buffer = require "string.buffer"

local measure = require "cplab.measure"
local stacks = require "cplab.stack"
local steps = require "cplab.project.steps"

local STEP = { backward = true }

-- Collective. Per iteration the slowest rank's seconds, and the CPU seconds of all ranks.
local function run(comm, payload)
    local case = payload.case
    local stack = stacks.new { model = steps.model(case), stream = steps.stream(case), comm = comm,
        cp = case.cp, tp = 1 }
    local records, list = {}, {}
    for i = 1, payload.warmup + payload.iters do
        local record = measure.iteration(stack, function() return stack:step(STEP) end)
        if i > payload.warmup then records[#records + 1] = record end
    end
    for i, ranks in ipairs(measure.gather(comm, records)) do
        local iteration = { seconds = 0, busy = 0 }
        for _, record in ipairs(ranks) do
            iteration.seconds = math.max(iteration.seconds, record.step)
            iteration.busy = iteration.busy + record.busy
        end
        list[i] = iteration
    end
    return list
end

--- @param comm the `cpl_comm *` of this rank
-- @tparam string payload case (of cplab.project.steps), warmup, iters
-- @treturn string a list of { seconds, busy }, one an iteration
return function(comm, payload)
    return buffer.encode(run(comm, buffer.decode(payload)))
end
