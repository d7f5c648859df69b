--- Metrics of a step: what the group did, by the meanings of DESIGN section 9.7.
-- Counts are of the group, not per rank, tensor or column.
-- @module cplab.metrics
local clib = require "clib"
local parity = require "cplab.parity"
local C, ffi = clib.C, clib.ffi

local M = {}

-- Sums of the group over one iteration.
local function group_counts(stack)
    local counters = C.cpl_counters_here()
    local sums = ffi.new("double[?]", 6)
    for _, c in pairs(stack.conversions) do
        sums[0] = sums[0] + c.bytes.fwd
        sums[1] = sums[1] + c.bytes.bwd
        sums[2] = sums[2] + c.messages.fwd
    end
    sums[3] = tonumber(counters.wrong_rows)
    sums[4] = tonumber(counters.host_syncs)
    sums[5] = tonumber(counters.state_bytes)
    clib.check(C.cpl_comm_sum(stack.comm, sums, 6, C.CPL_F64))
    return sums
end

local function conversions(stack, pass)
    local n = 0
    for _, c in pairs(stack.conversions) do
        n = n + c.count[pass]
    end
    return n
end

--- What is known before a step runs.
-- @tparam table stack
function M.structure(stack)
    local schedule, memory = stack.model.schedule, ffi.new "cpl_memory_stats"
    local prepared, in_step = stack:count_routes()
    C.cpl_memory(memory)
    return {
        layers = schedule:count(), gqa_layers = schedule:count "gqa",
        gdn_layers = schedule:count "gdn",
        routes_built = prepared, routes_built_in_step = in_step,
        attention_imbalance = schedule:count "gqa" > 0 and stack.layouts.gqa:imbalance() or 1,
        peak_bytes = tonumber(memory.peak_bytes),
    }
end

--- Collective. What the last iteration counted; wrong_rows only where it was traced.
function M.counts(stack, traced)
    local sums = group_counts(stack)
    return {
        conversions_fwd = conversions(stack, "fwd"), conversions_bwd = conversions(stack, "bwd"),
        conversion_bytes_fwd = sums[0], conversion_bytes_bwd = sums[1],
        conversion_messages_fwd = sums[2],
        wrong_rows = traced and sums[3] or nil,
        host_syncs_in_step = sums[4], state_bytes = sums[5],
    }
end

--- Collective. Parity with the reference under `key`, and whose the worst is.
function M.compare(stack, key, backward)
    local live = stack.layouts.live
    local metrics = {}
    metrics.parity_fwd, metrics.parity_fwd_where = parity.compare_rows(stack.comm, key,
        stack:outputs(), live, stack.rank)
    if backward then
        local a, where_a = parity.compare_same(key, stack:gradients())
        local b, where_b = parity.compare_rows(stack.comm, key, stack:input_gradients(), live,
            stack.rank)
        metrics.parity_grad, metrics.parity_grad_where = parity.larger(a, where_a, b, where_b)
    end
    return metrics
end

--- Collective. The sentence about the first wrong row that any rank saw, or nil. Ranks check
-- the same tensors in the same order, so the earliest check has the cause; the rest follows.
function M.first_wrong(stack)
    local size = C.cpl_comm_size(stack.comm)
    local mine, all = ffi.new("cpl_first_wrong"), ffi.new("cpl_first_wrong[?]", size)
    C.cpl_trace_first_wrong(mine)
    clib.check(C.cpl_comm_gather(stack.comm, mine, ffi.sizeof(mine), all))
    local first
    for rank = 0, size - 1 do
        if all[rank].check > 0 and (not first or all[rank].check < all[first].check) then
            first = rank
        end
    end
    return first and ffi.string(all[first].sentence)
end

return M
