--- Routes: the exact moves that turn a layout into another layout or a view.
-- The module is called: `cplab.route(a, b)`. Parts of single ranks are built when first asked for.
-- Ranks and slots count from 0, Lua lists from 1.
-- @module cplab.route
-- @usage local r = cplab.route(zigzag, contiguous)
--   for _, move in ipairs(r:sends(0)) do print(move.peer, move.slot, move.length) end
local clib = require "clib"
local args = require "cplab.check_args"
local layouts = require "cplab.layout"
local views = require "cplab.view"

local C, ffi = clib.C, clib.ffi

local Route = {}
Route.__index = Route

local M = {}

local function wrap(from, to, level, f, ...)
    local ptr = clib.create("cpl_route", C.cpl_route_destroy, level + 1, f, ...)
    return setmetatable({ _ptr = ptr, _from = from, _to = to }, Route)
end

local function to_view(from, view, level)
    if not from:equals(view:layout()) then
        error(("route: a view is reached from its own layout: %s does not look at %s"):format(
            view:describe(), tostring(from)), level + 1)
    end
    return (wrap(from, view, level + 1, C.cpl_route_to_view, view._ptr))
end

local function create(from, to, level)
    level = level + 1
    if not layouts.is(from) then
        error(("route: the source must be a layout (got %s)"):format(args.show(from)), level)
    end
    if views.is(to) then return (to_view(from, to, level)) end
    if not layouts.is(to) then
        error(("route: the target must be a layout or a view (got %s)"):format(args.show(to)),
            level)
    end
    return (wrap(from, to, level, C.cpl_route_create, from._ptr, to._ptr))
end

--- The route from a layout to a layout, or to a view of it.
-- @tparam Layout from
-- @tparam Layout|View to
-- @treturn Route
-- @raise streams or groups that differ (the text names both)
function M.new(from, to)
    return (create(from, to, 2))
end

--- Whether a value is a route.
function M.is(value)
    return getmetatable(value) == Route
end

local function part(self, who, rank, level)
    level = level + 1
    args.integer("route." .. who, "rank", rank, 0, self:n_ranks() - 1, level)
    local out = clib.box "cpl_route_part"
    clib.check(C.cpl_route_rank(self._ptr, rank, out), level)
    return out[0]
end

local function copy(segments, n)
    local list = {}
    for i = 0, tonumber(n) - 1 do
        local segment = segments[i]
        list[i + 1] = {
            peer = segment.peer,
            position = tonumber(segment.position),
            slot = tonumber(segment.slot),
            peer_slot = tonumber(segment.peer_slot),
            length = tonumber(segment.length),
        }
    end
    return list
end

--- How many ranks there are.
function Route:n_ranks()
    return C.cpl_route_n_ranks(self._ptr)
end

--- The layout that it starts from.
function Route:from()
    return self._from
end

--- The layout or view that it leads to.
function Route:to()
    return self._to
end

--- What a rank sends, to itself too: in peer order, then position, then target slot.
-- @treturn table a list of { peer =, slot = (here), peer_slot =, position =, length = }
function Route:sends(rank)
    local p = part(self, "sends", rank, 2)
    return copy(p.sends, p.n_sends)
end

--- What a rank receives, from itself too, in the same order.
-- @treturn table a list of { peer =, slot = (here), peer_slot =, position =, length = }
function Route:receives(rank)
    local p = part(self, "receives", rank, 2)
    return copy(p.receives, p.n_receives)
end

local function rows_by_peer(segments, n, n_ranks)
    local rows = {}
    for i = 1, n_ranks do rows[i] = 0 end
    for i = 0, tonumber(n) - 1 do
        local peer = segments[i].peer + 1
        rows[peer] = rows[peer] + tonumber(segments[i].length)
    end
    return rows
end

--- Rows to each peer and rows from each peer.
-- @treturn table a list of n_ranks numbers
-- @treturn table
function Route:split_sizes(rank)
    local p = part(self, "split_sizes", rank, 2)
    local n = self:n_ranks()
    return rows_by_peer(p.sends, p.n_sends, n), rows_by_peer(p.receives, p.n_receives, n)
end

-- Microseconds to make a route and the part of rank 0, from nothing.
local function build_us(self)
    local start = C.cpl_clock()
    local fresh = create(self._from, self._to, 1)
    part(fresh, "stats", 0, 1)
    return (C.cpl_clock() - start) * 1e6
end

--- Sums over all ranks. Only `segments` counts what stays on its rank.
-- @treturn table moved_tokens, messages (ordered pairs of different ranks with rows),
-- busiest_tokens (the largest of out or in), segments, build_us (the part of one rank)
function Route:stats()
    local out = clib.box "cpl_route_stats"
    clib.check(C.cpl_route_measure(self._ptr, out), 2)
    return {
        moved_tokens = tonumber(out[0].moved_tokens),
        messages = tonumber(out[0].messages),
        busiest_tokens = tonumber(out[0].busiest_tokens),
        segments = tonumber(out[0].segments),
        build_us = build_us(self),
    }
end

--- The opposite direction.
-- @treturn Route
-- @raise a route to a view has none
function Route:inverse()
    return (wrap(self._to, self._from, 2, C.cpl_route_inverse, self._ptr))
end

--- Whether every row stays in its slot. Never true of a view.
function Route:is_identity()
    return C.cpl_route_is_identity(self._ptr)
end

--- A line of text: "zigzag, cp 4, ... -> contiguous, cp 4, ...".
function Route:describe()
    return ffi.string(C.cpl_route_describe(self._ptr))
end

Route.__tostring = Route.describe

return setmetatable(M, { __call = function(_, from, to) return (create(from, to, 2)) end })
