--- One GDN layer on a group of ranks, against itself on one rank: what specs/layer/gdn_* drive.
--
-- A case is a stream in one or more parts, each with a layout and cp_mode of its own; states go
-- from part to part. Rows are known by (sequence, offset), so that results of different cuttings
-- compare. Values of x, dy and weights depend on these numbers alone. Runs in a rank's Lua state.
local clib = require "clib"
local cplab = require "cplab"
local parameters = require "cplab.parameters"
local rows = require "cplab.rows"
local C, ffi = clib.C, clib.ffi

local M = {}

local FAR = 1000 -- more than any offset

--- A small layer whose sizes all differ.
M.config = { hidden = 6, key_heads = 2, value_heads = 4, key_dim = 3, value_dim = 5, conv = 4,
    chunk = 4 }

local function merged(config)
    local result = { eps = 1e-6 }
    for name, value in pairs(M.config) do result[name] = value end
    for name, value in pairs(config or {}) do result[name] = value end
    return result
end

-- ---- one part of a case ------------------------------------------------------------

-- What lies in each slot of a rank: { sequence, offset, is_real }.
local function tokens_of(layout, stream, rank)
    local list = {}
    for slot, position in ipairs(layout:positions(rank)) do
        local i = stream:sequence_of(position)
        local sequence = stream:sequence(i)
        local offset = position - sequence.start
        list[slot] = { i, offset, offset < sequence.real }
    end
    return list
end

local function fill_rows(part, tensor, name)
    local key, width = C.cpl_random_key(7, name), part.config.hidden
    local data = ffi.cast("double *", tensor.data)
    for slot, token in ipairs(part.tokens) do
        local row = part.by_position and part.stream:sequence(token[1]).start + token[2]
            or token[1] * FAR + part.starts[token[1]] + token[2]
        local at = row * width
        for c = 0, width - 1 do
            data[(slot - 1) * width + c] = 2 * C.cpl_random_uniform(key, at + c) - 1
        end
    end
end

-- change: rows by key, each multiplied by a number.
local function change_rows(part, tensor, change)
    local width, data = part.config.hidden, ffi.cast("double *", tensor.data)
    for slot, token in ipairs(part.tokens) do
        local factor = change[token[1] * FAR + part.starts[token[1]] + token[2]] or 1
        for c = 0, width - 1 do
            data[(slot - 1) * width + c] = data[(slot - 1) * width + c] * factor
        end
    end
end

local function state_tensors(comm, config, n)
    local t = {}
    local width = 2 * config.key_heads * config.key_dim + config.value_heads * config.value_dim
    local function new(...) return (clib.create("cpl_tensor", C.cpl_tensor_destroy, 1,
        C.cpl_tensor_create, C.CPL_F64, select("#", ...), ffi.new("int64_t[6]", { ... }), comm)) end
    for _, prefix in ipairs { "", "d_" } do
        t[prefix .. "state"] = new(n, config.value_heads, config.key_dim, config.value_dim)
        t[prefix .. "tail"] = config.conv > 1 and new(n, config.conv - 1, width) or nil
    end
    t.struct = ffi.new("cpl_gdn_state", { state = t.state, tail = t.tail, d_state = t.d_state,
        d_tail = t.d_tail })
    return t
end
M.state_tensors = state_tensors

local function make_layer(config, cp_mode)
    local fields = {}
    for name, value in pairs(config) do fields[name] = value end
    fields.cp_mode = cp_mode
    return clib.create("cpl_layer", C.cpl_layer_destroy, 1, C.cpl_layer_gdn,
        ffi.new("cpl_gdn_config", fields), C.CPL_F64)
end

