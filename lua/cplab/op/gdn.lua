--- The gated delta rule over packed sequences.
-- Letters: T tokens, Hk key heads of width K, Hv value heads of width V (value head h uses key
-- head h div (Hv / Hk)), S sequences. Sequence i starts from h0[i] and ends in hT[i]; an empty
-- one passes h0 to hT.
-- @module cplab.op.gdn
local call = require "cplab.op.call"
local norm = require "cplab.op.norm"
local ffi = require("clib").ffi

local M = {}

local L2NORM_EPS = 1e-6

local function option_types(more)
    local types = { scale = "number?", h0 = "any?", cu_seqlens = "list?", l2norm = "boolean?",
        chunk = "integer?" }
    for name, kind in pairs(more or {}) do types[name] = kind end
    return types
end

local function check_options(who, options, more)
    options = call.options(who, options, option_types(more))
    local chunk = options.chunk or 64
    if chunk < 1 or chunk > 64 then call.fail(who, "chunk = %d is not in 1 .. 64", chunk) end
    return options
end

local function unit(x, options)
    if not options.l2norm then return x end
    return norm.l2norm(x, call.same_place(options, { eps = L2NORM_EPS }))
end

local function parameters(who, q, k, v, g, beta, options)
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_gdn"
    dims:take("q", q, "T Hk K")
    dims:take("k", k, "T Hk K")
    p.v, p.g = dims:take("v", v, "T Hv V"), dims:take_wide("g", g, "T Hv")
    p.beta = dims:take_wide("beta", beta, "T Hv")
    dims:check_groups("Hv", "Hk")
    p.spans = dims:spans(options.cu_seqlens)
    p.state_in = dims:take_if("h0", options.h0, "S Hv K V", true)
    p.q = dims:take("q", unit(q, options), "T Hk K")
    p.k = dims:take("k", unit(k, options), "T Hk K")
    p.n_spans, p.n_rows = dims.S, dims.T
    p.key_heads, p.value_heads, p.key_dim, p.value_dim = dims.Hk, dims.Hv, dims.K, dims.V
    p.q_stride, p.k_stride, p.v_stride = dims.Hk * dims.K, dims.Hk * dims.K, dims.Hv * dims.V
    p.chunk, p.scale = options.chunk or 64, options.scale or dims.K ^ -0.5
    return p, dims
end

