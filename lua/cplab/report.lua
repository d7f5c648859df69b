--- The table of a sweep: one row a case, one column a metric, with units in the headers.
--
-- Columns are named. A name of `report.columns` brings its title, unit and format; any other name
-- is a metric, or else a field of what the script recorded. Text only: alignment by spaces, colour
-- for a terminal only.
-- @module cplab.report
local json = require "cplab.json"
local sweep = require "cplab.sweep"

local M = {}

local function sum(a, b)
    return a and b and a + b or a or b
end

local function metric(name)
    return function(result)
        local value = (result.metrics or {})[name]
        return value ~= json.null and value or nil
    end
end

-- A metric, or the field of the last record that has it.
local function recorded(name)
    return function(result)
        local value = metric(name)(result)
        for _, record in ipairs(result.records or {}) do
            if record[name] ~= nil and record[name] ~= json.null then value = record[name] end
        end
        return value
    end
end

-- MiB of a kind of exchange in both passes.
local function mebibytes(kind)
    return function(result)
        local name = kind .. "_bytes_"
        local bytes = sum(metric(name .. "fwd")(result), metric(name .. "bwd")(result))
        return type(bytes) == "number" and bytes / 2 ^ 20 or nil
    end
end

-- "8+8": how many of them a pass has.
local function passes(kind)
    return function(result)
        local forward, backward = metric(kind .. "s_fwd")(result), metric(kind .. "s_bwd")(result)
        if not forward then return nil end
        return backward and ("%d+%d"):format(forward, backward) or ("%d"):format(forward)
    end
end

--- Columns with a title of their own: title, format of a number, value of a result.
M.columns = {
    conversions = { "conversions f+b", "%d", passes "conversion" },
    moved_mib = { "moved MiB", "%.3f", mebibytes "conversion" },
    gathers = { "gathers f+b", "%d", passes "gather" },
    gathered_mib = { "gathered MiB", "%.3f", mebibytes "gather" },
    messages = { "messages fwd", "%d", metric "conversion_messages_fwd" },
    imbalance = { "attn max/mean", "%.3f", metric "attention_imbalance" },
    step_ms = { "step ms", "%.2f", metric "step_ms" },
    convert_ms = { "convert ms", "%.2f", metric "convert_ms" },
    compute_ms = { "compute ms", "%.2f", metric "compute_ms" },
    comm_ms = { "comm ms", "%.2f", metric "comm_ms" },
    busy_ms = { "busy ms", "%.2f", metric "busy_ms" },
    parity_fwd = { "parity fwd", "%.1e", metric "parity_fwd" },
    parity_grad = { "parity grad", "%.1e", metric "parity_grad" },
    verdict = { "verdict", "%s", function(result) return result.status end },
}

--- What a table shows where the experiment names nothing, as far as it was measured.
M.default = {
    "conversions", "moved_mib", "messages", "gathers", "gathered_mib", "imbalance", "step_ms",
    "convert_ms", "compute_ms", "parity_fwd", "parity_grad", "verdict",
}

local function column(name)
    return M.columns[name] or { name, "%.6g", recorded(name) }
end

local function cell(value, format)
    if value == nil then return "-" end
    if type(value) ~= "number" then return sweep.one_line(sweep.label(value)) end
    if value ~= value or math.abs(value) == math.huge then return tostring(value) end
    return format:format(value)
end

