--- Exchanges: rows of tensors carried along a route, and their gradients back.
-- A plan is made once, by all ranks together, and then only executed. Ranks count from 0.
-- @classmod cplab.exchange
-- @usage local plan = cplab.exchange.plan(cplab.route(z, c), comm, "f32", hidden)
--   plan:convert(x, y)
local args = require "cplab.check_args"
local clib = require "clib"
local comms = require "cplab.comm"
local routes = require "cplab.route"

local C, ffi = clib.C, clib.ffi

local Plan = {}
Plan.__index = Plan

local M = {}

-- What other ranks still read and write: plans that are started and not finished, with their
-- tensors. Not for the garbage collector, even if the caller lost them.
local flying = {}

--- Collective. A plan for rows of `width` elements along a route.
-- @tparam Route route
-- @tparam Comm comm
-- @tparam string dtype "f64", "f32", "bf16", "i64", "i32"
-- @tparam integer width
-- @tparam ?string method one of `methods()`, or "auto"
-- @treturn Plan
-- @raise ranks of route and group differ, or the ranks plan different exchanges
function M.plan(route, comm, dtype, width, method)
    for name, is_right in pairs { route = routes.is(route), comm = comms.is(comm) } do
        if not is_right then
            error(("exchange.plan: %s must be a cplab.%s"):format(name, name), 2)
        end
    end
    args.value("exchange.plan", "width", width, "integer", 2)
    local code = clib.dtypes[dtype]
    if code == nil then
        error(("exchange.plan: unknown dtype %q"):format(tostring(dtype)), 2)
    end
    local ptr = clib.create("cpl_plan", C.cpl_plan_destroy, 2, C.cpl_plan_create, route._ptr,
        comm._ptr, code, width, method)
    return setmetatable({
        _ptr = ptr, _route = route, _comm = comm, _row = width .. " " .. dtype,
    }, Plan)
end

local Graph = {}
Graph.__index = Graph

--- Collective. A captured exchange from src to dst, both on a device, through which plans of any
-- route go: see cpl_graph in cplab.h.
-- @tparam Plan plan whose group, row and row counts all others must have
-- @tparam Tensor src
-- @tparam Tensor dst
-- @tparam integer room pieces that a rank may receive; by NCCL: routes that are kept
-- @treturn Graph
function M.graph(plan, src, dst, room)
    local ptr = clib.create("cpl_graph", C.cpl_graph_destroy, 2, C.cpl_graph_create, plan._ptr,
        src._ptr, dst._ptr, room)
    return setmetatable({ _ptr = ptr, _plan = plan, _src = src, _dst = dst }, Graph)
end

--- Collective. The same for adjoints, which start from 0: gradients of dst's rows go back to d_src.
-- @tparam Plan plan
-- @tparam Tensor d_dst
-- @tparam Tensor d_src
-- @tparam integer room pieces that a rank may send along a route; by NCCL: routes that are kept
-- @treturn Graph
function M.adjoint_graph(plan, d_dst, d_src, room)
    local ptr = clib.create("cpl_graph", C.cpl_graph_destroy, 2, C.cpl_graph_create_adjoint,
        plan._ptr, d_dst._ptr, d_src._ptr, room)
    return setmetatable({ _ptr = ptr, _plan = plan, _src = d_dst, _dst = d_src }, Graph)
end

--- Collective. Moves the rows along the route of a plan.
-- @tparam Plan plan
-- @treturn Tensor dst
-- @raise the plan is of another group, row or row count, or the graph has no room for it
function Graph:replay(plan)
    clib.check(C.cpl_graph_replay(self._ptr, plan._ptr), 2)
    return self._dst
end

--- How many captures it holds.
function Graph:captures()
    return tonumber(C.cpl_graph_captures(self._ptr))
end

--- The names of the methods.
-- @treturn {string,...}
function M.methods()
    local names = {}
    for name in ffi.string(C.cpl_plan_methods()):gmatch "%S+" do
        names[#names + 1] = name
    end
    return names
end

-- Any face of a `cpl_tensor` will do.
local function check_both(who, ...)
    for _, named in ipairs { ... } do
        local value = named[2]
        local ptr = type(value) == "table" and value._ptr
        if not (ffi.istype("cpl_tensor *", ptr) and ptr ~= nil) then
            error(("%s: %s must be a tensor (got %s)"):format(who, named[1], args.show(value)), 3)
        end
    end
end

--- Collective. Moves rows from src to dst, which may be src where `in_place` says so.
-- @tparam Tensor src
-- @tparam Tensor dst
-- @treturn Tensor dst
-- @raise rows, width, dtype or layout that are not the plan's; another rank's failure
function Plan:convert(src, dst)
    check_both("exchange.convert", { "src", src }, { "dst", dst })
    clib.check(C.cpl_plan_start(self._ptr, src._ptr, dst._ptr), 2)
    clib.check(C.cpl_plan_finish(self._ptr), 2)
    return dst
end

--- Collective. The first half of `convert`; neither tensor may be touched until `finish`.
function Plan:start(src, dst)
    check_both("exchange.start", { "src", src }, { "dst", dst })
    clib.check(C.cpl_plan_start(self._ptr, src._ptr, dst._ptr), 2)
    flying[self] = { src = src, dst = dst }
end

--- Collective. The second half of `convert`.
-- @treturn Tensor the target
function Plan:finish()
    clib.check(C.cpl_plan_finish(self._ptr), 2)
    local dst = flying[self].dst
    flying[self] = nil
    return dst
end

--- Collective. Carries the gradients of dst's rows back and sums them into d_src.
-- @tparam Tensor d_dst
-- @tparam Tensor d_src
-- @tparam ?boolean accumulate to what d_src holds; else from 0
-- @treturn Tensor d_src
function Plan:adjoint(d_dst, d_src, accumulate)
    check_both("exchange.adjoint", { "d_dst", d_dst }, { "d_src", d_src })
    clib.check(C.cpl_plan_start_adjoint(self._ptr, d_dst._ptr, d_src._ptr, accumulate == true), 2)
    clib.check(C.cpl_plan_finish(self._ptr), 2)
    return d_src
end

--- Whether src and dst may be the same tensor on this rank.
function Plan:in_place()
    return C.cpl_plan_in_place(self._ptr)
end

--- Whether an exchange in place only swaps rows between pairs of ranks, on every rank.
function Plan:swaps()
    return C.cpl_plan_swaps(self._ptr)
end

--- The name of the method; of "auto", that of the one it chose.
function Plan:method()
    return ffi.string(C.cpl_plan_method(self._ptr))
end

--- Seconds that one exchange takes the busiest rank, by the table of measured costs.
function Plan:estimate()
    return C.cpl_plan_estimate(self._ptr)
end

--- Bytes that this rank sends to others in one exchange.
function Plan:sent_bytes()
    return tonumber(C.cpl_plan_sent_bytes(self._ptr))
end

--- Messages that this rank sends to others in one exchange.
function Plan:sent_messages()
    return tonumber(C.cpl_plan_sent_messages(self._ptr))
end

--- One line: the route, the row, the method, and what this rank sends.
function Plan:describe()
    return ("%s, rows of %s, by %s: rank %d sends %d bytes in %d messages"):format(
        ffi.string(C.cpl_route_describe(self._route._ptr)), self._row, self:method(),
        self._comm:rank(), self:sent_bytes(), self:sent_messages())
end

Plan.__tostring = Plan.describe

return M
