--- The contract of each kind of layer: the layouts that it accepts when nobody asked for others.
-- Every layer is *right* in any layout; the declared set is where it belongs: regular attention in
-- the layouts that balance causal work, chunkwise GDN where its state flows from rank to rank.
-- Planners, boundaries and the entries of stages go by it. Who names a policy, types three layouts
-- or an assignment has asked for exactly those layouts; who gives `layouts` to a kind in the model
-- binds it to them ("any": to none).
--
-- What a layer was *prepared for* is another thing: the layout of its place, which the assignment
-- says. In every step, traced or not, it compares that with the mark that the last exchange left on
-- the rows (cpl_layer_forward, cpl_tensor_expect), and raises, naming the layer, what it expected
-- and what it got.
--
-- Source of the defaults: facts on Megatron-LM (pull requests 6387 and 5664): attention prefers
-- zigzag, chunkwise GDN contiguous, MLP none; mirror and balanced are as balanced as zigzag.
-- @module cplab.contract
-- @usage local contract = require "cplab.contract"
--   contract.takes("gdn", "chunkwise", "zigzag")             --> false
--   contract.takes("gdn", "chunkwise", "zigzag", "any")      --> true
local args = require "cplab.check_args"
local named = require "cplab.named_layouts"
local schedules = require "cplab.schedule"

local M = {}

--- What stands for every layout.
M.ANY = "any"

local BALANCED_WORK = { "zigzag", "mirror", "balanced" }

-- By kind; modes that move heads instead of rows (cplab.schedule knows them) take any. A layer that
-- works on each row by itself takes whatever arrives. A kind that is not here is an error: nothing
-- is agnostic by default.
local ACCEPTS = {
    gqa = BALANCED_WORK, mla = BALANCED_WORK, gdn = { "contiguous" },
    mlp = "any", moe = "any", norm = "any", embedding = "any", linear = "any",
}

--- The kinds that have a contract, in alphabetical order.
M.kinds = args.sorted_names(ACCEPTS)

local function declared(kind, cp_mode, level)
    args.one_of("contract", "layer kind", kind, M.kinds, level + 1)
    if ACCEPTS[kind] == M.ANY then
        if cp_mode ~= nil then
            error(("contract: layers of kind %s have no cp_mode (got %s)"):format(kind,
                args.show(cp_mode)), level + 1)
        end
        return M.ANY
    end
    local modes = schedules.cp_modes(kind)
    local mode = args.one_of("contract", "cp_mode of a " .. kind .. " layer", cp_mode or modes[1],
        modes, level + 1)
    return schedules.takes_any_layout(kind, mode) and M.ANY or ACCEPTS[kind]
end

local function accepts_of(kind, cp_mode, layouts, level)
    local own = declared(kind, cp_mode, level + 1)
    if layouts == nil then return own end
    if layouts == M.ANY then return M.ANY end
    local list = {}
    for i, name in ipairs(args.value("contract", "layouts", type(layouts) == "table" and layouts
        or { layouts }, "list", level + 1)) do
        list[i] = named.check(("contract: layouts[%d]"):format(i), name, level + 1)
    end
    if #list == 0 then
        error('contract: layouts names no layout; "any" stands for every one', level + 1)
    end
    return list
end

--- The layouts that a layer accepts.
-- @tparam string kind "gqa", "mla", "gdn", "mlp", "moe", "norm", "embedding", "linear"
-- @tparam ?string cp_mode of a mixer; default: the kind's first
-- @tparam ?string|table layouts what the user asked for instead: a name, a list, or "any"
-- @treturn string|table "any", or a list of names, the preferred one first
-- @raise an unknown kind, mode or layout, with the nearest
function M.accepts(kind, cp_mode, layouts)
    local list = accepts_of(kind, cp_mode, layouts, 2)
    return type(list) == "table" and { unpack(list) } or list
end

local function takes(list, layout)
    if list == M.ANY then return true end
    for _, name in ipairs(list) do
        if name == layout or name == (named.parse(layout)) then return true end
    end
    return false
end

--- Whether it accepts a layout; "balanced" stands for every tolerance, "balanced@0.1" for one.
-- @tparam string kind
-- @tparam ?string cp_mode
-- @tparam string layout
-- @tparam ?string|table layouts
function M.takes(kind, cp_mode, layout, layouts)
    local list = accepts_of(kind, cp_mode, layouts, 2)
    return takes(list, named.check("contract", layout, 2))
end

--- Whether it keeps whatever layout arrives, so that it says nothing about where a stage begins.
function M.is_agnostic(kind, cp_mode, layouts)
    return accepts_of(kind, cp_mode, layouts, 2) == M.ANY
end

--- The layout that a layer prefers; nil where it keeps whatever arrives.
function M.preferred(kind, cp_mode, layouts)
    local list = accepts_of(kind, cp_mode, layouts, 2)
    return list ~= M.ANY and list[1] or nil
end

--- Raises unless a layer accepts a layout: for whoever decides where layers run.
-- @tparam string who the layer to name, "layers.3.gqa"
-- @tparam string kind
-- @tparam ?string cp_mode
-- @tparam string layout
-- @tparam ?string|table layouts
-- @tparam ?number level
-- @raise "layers.3.gqa: accepts zigzag, mirror, balanced, got contiguous"
function M.demand(who, kind, cp_mode, layout, layouts, level)
    level = (level or 1) + 1
    args.value("contract", "who", who, "string", level)
    local list = accepts_of(kind, cp_mode, layouts, level)
    layout = named.check(who, layout, level)
    if not takes(list, layout) then
        error(("%s: accepts %s, got %s"):format(who, table.concat(list, ", "), layout), level)
    end
end

return M
