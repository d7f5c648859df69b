--- Runs on a rank: layers of every kind, wherever its rows are. Returns a function of the comm
-- and { cases = {...} }; a case: kind, config (changes to those of spec.support.layers), stream,
-- layout (a kind; or ranks, the runs of each), and, all optional, dtype, split { tp_rank, tp },
-- states (gdn: sequences enter with states and leave some), recompute (what is kept is shared),
-- passes (1), poison (scratch is NaN before every pass), trace and swap (see below), fault { name,
-- value, rank (or all) }, vocabulary (of the tokens; the table has 11), refusal { op, sentence }
-- (what the kernels say to the sizes). Gives per case what this rank has: y, dx, every gradient and
-- state by name, as flat lists; host_syncs of all passes; wrong rows; or the failure. With `mould`
-- beside the cases they are made in one mould in turn, and give a digest of a pass's launches, too.
local clib = require "clib"
local cplab = require "cplab"
local layers = require "spec.support.layers"
local C, ffi = clib.C, clib.ffi

local function create(comm, dtype, dims)
    local shape = ffi.new("int64_t[6]", dims)
    return (clib.create("cpl_tensor", C.cpl_tensor_destroy, 2, C.cpl_tensor_create, dtype, #dims,
        shape, comm))
end

-- The tensor becomes f(i), i from 0.
local function set(tensor, f)
    local picture = ffi.new("uint64_t[?]", tonumber(C.cpl_tensor_bytes(tensor)) / 8 + 1)
    for i = 0, tonumber(C.cpl_tensor_n_elements(tensor)) - 1 do
        C.cpl_dtype_store(tensor.dtype, picture, i, f(i))
    end
    clib.check(C.cpl_tensor_upload(tensor, picture))
    return tensor
end

local function list_of(tensor)
    local list = {}
    local picture = ffi.new("uint64_t[?]", tonumber(C.cpl_tensor_bytes(tensor)) / 8 + 1)
    clib.check(C.cpl_tensor_download(tensor, picture))
    for i = 0, tonumber(C.cpl_tensor_n_elements(tensor)) - 1 do
        list[i + 1] = C.cpl_dtype_load(tensor.dtype, picture, i)
    end
    return list
end

-- Numbers in [-1, 1) that every dtype holds as they are.
local function uniform(name)
    local key = C.cpl_random_key(7, name)
    return function(i) return math.floor(256 * C.cpl_random_uniform(key, i)) / 128 - 1 end
end

local function layout_of(case, stream, cp)
    if case.ranks then return cplab.layout.custom(stream, { cp = cp, ranks = case.ranks }) end
    return cplab.layout[case.layout or "contiguous"](stream, { cp = cp })
end

-- Parameters and gradients, drawn by name.
local function bind(self)
    local n = C.cpl_layer_n_params(self.layer)
    local weights, grads = ffi.new("cpl_tensor *[?]", n), ffi.new("cpl_tensor *[?]", n)
    self.weights, self.grads = {}, {}
    for i = 0, n - 1 do
        local info = C.cpl_layer_param(self.layer, i)
        local dims, name = {}, ffi.string(info.name)
        for d = 1, info.n_dims do dims[d] = tonumber(info.shape[d - 1]) end
        self.weights[i] = set(create(self.comm, info.dtype, dims), uniform(name))
        self.grads[name] = create(self.comm, self.wide, dims)
        weights[i], grads[i] = self.weights[i], self.grads[name]
    end
    clib.check(C.cpl_layer_bind(self.layer, weights, grads))
end

-- States of all sequences, and their gradients.
local function bind_states(self, case)
    local n = self.stream:n_sequences()
    local heads, channels = case.states.heads, case.states.channels
    local function state(name)
        local new = ffi.new "cpl_gdn_state"
        for _, field in ipairs { "state", "tail", "d_state", "d_tail" } do
            local is_tail = field:match "tail"
            local dims = is_tail and { n, 3, channels } or { n, heads, 3, 5 }
            local key = name .. " " .. field
            self.states[key] = set(create(self.comm, is_tail and self.dtype or self.wide, dims),
                uniform(key))
            new[field] = self.states[key]
        end
        return new
    end
    self.states = {}
    local enter, leave = state "in", state "out"
    clib.check(C.cpl_layer_gdn_state(self.layer, enter, leave))
end

