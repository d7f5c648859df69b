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

-- A figure of the model or layer that may stand before the table.
local function size(field, head, said)
    return { field, head, text, line = "sizes", said = said }
end

local function word(field, said)
    return { field, field, text, left = true, line = "sizes", said = said }
end

local function say_window(window)
    return window == 0 and "no window" or ("a window of %d"):format(window)
end

local TOKENS = { "tokens", "tokens", text }
local NAMES = {
    gqa = { TOKENS, word("dtype", "%s"), size("heads", "heads", "%d heads"),
        size("kv_heads", "kv", "%d kv heads"), size("head_dim", "dim", "head_dim %d"),
        size("window", "window", say_window) },
    gdn = { TOKENS, word("dtype", "%s"), size("key_heads", "Hk", "%d key heads"),
        size("value_heads", "Hv", "%d value heads"), size("key_dim", "K", "key_dim %d"),
        size("value_dim", "V", "value_dim %d"), size("chunk", "chunk", "chunk %d") },
    step = { { "policy", "policy", text, left = true }, { "cp", "cp", text }, TOKENS,
        word("dtype", "%s"), word("preset", "%s"), word("scale", "%s") },
    layer = { size("cp", "cp", "cp %d"), { "cp_mode", "cp_mode", text, left = true },
        word("layout", "%s"), size("hidden", "hidden", "rows of %d") },
}

local CORE = {
    { "forward_min_ms", "fwd min", ms, 8 }, { "forward_ms", "fwd ms", ms, 8 },
    { "forward_p99_ms", "fwd p99", ms, 8 }, { "both_min_ms", "both min", ms, 8 },
    { "both_ms", "both ms", ms, 8 }, { "both_p99_ms", "both p99", ms, 8 },
    { "forward_gflops", "fwd GF/s", rate, 8 }, { "both_gflops", "both GF/s", rate, 9 },
    { "gemm_gflops", "gemm GF/s", rate, 9 }, { "forward_percent", "%fwd", percent, 7 },
    { "both_percent", "%both", percent, 7 },
}
-- Of devices: copies, and how long the host took to ask.
local COPY = { "copy_gbs", "copy GB/s", rate, 9 }
local CORE_HOST = { { "both_host_ms", "host ms", ms, 8 }, COPY }
local LAYER = {
    { "one_min_ms", "cp 1 min", ms, 8 }, { "one_ms", "cp 1 ms", ms, 8 },
    { "one_p99_ms", "cp 1 p99", ms, 8 }, { "busy_min_ms", "busy min", ms, 8 },
    { "busy_ms", "busy ms", ms, 8 }, { "busy_p99_ms", "busy p99", ms, 8 },
    { "busy_ratio", "busy/cp 1", times, 9 }, { "gemm_gflops", "gemm GF/s", rate, 9 },
}
local STEP = {
    { "step_min_ms", "step min", ms, 8 }, { "step_ms", "step ms", ms, 8 },
    { "step_p99_ms", "step p99", ms, 8 }, { "compute_ms", "compute", ms, 7 },
    { "convert_ms", "convert", ms, 7 }, { "comm_ms", "comm", ms, 7 },
    { "busy_ms", "busy ms", ms, 8 }, { "busy_ratio", "busy/cp 1", times, 9 },
    { "conversions", "convs", text, 5 }, { "conversion_bytes", "conv MiB", megabytes, 8 },
    { "gemm_gflops", "gemm GF/s", rate, 9 }, COPY,
}
local DEVICE_STEP = {
    { "step_min_ms", "step min", ms, 8 }, { "step_ms", "step ms", ms, 8 },
    { "step_p99_ms", "step p99", ms, 8 }, { "step_host_ms", "host ms", ms, 8 },
    { "graph_min_ms", "graph min", ms, 9 }, { "graph_ms", "graph ms", ms, 8 },
    { "graph_p99_ms", "graph p99", ms, 9 }, { "graph_host_ms", "host ms", ms, 8 },
    { "conversions", "convs", text, 5 }, { "conversion_bytes", "conv MiB", megabytes, 8 },
    { "gemm_gflops", "gemm GF/s", rate, 9 }, COPY,
}
local ERROR = { { "error", "error", error_of, 7 }, { "peak_bytes", "peak MiB", megabytes, 8 } }
local SCAN = { { "peak_ratio", "x half", ratio, 6 } }

local function joined(...)
    local list = {}
    for _, part in ipairs { ... } do
        for _, column in ipairs(part) do list[#list + 1] = column end
    end
    return list
end

--- A table that is to hold these rows.
-- @tparam string kind "gqa", "gdn" or "step"
-- @tparam {table,...} rows what they measure need not be known yet
-- @tparam ?boolean scan whether it says how memory grows
-- @tparam ?boolean on_device
function M.new(kind, rows, scan, on_device)
    local is_layer = kind ~= "step" and rows[1].cp ~= nil
    local figures
    if kind == "step" then
        figures = on_device and DEVICE_STEP or STEP
    else
        figures = is_layer and LAYER or on_device and joined(CORE, CORE_HOST) or CORE
    end
    return columns.new(joined(NAMES[kind], is_layer and NAMES.layer or {}),
        joined(figures, ERROR, scan and SCAN or {}), rows)
end

--- A row, and behind it why it has no times, or none of a graph.
function M.line(shown, row)
    return shown:line(row) .. (row.reason and ("  %s: %s"):format(row.status, row.reason)
        or row.graph_reason and "  no graph: " .. row.graph_reason or "")
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
