-- What does a balanced attention layout save, what does it cost, and where does it lose?
--
-- Six packs of documents are laid out for attention in several ways, and their hidden states are
-- really converted from contiguous, where linear attention wants them. Exact, by counting:
--   max/mean     causal work of the busiest rank over the mean
--   moved %      rows that change rank; bound %: at this imbalance no layout moves fewer
--   busiest %    the same of the rank that sends or receives most, of its rows: it sets the time
--   cross %      rows that change node, of 8 ranks each; "striped": ranks dealt over the nodes
--   gather %     keys and values that a rank fetches, of the stream: the mean; max %: the most
--   runs, tiles  per rank: runs of rows; spans of queries x ranks that hold their keys
-- Measured on this machine, ranks being threads: `sent MiB` and `convert ms`, there (in place
-- where rows are swapped in pairs, as in mirror and balanced).
--
-- `model ms` is what a layer of attention would spend beyond perfect balance on a cluster that we
-- do not have (hidden 4096, 32 heads of 256, 2 of them for K/V, bf16; 500 TFLOP/s and 46 GB/s a
-- rank, nothing overlaps): two conversions by the busiest rank, the excess work, the gather.
-- Balanced loses where it is above another row of its pack: of one document mirror is better at
-- every tolerance, and at 3 % by much, since the work that is left over costs more than all bytes;
-- of short documents contiguous is as good, which converts nothing. A loose tolerance loses
-- wherever attention is long.
local cplab = require "cplab"
local clib = require "clib"
local comms = require "cplab.comm"
local exchange = require "cplab.exchange"
local rows = require "cplab.rows"

local C = clib.C

local ROW_BYTES, KEY_BYTES, PAIR_FLOP = 2 * 4096, 2 * 2 * 2 * 256, 4 * 32 * 256
local FLOPS, BYTES = 500e12, 46e9
local WIDTH = 16

local function stream(case)
    return cplab.stream.thd { lengths = cplab.packs.draw(case.pack, case.tokens, 64, case.draw) }
end

-- "balanced 0.03", "plain 0.03" and "striped 0.03" name form and tolerance; others are kinds.
local FORMS = { balanced = {}, plain = { method = "plain" }, striped = { placement = "striped" } }

local function make_layout(name, near)
    local form, tolerance = name:match "^(%a+) ([%d.]+)$"
    local options = { cp = near:cp() }
    if not form then return cplab.layout[name](near:stream(), options) end
    for field, value in pairs(FORMS[form]) do options[field] = value end
    options.near, options.tolerance = near, tonumber(tolerance)
    return cplab.layout.balanced(near:stream(), options), options.tolerance
end

local function model_ms(layout, figures)
    local sum = 0
    for _, n in ipairs(layout:work()) do sum = sum + n end
    local excess = (figures.imbalance - 1) * sum / layout:cp() * PAIR_FLOP / FLOPS
    return 1e3 * (excess + 2 * figures.busiest_tokens * ROW_BYTES / BYTES
        + figures.gathered_max * KEY_BYTES / BYTES)
end

local function count(lab, near, layout, tolerance)
    local n, cp, f = near:stream():n_positions(), near:cp(), layout:figures { near = near }
    local bound = near:moved_bound(math.max(0, f.imbalance - 1))
    if tolerance then lab:check("imbalance", f.imbalance, 1 + tolerance) end
    lab:check("bound - moved", bound - f.moved_tokens, 0)
    lab:record {
        ["max/mean"] = f.imbalance,
        ["moved %"] = 100 * f.moved_tokens / n, ["bound %"] = 100 * bound / n,
        ["busiest %"] = 100 * f.busiest_tokens * cp / n, ["cross %"] = 100 * f.cross_tokens / n,
        ["gather %"] = 100 * f.gathered_tokens / cp / n, ["max %"] = 100 * f.gathered_max / n,
        runs = f.runs / cp, tiles = f.tiles / cp, ["model ms"] = model_ms(layout, f),
    }
    return f
end

-- Rows that carry their positions, so that each can be told from all others.
local function fill(tensor, positions)
    rows.edit(tensor._ptr, "double", function(data)
        for slot, position in ipairs(positions) do data[(slot - 1) * WIDTH] = position end
    end)
end

local function count_wrong(tensor, positions)
    local wrong = 0
    rows.look(tensor._ptr, "double", function(data)
        for slot, position in ipairs(positions) do
            if data[(slot - 1) * WIDTH] ~= position then wrong = wrong + 1 end
        end
    end)
    return wrong
end

-- The median over repetitions of the slowest rank's seconds of one conversion, and the wrong rows.
-- Of a device the host's clock says nothing: see `bench convert`.
local function measure(lab, comm, plan, near, layout)
    local here, there = near:positions(lab.rank), layout:positions(lab.rank)
    local x = cplab.tensor.zeros({ #here, WIDTH }, "f64")
    local y = plan:swaps() and x or cplab.tensor.zeros({ #there, WIDTH }, "f64")
    local times = {}
    for i = 1, lab.options.iters or lab.case.iters do
        fill(x, here)
        clib.check(C.cpl_tensor_mark(x._ptr, near._ptr, lab.rank, false))
        comm:barrier()
        local start = C.cpl_clock()
        plan:convert(x, y)
        times[i] = C.cpl_clock() - start
    end
    times = comm:max(times)
    table.sort(times)
    local seconds = not rows.is_away(y._ptr) and times[math.floor((#times + 1) / 2)] or nil
    return seconds, comm:sum({ count_wrong(y, there) })[1]
end

local function run(lab)
    local comm = comms.wrap(lab.comm)
    local near = cplab.layout.contiguous(lab.stream, { cp = lab.cp })
    local layout, tolerance = make_layout(lab.case.layout, near)
    local plan = exchange.plan(cplab.route(near, layout), comm, "f64", WIDTH)
    local seconds, wrong = measure(lab, comm, plan, near, layout)
    local sent = comm:sum({ plan:sent_bytes() })[1]
    if lab.rank > 0 then return end
    local figures = count(lab, near, layout, tolerance)
    lab:check("wrong_rows", wrong, { equals = 0 })
    lab:check("sent_bytes", sent, { equals = figures.moved_tokens * WIDTH * 8 })
    lab:record { ["sent MiB"] = sent / 2 ^ 20, ["convert ms"] = seconds and seconds * 1e3 }
end

return cplab.experiment {
    name = "balanced",
    about = "Tolerance against bytes, keys and runs of a balanced attention layout, beside others.",
    sweep = {
        order = { "pack", "cp", "layout" },
        pack = cplab.packs.names,
        cp = { 16 },
        layout = {
            "contiguous", "zigzag", "mirror", "plain 0.03", "balanced 0.002", "balanced 0.03",
            "balanced 0.1", "balanced 0.5", "striped 0.03",
        },
    },
    params = { tokens = 262144, draw = 1, iters = 3 },
    stream = stream,
    run = run,
    report = {
        "max/mean", "moved %", "bound %", "busiest %", "cross %", "gather %", "max %", "runs",
        "tiles", "sent MiB", "convert ms", "model ms", "verdict",
    },
}