local function rows(self, name, width)
    local tensor = create(self.comm, self.dtype, { #self.positions, width })
    local draw = uniform(name)
    return set(tensor, function(i)
        return draw(self.positions[math.floor(i / width) + 1] * width + i % width)
    end)
end

local function make(comm, case)
    local self = { comm = comm, dtype = clib.dtypes[case.dtype or "f64"] }
    self.wide = self.dtype == C.CPL_BF16 and C.CPL_F32 or self.dtype
    self.stream = cplab.stream.thd(case.stream)
    self.layout = layout_of(case, self.stream, C.cpl_comm_size(comm))
    self.positions = self.layout:positions(C.cpl_comm_rank(comm))
    self.place = clib.create("cpl_place", C.cpl_place_destroy, 1, C.cpl_place_create, comm,
        self.layout._ptr)
    if case.split then clib.check(C.cpl_place_split(self.place, case.split[1], case.split[2])) end
    if case.recompute then C.cpl_place_share_kept(self.place) end
    self.layer = layers.create(case.kind, case.config, self.dtype)
    bind(self)
    if case.states then bind_states(self, case) end
    clib.check(C.cpl_layer_prepare(self.layer, case.kind, self.place))
    local width, is_tokens = tonumber(C.cpl_layer_out_width(self.layer)), case.kind == "embedding"
    self.y, self.dy = rows(self, "y", width), rows(self, "dy", width)
    if is_tokens then
        self.x = set(create(comm, C.CPL_I32, { #self.positions, 1 }), function(i)
            local token = (7 * self.positions[i + 1]) % (case.vocabulary or 11)
            return i % 5 == 4 and -1 or token
        end)
    else
        self.x, self.dx = rows(self, "x", 6), rows(self, "dx", 6)
    end
    return self
end

-- Has the kernels of the place refuse all sizes with a sentence while f runs.
local function with_refusal(comm, case, f)
    local table_of = C.cpl_comm_kernels(comm, clib.dtypes[case.dtype or "f64"])
    local kernels = ffi.cast("cpl_kernels *", table_of)
    local field = case.refusal[1] .. "_refusal"
    local sentence, before = case.refusal[2], kernels[field]
    local callback = ffi.cast(field == "gdn_refusal" and "const char *(*)(const cpl_gdn *)"
        or "const char *(*)(const cpl_attention *)", function() return sentence end)
    kernels[field] = callback
    local done, result = pcall(f)
    kernels[field] = before
    callback:free()
    if not done then error(result, 0) end
    return result
end

jit.off(with_refusal, true) -- C that was compiled in cannot call back

local function report_of(self)
    local report = ffi.new "cpl_moe_report"
    clib.check(C.cpl_layer_moe_report(self.layer, report))
    local list = { report.margin, report.aux_loss }
    for e = 0, tonumber(report.experts) do list[#list + 1] = tonumber(report.offsets[e]) end
    return list
end

-- Positions travel with the rows; with `swap` the first two of rank 1 have each other's.
local function trace(self, case)
    local rank, n = C.cpl_comm_rank(self.comm), #self.positions
    clib.check(C.cpl_tensor_mark(self.x, self.layout._ptr, rank, true))
    if not case.swap or rank ~= 1 then return end
    local positions = ffi.new("int64_t[?]", n, self.positions)
    positions[0], positions[1] = positions[1], positions[0]
    clib.check(C.cpl_tensor_set_trace(self.x, positions))
end

local function pass(self)
    for _, grad in pairs(self.grads) do clib.check(C.cpl_tensor_fill(grad, 0)) end
    clib.check(C.cpl_layer_forward(self.layer, self.x, self.y))
    clib.check(C.cpl_layer_backward(self.layer, self.dy, self.dx))
end

local function run(comm, case, mould)
    local self = mould and mould:fill(make, comm, case) or make(comm, case)
    if case.trace then trace(self, case) end
    local faults, out = C.cpl_faults_here(), { positions = self.positions }
    local rank = C.cpl_comm_rank(comm)
    if case.fault and (case.fault[3] or rank) == rank then
        faults[case.fault[1]] = case.fault[2]
    end
    faults.poison_scratch = case.poison and 1 or 0
    if mould then
        out.digest = tostring(mould:rehearse(function() pass(self) end).digest)
    end
    C.cpl_counters_reset()
    for _ = 1, case.passes or 1 do pass(self) end
    local counters = C.cpl_counters_here()
    out.syncs = tonumber(counters.host_syncs)
    clib.check(C.cpl_trace_settle(comm))
    out.wrong, out.checks = tonumber(counters.wrong_rows), tonumber(counters.trace_checks)
    out.device = ffi.string(C.cpl_tensor_device(self.y))
    out.values = { y = list_of(self.y), dx = self.dx and list_of(self.dx) }
    for name, grad in pairs(self.grads) do out.values[name] = list_of(grad) end
    for name, tensor in pairs(self.states or {}) do out.values[name] = list_of(tensor) end
    if case.kind == "moe" then out.values.report = report_of(self) end
    return out
end

local function clean()
    ffi.fill(C.cpl_faults_here(), ffi.sizeof "cpl_faults")
end

return function(comm, p)
    local all = {}
    local mould = p.mould and require("cplab.mould").new(comm._ptr)
    for i, case in ipairs(p.cases) do
        local done, result = pcall(function()
            if not case.refusal then return run(comm._ptr, case, mould) end
            return with_refusal(comm._ptr, case, function() return run(comm._ptr, case) end)
        end)
        clean()
        all[i] = done and result or { failure = tostring(result) }
        collectgarbage()
    end
    return all
end
