--- The outline of a case: what it would do, with nothing run.
-- @module cplab.outline
local clib = require "clib"
local layers = require "cplab.layers"
local policies = require "cplab.policy"
local schedules = require "cplab.schedule"
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

-- "p2p in a window of 512", "a2a+p2p of 4", "chunkwise".
local function mode_of(model, layer)
    if not schedules.is_attention(layer.kind) then
        return layer.cp_mode
    end
    local config = layers.mixer_config(model, layer.kind, layer)
    return layer.cp_mode .. (config.a2a > 0 and " of " .. config.a2a or "")
        .. (config.window > 0 and " in a window of " .. config.window or "")
end

-- The modes of the layers of a kind and how many have each, "GQA p2p (2), a2a (1)".
local function modes(model, kind)
    local counts, order = {}, {}
    for _, layer in ipairs(model.schedule.layers) do
        if layer.kind == kind then
            local name = mode_of(model, layer)
            order[#order + 1] = not counts[name] and name or nil
            counts[name] = (counts[name] or 0) + 1
        end
    end
    for i, name in ipairs(order) do
        order[i] = ("%s (%d)"):format(name, counts[name])
    end
    return #order > 0 and kind:upper() .. " " .. table.concat(order, ", ") or nil
end

local function all_modes(model)
    local words = {}
    for _, kind in ipairs(schedules.kinds) do
        words[#words + 1] = modes(model, kind)
    end
    return table.concat(words, "; ")
end

-- What a balanced layout is bought with.
local function add_report(lines, layout)
    for line in layout:report():gmatch "[^\n]+" do
        lines[#lines + 1] = "    " .. line
    end
    return lines
end

--- Lines about stream, schedule, layouts, balance and conversions.
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
        "modes        " .. all_modes(model),
        ("layouts      model %s, GQA %s, GDN %s"):format(policy.live, policy.gqa, policy.gdn),
        ("imbalance    %.3f of attention work"):format(model:attention_imbalance(layouts)),
        ("conversions  %d a forward pass: %d rows of %d bytes change rank (%.2f MiB), %d messages")
            :format(n, rows, row_bytes, rows * row_bytes / 2 ^ 20, messages),
    }
    return layouts.gqa.kind == "balanced" and add_report(lines, layouts.gqa) or lines
end

return M
