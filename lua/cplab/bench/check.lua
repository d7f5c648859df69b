--- Whether every row is where it must be, bit for bit.
-- @module cplab.bench.check
local clib = require "clib"
local setups = require "cplab.bench.setup"

local C, ffi = clib.C, clib.ffi

local M = {}

-- ---- faults that specs plant to prove that they are seen --------------------------

-- Turns every bit of one byte over, in the first row of a buffer of the last rank: that rank 0,
-- whose result is shown, can only hear of.
local function corrupt(setup, buffer)
    if setup.rank < setup.comm:size() - 1 or setup.case.rows == 0 then return end
    buffer:load()
    local data = ffi.cast("uint8_t *", buffer.data)
    data[setup.case.row_bytes - 1] = 255 - data[setup.case.row_bytes - 1]
    buffer:store()
end

-- Lets the first two rows of the last rank pass for each other.
local function mislead(setup)
    local tensor = setup.start.tensor
    if setup.case.fault ~= "trace" or setup.rank < setup.comm:size() - 1
        or setup.case.rows < 2 then
        return
    end
    local trace = ffi.new("int64_t[?]", C.cpl_tensor_n_rows(tensor))
    clib.check(C.cpl_tensor_get_trace(tensor, trace))
    trace[0], trace[1] = trace[1], trace[0]
    clib.check(C.cpl_tensor_set_trace(tensor, trace))
end

--- Makes a row wrong if the fault of the case says that this is the place.
function M.fault(setup, place, buffer)
    if setup.case.fault == place then corrupt(setup, buffer) end
end

-- Comes later than the deadline of the others, but within the patience of the host.
local LATE_S = 1

-- A step; or nothing, which a round trip in place would not show at its end.
local function execute(setup, step)
    if setup.case.fault ~= "still" then setups.execute(step) end
end

--- The last rank fails, comes late, or does not return, if the fault of the case says so.
function M.fault_of_rank(comm, case)
    if comm:rank() < comm:size() - 1 then return end
    if case.fault == "rank" then error("a planted fault", 0) end
    while case.fault == "stuck" do end
    if case.fault == "late" then
        local start = clib.C.cpl_clock()
        repeat until clib.C.cpl_clock() - start > LATE_S
    end
end

-- ---- checks -----------------------------------------------------------------------

local function count(setup, buffer, phase)
    buffer:load()
    return setup.pattern:count_wrong(buffer.data, buffer.runs, phase)
end

-- The first buffer holds what the steps start from, the others what must not stay.
local function prepare(setup, phase)
    local pattern, start = setup.pattern, setup.start
    setup:rewind()
    start.runs = setup.steps[1].before:runs(setup.rank)
    for _, buffer in ipairs { start, setup.kept } do
        pattern:fill(buffer.data, buffer.runs, phase)
        buffer:store()
    end
    for i = 2, #setup.buffers do
        local buffer = setup.buffers[i]
        pattern:poison(buffer.data, buffer.runs, phase)
        buffer:store()
    end
end

-- In place a buffer holds another layout after each step.
local function expect(setup, step)
    step.dst.runs = step.after:runs(setup.rank)
    return step.dst
end

--- Local. Rows of all buffers that are not what they must be after the steps, the unchanged source
-- included.
function M.count(setup, phase)
    local wrong = 0
    for _, buffer in ipairs(setup.buffers) do wrong = wrong + count(setup, buffer, phase) end
    return wrong
end

local function one_phase(setup, phase)
    prepare(setup, phase)
    local between = 0
    for i, step in ipairs(setup.steps) do
        execute(setup, step)
        local dst = expect(setup, step)
        if i < #setup.steps and setup.kept then between = between + count(setup, dst, phase) end
    end
    M.fault(setup, "check", setup.buffers[#setup.buffers])
    M.fault(setup, "source", setup.start)
    return between + M.count(setup, phase)
end

-- What is timed carries no trace.
local function forget(tensor, layout, rank)
    clib.check(C.cpl_tensor_mark(tensor, layout._ptr, rank, false))
end

-- Positions that travel with the rows, compared where the rows are: on a device as in a step there.
-- Beside the bits it is a second opinion, of the check that experiments go by.
local function one_trace(setup)
    local counters, comm, steps = C.cpl_counters_here(), setup.comm._ptr, setup.steps
    local start = setup.start.tensor
    clib.check(C.cpl_tensor_mark(start, steps[1].before._ptr, setup.rank, true))
    mislead(setup)
    clib.check(C.cpl_trace_settle(comm))
    C.cpl_counters_reset()
    for _, step in ipairs(steps) do
        setups.carry(step)
        clib.check(C.cpl_trace_check(step.dst.tensor, step.after._ptr, setup.rank, "bench"))
    end
    clib.check(C.cpl_trace_settle(comm))
    if not setup.kept then forget(start, steps[1].before, setup.rank) end
    for _, step in ipairs(steps) do forget(step.dst.tensor, step.after, setup.rank) end
    return tonumber(counters.wrong_rows)
end

--- Collective. Executes the steps once a phase on fresh rows and poisoned targets, and where the
-- bits are right once more with a trace.
-- @treturn integer wrong rows of all ranks, of the worst phase; 0 leaves the rows of the last phase
function M.run(setup)
    local worst = 0
    for phase = 1, setup.pattern.n_phases do
        worst = math.max(worst, setup.comm:sum({ one_phase(setup, phase) })[1])
    end
    if worst > 0 then return worst end
    local wrong = setup.comm:sum({ one_trace(setup) })[1]
    -- In place it moved the rows once more.
    if wrong > 0 or not setup.kept then return wrong end
    return setup.comm:sum({ one_phase(setup, setup.pattern.n_phases) })[1]
end

return M
