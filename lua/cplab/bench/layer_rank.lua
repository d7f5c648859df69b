--- What every rank of `bench gqa --cp N` and `bench gdn --cp N` runs: a whole layer, forward and
-- backward, on all ranks, and beside it the same layer on one rank, whose numbers it must have.
-- @module cplab.bench.layer_rank
local buffer = require "string.buffer"

local arrays = require "cplab.bench.arrays"
local clib = require "clib"
local comms = require "cplab.comm"
local figures = require "cplab.bench.compute_figures"
local gemm = require "cplab.bench.gemm"
local layers = require "cplab.layers"
local layouts = require "cplab.layout"
local memory = require "cplab.bench.memory"
local parameters = require "cplab.parameters"
local parity = require "cplab.parity"
local rows = require "cplab.rows"
local streams = require "cplab.stream"
local timing = require "cplab.bench.timing"

local C, ffi = clib.C, clib.ffi

local KEY = "bench.layer"

-- ---- a layer ------------------------------------------------------------------------

-- Rows whose numbers depend on their position alone.
local function draw(tensor, name, layout, rank)
    local width, key = tonumber(C.cpl_tensor_width(tensor)), C.cpl_random_key(0, name)
    local data, slot = arrays.pointer(tensor), 0
    for _, run in ipairs(layout:runs(rank)) do
        for i = 0, run[2] * width - 1 do
            data[slot + i] = 3.4 * C.cpl_random_uniform(key, run[1] * width + i) - 1.7
        end
        slot = slot + run[2] * width
    end
end

-- Collective in `comm`. A layer with its rows; nil and a sentence where its heads do not go over so
-- many ranks, which preparing says on all of them.
local function live(comm, case, layout)
    local self = { comm = comm, layout = layout, rank = comm:rank() }
    local config = layers.mixer_config(case.model, case.kind, case)
    self.ptr = layers.create(case.kind, config, case.dtype)
    self.parameters = parameters.new(comm._ptr, case.dtype,
        { { name = case.kind, ptr = self.ptr } })
    self.parameters:draw(0)
    self.place = clib.create("cpl_place", C.cpl_place_destroy, 1, C.cpl_place_create, comm._ptr,
        layout._ptr)
    local status = C.cpl_layer_prepare(self.ptr, case.kind, self.place)
    if status == C.CPL_INVALID then return nil, ffi.string(C.cpl_last_error()) end
    clib.check(status)
    for _, name in ipairs { "x", "y", "dy", "dx" } do
        self[name] = rows.new(comm._ptr, case.dtype, layout:n_local(self.rank), case.model.hidden)
    end
    draw(self.x, "layer.x", layout, self.rank)
    draw(self.dy, "layer.dy", layout, self.rank)
    return self
end

local function run(self)
    clib.check(C.cpl_layer_forward(self.ptr, self.x, self.y))
    clib.check(C.cpl_layer_backward(self.ptr, self.dy, self.dx))
end

local function gradients(self)
    local list = {}
    for i, entry in ipairs(self.parameters.list) do
        list[i] = { name = entry.name, tensor = entry.grad }
    end
    return list
end

local function results(self)
    return { { name = "y", tensor = self.y }, { name = "dx", tensor = self.dx } }
end

-- ---- the same numbers ---------------------------------------------------------------

-- Rank 0's layer on one rank becomes what the others are compared with.
local function keep_reference(one)
    one.parameters:zero_gradients()
    run(one)
    parity.capture(KEY, results(one))
    parity.capture(KEY, gradients(one))
end

-- A spec's fault: the last rank's last row is a wrong one.
local function spoil(self)
    if self.rank < self.comm:size() - 1 then return end
    local width, n = tonumber(C.cpl_tensor_width(self.y)), self.layout:n_local(self.rank)
    local data = arrays.pointer(self.y)
    for i = (n - 1) * width, n * width - 1 do data[i] = 1.5 * data[i] end
end

-- Collective.
local function check_rows(self, measured, when)
    local error, where = parity.compare_rows(self.comm._ptr, KEY, results(self), self.layout,
        self.rank)
    measured.errors[when] = error
    measured.wrong = measured.wrong or figures.complaint(("%s, %s"):format(where, when), error,
        measured.bound)
end

-- Collective. One pass, its rows and the gradients of the parameters.
local function check(self, case, measured)
    self.parameters:zero_gradients()
    run(self)
    self.parameters:reduce()
    if case.fault == "rank" then spoil(self) end
    check_rows(self, measured, "before timing")
    local error, where = parity.compare_same(KEY, gradients(self))
    measured.errors.parameters = error
    measured.wrong = measured.wrong or figures.complaint(where, error, measured.bound)
end

-- ---- a row --------------------------------------------------------------------------

local function parts_of(self, one, product, case)
    local function alone(f)
        return function() if self.rank == 0 then f() end end
    end
    return {
        { name = "gemm", run = alone(function() product.run() end) },
        { name = "one", run = alone(function() run(one) end) },
        { name = "all", run = function()
            run(self)
            if case.fault == "loop" then spoil(self) end
            if case.fault == "allocation" then rows.new(nil, "f64", 1, 1) end
        end },
    }
end

-- Collective. The layer on all ranks, what it takes, and the same on rank 0 alone; or nil and why
-- there is none.
local function make(comm, case, measured)
    local stream = streams.thd { lengths = { case.tokens } }
    local before = memory.begin_all(comm)
    local self, reason = live(comm, case, layouts.create(case.layout, stream, { cp = case.cp }))
    if not self then return nil, reason end
    if case.fault == "memory" then self.taken = rows.new(nil, "f64", case.tokens, case.tokens) end
    run(self)
    measured.peak_bytes = memory.peak_all(comm, before)
    local one
    if self.rank == 0 then
        one = live(comms.self(), case, layouts.create("contiguous", stream, { cp = 1 }))
        keep_reference(one)
    end
    comm:barrier()
    clib.check(C.cpl_store_share(comm._ptr, KEY))
    return self, one
end

local function measure(comm, case)
    local measured = { errors = {}, bound = case.bound }
    local self, one = make(comm, case, measured)
    if not self then return { skipped = one } end
    check(self, case, measured)
    if measured.wrong then return measured end
    local product = self.rank == 0 and gemm.new(case.gemm, case.dtype)
    local wall, taken, busy = timing.run(comm, parts_of(self, one, product, case), case.warmup,
        case.iters)
    measured.wall, measured.busy, measured.allocations = wall, busy, taken
    measured.gemm_flops = product and product.flops
    check_rows(self, measured, "after timing")
    return measured
end

--- @param ptr the `cpl_comm *` of this rank
-- @tparam string payload the case
-- @treturn string skipped (a sentence), or errors, bound, wrong or wall and busy seconds of gemm,
-- one and all; allocations, peak_bytes, gemm_flops (of rank 0)
return function(ptr, payload)
    return buffer.encode(measure(comms.wrap(ptr), buffer.decode(payload)))
end
