--- What the policy "auto" of a model decides by: on whose prices, from which candidates, with which
-- ends.
-- @module cplab.planner.options
local args = require "cplab.check_args"
local clusters = require "cplab.cluster"
local named = require "cplab.named_layouts"

local M = {}

local FIELDS = { cluster = "string|table?", dtype = "string?", layouts = "list?", entry = "string?",
    exit = "string?" }
local DTYPES = { "bf16", "f32", "f64" }

local function check_layouts(who, list, level)
    local names = {}
    for i, name in ipairs(list) do names[i] = named.check(who .. ".layouts", name, level + 1) end
    if #names == 0 then error(who .. ": layouts must name at least one layout", level + 1) end
    return names
end

--- Checks the options of "auto".
-- @tparam string who the table to name
-- @tparam table t cluster (a name of cplab.cluster, a path, or a cluster; "local"), dtype (of rows
-- and products as they are priced; the model's), layouts (candidates, in the order that settles
-- ties; those of cplab.cost), entry, exit (where tokens and loss live; chosen too)
-- @tparam ?number level
-- @treturn table the same, with names as they are compared
-- @raise unknown fields, clusters, dtypes and layouts; ends that are no candidates
function M.check(who, t, level)
    level = (level or 1) + 1
    args.fields(who, t, FIELDS, level)
    local auto = { cluster = t.cluster or "local",
        dtype = t.dtype and args.one_of(who, "dtype", t.dtype, DTYPES, level),
        layouts = t.layouts and check_layouts(who, t.layouts, level) }
    for _, name in ipairs { "entry", "exit" } do
        auto[name] = t[name] and named.check(who .. "." .. name, t[name], level)
        if auto[name] and auto.layouts then
            args.one_of(who, name .. " layout", auto[name], auto.layouts, level)
        end
    end
    if t.cluster and not clusters.is(t.cluster) then
        auto.cluster = clusters.load(t.cluster, level)
    end
    return auto
end

return M
