--- Whether every row is where it must be, bit for bit.
-- @module cplab.bench.check
local clib = require "clib"
local setups = require "cplab.bench.setup"

local ffi = clib.ffi

local M = {}

-- ---- faults that specs plant to prove that they are seen --------------------------

-- Turns every bit of one byte over, in the first row of a buffer of the last rank: that rank 0,
-- whose result is shown, can only hear of.
local function corrupt(setup, buffer)
    if setup.rank < setup.comm:size() - 1 or setup.case.rows == 0 then return end
    local data = ffi.cast("uint8_t *", buffer.tensor.data)
    data[setup.case.row_bytes - 1] = 255 - data[setup.case.row_bytes - 1]
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
    return setup.pattern:count_wrong(buffer.tensor.data, buffer.runs, phase)
end

-- The first buffer holds what the steps start from, the others what must not stay.
local function prepare(setup, phase)
    local pattern, start = setup.pattern, setup.start
    setup:rewind()
    start.runs = setup.steps[1].before:runs(setup.rank)
    for _, buffer in ipairs { start, setup.kept } do
        pattern:fill(buffer.tensor.data, buffer.runs, phase)
    end
    for i = 2, #setup.buffers do
        pattern:poison(setup.buffers[i].tensor.data, setup.buffers[i].runs, phase)
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

--- Collective. Executes the steps once a phase on fresh rows and poisoned targets.
-- @treturn integer wrong rows of all ranks, of the worst phase; 0 leaves the rows of the last phase
function M.run(setup)
    local worst = 0
    for phase = 1, setup.pattern.n_phases do
        worst = math.max(worst, setup.comm:sum({ one_phase(setup, phase) })[1])
    end
    return worst
end

return M
