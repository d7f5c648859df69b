--- The outline of a case: what it would do, with nothing run.
-- @module cplab.outline
local clib = require "clib"
local assignments = require "cplab.assignment"
local explain = require "cplab.explain"
local layers = require "cplab.layers"
local planner = require "cplab.planner"
local policies = require "cplab.policy"
local schedules = require "cplab.schedule"
local routes = require "cplab.route"
local rules = require "cplab.rules"
local view = require "cplab.view"
local C = clib.C

local M = {}

-- The route of one step, and how many groups of ranks go it: a composed conversion is between CP
-- ranks, once for each tp rank. As much comes back as goes.
local function route_of(case, step)
    local live, shard = case.layouts.live, case.layouts.shard
    local home, there = step.from or step.layout, step.to or step.layout
    if step.residual then
        return routes(live[home], live[there]), 1
    elseif step.back and step.op == "convert" then
        home, there = there, home
    end
    if case.group.tp == 1 then
        return routes(live[home], shard[there]), 1
    elseif step.op == "convert" and case.model.exchange.method == "composed" then
        return routes(shard[home], shard[there]), case.group.tp
    end
    return routes(live[home], view.shard(live[home], shard[there])), 1
end

-- Of each pair of layouts once.
local function stats_of(case, step)
    local key = table.concat({ step.op, tostring(step.residual), step.from or step.layout,
        step.to or step.layout }, " ")
    if not case.stats[key] then
        local route, times = route_of(case, step)
        case.stats[key] = { route:stats(), times }
    end
    return unpack(case.stats[key])
end

-- How many steps of a kind a forward pass has, their rows and messages.
local function count(case, op)
    local n, rows, messages = 0, 0, 0
    for _, step in ipairs(case.model:steps(case.assignment, case.group)) do
        if step.op == op then
            local stats, times = stats_of(case, step)
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
local function tally(case, kind, text_of)
    local order, counts = {}, {}
    for i = 1, case.model.schedule:count() do
        local entry = case.assignment.layers[i]
        if entry.layer.kind == kind then
            local text = text_of(entry)
            order[#order + 1] = not counts[text] and text or nil
            counts[text] = (counts[text] or 0) + 1
        end
    end
    return order, counts
end

-- "2 depths of GQA p2p; loss scale 0.1".
local function depths(case)
    local mtp = case.model.mtp
    local entry = case.assignment.layers[case.model.schedule:count() + 1]
    return ("%d depth%s of %s %s in %s; loss scale %g"):format(mtp.depth,
        mtp.depth == 1 and "" or "s", mtp.layer.kind:upper(), mode_of(case.model, entry.layer),
        entry.mixer, mtp.loss_scale)
end

-- "GQA p2p (2), a2a (1); GDN chunkwise (3)".
local function modes(case)
    local words = {}
    for _, kind in ipairs(schedules.kinds) do
        local names, counts = tally(case, kind,
            function(entry) return mode_of(case.model, entry.layer) end)
        for i, name in ipairs(names) do names[i] = ("%s (%d)"):format(name, counts[name]) end
        words[#words + 1] = #names > 0 and kind:upper() .. " " .. table.concat(names, ", ") or nil
    end
    return table.concat(words, "; ")
end

-- "model contiguous, GQA zigzag, GDN contiguous": where the layers of each kind run.
local function places(case)
    local words = { "model " .. case.assignment.entry }
    for _, kind in ipairs(schedules.kinds) do
        local names = tally(case, kind, function(entry) return entry.mixer end)
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

-- Which rules of the reference system the case breaks, if any.
local function add_refusals(lines, case)
    local words = {}
    local config = rules.config(case.model, { cp = case.group.cp, tp = case.group.tp,
        stream = case.stream })
    for i, broken in ipairs(rules.check(config, "megatron")) do
        words[i] = ("%s (%s)"):format(broken.rule, broken.sides)
    end
    lines[#lines + 1] = #words > 0 and "note         the reference (Megatron-LM) would refuse: "
        .. table.concat(words, ", ") or nil
    return lines
end

-- A line about the steps of one kind.
local function moves(name, case, op)
    local n, rows, messages = count(case, op)
    local row_bytes = case.model.hidden * case.stream:batch()
        * tonumber(C.cpl_dtype_bytes(clib.dtypes[case.model.dtype]))
    return ("%-12s %d a forward pass: %d rows of %d bytes change rank (%.2f MiB), %d messages")
        :format(name, n, rows, row_bytes, rows * row_bytes / 2 ^ 20, messages)
end

-- Where layers run: a line, or under an assignment that is no triple one for each run of layers.
local function add_places(lines, case)
    if case.assignment.is_triple then
        lines[#lines + 1] = "layouts      " .. places(case)
        return
    end
    for i, text in ipairs(assignments.describe(case.assignment)) do
        lines[#lines + 1] = (i == 1 and "layouts      " or "             ") .. text
    end
end

-- The balanced layouts of attention, in the order of its layers.
local function add_reports(lines, case)
    local seen = {}
    for i = 1, case.model.schedule:count() do
        local entry = case.assignment.layers[i]
        local layout = case.layouts.shard[entry.mixer]
        if schedules.is_attention(entry.layer.kind) and layout.kind == "balanced"
            and not seen[layout] then
            add_report(lines, layout)
            seen[layout] = true
        end
    end
end

-- Why the planner chose what it did, beside the policies that could have been set instead.
local function add_plan(lines, case)
    local model, fixed = case.model, {}
    local plan, prices = planner.for_model(model, case.stream, case.group)
    for _, name in ipairs(policies.names) do
        if policies.triples[name] then
            fixed[#fixed + 1] = assignments.from_policy(policies.resolve(name), model:layers())
        end
    end
    for _, line in ipairs(explain.lines(prices, plan, fixed, prices.cluster.name)) do
        lines[#lines + 1] = line
    end
end

--- Lines about stream, schedule, layouts, balance, conversions and size.
-- @tparam table stream
-- @tparam table model
-- @tparam number cp
-- @tparam ?number tp default 1
-- @treturn {string,...}
function M.lines(stream, model, cp, tp)
    local case = { stream = stream, model = model, group = { cp = cp, tp = tp or 1 }, stats = {} }
    case.assignment = model:assignment(stream, case.group)
    case.layouts = model:layouts(case.assignment, stream, case.group)
    local lines = {
        "stream       " .. stream:describe(),
        ("schedule     %s  (%s; %d layers)"):format(model.schedule:describe(),
            schedules.legend, model.schedule:count()),
        "modes        " .. modes(case),
    }
    add_places(lines, case)
    lines[#lines + 1] = model.mtp and "mtp          " .. depths(case) or nil
    lines[#lines + 1] = ("imbalance    %.3f of attention work"):format(
        model:attention_imbalance(case.assignment, case.layouts))
    lines[#lines + 1] = moves("conversions", case, "convert")
    if case.group.tp > 1 then
        lines[#lines + 1] = moves("gathers", case, "gather")
            .. (", tp %d"):format(case.group.tp)
    end
    if model.policy.is_auto then add_plan(lines, case) end
    add_reports(lines, case)
    return add_refusals(add_notes(lines, model), case)
end

return M