local function make_rows(results, axes, names)
    local header, rows = {}, {}
    for i, axis in ipairs(axes) do header[i] = sweep.one_line(axis) end
    for i, name in ipairs(names) do header[#axes + i] = sweep.one_line(column(name)[1]) end
    for r, result in ipairs(results) do
        local row = {}
        for i, axis in ipairs(axes) do row[i] = cell(result.case[axis], "%.14g") end
        for i, name in ipairs(names) do
            local _, format, value = unpack(column(name))
            row[#axes + i] = cell(value(result), format)
        end
        rows[r] = row
    end
    return header, rows
end

local function is_number(text)
    return text == "-" or text:match "^[%+%-]?[%d%.]" ~= nil or text:match "^[%+%-]?nan" ~= nil
        or text:match "^[%+%-]?inf" ~= nil
end

-- A column of numbers is flush right, every other one flush left.
local function measure(header, rows)
    local widths, right = {}, {}
    for i, title in ipairs(header) do
        widths[i], right[i] = #title, #rows > 0
        for _, row in ipairs(rows) do
            widths[i] = math.max(widths[i], #row[i])
            right[i] = right[i] and is_number(row[i]) and not row[i]:find(":", 1, true)
        end
    end
    return widths, right
end

local function align(row, widths, right)
    local parts = {}
    for i, text in ipairs(row) do
        local pad = (" "):rep(widths[i] - #text)
        parts[i] = right[i] and pad .. text or text .. pad
    end
    return (table.concat(parts, "  "):gsub(" +$", ""))
end

--- Lays a header and rows of texts out in columns.
-- @treturn table list of lines
function M.layout(header, rows)
    local widths, right = measure(header, rows)
    local lines = { align(header, widths, right) }
    for i, row in ipairs(rows) do lines[i + 1] = align(row, widths, right) end
    return lines
end

local colours = { passed = "\27[32m", failed = "\27[31m", error = "\27[31m", skipped = "\27[33m" }

local function paint(lines, results)
    lines[1] = "\27[1m" .. lines[1] .. "\27[0m"
    for i, result in ipairs(results) do
        local colour = colours[result.status]
        if colour then lines[i + 1] = colour .. lines[i + 1] .. "\27[0m" end
    end
end

local statuses = { "passed", "failed", "error", "skipped" }

--- How many results have each status.
-- @treturn table counts by status
function M.count(results)
    local counts = { passed = 0, failed = 0, error = 0, skipped = 0 }
    for _, result in ipairs(results) do
        counts[result.status] = (counts[result.status] or 0) + 1
    end
    return counts
end

local function count_line(results)
    local counts, parts = M.count(results), {}
    for _, status in ipairs(statuses) do
        if status ~= "error" or counts.error > 0 then
            local name = status == "error" and (counts.error == 1 and "error" or "errors") or status
            parts[#parts + 1] = ("%d %s"):format(counts[status], name)
        end
    end
    return ("%d case%s: %s"):format(#results, #results == 1 and "" or "s",
        table.concat(parts, ", "))
end

--- Names of the fields that differ between the cases of some results.
function M.varying(results)
    local first, names, seen = (results[1] or {}).case or {}, {}, {}
    for _, result in ipairs(results) do
        for key, value in pairs(result.case) do
            if not seen[key] and json.encode(value) ~= json.encode(first[key]) then
                seen[key] = true
            end
        end
    end
    for _, key in ipairs(sweep.axes(seen)) do names[#names + 1] = key end
    return names
end

local function reasons(results, axes)
    local lines = {}
    for _, result in ipairs(results) do
        if result.reason and result.status ~= "passed" then
            lines[#lines + 1] = ("%s: %s: %s"):format(result.status,
                sweep.describe(result.case, axes), sweep.one_line(result.reason))
        end
    end
    return lines
end

-- The default set, without what nobody measured.
local function measured(results)
    local names = {}
    for _, name in ipairs(M.default) do
        for _, result in ipairs(results) do
            if column(name)[3](result) ~= nil then
                names[#names + 1] = name
                break
            end
        end
    end
    return names
end

--- The whole report of some results.
-- @tparam table results
-- @tparam table options axes, columns (names; else those of the default set that were measured),
-- colour
-- @treturn table list of lines, the last one with the counts
function M.table(results, options)
    local axes = options.axes
    local names = options.columns or measured(results)
    local lines = M.layout(make_rows(results, axes, names))
    if options.colour then paint(lines, results) end
    for _, line in ipairs(reasons(results, axes)) do lines[#lines + 1] = line end
    lines[#lines + 1] = count_line(results)
    return lines
end

return M
