-- How much of a step do layout conversions take, and what do better layouts and routes save?
--
-- The ladder of the reference system, and ours beside it. It began with a model that lives in
-- zigzag, converts every GDN layer to contiguous and back, and builds the route inside each step
-- ("lazy zigzag"); then routes were built beforehand ("zigzag"); then the model lived in contiguous
-- and only attention converts ("contiguous"). Ours: attention in mirror, which swaps half a shard
-- in place, in balanced, which swaps the tails of documents, GDN in zigzag by the chain of states
-- ("native"), and what the planner chooses ("auto"). One document, and documents packed together.
--
--   alone ms      all conversions of a step, both passes, each by itself: CPU time of the rank that
--                 has most of it, which other programs disturb little
--   / zigzag      the same over that of zigzag with prebuilt routes, measured in turn with it
--   / contiguous  the same over that of contiguous
--   convert ms    conversions within a step: what waits for other ranks' work is in it
--   step / best   the step over the best of the fixed policies, all in turn (auto only); busy /
--                 best: the same of the CPU time of all ranks
--   routes ms     building the routes that a step builds itself: the price of lazy routes here
--   on H100 ms    what they cost there in waiting: the host copies the index of rows and the split
--                 sizes of every conversion from the device, and waits each time; all passes
-- Ranks are threads that share this machine's cores, so its times show what moving costs, not what
-- a cluster gains. Every case proves first that outputs and gradients are those of one rank.
local cplab = require "cplab"
local clib = require "clib"
local comms = require "cplab.comm"
local exchange = require "cplab.exchange"
local measure = require "cplab.measure"
local stacks = require "cplab.stack"

local C = clib.C

local N_LAYERS, HIDDEN = 8, 256
local BOUNDS = { f64 = 1e-12, f32 = 1e-4 }

-- Policy and routes of a row.
local VARIANTS = {
    ["lazy zigzag"] = { policy = "zigzag", routes = "lazy" },
    zigzag = { policy = "zigzag" }, contiguous = { policy = "contiguous" },
    mirror = { policy = "mirror" }, balanced = { policy = "balanced" },
    native = { policy = "native" }, auto = { policy = "auto" },
}
local FIXED = { "zigzag", "contiguous", "mirror", "balanced", "native" }

local function stream(case)
    return cplab.stream.thd { lengths = cplab.packs.draw(case.pack, case.tokens, 64, case.draw) }
end

local function model(case)
    local variant = VARIANTS[case.layout]
    return cplab.model {
        schedule = cplab.schedule.ratio(case.ratio, N_LAYERS), policy = variant.policy,
        routes = variant.routes, hidden = HIDDEN, vocab = 256, dtype = case.dtype,
        gqa = { heads = 4, kv_heads = 2, head_dim = 32 },
        gdn = { key_heads = 2, value_heads = 4, key_dim = 32, value_dim = 32, conv = 4,
            chunk = 32 },
        mlp = { width = 256 },
    }
end

-- ---- the same numbers --------------------------------------------------------------------

local function check_step(lab)
    local m = lab:step { backward = true, reference = true, trace = true }
    local bound, is_lazy = BOUNDS[lab.case.dtype], lab.model.routes == "lazy"
    lab:check("parity_fwd", m.parity_fwd, bound)
    lab:check("parity_grad", m.parity_grad, bound)
    lab:check("wrong_rows", m.wrong_rows, { equals = 0 })
    lab:check("routes_built_in_step", m.routes_built_in_step, { equals = is_lazy and 1 or 0 })
    lab:check("conversions_bwd", m.conversions_bwd, { equals = m.conversions_fwd })
end

