-- Does everything run right on the GPU that is here? One command, a verdict for each kernel, for
-- exchanges, graphs, whole steps and decoding:
--
--     ./cplab run experiments/gpu_selftest.lua --device cuda
--     ./cplab run experiments/gpu_selftest.lua --device cuda --transport nccl    a GPU a rank
--     compute-sanitizer ./cplab run experiments/gpu_selftest.lua --device cuda --set tokens=64
--
-- Kernels: every op, in the fast and in the naive way, in f64, f32 and bf16, against the naive
-- reference in double of the numbers as they are stored. Exchanges: every row says which position
-- it is, by each method of the transport. Graphs: what replays leave in poisoned memory; captured
-- steps of training against launched ones, over the same sequences and over some that the graph
-- has not seen. Steps: outputs and gradients of one rank on the host; in bf16 those in f32.
-- Decoding: prompts, then token by token, against one forward pass.
--
--   worst      the largest error over its bound; more than 1 fails
--   where      way and dtype, method and layouts, or result of it
--
-- Bounds are of the largest number of a result. f64: 1e-12, thousands of roundings of sums of the
-- sizes here. f32: 2e-4, likewise for its 6e-8. bf16: 4 of its units of 2^-8: results are rounded
-- to it, and so is what products of tensor cores take (weights of attention, states).
local cplab = require "cplab"
local capture = require "cplab.capture"
local clib = require "clib"
local comms = require "cplab.comm"
local exchange = require "cplab.exchange"
local moulds = require "cplab.mould"
local optimizers = require "cplab.optimizer"
local rows = require "cplab.rows"
local stacks = require "cplab.stack"

local C = clib.C
local op, tensor = cplab.op, cplab.tensor

local BOUNDS = { f64 = 1e-12, f32 = 2e-4, bf16 = 2 ^ -6 }
local STEPS = { f64 = 1e-11, f32 = 1e-3, bf16 = 0.1 }

-- ---- numbers ----------------------------------------------------------------------------

-- Uniform numbers that depend on the name and the place alone.
local function drawn(name, shape, dtype, low, high)
    local n, list, key = 1, {}, C.cpl_random_key(0, name)
    for _, size in ipairs(shape) do n = n * size end
    low, high = low or -1, high or 1
    for i = 1, n do list[i] = low + (high - low) * C.cpl_random_uniform(key, i - 1) end
    return tensor.from(list, shape, dtype)
end

-- The largest difference over the largest expected number; inf for NaN.
local function distance(found, expected)
    local most, largest = 0, 0
    found, expected = found:totable(), expected:totable()
    for i, value in ipairs(expected) do
        local difference = math.abs(found[i] - value)
        if difference ~= difference then return math.huge end
        most, largest = math.max(most, difference), math.max(largest, math.abs(value))
    end
    return most == 0 and 0 or most / largest
end

-- ---- kernels ----------------------------------------------------------------------------

-- Each takes a maker of inputs, the number of tokens, and the options of the call; returns results.
-- `wide` numbers are f32 where rows are bf16.
local KERNELS = {}

-- Boundaries of three sequences, one of them empty.
local function packed(T)
    local first = math.floor(T / 3)
    return { 0, first, first, T }
end

function KERNELS.rms_norm(new, T, at)
    local x, w, dy = new("x", { T, 96 }), new("w", { 96 }), new("dy", { T, 96 })
    local y = op.rms_norm(x, w, at {})
    return y, op.rms_norm_backward(x, w, dy, at {})
end

function KERNELS.gated_rms_norm(new, T, at)
    local x, z, w = new("x", { T, 64 }), new("z", { T, 64 }), new("w", { 64 })
    return op.gated_rms_norm(x, z, w, at {}),
        op.gated_rms_norm_backward(x, z, w, new("dy", { T, 64 }), at {})
end

function KERNELS.l2norm(new, T, at)
    local x = new("x", { T, 2, 64 })
    return op.l2norm(x, at {}), op.l2norm_backward(x, new("dy", { T, 2, 64 }), at {})
end

function KERNELS.rope(new, T, at)
    local positions = {}
    for i = 1, T do positions[i] = 1e5 + 3 * i end
    return op.rope(new("x", { T, 2, 64 }), positions, at {}),
        op.rope_backward(new("dy", { T, 2, 64 }), positions, at {})
end

function KERNELS.conv1d(new, T, at)
    local x, w = new("x", { T, 96 }), new("w", { 96, 4 })
    local y = op.conv1d(x, w, at { cu_seqlens = packed(T) })
    return y, op.conv1d_backward(x, w, new("dy", { T, 96 }), at { cu_seqlens = packed(T) })
