--- The timed loop of a row.
--
-- Every iteration measures all of its parts, one after the other, so that what disturbs the machine
-- disturbs them alike. A part begins when the first rank leaves a barrier and ends when the last
-- rank has done its share, on the clock of this machine.
-- @module cplab.bench.timing
local clib = require "clib"

local C = clib.C

local M = {}

local function allocations_here()
    local out = clib.box "cpl_memory_stats"
    C.cpl_memory(out)
    return tonumber(out[0].n_allocations)
end

-- Clocks of different machines differ by far more than a rank is ever late.
local MAX_LATE = 60

-- The ranks' starts and ends as the seconds of the group.
local function seconds(comm, starts, ends)
    local negative = {}
    for i, start in ipairs(starts) do negative[i] = -start end
    local first, latest, last, list = comm:max(negative), comm:max(starts), comm:max(ends), {}
    for i = 1, #starts do
        local late = latest[i] + first[i]
        if late > MAX_LATE then
            error(("bench: the clocks of the ranks differ by %.0f s; only ranks of one machine can "
                .. "be measured"):format(late), 0)
        end
        list[i] = last[i] + first[i]
    end
    return list
end

local function run_part(comm, part, i)
    comm:barrier()
    local busy = C.cpl_thread_clock()
    local start = C.cpl_clock()
    part.run()
    part.ends[i], part.starts[i] = C.cpl_clock(), start
    part.busy[i] = C.cpl_thread_clock() - busy
end

-- Room for the times, so that the loop grows no table.
local function make_room(parts, n)
    for _, part in ipairs(parts) do
        part.starts, part.ends, part.busy = {}, {}, {}
        for i = 1, n do part.starts[i], part.ends[i], part.busy[i] = 0, 0, 0 end
    end
end

--- Collective. The blocks of memory that the library has taken in this process: until every rank
-- has looked, no rank goes on and takes memory.
function M.allocations(comm)
    comm:barrier()
    local n = allocations_here()
    comm:barrier()
    return n
end

--- Collective. Runs the parts in turn, warmup + iters times.
-- @tparam Comm comm
-- @tparam {table,...} parts name, run (a function)
-- @tparam integer warmup
-- @tparam integer iters
-- @treturn table the seconds of the timed iterations, by the names of the parts
-- @treturn integer blocks of memory that the library took meanwhile, in the process that took most
-- @treturn table CPU seconds of the ranks' threads, summed over the ranks, likewise
function M.run(comm, parts, warmup, iters)
    make_room(parts, iters)
    collectgarbage()
    collectgarbage "stop"
    for _ = 1, warmup do
        for _, part in ipairs(parts) do run_part(comm, part, 1) end
    end
    local before = M.allocations(comm)
    for i = 1, iters do
        for _, part in ipairs(parts) do run_part(comm, part, i) end
    end
    local taken = M.allocations(comm) - before
    collectgarbage "restart"
    local list, busy = {}, {}
    for _, part in ipairs(parts) do
        list[part.name] = seconds(comm, part.starts, part.ends)
        busy[part.name] = comm:sum(part.busy)
    end
    return list, comm:max({ taken })[1], busy
end

return M
