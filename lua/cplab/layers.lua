--- The C layers of a model: one place that knows their constructors and configurations.
-- @module cplab.layers
local clib = require "clib"
local C, ffi = clib.C, clib.ffi

local M = {}

-- The cp_modes that a configuration tells apart.
local CP_MODES = {
    gqa = {},
    gdn = { chunkwise = C.CPL_GDN_CHUNKWISE, headwise = C.CPL_GDN_HEADWISE },
}
local KINDS = {
    gqa = { C.cpl_layer_gqa, "cpl_gqa_config" },
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
-- @tparam string kind "gqa" or "gdn"
-- @tparam string cp_mode
function M.mixer_config(model, kind, cp_mode)
    local config = {
        hidden = model.hidden, eps = model.eps, cp_mode = CP_MODES[kind][cp_mode],
    }
    for name, value in pairs(model[kind]) do
        config[name] = value
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
