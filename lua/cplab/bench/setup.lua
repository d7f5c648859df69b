--- What one rank needs for a row of a bench: plans, buffers, and the list of steps that an
-- iteration executes. A step brings the rows of one layout in `src` to those of another in `dst`.
--
-- Out of place each step has a buffer of its own: forward and adjoint take two, a round trip
-- three. In place every step works on the first buffer, and a second one keeps what it started
-- with. The *copies* are what an iteration is compared with: as many bytes as there are steps, from
-- buffer to buffer in single calls; in place they also bring back the rows that an iteration
-- starts from.
-- @classmod cplab.bench.setup
local buffers = require "cplab.bench.buffer"
local cases = require "cplab.bench.cases"
local clib = require "clib"
local pattern = require "cplab.bench.pattern"
local plain = require "cplab.bench.plain"
local routes = require "cplab.route"

local C, ffi = clib.C, clib.ffi

local Setup = {}
Setup.__index = Setup

local M = {}

-- Collective. A plan; nil and a sentence where this method is not one for the route or the group.
local function make_plan(route, comm, case)
    local out = ffi.new "cpl_plan *[1]"
    local width = case.row_bytes / tonumber(C.cpl_dtype_bytes(clib.dtypes[case.dtype]))
    local status = C.cpl_plan_create(route._ptr, comm._ptr, clib.dtypes[case.dtype], width,
        case.method, out)
    if status == C.CPL_UNSUPPORTED then return nil, ffi.string(C.cpl_last_error()) end
    clib.check(status)
    return ffi.gc(out[0], C.cpl_plan_destroy)
end

-- The steps without their buffers: plan, route, is_adjoint, the layouts before and after.
local function make_steps(comm, case, from, to)
    local there = routes(from, to)
    local plan, reason = make_plan(there, comm, case)
    if not plan then return nil, reason end
    if case.pass == "adjoint" then
        return { { plan = plan, route = there, is_adjoint = true, before = to, after = from } }
    end
    local steps = { { plan = plan, route = there, before = from, after = to } }
    if case.pass == "round trip" then
        local back = there:inverse()
        plan, reason = make_plan(back, comm, case)
        if not plan then return nil, reason end
        steps[2] = { plan = plan, route = back, before = to, after = from }
    end
    return steps
end

-- The pieces that a rank receives, of the rank with most.
local function most_pieces(comm, step)
    local route, rank = step.route, comm:rank()
    local pieces = step.is_adjoint and route:sends(rank) or route:receives(rank)
    return math.max(1, comm:max({ #pieces })[1])
end

-- Collective. Captures the steps. Returns why they cannot be.
local function capture(self)
    for _, step in ipairs(self.steps) do
        local create = step.is_adjoint and C.cpl_graph_create_adjoint or C.cpl_graph_create
        local out = ffi.new "cpl_graph *[1]"
        local status = create(step.plan, step.src.tensor, step.dst.tensor,
            most_pieces(self.comm, step), out)
        if status == C.CPL_UNSUPPORTED or status == C.CPL_MISMATCH then
            return ffi.string(C.cpl_last_error())
        end
        clib.check(status)
        step.graph = ffi.gc(out[0], C.cpl_graph_destroy)
    end
end

local function can_be_in_place(comm, steps)
    for _, step in ipairs(steps) do
        if not comm:agree(C.cpl_plan_in_place(step.plan)) then return false end
    end
    return true
end

local function buffer(self, layout)
    local case = self.case
    local width = case.row_bytes / tonumber(C.cpl_dtype_bytes(clib.dtypes[case.dtype]))
    return buffers.new(self.comm._ptr, case.dtype, layout:n_local(self.rank), width,
        layout:runs(self.rank))
end

local function take_in_place(self)
    local first = self.steps[1].before
    local x, kept = buffer(self, first), buffer(self, first)
    for _, step in ipairs(self.steps) do step.src, step.dst = x, x end
    self.start, self.kept, self.buffers = x, kept, { x }
    self.copies = { { dst = x, src = kept } }
    if #self.steps == 2 then self.copies[2] = { dst = kept, src = x } end
end

local function take_out_of_place(self)
    local last = buffer(self, self.steps[1].before)
    self.start, self.buffers, self.copies = last, { last }, {}
    for i, step in ipairs(self.steps) do
        step.src, step.dst = last, buffer(self, step.after)
        last = step.dst
        self.buffers[i + 1], self.copies[i] = last, { dst = last, src = step.src }
    end
end

--- Collective. Makes what a row needs.
-- @tparam Comm comm
-- @tparam table case of `cplab.bench.cases`
-- @treturn ?Setup nil where the row is not one for this method or group
-- @treturn ?string why
function M.new(comm, case)
    local from, to = cases.layouts(case)
    local steps, reason = make_steps(comm, case, from, to)
    if not steps then return nil, reason end
    if case.in_place and not can_be_in_place(comm, steps) then
        return nil, ("method %s does not work in place"):format(case.method)
    end
    local self = setmetatable({
        comm = comm, case = case, rank = comm:rank(), steps = steps,
        pattern = pattern.new(case.row_bytes, from:stream():n_positions()),
    }, Setup)
    if case.in_place then take_in_place(self) else take_out_of_place(self) end
    reason = case.launch == "graph" and capture(self)
    if reason then return nil, reason end
    self.plain = plain.new(self)
    return self
end

--- Collective. One step, as it is timed.
function M.execute(step)
    if step.graph then
        clib.check(C.cpl_graph_replay(step.graph, step.plan))
    else
        M.carry(step)
    end
end

--- Collective. One step by its plan, whatever is timed.
function M.carry(step)
    local src, dst = step.src.tensor, step.dst.tensor
    if step.is_adjoint then
        clib.check(C.cpl_plan_start_adjoint(step.plan, src, dst, false))
    else
        clib.check(C.cpl_plan_start(step.plan, src, dst))
    end
    clib.check(C.cpl_plan_finish(step.plan))
end

--- Collective. All steps: what is timed.
function Setup:iterate()
    for _, step in ipairs(self.steps) do M.execute(step) end
end

--- Local. As many bytes as the steps write out of place, copied in one call each.
function Setup:copy()
    for _, pair in ipairs(self.copies) do
        clib.check(C.cpl_tensor_copy(pair.dst.tensor, pair.src.tensor))
    end
end

--- Local. Seconds of all steps on the busiest rank, by the table of costs that "auto" goes by.
function Setup:estimate()
    local seconds = 0
    for _, step in ipairs(self.steps) do seconds = seconds + C.cpl_plan_estimate(step.plan) end
    return seconds
end

--- Local. Before a step in place the rows are those that it started from, and say so.
function Setup:rewind()
    C.cpl_tensor_unmark(self.start.tensor)
end

return M
