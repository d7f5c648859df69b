--- An assignment: for each layer of one model the layouts and the CP mode that it runs with.
-- A layer has a *home*, `live`: the layout of the residual stream while its mixer branch and its
-- feed-forward branch run. A mixer may run elsewhere (`mixer`): it is then wrapped in two
-- conversions, x = x + back(mixer(to(norm(x)))). Where the homes of neighbours differ the residual
-- stream itself is converted, once; so layers that live alike make one run, and nothing is
-- converted inside it. Tokens and embedding live in `entry`; final norm, head, labels, loss and the
-- depths of MTP in `exit`.
--
-- A policy of three layouts is the assignment in which all homes are one (from_policy). Layers
-- count from 0 in messages and steps, from 1 in lists.
-- @module cplab.assignment
-- @usage local m = cplab.model { schedule = cplab.schedule.pattern("GG*", 3), policy = {
--   entry = "contiguous", exit = "contiguous", layers = { { live = "contiguous" },
--     { live = "contiguous" }, { live = "mirror", cp_mode = "p2p" } } }, ... }
local args = require "cplab.check_args"
local named = require "cplab.named_layouts"
local schedules = require "cplab.schedule"

local M = {}

local FIELDS = { name = "string?", entry = "string", exit = "string", near = "string?",
    layers = "list", is_triple = "boolean?" }
local LAYER = { live = "string", mixer = "string?", cp_mode = "string?", layer = "table?" }

-- ---- making --------------------------------------------------------------------

--- Whether a value has the form of an assignment.
function M.is(value)
    return type(value) == "table" and value.layers ~= nil
end

