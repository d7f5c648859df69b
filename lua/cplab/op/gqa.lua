--- Causal grouped-query attention over packed sequences, and the merge of partial results.
-- Letters: T tokens, Hq query heads, Hkv key/value heads (query head h uses kv head
-- h div (Hq / Hkv)), D width of q and k, V width of v.
-- @module cplab.op.gqa
local args = require "cplab.check_args"
local call = require "cplab.op.call"
local ffi = require("clib").ffi

local M = {}

-- One block per sequence.
local function parameters(who, q, k, v, options)
    options = call.options(who, options, { scale = "number?", cu_seqlens = "list?",
        window = "integer?" })
    local window = args.integer(who, "window", options.window or 0, 0, nil, 3)
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_attention"
    p.q, p.k = dims:take("q", q, "T Hq D"), dims:take("k", k, "T Hkv D")
    p.v = dims:take("v", v, "T Hkv V")
    dims:check_groups("Hq", "Hkv")
    local cu = dims:boundaries(options.cu_seqlens)
    local blocks = ffi.new("cpl_attention_block[?]", math.max(dims.S, 1))
    for i = 0, dims.S - 1 do
        blocks[i].q_slot, blocks[i].kv_slot = cu[i + 1], cu[i + 1]
        blocks[i].n_queries = cu[i + 2] - cu[i + 1]
        blocks[i].n_keys = blocks[i].n_queries
    end
    p.blocks, p.n_blocks, p.n_queries, p.n_keys = dims:at(blocks), dims.S, dims.T, dims.T
    p.heads, p.kv_heads, p.key_dim, p.value_dim = dims.Hq, dims.Hkv, dims.D, dims.V
    p.q_stride, p.k_stride, p.v_stride = dims.Hq * dims.D, dims.Hkv * dims.D, dims.Hkv * dims.V
    p.scale, p.window = options.scale or dims.D ^ -0.5, window
    return p, dims
end

--- Causal softmax attention.
-- @tparam cplab.tensor q [T, Hq, D]
-- @tparam cplab.tensor k [T, Hkv, D]
-- @tparam cplab.tensor v [T, Hkv, V]
-- @tparam ?table options scale (D^-0.5), cu_seqlens, window (keys that a query sees, its own
-- included; 0, the default: all of its sequence up to its own), device
-- @return o [T, Hq, V], lse [T, Hq] (natural logarithm of the sum of e^(scaled score))
function M.gqa(q, k, v, options)
    local p, dims = parameters("op.gqa", q, k, v, options)
    local o, lse = dims:new(dims.T, dims.Hq, dims.V), dims:new_wide(dims.T, dims.Hq)
    p.o, p.lse = dims:at(o), dims:at(lse)
    dims:call_with_workspace("attention", p)
    return o, lse
end

--- The gradients of gqa, from its own results.
-- @tparam cplab.tensor o [T, Hq, V]
-- @tparam cplab.tensor lse [T, Hq]
-- @tparam cplab.tensor d_o [T, Hq, V]
-- @tparam ?table options those of the forward call
-- @return dq, dk, dv
function M.gqa_backward(q, k, v, o, lse, d_o, options)
    local forward, dims = parameters("op.gqa_backward", q, k, v, options)
    local p = ffi.new "cpl_attention_backward"
    forward.o, forward.lse = dims:take("o", o, "T Hq V"), dims:take_wide("lse", lse, "T Hq")
    p.forward, p.d_o = forward, dims:take("d_o", d_o, "T Hq V")
    local dq, dk, dv = dims:new_like(q), dims:new_like(k), dims:new_like(v)
    p.dq, p.dk, p.dv = dims:at(dq), dims:at(dk), dims:at(dv)
    p.dq_stride, p.dk_stride, p.dv_stride = forward.q_stride, forward.k_stride, forward.v_stride
    dims:call_with_workspace("attention_backward", p)
    return dq, dk, dv
end

--- Joins attention over two disjoint sets of keys.
-- @tparam cplab.tensor o [T, H, V]
-- @tparam cplab.tensor lse [T, H]; -inf where no key was seen (and o = 0)
-- @tparam cplab.tensor o_b [T, H, V]
-- @tparam cplab.tensor lse_b [T, H]
-- @tparam ?table options device
-- @return o, lse: new tensors
function M.merge(o, lse, o_b, lse_b, options)
    local who = "op.merge"
    local dims = call.dims(who, call.options(who, options, {}))
    local p = ffi.new "cpl_merge"
    dims:take("o", o, "T H V")
    dims:take_wide("lse", lse, "T H")
    p.o_b, p.lse_b = dims:take("o_b", o_b, "T H V"), dims:take_wide("lse_b", lse_b, "T H")
    local merged, merged_lse = dims:copy(o), dims:copy(lse)
    p.o, p.lse = dims:at(merged), dims:at(merged_lse)
    p.n_rows, p.heads, p.width = dims.T, dims.H, dims.V
    dims:call("merge", p)
    return merged, merged_lse
end

--- The gradients of merge. A side with lse = -inf gets zeros.
-- @tparam cplab.tensor o [T, H, V]
-- @tparam cplab.tensor lse [T, H]
-- @tparam cplab.tensor o_b [T, H, V]
-- @tparam cplab.tensor lse_b [T, H]
-- @tparam cplab.tensor d_o [T, H, V], of the merged o
-- @tparam ?cplab.tensor d_lse [T, H], of the merged lse; nil: zeros, as where only o is used
-- @tparam ?table options device
-- @return do, dlse, do_b, dlse_b: of the four inputs, in their order
function M.merge_backward(o, lse, o_b, lse_b, d_o, d_lse, options)
    local who = "op.merge_backward"
    local dims = call.dims(who, call.options(who, options, {}))
    local p = ffi.new "cpl_merge_backward"
    p.o, p.lse = dims:take("o", o, "T H V"), dims:take_wide("lse", lse, "T H")
    p.o_b, p.lse_b = dims:take("o_b", o_b, "T H V"), dims:take_wide("lse_b", lse_b, "T H")
    p.d_o, p.d_lse = dims:take("d_o", d_o, "T H V"), dims:take_if("d_lse", d_lse, "T H", true)
    local results = { dims:new_like(o), dims:new_like(lse), dims:new_like(o), dims:new_like(lse) }
    p.d_o_a, p.d_lse_a = dims:at(results[1]), dims:at(results[2])
    p.d_o_b, p.d_lse_b = dims:at(results[3]), dims:at(results[4])
    p.n_rows, p.heads, p.width = dims.T, dims.H, dims.V
    dims:call("merge_backward", p)
    return unpack(results)
end

return M
