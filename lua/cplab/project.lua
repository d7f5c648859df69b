--- The command `project`: what steps of an experiment would cost on a cluster (cplab.cost), when
-- which policy pays, what this machine's numbers are, and how far such a projection can be trusted.
-- @module cplab.project
local cases = require "cplab.project.case"
local clusters = require "cplab.cluster"
local curves = require "cplab.project.curves"
local files = require "cplab.project.files"
local selection = require "cplab.selection"
local sweep = require "cplab.sweep"
local tables = require "cplab.project.tables"
local timeline = require "cplab.project.timeline"

local M = {}

local SWEPT = { "tokens", "cp", "nodes" }

-- ---- what is asked for ------------------------------------------------------------------

-- The options that each form of the command takes.
local FORMS = {
    { flag = "claims", takes = { json = true } },
    { flag = "fit", takes = { out = true } },
    { flag = "validate", takes = { json = true } },
}
local PROJECTION = { cluster = true, nodes = true, dtype = true, sweep = true, trace = true,
    forward = true, recompute = true, json = true }
local OPTIONS = { "cluster", "nodes", "dtype", "forward", "recompute", "sweep", "json", "trace",
    "out" }

-- A sentence about words that say nothing together, or nil.
local function clash(arguments)
    local form
    for _, known in ipairs(FORMS) do
        if arguments[known.flag] then
            if form then
                return ("--%s and --%s are two commands"):format(form.flag, known.flag)
            end
            form = known
        end
    end
    if not form and not arguments.file then
        return "takes an experiment, or --fit, --validate or --claims"
    end
    if form and arguments.file then
        return ("--%s takes no experiment (got %s)"):format(form.flag, arguments.file)
    end
    local takes = form and form.takes or PROJECTION
    for _, name in ipairs(OPTIONS) do
        if arguments[name] and not takes[name] then
            return ("--%s does not go with %s"):format(name,
                form and "--" .. form.flag or "an experiment")
        end
    end
    for _, name in ipairs(form and { "set", "only" } or {}) do
        if next(arguments[name] or {}) then
            return ("--%s does not go with --%s"):format(name, form.flag)
        end
    end
    if arguments.forward and arguments.recompute then
        return "--recompute says how backward runs, and --forward has none"
    end
    if arguments.sweep and arguments.trace then
        return "--trace is of single cases, not of a --sweep"
    end
end

-- Errors blame this call, which has no line: what stands before them is the cluster's file.
local function load_cluster(name)
    local ok, cluster = pcall(clusters.load, name)
    if ok then return cluster end
    return nil, tostring(cluster)
end

-- The job of an experiment, or nil and the sentence.
local function job_of(arguments)
    local chosen, message = selection.new { file = arguments.file, set = arguments.set,
        only = arguments.only }
    if not chosen then return nil, message end
    for _, name in ipairs { "stream", "model" } do
        if not chosen.script[name] then
            return nil, ("project: the experiment has no %s(case)"):format(name)
        end
    end
    local cluster, problem = load_cluster(arguments.cluster or "local")
    if not cluster then return nil, problem end
    return { chosen = chosen, script = chosen.script, cluster = cluster, nodes = arguments.nodes,
        dtype = arguments.dtype, forward = arguments.forward, recompute = arguments.recompute }
end

-- ---- a table of cases -------------------------------------------------------------------

local function print_lines(lines)
    io.stdout:write(table.concat(lines, "\n"), "\n")
end

local function counts_of(rows)
    local counts = { projected = 0, skipped = 0, error = 0 }
    for _, row in ipairs(rows) do counts[row.status] = counts[row.status] + 1 end
    return counts
end

-- Exit status and, where nothing came out of any case, why.
local function verdict(rows)
    local counts = counts_of(rows)
    if counts.error > 0 then return 1 end
    if counts.projected > 0 then return 0 end
    return 2, ("project: nothing to project: all %d cases are skipped (%s)"):format(#rows,
        rows[1] and rows[1].reason or "there are none")
end

-- Rows of all cases, written to the file as they come, and their timelines where asked for.
local function project_cases(job, sink, traced)
    local rows, timelines, chosen = {}, {}, job.chosen
    for i, case in ipairs(chosen.cases) do
        local row, step = cases.row(job, case, nil, chosen.reasons[case])
        rows[i] = row
        if sink then sink:put(tables.json(job, row, step)) end
        if traced and step then
            timelines[#timelines + 1] = { name = sweep.describe(case, chosen.axes),
                n_ranks = case.cp, seconds = step.seconds, events = step.ranks }
        end
    end
    return rows, timelines
end

