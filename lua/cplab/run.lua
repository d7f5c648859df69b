--- The command `run`: sweep, progress, results and the table. Everything that can be known to be
-- wrong is known before the first case, and before a file is opened.
-- @module cplab.run
local clib = require "clib"
local environment = require "cplab.environment"
local progress = require "cplab.progress"
local report = require "cplab.report"
local results = require "cplab.results"
local selection = require "cplab.selection"
local step_graph = require "cplab.step_graph"
local sweep = require "cplab.sweep"

local C = clib.C

local M = {}

local function say(text)
    io.stderr:write("cplab: ", text, "\n")
end

local function is_terminal(fd)
    return C.cpl_host_is_terminal(fd)
end

--- Whether results on stdout may have colour. What a process under mpirun takes for a terminal may
-- end in a file.
function M.colour()
    return C.cpl_host_n_processes() == 0 and is_terminal(1) and os.getenv "NO_COLOR" == nil
        and os.getenv "TERM" ~= "dumb"
end

local function options_of(chosen, arguments)
    return {
        dtype = chosen.dtype, seed = arguments.seed, iters = arguments.iters,
        warmup = arguments.warmup, device = arguments.device or "cpu", params = chosen.params,
        trace_tokens = arguments.trace_tokens or false, deadline = arguments.deadline or 60,
        graphs = arguments.graphs,
    }
end

local function list(chosen)
    for _, case in ipairs(chosen.cases) do
        local reason = chosen.reasons[case]
        local n = sweep.n_ranks(case)
        io.stdout:write(sweep.describe(case, chosen.axes), "  ", reason and "skipped: " .. reason
            or ("%d rank%s"):format(n, n == 1 and "" or "s"), "\n")
    end
end

-- ---- outputs ------------------------------------------------------------------