end

function KERNELS.gates(new, T, at)
    local a, b = new("a", { T, 8 }), new("b", { T, 8 })
    local log_a, bias = new("A", { 8 }, "wide"), new("bias", { 8 }, "wide")
    local g, beta = op.gates(a, b, log_a, bias, at {})
    return g, beta, op.gates_backward(a, b, log_a, bias, new("dg", { T, 8 }, "wide"),
        new("dbeta", { T, 8 }, "wide"), at {})
end

function KERNELS.swiglu(new, T, at)
    local gate, up = new("gate", { T, 100 }), new("up", { T, 100 })
    return op.swiglu(gate, up, at {}), op.swiglu_backward(gate, up, new("dy", { T, 100 }), at {})
end

function KERNELS.sigmoid_gate(new, T, at)
    local x, gate = new("x", { T, 2, 64 }), new("gate", { T, 2, 64 })
    return op.sigmoid_gate(x, gate, at {}),
        op.sigmoid_gate_backward(x, gate, new("dy", { T, 2, 64 }), at {})
end

local function attention(heads, kv_heads, width, window)
    return function(new, T, at)
        local q, k = new("q", { T, heads, width }), new("k", { T, kv_heads, width })
        local v, d_o = new("v", { T, kv_heads, width }), new("d_o", { T, heads, width })
        local options = { cu_seqlens = packed(T), window = window }
        local o, lse = op.gqa(q, k, v, at(options))
        return o, lse, op.gqa_backward(q, k, v, o, lse, d_o, at(options))
    end
end
KERNELS["attention 64"] = attention(4, 2, 64)
KERNELS["attention 128"] = attention(2, 1, 128)
KERNELS["attention 256"] = attention(2, 1, 256)
KERNELS["attention 320"] = attention(2, 1, 320)
KERNELS["attention in a window"] = attention(4, 2, 64, 17)

-- Values lie in the keys' rows, as in latent attention.
KERNELS["latent attention"] = function(new, T, at)
    local q, k = new("q", { T, 4, 512 }), new("k", { T, 1, 512 })
    return op.gqa(q, k, k, at { cu_seqlens = packed(T) })
end

local function delta_rule(key_heads, value_heads, width)
    return function(new, T, at)
        local q, k = new("q", { T, key_heads, width }), new("k", { T, key_heads, width })
        local v, d_o = new("v", { T, value_heads, width }), new("d_o", { T, value_heads, width })
        local g = new("g", { T, value_heads }, "wide", -2, 0)
        local beta = new("beta", { T, value_heads }, "wide", 0.1, 0.9)
        local options = { cu_seqlens = packed(T), l2norm = true }
        local o, state = op.gdn(q, k, v, g, beta, at(options))
        return o, state, op.gdn_backward(q, k, v, g, beta, d_o, nil, at(options))
    end
end
KERNELS["delta rule 64"] = delta_rule(1, 2, 64)
KERNELS["delta rule 128"] = delta_rule(1, 2, 128)

-- States of the delta rule that go on by summaries: one from each part to the next.
KERNELS["delta rule carried"] = function(new, T, at)
    local M, B = new("M", { 3, 2, 64, 64 }, "wide"), new("B", { 3, 2, 64, T }, "wide")
    local h = new("h", { 4, 2, 64, T }, "wide")
    local lists = { states = { 3, 0, 1 }, transitions = { 2, -1, 0 }, offsets = { 0, 1, 2 } }
    local back = { states = { 0, -1, 2 }, offsets = { 2, -1, 0 }, transpose = true }
    return op.gdn_carry(M, B, h, at(lists)), op.gdn_carry(M, B, h, at(back))
end

function KERNELS.matmul(new, T, at)
    local a, b = new("a", { T, 96 }), new("b", { 96, 80 })
    return op.matmul(a, b, at {}), op.matmul_backward(a, b, new("dc", { T, 80 }), at {})
end

function KERNELS.grouped_matmul(new, T, at)
    local x, w, offsets = new("x", { T, 48 }), new("w", { 3, 40, 48 }), packed(T)
    return op.grouped_matmul(x, w, offsets, at {}),
        op.grouped_matmul_backward(x, w, offsets, new("dy", { T, 40 }), at {})
end

function KERNELS.merge(new, T, at)
    local o, lse = new("o", { T, 2, 64 }), new("lse", { T, 2 }, "wide")
    local o_b, lse_b = new("o_b", { T, 2, 64 }), new("lse_b", { T, 2 }, "wide")
    local merged, merged_lse = op.merge(o, lse, o_b, lse_b, at {})
    return merged, merged_lse, op.merge_backward(o, lse, o_b, lse_b, new("d_o", { T, 2, 64 }),
        new("d_lse", { T, 2 }, "wide"), at {})
