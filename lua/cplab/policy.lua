--- A policy: three layouts, and how a schedule becomes steps under them.
-- The three say where the model lives (residual stream, norms, MLP, loss), where GQA runs
-- and where GDN runs. A mixer that runs elsewhere is wrapped in two conversions,
-- x = x + back(mixer(to(norm(x)))); fixed policies never coalesce them.
-- @module cplab.policy
local args = require "cplab.check_args"
local layout = require "cplab.layout"
local schedules = require "cplab.schedule"

local M = {}

--- Names and triples: where the model lives, where GQA runs, where GDN runs.
M.triples = {
    zigzag = { "zigzag", "zigzag", "contiguous" },
    contiguous = { "contiguous", "zigzag", "contiguous" },
    mirror = { "contiguous", "mirror", "contiguous" },
    balanced = { "contiguous", "balanced", "contiguous" },
    native = { "zigzag", "zigzag", "zigzag" },
}
M.names = { "zigzag", "contiguous", "mirror", "balanced", "native" }

--- The layouts that a triple may name: those that follow from stream and group; balanced stays
-- near to where the model lives.
M.layout_names = { "contiguous", "zigzag", "mirror", "balanced", "snake", "striped" }

local BLOCK = 64

--- The policy of a name or of a triple of layout names.
-- @treturn table { name =, live =, gqa =, gdn = }, layout names
-- @raise an unknown policy or layout, with the nearest name
function M.resolve(policy, level)
    level = (level or 1) + 1
    local triple = policy
    if type(policy) == "string" then
        triple = M.triples[policy]
        if not triple then
            args.unknown("policy", "policy", policy, M.names, level)
        end
    elseif type(policy) ~= "table" or #policy ~= 3 then
        error("policy: expected a name or three layouts { model, gqa, gdn }", level)
    end
    for _, name in ipairs(triple) do
        args.one_of("policy", "layout", name, M.layout_names, level)
    end
    return {
        name = type(policy) == "string" and policy or table.concat(triple, "/"),
        live = triple[1],
        gqa = triple[2],
        gdn = triple[3],
    }
end

-- The largest power of two up to 64 that divides every sequence.
local function fitting_block(stream)
    local block = BLOCK
    for i = 0, stream:n_sequences() - 1 do
        while stream:sequence(i).padded % block ~= 0 do block = block / 2 end
    end
    return block
end

local function balanced_options(stream, group, near, balance)
    local options = { cp = group.cp, tp = group.tp, near = near }
    for name, value in pairs(balance or {}) do options[name] = value end
    options.block = options.block or fitting_block(stream)
    return options
end

-- Makes the layouts of one group by name, each once.
local function makers(policy, stream, group, balance)
    local made = {}
    local function get(name)
        local options = group
        if name == "balanced" and not made[name] then
            local near = policy.live == "balanced" and "contiguous" or policy.live
            options = balanced_options(stream, group, get(near), balance)
        end
        made[name] = made[name] or layout[name](stream, options)
        return made[name]
    end
    return get
end

--- The layouts of a resolved policy on a stream; equal names share one object.
-- A balanced layout stays near the one where the model lives (if that is balanced itself, near
-- contiguous); its block is by default the largest power of two up to 64 that divides.
-- @tparam table policy of M.resolve
-- @tparam table stream
-- @tparam table group { cp =, tp = }
-- @tparam ?table balance options of balanced: tolerance, block, node_size, placement, method
-- @treturn table { live =, shard =, gqa =, gdn = }: where the model lives, over cp x tp ranks; and,
-- over the CP ranks alone, whole shards of the same, and where mixers run. With tp 1 shard is live.
function M.layouts(policy, stream, group, balance)
    local over_cp = makers(policy, stream, { cp = group.cp, tp = 1 }, balance)
    local live = (group.tp or 1) == 1 and over_cp or makers(policy, stream, group, balance)
    return { live = live(policy.live), shard = over_cp(policy.live), gqa = over_cp(policy.gqa),
        gdn = over_cp(policy.gdn) }
end

--- The layouts of rows: of a stream of several columns theirs, of others the layouts themselves.
-- @tparam table layouts of M.layouts
-- @treturn table { live =, gqa =, gdn = }
function M.by_column(layouts)
    if layouts.live:stream():batch() == 1 then return layouts end
    local made, columns = {}, {}
    for where, positions in pairs(layouts) do
        made[positions] = made[positions] or positions:columns()
        columns[where] = made[positions]
    end
    return columns
end

--- Which of a policy's layouts a layer runs in: that of its kind, MLA in that of GQA, or where the
-- model lives if it takes any (a2a, headwise): nothing is planned around those.
-- @tparam table layer of a schedule: kind, cp_mode
-- @treturn string "live", "gqa" or "gdn"
function M.where(layer)
    if schedules.takes_any_layout(layer.kind, layer.cp_mode) then return "live" end
    return schedules.is_attention(layer.kind) and "gqa" or layer.kind
end

--- The steps of a forward pass, in order: { op = , layer =, ... } with op "convert", "gather",
-- "mixer", and "mlp" or "moe".
-- A convert step names the layouts that it goes between. At cp 1 there is nothing to convert. With
-- tp > 1 a gather step brings each rank the whole shard of its CP rank, or back the sum of what the
-- tp ranks made; a conversion does that in the same exchange, unless it is composed.
-- @tparam table policy of M.resolve
-- @tparam table schedule
-- @tparam number cp
-- @tparam function ffn of a layer, from 0: "mlp", "moe" or nil
-- @tparam ?table split tp (1), composed (false)
function M.steps(policy, schedule, cp, ffn, split)
    local steps = {}
    local is_split, is_composed = split and (split.tp or 1) > 1, split and split.composed
    local function add(step)
        steps[#steps + 1] = step
    end
    local function surround(layer, there, step)
        local live = policy.live
        local converts = cp > 1 and there ~= live
        local gathers = is_split and (is_composed or not converts)
        if gathers then add { op = "gather", layer = layer, layout = live } end
        if converts then add { op = "convert", layer = layer, from = live, to = there } end
        add(step)
        if converts then
            add { op = "convert", layer = layer, from = there, to = live, back = true }
        end
        if gathers then add { op = "gather", layer = layer, layout = live, back = true } end
    end
    for i, layer in ipairs(schedule.layers) do
        local there = policy[M.where(layer)]
        surround(i - 1, there,
            { op = "mixer", layer = i - 1, kind = layer.kind, layout = there })
        if ffn(i - 1) then
            surround(i - 1, policy.live,
                { op = ffn(i - 1), layer = i - 1, layout = policy.live })
        end
    end
    return steps
end

return M