--- The gated delta rule: S = e^g S; S = S + k (beta (v - S'k))'; o = scale S'q.
-- @tparam cplab.tensor q [T, Hk, K]
-- @tparam cplab.tensor k [T, Hk, K]
-- @tparam cplab.tensor v [T, Hv, V]
-- @tparam cplab.tensor g [T, Hv], logarithms of the decay, <= 0
-- @tparam cplab.tensor beta [T, Hv]
-- @tparam ?table options scale (K^-0.5), h0 [S, Hv, K, V] (zeros), cu_seqlens, l2norm (false: q and
--   k are used as they are), chunk (64), device
-- @return o [T, Hv, V], hT [S, Hv, K, V]
function M.gdn(q, k, v, g, beta, options)
    options = check_options("op.gdn", options)
    local p, dims = parameters("op.gdn", q, k, v, g, beta, options)
    local o, hT = dims:new_like(v), dims:new_wide(dims.S, dims.Hv, dims.K, dims.V)
    p.o, p.state_out = dims:at(o), dims:at(hT)
    dims:call_with_workspace("gdn", p)
    return o, hT
end

--- The gradients of gdn, for q and k as they were given (before the l2norm).
-- @tparam cplab.tensor d_o [T, Hv, V]
-- @tparam ?cplab.tensor d_hT [S, Hv, K, V]; nil: zeros
-- @tparam ?table options those of the forward call
-- @return dq, dk, dv, dg, dbeta, dh0
function M.gdn_backward(q, k, v, g, beta, d_o, d_hT, options)
    local who = "op.gdn_backward"
    options = check_options(who, options)
    local forward, dims = parameters(who, q, k, v, g, beta, options)
    local p = ffi.new "cpl_gdn_backward"
    p.forward = forward
    p.d_o = dims:take("d_o", d_o, "T Hv V")
    p.d_state_out = dims:take_if("d_hT", d_hT, "S Hv K V", true)
    local dq, dk, dv = dims:new_like(q), dims:new_like(k), dims:new_like(v)
    local dg, dbeta = dims:new_like(g), dims:new_like(beta)
    local dh0 = dims:new_wide(dims.S, dims.Hv, dims.K, dims.V)
    p.dq, p.dk, p.dv = dims:at(dq), dims:at(dk), dims:at(dv)
    p.dg, p.dbeta, p.d_state_in = dims:at(dg), dims:at(dbeta), dims:at(dh0)
    p.dq_stride, p.dk_stride, p.dv_stride = forward.q_stride, forward.k_stride, forward.v_stride
    dims:call_with_workspace("gdn_backward", p)
    if options.l2norm then
        local l2 = call.same_place(options, { eps = L2NORM_EPS })
        dq, dk = norm.l2norm_backward(q, dq, l2), norm.l2norm_backward(k, dk, l2)
    end
    return dq, dk, dv, dg, dbeta, dh0
end

--- The affine summary of every sequence: hT = M h0 + B, for each head.
-- @tparam ?table options h0 [S, Hv, K, V] (then B is hT), cu_seqlens, l2norm, chunk, device
-- @return M [S, Hv, K, K], B [S, Hv, K, V]
function M.gdn_summary(k, v, g, beta, options)
    options = check_options("op.gdn_summary", options)
    local gdn, dims = parameters("op.gdn_summary", k, k, v, g, beta, options)
    local p = ffi.new "cpl_gdn_summary"
    local transition = dims:new_wide(dims.S, dims.Hv, dims.K, dims.K)
    local offset = dims:new_wide(dims.S, dims.Hv, dims.K, dims.V)
    p.gdn, p.transition, p.offset = gdn, dims:at(transition), dims:at(offset)
    dims:call_with_workspace("gdn_summary", p)
    return transition, offset
end

--- The offset of the summary's adjoint: dh0 = M' d_hT + offset.
-- @tparam cplab.tensor d_o [T, Hv, V]
-- @tparam ?table options d_hT [S, Hv, K, V] (then the result is dh0), scale, cu_seqlens, l2norm,
--   chunk, device
-- @treturn cplab.tensor [S, Hv, K, V]
function M.gdn_summary_backward(q, k, v, g, beta, d_o, options)
    local who = "op.gdn_summary_backward"
    options = check_options(who, options, { d_hT = "any?" })
    local gdn, dims = parameters(who, q, k, v, g, beta, options)
    local p = ffi.new "cpl_gdn_summary_backward"
    p.gdn, p.d_o = gdn, dims:take("d_o", d_o, "T Hv V")
    p.d_state_out = dims:take_if("d_hT", options.d_hT, "S Hv K V", true)
    local offset = dims:new_wide(dims.S, dims.Hv, dims.K, dims.V)
    p.offset = dims:at(offset)
    dims:call_with_workspace("gdn_summary_backward", p)
    return offset
end

local function numbers_below(n)
    local list = {}
    for i = 1, n do list[i] = i - 1 end
    return list
end

-- Where a state begins with no offset there is nothing to go on to.
local function check_offsets(who, states, offsets)
    for i, state in ipairs(states) do
        if state >= 0 and offsets[i] < 0 then
            call.fail(who, "offsets[%d] = -1, but states[%d] = %d goes on", i, i, state)
        end
    end
end

--- States that go on by summaries: h[s] becomes B[o] + M[t] h[s] for each head, where s, t and o
-- are the numbers, from 0, that stand in one place of the lists `states`, `transitions` and
-- `offsets`. With transpose M' is meant: the gradients of states go back so.
-- @tparam cplab.tensor transition M [N, Hv, K, K]
-- @tparam cplab.tensor offset B [O, Hv, K, V]
-- @tparam cplab.tensor h [S, Hv, K, V]
-- @tparam ?table options states (0, 1, .. S - 1; none stands twice; -1: nothing is done),
--   transitions (as states; -1: there is none, and h[s] becomes B[o]), offsets (as states),
--   transpose (false), wide (false: true says that the numbers are WIDE ones, f32, of a call of
--   bf16), device
-- @treturn cplab.tensor a new h; what is not in `states` is as it was
function M.gdn_carry(transition, offset, h, options)
    local who = "op.gdn_carry"
    options = call.options(who, options, { states = "list?", transitions = "list?",
        offsets = "list?", transpose = "boolean?", wide = "boolean?" })
    local dims = call.dims(who, options)
    if options.wide then dims:set_wide() end
    local p = ffi.new "cpl_gdn_carry"
    p.transition = dims:take_wide("M", transition, "N Hv K K")
    p.offset = dims:take_wide("B", offset, "O Hv K V")
    p["in"] = dims:take_wide("h", h, "S Hv K V")
    local states = options.states or numbers_below(dims.S)
    local offsets = options.offsets or states
    p.span = dims:indices("states", states, dims.S)
    p.transition_of = dims:indices("transitions", options.transitions or states, dims.N)
    p.offset_of = dims:indices("offsets", offsets, dims.O)
    dims:check_each_once("states", states)
    check_offsets(who, states, offsets)
    local carried = dims:copy(h)
    p.out, p.transpose, p.n = dims:at(carried), options.transpose or false, dims.entries
    p.heads, p.key_dim, p.value_dim = dims.Hv, dims.K, dims.V
    dims:call("gdn_carry", p)
    return carried
end

return M
