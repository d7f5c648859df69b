--- The command line: what `./cplab COMMAND ...` means. Results go to stdout, everything else to
-- stderr. Exit status: 0 all cases passed, 1 a check failed or a case ended with an error, 2 wrong
-- usage or input, 3 the set-up is broken.
-- @module cplab.cli
local M = {}

local function whole(name, least)
    return function(text)
        local value = tonumber(text)
        if value and value == math.floor(value) and value >= least and value < 2 ^ 53 then
            return value
        end
        return nil, ("%s takes a whole number >= %d, got '%s'"):format(name, least, text)
    end
end

local function seconds(text)
    local value = tonumber(text)
    if value and value > 0 and value < math.huge then return value end
    return nil, ("--deadline takes seconds > 0, got '%s'"):format(text)
end

local function add_filters(command)
    command:option("--set", "Replace the values of an axis (commas separate them), or set a "
        .. "param. May be repeated."):argname "NAME=VALUE[,VALUE]":count "*"
    command:option("--only", "Keep the cases with these values of an axis (commas separate "
        .. "them). May be repeated."):argname "NAME=VALUE[,VALUE]":count "*"
end

local function add_selection(command)
    command:argument("file", "The experiment, a Lua script."):argname "FILE"
    add_filters(command)
end

local function add_run(parser)
    local command = parser:command("run", "Run an experiment and print its table.")
    add_selection(command)
    command:option("--ranks", "Ranks at hand; larger cases are skipped. "
        .. "Default: what the largest case needs; under mpirun, its processes.")
        :convert(whole("--ranks", 1)):argname "N"
    command:option("--device", "Where the kernels run. Default: cpu."):argname "NAME"
        :choices { "cpu", "cuda", "cuda-emulated" }
    command:option("--transport", "How ranks on devices reach each other: direct (threads, on one "
        .. "device or several) or nccl (a device a rank). Default: direct among threads, nccl "
        .. "under mpirun."):argname "NAME":choices { "direct", "nccl" }
    command:option("--dtype", "Storage type of the model: f64 for proofs, f32 for work, and "
        .. "on devices bf16."):choices { "f64", "f32", "bf16" }
    command:option("--deadline", "Seconds after which a wait for another rank fails. "
        .. "Default: 60."):convert(seconds):argname "S"
    command:option("--iters", "Timed steps."):convert(whole("--iters", 1)):argname "N"
    command:option("--warmup", "Steps before the timed ones."):convert(whole("--warmup", 0))
        :argname "N"
    command:option("--graphs", "On devices: steps are replayed from graphs, of the last N kinds of "
        .. "sequences; with the transport direct one graph also serves sequences that it has not "
        .. "seen. Steps that build routes are launched."):convert(whole("--graphs", 1)):argname "N"
    command:option("--seed", "Seed of parameters and data."):convert(whole("--seed", 0))
        :argname "N"
    command:flag("--trace-tokens", "Carry each row's position along and compare it everywhere.")
    command:option("--json", "Write one JSON object a case."):argname "PATH"
    command:option("--csv", "Write one line of comma-separated values a case."):argname "PATH"
    command:flag("--resume", "Keep what --json holds and run only the cases that it lacks.")
    command:flag("--list", "List the cases and run nothing.")
    command:flag("--dry-run", "Check script, input and options, list the cases, run nothing.")
end

local function add_route(parser)
    local command = parser:command("route",
        "Draw who holds what in two layouts of a stream, and what moves between them.")
    command:option("--cp", "Context-parallel ranks."):convert(whole("--cp", 1)):argname "N"
        :count(1)
    command:option("--tp", "Tensor-parallel ranks. Default: 1."):convert(whole("--tp", 1))
        :argname "N"
    command:option("--lengths", "Padded lengths of the sequences: 16,24, or @FILE, or - for "
        .. "standard input."):argname "LIST":count(1)
    command:option("--real", "Their real lengths, likewise."):argname "LIST"
    command:option("--from", "Layout to start from.", "zigzag"):argname "KIND"
    command:option("--to", "Layout to go to.", "contiguous"):argname "KIND"
    command:flag("--json", "Print runs, segments, matrix and sums as JSON.")
    command:option("--matrix", "Write the send matrix in bytes, as nccl-tests' alltoallv reads it "
        .. "(- for standard output)."):argname "PATH"
    command:option("--row-bytes", "Bytes of a row in --matrix. Default: 8192 (4096 of bf16).",
        8192):convert(whole("--row-bytes", 1)):argname "N"
end

local function add_others(parser)
    add_selection(parser:command("show",
        "Print schedule, layouts, conversions and bytes of each case; run nothing."))
    add_route(parser)
    require("cplab.project.cli").add(parser, whole, add_filters)
    require("cplab.bench.cli").add(parser, whole, seconds)
    local show = parser:command("report", "Print the table of a file of results.")
    show:argument("file", "What run --json wrote."):argname "FILE"
    local compare = parser:command("compare", "Print what changed between two files of results.")
    compare:argument("a", "What run --json wrote."):argname "A"
    compare:argument("b", "What another run wrote."):argname "B"
    parser:command("doctor", "Say what this machine and this build have.")
    -- The launcher carries it out; it stands here to be found.
    local test = parser:command("test", "Run the specs (a file or a folder, or all of them).")
    test:argument("paths", "Specs."):args "*":argname "PATH"
    test:flag("--all", "Everything that CI runs: linters, specs, sanitizers, MPI.")
    local mpirun = parser:command("mpirun", "Do what the words say with ranks that are processes: "
        .. "./cplab mpirun -n 4 run FILE.")
    mpirun:argument("words", "-n N, other options of mpirun, and a command of cplab.")
        :args "*":argname "WORD"
