--- How projections look: tables for a reader, JSON lines for a program.
-- @module cplab.project.tables
local curves = require "cplab.project.curves"
local json = require "cplab.json"
local report = require "cplab.report"
local sweep = require "cplab.sweep"

local M = {}

M.schema = "cplab.projection/1"

-- ---- cases --------------------------------------------------------------------------

local function ms(name)
    return function(row) return row[name] and ("%.3f"):format(row[name]) or "-" end
end

local function number(format, name, scale)
    return function(row) return row[name] and format:format(row[name] / (scale or 1)) or "-" end
end

local COLUMNS = {
    { "step ms", ms "step_ms" }, { "compute ms", ms "compute_ms" }, { "comm ms", ms "comm_ms" },
    { "convert ms", ms "convert_ms" }, { "host ms", ms "host_ms" },
    { "busiest MiB", number("%.2f", "bytes", 2 ^ 20) }, { "messages", number("%d", "messages") },
    { "imbalance", number("%.3f", "imbalance") },
    { "", function(row) return row.status == "projected" and "" or row.status end },
}

local function dtypes(rows)
    local names, seen = {}, {}
    for _, row in ipairs(rows) do
        if row.dtype and not seen[row.dtype] then
            seen[row.dtype], names[#names + 1] = true, row.dtype
        end
    end
    return #names > 0 and ", " .. table.concat(names, " and ") or ""
end

-- "# h100, 4 nodes of 8 ranks, bf16, forward and backward"
local function heading(job, rows)
    local cluster, nodes = job.cluster, ""
    if job.nodes then
        nodes = (", %d node%s of %d ranks"):format(job.nodes, job.nodes == 1 and "" or "s",
            cluster.ranks_per_node)
    end
    return ("# projected on %s%s%s, %s%s"):format(cluster.name, nodes, dtypes(rows),
        job.forward and "forward only" or "forward and backward",
        job.recompute and ", layers recomputed" or "")
end

-- Whether a column says the same, nothing, for every row.
local function is_empty(rows, column)
    for _, row in ipairs(rows) do
        local text = column[2](row)
        if text ~= "" and text ~= "-" then return false end
    end
    return true
end

--- The table of some cases, and a line for each that has no numbers.
-- @tparam table job cluster, nodes, forward, recompute, chosen (axes)
-- @tparam table rows of cplab.project.case
-- @treturn {string,...}
function M.cases(job, rows)
    local axes, header, shown, body = job.chosen.axes, {}, {}, {}
    for i, axis in ipairs(axes) do header[i] = sweep.one_line(axis) end
    for _, column in ipairs(COLUMNS) do
        if not is_empty(rows, column) then
            shown[#shown + 1], header[#header + 1] = column, column[1]
        end
    end
    for i, row in ipairs(rows) do
        body[i] = {}
        for j, axis in ipairs(axes) do body[i][j] = sweep.one_line(sweep.label(row.case[axis])) end
        for j, column in ipairs(shown) do body[i][#axes + j] = column[2](row) end
    end
    local lines = report.layout(header, body)
    table.insert(lines, 1, heading(job, rows))
    for _, row in ipairs(rows) do
        if row.reason then
            lines[#lines + 1] = ("%s: %s: %s"):format(row.status, sweep.describe(row.case, axes),
                sweep.one_line(row.reason))
        end
    end
    return lines
end

local ORDER = { "schema", "experiment", "case", "status", "reason", "cluster", "nodes", "dtype",
    "backward", "recompute", "sweep", "policy", "tokens", "step_ms", "compute_ms", "comm_ms",
    "convert_ms", "host_ms", "bytes", "messages", "conversions", "imbalance", "items" }

-- What a step is made of, in the order of its forward pass.
local function items_of(step)
    local list = {}
    for i, item in ipairs(step.items or {}) do
        list[i] = { name = item.name, kind = item.kind, layer = item.layer, ms = item.seconds * 1e3,
            variant = item.detail and item.detail.variant }
    end
    return list
end

--- A row as one line of JSON with its newline.
-- @tparam table job
-- @tparam table row
-- @tparam ?table step of prices
-- @tparam ?table size { axis =, value = } of a sweep
function M.json(job, row, step, size)
    local line = { schema = M.schema, experiment = job.script.name, cluster = job.cluster.name,
        nodes = job.nodes, backward = not job.forward, recompute = job.recompute or false,
        sweep = size and { axis = size.axis, value = size.value },
        items = step and items_of(step) }
    for name, value in pairs(row) do
        if name ~= "seconds" then line[name] = value end
    end
    return json.encode(line, ORDER) .. "\n"
end

-- ---- curves -------------------------------------------------------------------------

-- A size of tokens as the reader compares it: those of a rank.
local function sayer(axis, group)
    local cp
    for _, point in ipairs(group.points) do cp = cp or point.cp end
    if axis == "tokens" then
        return function(x) return curves.show(x / (cp or 1)) .. " tokens a rank" end
    elseif axis == "cp" then
        return function(x) return "cp " .. curves.show(x) end
    end
    return function(x) return curves.show(x) .. " nodes" end
end

local function curve_header(axis, group)
    local header = { axis }
    if axis ~= "cp" then header[2] = axis == "tokens" and "a rank" or "cp" end
    for _, policy in ipairs(group.policies) do header[#header + 1] = policy end
    header[#header + 1] = "best"
    return header
end

local function curve_line(axis, group, point)
    local cells = { curves.show(point.x) }
    if axis ~= "cp" then
        cells[2] = not point.cp and "-"
            or axis == "tokens" and curves.show(point.x / point.cp) or ("%d"):format(point.cp)
    end
    for _, policy in ipairs(group.policies) do
        local seconds = point.seconds[policy]
        cells[#cells + 1] = seconds and ("%.3f"):format(seconds * 1e3) or "-"
    end
    cells[#cells + 1] = table.concat(curves.best(point, group.policies), " = ")
    return cells
end

-- A line for every reason why points are missing, with how many there are.
local function missing(group)
    local order, counts, lines = {}, {}, {}
    for _, point in ipairs(group.points) do
        for _, policy in ipairs(group.policies) do
            local row = point.rows[policy]
            local text = row.reason and ("%s: %s: %s"):format(row.status, policy,
                sweep.one_line(row.reason))
            if text then
                if not counts[text] then order[#order + 1] = text end
                counts[text] = (counts[text] or 0) + 1
            end
        end
    end
    for i, text in ipairs(order) do
        lines[i] = counts[text] > 1 and ("%s (%d points)"):format(text, counts[text]) or text
    end
    return lines
end

--- The curves of a group of cases that differ in their policy: step times in ms, and sentences
-- about crossings.
-- @tparam table job
-- @tparam table group name, policies, points
-- @tparam string axis what is swept
-- @treturn {string,...}
function M.curves(job, group, axis)
    local rows, body = {}, {}
    for i, point in ipairs(group.points) do
        body[i] = curve_line(axis, group, point)
        for _, row in pairs(point.rows) do rows[#rows + 1] = row end
    end
    local lines = report.layout(curve_header(axis, group), body)
    table.insert(lines, 1, heading(job, rows) .. (group.name ~= "" and "; " .. group.name or "")
        .. "; step ms")
    local sentences = curves.sentences(group.points, group.policies, sayer(axis, group))
    if #sentences == 0 and #group.policies > 1 then sentences[1] = "no curves cross" end
    for _, list in ipairs { sentences, missing(group) } do
        for _, line in ipairs(list) do lines[#lines + 1] = line end
    end
    return lines
end

-- ---- claims -------------------------------------------------------------------------

-- A line of each number; what is said of the whole claim stands in the first.
local function claim_lines(row, body)
    for i = 1, math.max(1, #row.published) do
        local is_first = i == 1
        body[#body + 1] = { is_first and row.name or "", is_first and row.source or "",
            row.labels[i] or "-", row.published[i] or "-",
            row.ours and ("%.4g"):format(row.ours[i]) or "-", is_first and row.verdict or "",
            is_first and row.unknown or "" }
    end
end

--- The table of published results.
-- @tparam table rows of cplab.claims
-- @treturn {string,...}
function M.claims(rows)
    local body, counts = {}, { reproduced = 0, off = 0, open = 0 }
    for _, row in ipairs(rows) do
        claim_lines(row, body)
        counts[row.verdict] = counts[row.verdict] + 1
    end
    local lines = report.layout({ "claim", "source", "number", "published", "ours", "verdict",
        "inputs that are unknown" }, body)
    lines[#lines + 1] = ("%d claims: %d reproduced, %d off, %d open"):format(#rows,
        counts.reproduced, counts.off, counts.open)
    return lines
end

local CLAIM = { "schema", "claim", "source", "verdict", "labels", "published", "ours", "unknown" }

--- A claim as one line of JSON with its newline.
function M.claim_json(row)
    return json.encode({ schema = "cplab.claim/1", claim = row.name, source = row.source,
        verdict = row.verdict, labels = row.labels, published = row.published, ours = row.ours,
        unknown = row.unknown }, CLAIM) .. "\n"
end

return M
