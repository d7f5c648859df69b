--- The command `bench plan`: what it costs to plan the layouts of a stack, on one rank.
-- Per row a stream of log-normal documents and a hybrid of 96 layers (GQA:GDN 1:3) of the sizes of
-- the 397B proxy, priced on H100 nodes with all candidates and modes. The time runs from a stream
-- of which nothing is known to the plan: layouts, routes, counts and the search. It is of this
-- thread's CPU, the median and the least of the repetitions; its parts are of the median one. A row
-- is printed only if its check held: the plan costs what its choices cost, and no fixed policy is
-- cheaper.
-- @module cplab.bench_plan
local assignments = require "cplab.assignment"
local clib = require "clib"
local costs = require "cplab.cost"
local json = require "cplab.json"
local models = require "cplab.model"
local packs = require "cplab.packs"
local planner = require "cplab.planner"
local policies = require "cplab.policy"
local streams = require "cplab.stream"

local C = clib.C

local M = {}

local ROWS = { { 1, 8 }, { 1000, 8 }, { 1, 64 }, { 100, 64 }, { 1000, 64 } }
local N_LAYERS, CLUSTER = 96, "h100"
-- What each method of the prices is counted as.
local PART_OF = { convert = "routes", mixer = "counts", rest = "counts", ends = "counts",
    modes = "counts" }

-- The first n of a pack of short documents, cut in units that every layout divides.
local function stream_of(n_sequences, cp)
    local lengths, unit = {}, 2 * cp
    local drawn = packs.draw("log-normal 1k", n_sequences * math.max(2048, 2 * unit), unit, 1)
    for i = 1, n_sequences do lengths[i] = drawn[i] or unit end
    if n_sequences == 1 then lengths[1] = 2 ^ 20 end
    return streams.thd { lengths = lengths }
end

-- Prices that note how long each question takes.
local function watched(prices, spent)
    local face = setmetatable({}, { __index = prices })
    for name, part in pairs(PART_OF) do
        face[name] = function(_, ...)
            local start = C.cpl_thread_clock()
            local seconds, detail = prices[name](prices, ...)
            spent[part] = spent[part] + C.cpl_thread_clock() - start
            return seconds, detail
        end
    end
    return face
end

-- One repetition: what was spent on what, in seconds, the plan and its prices.
local function plan_once(model, stream, cp)
    collectgarbage()
    local spent = { layouts = 0, routes = 0, counts = 0 }
    local start = C.cpl_thread_clock()
    local prices = costs.new { cluster = CLUSTER, model = model, stream = stream, cp = cp,
        dtype = "bf16" }
    spent.layouts = C.cpl_thread_clock() - start
    local plan = planner.plan(watched(prices, spent))
    spent.all = C.cpl_thread_clock() - start
    spent.search = spent.all - spent.layouts - spent.routes - spent.counts
    return spent, plan, prices
end

-- Whether a plan costs what it says, and no fixed policy less.
local function is_right(model, prices, plan)
    local slack = 1e-9 * plan.seconds
    if math.abs(planner.price(prices, plan.assignment) - plan.seconds) > slack then return false end
    for name in pairs(policies.triples) do
        local fixed = assignments.from_policy(policies.resolve(name), model:layers())
        local seconds = planner.price(prices, fixed)
        if seconds and seconds < plan.seconds - slack then return false end
    end
    return true
end

local function row_of(model, n_sequences, cp, repetitions)
    local stream, list = stream_of(n_sequences, cp), {}
    local row = { sequences = n_sequences, cp = cp, layers = N_LAYERS }
    for i = 1, repetitions do
        local plan, prices
        list[i], plan, prices = plan_once(model, stream, cp)
        if not is_right(model, prices, plan) then return nil end
        row.layouts, row.step_ms = #prices.layouts, plan.seconds * 1e3
    end
    table.sort(list, function(a, b) return a.all < b.all end)
    local middle = list[math.ceil(repetitions / 2)]
    row.median_ms, row.min_ms = middle.all * 1e3, list[1].all * 1e3
    for _, part in ipairs { "layouts", "routes", "counts", "search" } do
        row[part .. "_ms"] = middle[part] * 1e3
    end
    return row
end

local NAMES = { "sequences", "cp", "layers", "layouts", "median_ms", "min_ms", "layouts_ms",
    "routes_ms", "counts_ms", "search_ms", "step_ms" }
local HEADER = "sequences    cp layers layouts  median ms     min ms | layouts ms  routes ms  "
    .. "counts ms  search ms | planned step ms"
local FORMAT = "%9d %5d %6d %7d %10.3f %10.3f | %10.3f %10.3f %10.3f %10.3f | %15.3f"

local function show(row, as_json)
    if as_json then return json.encode(row, NAMES) end
    local values = {}
    for i, name in ipairs(NAMES) do values[i] = row[name] end
    return FORMAT:format(unpack(values))
end

--- Carries the command out.
-- @tparam table arguments json, iters (repetitions, 7)
-- @treturn number exit status: 1 where a check failed
function M.run(arguments)
    local model = models.qwen35_397b_proxy { layers = N_LAYERS, policy = "auto" }
    if not arguments.json then io.stdout:write(HEADER, "\n") end
    for _, case in ipairs(ROWS) do
        local row = row_of(model, case[1], case[2], arguments.iters or 7)
        if not row then
            return 1, ("bench plan: %d sequences, cp %d: the plan is not what its choices cost, "
                .. "or a fixed policy is cheaper"):format(case[1], case[2])
        end
        io.stdout:write(show(row, arguments.json), "\n")
    end
    return 0
end

return M