local function run_table(job, outputs)
    local rows, timelines = project_cases(job, outputs.json, outputs.trace)
    print_lines(tables.cases(job, rows))
    if outputs.trace then
        local ok, text = pcall(timeline.encode, timelines)
        if not ok then return 1, "project: " .. text end
        outputs.trace:put(text)
    end
    return verdict(rows)
end

-- ---- curves -----------------------------------------------------------------------------

-- The axis whose values have a curve each.
local function compared(job)
    return job.chosen.sweep.policy and "policy" or job.chosen.sweep.layout and "layout"
end

-- Names a curve's group: all axes but the one that is compared and what is swept.
local function group_of(job, case, axis)
    local left_out, words = { [compared(job) or axis] = true, [axis] = true }, {}
    if axis == "nodes" then left_out.cp = true end
    for _, name in ipairs(job.chosen.axes) do
        if not left_out[name] then words[#words + 1] = name .. "=" .. sweep.label(case[name]) end
    end
    return table.concat(words, " ")
end

-- Groups of cases: name, policies (or layouts) in order, and a case of each. Cases that differ in
-- what is swept alone are one.
local function groups_of(job, axis)
    local groups, by_name = {}, {}
    for _, case in ipairs(job.chosen.cases) do
        if not job.chosen.reasons[case] then
            local name = group_of(job, case, axis)
            local group = by_name[name]
            if not group then
                group = { name = name, policies = {}, cases = {}, points = {} }
                groups[#groups + 1], by_name[name] = group, group
            end
            local policy = sweep.label(case[compared(job)] or "the model's")
            if not group.cases[policy] then
                group.policies[#group.policies + 1], group.cases[policy] = policy, case
            end
        end
    end
    return groups
end

-- One point of a curve: a row of each policy.
local function point_of(job, group, size, sink, rows)
    local point = { x = size.value, seconds = {}, rows = {} }
    for _, policy in ipairs(group.policies) do
        local case, reason = cases.at(group.cases[policy], size.axis, size.value, job.cluster)
        local row, step = cases.row(job, case or group.cases[policy], size, reason)
        point.seconds[policy], point.rows[policy] = row.seconds, row
        point.cp = case and case.cp
        rows[#rows + 1] = row
        if sink then sink:put(tables.json(job, row, step, size)) end
    end
    return point
end

local function run_sweep(job, asked, outputs)
    local rows, is_first = {}, true
    for _, group in ipairs(groups_of(job, asked.axis)) do
        for i, value in ipairs(asked.values) do
            group.points[i] = point_of(job, group, { axis = asked.axis, value = value },
                outputs.json, rows)
        end
        if not is_first then io.stdout:write "\n" end
        print_lines(tables.curves(job, group, asked.axis))
        is_first = false
    end
    return verdict(rows)
end

-- ---- the command ------------------------------------------------------------------------

local function run_experiment(arguments)
    local asked, message
    if arguments.sweep then
        asked, message = curves.read(arguments.sweep, SWEPT)
        if not asked then return 2, message end
    end
    local job, problem = job_of(arguments)
    if not job then return 2, problem end
    local outputs, wrong = files.open({ json = arguments.json, trace = arguments.trace },
        arguments.file)
    if not outputs then return 2, wrong end
    local status, sentence
    if asked then
        status, sentence = run_sweep(job, asked, outputs)
    else
        status, sentence = run_table(job, outputs)
    end
    local unwritten = files.close(outputs)
    if unwritten then return 2, unwritten end
    return status, sentence
end

local function run_claims(arguments)
    local outputs, wrong = files.open { json = arguments.json }
    if not outputs then return 2, wrong end
    local rows = require("cplab.claims").rows()
    print_lines(tables.claims(rows))
    for _, row in ipairs(rows) do
        if outputs.json then outputs.json:put(tables.claim_json(row)) end
    end
    local unwritten = files.close(outputs)
    if unwritten then return 2, unwritten end
    for _, row in ipairs(rows) do
        if row.verdict == "off" then
            return 1, ("project: claim '%s' is not reproduced"):format(row.name)
        end
    end
    return 0
end

--- Carries the command out.
-- @tparam table arguments file, cluster, nodes, set, only, dtype, forward, recompute, sweep, json,
-- trace, claims, fit, out, validate
-- @treturn number exit status: 1 where a case ended with an error, a claim is not reproduced, or
-- the model misses its aim on this machine
-- @treturn ?string what to tell the user
function M.run(arguments)
    local problem = clash(arguments)
    if problem then return 2, "project: " .. problem end
    if arguments.claims then return run_claims(arguments) end
    if arguments.fit then return require("cplab.project.fit").run(arguments) end
    if arguments.validate then
        local status, sentence = require("cplab.project.validate").run(arguments)
        io.stdout:write "\n"
        local claims, other = run_claims {}
        return math.max(status, claims), sentence or other
    end
    return run_experiment(arguments)
end

return M