end

local function new_parser()
    local argparse = require "argparse"
    local parser = argparse("cplab", "A laboratory for context-parallel token layouts.",
        "Exit status: 0 all cases passed, 1 a check failed or a case ended with an error, "
        .. "2 wrong usage, 3 the set-up is broken.")
    parser:command_target "command"
    parser:flag("--version", "Print the version.")
    parser:require_command(false)
    add_run(parser)
    add_others(parser)
    return parser
end

-- ---- commands -----------------------------------------------------------------

local function say(text)
    io.stderr:write("cplab: ", text, "\n")
end

local function print_lines(lines)
    io.stdout:write(table.concat(lines, "\n"), "\n")
end

local commands = {}

function commands.run(arguments)
    local device = arguments.device or "cpu"
    local ok, message = require("cplab.environment").use_device(device, arguments.transport)
    if not ok then
        say(message)
        return device == "cpu" and 2 or 3
    end
    return require("cplab.run").run(arguments)
end

function commands.show(arguments)
    local sweep = require "cplab.sweep"
    local selection = require "cplab.selection"
    local chosen, message = selection.new(arguments)
    if not chosen then say(message) return 2 end
    for _, name in ipairs { "stream", "model" } do
        if not chosen.script[name] then
            say(("show: the experiment has no %s(case)"):format(name))
            return 2
        end
    end
    local describe = require("cplab.lab").describe
    for i, case in ipairs(chosen.cases) do
        local built, problem = selection.build(chosen, case)
        if not built then say(problem) return 2 end
        if i > 1 then io.stdout:write "\n" end
        io.stdout:write(sweep.describe(case, chosen.axes), "\n")
        local ok, lines = pcall(describe, chosen.script, case, { dtype = chosen.dtype })
        if not ok then say(tostring(lines)) return 2 end
        for _, line in ipairs(lines) do io.stdout:write("  ", line, "\n") end
    end
    return 0
end

function commands.report(arguments)
    local report, results = require "cplab.report", require "cplab.results"
    local list, message = results.read(arguments.file)
    if not list then say(message) return 2 end
    list = results.latest(list)
    if #list == 0 then
        say(("results: %s holds no finished case"):format(arguments.file))
        return 2
    end
    print_lines(report.table(list, {
        axes = report.varying(list), colour = require("cplab.run").colour(),
    }))
    local counts = report.count(list)
    return counts.failed + counts.error > 0 and 1 or 0
end

function commands.compare(arguments)
    local results = require "cplab.results"
    local a, message = results.read(arguments.a)
    if not a then say(message) return 2 end
    local b, problem = results.read(arguments.b)
    if not b then say(problem) return 2 end
    local lines, sentence = require("cplab.compare").lines(results.latest(a), results.latest(b))
    if not lines then say(sentence) return 2 end
    print_lines(lines)
    return 0
end

function commands.route(arguments)
    arguments.colour = require("cplab.run").colour()
    local status, message = require("cplab.route_command").run(arguments)
    if message then say(message) end
    return status
end

function commands.bench(arguments)
    local status, message = require("cplab.bench_" .. arguments.what).run(arguments)
    if message then say(message) end
    return status
end

function commands.project(arguments)
    local status, message = require("cplab.project").run(arguments)
    if message then say(message) end
    return status
end

function commands.doctor()
    print_lines(require("cplab.doctor").lines())
    return 0
end

local function leave_to_launcher(name)
    return function()
        say(("%s: is carried out by the launcher, ./cplab %s"):format(name, name))
        return 2
    end
end

commands.test = leave_to_launcher "test"
commands.mpirun = leave_to_launcher "mpirun"

local function version()
    local clib = require "clib"
    io.stdout:write("cplab ", clib.ffi.string(clib.C.cpl_version()), "\n")
    return 0
end

-- What cannot be shown is no success: buffered text reaches its end only here.
local function finish(status)
    local ok, message = io.stdout:flush()
    if ok then return status end
    say("cannot write standard output: " .. message)
    return 2
end

--- Carries a command line out.
-- @tparam table words the words after the program's name
-- @treturn number exit status
function M.main(words)
    local parser = new_parser()
    local ok, arguments = parser:pparse(words)
    if not ok then
        say(arguments:gsub("\nDid you", "; did you"):gsub("\n", " ") .. " (see ./cplab --help)")
        return 2
    end
    if arguments.version then return finish(version()) end
    if not arguments.command then
        io.stderr:write(parser:get_help(), "\n")
        return 2
    end
    return finish(commands[arguments.command](arguments))
end

return M
