--- The outline of a case: what it would do, with nothing run.
-- @module cplab.outline
local clib = require "clib"
local layers = require "cplab.layers"
local policies = require "cplab.policy"
local schedules = require "cplab.schedule"
local routes = require "cplab.route"
local view = require "cplab.view"
local C = clib.C

local M = {}

-- The route of one step, and how many groups of ranks go it: a composed conversion is between CP
-- ranks, once for each tp rank.
local function route_of(model, layouts, tp, step)
    local there = policies.where(model.schedule.layers[step.layer + 1])
    if tp == 1 then
        return routes(layouts.live, layouts[there]), 1
    elseif step.op == "gather" then
        return routes(layouts.live, view.shard(layouts.live, layouts.shard)), 1
    elseif model.exchange.method == "composed" then
        return routes(layouts.shard, layouts[there]), tp
    end
    return routes(layouts.live, view.shard(layouts.live, layouts[there])), 1
end

-- How many steps of a kind a forward pass has, their rows and messages.
local function count(model, layouts, group, op)
    local n, rows, messages = 0, 0, 0
    for _, step in ipairs(model:steps(group.cp, group.tp)) do
        if step.op == op then
            local route, times = route_of(model, layouts, group.tp, step)
            local stats = route:stats()
            n, rows = n + 1, rows + times * stats.moved_tokens
            messages = messages + times * stats.messages
        end
    end
    return n, rows, messages
end

-- "p2p in a window of 512", "a2a+p2p of 4", "chunkwise".
local function mode_of(model, layer)
    if not schedules.is_attention(layer.kind) then
        return layer.cp_mode
    end
    local config = layers.mixer_config(model, layer.kind, layer)
    return layer.cp_mode .. (config.a2a > 0 and " of " .. config.a2a or "")
        .. (config.window > 0 and " in a window of " .. config.window or "")
end

-- The different texts that the layers of a kind give, in order, and how many give each.
local function tally(model, kind, text_of)
    local order, counts = {}, {}
    for _, layer in ipairs(model.schedule.layers) do
        if layer.kind == kind then
            local text = text_of(layer)
            order[#order + 1] = not counts[text] and text or nil
            counts[text] = (counts[text] or 0) + 1
        end
    end
    return order, counts
end

-- "GQA p2p (2), a2a (1); GDN chunkwise (3)".
local function modes(model)
    local words = {}
    for _, kind in ipairs(schedules.kinds) do
        local names, counts = tally(model, kind, function(layer) return mode_of(model, layer) end)
        for i, name in ipairs(names) do names[i] = ("%s (%d)"):format(name, counts[name]) end
        words[#words + 1] = #names > 0 and kind:upper() .. " " .. table.concat(names, ", ") or nil
    end
    return table.concat(words, "; ")
end

-- "model contiguous, GQA zigzag, GDN contiguous": where the layers of each kind run.
local function places(model)
    local words = { "model " .. model.policy.live }
    for _, kind in ipairs(schedules.kinds) do
        local names = tally(model, kind,
            function(layer) return model.policy[policies.where(layer)] end)
        words[#words + 1] = #names > 0 and kind:upper() .. " " .. table.concat(names, " and ")
            or nil
    end
    return table.concat(words, ", ")
end

-- What a balanced layout is bought with.
local function add_report(lines, layout)
    for line in layout:report():gmatch "[^\n]+" do
        lines[#lines + 1] = "    " .. line
    end
    return lines
end

local function in_words(n)
    for _, unit in ipairs { { 1e9, "billion" }, { 1e6, "million" } } do
        if n >= unit[1] then return ("%.2f %s"):format(n / unit[1], unit[2]) end
    end
    return ("%d"):format(n)
end

-- How large the model is, and what of a published one it lacks.
local function add_notes(lines, model)
    local total, active = model:n_parameters()
    lines[#lines + 1] = "parameters   " .. in_words(total)
        .. (active < total and (", of which a token uses %s"):format(in_words(active)) or "")
    local moe = model.moe
    if moe then
        lines[#lines + 1] = ("experts      %d of width %d, %d a token; shared width %d"):format(
            moe.experts, moe.width, moe.top_k, moe.shared_width)
            .. (moe.first_layer > 0 and ("; from layer %d on"):format(moe.first_layer) or "")
    end
    for _, note in ipairs(model.notes or {}) do
        lines[#lines + 1] = "note         " .. note
    end
    return lines
end

-- A line about the steps of one kind.
local function moves(name, stream, model, layouts, group, op)
    local n, rows, messages = count(model, layouts, group, op)
    local row_bytes = model.hidden * stream:batch()
        * tonumber(C.cpl_dtype_bytes(clib.dtypes[model.dtype]))
    return ("%-12s %d a forward pass: %d rows of %d bytes change rank (%.2f MiB), %d messages")
        :format(name, n, rows, row_bytes, rows * row_bytes / 2 ^ 20, messages)
end

--- Lines about stream, schedule, layouts, balance, conversions and size.
-- @tparam table stream
-- @tparam table model
-- @tparam number cp
-- @tparam ?number tp default 1
-- @treturn {string,...}
function M.lines(stream, model, cp, tp)
    local group = { cp = cp, tp = tp or 1 }
    local layouts = policies.layouts(model.policy, stream, group, model.balance)
    local lines = {
        "stream       " .. stream:describe(),
        ("schedule     %s  (%s; %d layers)"):format(model.schedule:describe(),
            schedules.legend, model.schedule:count()),
        "modes        " .. modes(model),
        "layouts      " .. places(model),
        ("imbalance    %.3f of attention work"):format(model:attention_imbalance(layouts)),
        moves("conversions", stream, model, layouts, group, "convert"),
    }
    if group.tp > 1 then
        lines[#lines + 1] = moves("gathers", stream, model, layouts, group, "gather")
            .. (", tp %d"):format(group.tp)
    end
    if layouts.gqa.kind == "balanced" then add_report(lines, layouts.gqa) end
    return add_notes(lines, model)
end

return M