local function case_keys(chosen)
    local keys = {}
    for _, axis in ipairs(chosen.axes) do keys[#keys + 1] = axis end
    for _, name in ipairs { "cp", "tp" } do
        if not chosen.sweep[name] then keys[#keys + 1] = name end
    end
    return keys
end

-- Metrics of the script's own that its table names.
local function extra_metrics(chosen)
    local extra = {}
    for _, name in ipairs(chosen.script.report or {}) do
        if type(name) == "string" and not report.columns[name] then extra[#extra + 1] = name end
    end
    return extra
end

local function named_outputs(arguments)
    local outputs = {}
    for _, name in ipairs { "json", "csv" } do
        if arguments[name] then outputs[#outputs + 1] = { "--" .. name, arguments[name] } end
    end
    return outputs
end

local function open_outputs(chosen, arguments)
    local paths = {}
    for i, output in ipairs(named_outputs(arguments)) do paths[i] = output[2] end
    local ok, message = results.writable(paths)
    if not ok then return nil, message end
    local outputs = { old = {} }
    if arguments.json then
        local sink, old = results.json_lines(arguments.json, arguments.resume)
        if not sink then return nil, old end
        outputs[#outputs + 1], outputs.old = sink, old
        outputs.json = sink
    end
    if arguments.csv then
        local sink, problem = results.csv(arguments.csv, case_keys(chosen), extra_metrics(chosen))
        if not sink then return nil, problem end
        outputs[#outputs + 1] = sink
    end
    return outputs
end

local function finished_before(outputs)
    local finished = {}
    for _, result in ipairs(outputs.old) do
        if result.status ~= "skipped" or finished[results.key(result)] == nil then
            finished[results.key(result)] = result
        end
    end
    return finished
end

-- ---- the loop -------------------------------------------------------------------

local function run_case(chosen, case, options)
    local reason = chosen.reasons[case]
    if reason then return { status = "skipped", reason = reason } end
    return require("cplab.case_run").run(chosen.file, case, options)
end

-- The machine's description, with the dtype and seed that the case computes with.
local function env_of(chosen, case, state)
    local env = {}
    for name, value in pairs(state.env) do env[name] = value end
    local ok, model = pcall(chosen.script.model or function() end, case)
    model = ok and type(model) == "table" and model or {}
    env.dtype = state.options.dtype or model.dtype
    env.seed = state.options.seed or model.seed
    return env
end

local function show_traceback(result, text, bar)
    if result.status ~= "error" then return end
    bar:clear()
    say(("%s: error: %s"):format(text, result.reason))
    if result.traceback and result.traceback ~= "" then
        io.stderr:write(result.traceback, "\n")
    end
end

-- The finished case of an earlier run, if there is one, and what names the case.
local function from_file(chosen, case, state)
    local name = { experiment = chosen.script.name, case = case, env = env_of(chosen, case, state) }
    local old = state.finished[results.key(name)]
    if old and old.status == "skipped" and not chosen.reasons[case] then old = nil end
    return old, name
end

local function count_old(chosen, state)
    local n = 0
    for _, case in ipairs(chosen.cases) do
        if from_file(chosen, case, state) then n = n + 1 end
    end
    return n
end

-- Takes a finished case from an earlier run, or runs it.
local function one_case(chosen, case, state)
    local old, name = from_file(chosen, case, state)
    if old then return old, true end
    local text = sweep.describe(case, chosen.axes)
    local start = C.cpl_clock()
    state.bar:begin(text)
    local result = run_case(chosen, case, state.options)
    for field, value in pairs(name) do result[field] = value end
    show_traceback(result, text, state.bar)
    state.bar:finish(text, result.status, C.cpl_clock() - start)
    return result, false
end

-- A full disk ends a file, not the sweep.
local function put(outputs, result, is_old, chosen, bar)
    for _, sink in ipairs(outputs) do
        if not (is_old and sink == outputs.json) then
            local _, message = sink:put(result, chosen.axes)
            if message then
                bar:clear()
                say(message)
                outputs.failed = true
            end
        end
    end
end

local function run_all(chosen, outputs, state)
    local all = {}
    for i, case in ipairs(chosen.cases) do
        local result, is_old = one_case(chosen, case, state)
        all[i] = result
        put(outputs, result, is_old, chosen, state.bar)
    end
    state.bar:clear()
    return all
end

local function verdict(all, outputs)
    if outputs.failed then return 2 end
    local counts = report.count(all)
    return counts.failed + counts.error > 0 and 1 or 0
end

local function execute(chosen, arguments)
    local outputs, message = open_outputs(chosen, arguments)
    if not outputs then return nil, message end
    local options = options_of(chosen, arguments)
    local state = {
        options = options, env = environment.describe(options),
        finished = finished_before(outputs),
    }
    local n_old = arguments.resume and count_old(chosen, state) or 0
    if arguments.resume then
        say(("resume: %d of %d case%s from %s"):format(n_old, #chosen.cases,
            #chosen.cases == 1 and "" or "s", arguments.json))
    end
    state.bar = progress.new(#chosen.cases - n_old, is_terminal(2))
    local all = run_all(chosen, outputs, state)
    for _, sink in ipairs(outputs) do sink:close() end
    local lines = report.table(all, {
        axes = chosen.axes, columns = chosen.script.report, colour = M.colour(),
    })
    io.stdout:write(table.concat(lines, "\n"), "\n")
    return verdict(all, outputs)
end

-- Where ranks are processes, there are no more of them than mpirun started.
local function check_ranks(arguments)
    local _, processes = environment.transport()
    if processes and arguments.ranks and arguments.ranks > processes then
        return nil, ("run: --ranks is %d, but mpirun started %d process%s"):format(arguments.ranks,
            processes, processes == 1 and "" or "es")
    end
    arguments.processes = processes
    return true
end

-- What is said of options that do not go together.
local function clash_of(arguments)
    local is_on_device = (arguments.device or "cpu") ~= "cpu"
    local graphs = arguments.graphs
    if arguments.resume and not arguments.json then
        return "--resume needs --json FILE"
    elseif arguments.transport and not is_on_device then
        return ("--transport %s is for rows on a device: it takes --device cuda or cuda-emulated")
            :format(arguments.transport)
    elseif graphs and not is_on_device then
        return "--graphs needs --device cuda: steps on the cpu are not captured"
    elseif graphs and graphs > step_graph.most then
        return ("--graphs takes a whole number in 1 .. %d, got '%d'"):format(step_graph.most,
            graphs)
    end
end

--- Runs an experiment as the command line asks.
-- @tparam table arguments as cplab.cli parses them
-- @treturn number exit status
function M.run(arguments)
    local clash = clash_of(arguments)
    if clash then say("run: " .. clash) return 2 end
    local distinct, same_file = results.distinct(named_outputs(arguments), arguments.file)
    if not distinct then say(same_file) return 2 end
    local enough, too_few = check_ranks(arguments)
    if not enough then say(too_few) return 2 end
    local chosen, message = selection.new(arguments)
    if not chosen then say(message) return 2 end
    require("cplab.corpus").notify = say
    local ok, problem = selection.check_input(chosen)
    if not ok then say(problem) return 2 end
    if arguments.list or arguments.dry_run then list(chosen) return 0 end
    local status, sentence = execute(chosen, arguments)
    if not status then say(sentence) return 2 end
    return status
end

return M
