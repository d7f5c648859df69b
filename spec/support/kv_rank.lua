--- Runs on a rank (or alone): an attention layer whose sequences come in parts, with a cache,
-- wherever the rank's rows are.
-- A case: kind ("gqa" or "mla"), config (changes to gqa_rank.CONFIGS), parts { { real, lengths
-- (default: real), layout (a kind) with options, or ranks (runs of each), cp_mode, a2a }, ... },
-- and, all optional, capacity (rows of each sequence; default: all of them), no_cache, trace,
-- poison (scratch), swap (in the last part the first two rows of that rank change places, trace and
-- all), fault { rank, name, value } (during all parts), again (the last part comes that
-- many times, on one prepared layer), dtype (of a layer that is only to be prepared). Rows of x
-- depend on (sequence, position) alone, those of padding too. Gives y of real rows, { [sequence *
-- 1000 + position] = row }, and what was counted.
local clib = require "clib"
local cplab = require "cplab"
local gqa_rank = require "spec.support.gqa_rank"
local parameters = require "cplab.parameters"
local rows = require "cplab.rows"
local C, ffi = clib.C, clib.ffi

local M = { FAR = 1000 } -- more than any position

local function config_of(case, part)
    local config = {}
    for name, value in pairs(gqa_rank.CONFIGS[case.kind or "gqa"]) do config[name] = value end
    for name, value in pairs(case.config or {}) do config[name] = value end
    config.cp_mode, config.a2a = part.cp_mode, part.a2a
    return config
end

local function layout_of(part, stream, cp)
    if cp == 1 then return cplab.layout.contiguous(stream, { cp = 1 }) end
    if part.ranks then return cplab.layout.custom(stream, { cp = cp, ranks = part.ranks }) end
    local options = { cp = cp }
    for name, value in pairs(part.options or {}) do options[name] = value end
    return cplab.layout[part.layout or "contiguous"](stream, options)
end

