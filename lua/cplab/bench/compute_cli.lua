--- The options of `bench gqa`, `bench gdn` and `bench step`.
-- @module cplab.bench.compute_cli
local M = {}

local HOW = [[
Times are the CPU time of the thread in milliseconds, least, median and p99 (nearest rank) of the
iterations; on an idle machine that is what the clock on the wall says (which --json gives too).
Each iteration runs a product of square matrices (--gemm) of the same dtype on one thread, then
what is measured, so that what disturbs the machine disturbs them alike; all ratios are of medians
of one run. GF/s are 10^9 operations a second.

With --device cuda the times are the device's own, by CUDA events around each part in its stream: no
host waits in the loop, and host ms is how long the host took to ask for forward and backward; where
that is no less than both ms, it is what both ms says. The product of matrices is the device's, by
cuBLAS where it is there (the head says which), and a copy from device to device runs beside it.
What is not said there is --tokens 32768 --dtype bf16 --gemm 8192 -n 20 -w 5. cuda-emulated checks
the numbers; its times mean nothing, and its sizes, also those that are not said, are small.

Nothing is timed that is not right first, and what the last timed iteration left is looked at again.
A row that is wrong prints no time; nor does one whose timed iterations took memory, or, with
--scan, whose memory grows by more than 2.1 when the tokens double. The exit status is then 1.]]

local GQA = [[
Causal attention: the kernel forward, and forward and backward together.

%fwd and %both are the rate of the kernel over that of the product of matrices beside it: at 16
heads of 128, f32, 4096 tokens the aim is 70 % forward and 60 % forward and backward; on an H200, in
bf16, at 32768 tokens 50 % forward. Operations are those of the pairs of a query and a key that it
sees, 4 D forward and 8 D backward a head and pair; what backward computes again is not counted.

Right means: a small case of the same shape (--small tokens) equals the naive kernel in double, all
outputs and gradients; and of the large case some queries' outputs and gradients and some keys'
gradients equal what a loop in double finds. Bounds: 1e-12 in f64, 1e-4 in f32, 2^-7 in bf16.

With --cp N the whole layer runs on N ranks in each cp_mode, and beside it in the same iterations on
one; busy is the CPU time of all ranks together, and busy/cp 1 says how much work the cut adds: the
aim is at most 1.15 for p2p at cp 4. Outputs, the input's gradient and those of the parameters must
be those of one rank.

]] .. HOW

local GDN = [[
The gated delta rule: the kernel forward, and forward and backward together.

%fwd and %both are the rate of the kernel over that of the product of matrices beside it: at 128 x
128, f32, 4096 tokens the aim is 60 % forward and 40 % forward and backward; on an H200, in bf16, at
32768 tokens 35 % forward. Operations are those of dense products at chunk 64, whichever chunk runs:
a value head and token forward 6 K V + 2 C (3 K + 2 V) + C^2 / 3, backward, with what it computes
again, 16 K V + 2 C (9 K + 5 V) + 4 C^2.

Right means: a small case of the same shape (--small tokens) equals the recurrence in double, all
outputs and gradients; and of the large case the heads that remember longest do, over all tokens.
Bounds: 1e-12 in f64, 1e-4 in f32, 2^-7 in bf16.

With --cp N the whole layer runs on N ranks in each cp_mode, and beside it in the same iterations on
one; busy is the CPU time of all ranks together, and busy/cp 1 says how much work the cut adds: the
aim is at most 1.15 for headwise at cp 4. Outputs, the input's gradient and those of the parameters
must be those of one rank.

]] .. HOW

local STEP = [[
A step of a whole hybrid model, forward and backward, by policy and number of ranks.

step, compute, convert and comm are those of the slowest rank in the iteration whose step is the
median, on the clock on the wall: compute + convert + comm = step. busy is the CPU time of all ranks
together (median), and busy/cp 1 that over the same model on one rank in the same iterations. convs
and conv MiB count the conversions of a step and the bytes that change rank in them. gemm is a
product of square matrices (--gemm) of the same dtype on one thread, copy a memcpy of 32 MiB (bytes
copied a second), both on one rank while the others wait.

With --device cuda the times are the devices' own, by CUDA events: of the slowest card, from when
the first of its ranks begins until the last is done. step is launched one by one, graph is the same
step replayed from a capture, or nothing where it cannot be captured, and the row says why; host ms
is how long the slowest host took to ask for it. gemm and copy are of one device (cuBLAS where it is
there: the head says which; copies from device to device). What is not said there is --tokens 8192
--cp 1 --dtype bf16 --gemm 8192 -n 20 -w 5. cuda-emulated checks the numbers; its times mean
nothing, and its sizes, also those that are not said, are small.

Before anything is timed each layer's output, the logits and all gradients must equal those of one
rank (of the cpu), to 1e-12 in f64, 1e-3 in f32, 0.1 in bf16; after it they are compared again. A
row that is wrong prints no time; nor does one whose timed iterations took memory, or, with --scan,
whose memory grows by more than 2.1 when the tokens double. The exit status is then 1.]]

