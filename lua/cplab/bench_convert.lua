--- The command `bench convert`: what changing the layout of rows costs, by size, layouts, method
-- and dtype, beside what copying as many rows costs on the same machine, or card, in the same run.
-- Each row of the table is checked bit for bit, and with a trace, before a time of it is printed.
-- @module cplab.bench_convert
local cases = require "cplab.bench.cases"
local environment = require "cplab.environment"
local figures = require "cplab.bench.figures"
local options = require "cplab.bench.options"
local outcome = require "cplab.bench.outcome"
local ranks = require "cplab.ranks"
local surveys = require "cplab.bench.survey"
local tables = require "cplab.bench.table"

local M = {}

-- The survey copies a shard of the largest size, but no more than this.
local MAX_SURVEY_BYTES = 2 ^ 28

local function run_ranks(chosen, job, case)
    return ranks.run(chosen.cp * chosen.tp, chosen.deadline, "cplab.bench.rank",
        { job = job, case = case })
end

-- ---- before the table ---------------------------------------------------------------

local function print_survey(env, chosen)
    local version = table.concat({ env.version, env.commit }, " ")
    print(("# cplab %s, %s, %d core%s"):format(version, env.cpu, env.cores,
        env.cores == 1 and "" or "s"))
    print(("# transport %s, %d ranks (cp %d, tp %d), %d iterations after %d"):format(env.transport,
        chosen.cp * chosen.tp, chosen.cp, chosen.tp, chosen.iters, chosen.warmup))
    surveys.print_cards(env)
    surveys.print_copies(env)
end

-- What all rows have in common, and the head. Returns the table, which prints its rows.
local function begin_table(list, env)
    local rows = {}
    for i, case in ipairs(list) do rows[i] = figures.without_times(case) end
    local shown = tables.new(rows, env.transport, env.cards ~= nil)
    for _, line in ipairs(shown:preface()) do print(line) end
    print(shown:head())
    return shown
end

-- ---- rows ---------------------------------------------------------------------------

local function row_of(chosen, case)
    if case.reason then return figures.without_times(case, "skipped", case.reason) end
    local results, failure = run_ranks(chosen, "row", case)
    if not results then
        return figures.without_times(case, "error", outcome.sentence(failure)), failure
    end
    local measured = results[1]
    if measured.skipped then return figures.without_times(case, "skipped", measured.skipped) end
    return figures.row(case, measured)
end

-- Rows are there as soon as they are known, in a table or else as JSON. Returns why one cannot be
-- written.
local function show(row, env, shown)
    row.transport = env.transport
    if shown then return outcome.print(shown:line(row)) end
    row.env = env
    return outcome.print(tables.json(row))
end

-- A method that nobody named, and that is none for this route or transport: said once, at the end,
-- without the route, which stands behind a semicolon.
local function leave_out(left_out, row)
    local method = row.method .. (row.launch == "graph" and " from a graph" or "")
    local entry = left_out[method]
    if not entry then
        entry = { method = method, reason = row.reason:match "^[^;]+", n = 0 }
        left_out[method], left_out[#left_out + 1] = entry, entry
    end
    entry.n = entry.n + 1
end

local function show_left_out(left_out)
    for _, entry in ipairs(left_out) do
        print(("# left out: %d row%s by %s, the first since %s"):format(entry.n,
            entry.n == 1 and "" or "s", entry.method, entry.reason))
    end
end

-- A rank that does not return would disturb every later time.
local function run_cases(chosen, list, env, shown)
    local counts, left_out = { ok = 0, wrong = 0, skipped = 0, error = 0 }, {}
    for i, case in ipairs(list) do
        local row, failure = row_of(chosen, case)
        counts[row.status] = counts[row.status] + 1
        local is_unnamed = chosen.all_methods and row.status == "skipped" and not case.reason
        if is_unnamed and shown then
            leave_out(left_out, row)
        else
            counts.unwritten = show(row, env, shown)
        end
        if failure then outcome.show_failure(failure) end
        counts.left = #list - i
        if counts.unwritten or failure and failure.is_stuck then break end
    end
    show_left_out(left_out)
    return counts
end

local function nothing_to_run(list)
    for _, case in ipairs(list) do
        if not case.reason then return nil end
    end
    return "bench convert: nothing is left to run: " .. list[1].reason
end

--- Carries the command out.
-- @tparam table arguments words of the command line, as `cplab.bench.options` reads them; json;
-- device, transport
-- @treturn number exit status: 1 where a row is wrong or ended with an error, 3 where there is no
-- such device, or it does not serve so many ranks
-- @treturn ?string what to tell the user
function M.run(arguments)
    local _, processes = environment.transport()
    local chosen, message = options.read(arguments, processes)
    if not chosen then return 2, message end
    local list = cases.make(chosen)
    local nothing = nothing_to_run(list)
    if nothing then return 2, nothing end
    local device = arguments.device or "cpu"
    local is_there, missing = environment.use_device(device, arguments.transport)
    if not is_there then return chosen.on_device and 3 or 2, missing end
    local env, problem = surveys.run { n_ranks = chosen.cp * chosen.tp, device = device,
        deadline = chosen.deadline,
        bytes = math.min(chosen.sizes[#chosen.sizes], MAX_SURVEY_BYTES) }
    if not env then return chosen.on_device and 3 or 1, "bench convert: " .. problem end
    local shown
    if not arguments.json then
        print_survey(env, chosen)
        shown = begin_table(list, env)
    end
    return outcome.verdict("bench convert", run_cases(chosen, list, env, shown))
end

return M
