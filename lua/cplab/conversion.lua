--- A conversion: hidden states go to the layout where a mixer runs, and back.
-- One route serves both directions, and both passes: the gradient of going there is coming
-- back. Where the route only swaps rows between pairs of ranks (mirror) it works in place and
-- rows that stay are not touched.
-- @classmod cplab.conversion
local clib = require "clib"
local log = require "cplab.log"
local route = require "cplab.route"
local C = clib.C

local Conversion = {}
Conversion.__index = Conversion

local M = {}

local function make_plan(self, r)
    return clib.create("cpl_plan", C.cpl_plan_destroy, 2, C.cpl_plan_create, r._ptr,
        self.stack.comm, clib.dtypes[self.stack.dtype], self.stack.model.hidden,
        self.stack.model.exchange.method)
end

local function build(self)
    self.route = route(self.live, self.there)
    self.inverse = self.route:inverse()
    self.plan_to = make_plan(self, self.route)
    self.plan_back = make_plan(self, self.inverse)
    self.in_place = C.cpl_plan_swaps(self.plan_to) and C.cpl_plan_swaps(self.plan_back)
end

--- Collective. Between the layout where the model lives and the one where a mixer runs.
function M.new(stack, live, there)
    local self = setmetatable({
        stack = stack, live = live, there = there, in_place = false,
    }, Conversion)
    self:reset()
    if not stack.lazy then
        build(self)
    end
    return self
end

--- Forgets what was counted.
function Conversion:reset()
    self.count = { fwd = 0, bwd = 0 }
    self.bytes = { fwd = 0, bwd = 0 }
    self.messages = { fwd = 0, bwd = 0 }
    self.seconds, self.comm_seconds = 0, 0
    self.built_in_step = 0
end

-- Lazy routes are what the reference system does when nobody prebuilt them; their price is
-- what the experiment wants to see, so each step builds its own.
local function need_plans(self)
    if self.plan_to then
        return
    end
    log.once("lazy", "routes are built inside steps, because the model says routes = \"lazy\"")
    build(self)
    self.in_place = false
    self.built_in_step = self.built_in_step + 1
end

local function run(self, which, src, dst, pass)
    local counters = C.cpl_counters_here()
    local before, comm_before = C.cpl_clock(), counters.comm_seconds
    need_plans(self)
    local plan = self[which]
    clib.check(C.cpl_plan_start(plan, src, dst), 2)
    clib.check(C.cpl_plan_finish(plan), 2)
    self.count[pass] = self.count[pass] + 1
    self.bytes[pass] = self.bytes[pass] + tonumber(C.cpl_plan_sent_bytes(plan))
    self.messages[pass] = self.messages[pass] + tonumber(C.cpl_plan_sent_messages(plan))
    self.seconds = self.seconds + (C.cpl_clock() - before)
    self.comm_seconds = self.comm_seconds + (counters.comm_seconds - comm_before)
end

--- Collective. From the model's layout to the mixer's.
function Conversion:to(src, dst, pass)
    run(self, "plan_to", src, dst, pass)
end

--- Collective. Back to the model's layout.
function Conversion:back(src, dst, pass)
    run(self, "plan_back", src, dst, pass)
end

--- A lazy conversion forgets its route with the step.
function Conversion:end_step()
    if self.stack.lazy then
        self.plan_to, self.plan_back, self.route, self.inverse = nil, nil, nil, nil
    end
end

return M
