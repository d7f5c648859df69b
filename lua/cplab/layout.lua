--- Layouts: for every rank, the ordered runs of positions that it holds.
-- Each kind is a function of this module: contiguous, zigzag, mirror, snake, striped, balanced,
-- custom. One that does not exist is an error, since three different things are called contiguous
-- elsewhere. A rank's local order need not increase in position. Ranks, slots, positions and
-- sequences count from 0, Lua lists from 1.
-- @module cplab.layout
-- @usage local z = cplab.layout.zigzag(s, { cp = 4 })
--   for _, run in ipairs(z:runs(0)) do print(run[1], run[2]) end
local clib = require "clib"
local args = require "cplab.check_args"
local streams = require "cplab.stream"

local C, ffi = clib.C, clib.ffi

local Layout = {}
Layout.__index = Layout

local M = {}

local MAX_INT = 2 ^ 31 - 1
local COMMON = { cp = "integer?", tp = "integer?", group_order = "list?" }

-- ---- making ------------------------------------------------------------------

-- Fields that only one kind has, and what they add to the C options. A filler returns what must
-- stay alive during the call.
local special = {}

local function check_stream(who, stream, level)
    if not streams.is(stream) then
        error(("%s: the first argument must be a stream (got %s)"):format(who, args.show(stream)),
            level + 1)
    end
end

