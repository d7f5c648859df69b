--- Pipeline stages: a schedule cut into pieces that run one after the other, and the layout in
-- which hidden states arrive at each.
-- Stages run here on the same CP ranks, in turn; what is studied is that a boundary cannot lie. The
-- one before hands over rows in the layout in which it left them; the one after expects a layout
-- that it works out from the cut alone, and compares it with what really arrived (`check_entry`):
-- never a value with itself. In Megatron-LM (pull requests 5664 and 6233, at the time of their
-- first review) the batch was first given the expected layout, and then compared with it.
--
-- Stages, ranks and layers count from 0, Lua lists from 1. With `virtual` chunks each pipeline rank
-- has several stages: stage k is chunk floor(k / pp) of rank k mod pp.
-- @module cplab.pipeline
-- @usage cplab.pipeline.cut(schedule, { pp = 4 })               -- as many layers each
--   cplab.pipeline.cut(schedule, { stages = { 3, 5, 4 } })      -- as listed
--   cplab.pipeline.cut(schedule, { pp = 2, virtual = 2 })       -- four stages on two ranks
local args = require "cplab.check_args"
local contract = require "cplab.contract"
local named = require "cplab.named_layouts"
local schedules = require "cplab.schedule"

local M = {}

local FIELDS = { pp = "integer?", virtual = "integer?", stages = "list?", first = "integer?",
    last = "integer?", entries = "table?" }
local WHO = "pipeline.cut"

-- ---- cutting -------------------------------------------------------------------

local function fail(level, text, ...)
    error((WHO .. ": " .. text):format(...), level + 1)
end