local function median(list)
    table.sort(list)
    return list[math.floor((#list + 1) / 2)]
end

-- ---- steps, in turn ------------------------------------------------------------------------

local function make_stack(lab, changes)
    return stacks.new { model = lab.model:with(changes), stream = lab.stream, comm = lab.comm,
        cp = lab.cp, tp = 1 }
end

-- Ratios of whole steps need more of them than times of conversions.
local function n_iterations(lab)
    return (lab.options.iters or lab.case.iters) * (lab.model.policy.is_auto and 3 or 1)
end

-- CPU time of all ranks in each iteration.
local function busy_of(gathered)
    local list = {}
    for i, ranks in ipairs(gathered) do
        list[i] = 0
        for _, record in ipairs(ranks) do list[i] = list[i] + record.busy end
    end
    return list
end

-- Runs steps of stacks in turn. Returns of each its times, as of cplab.measure, the
-- milliseconds of its steps, and their CPU time.
local function measure_steps(lab, list)
    local records, times, samples, busy = {}, {}, {}, {}
    for k, stack in ipairs(list) do
        stack:step { backward = true }
        records[k] = {}
    end
    for i = 1, n_iterations(lab) do
        for k, stack in ipairs(list) do
            records[k][i] = measure.iteration(stack, function()
                return stack:step { backward = true }
            end)
        end
    end
    for k in ipairs(list) do
        local gathered = measure.gather(lab.comm, records[k])
        times[k], samples[k] = measure.times(gathered)
        busy[k] = busy_of(gathered)
    end
    return times, samples, busy
end

-- ---- conversions alone -----------------------------------------------------------------------

-- A conversion of hidden states that can be run by itself; running it gives CPU seconds.
local function make_move(lab, comm, from, to)
    local plan = exchange.plan(cplab.route(from, to), comm, lab.case.dtype, HIDDEN)
    local x = cplab.tensor.zeros({ from:n_local(lab.rank), HIDDEN }, lab.case.dtype)
    local y = plan:swaps() and x
        or cplab.tensor.zeros({ to:n_local(lab.rank), HIDDEN }, lab.case.dtype)
    return function()
        clib.check(C.cpl_tensor_mark(x._ptr, from._ptr, lab.rank, false))
        comm:barrier()
        local start = C.cpl_thread_clock()
        plan:convert(x, y)
        return C.cpl_thread_clock() - start
    end
end

-- The conversions of a stack's step by pairs of layouts, there and back as the gradients go.
local function moves_of(lab, comm, stack)
    local moves, known = {}, {}
    local layouts = stack.layouts.shard
    local function add(from, to)
        local key = from .. " " .. to
        if not known[key] then
            known[key] = { n = 0, run = make_move(lab, comm, layouts[from], layouts[to]) }
            moves[#moves + 1] = known[key]
        end
        known[key].n = known[key].n + 1
    end
    for _, step in ipairs(stack.model:steps(stack.assignment, { cp = lab.cp, tp = 1 })) do
        if step.op == "convert" then
            add(step.from, step.to)
            add(step.to, step.from)
        end
    end
    return moves
end

-- Milliseconds of all conversions of a step of each stack, in turn.
local function measure_moves(lab, comm, list)
    local all, sums, spent = {}, {}, {}
    for k, stack in ipairs(list) do all[k], sums[k] = moves_of(lab, comm, stack), {} end
    for i = 1, 3 * n_iterations(lab) do
        for k, moves in ipairs(all) do
            local times, sum = {}, 0
            for m, move in ipairs(moves) do times[m] = move.run() end
            times = #times > 0 and comm:max(times) or times
            for m, move in ipairs(moves) do sum = sum + move.n * times[m] end
            sums[k][i] = sum * 1e3
        end
    end
    for k in ipairs(list) do spent[k] = median(sums[k]) end
    return spent
end

-- ---- routes ------------------------------------------------------------------------------------

-- Milliseconds that this rank's thread spends on building the routes that a step builds itself.
local function route_ms(lab, stack)
    local layouts, times = stack.layouts.shard, {}
    if lab.model.routes ~= "lazy" then return 0 end
    for i = 1, 3 * n_iterations(lab) do
        local start = C.cpl_thread_clock()
        local route = cplab.route(layouts.zigzag, layouts.contiguous)
        route:sends(lab.rank)
        times[i] = (C.cpl_thread_clock() - start) * 1e3
    end
    return median(times)
end

-- What waiting for the device costs in a step on H100 nodes.
local function waiting_ms(lab, conversions)
    local host = cplab.cluster.load("h100").host
    local waits = lab.model.routes == "lazy" and host.lazy_syncs or host.prebuilt_syncs
    return 2 * conversions * waits * host.sync * 1e3
end

-- The first stack's time over that of the best other one: the median of ratios of steps side by
-- side, so that what else the machine does meanwhile weighs on both.
local function over_the_best(samples)
    local best, least = nil, math.huge
    for k = 2, #samples do
        local time = median { unpack(samples[k]) }
        if time < least then best, least = samples[k], time end
    end
    local ratios = {}
    for i, time in ipairs(samples[1]) do ratios[i] = time / best[i] end
    return median(ratios)
end

-- To three digits.
local function short(value)
    return value and tonumber(("%.3g"):format(value))
end

local function run(lab)
    check_step(lab)
    local comm, list = comms.wrap(lab.comm), { make_stack(lab, {}) }
    local is_auto = lab.model.policy.is_auto
    for _, name in ipairs(is_auto and FIXED or { "zigzag", "contiguous" }) do
        list[#list + 1] = make_stack(lab, { policy = name, routes = "prebuilt" })
    end
    local times, samples, busy = measure_steps(lab, is_auto and list or { list[1] })
    local alone = measure_moves(lab, comm, list)
    local building = comm:max({ route_ms(lab, list[1]) })[1]
    if lab.rank > 0 then return end
    lab:record {
        ["step ms"] = short(times[1].step_ms), ["convert ms"] = short(times[1].convert_ms),
        ["alone ms"] = short(alone[1]), ["/ zigzag"] = short(alone[1] / alone[2]),
        ["/ contiguous"] = short(alone[1] / alone[3]),
        ["step / best"] = is_auto and short(over_the_best(samples)) or nil,
        ["busy / best"] = is_auto and short(over_the_best(busy)) or nil,
        ["routes ms"] = short(building),
        ["on H100 ms"] = short(waiting_ms(lab, lab.metrics.conversions_fwd)),
    }
end

return cplab.experiment {
    name = "fixed_layouts",
    about = "What conversions cost under fixed layouts, lazy and prebuilt routes, and the planner.",
    sweep = {
        order = { "pack", "ratio", "layout", "cp" },
        pack = { "one", "log-normal 1k" },
        ratio = { "1:3" },
        layout = { "lazy zigzag", "zigzag", "contiguous", "mirror", "balanced", "native", "auto" },
        cp = { 4 },
    },
    params = { tokens = 2048, draw = 4, iters = 5, dtype = "f32" },
    stream = stream,
    model = model,
    run = run,
    report = {
        "conversions", "moved_mib", "alone ms", "/ zigzag", "/ contiguous", "convert ms", "step ms",
        "step / best", "busy / best", "routes ms", "on H100 ms", "imbalance", "parity_fwd",
        "parity_grad", "verdict",
    },
}