--- An assignment as a user writes it, checked as far as it goes without a model. What M.fit and
-- M.from_policy give will do too; what they added is made anew.
-- @tparam table t entry, exit (names of layouts), layers: a list of { live =, mixer = (default:
-- live), cp_mode = (default: the schedule's) }; name (of the policy, in reports; "assignment");
-- near (the layout that balanced ones stay near; contiguous)
-- @tparam ?number level
-- @treturn table a copy
-- @raise unknown or missing fields, unknown layouts
function M.new(t, level)
    level = (level or 1) + 1
    local who = "policy"
    args.fields(who, t, FIELDS, level)
    local layers = {}
    for i, entry in ipairs(t.layers) do
        local of_layer = ("policy.layers[%d]"):format(i)
        args.fields(of_layer, entry, LAYER, level)
        local live = named.check(of_layer, entry.live, level)
        layers[i] = { live = live, cp_mode = entry.cp_mode, layer = entry.layer,
            mixer = entry.mixer and named.check(of_layer, entry.mixer, level) or live }
    end
    return { name = t.name or "assignment", entry = named.check(who, t.entry, level),
        exit = named.check(who, t.exit, level),
        near = t.near and named.check(who, t.near, level) or "contiguous", layers = layers }
end

-- A layer of a schedule with the CP mode that an assignment gives it.
local function with_mode(layer, cp_mode)
    local copy = {}
    for name, value in pairs(layer) do copy[name] = value end
    if cp_mode and cp_mode ~= layer.cp_mode then
        copy.cp_mode = cp_mode
        copy.a2a = cp_mode == "a2a+p2p" and layer.a2a or nil
    end
    return copy
end

local function check_layer(i, entry, layer, level)
    local what = ("policy: layer %d (%s %s)"):format(i - 1, layer.kind, layer.cp_mode)
    if schedules.takes_any_layout(layer.kind, layer.cp_mode) and entry.mixer ~= entry.live then
        error(("%s takes any layout, so it runs where it lives: mixer is %s, live is %s"):format(
            what, entry.mixer, entry.live), level + 1)
    end
end

--- The assignment for the layers of a model: each entry with its `layer` (kind, cp_mode, window,
-- a2a) as it runs.
-- @tparam table t of M.new, or as a user writes it
-- @tparam table model with layers() and schedule
-- @tparam ?number level
-- @treturn table name, entry, exit, near, layers { live, mixer, cp_mode, layer }
-- @raise another number of layers; layers of another kind; a CP mode that the kind has not; a mixer
-- that takes any layout, but is to run away from its home; a depth of MTP that does not live in the
-- exit layout
function M.fit(t, model, level)
    level = (level or 1) + 1
    local fitted, layers = M.new(t, level), model:layers()
    local n = model.schedule:count()
    if #fitted.layers ~= #layers then
        error(("policy: %d layers are assigned, the model has %d (%d of the schedule, %d of MTP)")
            :format(#fitted.layers, #layers, n, #layers - n), level)
    end
    for i, entry in ipairs(fitted.layers) do
        local kind, was = layers[i].kind, entry.layer
        if was and was.kind ~= kind then
            error(("policy: layer %d is a %s layer in the model, and %s in the assignment"):format(
                i - 1, kind, args.show(was.kind)), level)
        end
        if entry.cp_mode then
            args.one_of("policy", "cp_mode of a " .. kind .. " layer", entry.cp_mode,
                schedules.cp_modes(kind), level)
        end
        entry.layer = with_mode(layers[i], entry.cp_mode)
        entry.cp_mode = entry.layer.cp_mode
        check_layer(i, entry, entry.layer, level)
        if i > n and entry.live ~= fitted.exit then
            error(("policy: layer %d is of MTP, which lives in the exit layout %s, not in %s")
                :format(i - 1, fitted.exit, entry.live), level)
        end
    end
    return fitted
end

--- Which of a triple's layouts a layer runs in: that of its kind, MLA in that of GQA, or where the
-- model lives if it takes any (a2a, headwise): nothing is planned around those.
-- @tparam table layer of a schedule: kind, cp_mode
-- @treturn string "live", "gqa" or "gdn"
function M.where(layer)
    if schedules.takes_any_layout(layer.kind, layer.cp_mode) then return "live" end
    return schedules.is_attention(layer.kind) and "gqa" or layer.kind
end

--- A policy of three layouts as an assignment: all lives where the model lives.
-- @tparam table policy { name =, live =, gqa =, gdn = } of cplab.policy.resolve
-- @tparam {table,...} layers kind, cp_mode, ...
-- @treturn table as M.fit
function M.from_policy(policy, layers)
    local live, entries = policy.live, {}
    for i, layer in ipairs(layers) do
        entries[i] = { live = live, mixer = policy[M.where(layer)], cp_mode = layer.cp_mode,
            layer = layer }
    end
    return { name = policy.name, entry = live, exit = live, near = live, layers = entries,
        is_triple = true }
end

--- An assignment, as a user would write it, in which each layer lives in the layout that it wants:
-- the residual stream is converted where the next layer wants another one, and nothing is converted
-- around mixers. Layers that want none live where the stream happens to be.
-- @tparam {string|false,...} preferences by layer, as cplab.pipeline.preferences gives them
-- @tparam string entry
-- @tparam ?string exit default: entry
-- @treturn table
function M.coalesced(preferences, entry, exit)
    args.value("assignment.coalesced", "preferences", preferences, "list", 2)
    local layers, at = {}, entry
    for i, wanted in ipairs(preferences) do
        at = wanted or at
        layers[i] = { live = at }
    end
    return (M.new({ name = "coalesced", entry = entry, exit = exit or entry, layers = layers }, 2))
end

-- ---- on a stream ---------------------------------------------------------------

--- The layouts of an assignment on a stream, by name; equal names share one object.
-- Balanced layouts stay near `near`.
-- @tparam table assignment of M.fit
-- @tparam table stream
-- @tparam table group { cp =, tp = }
-- @tparam ?table balance options of balanced layouts, see cplab.named_layouts
-- @treturn table { live =, shard = }: by name, the homes over cp x tp ranks, and all layouts over
-- the CP ranks alone. With tp 1 a home and its shard are one object.
function M.layouts(assignment, stream, group, balance)
    local near = assignment.near
    local over_cp = named.maker(stream, { cp = group.cp, tp = 1 }, near, balance)
    local over_all = (group.tp or 1) == 1 and over_cp
        or named.maker(stream, group, near, balance)
    local layouts = { live = {}, shard = {} }
    local function add_home(name)
        layouts.live[name], layouts.shard[name] = over_all(name), over_cp(name)
    end
    add_home(assignment.entry)
    for _, entry in ipairs(assignment.layers) do
        add_home(entry.live)
        layouts.shard[entry.mixer] = over_cp(entry.mixer)
    end
    for _, stage in ipairs(assignment.stages or {}) do add_home(stage.entry) end
    add_home(assignment.exit)
    return layouts
end

-- ---- steps ---------------------------------------------------------------------

-- A branch with what brings its rows to where it runs, and back. With tp > 1 each rank has a window
-- of the rows, and needs the whole shard: a conversion brings it in the same exchange, unless it is
-- composed.
local function surround(add, split, live, step)
    local converts = split.cp > 1 and step.layout ~= live
    local gathers = split.tp > 1 and (split.composed or not converts)
    local i = step.layer
    if gathers then add { op = "gather", layer = i, layout = live } end
    if converts then add { op = "convert", layer = i, from = live, to = step.layout } end
    add(step)
    if converts then
        add { op = "convert", layer = i, from = step.layout, to = live, back = true }
    end
    if gathers then add { op = "gather", layer = i, layout = live, back = true } end
end

--- The steps of a forward pass, in order: { op =, layer =, ... } with op "convert", "gather",
-- "mixer", and "mlp" or "moe".
-- A convert step names the layouts that it goes between; with `residual` it moves the residual
-- stream to the home of its layer (or, after the last, to the exit layout; where the layer begins a
-- pipeline stage, first to the stage's entry). At cp 1 there is nothing to convert. With tp > 1 a
-- gather step brings each rank the whole shard of its CP rank, or back the sum of what the tp ranks
-- made; a conversion of a branch does that in the same exchange, unless it is composed. The
-- residual stream goes from windows to windows, in one exchange.
-- @tparam table assignment of M.fit or M.from_policy
-- @tparam number cp
-- @tparam function ffn of a layer, from 0: "mlp", "moe" or nil
-- @tparam ?table split tp (1), composed (false)
function M.steps(assignment, cp, ffn, split)
    local steps, at = {}, assignment.entry
    split = { cp = cp, tp = split and split.tp or 1, composed = split and split.composed }
    local function add(step)
        steps[#steps + 1] = step
    end
    local function go_to(live, i)
        if cp > 1 and live ~= at then
            add { op = "convert", layer = i, from = at, to = live, residual = true }
        end
        at = live
    end
    local handed = {} -- the layouts of stages, by their first layer
    for _, stage in ipairs(assignment.stages or {}) do handed[stage.first] = stage.entry end
    for i, entry in ipairs(assignment.layers) do
        go_to(handed[i - 1] or at, i - 1)
        go_to(entry.live, i - 1)
        surround(add, split, at,
            { op = "mixer", layer = i - 1, kind = entry.layer.kind, layout = entry.mixer })
        if ffn(i - 1) then
            surround(add, split, at, { op = ffn(i - 1), layer = i - 1, layout = at })
        end
    end
    go_to(assignment.exit, #assignment.layers)
    return steps
end

-- ---- in words ------------------------------------------------------------------

-- "GDN chunkwise in contiguous", "GQA gather in mirror, converted around".
local function mixer_text(entry)
    return ("%s %s in %s%s"):format(entry.layer.kind:upper(), entry.layer.cp_mode, entry.mixer,
        entry.mixer ~= entry.live and ", converted around" or "")
end

-- The different texts of the mixers of a run, in order.
local function mixers_of(assignment, first, last)
    local texts, seen = {}, {}
    for i = first, last do
        local text = mixer_text(assignment.layers[i])
        if not seen[text] then texts[#texts + 1], seen[text] = text, true end
    end
    return table.concat(texts, "; ")
end

-- The last of a run: layers that live alike, and whose mixers do the same for their kind.
local function last_of_run(layers, first)
    local by_kind = {}
    for i = first, #layers do
        local entry = layers[i]
        local kind, text = entry.layer.kind, mixer_text(entry)
        if entry.live ~= layers[first].live or (by_kind[kind] or text) ~= text then
            return i - 1
        end
        by_kind[kind] = text
    end
    return #layers
end

--- Lines that say what runs where, one for each run of layers: "layers 0-2 live contiguous: GDN
-- chunkwise in contiguous".
-- @tparam table assignment of M.fit
-- @treturn {string,...}
function M.describe(assignment)
    local lines, layers, first = {}, assignment.layers, 1
    lines[1] = "tokens and embedding live " .. assignment.entry
    while first <= #layers do
        local last = last_of_run(layers, first)
        local who = first == last and ("layer %d lives"):format(first - 1)
            or ("layers %d-%d live"):format(first - 1, last - 1)
        lines[#lines + 1] = ("%s %s: %s"):format(who, layers[first].live,
            mixers_of(assignment, first, last))
        first = last + 1
    end
    lines[#lines + 1] = "head, labels and loss live " .. assignment.exit
    return lines
end

return M
