--- Metrics of a step: what the group did, by the meanings of DESIGN section 9.7.
-- Counts are of the group, not per rank, tensor or column.
-- @module cplab.metrics
local clib = require "clib"
local parity = require "cplab.parity"
local C, ffi = clib.C, clib.ffi

local M = {}

-- Ranks that are threads share one memory, of which rank 0 speaks.
local function process_peak(stack)
    if stack.rank > 0 and C.cpl_host_n_processes() == 0 then
        return 0
    end
    local memory = ffi.new "cpl_memory_stats"
    C.cpl_memory(memory)
    return tonumber(memory.peak_bytes)
end

-- Sums of the group over one iteration: of conversions, then the same of gathers.
local function group_counts(stack)
    local sums = ffi.new("double[?]", 9)
    for _, c in pairs(stack.conversions) do
        local at = c.is_gather and 6 or 0
        sums[at] = sums[at] + c.bytes.fwd
        sums[at + 1] = sums[at + 1] + c.bytes.bwd
        sums[at + 2] = sums[at + 2] + c.messages.fwd
    end
    sums[3] = stack.host_syncs
    sums[4] = tonumber(C.cpl_counters_here().state_bytes)
    sums[5] = process_peak(stack)
    clib.check(C.cpl_comm_sum(stack.comm, sums, 9, C.CPL_F64))
    return sums
end

local function count(stack, pass, is_gather)
    local n = 0
    for _, c in pairs(stack.conversions) do
        n = n + ((c.is_gather or false) == is_gather and c.count[pass] or 0)
    end
    return n
end

--- What is known before a step runs.
-- @tparam table stack
function M.structure(stack)
    local schedule = stack.model.schedule
    local prepared, in_step = stack:count_routes()
    return {
        layers = schedule:count(), gqa_layers = schedule:count "gqa",
        mla_layers = schedule:count "mla", gdn_layers = schedule:count "gdn",
        routes_built = prepared, routes_built_in_step = in_step,
        attention_imbalance = stack.model:attention_imbalance(stack.assignment, stack.layouts),
    }
end

-- Under tensor parallelism: exchanges that gather the windows of a CP rank, or sum over it, and
-- change no layout.
local function gathers(stack, sums)
    if stack.tp == 1 then return {} end
    return {
        gathers_fwd = count(stack, "fwd", true), gathers_bwd = count(stack, "bwd", true),
        gather_bytes_fwd = sums[6], gather_bytes_bwd = sums[7], gather_messages_fwd = sums[8],
    }
end

--- Collective. What the last iteration counted.
function M.counts(stack)
    local sums = group_counts(stack)
    local counts = gathers(stack, sums)
    local common = {
        conversions_fwd = count(stack, "fwd", false), conversions_bwd = count(stack, "bwd", false),
        conversion_bytes_fwd = sums[0], conversion_bytes_bwd = sums[1],
        conversion_messages_fwd = sums[2],
        host_syncs_in_step = sums[3], state_bytes = sums[4], peak_bytes = sums[5],
    }
    for name, value in pairs(common) do counts[name] = value end
    return counts
end

-- Group totals of one mixture of experts: choices by expert, the margin (the least), the loss.
local function expert_counts(comm, layer)
    local report = ffi.new "cpl_moe_report"
    clib.check(C.cpl_layer_moe_report(layer.ptr, report))
    local n, list, total = tonumber(report.experts), {}, 0
    local counts, margin = ffi.new("double[?]", n), ffi.new("double[1]", -report.margin)
    for e = 0, n - 1 do
        counts[e] = tonumber(report.offsets[e + 1] - report.offsets[e])
    end
    clib.check(C.cpl_comm_sum(comm, counts, n, C.CPL_F64))
    clib.check(C.cpl_comm_max(comm, margin, 1))
    for e = 0, n - 1 do list[e + 1], total = counts[e], total + counts[e] end
    return list, total, -margin[0], report.aux_loss
end

--- Collective. Where the tokens of the last forward pass went; nothing without a mixture.
-- @treturn table moe_choices (of all tokens in all layers), moe_imbalance (busiest expert over the
-- mean, of the worst layer), moe_margin (the least gap between a chosen logit and the next: a
-- parity beyond rounding is a fault only where this is above it), aux_loss
-- @treturn ?{table,...} choices by expert, a list for each such layer
function M.experts(stack)
    local metrics, lists = {}, nil
    for _, block in ipairs(stack:all_blocks()) do
        if block.is_moe then
            local list, total, margin, aux = expert_counts(stack.cp_comm, block.ffn.layer)
            lists = lists or {}
            lists[#lists + 1] = list
            local imbalance = total > 0 and math.max(unpack(list)) * #list / total or 1
            metrics.moe_choices = (metrics.moe_choices or 0) + total
            metrics.moe_imbalance = math.max(metrics.moe_imbalance or 1, imbalance)
            metrics.moe_margin = math.min(metrics.moe_margin or math.huge, margin)
            metrics.aux_loss = (metrics.aux_loss or 0) + aux
        end
    end
    return metrics, lists
end

--- Collective. Parity with the reference under `key`, and whose the worst is.
function M.compare(stack, key, backward)
    local metrics = {}
    metrics.parity_fwd, metrics.parity_fwd_where = parity.compare_rows(stack.comm, key,
        stack:outputs(), nil, stack.rank)
    if backward then
        local a, where_a = parity.compare_same(key, stack:gradients())
        local b, where_b = parity.compare_rows(stack.comm, key, stack:input_gradients(),
            nil, stack.rank)
        metrics.parity_grad, metrics.parity_grad_where = parity.larger(a, where_a, b, where_b)
    end
    return metrics
end

--- Collective. The wrong rows of all ranks, and the sentence about the first one. Ranks check the
-- same tensors in the same order, so the earliest check has the cause; the rest follows.
-- @param comm a `cpl_comm *`
-- @tparam table trace of cplab.steps.run
-- @treturn number
-- @treturn ?string
function M.wrong_rows(comm, trace)
    local size, n = C.cpl_comm_size(comm), ffi.new("double[1]", trace.wrong_rows)
    local all = ffi.new("cpl_first_wrong[?]", size)
    clib.check(C.cpl_comm_sum(comm, n, 1, C.CPL_F64))
    clib.check(C.cpl_comm_gather(comm, trace.first, ffi.sizeof(trace.first), all))
    local first
    for rank = 0, size - 1 do
        if all[rank].check > 0 and (not first or all[rank].check < all[first].check) then
            first = rank
        end
    end
    return n[0], first and ffi.string(all[first].sentence)
end

return M
