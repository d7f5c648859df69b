--- `project --validate`: how far the cost model is off on this machine. In every round the short
-- calls of `--fit` are measured and then each of the held-out steps; the fit is of the medians of
-- the one, the judgement of the medians of the other. No step takes part in the fit.
--
-- A step's time is that of its slowest rank, on the clock on the wall. Beside it stands what all
-- threads spent, over the processors that the ranks can use: on an idle machine the two are nearly
-- the same; where they are not, something else ran.
-- @module cplab.project.validate
local clib = require "clib"
local costs = require "cplab.cost"
local files = require "cplab.project.files"
local fit = require "cplab.project.fit"
local json = require "cplab.json"
local ranks = require "cplab.ranks"
local report = require "cplab.report"
local statistics = require "cplab.bench.statistics"
local steps = require "cplab.project.steps"

local C = clib.C

local M = {}

--- The aim: errors of predicted against measured times.
M.aim = { mean = 0.15, worst = 0.30 }

-- At least and at most so many rounds; no new one begins after so many seconds.
local ROUNDS = { least = 3, most = 7, seconds = 75 }
local DEADLINE, WARMUP, ITERS, FIT_ROUNDS = 60, 1, 2, 3

-- From here on wall clock and CPU time of a step say that others used the machine.
local DISTURBED = 1.15

-- ---- measuring ------------------------------------------------------------------------

local function add_points(rounds, points)
    for i, point in ipairs(points) do
        local all = rounds[i] or { kind = point.kind, x = point.x, n_messages = point.n_messages,
            kept = point.kept, calls = point.calls, seconds = {}, wall = {} }
        rounds[i] = all
        table.insert(all.seconds, point.seconds)
        table.insert(all.wall, point.wall)
    end
end

-- The points of the fit as medians over rounds.
local function medians(rounds)
    local points = {}
    for i, all in ipairs(rounds) do
        points[i] = { kind = all.kind, x = all.x, n_messages = all.n_messages, kept = all.kept,
            calls = all.calls,
            seconds = statistics.quantile(all.seconds, 0.5),
            wall = statistics.quantile(all.wall, 0.5) }
    end
    return points
end

local function measure_step(case, samples)
    local results, failure = ranks.run(case.cp, DEADLINE, "cplab.project.validate_rank",
        { case = case, warmup = WARMUP, iters = ITERS })
    if not results then return ("%s: %s"):format(steps.describe(case), failure.reason) end
    for _, iteration in ipairs(results[1]) do
        table.insert(samples.seconds, iteration.seconds)
        table.insert(samples.busy, iteration.busy)
    end
end