local function check_listed(counts, n, options, level)
    args.integers(WHO, "stages", counts, 1, nil, level + 1)
    local virtual, sum = options.virtual or 1, 0
    for _, count in ipairs(counts) do sum = sum + count end
    if options.first or options.last then
        fail(level + 1, "stages lists every count, so there is no first or last beside it")
    elseif sum ~= n then
        fail(level + 1, "%d layers in %d stages, the schedule has %d", sum, #counts, n)
    elseif options.pp and options.pp * virtual ~= #counts then
        fail(level + 1, "%d stages are listed, pp * virtual = %d", #counts, options.pp * virtual)
    elseif #counts % virtual ~= 0 then
        fail(level + 1, "%d stages, not a multiple of virtual = %d", #counts, virtual)
    end
    return counts
end

local function even(n, n_stages, what, level)
    if n < n_stages or n % n_stages ~= 0 then
        fail(level + 1, "%d layers, not a multiple of %s = %d", n, what, n_stages)
    end
    local counts = {}
    for i = 1, n_stages do counts[i] = n / n_stages end
    return counts
end

-- The first and the last stage may have counts of their own; the others share the rest.
local function with_ends(n, options, level)
    local pp, first, last = options.pp, options.first, options.last
    if (options.virtual or 1) > 1 then
        fail(level + 1, "first and last do not go with virtual = %d", options.virtual)
    end
    local n_middle = pp - (first and 1 or 0) - (last and 1 or 0)
    local rest = n - (first or 0) - (last or 0)
    if n_middle < 0 or rest < n_middle or (n_middle == 0 and rest ~= 0) then
        fail(level + 1, "first = %s and last = %s leave %d of %d layers to %d stages",
            tostring(first), tostring(last), rest, n, math.max(n_middle, 0))
    end
    local counts = n_middle == 0 and {}
        or even(rest, n_middle, "the stages that share them", level + 1)
    if first then table.insert(counts, 1, first) end
    counts[#counts + 1] = last
    return counts
end

local function counts_of(n, options, level)
    if options.stages then return (check_listed(options.stages, n, options, level + 1)) end
    if not options.pp then fail(level + 1, "give pp, how many stages, or stages, their layers") end
    if options.first or options.last then return (with_ends(n, options, level + 1)) end
    local virtual = options.virtual or 1
    return (even(n, options.pp * virtual, virtual > 1 and "pp * virtual" or "pp", level + 1))
end

--- Cuts a schedule into stages.
-- @tparam cplab.schedule|number schedule, or how many layers it has
-- @tparam table options pp (ranks of the pipeline), virtual (stages that each of them has; 1),
-- first, last (layers of the first and the last stage; the others share the rest evenly); or stages
-- (a list of the layers of each, pp * virtual of them). entries: { [stage] = a layout's name }
-- where hidden states are to arrive otherwise than by the rule of entry_layout
-- @tparam ?number level
-- @treturn {table,...} stages { index, pp_rank, virtual, first, count, entry (if given) }, in the
-- order in which they run; first is the stage's first layer
-- @raise counts that do not divide or do not add up; a stage that is not there; unknown layouts
function M.cut(schedule, options, level)
    level = (level or 1) + 1
    args.fields(WHO, options, FIELDS, level)
    for _, name in ipairs { "pp", "virtual", "first", "last" } do
        if options[name] then args.integer(WHO, name, options[name], 1, nil, level) end
    end
    local n = schedules.is(schedule) and schedule:count() or schedule
    args.integer(WHO, "the number of layers", n, 1, nil, level)
    local counts = counts_of(n, options, level)
    local pp, at, stages = #counts / (options.virtual or 1), 0, {}
    for i, count in ipairs(counts) do
        stages[i] = { index = i - 1, pp_rank = (i - 1) % pp, virtual = math.floor((i - 1) / pp),
            first = at, count = count }
        at = at + count
    end
    for index, name in pairs(options.entries or {}) do
        args.integer(WHO, "a stage of entries", index, 1, #stages - 1, level)
        stages[index + 1].entry = named.check(WHO, name, level)
    end
    return stages
end

--- The stage of a pipeline rank.
-- @tparam {table,...} stages of M.cut
-- @tparam number pp_rank
-- @tparam ?number virtual which of its stages; 0
-- @raise a rank or chunk out of range
function M.find(stages, pp_rank, virtual)
    args.value("pipeline.find", "stages", stages, "list", 2)
    local last = stages[#stages]
    if not last then error("pipeline.find: there are no stages", 2) end
    args.integer("pipeline.find", "pp_rank", pp_rank, 0, last.pp_rank, 2)
    args.integer("pipeline.find", "virtual", virtual or 0, 0, last.virtual, 2)
    return stages[(virtual or 0) * (last.pp_rank + 1) + pp_rank + 1]
end

--- "stage 1 (layers 3-7)".
function M.describe(stage)
    local last = stage.first + stage.count - 1
    return stage.count == 1 and ("stage %d (layer %d)"):format(stage.index, last)
        or ("stage %d (layers %d-%d)"):format(stage.index, stage.first, last)
end

-- ---- where hidden states arrive --------------------------------------------------

--- The layouts that the layers of a schedule want, where each converts the residual stream to it:
-- attention one that balances causal work, the delta rule contiguous; false for layers that take
-- any (a2a, headwise).
-- @tparam cplab.schedule schedule whose layers say their cp_mode, or have the default of their kind
-- @tparam ?table layouts { attention = "zigzag", gdn = "contiguous" }
-- @treturn {string|false,...}
-- @raise unknown layouts
function M.preferences(schedule, layouts)
    if not schedules.is(schedule) then
        error(("pipeline.preferences: the first argument must be a schedule (got %s)"):format(
            args.show(schedule)), 2)
    end
    layouts = args.fields("pipeline.preferences", layouts or {},
        { attention = "string?", gdn = "string?" }, 2)
    for _, name in pairs(layouts) do named.check("pipeline.preferences", name, 2) end
    local list = {}
    for i, layer in ipairs(schedule.layers) do
        local asked = layouts[schedules.is_attention(layer.kind) and "attention" or layer.kind]
        local preferred = contract.preferred(layer.kind, layer.cp_mode)
        list[i] = preferred and (asked or preferred) or false
    end
    return list
end

--- The layout in which hidden states arrive at a stage: the one that the last layer before it wants
-- which wants any; else the first in it or behind it; else none, and it must be given.
-- That is where the stage before left them, so both work out the same (facts: Megatron-LM pull
-- request 5664, the rule of the stage entry).
-- @tparam {string|false,...} preferences of all layers, false for those that take any
-- @tparam number first the stage's first layer, from 0; how many there are for what leaves the last
-- @treturn ?string
-- @raise a layer out of range
function M.entry_layout(preferences, first)
    args.value("pipeline.entry_layout", "preferences", preferences, "list", 2)
    for _, name in ipairs(preferences) do
        if name then named.check("pipeline.entry_layout", name, 2) end
    end
    args.integer("pipeline.entry_layout", "first", first, 0, #preferences, 2)
    for i = first, 1, -1 do
        if preferences[i] then return preferences[i] end
    end
    for i = first + 1, #preferences do
        if preferences[i] then return preferences[i] end
    end
    return nil
end

--- Gives each stage of an assignment the layout in which hidden states arrive: as listed, else by
-- the rule above from the homes of the layers; the first has the assignment's own.
-- @tparam table assignment of cplab.assignment.fit
-- @tparam {table,...} stages of M.cut
-- @treturn table a copy of the assignment, with `stages`
function M.place(assignment, stages)
    local placed, lives = {}, {}
    for name, value in pairs(assignment) do placed[name] = value end
    for i, entry in ipairs(assignment.layers) do lives[i] = entry.live end
    placed.stages = {}
    for i, stage in ipairs(stages) do
        local copy = {}
        for name, value in pairs(stage) do copy[name] = value end
        copy.entry = i == 1 and assignment.entry
            or stage.entry or M.entry_layout(lives, stage.first)
        placed.stages[i] = copy
    end
    return placed
end

--- Checks what arrived at a stage against what it expects.
-- @tparam string owner whose entry it is
-- @tparam ?string expected the layout that the cut says
-- @tparam ?string got the layout that the rows carry
-- @tparam number cp at 1 all layouts are one
-- @tparam ?number level
-- @raise where they differ (owner and both are named), or where none is known
function M.check_entry(owner, expected, got, cp, level)
    if cp == 1 then return end
    if not expected or not got then
        error(("pipeline: %s: the layout that %s is unknown, and at cp %d it matters"):format(owner,
            expected and "arrived" or "is expected", cp), (level or 1) + 1)
    elseif expected ~= got then
        error(("pipeline: %s expects hidden states in %s, but they arrived in %s"):format(owner,
            expected, got), (level or 1) + 1)
    end
end

return M
