--- The outline of a case: what it would do, with nothing run.
-- @module cplab.outline
local clib = require "clib"
local policies = require "cplab.policy"
local routes = require "cplab.route"
local C = clib.C

local M = {}

-- Rows and messages of all conversions of one forward pass.
local function conversions(model, layouts, cp)
    local n, rows, messages = 0, 0, 0
    for _, step in ipairs(model:steps(cp)) do
        if step.op == "convert" then
            local there = policies.where(model.schedule.layers[step.layer + 1])
            local stats = routes(layouts.live, layouts[there]):stats()
            n, rows, messages = n + 1, rows + stats.moved_tokens, messages + stats.messages
        end
    end
    return n, rows, messages
end

-- Where the layers of a kind run: in the policy's layout for it, and those that take any where the
-- model lives.
local function where(model, kind)
    local names, seen = {}, {}
    for _, layer in ipairs(model.schedule.layers) do
        local place = policies.where(layer)
        local name = model.policy[place]
        if place == "live" then name = ("%s (%s)"):format(name, layer.cp_mode) end
        if layer.kind == kind and not seen[name] then names[#names + 1] = name end
        seen[name] = seen[name] or layer.kind == kind
    end
    return #names > 0 and table.concat(names, " and ") or model.policy[kind]
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

--- Lines about stream, schedule, layouts, balance, conversions and size.
-- @tparam table stream
-- @tparam table model
-- @tparam number cp
-- @treturn {string,...}
function M.lines(stream, model, cp)
    local policy = model.policy
    local layouts = policies.layouts(policy, stream, { cp = cp, tp = 1 }, model.balance)
    local n, rows, messages = conversions(model, layouts, cp)
    local row_bytes = model.hidden * tonumber(C.cpl_dtype_bytes(clib.dtypes[model.dtype]))
    local lines = {
        "stream       " .. stream:describe(),
        ("schedule     %s  (G: GDN, *: GQA; %d layers)"):format(model.schedule:describe(),
            model.schedule:count()),
        ("layouts      model %s, GQA %s, GDN %s"):format(policy.live, where(model, "gqa"),
            where(model, "gdn")),
        ("imbalance    %.3f of attention work"):format(layouts.gqa:imbalance()),
        ("conversions  %d a forward pass: %d rows of %d bytes change rank (%.2f MiB), %d messages")
            :format(n, rows, row_bytes, rows * row_bytes / 2 ^ 20, messages),
    }
    if layouts.gqa.kind == "balanced" then add_report(lines, layouts.gqa) end
    return add_notes(lines, model)
end

return M
