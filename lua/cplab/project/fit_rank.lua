--- What every rank of `project --fit` runs: short calls of each kernel at several sizes, exchanges
-- and the building of routes, all in turn, round by round, so that what disturbs the machine
-- disturbs them alike.
--
-- Kernels are timed by the CPU time of the threads, all ranks at once, as they run in a step;
-- exchanges by the clock on the wall too, since ranks wait in them.
-- @module cplab.project.fit_rank
local buffer = require "string.buffer"

local clib = require "clib"
local comms = require "cplab.comm"
local cores = require "cplab.bench.core"
local gdn_core = require "cplab.bench.gdn_core"
local gqa_core = require "cplab.bench.gqa_core"
local layouts = require "cplab.layout"
local pointwise = require "cplab.project.pointwise"
local prices = require "cplab.cost.sizes"
local products = require "cplab.project.products"
local routes = require "cplab.route"
local rows = require "cplab.rows"
local statistics = require "cplab.bench.statistics"
local streams = require "cplab.stream"
local timing = require "cplab.bench.timing"

local C, ffi = clib.C, clib.ffi

-- A call is repeated until it is so many seconds long, but not too often.
local LEAST_SECONDS, MAX_REPEATS = 1e-3, 500

-- ---- parts: { kind, x (flop or bytes of a call), call } --------------------------------