--- Measures fit and steps in turn.
-- @tparam table list of cplab.project.steps
-- @tparam ?function progress told of every round
-- @treturn ?table points of the fit
-- @treturn table|string a list of { seconds =, busy = } (medians) by case; or the sentence
function M.measure(list, progress)
    local rounds, samples, start = {}, {}, C.cpl_clock()
    for i in ipairs(list) do samples[i] = { seconds = {}, busy = {} } end
    for round = 1, ROUNDS.most do
        if round > ROUNDS.least and C.cpl_clock() - start > ROUNDS.seconds then break end
        if progress then progress(round) end
        local points, problem = fit.measure(nil, FIT_ROUNDS)
        if not points then return nil, problem end
        add_points(rounds, points)
        for i, case in ipairs(list) do
            local wrong = measure_step(case, samples[i])
            if wrong then return nil, wrong end
        end
    end
    local measured = {}
    for i, sample in ipairs(samples) do
        measured[i] = { seconds = statistics.quantile(sample.seconds, 0.5),
            busy = statistics.quantile(sample.busy, 0.5), n = #sample.seconds }
    end
    return medians(rounds), measured
end

-- ---- judging --------------------------------------------------------------------------

--- Seconds that a cluster predicts for a case.
function M.predict(cluster, case)
    local model, stream = steps.model(case), steps.stream(case)
    local assignment = model:assignment(stream, { cp = case.cp, tp = 1 })
    return costs.new { cluster = cluster, model = model, stream = stream, cp = case.cp }
        :step(assignment).seconds
end

-- Mean and largest absolute value of a field of rows.
local function spread(rows, field)
    local sum, worst = 0, 0
    for _, row in ipairs(rows) do
        sum, worst = sum + math.abs(row[field]), math.max(worst, math.abs(row[field]))
    end
    return sum / #rows, worst
end

--- Judges predictions, by the clock on the wall.
-- @tparam table list cases
-- @tparam table measured seconds and busy by case
-- @tparam table predicted seconds by case
-- @tparam number cores
-- @treturn table rows { name, measured, cpu (seconds), predicted, error, cpu_error,
-- is_disturbed }, mean, worst, cpu_mean, cpu_worst, passed
function M.judge(list, measured, predicted, cores)
    local verdict = { rows = {} }
    for i, case in ipairs(list) do
        local wall, cpu = measured[i].seconds, measured[i].busy / math.min(case.cp, cores)
        verdict.rows[i] = { name = steps.describe(case), measured = wall, cpu = cpu,
            predicted = predicted[i], error = predicted[i] / wall - 1,
            cpu_error = predicted[i] / cpu - 1, is_disturbed = wall > DISTURBED * cpu }
    end
    verdict.mean, verdict.worst = spread(verdict.rows, "error")
    verdict.cpu_mean, verdict.cpu_worst = spread(verdict.rows, "cpu_error")
    verdict.passed = verdict.mean <= M.aim.mean and verdict.worst <= M.aim.worst
    return verdict
end

local function percent(x)
    return ("%+.1f"):format(100 * x)
end

--- The table of a judgement, and its sentence.
-- @treturn {string,...}
function M.lines(verdict, machine)
    local body, disturbed = {}, 0
    for i, row in ipairs(verdict.rows) do
        body[i] = { row.name, ("%.2f"):format(row.measured * 1e3),
            ("%.2f"):format(row.predicted * 1e3), percent(row.error),
            ("%.2f"):format(row.cpu * 1e3), percent(row.cpu_error),
            row.is_disturbed and "disturbed" or "" }
        disturbed = disturbed + (row.is_disturbed and 1 or 0)
    end
    local lines = report.layout({ "held-out step", "measured ms", "predicted ms", "error %",
        "cpu ms", "error %", "" }, body)
    table.insert(lines, 1, "# " .. machine .. ", ranks are threads; medians of interleaved steps")
    lines[#lines + 1] = ("error of the prediction: mean %.1f %%, worst %.1f %%; aim %g and %g %%")
        :format(100 * verdict.mean, 100 * verdict.worst, 100 * M.aim.mean, 100 * M.aim.worst)
    if disturbed > 0 then
        lines[#lines + 1] = ("%d step%s took much longer than the CPU time of its ranks: something "
            .. "else used this machine; against CPU time the error is %.1f and %.1f %%"):format(
            disturbed, disturbed == 1 and "" or "s", 100 * verdict.cpu_mean,
            100 * verdict.cpu_worst)
    end
    return lines
end

local ORDER = { "schema", "step", "measured_ms", "predicted_ms", "error", "cpu_ms", "cpu_error" }

local function row_json(row)
    return json.encode({ schema = "cplab.validation/1", step = row.name,
        measured_ms = row.measured * 1e3, predicted_ms = row.predicted * 1e3, error = row.error,
        cpu_ms = row.cpu * 1e3, cpu_error = row.cpu_error }, ORDER) .. "\n"
end

-- ---- the command ------------------------------------------------------------------------

local function tell(round)
    io.stderr:write(("cplab: validate: round %d\n"):format(round))
end

local function without_place(message)
    return (tostring(message):gsub("^[^\n]-%.lua:%d+: ", ""))
end

--- Carries `project --validate` out.
-- @tparam table arguments json
-- @treturn number exit status: 1 where the aim is missed
-- @treturn ?string
function M.run(arguments)
    local refusal = fit.refusal()
    if refusal then return 2, refusal end
    local outputs, wrong = files.open { json = arguments.json }
    if not outputs then return 2, wrong end
    local points, measured = M.measure(steps.cases, tell)
    if not points then return 1, "project: " .. measured end
    local machine, cores = fit.machine()
    local ok, numbers = pcall(fit.numbers, points, cores)
    if not ok then return 1, "project: " .. without_place(numbers) end
    local cluster, predicted = fit.cluster(fit.text(numbers, machine)), {}
    for i, case in ipairs(steps.cases) do predicted[i] = M.predict(cluster, case) end
    local verdict = M.judge(steps.cases, measured, predicted, cores)
    io.stdout:write(table.concat(M.lines(verdict, machine), "\n"), "\n")
    for _, row in ipairs(verdict.rows) do
        if outputs.json then outputs.json:put(row_json(row)) end
    end
    local unwritten = files.close(outputs)
    if unwritten then return 2, unwritten end
    if verdict.passed then return 0 end
    return 1, "project: the prediction misses its aim"
end

return M
