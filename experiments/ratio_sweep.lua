-- What do layout conversions cost at each GQA:GDN ratio, and do the numbers stay those of one rank?
--
-- Text of real files, packed into one stream, goes forward and backward through a hybrid stack
-- under every policy. A case passes if outputs, gradients and ten training losses equal those of
-- one rank, no row is in a wrong place, no route is built inside a step, and there are exactly as
-- many conversions as the schedule demands.
local cplab = require "cplab"

local n_layers = 8
local hidden = 128

-- Bounds by dtype. A parity is a ratio of norms against one rank; the sums over ranks add in
-- another order, so it is some thousand roundings, not zero. Losses drift with the steps.
local bounds = {
    f64 = { parity = 1e-12, loss = 1e-10 },
    f32 = { parity = 1e-4, loss = 1e-4 },
}

local function documents(case)
    local paths = case.corpus == "default" and cplab.corpus.default() or { case.corpus }
    return cplab.corpus.load { paths = paths, budget = case.tokens, multiple = case.multiple }
end

local function stream(case)
    local text = documents(case)
    return cplab.stream.thd { lengths = text.lengths, real = text.real, tokens = text.tokens }
end

local function model(case)
    return cplab.model {
        schedule = cplab.schedule.ratio(case.ratio, n_layers), policy = case.policy,
        hidden = hidden, vocab = 256, dtype = case.dtype,
        gqa = { heads = 4, kv_heads = 2, head_dim = 16 },
        gdn = { key_heads = 2, value_heads = 4, key_dim = 16, value_dim = 16, conv = 4,
            chunk = 32 },
        mlp = { width = 128 },
    }
end

-- A layer that does not run where the model lives converts there and back.
local function expected_conversions(case, schedule)
    local converted = { zigzag = "gdn", contiguous = "gqa", mirror = "gqa", balanced = "gqa" }
    local kind = converted[case.policy]
    if case.cp == 1 or not kind then return 0 end
    return 2 * schedule:count(kind)
end

local function check_step(lab, metrics, bound)
    local conversions = expected_conversions(lab.case, lab.model.schedule)
    lab:check("parity_fwd", metrics.parity_fwd, bound)
    lab:check("parity_grad", metrics.parity_grad, bound)
    lab:check("wrong_rows", metrics.wrong_rows, { equals = 0 })
    lab:check("routes_built_in_step", metrics.routes_built_in_step, { equals = 0 })
    lab:check("conversions_fwd", metrics.conversions_fwd, { equals = conversions })
    lab:check("conversions_bwd", metrics.conversions_bwd, { equals = conversions })
end

local function check_losses(lab, losses, reference, bound)
    local worst = 0
    for i, loss in ipairs(losses) do
        local difference = math.abs(loss - reference[i]) / math.abs(reference[i])
        -- math.max would lose a NaN.
        if difference > worst or difference ~= difference then worst = difference end
    end
    lab:check("losses_equal", worst, bound)
    -- A single step has nothing to fall from.
    if #losses > 1 then lab:check("loss_falls", losses[#losses] - losses[1], -0.01) end
end

local function run(lab)
    local bound = bounds[lab.case.dtype]
    check_step(lab, lab:step { backward = true, reference = true, trace = true }, bound.parity)
    local training = {
        iters = lab.options.iters or lab.case.steps, backward = true, optimizer = "sgd", lr = 0.003,
    }
    local losses = lab:step(training).losses
    check_losses(lab, losses, lab:reference(training).losses, bound.loss)
end

return cplab.experiment {
    name = "ratio_sweep",
    about = "Conversions of hybrid stacks at three ratios under five policies, proved and timed.",
    sweep = {
        ratio = { "1:1", "1:3", "1:7" },
        policy = { "zigzag", "contiguous", "mirror", "balanced", "native" },
        cp = { 1, 2, 4 },
    },
    params = { corpus = "default", dtype = "f64", tokens = 2048, steps = 10 },
    stream = stream,
    model = model,
    run = run,
    report = {
        "conversions", "moved_mib", "messages", "imbalance", "step_ms", "convert_ms",
        "compute_ms", "parity_fwd", "parity_grad", "verdict",
    },
}