end

-- Who goes to whom is settled by numbers that are the same in every dtype.
KERNELS["mixture of experts"] = function(new, T, at)
    local chosen, n_experts, top_k = {}, 8, 2
    for i = 0, T * top_k - 1 do chosen[i + 1] = (i % 2 * 3 + math.floor(i / 2) * 5) % n_experts end
    local places = op.moe_group(chosen, at { experts = n_experts, top_k = top_k })
    local x, weights = new("x", { T, 48 }), new("weights", { T, top_k }, "wide", 0, 1)
    local sorted = op.moe_dispatch(x, places, at { top_k = top_k })
    local dh, dweights = op.moe_combine_backward(sorted, weights, places, new("dy", { T, 48 }),
        at {})
    return sorted, op.moe_combine(sorted, weights, places, at {}), dh, dweights
end

function KERNELS.adamw(new, T, at)
    local w, grad = new("w", { T, 64 }), new("grad", { T, 64 }, "wide")
    local m, v = new("m", { T, 64 }, "wide"), new("v", { T, 64 }, "wide", 0, 1)
    return op.adamw(w, grad, m, v, at { lr = 0.1, step = 3, weight_decay = 0.1 })
end

function KERNELS.sgd(new, T, at)
    return op.sgd(new("w", { T, 64 }), new("grad", { T, 64 }, "wide"), at { lr = 0.1 })
end

-- More numbers than one block of the fast kernel takes.
KERNELS["norm of gradients"] = function(new, T, at)
    local squares = op.sum_squares(new("grad", { 64 * T + 4096 }, "wide"), at {})
    local share, first, second = op.step_factors(at { squares = squares, clip = 0.5, step = T })
    return tensor.from({ squares }, { 1 }, "f64"),
        tensor.from({ share, first, second }, { 3 }, "f64")
end

function KERNELS.embedding(new, T, at)
    local tokens = {}
    for i = 1, T do tokens[i] = (7 * i) % 50 - 1 end
    local rows_of_words = new("table", { 50, 64 })
    return op.embedding(rows_of_words, tokens, at {}),
        op.embedding_backward(rows_of_words, tokens, new("dy", { T, 64 }), at {})
end

function KERNELS.cross_entropy(new, T, at)
    local labels = {}
    for i = 1, T do labels[i] = i % 5 == 0 and -1 or i % 300 end
    local loss = op.cross_entropy(new("logits", { T, 300 }), labels, at {})
    return tensor.from({ loss }, { 1 }, "f64"),
        op.cross_entropy_backward(new("logits", { T, 300 }), labels, at {})
end

-- Runs a kernel's function; "ref" computes in double what `dtype` stores.
local function results_of(f, tokens, dtype, device, way)
    local wide = dtype == "bf16" and "f32" or dtype
    local function new(name, shape, how, low, high)
        local t = drawn(name, shape, how == "wide" and wide or dtype, low, high)
        return device == "ref" and tensor.from(t:totable(), shape, "f64") or t
    end
    local function at(options)
        local all = { device = device, way = way }
        for name, value in pairs(options) do all[name] = value end
        return all
    end
    return { f(new, tokens, at) }
end

-- ---- verdicts ---------------------------------------------------------------------------

-- Errors over their bounds: the worst one, and where it was. NaN is worse than any number.
local function new_verdict()
    local verdict = { worst = 0 }
    function verdict.add(ratio, where)
        if ratio ~= ratio then ratio = math.huge end
        if ratio > verdict.worst then verdict.worst, verdict.where = ratio, where end
    end
    return verdict
end

