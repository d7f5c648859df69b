--- The timed loop of a row whose rows are on devices, by the clocks of the devices.
--
-- As in `cplab.bench.timing` every iteration measures all of its parts, one after the other. But
-- the host waits for no device in the loop: it goes ahead, and puts into each rank's order of work
-- a gate (all ranks' devices come to it before one goes on), a mark, the part, and a mark. So the
-- marks hold what the device did, as long as the host is ahead of it; of a part that takes a device
-- less time than it takes the host to ask for it, they hold the asking. So that is measured, too.
--
-- A rank's time lies between its own two marks. Ranks that share a card hinder each other, so what
-- counts is what they did *together*: from the first mark of one of them to the last mark of one.
-- A part takes the group as long as it takes the slowest card.
-- @module cplab.bench.device_timing
local clib = require "clib"
local gates = require "cplab.bench.gate"
local timing = require "cplab.bench.timing"

local C, ffi = clib.C, clib.ffi

local M = {}

-- The marks of a part in an iteration: before the gate, where the clock of a card begins, and
-- around the part.
local N_MARKS = 3

local function first_mark(n_parts, i, part)
    return ((i - 1) * n_parts + part - 1) * N_MARKS
end

local function iterate(run, i)
    for j, part in ipairs(run.parts) do
        local mark = first_mark(#run.parts, i, j)
        clib.check(C.cpl_marks_set(run.marks, mark))
        run.gate:pass()
        clib.check(C.cpl_marks_set(run.marks, mark + 1))
        local start = C.cpl_clock()
        part.run()
        run.asking[j][i] = C.cpl_clock() - start
        clib.check(C.cpl_marks_set(run.marks, mark + 2))
    end
end

-- Room for the times, so that the loop grows no table.
local function room(parts, iters)
    local lists = {}
    for j = 1, #parts do
        lists[j] = {}
        for i = 1, iters do lists[j][i] = 0 end
    end
    return lists
end

local function host_syncs()
    return tonumber(C.cpl_counters_here().host_syncs)
end

-- Runs the loop. Returns blocks of memory taken in it by the process that took most, and waits of
-- all hosts for their devices.
local function loop(comm, run, warmup, iters)
    collectgarbage()
    collectgarbage "stop"
    for _ = 1, warmup do iterate(run, 1) end
    clib.check(C.cpl_marks_wait(run.marks))
    local before, waits = timing.allocations(comm), host_syncs()
    for i = 1, iters do iterate(run, i) end
    waits = host_syncs() - waits
    clib.check(C.cpl_marks_wait(run.marks))
    local taken = timing.allocations(comm) - before -- all have waited for their devices now
    collectgarbage "restart"
    return comm:max({ taken })[1], comm:sum({ waits })[1]
end

-- When this rank began and ended part j of every iteration, on the clock of its card.
local function read(run, j, iters)
    local first, seconds = C.cpl_marks_first(run.marks), ffi.new "double[1]"
    local times = { first = first, begins = {}, ends = {} }
    for i = 1, iters do
        local mark = first_mark(#run.parts, i, j)
        for k, list in ipairs { times.begins, times.ends } do
            clib.check(C.cpl_marks_seconds(run.marks, first, mark, mark + k, seconds))
            list[i] = seconds[0]
        end
    end
    return times
end

-- The ranks of every card, from 0, and the device's number as its first rank has it.
local function cards_of(all)
    local cards, by_first = {}, {}
    for i, times in ipairs(all) do
        local card = by_first[times.first]
        if not card then
            card = { ranks = {} }
            by_first[times.first], cards[#cards + 1] = card, card
        end
        card.ranks[#card.ranks + 1] = i - 1
    end
    return cards
end

local function together(all, card, i)
    local begin, finish = math.huge, -math.huge
    for _, rank in ipairs(card.ranks) do
        begin = math.min(begin, all[rank + 1].begins[i])
        finish = math.max(finish, all[rank + 1].ends[i])
    end
    return finish - begin
end

-- From when ranks began and ended to seconds: of ranks, of cards, of the group.
local function settle(all, cards, iters)
    local result = { ranks = {}, cards = {}, group = {} }
    for r, times in ipairs(all) do
        result.ranks[r] = {}
        for i = 1, iters do result.ranks[r][i] = times.ends[i] - times.begins[i] end
    end
    for c, card in ipairs(cards) do
        result.cards[c] = {}
        for i = 1, iters do
            result.cards[c][i] = together(all, card, i)
            result.group[i] = math.max(result.group[i] or 0, result.cards[c][i])
        end
    end
    return result
end

--- Collective. Runs the parts in turn, warmup + iters times.
-- @tparam Comm comm
-- @tparam {table,...} parts name, run (a function that puts work into the rank's order)
-- @tparam integer warmup
-- @tparam integer iters
-- @treturn table by the names of the parts: seconds of each iteration of the group, of cards (a
-- list for each), of ranks (likewise); and of the hosts (the slowest one's), asking
-- @treturn table cards (ranks: which share it), allocations (by the process that took most),
-- host_syncs (of all ranks)
function M.run(comm, parts, warmup, iters)
    local out = ffi.new "cpl_marks *[1]"
    clib.check(C.cpl_marks_create(comm._ptr, N_MARKS * #parts * iters, out))
    local run = { marks = out[0], parts = parts, gate = gates.new(comm),
        asking = room(parts, iters) }
    local about, results = {}, {}
    about.allocations, about.host_syncs = loop(comm, run, warmup, iters)
    for j, part in ipairs(parts) do
        local all = comm:gather(read(run, j, iters))
        about.cards = about.cards or cards_of(all)
        results[part.name] = settle(all, about.cards, iters)
        results[part.name].asking = comm:max(run.asking[j])
    end
    C.cpl_marks_destroy(run.marks) -- the last gather was the last question
    return results, about
end

--- Collective. Runs the parts of a compute bench, and adds what they took to what else was
-- measured: busy (seconds of the group, by the devices' clocks) and asking (of the slowest host),
-- by the names of the parts; allocations, host_syncs.
-- @tparam table measured
-- @tparam Comm comm
-- @tparam {table,...} parts
-- @tparam table case warmup, iters
function M.measure(measured, comm, parts, case)
    local results, about = M.run(comm, parts, case.warmup, case.iters)
    measured.busy, measured.asking = {}, {}
    for name, result in pairs(results) do
        measured.busy[name], measured.asking[name] = result.group, result.asking
    end
    measured.allocations, measured.host_syncs = about.allocations, about.host_syncs
end

return M
