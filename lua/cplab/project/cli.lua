--- The command line of `project`.
-- @module cplab.project.cli
local M = {}

local ABOUT = [[
What a step of an experiment would cost on a cluster, forward and backward. Nothing is run.

Work, bytes and messages are counted exactly, per rank, from layouts and routes; the busiest rank
sets the time. Their prices are the cluster's: a name (local, a100, h100, h200, gb200, gb300) or a
Lua file, in which every number has its source. compute + comm + convert + host = step; comm is what
no work hides; busiest MiB is what the busiest rank sends or receives; imbalance the largest work of
a rank over the mean, of the mixer where it is worst.

--sweep gives the step time of every policy at each size, and where their curves cross, in
logarithms between two sizes. tokens are those of the stream (a script that has no axis or param
tokens has its sequences scaled); cp is the group's; nodes are filled with CP ranks.

--trace writes the time of each CP rank for chrome://tracing or Perfetto, --json one object a case.

--fit measures this machine and prints a cluster file; --validate fits on some sizes, predicts steps
of others and measures them: exit status 1 if the mean error is above 15 % or the worst above 30 %.
--claims recomputes published results from counts, and names the inputs that nobody published.]]

--- Adds the command.
-- @param parser of argparse
-- @tparam function whole makes the reader of a whole number from an option's name and least value
-- @tparam function add_filters adds --set and --only
function M.add(parser, whole, add_filters)
    local command = parser:command("project", ABOUT)
    command:summary "Project steps of an experiment to a cluster; fit and validate the model."
    command:argument("file", "The experiment, a Lua script."):args "?":argname "FILE"
    add_filters(command)
    command:option("--cluster", "A cluster's name, or a Lua file. Default: local."):argname "NAME"
    command:option("--nodes", "How many nodes there are; larger cases are skipped. Default: what "
        .. "each case needs."):convert(whole("--nodes", 1)):argname "N"
    command:option("--dtype", "Type of rows and products. Default: bf16; where ranks share cores, "
        .. "the model's."):choices { "bf16", "f32", "f64" }
    command:flag("--forward", "The forward pass alone.")
    command:flag("--recompute", "Layers keep their input alone and run forward again.")
    command:option("--sweep", "Step times over a size: tokens=8k..1m, cp=4..64, nodes=1,2,4; a "
        .. "range doubles, k and m are binary."):argname "AXIS=SIZES"
    command:option("--json", "Write one JSON object a line."):argname "PATH"
    command:option("--trace", "Write a timeline of every rank."):argname "PATH"
    command:flag("--fit", "Measure this machine and print its cluster file.")
    command:option("--out", "With --fit: write it there instead."):argname "PATH"
    command:flag("--validate", "Predict steps of this machine, measure them, say how far off; and "
        .. "the claims.")
    command:flag("--claims", "Recompute published results.")
end

return M
