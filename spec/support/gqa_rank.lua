--- Runs on a rank (or alone): attention layers on streams and layouts given as plain tables.
-- A case: stream { lengths, real }, layout (a kind) with options, or ranks (runs of each), config
-- (changes to those of CONFIGS), and, all optional, kind ("gqa" or "mla"), dtype, trace, fault
-- { rank, name, value }, poison (a first pass in which every number is NaN), again (the pass is
-- made twice), change { position, to } (of the first number of a row of x), swap (this rank's first
-- two rows change places, trace and all), measure (the bytes that preparing takes on all ranks; no
-- pass is made).
-- Gives per case what this rank has: positions, y, dx (flat lists), the gradients of all parameters
-- by name (summed over the group), and what it counted.
local clib = require "clib"
local cplab = require "cplab"
local parameters = require "cplab.parameters"
local rows = require "cplab.rows"
local C, ffi = clib.C, clib.ffi

local M = {}

M.CONFIGS = {
    gqa = { hidden = 6, heads = 4, kv_heads = 2, head_dim = 4, rotary_dim = 2, rope_theta = 100,
        eps = 1e-6 },
    mla = { hidden = 6, heads = 4, q_rank = 5, kv_rank = 4, nope_dim = 3, rope_dim = 2,
        value_dim = 7, rope_theta = 100, eps = 1e-6 },
}

local function layout_of(case, stream, cp)
    if case.ranks and cp > 1 then
        return cplab.layout.custom(stream, { cp = cp, ranks = case.ranks })
    end
    local options = { cp = cp }
    for name, value in pairs(cp > 1 and case.options or {}) do options[name] = value end
    return cplab.layout[cp > 1 and case.layout or "contiguous"](stream, options)
end

-- Uniform in (-1, 1), the same for a position on any rank.
local function fill_rows(tensor, positions, name)
    local key, width = C.cpl_random_key(7, name), tonumber(C.cpl_tensor_width(tensor))
    for slot, position in ipairs(positions) do
        for j = 0, width - 1 do
            C.cpl_dtype_store(tensor.dtype, tensor.data, (slot - 1) * width + j,
                2 * C.cpl_random_uniform(key, position * width + j) - 1)
        end
    end
end

local function fill_all(tensor, name)
    local key = C.cpl_random_key(7, name)
    for i = 0, tonumber(C.cpl_tensor_n_elements(tensor)) - 1 do
        C.cpl_dtype_store(tensor.dtype, tensor.data, i, 2 * C.cpl_random_uniform(key, i) - 1)
    end
end

local function list_of(tensor)
    local list = {}
    for i = 0, tonumber(C.cpl_tensor_n_elements(tensor)) - 1 do
        list[i + 1] = C.cpl_dtype_load(tensor.dtype, tensor.data, i)
    end
    return list
end

-- Bytes of the process, when all ranks are here.
local function live_bytes(comm)
    local stats = ffi.new "cpl_memory_stats"
    clib.check(C.cpl_comm_barrier(comm))
    C.cpl_memory(stats)
    clib.check(C.cpl_comm_barrier(comm))
    return tonumber(stats.live_bytes)
end

-- What preparing takes on all ranks; nothing is collected meanwhile.
local function prepare(self)
    collectgarbage()
    collectgarbage()
    collectgarbage "stop"
    local before = live_bytes(self.comm)
    clib.check(C.cpl_layer_prepare(self.layer, "gqa", self.place))
    self.prepared = live_bytes(self.comm) - before
    collectgarbage "restart"
end

