--- The exchange that a user would write by hand over MPI, to compare with: for each step
-- one MPI_Isend and one MPI_Irecv a peer, of as many bytes as really cross, then one memcpy of the
-- bytes that stay on the rank and are written there. It moves no row to its right place.
-- @classmod cplab.bench.plain
local clib = require "clib"
local rows = require "cplab.rows"
local traffic = require "cplab.bench.traffic"

local C, ffi = clib.C, clib.ffi

local Plain = {}
Plain.__index = Plain

local M = {}

local MAX_COUNT = 2 ^ 31 - 1

-- Bytes by peer as size_t[n_ranks], 0 for the rank itself, and their sum.
local function counts(rows_by_peer, row_bytes, rank)
    local list, largest = ffi.new("size_t[?]", #rows_by_peer), 0
    for i, n in ipairs(rows_by_peer) do
        local bytes = i - 1 == rank and 0 or n * row_bytes
        list[i - 1] = bytes
        largest = math.max(largest, bytes)
    end
    return list, largest
end

-- Tensors over the first bytes of two buffers, as many as stay.
local function staying(src, dst, bytes)
    local n = { bytes / 2 }
    return {
        src = rows.wrap(src.data, "bf16", n), dst = rows.wrap(dst.data, "bf16", n),
    }
end

local function make_step(setup, step, src, dst)
    local case, rank = setup.case, setup.rank
    local to, from = step.route:split_sizes(rank)
    if step.is_adjoint then to, from = from, to end
    local made = { src = src.tensor, dst = dst.tensor }
    local largest_out, largest_in
    made.to, largest_out = counts(to, case.row_bytes, rank)
    made.from, largest_in = counts(from, case.row_bytes, rank)
    made.stay = staying(made.src, made.dst, traffic.of(step, rank, case).stay)
    return made, math.max(largest_out, largest_in)
end

-- Whose memory takes part: in place the kept rows go to where the next copy brings them back.
local function ends_of(setup, step)
    if setup.kept then return setup.kept, setup.start end
    return step.src, step.dst
end

--- Collective. nil where the transport has no such thing, or a count is beyond an int.
-- @tparam Setup setup
-- @treturn ?Plain
function M.new(setup)
    if setup.comm:transport() ~= "mpi" then return nil end
    local self = setmetatable({ _comm = setup.comm._ptr, _steps = {} }, Plain)
    local largest = 0
    for i, step in ipairs(setup.steps) do
        local one
        self._steps[i], one = make_step(setup, step, ends_of(setup, step))
        largest = math.max(largest, one)
    end
    if setup.comm:max({ largest })[1] > MAX_COUNT then return nil end
    return self
end

--- Collective. All steps once.
function Plain:iterate()
    for _, step in ipairs(self._steps) do
        clib.check(C.cpl_comm_plain_exchange(self._comm, step.src.data, step.to, step.dst.data,
            step.from))
        clib.check(C.cpl_tensor_copy(step.stay.dst, step.stay.src))
    end
end

return M
