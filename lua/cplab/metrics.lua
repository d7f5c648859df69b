--- Metrics of a step: what the group did, by the meanings of DESIGN section 9.7.
-- Counts are of the group, not per rank, tensor or column.
-- @module cplab.metrics
local clib = require "clib"
local parity = require "cplab.parity"
local C, ffi = clib.C, clib.ffi

local M = {}

--- max / mean of the causal work of a layout's ranks; 1 where there is none.
function M.imbalance(layout)
    local work, total, most = layout:work(), 0, 0
    for _, pairs_of_rank in ipairs(work) do
        total, most = total + pairs_of_rank, math.max(most, pairs_of_rank)
    end
    return total == 0 and 1 or most * #work / total
end

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
        attention_imbalance = schedule:count "gqa" > 0 and M.imbalance(stack.layouts.gqa) or 1,
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

--- Collective. The sentence about the first wrong row that any rank saw, or nil.
function M.first_wrong(stack)
    local mine = ffi.new("char[512]")
    ffi.copy(mine, ffi.string(C.cpl_trace_first_wrong()))
    local all = ffi.new("char[?]", 512 * stack.size)
    clib.check(C.cpl_comm_gather(stack.comm, mine, 512, all))
    for rank = 0, stack.size - 1 do
        local sentence = ffi.string(all + 512 * rank)
        if sentence ~= "" then
            return sentence
        end
    end
end

return M
