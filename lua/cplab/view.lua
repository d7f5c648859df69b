--- Views: what a consumer of tokens wants to see on each rank.
-- Like a layout, but positions may repeat, be missing, or be fill (start -1: no source). Ranks,
-- slots and positions count from 0, Lua lists from 1.
-- @module cplab.view
-- @usage local r = cplab.route(layout, cplab.view.halo(layout, 3))
local clib = require "clib"
local args = require "cplab.check_args"
local layouts = require "cplab.layout"
local streams = require "cplab.stream"

local C, ffi = clib.C, clib.ffi

local View = {}
View.__index = View

local M = {}

local names = { "halo", "shift", "keys", "whole", "onto", "shard", "padded_zigzag" }

local function check_layout(layout, who, which, level)
    if not layouts.is(layout) then
        error(("view.%s: the %s argument must be a layout (got %s)"):format(who, which,
            args.show(layout)), level + 1)
    end
end

local function create(layout, who, level, f, ...)
    check_layout(layout, who, "first", level + 1)
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

--- The keys that the rank's queries may see: of each sequence those up to each real token that the
-- rank holds; with a window the last so many, the token's own included.
-- @tparam Layout layout
-- @tparam ?table options window (>= 1; none: no limit)
-- @treturn View
function M.keys(layout, options)
    options = args.fields("view.keys", options or {}, { window = "integer?" }, 2)
    local window = options.window and args.integer("view.keys", "window", options.window, 1, nil, 2)
    return (create(layout, "keys", 2, C.cpl_view_keys, window or 0))
end

--- Every position of the stream in order, on every rank. With `sliced` each rank sees its own slice
-- of every row, as a headwise layer its heads: the source is then packed by rank, n_ranks times the
-- local rows, first all slices for rank 0, then all for rank 1, ...
-- @tparam Layout layout
-- @tparam ?table options sliced (boolean)
-- @treturn View
function M.whole(layout, options)
    options = args.fields("view.whole", options or {}, { sliced = "boolean?" }, 2)
    return (create(layout, "whole", 2, C.cpl_view_whole, options.sliced or false))
end

local function onto(layout, target, who, level)
    local view = create(layout, who, level + 1, C.cpl_view_onto, target._ptr)
    view._target = target
    return view
end

--- The rows of a layout in the slots of a layout of a longer or shorter stream: in each slot the
-- token at the same offset of the same sequence; fill where there is none. Both ways between a
-- stream and a padded one: `onto(c, z)` fills the pads, `onto(z, c)` drops them.
-- @tparam Layout layout
-- @tparam Layout target as many ranks; a stream of as many sequences
-- @treturn View
-- @raise sequences or groups that differ (the text names both)
function M.onto(layout, target)
    check_layout(target, "onto", "second", 2)
    return (onto(layout, target, "onto", 2))
end

--- The rows that each rank's CP rank holds in a layout over the CP ranks alone: what a layer sees
-- that tensor parallelism splits by heads or width. Each row is seen tp times.
-- @tparam Layout layout cp and tp
-- @tparam Layout target of the same stream; the same cp, tp 1
-- @treturn View
-- @raise streams or groups that do not fit (the text names both)
function M.shard(layout, target)
    check_layout(target, "shard", "second", 2)
    local view = create(layout, "shard", 2, C.cpl_view_shard, target._ptr)
    view._target = target
    return view
end

-- Each sequence up to a multiple of 2*cp; the last one further, until tp divides a CP rank's rows.
local function padded_stream(stream, cp, tp)
    local lengths, real, rows = {}, {}, 0
    for i = 1, stream:n_sequences() do
        local sequence = stream:sequence(i - 1)
        lengths[i] = math.ceil(sequence.padded / (2 * cp)) * 2 * cp
        real[i] = sequence.real
        rows = rows + lengths[i] / cp
    end
    while rows % tp ~= 0 do -- rows is even, so it ends, for an odd tp too
        lengths[#lengths], rows = lengths[#lengths] + 2 * cp, rows + 2
    end
    if stream:format() == "sbhd" then
        return streams.sbhd { seqlen = lengths[1], batch = stream:batch() }
    end
    return streams.thd { lengths = lengths, real = real }
end

--- The rows of a layout in zigzag order, each sequence padded on demand to a multiple of 2*cp, the
-- last one until tp divides; pads are fill. `target()` is the zigzag layout of the padded stream.
-- @tparam Layout layout of the stream as it is; contiguous, as a rule
-- @tparam ?table options cp, tp (default: the layout's), group_order
-- @treturn View
function M.padded_zigzag(layout, options)
    local who = "view.padded_zigzag"
    check_layout(layout, "padded_zigzag", "first", 2)
    options = args.fields(who, options or {},
        { cp = "integer?", tp = "integer?", group_order = "list?" }, 2)
    local cp = args.integer(who, "cp", options.cp or layout:cp(), 1, layout:n_ranks(), 2)
    local tp = args.integer(who, "tp", options.tp or layout:tp(), 1, layout:n_ranks(), 2)
    local target = layouts.create("zigzag", padded_stream(layout:stream(), cp, tp),
        { cp = cp, tp = tp, group_order = options.group_order }, 2)
    return (onto(layout, target, "padded_zigzag", 2))
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

--- The layout whose slots the rows take, of views onto one; else nil.
function View:target()
    return self._target
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
