--- Conversions of a lab's tensors: layouts by name, routes and plans, each made once.
-- Two layouts that hold the same rows are the same layout here, whoever made them and when, so that
-- what is converted again and again (module boundaries, one pair of layouts a microbatch) builds
-- its routes once; after 64 plans one begins anew. Ranks count from 0.
-- @classmod cplab.plans
local args = require "cplab.check_args"
local clib = require "clib"
local layouts = require "cplab.layout"
local named = require "cplab.named_layouts"
local route = require "cplab.route"
local tensors = require "cplab.tensor"
local C = clib.C

local Plans = {}
Plans.__index = Plans

local M = {}

local MAX_KEPT = 64 -- plans

--- Of a lab, or of what has its comm (`cpl_comm *`), cp, tp, rank and stream. `routes_built` and
-- `plans_built` count.
function M.new(lab)
    return setmetatable({ lab = lab, named = {}, known = {}, routes = {}, plans = {},
        routes_built = 0, plans_built = 0, n_kept = 0 }, Plans)
end

--- The plans of a lab, made when first asked for.
function M.of(lab)
    lab.plans = lab.plans or M.new(lab)
    return lab.plans
end

local function key_of(layout)
    return tostring(C.cpl_layout_digest(layout._ptr))
end

-- Of equal layouts the one that was there first.
local function know(self, layout)
    local key = key_of(layout)
    self.known[key] = self.known[key] or layout
    return self.known[key]
end

-- The layout of a name; a balanced one as the lab's model has it.
local function make(lab, name, level)
    local group = { cp = lab.cp, tp = lab.tp }
    if named.parse(name) ~= "balanced" then
        return (layouts.create(name, lab.stream, group, level + 1))
    end
    named.check("cplab.layout", name, level + 1)
    local model = lab.model or { policy = {} }
    return named.maker(lab.stream, group, model.policy.near or model.policy.live,
        model.balance)(name)
end

--- The layout that is meant.
-- @param name_or_layout a layout, or the name of one of the lab's stream and group
-- @tparam string who the function to name
-- @tparam ?number level
-- @raise neither of them; a name that does not exist; a stream that it does not divide
function Plans:layout(name_or_layout, who, level)
    level = (level or 1) + 1
    if layouts.is(name_or_layout) then return know(self, name_or_layout) end
    if type(name_or_layout) ~= "string" then
        error(("%s: expected a layout or its name (got %s)"):format(who,
            args.show(name_or_layout)), level)
    end
    if not self.lab.stream then
        error(("%s: the lab has no stream to make the layout %s of"):format(who,
            args.show(name_or_layout)), level)
    end
    local of_stream = self.named[self.lab.stream] or {}
    self.named[self.lab.stream] = of_stream
    if not of_stream[name_or_layout] then
        of_stream[name_or_layout] = know(self, make(self.lab, name_or_layout, level))
    end
    return of_stream[name_or_layout]
end

--- The layout whose rows a tensor says that it holds: nil where it does not say, false where it is
-- one that was never seen here.
function Plans:marked(tensor)
    local digest = tensor._ptr.layout
    if digest == 0 then return nil end
    return self.known[tostring(digest)] or false
end

--- The route between two layouts.
function Plans:route(from, to, level)
    local key = key_of(from) .. " " .. key_of(to)
    if not self.routes[key] then
        local ok, made = pcall(route, from, to)
        if not ok then error((tostring(made):gsub("^[^:]*:%d+: ", "")), (level or 1) + 1) end
        self.routes[key] = made
        self.routes_built = self.routes_built + 1
    end
    return self.routes[key]
end

-- A lab may have a stream for each step, and with it layouts that never come back. All ranks make
-- the same plans in the same order, and so forget them together.
local function make_room(self)
    if self.n_kept < MAX_KEPT then return end
    self.routes, self.plans, self.columns, self.n_kept = {}, {}, nil, 0
    collectgarbage() -- it does not know how much hangs on a plan
end

-- Collective where it is made. Another method of the same is another plan.
local function plan_of(self, from, to, ptr, method, level)
    local width = C.cpl_tensor_width(ptr)
    local key = ("%s %s %d %d %s"):format(key_of(from), key_of(to), tonumber(ptr.dtype),
        tonumber(width), method or "auto")
    if not self.plans[key] then
        make_room(self)
        local made_of = self:route(from, to, level + 1)
        self.plans[key] = clib.create("cpl_plan", C.cpl_plan_destroy, level + 1,
            C.cpl_plan_create, made_of._ptr, self.lab.comm, ptr.dtype, width, method)
        self.plans_built, self.n_kept = self.plans_built + 1, self.n_kept + 1
    end
    return self.plans[key]
end

--- Collective. A new tensor with the rows of `to`, from one with those of `from`.
-- @tparam cplab.tensor tensor
-- @tparam Layout from
-- @tparam Layout to
-- @tparam ?string method a name of cplab.exchange.methods()
-- @tparam ?number level
-- @treturn cplab.tensor
function Plans:convert(tensor, from, to, method, level)
    level = (level or 1) + 1
    local plan = plan_of(self, from, to, tensor._ptr, method, level)
    local shape = tensor:shape()
    shape[1] = to:n_local(self.lab.rank)
    local result = tensors.zeros(shape, tensor:dtype())
    clib.check(C.cpl_plan_start(plan, tensor._ptr, result._ptr), level)
    clib.check(C.cpl_plan_finish(plan), level)
    return result
end

return M
