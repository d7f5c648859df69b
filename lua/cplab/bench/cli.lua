--- The command line of `bench`: what it can measure, and the options of each.
-- @module cplab.bench.cli
local M = {}

local function add_route(bench, whole)
    local command = bench:command("route", "Building one rank's part of a route.")
    command:option("--iters", "Repetitions of each row. Default: 11."):convert(whole("--iters", 1))
        :argname "N"
    command:flag("--json", "Print one JSON object a row.")
end

local function add_plan(bench, whole)
    local command = bench:command("plan", "Planning the layouts of a stack of 96 layers.")
    command:option("--iters", "Repetitions of each row. Default: 7."):convert(whole("--iters", 1))
        :argname "N"
    command:flag("--json", "Print one JSON object a row.")
end

local CONVERT = [[
Changing the layout of rows, checked bit for bit.

Lists (separated by commas) give a row for each combination. A time is from the moment when the
first rank leaves a barrier until the last rank is done; min, median and p99 (nearest rank) are
over the iterations. algbw is bytes of a shard / median; busbw is the bytes that cross on the
busiest rank (the larger of in and out) / median; GB/s are 10^9 bytes.

In the same iteration all ranks at once memcpy a shard out of place, in one call each, in memory of
the same kind: copy us is the median of that. %copy is (bytes written / median us) / (bytes copied
/ copy us), over all ranks. Out of place every row is written, so that is copy us / median us; in
place rows that keep their slot are not written, so compare median us with that of zigzag and with
copy us.
With --device cuda the times are the devices' own (CUDA events around each exchange in each
rank's stream; no host waits in the loop): of the slowest card, from when the first of its ranks
begins until the last is done. copy us is cudaMemcpyAsync from device to device, timed alike. host
us is how long the slowest host takes to ask for an exchange: where that is no less than the time,
it is what the time says. Each row stands twice: launched one by one (eager), and replayed from a
captured graph. cuda-emulated checks the rows; its times mean nothing.
Over MPI, plain us is a hand-written MPI_Isend and MPI_Irecv of the bytes that cross and then a
memcpy of those that stay, and %plain is plain us / median us. A round trip has two passes, and so
have its copies.

#wrong counts rows that are not bit for bit what they must be; no time is printed if there are any,
and the exit status is 1.]]

local function add_rows(command, whole)
    command:option("-b --min-bytes", "Least bytes of a rank's shard: 1024, 64K, 16M, 2G. "
        .. "Default: 1M."):argname "SIZE"
    command:option("-e --max-bytes", "Largest. Default: 64M."):argname "SIZE"
    command:option("-f --step-factor", "From one size to the next. Default: 4."):argname "FACTOR"
    command:option("--width", "Elements of a row."):convert(whole("--width", 1)):argname "N"
    command:option("--row-bytes", "Bytes of a row. Default: 4096.")
        :convert(whole("--row-bytes", 1)):argname "N"
    command:option("--dtype", "Storage types, or all. Default: f32."):argname "NAMES"
    command:option("--sequences", "Numbers of equal sequences. Default: 1."):argname "LIST"
    command:option("--lengths", "One pack of these lengths, all scaled by one factor to the size.")
        :argname "LIST"
    command:option("--pack", "Packs of drawn lengths: one, two, long+short, log-normal 16k, "
        .. "log-normal 1k, pareto; or all."):argname "NAMES"
end

local function add_group(command, whole)
    command:option("--cp", "Context-parallel ranks. Default: 4 / tp; under mpirun, its processes "
        .. "/ tp."):convert(whole("--cp", 1)):argname "N"
    command:option("--tp", "Tensor-parallel ranks. Default: 1."):convert(whole("--tp", 1))
        :argname "N"
    command:option("--from", "Layouts to start from, or all. Default: zigzag,mirror,balanced.")
        :argname "KINDS"
    command:option("--to", "Layouts to go to, or all. Default: contiguous."):argname "KINDS"
    command:option("--method", "Ways to exchange, all of them, or auto. Default: all.")
        :argname "NAMES"
    command:flag("--in-place", "Source and target are the same memory.")
    command:flag("--adjoint", "The way of gradients: rows go from --to back to --from.")
    command:flag("--round-trip", "There and back; two passes.")
end

local function add_device(command)
    command:option("--device", "Where the rows are. Default: cpu."):argname "NAME"
        :choices { "cpu", "cuda", "cuda-emulated" }
    command:option("--transport", "How ranks on devices reach each other: direct (threads, on one "
        .. "device or several) or nccl (a device a rank). Default: direct among threads, nccl "
        .. "under mpirun."):argname "NAME":choices { "direct", "nccl" }
end

local function add_convert(bench, whole, seconds)
    local command = bench:command("convert", CONVERT)
    command:summary "Changing the layout of rows."
    add_device(command)
    add_rows(command, whole)
    add_group(command, whole)
    command:option("-n --iters", "Timed iterations. Default: 20."):convert(whole("--iters", 1))
        :argname "N"
    command:option("-w --warmup", "Iterations before them. Default: 5.")
        :convert(whole("--warmup", 0)):argname "N"
    command:option("--seed", "Seed of packs. Default: 0."):convert(whole("--seed", 0)):argname "N"
    command:option("--deadline", "Seconds after which a wait for another rank fails. "
        .. "Default: 60."):convert(seconds):argname "S"
    command:flag("--json", "Print one JSON object a row.")
    -- Specs plant a fault to see that it is found.
    command:option("--fault", "A fault to be found."):hidden(true)
        :choices { "check", "source", "loop", "still", "allocation", "rank", "late", "stuck",
            "trace", "wait" }
end

--- Adds the command.
-- @param parser of argparse
-- @tparam function whole makes the reader of a whole number from an option's name and least value
-- @tparam function seconds reads a deadline
function M.add(parser, whole, seconds)
    local bench = parser:command("bench", "Measure a part of cplab on this machine.")
    bench:command_target "what"
    add_route(bench, whole)
    add_plan(bench, whole)
    add_convert(bench, whole, seconds)
    require("cplab.bench.compute_cli").add(bench, whole, seconds, add_device)
end

return M
