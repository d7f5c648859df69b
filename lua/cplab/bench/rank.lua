--- What every rank of `bench convert` runs: a row of the table, or the survey before it.
-- @module cplab.bench.rank
local buffer = require "string.buffer"

local check = require "cplab.bench.check"
local clib = require "clib"
local comms = require "cplab.comm"
local device_timing = require "cplab.bench.device_timing"
local rows = require "cplab.rows"
local setups = require "cplab.bench.setup"
local timing = require "cplab.bench.timing"
local traffic = require "cplab.bench.traffic"

local C, ffi = clib.C, clib.ffi

local jobs = {}

local function device_of(tensor)
    return ffi.string(C.cpl_tensor_device(tensor))
end

-- The timed loop. Returns the seconds of the group by the names of the parts, and blocks of memory
-- that were taken; on devices also what else was seen there: cards, host_syncs, and by part the
-- seconds of cards and ranks.
local function time(comm, tensor, parts, warmup, iters)
    if device_of(tensor) == "cpu" then
        local seconds, taken = timing.run(comm, parts, warmup, iters)
        return seconds, taken
    end
    local results, about = device_timing.run(comm, parts, warmup, iters)
    local seconds, names = {}, comm:gather(device_of(tensor))
    for _, card in ipairs(about.cards) do card.device = names[card.ranks[1] + 1] end
    about.parts = results
    for name, result in pairs(results) do seconds[name] = result.group end
    return seconds, about.allocations, about
end

-- ---- the machine --------------------------------------------------------------------

-- Two buffers of a shard, both touched.
local function shard_pair(comm, bytes)
    local a = rows.new(comm._ptr, "f64", math.ceil(bytes / 8), 1)
    local b = rows.new(comm._ptr, "f64", math.ceil(bytes / 8), 1)
    for _, tensor in ipairs { a, b } do clib.check(C.cpl_tensor_fill(tensor, 1)) end
    return a, b
end

-- The transport, and how fast a shard is copied: by rank 0 while the others wait, by all at once.
function jobs.survey(comm, job)
    local src, dst = shard_pair(comm, job.bytes)
    local function copy() clib.check(C.cpl_tensor_copy(dst, src)) end
    local function alone() if comm:rank() == 0 then copy() end end
    local seconds, _, device = time(comm, dst, { { name = "alone", run = alone },
        { name = "all", run = copy } }, 2, job.iters)
    return { transport = comm:transport(), alone = seconds.alone, all = seconds.all,
        cards = device and device.cards }
end

-- ---- a row --------------------------------------------------------------------------

local function total_traffic(comm, setup)
    local written, busiest, messages = 0, 0, 0
    for _, step in ipairs(setup.steps) do
        local bytes = traffic.of(step, setup.rank, setup.case)
        written = written + bytes.written
        busiest = busiest + math.max(bytes.out, bytes["in"])
        messages = messages + bytes.messages
    end
    local sums = comm:sum { written, messages }
    return { written_bytes = sums[1], messages = sums[2], busiest_bytes = comm:max({ busiest })[1],
        written_by_rank = comm:gather(written) }
end

-- What an iteration measures, in this order: the copies come right before the steps, since in place
-- they bring the rows back, and what the steps leave is checked after the last iteration.
local function parts_of(setup)
    local parts = {}
    if setup.plain then
        parts[1] = { name = "plain", run = function() setup.plain:iterate() end }
    end
    parts[#parts + 1] = { name = "copy", run = function()
        setup:copy()
        setup:rewind()
    end }
    parts[#parts + 1] = { name = "times", run = function()
        setup:iterate()
        -- Faults of a spec: memory taken, or a device waited for, where nothing may be.
        if setup.case.fault == "allocation" then rows.new(nil, "f64", 1, 1) end
        if setup.case.fault == "wait" then setup.start:load() end
    end }
    return parts
end

function jobs.row(comm, case)
    check.fault_of_rank(comm, case)
    local setup, reason = setups.new(comm, case)
    if not setup then return { skipped = reason } end
    local result = total_traffic(comm, setup)
    result.method = ffi.string(C.cpl_plan_method(setup.steps[1].plan))
    result.estimate = setup:estimate()
    result.wrong = check.run(setup)
    if result.wrong == 0 then
        local seconds, taken, device = time(comm, setup.start.tensor, parts_of(setup), case.warmup,
            case.iters)
        for name, list in pairs(seconds) do result[name] = list end
        result.allocations, result.device = taken, device
        check.fault(setup, "loop", setup.buffers[#setup.buffers])
        result.wrong = comm:sum({ check.count(setup, setup.pattern.n_phases) })[1]
    end
    return result
end

--- @param ptr the `cpl_comm *` of this rank
-- @tparam string payload { job =, case = }
-- @treturn string what the job returns
return function(ptr, payload)
    local job = buffer.decode(payload)
    return buffer.encode(jobs[job.job](comms.wrap(ptr), job.case))
end
