--- Views: what a consumer of tokens wants to see on each rank.
-- Like a layout, but positions may repeat, be missing, or be fill (start -1: no source). Ranks,
-- slots and positions count from 0, Lua lists from 1.
-- @module cplab.view
-- @usage local r = cplab.route(layout, cplab.view.halo(layout, 3))
local clib = require "clib"
local args = require "cplab.check_args"
local layouts = require "cplab.layout"

local C, ffi = clib.C, clib.ffi

local View = {}
View.__index = View

local M = {}

local names = { "halo", "shift", "keys" }

local function create(layout, who, level, f, ...)
    if not layouts.is(layout) then
        error(("view.%s: the first argument must be a layout (got %s)"):format(who,
            args.show(layout)), level + 1)
    end
    local ptr = clib.create("cpl_view", C.cpl_view_destroy, level + 1, f, layout._ptr, ...)
    return setmetatable({ _ptr = ptr, _layout = layout, kind = who }, View)
end

--- The positions before each span: fill first where the sequence has not begun.
-- @tparam Layout layout
-- @tparam number width how many, >= 1
-- @tparam ?table options real_only = true: before each span of real tokens
-- @treturn View
function M.halo(layout, width, options)
    args.integer("view.halo", "width", width, 1, nil, 2)
    options = args.fields("view.halo", options or {}, { real_only = "boolean?" }, 2)
    return (create(layout, "halo", 2, C.cpl_view_halo, width, options.real_only == true))
end

--- In each slot the token k positions later in the same sequence; fill where there is no real one,
-- or where the slot's own is not real.
-- @tparam Layout layout
-- @tparam number k any integer
-- @treturn View
function M.shift(layout, k)
    args.integer("view.shift", "k", k, nil, nil, 2)
    return (create(layout, "shift", 2, C.cpl_view_shift, k))
end

--- The keys that the rank's queries may see: of each sequence from its start to the last real
-- token that the rank holds.
-- @tparam Layout layout
-- @treturn View
function M.keys(layout)
    return (create(layout, "keys", 2, C.cpl_view_keys))
end

--- Whether a value is a view.
function M.is(value)
    return getmetatable(value) == View
end

setmetatable(M, {
    __index = function(_, name) args.unknown("cplab.view", "view", name, names) end,
})

local function check_rank(self, who, rank, level)
    args.integer("view." .. who, "rank", rank, 0, self._layout:n_ranks() - 1, level + 1)
end

--- The layout that it looks at.
function View:layout()
    return self._layout
end

--- How many ranks there are.
function View:n_ranks()
    return self._layout:n_ranks()
end

--- How many rows a rank sees, fill included.
function View:n_local(rank)
    check_rank(self, "n_local", rank, 2)
    local out = clib.box "int64_t"
    clib.check(C.cpl_view_n_local(self._ptr, rank, out), 2)
    return tonumber(out[0])
end

--- What a rank sees, in slot order.
-- @treturn table a list of { start, length }; start -1 is fill
function View:runs(rank)
    check_rank(self, "runs", rank, 2)
    local out = clib.box "int64_t"
    clib.check(C.cpl_view_n_runs(self._ptr, rank, out), 2)
    local n = tonumber(out[0])
    local runs, list = ffi.new("cpl_run[?]", n), {}
    clib.check(C.cpl_view_runs(self._ptr, rank, runs), 2)
    for i = 0, n - 1 do
        list[i + 1] = { tonumber(runs[i].start), tonumber(runs[i].length) }
    end
    return list
end

--- A line of text: "halo 3 of zigzag, cp 4, ...".
function View:describe()
    return ffi.string(C.cpl_view_describe(self._ptr))
end

View.__tostring = View.describe

return M
