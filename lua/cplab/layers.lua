--- The C layers of a model: one place that knows their constructors and configurations.
-- @module cplab.layers
local clib = require "clib"
local schedules = require "cplab.schedule"
local C, ffi = clib.C, clib.ffi

local M = {}

local KINDS = {
    gqa = { C.cpl_layer_gqa, "cpl_gqa_config" },
    mla = { C.cpl_layer_mla, "cpl_mla_config" },
    gdn = { C.cpl_layer_gdn, "cpl_gdn_config" },
    mlp = { C.cpl_layer_mlp, "cpl_mlp_config" },
    moe = { C.cpl_layer_moe, "cpl_moe_config" },
    norm = { C.cpl_layer_norm, "cpl_norm_config" },
    embedding = { C.cpl_layer_embedding, "cpl_linear_config" },
    linear = { C.cpl_layer_linear, "cpl_linear_config" },
}

--- Makes a layer; the C core knows which sizes go together.
-- @tparam string kind
-- @tparam table config the fields of its configuration
-- @tparam string dtype
-- @tparam ?number level whom an error blames
-- @return a `cpl_layer *`
function M.create(kind, config, dtype, level)
    local create, ctype = unpack(KINDS[kind])
    return (clib.create("cpl_layer", C.cpl_layer_destroy, (level or 1) + 1, create,
        ffi.new(ctype, config), clib.dtypes[dtype]))
end

--- The configuration of a model's mixer.
-- @tparam table model hidden, eps and a table of sizes under `kind`
-- @tparam string kind "gqa", "mla" or "gdn"
-- @tparam table layer of the model's schedule: what it says goes before what the model says
function M.mixer_config(model, kind, layer)
    local config = { hidden = model.hidden, eps = model.eps, cp_mode = layer.cp_mode }
    for name, value in pairs(model[kind]) do
        config[name] = value
    end
    if schedules.is_attention(kind) then
        config.window = layer.window or config.window
        -- The model's group is for those of its layers that spread heads in groups.
        config.a2a = layer.a2a or (layer.cp_mode == "a2a+p2p" and config.a2a or 0)
    end
    return config
end

--- The configuration of a model's feed-forward network.
-- @tparam table model hidden, and a table of sizes under `kind`
-- @tparam string kind "mlp" or "moe"
function M.ffn_config(model, kind)
    local config = { hidden = model.hidden }
    for name, value in pairs(model[kind]) do
        config[name] = name ~= "first_layer" and value or nil
    end
    return config
end

return M
