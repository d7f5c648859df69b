-- In which layout do hidden states arrive at each pipeline stage, and does a wrong one ever pass?
--
-- A hybrid stack runs whole, and then cut into stages that run one after the other. Homes say where
-- its layers live: all contiguous, with attention converted around, as fixed policies do; or each
-- where it wants, with the residual stream converted between runs of layers that want the same.
-- Stages are entered by the rule (where the stage before left the stream) or where somebody said,
-- which costs a conversion before and after wherever that is another layout. A case passes if the
-- cut stack gives the bits of the whole, with as many conversions more as that makes, and equals
-- one rank. That a stage which gets rows in another layout than it expects stops the step, naming
-- both, is shown by spec/stack/pipeline_spec.lua.
local cplab = require "cplab"

local n_layers = 12

local function schedule(case)
    return cplab.schedule.pattern(case.pattern, n_layers)
end

local function stream(case)
    local lengths = {}
    for i, share in ipairs { 1 / 2, 1 / 8, 1 / 4, 1 / 8 } do lengths[i] = case.tokens * share end
    return cplab.stream.thd { lengths = lengths }
end

local function policy(case)
    if case.homes == "contiguous" then return "contiguous" end
    return cplab.assignment.coalesced(cplab.pipeline.preferences(schedule(case)), "contiguous")
end

local function model(case)
    return cplab.model {
        schedule = schedule(case), policy = policy(case), hidden = 64, vocab = 256, dtype = "f64",
        gqa = { heads = 4, kv_heads = 2, head_dim = 16 },
        gdn = { key_heads = 2, value_heads = 4, key_dim = 16, value_dim = 16, chunk = 32 },
        mlp = { width = 64 },
    }
end

local function cut(case)
    local entries
    for i = 1, case.entry ~= "by rule" and case.pp - 1 or 0 do
        entries = entries or {}
        entries[i] = case.entry
    end
    return { pp = case.pp, entries = entries }
end

-- A stage that is entered elsewhere than the one before ends, or elsewhere than it goes on.
local function conversions_more(lab, assignment, stages)
    local more = 0
    for i = 2, lab.case.cp > 1 and #stages or 1 do
        local stage = stages[i]
        local before = assignment.layers[stage.first].live
        local after = assignment.layers[stage.first + 1].live
        more = more + (stage.entry ~= before and 1 or 0) + (stage.entry ~= after and 1 or 0)
            - (before ~= after and 1 or 0)
    end
    return more
end

local function run(lab)
    local options = cut(lab.case)
    local assignment = lab.model:assignment(lab.stream, { cp = lab.cp, tp = lab.tp })
    local stages = cplab.pipeline.place(assignment, cplab.pipeline.cut(lab.model.schedule,
        options)).stages
    for _, stage in ipairs(stages) do
        lab:record { stage = stage.index, first = stage.first, layers = stage.count,
            entry = stage.entry }
    end
    local whole = lab:step { reference = true, trace = true }
    local parts = lab:step { reference = true, trace = true, pipeline = options }
    lab:check("parity_fwd", parts.parity_fwd, 1e-12)
    lab:check("parity_grad", parts.parity_grad, 1e-12)
    lab:check("wrong_rows", parts.wrong_rows, { equals = 0 })
    lab:check("loss", parts.loss, { equals = whole.loss })
    lab:check("grad_norm", parts.grad_norm, { equals = whole.grad_norm })
    lab:check("conversions_fwd", parts.conversions_fwd,
        { equals = whole.conversions_fwd + conversions_more(lab, assignment, stages) })
end

return cplab.experiment {
    name = "stage_entry",
    about = "Pipeline stages one after the other against the whole stack, by homes and entries.",
    sweep = {
        pattern = { "G*", "GGG*" },
        homes = { "contiguous", "each its own" },
        entry = { "by rule", "mirror" },
        pp = { 1, 2, 4 },
        cp = { 2, 4 },
    },
    skip = function(case)
        return case.pp == 1 and case.entry ~= "by rule" and "one stage has no entry to choose"
    end,
    params = { tokens = 512 },
    stream = stream,
    model = model,
    run = run,
    report = { "conversions", "moved_mib", "messages", "parity_fwd", "parity_grad", "verdict" },
}
