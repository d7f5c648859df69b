-- Does sequence parallelism compute the same bits on every transport? Traced steps with parity, and
-- training steps with and without recomputation, of a small hybrid stack on cp x tp ranks, with MTP
-- where one exchange does it all.
local cplab = require "cplab"
return cplab.experiment {
    name = "split", about = "The numbers of a small stack that tensor parallelism splits.",
    sweep = {
        policy = { "zigzag", "mirror", "native" },
        cp = { 1, 2, 4 },
        tp = { 2, 4 },
        method = { "auto", "composed" },
    },
    stream = function() return cplab.stream.thd { lengths = { 96, 48 }, real = { 91, 48 } } end,
    model = function(case)
        local mtp = { depth = 2, kind = case.policy == "zigzag" and "gdn" or "gqa" }
        return cplab.model {
            schedule = cplab.schedule.pattern("GL*", 3), policy = case.policy, hidden = 12,
            vocab = 17, dtype = "f64", seed = 3, exchange = { method = case.method },
            moe = { experts = 5, top_k = 2, width = 8, shared_width = 4, aux_coefficient = 0.5 },
            gqa = { heads = 8, kv_heads = 2, head_dim = 8, cp_mode = "p2p" },
            mla = { heads = 4, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2, value_dim = 7 },
            gdn = { key_heads = 2, value_heads = 4, key_dim = 5, value_dim = 6, chunk = 4 },
            mtp = case.method == "auto" and mtp or nil,
        }
    end,
    run = function(lab)
        local m = lab:step { backward = true, reference = true, trace = true }
        lab:check("parity_fwd", m.parity_fwd, 1e-12)
        lab:check("parity_grad", m.parity_grad, 1e-12)
        lab:check("wrong_rows", m.wrong_rows, { equals = 0 })
        local training = { iters = 3, optimizer = "sgd", lr = 0.25 }
        local losses, worst = lab:step(training).losses, 0
        training.recompute = "layer"
        for i, again in ipairs(lab:step(training).losses) do
            worst = math.max(worst, math.abs(again - losses[i]))
        end
        lab:check("recomputed", worst, { equals = 0 })
        lab:record { losses = losses }
    end,
}