-- starts[i]: how many tokens of sequence i came in earlier parts.
local function make_part(comm, p, config, starts, changes)
    local part = { config = config, starts = starts, comm = comm, by_position = p.by_position }
    part.stream = cplab.stream.thd { lengths = p.lengths, real = p.real or p.lengths }
    local options = { cp = C.cpl_comm_size(comm), ranks = p.ranks }
    part.layout = cplab.layout.create(p.kind or "contiguous", part.stream, options)
    part.rank = C.cpl_comm_rank(comm)
    part.tokens = tokens_of(part.layout, part.stream, part.rank)
    part.layer = make_layer(config, p.cp_mode or "chunkwise")
    part.place = clib.create("cpl_place", C.cpl_place_destroy, 1, C.cpl_place_create, comm,
        part.layout._ptr)
    for _, name in ipairs { "x", "y", "dx", "dy" } do
        part[name] = rows.new(comm, "f64", #part.tokens, config.hidden)
    end
    fill_rows(part, part.x, "x")
    fill_rows(part, part.dy, "dy")
    for name, change in pairs(changes) do
        change_rows(part, part[name], change)
    end
    return part
end

-- ---- parameters -------------------------------------------------------------------------

-- Gates of their own for every head, slow enough that the first token reaches the last.
local function set_weights(list, p)
    for _, entry in ipairs(list) do
        local name, n = entry.name, tonumber(C.cpl_tensor_n_elements(entry.weight))
        local key, data = C.cpl_random_key(7, name), ffi.cast("double *", entry.weight.data)
        for i = 0, n - 1 do data[i] = 2 * C.cpl_random_uniform(key, i) - 1 end
        for i = 0, n - 1 do
            if name == "gdn.A_log" then data[i] = p.a_log or -5 + 4 * (i % 3) end
        end
    end
end

-- The parts share parameters; gradients add up over them.
local function bind(comm, parts, p)
    local own = parameters.new(comm, "f64", { { name = "gdn", ptr = parts[1].layer } })
    set_weights(own.list, p)
    local n = #own.list
    local weights, grads = ffi.new("cpl_tensor *[?]", n), ffi.new("cpl_tensor *[?]", n)
    for i, entry in ipairs(own.list) do weights[i - 1], grads[i - 1] = entry.weight, entry.grad end
    for _, part in ipairs(parts) do clib.check(C.cpl_layer_bind(part.layer, weights, grads)) end
    return own
end

-- ---- a case ------------------------------------------------------------------------------

local function n_of(p, i) return (p.real or p.lengths)[i] end

local function make_parts(comm, p, config)
    local parts, starts = {}, {}
    local list = p.parts or { p }
    for i = 0, #list[1].lengths - 1 do starts[i] = 0 end
    for k, fields in ipairs(list) do
        local now = {}
        for i, start in pairs(starts) do now[i] = start end
        parts[k] = make_part(comm, fields, config, now, p.changes or {})
        for i in pairs(starts) do starts[i] = starts[i] + n_of(fields, i + 1) end
    end
    return parts
end

local function fill_random(tensor, name)
    local key, data = C.cpl_random_key(7, name), ffi.cast("double *", tensor.data)
    for i = 0, tonumber(C.cpl_tensor_n_elements(tensor)) - 1 do
        data[i] = 2 * C.cpl_random_uniform(key, i) - 1
    end
end

-- States between the parts, and with p.states before the first and after the last.
local function make_states(comm, parts, p, config)
    local states, n = {}, #(p.parts and p.parts[1] or p).lengths
    for k = 0, #parts do
        local is_end = k == 0 or k == #parts
        states[k] = (p.states or not is_end) and state_tensors(comm, config, n) or nil
    end
    if p.states then
        fill_random(states[0].state, "state")
        fill_random(states[#parts].d_state, "d_state")
        if config.conv > 1 then
            fill_random(states[0].tail, "tail")
            fill_random(states[#parts].d_tail, "d_tail")
        end
    end
    return states
end

local function collect(result, part, name)
    local width, data = part.config.hidden, ffi.cast("double *", part[name].data)
    for slot, token in ipairs(part.tokens) do
        local row = {}
        for c = 1, width do row[c] = data[(slot - 1) * width + c - 1] end
        local key = token[1] * FAR + part.starts[token[1]] + token[2]
        if token[3] then
            result[name][key] = row
        else
            for c = 1, width do
                if row[c] ~= 0 then result.padding = result.padding + 1 end
            end
        end
    end
end

local function flat(tensor)
    local list, data = {}, ffi.cast("double *", tensor.data)
    for i = 1, tonumber(C.cpl_tensor_n_elements(tensor)) do list[i] = data[i - 1] end
    return list
end
M.flat = flat

local function struct_of(state) return state and state.struct or nil end

-- What was sent since `before`.
local function count(sent, before)
    local counters = C.cpl_counters_here()
    sent.bytes = tonumber(counters.sent_bytes) - before.bytes
    sent.state = tonumber(counters.state_bytes) - before.state
    sent.messages = tonumber(counters.sent_messages) - before.messages
end

-- Runs the case: forward over all parts, then backward from the last.
local function run_parts(parts, states, traced)
    for k, part in ipairs(parts) do
        clib.check(C.cpl_layer_gdn_state(part.layer, struct_of(states[k - 1]),
            struct_of(states[k])))
        clib.check(C.cpl_layer_prepare(part.layer, "gdn", part.place))
        for _, name in ipairs { "x", "dy" } do
            clib.check(C.cpl_tensor_mark(part[name], part.layout._ptr, part.rank,
                traced or false))
        end
    end
    local sent, sent_back = {}, {}
    C.cpl_counters_reset()
    for _, part in ipairs(parts) do
        clib.check(C.cpl_layer_forward(part.layer, part.x, part.y))
    end
    count(sent, { bytes = 0, state = 0, messages = 0 })
    for k = #parts, 1, -1 do
        clib.check(C.cpl_layer_backward(parts[k].layer, parts[k].dy, parts[k].dx))
    end
    count(sent_back, sent)
    return sent, sent_back
end

-- Faults on one rank, or on none: { rank =, name of a field of cpl_faults = value }.
local function plant(faults, rank)
    for _, name in ipairs { "drop_handoff", "tile_heads", "first_slice" } do
        C.cpl_faults_here()[name] = faults and faults.rank == rank and faults[name] or 0
    end
end

--- Runs a case on a group.
-- @param comm a `cpl_comm *`
-- @tparam table p lengths, real, kind, ranks, cp_mode, or parts, a list of these; config; a_log;
--   states (from and to outside); traced; poison; faults; changes ({ x =, dy = }: factors by row);
--   by_position: values depend on a row's position in the stream, so that streams that are cut
--   into other sequences have the same
-- @treturn table y and dx, rows by sequence * 1000 + offset; gradients and states as lists;
--   padding, how many numbers of padded rows are not 0; sent and sent_back, what forward and
--   backward sent; wrong_rows and trace_checks
function M.run(comm, p)
    local config = merged(p.config)
    local parts = make_parts(comm, p, config)
    local own = bind(comm, parts, p)
    local states = make_states(comm, parts, p, config)
    C.cpl_faults_here().poison_scratch = p.poison and 1 or 0
    local result = { y = {}, dx = {}, padding = 0, lists = {} }
    plant(p.faults, parts[1].rank)
    result.sent, result.sent_back = run_parts(parts, states, p.traced)
    plant(nil, parts[1].rank)
    C.cpl_faults_here().poison_scratch = 0
    result.wrong_rows = tonumber(C.cpl_counters_here().wrong_rows)
    result.trace_checks = tonumber(C.cpl_counters_here().trace_checks)
    own:reduce()
    for _, part in ipairs(parts) do
        collect(result, part, "y")
        collect(result, part, "dx")
    end
    for _, entry in ipairs(own.list) do result.lists[entry.name] = flat(entry.grad) end
    if p.states then
        local first, last = states[0], states[#parts]
        for name, tensor in pairs { state = last.state, tail = last.tail, d_state = first.d_state,
            d_tail = first.d_tail } do
            result.lists[name] = flat(tensor)
        end
    end
    return result
end

-- One part between two states, prepared.
local function one_part(comm, p, change)
    local config = merged(p.config)
    local parts = make_parts(comm, p, config)
    local own, part = bind(comm, parts, p), parts[1]
    p.states = true
    local states = make_states(comm, parts, p, config)
    if change then change(states[0]) end
    return part, states, own
end

local function forward(part, from, to)
    clib.check(C.cpl_layer_gdn_state(part.layer, from.struct, to.struct))
    clib.check(C.cpl_layer_prepare(part.layer, "gdn", part.place))
    clib.check(C.cpl_layer_forward(part.layer, part.x, part.y))
end

local function dot(a, b)
    local sum, x, y = 0, flat(a), flat(b)
    for i = 1, #x do sum = sum + x[i] * y[i] end
    return sum
end

--- <y, dy> + <state out, d_state> + <tail out, d_tail>, with one number of what comes in changed.
function M.loss(comm, p, name, i, by)
    local part, states, own = one_part(comm, p, function(state)
        local data = ffi.cast("double *", state[name].data)
        data[i - 1] = data[i - 1] + by
    end)
    forward(part, states[0], states[1])
    return dot(part.y, part.dy) + dot(states[1].state, states[1].d_state)
        + dot(states[1].tail, states[1].d_tail), own
end

--- Collective. How many blocks of memory the process takes during a second forward and backward.
function M.blocks_of_a_step(comm, p)
    local part, states, own = one_part(comm, p)
    local memory = ffi.new "cpl_memory_stats"
    local function taken() -- while no rank is at work
        clib.check(C.cpl_comm_barrier(comm))
        C.cpl_memory(memory)
        clib.check(C.cpl_comm_barrier(comm))
        return tonumber(memory.n_allocations)
    end
    forward(part, states[0], states[1])
    clib.check(C.cpl_layer_backward(part.layer, part.dy, part.dx))
    local before = taken()
    clib.check(C.cpl_layer_forward(part.layer, part.x, part.y))
    clib.check(C.cpl_layer_backward(part.layer, part.dy, part.dx))
    return taken() - before, own
end

--- Collective. Whether prepare succeeds on this rank when rank 1 may take n blocks, for n = 0, 1,
-- and so on until it does.
-- @treturn {boolean,...}
function M.prepare_without_memory(comm, p)
    local part, states, own = one_part(comm, p)
    local results = {}
    clib.check(C.cpl_layer_gdn_state(part.layer, states[0].struct, states[1].struct))
    repeat
        if part.rank == 1 then C.cpl_memory_fail_after(#results) end
        local status = C.cpl_layer_prepare(part.layer, "gdn", part.place)
        C.cpl_memory_fail_after(-1)
        results[#results + 1] = status == C.CPL_OK
    until results[#results]
    clib.check(C.cpl_layer_forward(part.layer, part.x, part.y))
    return results, own
end

--- The rows and states of one forward pass, with a tensor each for what comes in and goes out or
-- one for both.
function M.forward_states(comm, p, is_same)
    local part, states, own = one_part(comm, p)
    local out = is_same and states[0] or states[1]
    forward(part, states[0], out)
    return { flat(part.y), flat(out.state), flat(out.tail) }, own
end

-- ---- comparing --------------------------------------------------------------------------

local function add_error(worst, what, difference, size)
    local e = size > 0 and difference / size or difference > 0 and math.huge or 0
    if e > worst[1] or e ~= e then worst[1], worst[2] = e, what end
end

local function largest(list)
    local most = 0
    for _, x in pairs(list) do
        most = math.max(most, type(x) == "table" and largest(x) or math.abs(x))
    end
    return most
end

--- How far a result is from a reference: the largest difference of a number over the largest
-- number, per tensor.
-- @treturn number
-- @treturn string which tensor
function M.distance(result, reference)
    local worst = { 0, "" }
    for _, name in ipairs { "y", "dx" } do
        local size = largest(reference[name])
        for key, row in pairs(result[name]) do
            for c, x in ipairs(row) do
                add_error(worst, name, math.abs(x - reference[name][key][c]), size)
            end
        end
    end
    for name, list in pairs(reference.lists) do
        local size = largest(list)
        for i, x in ipairs(list) do
            add_error(worst, name, math.abs(result.lists[name][i] - x), size)
        end
    end
    return worst[1], worst[2]
end

--- The same case on one rank, in one part, chunkwise and without padding.
function M.reference(p)
    local list, total = p.parts or { p }, {}
    for i = 1, #list[1].lengths do
        total[i] = 0
        for _, fields in ipairs(list) do total[i] = total[i] + n_of(fields, i) end
    end
    return M.run(C.cpl_comm_self(), { lengths = total, config = p.config, a_log = p.a_log,
        states = p.states, changes = p.changes, by_position = p.by_position })
end

--- Runs cases on this rank's group; for ranks.run "spec.support.gdn_cases".
-- @treturn {table,...} of each case that is not right: name, distance, where, padding, wrong_rows
function M.check(comm, cases, bound)
    local wrong, known = {}, {}
    for _, p in ipairs(cases) do
        local key = p.reference_key or false
        local reference = key and known[key] or M.reference(p)
        if key then known[key] = reference end
        local result = M.run(comm, p)
        local distance, where = M.distance(result, reference)
        if distance > bound or distance ~= distance or result.padding > 0
            or result.wrong_rows > 0 then
            wrong[#wrong + 1] = ("%s: %g at %s, padding %d, wrong rows %d"):format(p.name,
                distance, where, result.padding, result.wrong_rows)
        end
    end
    return wrong
end

return M