-- Ops take tensors of the host, wherever the rank's new tensors lie.
local function test_kernel(lab, verdict)
    local f, tokens = KERNELS[lab.case.what], lab.case.tokens
    tensor.live_in(nil)
    for _, dtype in ipairs { "f64", "f32", "bf16" } do
        local expected = results_of(f, tokens, dtype, "ref")
        for _, way in ipairs { "best", "naive" } do
            local found = results_of(f, tokens, dtype, lab.options.device, way)
            assert(#found == #expected)
            for i, t in ipairs(found) do
                verdict.add(distance(t, expected[i]) / BOUNDS[dtype], way .. " " .. dtype)
            end
        end
    end
end

-- ---- exchanges and graphs ---------------------------------------------------------------

local LAYOUTS, WIDTH = { "contiguous", "zigzag", "mirror", "striped" }, 8

-- Each number of a row says which position and column it is.
local function number_at(positions, i)
    return positions[math.floor(i / WIDTH) + 1] * WIDTH + i % WIDTH
end

local function fill(x, positions)
    rows.edit(x, "float", function(data)
        for i = 0, #positions * WIDTH - 1 do data[i] = number_at(positions, i) end
    end)
end

-- How many numbers of the rows are others.
local function n_wrong(x, positions)
    local wrong = 0
    rows.look(x, "float", function(data)
        for i = 0, #positions * WIDTH - 1 do
            if data[i] ~= number_at(positions, i) then wrong = wrong + 1 end
        end
    end)
    return wrong
end

-- By NCCL nobody reads the memory of others.
local function methods_of(lab)
    local by_messages = { "direct", "packed", "alltoallv" }
    return comms.wrap(lab.comm):transport() == "nccl" and by_messages
        or { "copy", unpack(by_messages) }
end

-- Collective. Rows go from one layout to another, by `move`, and back by the adjoint.
local function there_and_back(lab, from, to, method, move)
    local comm, own, other = comms.wrap(lab.comm), from:positions(lab.rank), to:positions(lab.rank)
    local plan = exchange.plan(cplab.route(from, to), comm, "f32", WIDTH, method)
    local x, y, back = rows.new(lab.comm, "f32", #own, WIDTH),
        rows.new(lab.comm, "f32", #other, WIDTH), rows.new(lab.comm, "f32", #own, WIDTH)
    fill(x, own)
    move(function()
        plan:convert({ _ptr = x }, { _ptr = y })
        plan:adjoint({ _ptr = y }, { _ptr = back })
    end, function()
        C.cpl_tensor_fill(y, 0 / 0)
        C.cpl_tensor_fill(back, 0 / 0)
    end)
    return comm:sum({ n_wrong(y, other) + n_wrong(back, own) })[1]
end

local function at_once(work, poison)
    poison()
    work()
end

-- What is captured is done by the replays alone.
local function captured(lab)
    return function(work, poison)
        work()
        local graph = capture.of(lab.comm, work)
        poison()
        for _ = 1, 3 do graph:replay() end
    end
end

local function test_moves(lab, verdict, move)
    local all = {}
    for _, kind in ipairs(LAYOUTS) do
        all[kind] = cplab.layout.create(kind, lab.stream, { cp = lab.cp })
    end
    local function test_pair(from, to)
        for _, method in ipairs(methods_of(lab)) do
            verdict.add(there_and_back(lab, all[from], all[to], method, move),
                ("%s, %s to %s"):format(method, from, to))
        end
    end
    for _, from in ipairs(LAYOUTS) do
        for _, to in ipairs(LAYOUTS) do
            if from ~= to then test_pair(from, to) end
        end
    end
end

-- ---- steps ------------------------------------------------------------------------------

local POLICIES = { "contiguous", "zigzag", "mirror", "balanced", "native" }

local function check_counts(lab, m)
    lab:check("host_syncs_in_step", m.host_syncs_in_step, { equals = 0 })
    lab:check("wrong_rows", m.wrong_rows, { equals = 0 })
end

local function test_step(lab, verdict)
    local m = lab:step { backward = true, reference = true, trace = true }
    local bound = STEPS[lab.model.dtype]
    check_counts(lab, m)
    verdict.add(m.parity_fwd / bound, "outputs")
    verdict.add(m.parity_grad / bound, "gradients")
end

local function test_decoding(lab, verdict)
    local m = lab:decode { last = 3, trace = true }
    local bound = STEPS[lab.model.dtype]
    check_counts(lab, m)
    verdict.add(m.parity_prefill / bound, "prompts")
    verdict.add(m.parity_decode / bound, "tokens")
end

-- Replayed steps of training give the losses and the norms of the gradients of steps that were not
-- captured, to the bit: sums have a fixed order, and a graph clips and counts as it goes on.
local function test_captured_step(lab, verdict)
    local stack = stacks.new { model = lab.model, stream = lab.stream, comm = lab.comm, cp = lab.cp,
        tp = 1 }
    local options = optimizers.settings("gpu_selftest", { optimizer = "adamw", lr = 0.01,
        clip = 0.1 }, 1)
    options.backward = true
    local function step() stack:run_step(options) end
    local losses, norms = {}, {}
    for i = 1, 3 do
        losses[i] = stack:step(options)
        norms[i] = stack.grad_norm
    end
    stack.parameters:draw(lab.model.seed)
    local graph = capture.of(lab.comm, step)
    for i = 1, 3 do
        graph:replay()
        verdict.add(stack:read_step(options) == losses[i] and 0 or math.huge, "loss")
        verdict.add(stack.grad_norm == norms[i] and 0 or math.huge, "gradients")
    end
end

-- How long the sequences of a step are, in quarters of the tokens; no two steps have the same.
local QUARTERS = { { 2, 1, 1 }, { 1, 1, 1, 1 }, { 4 }, { 1, 3 }, { 2, 2 }, { 3, 1 }, { 1, 1, 2 },
    { 1, 2, 1 } }
local LAUNCHED = 4 -- steps at most, until there is room for all sequences

-- One graph gives the losses of launched steps, whose sequences it has not seen; by NCCL, where
-- there are no moulds, none does, and each step must be launched.
local function test_unseen(lab, verdict)
    local function train(graphs)
        return lab:step { optimizer = "adamw", lr = 0.01, clip = 0.1, warmup = 0,
            iters = #QUARTERS, graphs = graphs }
    end
    local launched, replayed = train(), train(1)
    for i, loss in ipairs(launched.losses) do
        verdict.add(math.abs(replayed.losses[i] - loss) / loss / STEPS[lab.model.dtype], "loss")
    end
    local least = moulds.new(lab.comm) and #QUARTERS - LAUNCHED or 0
    verdict.add(replayed.graph_replays >= least and 0 or math.huge,
        replayed.graph_replays .. " replays")
end

-- ---- the experiment ---------------------------------------------------------------------

local function dtype_of(case)
    return case.what:match " in (%w+)$" or "f64"
end

-- In bf16 two layers: below many the gradients of decays are small sums of large numbers, and what
-- is left of them is rounding.
local function pattern_of(case)
    return dtype_of(case) == "bf16" and "G*" or "GGG*"
end

-- What rows test, in their order.
local function list_tests()
    local names, list = {}, {}
    for name in pairs(KERNELS) do names[#names + 1] = name end
    table.sort(names)
    for _, name in ipairs(names) do list[#list + 1] = name end
    list[#list + 1], list[#list + 2] = "exchanges", "graphs of exchanges"
    for _, policy in ipairs(POLICIES) do list[#list + 1] = "step " .. policy end
    list[#list + 1], list[#list + 2] = "step in f32", "step in bf16"
    list[#list + 1], list[#list + 2] = "graphs of steps", "graph for unseen sequences"
    list[#list + 1], list[#list + 2] = "decoding", "decoding in bf16"
    return list
end

local function test(lab, verdict)
    if KERNELS[lab.case.what] then
        -- A device has one kernel, however many ranks share it.
        if lab.rank == 0 then test_kernel(lab, verdict) end
    elseif lab.case.what == "exchanges" then
        test_moves(lab, verdict, at_once)
    elseif lab.case.what == "graphs of exchanges" then
        test_moves(lab, verdict, captured(lab))
    elseif lab.case.what == "graphs of steps" then
        test_captured_step(lab, verdict)
    elseif lab.case.what == "graph for unseen sequences" then
        test_unseen(lab, verdict)
    elseif lab.case.what:match "^decoding" then
        test_decoding(lab, verdict)
    else
        test_step(lab, verdict)
    end
end

local function run(lab)
    if lab.options.device == "cpu" then
        error("gpu_selftest tests a device: give --device cuda, or cuda-emulated", 0)
    end
    local verdict = new_verdict()
    test(lab, verdict)
    lab:check("worst", verdict.worst, 1)
    if lab.rank > 0 then return end
    lab:record { worst = tonumber(("%.2g"):format(verdict.worst)), where = verdict.where }
end

return cplab.experiment {
    name = "gpu_selftest",
    about = "Whether kernels, exchanges, graphs, steps and decoding are right on the GPU here.",
    sweep = { order = { "what", "cp" }, what = list_tests(), cp = { 4 } },
    params = { tokens = 96 },
    stream = function(case, step)
        local lengths = {}
        for i, n in ipairs(QUARTERS[step % #QUARTERS + 1]) do lengths[i] = n * case.tokens / 4 end
        return cplab.stream.thd { lengths = lengths }
    end,
    model = function(case)
        local pattern = pattern_of(case)
        return cplab.model {
            schedule = cplab.schedule.pattern(pattern, #pattern), hidden = 64, vocab = 128,
            policy = case.what:match "^step (%w+)$" or "zigzag", dtype = dtype_of(case),
            gqa = { heads = 4, kv_heads = 2, head_dim = 64 },
            gdn = { key_heads = 2, value_heads = 4, key_dim = 64, value_dim = 64 },
            mlp = { width = 96 },
        }
    end,
    run = run,
    report = { "worst", "where", "verdict" },
}
