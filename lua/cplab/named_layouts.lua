--- Layouts by name: those that policies may name, and how each is made on a stream and a group.
-- They follow from stream and group. A balanced layout also has a tolerance, which its name may
-- carry ("balanced@0.1": at most 10 % above the mean), and stays near another layout.
-- @module cplab.named_layouts
local args = require "cplab.check_args"
local layout = require "cplab.layout"

local M = {}

--- The names, apart from tolerances.
M.names = { "contiguous", "zigzag", "mirror", "balanced", "snake", "striped" }

local BLOCK = 64

--- The kind that a name names, and the tolerance that it carries.
-- @tparam string name "zigzag", "balanced", "balanced@0.1"
-- @treturn string kind
-- @treturn ?number tolerance
function M.parse(name)
    local kind, tolerance = name:match "^(balanced)@(.*)$"
    return kind or name, tonumber(tolerance)
end

--- Checks a name; tolerances are written in one way, so that equal layouts have equal names.
-- @tparam string who the function to name
-- @param name what was written
-- @tparam ?number level
-- @treturn string
-- @raise an unknown name, with the nearest; a tolerance that is no number from 0 on
function M.check(who, name, level)
    level = (level or 1) + 1
    if type(name) ~= "string" or not name:find "^balanced@" then
        return (args.one_of(who, "layout", name, M.names, level))
    end
    local kind, tolerance = M.parse(name)
    if not (tolerance and tolerance >= 0 and tolerance < math.huge) then
        error(('%s: the tolerance of "%s" must be a number from 0 on'):format(who, name), level)
    end
    return ("%s@%.14g"):format(kind, tolerance)
end

-- The largest power of two up to 64 that divides every sequence.
local function fitting_block(stream)
    local block = BLOCK
    for i = 0, stream:n_sequences() - 1 do
        while stream:sequence(i).padded % block ~= 0 do block = block / 2 end
    end
    return block
end

local function balanced_options(stream, group, near, balance, tolerance)
    local options = { cp = group.cp, tp = group.tp, near = near }
    for name, value in pairs(balance or {}) do options[name] = value end
    options.block = options.block or fitting_block(stream)
    options.tolerance = tolerance or options.tolerance
    return options
end

--- A function that makes the layouts of one stream and group by name, each once.
-- @tparam table stream
-- @tparam table group { cp =, tp = }
-- @tparam ?string near the name of the layout that balanced ones stay near; contiguous
-- @tparam ?table balance options of balanced ones: tolerance, block (default: the largest power of
-- two up to 64 that divides), node_size, placement, method
-- @treturn function name -> layout; raises what cplab.layout does
function M.maker(stream, group, near, balance)
    local made = {}
    near = near and M.parse(near) ~= "balanced" and near or "contiguous"
    local function get(name)
        if made[name] then return made[name] end
        local kind, tolerance = M.parse(name)
        local options = { cp = group.cp, tp = group.tp }
        if kind == "balanced" then
            options = balanced_options(stream, group, get(near), balance, tolerance)
        end
        made[name] = layout[kind](stream, options)
        return made[name]
    end
    return get
end

--- Layouts of rows: for a stream of several columns theirs, else the layouts themselves. Equal
-- objects stay equal.
-- @tparam table layouts by name, or tables of such
-- @treturn table of the same form
function M.by_column(layouts, made)
    made = made or {}
    local columns = {}
    for name, value in pairs(layouts) do
        if not layout.is(value) then
            columns[name] = M.by_column(value, made)
        else
            made[value] = made[value] or (value:stream():batch() == 1 and value or value:columns())
            columns[name] = made[value]
        end
    end
    return columns
end

return M
