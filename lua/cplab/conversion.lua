--- A conversion: hidden states go to where a layer runs, and back; or the residual stream goes on
-- to the home of the next layer, and its gradient comes back.
-- Without tensor parallelism that is another layout. One route serves both directions, and both
-- passes: the gradient of going there is coming back. Where the route only swaps rows between pairs
-- of ranks (mirror) it works in place and rows that stay are not touched.
--
-- With tensor parallelism the rows of the model are the windows of each rank, and every layer that
-- is split sees the whole shard of its CP rank and gives one of tp partial sums. Going there is
-- then a *gather*, coming back a sum that is scattered to the windows: the adjoint of the same
-- exchange, in both passes. Where the layer runs in another layout, the conversion is fused with
-- it; with the method "composed" it is a step of its own, between CP ranks of the same tp rank.
-- @classmod cplab.conversion
local clib = require "clib"
local log = require "cplab.log"
local route = require "cplab.route"
local view = require "cplab.view"
local C = clib.C

local Exchange = {}
Exchange.__index = Exchange

local M = {}

local function make_plan(self, r)
    local method = self.stack.model.exchange.method
    return clib.create("cpl_plan", C.cpl_plan_destroy, 2, C.cpl_plan_create, r._ptr, self.comm,
        clib.dtypes[self.stack.dtype], self.stack.model.hidden,
        self.stack.tp > 1 and method == "composed" and "auto" or method)
end

-- ---- between two partitions --------------------------------------------------------

local between = {}

function between.build(self)
    self.route = route(self.from, self.there)
    self.inverse = self.route:inverse()
    self.plan_to = make_plan(self, self.route)
    self.plan_back = make_plan(self, self.inverse)
    self.in_place = not self.stack.lazy and C.cpl_plan_swaps(self.plan_to)
        and C.cpl_plan_swaps(self.plan_back)
end

function between.start_back(self, src, dst)
    clib.check(C.cpl_plan_start(self.plan_back, src, dst), 3)
end

-- ---- from windows to shards --------------------------------------------------------

local to_shards = {}

-- As many rows and messages come back as go.
function to_shards.build(self)
    self.view = view.shard(self.from, self.there)
    self.route = route(self.from, self.view)
    self.plan_to = make_plan(self, self.route)
    self.plan_back = self.plan_to
end

function to_shards.start_back(self, src, dst)
    clib.check(C.cpl_plan_start_adjoint(self.plan_back, src, dst, false), 3)
end

-- ---- one exchange ------------------------------------------------------------------