--- A live layer: layer, place, parameters, x, y, dy, dx.
function M.make(comm, case)
    local config, cp, kind = {}, C.cpl_comm_size(comm), case.kind or "gqa"
    for name, value in pairs(M.CONFIGS[kind]) do config[name] = value end
    for name, value in pairs(case.config or {}) do config[name] = value end
    local self = { comm = comm, rank = C.cpl_comm_rank(comm), dtype = case.dtype or "f64" }
    self.stream = cplab.stream.thd(case.stream)
    self.layout = layout_of(case, self.stream, cp)
    self.positions = self.layout:positions(self.rank)
    self.place = clib.create("cpl_place", C.cpl_place_destroy, 1, C.cpl_place_create, comm,
        self.layout._ptr)
    self.layer = clib.create("cpl_layer", C.cpl_layer_destroy, 1, C["cpl_layer_" .. kind],
        ffi.new(("cpl_%s_config"):format(kind), config), clib.dtypes[self.dtype])
    self.parameters = parameters.new(comm, self.dtype, { { name = kind, ptr = self.layer } })
    fill_all(self.parameters.weights, "weights")
    for _, name in ipairs { "x", "y", "dy", "dx" } do
        self[name] = rows.new(comm, self.dtype, #self.positions, config.hidden)
    end
    if case.measure then
        prepare(self)
    else
        clib.check(C.cpl_layer_prepare(self.layer, "gqa", self.place))
    end
    return self
end

local function swap_first_rows(x)
    local data, trace = ffi.cast("double *", x.data), x.trace
    for j = 0, 5 do data[j], data[6 + j] = data[6 + j], data[j] end
    trace[0], trace[1] = trace[1], trace[0]
end

local function fill(self, case)
    fill_rows(self.x, self.positions, "x")
    fill_rows(self.dy, self.positions, "dy")
    if case.change then
        for slot, position in ipairs(self.positions) do
            if position == case.change[1] then
                ffi.cast("double *", self.x.data)[(slot - 1) * 6] = case.change[2]
            end
        end
    end
    if case.trace then
        clib.check(C.cpl_tensor_mark(self.x, self.layout._ptr, self.rank, true))
        if case.swap == self.rank then swap_first_rows(self.x) end
    end
end

local function counted()
    local c = C.cpl_counters_here()
    local result = { bytes = tonumber(c.sent_bytes), messages = tonumber(c.sent_messages),
        state_bytes = tonumber(c.state_bytes), wrong_rows = tonumber(c.wrong_rows) }
    C.cpl_counters_reset()
    return result
end

local function allocations()
    local stats = ffi.new "cpl_memory_stats"
    C.cpl_memory(stats)
    return tonumber(stats.n_allocations)
end

-- One forward and one backward pass; nobody allocates outside of it meanwhile.
local function pass(self)
    self.parameters:zero_gradients()
    C.cpl_counters_reset()
    clib.check(C.cpl_comm_barrier(self.comm))
    local before = allocations()
    clib.check(C.cpl_layer_forward(self.layer, self.x, self.y))
    self.forward = counted()
    clib.check(C.cpl_layer_backward(self.layer, self.dy, self.dx))
    clib.check(C.cpl_comm_barrier(self.comm))
    self.allocations = allocations() - before
    self.backward = counted()
end

local function poison(self)
    for _, name in ipairs { "x", "dy" } do C.cpl_tensor_fill(self[name], 0 / 0) end
    pass(self)
end

local function result_of(self)
    self.parameters:reduce()
    local result = { positions = self.positions, y = list_of(self.y), dx = list_of(self.dx),
        dy = list_of(self.dy), prepared = self.prepared,
        forward = self.forward, backward = self.backward, allocations = self.allocations,
        routes = tonumber(C.cpl_place_routes_built(self.place)), grads = {} }
    for _, entry in ipairs(self.parameters.list) do
        result.grads[entry.name] = list_of(entry.grad)
    end
    return result
end

--- One case.
-- @param comm a `cpl_comm *`
function M.run(comm, case)
    local self = M.make(comm, case)
    if case.poison then poison(self) end
    fill(self, case)
    local fault = case.fault
    if fault and fault.rank == self.rank then C.cpl_faults_here()[fault.name] = fault.value end
    if case.measure then
        self.forward, self.backward = counted(), counted()
    else
        pass(self)
    end
    if case.again then pass(self) end
    if fault then C.cpl_faults_here()[fault.name] = 0 end
    return result_of(self)
end

--- All cases of a payload, in order.
function M.run_all(comm, payload)
    local results = {}
    for i, case in ipairs(payload) do
        results[i] = M.run(comm, case)
    end
    return results
end

return setmetatable(M, { __call = function(_, comm, payload)
    return M.run_all(comm._ptr, payload)
end })