-- Faults that specs plant to see that they are found.
local FAULTS = { "scale", "backward", "handoff", "loop", "memory", "allocation", "rank", "wait",
    "capture" }

local function add_common(command, whole, seconds)
    command:option("--tokens", "Tokens of one sequence, a list."):argname "LIST"
    command:option("--dtype", "f32, f64, on devices bf16, or a list."):argname "NAMES"
    command:flag("--scan", "A quarter of the tokens, a half, all; x half is the growth of the "
        .. "peak memory.")
    command:option("--gemm", "Rows and columns of the matrices. Default: 2048.")
        :convert(whole("--gemm", 1)):argname "N"
    command:option("-n --iters", "Timed iterations. Default: 5."):convert(whole("--iters", 1))
        :argname "N"
    command:option("-w --warmup", "Iterations before them. Default: 1.")
        :convert(whole("--warmup", 0)):argname "N"
    command:option("--deadline", "Seconds after which a wait for another rank fails. "
        .. "Default: 300."):convert(seconds):argname "S"
    command:flag("--json", "Print one JSON object a row.")
    command:option("--fault", "A fault to be found."):hidden(true):choices(FAULTS)
end

local function add_layer(command, whole, layout)
    command:option("--small", "Tokens of the small case. Default: 200.")
        :convert(whole("--small", 1)):argname "N"
    command:option("--cp", "The whole layer on so many ranks, and on one.")
        :convert(whole("--cp", 1)):argname "N"
    command:option("--cp-mode", "How it is cut, a list. Default: all."):argname "NAMES"
    command:option("--layout", "Which rows a rank has. Default: " .. layout .. "."):argname "KIND"
    command:option("--hidden", "Width of the layer's rows. Default: heads x width of a head.")
        :convert(whole("--hidden", 1)):argname "N"
end

local function add_sizes(command, whole, list)
    for _, size in ipairs(list) do
        command:option(size[1], ("%s Default: %d."):format(size[2], size[3]))
            :convert(whole(size[1], size[4] or 1)):argname "N"
    end
end

local function add_gqa(bench, whole)
    local command = bench:command("gqa", GQA)
    command:summary "Causal attention, beside the machine's product of matrices."
    add_sizes(command, whole, { { "--heads", "Query heads.", 16 },
        { "--head-dim", "Width of a head.", 128 },
        { "--window", "Keys that a query sees, its own included; 0: all before it.", 0, 0 } })
    command:option("--a2a", "Ranks that spread heads in a2a+p2p. Default: as few as can.")
        :convert(whole("--a2a", 1)):argname "N"
    command:option("--kv-heads", "Key/value heads, a list. Default: 16,2."):argname "LIST"
    add_layer(command, whole, "zigzag")
    return command
end

local function add_gdn(bench, whole)
    local command = bench:command("gdn", GDN)
    command:summary "The gated delta rule, beside the machine's product of matrices."
    add_sizes(command, whole, { { "--key-heads", "Key heads.", 16 },
        { "--value-heads", "Value heads.", 32 }, { "--key-dim", "Width of a key.", 128 },
        { "--value-dim", "Width of a value.", 128 }, { "--chunk", "Tokens of a chunk.", 64 } })
    add_layer(command, whole, "contiguous")
    return command
end

local function add_step(bench, whole)
    local command = bench:command("step", STEP)
    command:summary "A step of a hybrid model, by policy and number of ranks."
    command:option("--preset", "A published hybrid. Default: qwen35_397b_proxy."):argname "NAME"
    command:option("--scale", "Its sizes: tiny or published. Default: tiny.")
        :choices { "tiny", "published" }
    command:option("--layers", "How many of its layers."):convert(whole("--layers", 1)):argname "N"
    command:option("--policy", "Policies, a list, or all. Default: all."):argname "NAMES"
    command:option("--cp", "Numbers of ranks, a list. Default: 1,2,4."):argname "LIST"
    for _, size in ipairs { "--hidden", "--vocab", "--heads", "--kv-heads", "--head-dim",
        "--key-heads", "--value-heads", "--key-dim", "--value-dim", "--mlp-width" } do
        command:option(size, "Instead of the preset's."):convert(whole(size, 1)):argname "N"
    end
    command:option("--gqa-mode", "cp_mode of attention."):argname "NAME"
    command:option("--a2a", "Ranks that spread heads in a2a+p2p."):convert(whole("--a2a", 1))
        :argname "N"
    command:option("--gdn-mode", "cp_mode of the gated delta rule."):argname "NAME"
    return command
end

--- Adds the commands.
-- @param bench the command `bench` of argparse
-- @tparam function whole makes the reader of a whole number from an option's name and least value
-- @tparam function seconds reads a deadline
-- @tparam function add_device adds the options that say where rows are
function M.add(bench, whole, seconds, add_device)
    for _, add in ipairs { add_gqa, add_gdn, add_step } do
        local command = add(bench, whole)
        add_common(command, whole, seconds)
        add_device(command)
    end
end

return M