function M.cache(capacity)
    return clib.create("cpl_kv_cache", C.cpl_kv_cache_destroy, 1, C.cpl_kv_cache_create, #capacity,
        ffi.new("int64_t[?]", #capacity, capacity))
end

-- Uniform in (-1, 1), the same for a token in any part.
local function fill(self, starts)
    local key, width = C.cpl_random_key(7, "x"), self.width
    rows.edit(self.x, "double", function(data)
        for _, span in ipairs(self.layout:spans(self.rank, false)) do
            for i = 0, span.length - 1 do
                local at = span.sequence * M.FAR + starts[span.sequence + 1] + span.offset + i
                for c = 0, width - 1 do
                    data[(span.slot + i) * width + c] =
                        2 * C.cpl_random_uniform(key, at * width + c) - 1
                end
            end
        end
    end)
end

--- A layer for a part, not prepared: layer, place, layout, x, y.
function M.part(comm, case, part)
    local kind, config = case.kind or "gqa", config_of(case, part)
    local self = { rank = C.cpl_comm_rank(comm), width = config.hidden }
    self.stream = cplab.stream.thd { lengths = part.lengths or part.real, real = part.real }
    self.layout = layout_of(part, self.stream, C.cpl_comm_size(comm))
    self.place = clib.create("cpl_place", C.cpl_place_destroy, 1, C.cpl_place_create, comm,
        self.layout._ptr)
    self.layer = clib.create("cpl_layer", C.cpl_layer_destroy, 1, C["cpl_layer_" .. kind],
        ffi.new(("cpl_%s_config"):format(kind), config), clib.dtypes[case.dtype or "f64"])
    if case.dtype then return self end -- to be prepared, not to run
    self.parameters = parameters.new(comm, "f64", { { name = kind, ptr = self.layer } })
    local weights, key = self.parameters.weights, C.cpl_random_key(7, "weights")
    rows.edit(weights, "double", function(data)
        for i = 0, tonumber(C.cpl_tensor_n_elements(weights)) - 1 do
            data[i] = 2 * C.cpl_random_uniform(key, i) - 1
        end
    end)
    local n = self.layout:n_local(self.rank)
    for _, name in ipairs { "x", "y" } do self[name] = rows.new(comm, "f64", n, config.hidden) end
    clib.check(C.cpl_tensor_mark(self.x, self.layout._ptr, self.rank, case.trace or false))
    return self
end

local function swap_first_rows(self)
    local trace = ffi.new("int64_t[?]", self.x.shape[0])
    rows.edit(self.x, "double", function(data)
        for c = 0, self.width - 1 do
            data[c], data[self.width + c] = data[self.width + c], data[c]
        end
    end)
    clib.check(C.cpl_tensor_get_trace(self.x, trace))
    trace[0], trace[1] = trace[1], trace[0]
    clib.check(C.cpl_tensor_set_trace(self.x, trace))
end

local function keep(self, starts, result)
    rows.look(self.y, "double", function(data)
        for _, span in ipairs(self.layout:spans(self.rank, true)) do
            for i = 0, span.length - 1 do
                local row = {}
                for c = 1, self.width do row[c] = data[(span.slot + i) * self.width + c - 1] end
                result.y[span.sequence * M.FAR + starts[span.sequence + 1] + span.offset + i] = row
            end
        end
    end)
end

-- Of the process, when all ranks are here.
local function allocations(comm)
    local stats = ffi.new "cpl_memory_stats"
    clib.check(C.cpl_comm_barrier(comm))
    C.cpl_memory(stats)
    clib.check(C.cpl_comm_barrier(comm))
    return tonumber(stats.n_allocations)
end

local function forward(self, comm, starts, result, swaps)
    fill(self, starts)
    if swaps then swap_first_rows(self) end
    C.cpl_counters_reset()
    local before = allocations(comm)
    clib.check(C.cpl_layer_forward(self.layer, self.x, self.y))
    result.allocations = allocations(comm) - before
    local counters = C.cpl_counters_here()
    result.syncs = result.syncs + tonumber(counters.host_syncs)
    clib.check(C.cpl_trace_settle(comm))
    result.wrong_rows = result.wrong_rows + tonumber(counters.wrong_rows)
    result.trace_checks = result.trace_checks + tonumber(counters.trace_checks)
    result.sent = tonumber(counters.sent_bytes)
    keep(self, starts, result)
    for i = 1, #starts do
        starts[i] = starts[i] + self.stream:sequence(i - 1).real
    end
end

local function plant(case, rank)
    local faults = C.cpl_faults_here()
    faults.poison_scratch = case.poison and 1 or 0
    local fault = case.fault
    if fault then
        faults[fault.name] = (fault.rank or rank) == rank and fault.value or 0
    end
    return function()
        faults.poison_scratch = 0
        if fault then faults[fault.name] = 0 end
    end
end

--- One case.
-- @param comm a `cpl_comm *`
function M.run(comm, case)
    local starts, total = {}, {}
    for i = 1, #case.parts[1].real do starts[i], total[i] = 0, 0 end
    for _, part in ipairs(case.parts) do
        for i, n in ipairs(part.real) do total[i] = total[i] + n end
    end
    for i, n in ipairs(case.parts[#case.parts].real) do
        total[i] = total[i] + n * (case.again or 0)
    end
    local cache = not case.no_cache and M.cache(case.capacity or total) or nil
    local result = { y = {}, wrong_rows = 0, trace_checks = 0, syncs = 0, kept = {} }
    local clean = plant(case, C.cpl_comm_rank(comm))
    for k, fields in ipairs(case.parts) do
        local part = M.part(comm, case, fields)
        clib.check(C.cpl_layer_kv_cache(part.layer, cache))
        clib.check(C.cpl_layer_prepare(part.layer, "layers.1", part.place))
        result.kept[k] = part
        local is_last = k == #case.parts
        for _ = 0, is_last and case.again or 0 do
            forward(part, comm, starts, result, is_last and case.swap == part.rank)
        end
    end
    clean()
    result.bytes = cache and tonumber(C.cpl_kv_cache_bytes(cache)) or 0
    result.seen = {}
    for i = 1, cache and #starts or 0 do
        result.seen[i] = tonumber(C.cpl_kv_cache_seen(cache, i - 1))
    end
    result.kept = nil
    return result
end

--- Collective. Whether a part with a past is prepared on this rank when rank 1 may take n blocks,
-- for n = 0, 1, and so on until it is.
function M.prepare_without_memory(comm, case)
    local cache, parts = M.cache(case.capacity), {}
    for k = 1, 2 do
        parts[k] = M.part(comm, case, case.parts[k])
        clib.check(C.cpl_layer_kv_cache(parts[k].layer, cache))
    end
    local first = parts[1]
    clib.check(C.cpl_layer_prepare(first.layer, "layers.1", first.place))
    clib.check(C.cpl_layer_forward(first.layer, first.x, first.y))
    local list = {}
    for n = 0, 1000 do
        clib.check(C.cpl_comm_barrier(comm))
        C.cpl_memory_fail_after(first.rank == 1 and n or -1)
        local status = C.cpl_layer_prepare(parts[2].layer, "layers.1", parts[2].place)
        C.cpl_memory_fail_after(-1)
        list[n + 1] = status == C.CPL_OK
        if list[n + 1] then return list end
    end
end

return setmetatable(M, { __call = function(_, comm, payload)
    if payload.ask then return M[payload.ask](comm._ptr, payload) end
    local results = {}
    for i, case in ipairs(payload) do results[i] = M.run(comm._ptr, case) end
    return results
end })
