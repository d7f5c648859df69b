--- Projections: the prices of an assignment put together, and drawn as a timeline.
-- @module cplab.cost.projection
local args = require "cplab.check_args"

local M = {}

local ASSIGNMENT = { name = "string?", entry = "string", exit = "string", near = "string?",
    layers = "list" }
local LAYER = { live = "string", mixer = "string", cp_mode = "string?" }

-- ---- items ----------------------------------------------------------------------

local function check(prices, assignment, level)
    local known = {}
    for name in pairs(ASSIGNMENT) do known[name] = type(assignment) == "table"
        and assignment[name] or nil end
    args.fields("prices:step", known, ASSIGNMENT, level + 1)
    if #assignment.layers ~= #prices.list then
        error(("prices:step: the assignment has %d layers, the model %d"):format(
            #assignment.layers, #prices.list), level + 1)
    end
    local near = assignment.near or prices.near
    local uses_balanced = (assignment.entry .. assignment.exit):find "balanced" ~= nil
    for i, layer in ipairs(assignment.layers) do
        for name, wanted in pairs(LAYER) do
            args.value("prices:step", ("layers[%d].%s"):format(i, name), layer[name], wanted,
                level + 1)
        end
        uses_balanced = uses_balanced or (layer.live .. layer.mixer):find "balanced" ~= nil
    end
    if uses_balanced and near ~= prices.near then
        error(("prices:step: balanced layouts stay near %s in the assignment, near %s in the prices"
            ):format(near, prices.near), level + 1)
    end
end

--- The parts of a step in the order of the forward pass.
-- @treturn {table,...} { name =, kind =, layer = from 0, seconds =, detail = }
local function items_of(prices, assignment, level)
    local items = {}
    local function add(kind, layer, name, seconds, detail)
        if not seconds then
            error(("prices:step: layer %d cannot run: %s"):format(layer, detail), level + 2)
        end
        items[#items + 1] = { kind = kind, layer = layer, name = name, seconds = seconds,
            detail = detail }
    end
    local function convert(layer, from, to, place)
        if from == to or prices.cp == 1 then return end
        add("convert", layer, from .. " -> " .. to, prices:convert(from, to, place))
    end
    local before = assignment.entry
    for i, layer in ipairs(assignment.layers) do
        local live, mixer = layer.live, layer.mixer
        local kind, ffn = prices.list[i].about.kind, prices.list[i].ffn
        convert(i - 1, before, live, "residual")
        convert(i - 1, live, mixer, "there")
        add("mixer", i - 1, ("%d.%s"):format(i - 1, kind),
            prices:mixer(i, mixer, layer.cp_mode))
        convert(i - 1, mixer, live, "back")
        add("rest", i - 1, ("%d.%s"):format(i - 1, ffn or "norms"), prices:rest(i, live))
        before = live
    end
    convert(#assignment.layers - 1, before, assignment.exit, "residual")
    add("ends", nil, "ends", prices:ends(assignment.entry, assignment.exit))
    return items
end

-- ---- sums -----------------------------------------------------------------------

-- Where each part of a detail belongs: what conversions wait for is `convert`.
local function add_up(items)
    local sum = { seconds = 0, compute = 0, comm = 0, convert = 0, host = 0, bytes = 0,
        messages = 0 }
    for _, item in ipairs(items) do
        local d = item.detail
        local exchange = item.kind == "convert" and "convert" or "comm"
        sum.seconds = sum.seconds + item.seconds
        sum.compute = sum.compute + d.compute
        sum[exchange] = sum[exchange] + d.comm + d.pack
        sum.host = sum.host + d.host
        sum.bytes, sum.messages = sum.bytes + d.bytes, sum.messages + d.messages
    end
    return sum
end

-- What lab:step would count of the group, under the same names. All tp ranks of a CP rank hand the
-- states of their heads on.
local function metrics_of(items, tp)
    local m = { conversions_fwd = 0, conversions_bwd = 0, conversion_bytes_fwd = 0,
        conversion_bytes_bwd = 0, conversion_messages_fwd = 0, state_bytes = 0 }
    for _, item in ipairs(items) do
        local passes = item.detail.passes
        for i, pass in ipairs(passes) do
            m.state_bytes = m.state_bytes + tp * pass.state_bytes
            if item.kind == "convert" then
                local way = i == 1 and "fwd" or "bwd"
                m["conversions_" .. way] = m["conversions_" .. way] + 1
                m["conversion_bytes_" .. way] = m["conversion_bytes_" .. way] + pass.total_bytes
            end
        end
        if item.kind == "convert" then
            m.conversion_messages_fwd = m.conversion_messages_fwd + passes[1].total_messages
        end
    end
    return m
end

-- ---- the timeline ---------------------------------------------------------------

-- One pass of one item on one rank: the host, its own work, the wait for the slowest, and what of
-- the exchanges nothing hides.
local function add_events(events, item, pass, rank, start)
    local at = start
    local function add(kind, duration)
        if duration <= 0 then return end
        events[#events + 1] = { name = item.name, rank = rank, start = at, duration = duration,
            kind = kind }
        at = at + duration
    end
    local busy = math.min(pass.busy[rank], pass.compute)
    add("host", pass.host)
    add("compute", busy)
    add("wait", pass.compute - busy)
    add(item.kind == "convert" and "convert" or "comm", pass.pack + pass.comm)
end

-- Passes in the order in which they run: all forward ones, then the others from the last item back.
local function running_order(items)
    local order = {}
    for _, item in ipairs(items) do order[#order + 1] = { item, item.detail.passes[1] } end
    for i = #items, 1, -1 do
        local passes = items[i].detail.passes
        for j = 2, #passes do order[#order + 1] = { items[i], passes[j] } end
    end
    return order
end

local function timeline(items, cp)
    local events, order = {}, running_order(items)
    for rank = 0, cp - 1 do
        local at = 0
        for _, entry in ipairs(order) do
            local item, pass = entry[1], entry[2]
            add_events(events, item, pass, rank, at)
            at = at + pass.compute + pass.comm + pass.pack + pass.host
        end
    end
    return events
end

--- See Prices:step.
function M.step(prices, assignment, level)
    level = level + 1
    check(prices, assignment, level)
    local items = items_of(prices, assignment, level)
    local step = add_up(items)
    step.name, step.items = assignment.name, items
    step.metrics = metrics_of(items, prices.tp)
    step.ranks = timeline(items, prices.cp)
    return step
end

return M
