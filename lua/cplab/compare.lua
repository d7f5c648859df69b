--- Two files of results side by side: what changed, case by case.
--
-- A case is known by the fields that vary within either file, so a run with another dtype, seed or
-- corpus still matches, and so do two files of one case each. Where samples were kept (`step_ms`)
-- the numbers are their medians, and every change is also a ratio, B over A.
-- @module cplab.compare
local json = require "cplab.json"
local report = require "cplab.report"
local results = require "cplab.results"
local sweep = require "cplab.sweep"

local M = {}

local function median(samples)
    local sorted = {}
    for i, value in ipairs(samples) do sorted[i] = json.to_number(value) end
    table.sort(sorted)
    local n = #sorted
    if n % 2 == 1 then return sorted[(n + 1) / 2] end
    return (sorted[n / 2] + sorted[n / 2 + 1]) / 2
end

local function value_of(result, name)
    local samples = (result.samples or {})[name]
    if type(samples) == "table" and samples[1] ~= nil then return median(samples) end
    local value = (result.metrics or {})[name]
    return type(value) == "number" and value or nil
end

local function union(a, b)
    local set, list = {}, {}
    for _, names in ipairs { a, b } do
        for _, name in ipairs(names) do set[name] = true end
    end
    for _, name in ipairs(sweep.axes(set)) do list[#list + 1] = name end
    return list
end

local function key_of(result, fields)
    local parts = {}
    for i, field in ipairs(fields) do parts[i] = json.encode(result.case[field]) end
    return table.concat(parts, "\n")
end

local function by_key(list, fields)
    local map, n = {}, 0
    for _, result in ipairs(list) do
        local key = key_of(result, fields)
        if not map[key] then n = n + 1 end
        map[key] = result
    end
    return map, n
end

local function number(value)
    return value and ("%.6g"):format(value) or "-"
end

local function count(n, what)
    return ("%d %s%s"):format(n, what, n == 1 and "" or "s")
end

local function ratio(a, b)
    if not a or not b then return "-" end
    if a == b then return "1.000" end
    return ("%.3f"):format(b / a)
end

-- Names of the metrics of two results, in their order.
local function metric_names(a, b)
    local both = {}
    for _, result in ipairs { a, b } do
        for name in pairs(result.metrics or {}) do both[name] = true end
    end
    return json.keys(both, results.metrics)
end

local function rows_of_case(rows, label, a, b)
    if a.status ~= b.status then rows[#rows + 1] = { label, "status", a.status, b.status, "-" } end
    for _, name in ipairs(metric_names(a, b)) do
        local x, y = value_of(a, name), value_of(b, name)
        local same = x == y or (x ~= nil and y ~= nil and x ~= x and y ~= y)
        if not same then
            rows[#rows + 1] = { label, name, number(x), number(y), ratio(x, y) }
        end
    end
end

--- Compares two lists of results.
-- @tparam table a list, as `results.read` gives it
-- @tparam table b list
-- @treturn ?table lines: a table of the changes, then the counts
-- @treturn ?string the sentence, where no case is in both
function M.lines(a, b)
    local fields = union(report.varying(a), report.varying(b))
    local in_a, n_a = by_key(a, fields)
    local in_b, n_b = by_key(b, fields)
    local rows, matched, seen = {}, 0, {}
    for _, result in ipairs(a) do
        local key = key_of(result, fields)
        if in_b[key] and not seen[key] then
            seen[key], matched = true, matched + 1
            rows_of_case(rows, sweep.describe(result.case, fields), in_a[key], in_b[key])
        end
    end
    if matched == 0 then return nil, "compare: no case is in both files" end
    local lines = {}
    if #rows > 0 then lines = report.layout({ "case", "metric", "A", "B", "B/A" }, rows) end
    lines[#lines + 1] = ("%s in both, %d only in A, %d only in B, %s changed"):format(
        count(matched, "case"), n_a - matched, n_b - matched, count(#rows, "value"))
    return lines
end

return M