local function add(parts, kind, x, call)
    parts[#parts + 1] = { kind = kind, x = x, call = call }
end

-- The order is fixed: ranks measure the same part at a time.
local function add_products(parts, sizes)
    local width = sizes.width
    for _, dtype in ipairs { "f32", "f64" } do
        for _, n in ipairs(sizes.gemm[dtype]) do
            for _, out in ipairs { width, 3 * width } do
                local call, flop = products.new(dtype, n, width, out)
                add(parts, "gemm_" .. dtype, flop, call)
                parts[#parts].per_call = 3
            end
        end
    end
end

-- FLOP of a call forward and backward, as prices count them.
local flops = {}

-- A number of sequences, `spans`, is as many blocks of queries.
function flops.attention(case)
    local s = prices.attention("gqa", { heads = case.heads, kv_heads = case.kv_heads,
        head_dim = case.head_dim, hidden = 0 }, 1)
    local n_pairs = case.spans * gqa_core.pairs_of(case.tokens / case.spans, 0)
    return n_pairs * s.pair, n_pairs * s.pair_backward
end

function flops.gdn(case)
    local n, K, V, c = case.tokens * case.value_heads, case.key_dim, case.value_dim, case.chunk
    return n * prices.gdn_forward(K, V, c), n * prices.gdn_backward(K, V, c)
end

-- The queries of a core of attention see the keys of their own sequence alone.
local function cut(core, n_spans)
    local blocks, n = {}, core.case.tokens / n_spans
    for i = 1, n_spans do
        local at = (i - 1) * n
        blocks[i] = { q_slot = at, n_queries = n, kv_slot = at, n_keys = n, n_before = 0 }
    end
    core.p.blocks, core.p.n_blocks = core:array("cpl_attention_block", blocks), n_spans
    core.b.forward = core.p
end

local function new_core(kind, case)
    local core = cores.new(kind, case)
    if case.spans > 1 then cut(core, case.spans) end
    core:forward() -- backward reads what it leaves
    return core
end

-- Few tokens take little memory: more copies go round.
local function add_core(parts, op, kind, case, most)
    local copies, forward, backward = {}, flops[op](case)
    for i = 1, math.ceil(most / case.tokens / 2) do copies[i] = new_core(kind, case) end
    add(parts, op .. "_forward", forward, products.rotating(#copies, function(i)
        return function() copies[i]:forward() end
    end))
    add(parts, op .. "_backward", backward, products.rotating(#copies, function(i)
        return function() copies[i]:backward() end
    end))
    parts[#parts - 1].calls, parts[#parts].calls = case.spans, case.spans
end

local function add_cores(parts, op, kind, case, tokens, n_spans)
    local most = tokens[#tokens]
    for i = 1, #tokens + (n_spans and 1 or 0) do
        local of_size = { tokens = tokens[i] or most, dtype = "f32",
            spans = tokens[i] and 1 or n_spans }
        for name, value in pairs(case) do of_size[name] = value end
        add_core(parts, op, kind, of_size, most)
    end
end

-- A sum y = y + x reads two arrays and writes one, a norm and a copy read one and write one.
local function add_memory(parts, sizes)
    local kernels, width = C.cpl_kernels_for("cpu", C.CPL_F32), sizes.width
    for _, n in ipairs(sizes.memory) do
        local bytes = 4 * n * width
        local copies, new = products.copies(2 * bytes), products.constant
        local weight, x, y = new("f32", 1, width), {}, {}
        for i = 1, copies do x[i], y[i] = new("f32", n, width), new("f32", n, width) end
        add(parts, "memory", 3 * bytes, products.rotating(copies, function(i)
            return function() rows.accumulate(kernels, x[i], y[i], 1e-3) end
        end))
        add(parts, "memory", 2 * bytes, products.rotating(copies, function(i)
            return function() clib.check(C.cpl_tensor_copy(y[i], x[i])) end
        end))
        add(parts, "memory", 2 * bytes, products.rotating(copies, function(i)
            local p = ffi.new("cpl_rms_norm", { x = x[i].data, weight = weight.data,
                y = y[i].data, n_rows = n, width = width, x_stride = width, y_stride = width,
                eps = 1e-6 })
            return function() kernels.rms_norm(p) end
        end))
        parts[#parts].kept = { weight }
    end
end

local function add_pointwise(parts, sizes)
    for _, n in ipairs(sizes.pointwise) do
        local _, bytes = pointwise.new(n, sizes.width)
        add(parts, "pointwise", bytes, products.rotating(products.copies(bytes), function()
            return (pointwise.new(n, sizes.width))
        end))
    end
end

-- ---- exchanges ----------------------------------------------------------------------

-- Collective. Rows of one sequence from contiguous to a layout and, if it works in place, in it.
local function add_exchange(parts, comm, kind, tokens, width)
    local stream = streams.thd { lengths = { tokens } }
    local cp, rank = comm:size(), comm:rank()
    local from = layouts.contiguous(stream, { cp = cp })
    local route = routes(from, layouts.create(kind, stream, { cp = cp }))
    local plan = clib.create("cpl_plan", C.cpl_plan_destroy, 1, C.cpl_plan_create, route._ptr,
        comm._ptr, clib.dtypes.f32, width, "auto")
    local n, swaps = from:n_local(rank), comm:agree(C.cpl_plan_swaps(plan))
    local stats, row_bytes = route:stats(), 4 * width
    local call = products.rotating(products.copies(2 * n * cp * row_bytes), function()
        local x = rows.new(comm._ptr, "f32", n, width)
        local y = swaps and x or rows.new(comm._ptr, "f32", n, width)
        return function()
            x.layout = 0 -- in place the rows are the target's; here only their number matters
            clib.check(C.cpl_plan_start(plan, x, y))
            clib.check(C.cpl_plan_finish(plan))
        end
    end)
    add(parts, "exchange", stats.busiest_tokens * row_bytes, call)
    local part = parts[#parts]
    part.is_exchange, part.n_messages = true, math.ceil(stats.messages / cp)
    part.kept_bytes = swaps and 0 or (n * cp - stats.moved_tokens) / cp * row_bytes
    part.kept = { route, plan }
end

local function add_exchanges(parts, comm, sizes)
    if comm:size() < 2 then return end
    for _, tokens in ipairs(sizes.exchange) do
        for _, kind in ipairs { "mirror", "zigzag" } do
            add_exchange(parts, comm, kind, tokens * comm:size(), sizes.width)
        end
    end
end

-- ---- routes ---------------------------------------------------------------------------

local function add_routes(parts, sizes)
    for _, n in ipairs(sizes.routes) do
        local lengths = {}
        for i = 1, n do lengths[i] = 16 * (1 + i % 3) end
        local stream = streams.thd { lengths = lengths }
        local from = layouts.zigzag(stream, { cp = 8 })
        local to = layouts.contiguous(stream, { cp = 8 })
        local out, part = ffi.new "cpl_route *[1]", ffi.new "cpl_route_part"
        local function build()
            clib.check(C.cpl_route_create(from._ptr, to._ptr, out))
            clib.check(C.cpl_route_rank(out[0], 4, part))
            local n_segments = tonumber(part.n_sends + part.n_receives)
            C.cpl_route_destroy(out[0])
            return n_segments
        end
        add(parts, "route", build(), build)
        parts[#parts].kept = { from, to }
    end
end

-- ---- measuring ------------------------------------------------------------------------

-- Collective. The same number of repeats on every rank. An exchange is not repeated: what is
-- fixed in it, waiting, is measured.
local function set_repeats(parts, comm)
    local seconds = {}
    for i, part in ipairs(parts) do
        part.call()
        comm:barrier()
        local start = C.cpl_thread_clock()
        part.call()
        seconds[i] = C.cpl_thread_clock() - start
    end
    seconds = comm:max(seconds)
    for i, part in ipairs(parts) do
        local n = part.is_exchange and 4 or math.ceil(LEAST_SECONDS / math.max(seconds[i], 1e-9))
        part.repeats = math.min(n, MAX_REPEATS)
        part.name = i
        part.run = function()
            for _ = 1, part.repeats do part.call() end
        end
    end
end

local function median(list, q)
    return statistics.quantile(list, q or 0.5)
end

local function points_of(parts, wall, busy, size)
    local points = {}
    for i, part in ipairs(parts) do
        points[i] = {
            kind = part.kind, x = part.x, calls = part.calls, kept = part.kept_bytes,
            n_messages = part.n_messages,
            seconds = median(busy[i]) / size / part.repeats / (part.per_call or 1),
            wall = median(wall[i], 0.25) / part.repeats / (part.per_call or 1),
        }
    end
    return points
end

-- Collective.
local function measure(comm, payload)
    local parts, sizes = {}, payload.sizes
    if payload.kernels then
        add_products(parts, sizes)
        add_cores(parts, "attention", gqa_core, sizes.gqa, sizes.attention, sizes.spans)
        add_cores(parts, "gdn", gdn_core, sizes.gdn, sizes.delta)
        add_memory(parts, sizes)
        add_pointwise(parts, sizes)
        add_routes(parts, sizes)
    end
    add_exchanges(parts, comm, sizes)
    set_repeats(parts, comm)
    local wall, _, busy = timing.run(comm, parts, 1, payload.rounds)
    return points_of(parts, wall, busy, comm:size())
end

--- @param ptr the `cpl_comm *` of this rank
-- @tparam string payload sizes, rounds, kernels (whether those are measured, or exchanges alone)
-- @treturn string a list of { kind, x, calls, seconds (CPU of a rank), wall; of an exchange
-- n_messages, kept (bytes that stay, of a rank) }
return function(ptr, payload)
    return buffer.encode(measure(comms.wrap(ptr), buffer.decode(payload)))
end