-- Collective. `kind` is between or to_shards; with is_gather it changes no layout.
local function new_exchange(stack, kind, comm, from, there, is_gather)
    local self = setmetatable({
        stack = stack, kind = kind, comm = comm, from = from, there = there,
        is_gather = is_gather, in_place = false,
    }, Exchange)
    self:reset()
    if not stack.lazy then
        kind.build(self)
    end
    stack.conversions[#stack.conversions + 1] = self
    return self
end

--- Forgets what was counted.
function Exchange:reset()
    self.count = { fwd = 0, bwd = 0 }
    self.bytes = { fwd = 0, bwd = 0 }
    self.messages = { fwd = 0, bwd = 0 }
    self.seconds, self.comm_seconds = 0, 0
    self.built_in_step = 0
end

--- What was counted since then, for count_again.
function Exchange:counted()
    return { count = self.count, bytes = self.bytes, messages = self.messages }
end

--- Counts once more what was counted in a step that is done again as a graph.
function Exchange:count_again(counted)
    for name, of in pairs(counted) do
        for pass, n in pairs(of) do self[name][pass] = self[name][pass] + n end
    end
end

-- Lazy routes are what the reference system does when nobody prebuilt them; their price is
-- what the experiment wants to see, so each step builds its own.
local function need_plans(self)
    if self.plan_to then
        return
    end
    log.once("lazy", "routes are built inside steps, because the model says routes = \"lazy\"")
    self.kind.build(self)
    self.built_in_step = self.built_in_step + 1
end

local function run(self, back, src, dst, pass)
    local counters = C.cpl_counters_here()
    local before, comm_before = C.cpl_clock(), counters.comm_seconds
    need_plans(self)
    local plan = back and self.plan_back or self.plan_to
    if back then
        self.kind.start_back(self, src, dst)
    else
        clib.check(C.cpl_plan_start(plan, src, dst), 2)
    end
    clib.check(C.cpl_plan_finish(plan), 2)
    self.count[pass] = self.count[pass] + 1
    self.bytes[pass] = self.bytes[pass] + tonumber(C.cpl_plan_sent_bytes(plan))
    self.messages[pass] = self.messages[pass] + tonumber(C.cpl_plan_sent_messages(plan))
    self.seconds = self.seconds + (C.cpl_clock() - before)
    self.comm_seconds = self.comm_seconds + (counters.comm_seconds - comm_before)
end

--- Collective. From the model's rows to the layer's.
function Exchange:to(src, dst, pass)
    run(self, false, src, dst, pass)
end

--- Collective. Back to the model's rows.
function Exchange:back(src, dst, pass)
    run(self, true, src, dst, pass)
end

--- A lazy exchange forgets its route with the step.
function Exchange:end_step()
    if self.stack.lazy then
        self.plan_to, self.plan_back, self.route, self.inverse, self.view = nil, nil, nil, nil, nil
    end
end

-- ---- two exchanges in turn ---------------------------------------------------------

local Chain = {}
Chain.__index = Chain

local function new_chain(stack, first, second)
    return setmetatable({
        first = first, second = second, in_place = false,
        between = stack:hidden_rows(first.there),
    }, Chain)
end

function Chain:to(src, dst, pass)
    self.first:to(src, self.between, pass)
    self.second:to(self.between, dst, pass)
end

function Chain:back(src, dst, pass)
    self.second:back(src, self.between, pass)
    self.first:back(self.between, dst, pass)
end

-- ---- the other way -----------------------------------------------------------------

local Reverse = {}
Reverse.__index = Reverse

local function new_reverse(exchange)
    return setmetatable({ exchange = exchange, in_place = exchange.in_place }, Reverse)
end

function Reverse:to(src, dst, pass)
    self.exchange:back(src, dst, pass)
end

function Reverse:back(src, dst, pass)
    self.exchange:to(src, dst, pass)
end

-- ---- which of them -----------------------------------------------------------------
-- Layouts are told apart as objects, one for each name: what is planned is done and counted, also
-- where both hold the same rows (a balanced layout that had nothing to do).

-- A way is made once; of two partitions once for both directions.
local function way(stack, from, there, make)
    stack.ways[from] = stack.ways[from] or {}
    local of = stack.ways[from]
    of[there] = of[there] or make()
    return of[there]
end

-- Collective. Between windows of all ranks, or between shards of the CP ranks.
local function between_partitions(stack, comm, from, there)
    return way(stack, from, there, function()
        local opposite = stack.ways[there] and stack.ways[there][from]
        return opposite and new_reverse(opposite)
            or new_exchange(stack, between, comm, from, there, false)
    end)
end

local function gather(stack, live, there)
    return way(stack, live, there, function()
        return new_exchange(stack, to_shards, stack.comm, live, there, true)
    end)
end

--- Collective. What brings hidden states from a home to a layout where a layer runs, and back: an
-- object with to(src, dst, pass), back(src, dst, pass) and in_place; nil where nothing moves. The
-- exchanges that it consists of join stack.conversions, and are counted there.
-- @tparam table stack comm, size, cp, tp, cp_comm, model
-- @tparam table live the home, over all ranks
-- @tparam table shard the home, over the CP ranks alone
-- @tparam table there a layout over the CP ranks alone
function M.to_layer(stack, live, shard, there)
    if stack.size == 1 or rawequal(there, live) then
        return nil
    elseif stack.tp == 1 then
        return between_partitions(stack, stack.comm, live, there)
    elseif stack.cp == 1 or rawequal(there, shard) then
        return gather(stack, live, there)
    end
    return way(stack, live, there, function()
        if stack.model.exchange.method ~= "composed" then
            return new_exchange(stack, to_shards, stack.comm, live, there, false)
        end
        return new_chain(stack, gather(stack, live, shard),
            between_partitions(stack, stack.cp_comm, shard, there))
    end)
end

--- Collective. What brings the residual stream from one home to another, and back, as above; with
-- tensor parallelism from windows to windows, in one exchange of all ranks.
function M.of_residual(stack, from, there)
    if stack.cp == 1 or rawequal(from, there) then return nil end
    return between_partitions(stack, stack.comm, from, there)
end

return M
