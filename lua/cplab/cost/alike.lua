--- Layers that are alike: of one kind and equal sizes, whatever their mode. They share prices.
-- @module cplab.cost.alike
local layers = require "cplab.layers"

local M = {}

-- A text that is equal for layers whose prices are.
local function signature(config)
    local names, parts = {}, {}
    for name in pairs(config) do names[#names + 1] = name end
    table.sort(names)
    for i, name in ipairs(names) do
        parts[i] = name ~= "cp_mode" and ("%s=%s"):format(name, tostring(config[name])) or ""
    end
    return table.concat(parts, ",")
end

--- The layers of a model.
-- @treturn {table,...} about { kind, config, key }: the same table for all that are alike; cp_mode;
-- ffn ("mlp", "moe" or nil)
function M.layers(model)
    local list, known = {}, {}
    for i, layer in ipairs(model:layers()) do
        local config = layers.mixer_config(model, layer.kind, layer)
        -- The mode is the caller's to choose, so groups of heads are kept for all.
        config.a2a = layer.a2a or model[layer.kind].a2a
        local key = layer.kind .. " " .. signature(config)
        known[key] = known[key] or { kind = layer.kind, config = config, key = key }
        list[i] = { about = known[key], cp_mode = layer.cp_mode, ffn = model:ffn(i - 1) }
    end
    return list
end

return M
