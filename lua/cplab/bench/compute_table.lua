--- How rows of `bench gqa`, `bench gdn` and `bench step` look: lines of columns, or JSON.
-- @module cplab.bench.compute_table
local columns = require "cplab.bench.columns"
local json = require "cplab.json"
local parity = require "cplab.parity"

local fixed, text = columns.fixed, columns.text

local M = {}

local function megabytes(row, name)
    return row[name] and ("%.1f"):format(row[name] / 2 ^ 20) or "-"
end

-- The largest of all errors that were looked at.
local function error_of(row)
    local largest = 0
    for _, error in pairs(row.errors or {}) do largest = parity.larger(largest, nil, error) end
    return row.errors and ("%.1e"):format(largest) or "-"
end

local function ratio(row, name)
    return row[name] and ("%.2f"):format(row[name]) or "-"
end

local ms, rate, percent, times = fixed "%.2f", fixed "%.1f", fixed "%.1f", fixed "%.3f"

local SIZES = {
    gqa = { { "heads", "heads", 5, text }, { "kv_heads", "kv", 3, text },
        { "head_dim", "dim", 4, text }, { "window", "window", 6, text } },
    gdn = { { "key_heads", "Hk", 3, text }, { "value_heads", "Hv", 3, text },
        { "key_dim", "K", 4, text }, { "value_dim", "V", 4, text },
        { "chunk", "chunk", 5, text } },
}
local CORE = {
    { "forward_min_ms", "fwd min", 9, ms }, { "forward_ms", "fwd ms", 9, ms },
    { "forward_p99_ms", "fwd p99", 9, ms }, { "both_min_ms", "both min", 9, ms },
    { "both_ms", "both ms", 9, ms }, { "both_p99_ms", "both p99", 9, ms },
    { "forward_gflops", "fwd GF/s", 8, rate }, { "both_gflops", "both GF/s", 9, rate },
    { "gemm_gflops", "gemm GF/s", 9, rate }, { "forward_percent", "%fwd", 6, percent },
    { "both_percent", "%both", 6, percent },
}
local LAYER = {
    { "cp", "cp", 3, text }, { "cp_mode", "cp_mode", -9, text }, { "layout", "layout", -10, text },
    { "one_min_ms", "cp 1 min", 9, ms }, { "one_ms", "cp 1 ms", 9, ms },
    { "one_p99_ms", "cp 1 p99", 9, ms }, { "busy_min_ms", "busy min", 9, ms },
    { "busy_ms", "busy ms", 9, ms }, { "busy_p99_ms", "busy p99", 9, ms },
    { "busy_ratio", "busy/cp 1", 9, times }, { "gemm_gflops", "gemm GF/s", 9, rate },
}
local MEMORY = { { "error", "error", 7, error_of }, { "peak_bytes", "peak MiB", 9, megabytes },
    { "peak_ratio", "x half", 6, ratio } }
local STEP = {
    { "policy", "policy", -10, text }, { "cp", "cp", 3, text }, { "tokens", "tokens", 7, text },
    { "dtype", "dtype", -5, text }, { "step_min_ms", "step min", 9, ms },
    { "step_ms", "step ms", 9, ms }, { "step_p99_ms", "step p99", 9, ms },
    { "compute_ms", "compute", 9, ms }, { "convert_ms", "convert", 8, ms },
    { "comm_ms", "comm", 8, ms }, { "busy_ms", "busy ms", 9, ms },
    { "busy_ratio", "busy/cp 1", 9, times }, { "conversions", "convs", 5, text },
    { "conversion_bytes", "conv MiB", 8, megabytes }, { "gemm_gflops", "gemm GF/s", 9, rate },
    { "copy_gbs", "copy GB/s", 9, rate },
}

local function joined(...)
    local list = {}
    for _, part in ipairs { ... } do
        for _, column in ipairs(part) do list[#list + 1] = column end
    end
    return list
end

--- The columns of a table.
-- @tparam string kind "gqa", "gdn" or "step"
-- @tparam ?boolean is_layer
function M.columns(kind, is_layer)
    if kind == "step" then return joined(STEP, MEMORY) end
    return joined({ { "tokens", "tokens", 7, text }, { "dtype", "dtype", -5, text } }, SIZES[kind],
        is_layer and LAYER or CORE, MEMORY)
end

--- A row, and behind it why it has no times.
function M.line(list, row)
    return columns.row(list, row)
        .. (row.reason and ("  %s: %s"):format(row.status, row.reason) or "")
end

local ORDER = { "schema", "status", "reason", "part", "tokens", "dtype", "heads", "kv_heads",
    "head_dim", "window", "key_heads", "value_heads", "key_dim", "value_dim", "chunk", "policy",
    "preset", "cp", "cp_mode", "a2a", "layout",
    "hidden", "bound", "errors" }

--- A row as one line of JSON.
function M.json(row)
    return json.encode(row, ORDER)
end

return M