local function set_group_order(who, c, list, level)
    if list == nil then return nil end
    args.integers(who, "group_order", list, 0, MAX_INT, level + 1)
    if #list ~= c.cp * c.tp then
        error(("%s: group_order has %d entries, not cp*tp = %d"):format(who, #list, c.cp * c.tp),
            level + 1)
    end
    local order = ffi.new("int[?]", #list, list)
    c.group_order = order
    return order
end

local function count_runs(ranks, level)
    local n = 0
    for r = 1, #ranks do
        args.value("layout.custom", ("ranks[%d]"):format(r), ranks[r], "list", level + 1)
        n = n + #ranks[r]
    end
    return n
end

local function check_run(r, i, run, level)
    local name = ("ranks[%d][%d]"):format(r, i)
    args.integers("layout.custom", name, run, nil, nil, level + 1)
    if #run ~= 2 then
        error(("layout.custom: %s must be {start, length}"):format(name), level + 1)
    end
end

local function set_ranks(c, options, level)
    level = level + 1
    local ranks, n_ranks = options.ranks, #options.ranks
    if options.cp == nil then
        c.cp = math.max(1, math.floor(n_ranks / c.tp))
    end
    if n_ranks ~= c.cp * c.tp then
        error(("layout.custom: runs of %d ranks, not of cp*tp = %d"):format(n_ranks,
            c.cp * c.tp), level)
    end
    local runs = ffi.new("cpl_run[?]", count_runs(ranks, level))
    local n_runs = ffi.new("int64_t[?]", n_ranks)
    local n = 0
    for r = 1, n_ranks do
        n_runs[r - 1] = #ranks[r]
        for i, run in ipairs(ranks[r]) do
            check_run(r, i, run, level)
            runs[n].start, runs[n].length = run[1], run[2]
            n = n + 1
        end
    end
    c.runs, c.n_runs = runs, n_runs
    return { runs, n_runs }
end

-- Which CP rank holds each shard: a list, or found near another layout. Only of kinds in closed
-- form: what they give to a rank is a shard of its own.
local ORDER = { order = "string|list?", near = "any?", node_size = "integer?" }

local function set_near(who, c, near, node_size, level)
    if not M.is(near) then
        error(("%s: order = \"auto\" needs near, the layout to stay close to (got %s)"):format(who,
            args.show(near)), level + 1)
    end
    c.near = near._ptr
    if node_size ~= nil then
        c.node_size = args.integer(who, "node_size", node_size, 1, MAX_INT, level + 1)
    end
end

local function set_order(who, c, options, level)
    level = level + 1
    local order = options.order
    if type(order) == "string" then
        args.one_of(who, "order", order, { "auto" }, level)
        set_near(who, c, options.near, options.node_size, level)
        return nil
    end
    for _, name in ipairs { "near", "node_size" } do
        if options[name] ~= nil then
            error(("%s: %s is of no use without order = \"auto\""):format(who, name), level)
        end
    end
    if order == nil then return nil end
    args.integers(who, "order", order, 0, MAX_INT, level)
    if #order ~= c.cp then
        error(("%s: order has %d entries, not cp = %d"):format(who, #order, c.cp), level)
    end
    c.order = ffi.new("int[?]", #order, order)
    return c.order
end

local function set_block(c, options, level)
    c.block = args.integer("layout.striped", "block", options.block or 1, 1, nil, level + 1)
end

local ordered = { contiguous = true, zigzag = true, mirror = true, snake = true, striped = true }

special.striped = { fields = { block = "integer?" }, set = set_block }
special.custom = { fields = { ranks = "list" }, set = set_ranks }

local PLACEMENTS, METHODS = { "plain", "striped" }, { "priced", "plain" }

-- Sets a name among the C options; returns what keeps it alive.
local function set_name(c, options, field, names, level)
    local name = options[field]
    if name == nil then return nil end
    args.one_of("layout.balanced", field, name, names, level + 1)
    c[field] = name
    return name
end

local function set_balanced(c, options, level)
    local who = "layout.balanced"
    level = level + 1
    if options.near ~= nil and not M.is(options.near) then
        error(("%s: near must be a layout (got %s)"):format(who, args.show(options.near)), level)
    end
    c.near = options.near and options.near._ptr or nil
    c.block = args.integer(who, "block", options.block or 64, 1, nil, level)
    c.node_size = args.integer(who, "node_size", options.node_size or 8, 1, MAX_INT, level)
    local tolerance = options.tolerance and ffi.new("double[1]", options.tolerance)
    c.tolerance = tolerance
    return {
        options.near, tolerance, set_name(c, options, "placement", PLACEMENTS, level),
        set_name(c, options, "method", METHODS, level),
    }
end

special.balanced = {
    fields = {
        near = "any?", tolerance = "number?", block = "integer?", node_size = "integer?",
        placement = "string?", method = "string?",
    },
    set = set_balanced,
}

local function fields_of(kind)
    local fields = {}
    local own = special[kind] and special[kind].fields or {}
    for _, types in ipairs { COMMON, own, ordered[kind] and ORDER or {} } do
        for name, wanted in pairs(types) do fields[name] = wanted end
    end
    return fields
end

local function create(kind, stream, options, level)
    level = level + 1
    local who = "layout." .. kind
    check_stream(who, stream, level)
    options = args.fields(who, options or {}, fields_of(kind), level)
    local c = ffi.new "cpl_layout_options"
    c.cp = args.integer(who, "cp", options.cp or 1, 1, MAX_INT, level)
    c.tp = args.integer(who, "tp", options.tp or 1, 1, MAX_INT, level)
    local anchors = { special[kind] and special[kind].set(c, options, level) }
    anchors[2] = set_group_order(who, c, options.group_order, level)
    anchors[3] = ordered[kind] and set_order(who, c, options, level)
    local ptr = clib.create("cpl_layout", C.cpl_layout_destroy, level, C.cpl_layout_create, kind,
        stream._ptr, c)
    assert(anchors) -- c points into them: named here, they live until the call is over
    return setmetatable({ _ptr = ptr, _stream = stream, _options = options, kind = kind }, Layout)
end

--- The names of all kinds.
M.kinds = {}
for kind in ffi.string(C.cpl_layout_kinds()):gmatch "%S+" do
    M.kinds[#M.kinds + 1] = kind
    M[kind] = function(stream, options)
        return (create(kind, stream, options, 2))
    end
end

--- Makes a layout of the kind that a string names.
-- @tparam string kind one of `kinds`
-- @tparam Stream stream
-- @tparam ?table options cp (default 1), tp (default 1), group_order (logical rank -> group rank);
-- custom: ranks, a list of lists of {start, length}, from which cp follows; striped: block, the
-- positions a block (default 1); of all kinds in closed form: order, the CP rank that holds each
-- shard (what the kind gives to a rank), or "auto": the order under which the fewest rows are on
-- another rank than in the layout `near`, with node_size ranks a node a row that leaves its node
-- counting eightfold;
-- balanced: near (a layout with equally many rows on every rank; default contiguous), tolerance
-- (max/mean work <= 1 + tolerance where it can be; 0.03), block (rows that a swap moves a multiple
-- of, and that divides every sequence; 64), node_size (ranks of a node; 8), placement ("plain":
-- node_size ranks in a row share a node; "striped": dealt over the nodes round robin), method
-- ("priced"; "plain": fewest rows moved, blind to keys and nodes)
-- @tparam ?number level whom errors blame, as in error(): for modules that make layouts for others
-- @treturn Layout
-- @raise an unknown kind or field, lengths that do not divide, positions missing or held twice
function M.create(kind, stream, options, level)
    level = (level or 1) + 1
    args.one_of("cplab.layout", "layout", kind, M.kinds, level)
    return (create(kind, stream, options, level))
end

--- Whether a value is a layout.
function M.is(value)
    return getmetatable(value) == Layout
end

setmetatable(M, {
    __index = function(_, name) args.unknown("cplab.layout", "layout", name, M.kinds) end,
})

-- ---- asking ---------------------------------------------------------------------

local function check_rank(self, who, rank, level)
    args.integer("layout." .. who, "rank", rank, 0, self:n_ranks() - 1, level + 1)
end

--- The stream that it lays out.
function Layout:stream()
    return self._stream
end

--- The layout of an sbhd stream's columns: column after column, each rank's rows of this one.
-- @treturn Layout of `self:stream():columns()`
-- @raise a thd stream
function Layout:columns()
    local stream = self._stream
    local columns = stream:columns()
    local ptr = clib.create("cpl_layout", C.cpl_layout_destroy, 2, C.cpl_layout_columns, self._ptr,
        columns._ptr)
    return setmetatable({ _ptr = ptr, _stream = columns, _positions = self, kind = self.kind },
        Layout)
end

--- Of a layout of columns, the layout of positions that it was made from; else itself.
function Layout:positions_layout()
    return self._positions or self
end

--- How many CP ranks there are.
function Layout:cp()
    return C.cpl_layout_cp(self._ptr)
end

--- How many windows the rows of a CP rank are cut into.
function Layout:tp()
    return C.cpl_layout_tp(self._ptr)
end

--- How many group ranks there are: cp * tp.
function Layout:n_ranks()
    return C.cpl_layout_n_ranks(self._ptr)
end

--- Which CP rank holds each shard: entry j + 1 is of what the kind gives to CP rank j.
-- @treturn table a list of cp ranks
function Layout:order()
    local order, list = C.cpl_layout_order(self._ptr), {}
    for i = 1, self:cp() do list[i] = order[i - 1] end
    return list
end

--- How many rows a rank holds.
function Layout:n_local(rank)
    check_rank(self, "n_local", rank, 2)
    local out = clib.box "int64_t"
    clib.check(C.cpl_layout_n_local(self._ptr, rank, out), 2)
    return tonumber(out[0])
end

--- The maximal runs of a rank in slot order.
-- @treturn table a list of { start, length }
function Layout:runs(rank)
    check_rank(self, "runs", rank, 2)
    local out = clib.box "int64_t"
    clib.check(C.cpl_layout_n_runs(self._ptr, rank, out), 2)
    local n = tonumber(out[0])
    local runs, list = ffi.new("cpl_run[?]", n), {}
    clib.check(C.cpl_layout_runs(self._ptr, rank, runs), 2)
    for i = 0, n - 1 do
        list[i + 1] = { tonumber(runs[i].start), tonumber(runs[i].length) }
    end
    return list
end

--- The position in a slot of a rank.
function Layout:position(rank, slot)
    check_rank(self, "position", rank, 2)
    args.integer("layout.position", "slot", slot, nil, nil, 2)
    local out = clib.box "int64_t"
    clib.check(C.cpl_layout_position(self._ptr, rank, slot, out), 2)
    return tonumber(out[0])
end

--- Who holds a position.
-- @treturn number rank
-- @treturn number slot
function Layout:locate(position)
    args.integer("layout.locate", "position", position, nil, nil, 2)
    local rank, slot = clib.box "int", clib.box "int64_t"
    clib.check(C.cpl_layout_locate(self._ptr, position, rank, slot), 2)
    return rank[0], tonumber(slot[0])
end

--- The positions of all slots of a rank, in slot order.
function Layout:positions(rank)
    check_rank(self, "positions", rank, 2)
    local list = {}
    for _, run in ipairs(self:runs(rank)) do
        for position = run[1], run[1] + run[2] - 1 do list[#list + 1] = position end
    end
    return list
end

--- Causal query-key pairs of real tokens per CP rank; exact below 2^53.
-- @tparam ?number window keys that a query sees at most, its own included; 0, the default: all of
-- its sequence up to its own
-- @treturn table a list of cp numbers
function Layout:work(window)
    window = args.integer("layout.work", "window", window or 0, 0, nil, 2)
    local n = self:cp()
    local out, list = ffi.new("int64_t[?]", n), {}
    clib.check(C.cpl_layout_work(self._ptr, window, out), 2)
    for i = 1, n do list[i] = tonumber(out[i - 1]) end
    return list
end

--- The largest work over the mean; 1 where there is none.
function Layout:imbalance()
    local largest, sum = 0, 0
    local work = self:work()
    for _, pairs_of_rank in ipairs(work) do
        largest, sum = math.max(largest, pairs_of_rank), sum + pairs_of_rank
    end
    return sum > 0 and largest * #work / sum or 1
end

--- Rows that must leave their CP rank to reach any layout with as many rows on every rank and an
-- imbalance of at most 1 + tolerance: a certified lower bound, whatever finds the layout.
-- @tparam number tolerance >= 0
-- @treturn number 0 or more, not always whole
-- @raise ranks with unequal rows; a negative tolerance
function Layout:moved_bound(tolerance)
    args.value("layout.moved_bound", "tolerance", tolerance, "number", 2)
    local out = clib.box "double"
    clib.check(C.cpl_layout_moved_bound(self._ptr, tolerance, out), 2)
    return out[0]
end

-- Calls a function that gives an array of structs, to be freed, and copies the named fields.
local function copy_array(self, f, ctype, names, ...)
    local items, n, list = ffi.new(ctype .. " *[1]"), clib.box "int64_t", {}
    local call = { ... }
    call[#call + 1], call[#call + 2] = items, n
    clib.check(f(self._ptr, unpack(call)), 3)
    local array = ffi.gc(items[0], C.cpl_free)
    for i = 0, tonumber(n[0]) - 1 do
        local entry = {}
        for _, name in ipairs(names) do entry[name] = tonumber(array[i][name]) end
        list[i + 1] = entry
    end
    return list
end

local SPAN = { "sequence", "offset", "slot", "length" }
local LINK = { "level", "prev_rank", "next_rank", "prev_span", "next_span" }

--- The runs of a rank, cut at sequence boundaries.
-- @tparam number rank
-- @tparam ?boolean real_only without padding
-- @treturn table a list of { sequence =, offset =, slot =, length = }
function Layout:spans(rank, real_only)
    check_rank(self, "spans", rank, 2)
    return (copy_array(self, C.cpl_layout_spans, "cpl_span", SPAN, rank, real_only == true))
end

--- Who hands the recurrent state of each real span of a rank on, and to whom.
-- One entry for each of `spans(rank, true)`. Spans of other ranks (prev_span, next_span) count
-- from 0; -1 means nobody.
-- @treturn table a list of { level =, prev_rank =, next_rank =, prev_span =, next_span = }
function Layout:chain(rank)
    check_rank(self, "chain", rank, 2)
    return (copy_array(self, C.cpl_layout_chain, "cpl_link", LINK, rank))
end

--- Whether another layout puts the same positions of an equal stream into the same slots.
function Layout:equals(other)
    return C.cpl_layout_equal(self._ptr, other._ptr)
end

--- What it is in words: a line, "zigzag, cp 4, thd of 3 sequences, 64 positions"; of a balanced
-- layout also what it costs, as `report` says it. tostring() gives the line alone.
function Layout:describe()
    return self.kind == "balanced" and self:report() or tostring(self)
end

function Layout:__tostring()
    return ffi.string(C.cpl_layout_describe(self._ptr))
end

Layout.__eq = Layout.equals

require "cplab.figures"(Layout, M)

return M
