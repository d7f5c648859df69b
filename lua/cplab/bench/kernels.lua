--- What `bench gqa` and `bench gdn` do: rows of cores, measured here or by a rank on a device, or
-- of layers on ranks.
-- @module cplab.bench.kernels
local bench = require "cplab.bench_compute"
local core_row = require "cplab.bench.core_row"
local environment = require "cplab.environment"
local figures = require "cplab.bench.compute_figures"
local options = require "cplab.bench.compute_options"

local M = {}

local FIELDS = { "tokens", "dtype", "heads", "kv_heads", "head_dim", "window", "key_heads",
    "value_heads", "key_dim", "value_dim", "chunk", "cp", "cp_mode", "a2a", "layout", "hidden",
    "bound", "iters", "warmup", "gemm" }

local function begin(case, part)
    local row = bench.begin(case.kind, case, FIELDS)
    row.part = part
    return row
end

-- A device's work is a rank's.
local function measure(chosen, kind, case)
    if case.device then return bench.on_ranks(chosen, "cplab.bench.core_rank", case, 1) end
    local ok, measured = pcall(core_row.measure, kind, case)
    if ok then return measured end
    return nil, { reason = (tostring(measured):gsub("^[^\n]-:%d+: ", "")) }
end

local function core(chosen, case, before)
    local kind, row = require("cplab.bench." .. case.kind .. "_core"), begin(case, "core")
    local measured, failure = measure(chosen, kind, case)
    if not measured then return row, failure end
    if measured.refused then
        row.status, row.reason = "error", measured.refused
        return row
    end
    row.errors, row.workspace_bytes = measured.errors, measured.workspace_bytes
    return figures.settle(row, measured, function()
        figures.add_core(row, measured, kind.flops(case))
    end, before and before.peak_bytes)
end

local function layer(chosen, case, before)
    local row = begin(case, "layer")
    local measured, failure = bench.on_ranks(chosen, "cplab.bench.layer_rank", case, case.cp)
    if not measured then return row, failure end
    if measured.skipped then
        row.status, row.reason = case.is_named and "error" or "skipped", measured.skipped
        return row
    end
    row.errors = measured.errors
    return figures.settle(row, measured, function() figures.add_layer(row, measured) end,
        before and before.peak_bytes)
end

--- Carries the command out.
-- @tparam string kind "gqa" or "gdn"
-- @tparam table arguments words of the command line; json, device, transport
-- @treturn number exit status: 1 where a row is wrong or ended with an error, 3 where there is no
-- such device
-- @treturn ?string what to tell the user
function M.run(kind, arguments)
    local _, processes = environment.transport()
    local chosen, message = options.read(kind, arguments, processes)
    if not chosen then return 2, message end
    return bench.run(kind, chosen, arguments.json, function(case, before)
        if case.cp then return layer(chosen, case, before) end
        return core(chosen, case, before)
    end)
end

return M
