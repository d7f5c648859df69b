-- What must be the same bits on every transport? Traced steps with parity, and training steps, of
-- a small hybrid stack by every policy: on packed sequences, and with MTP on a batch of columns.
local cplab = require "cplab"

local streams = {
    packed = function() return cplab.stream.thd { lengths = { 96, 48 }, real = { 91, 48 } } end,
    batch = function() return cplab.stream.sbhd { seqlen = 48, batch = 3 } end,
}

return cplab.experiment {
    name = "numbers", about = "The numbers of a small stack.",
    sweep = {
        stream = { "packed", "batch" },
        policy = { "zigzag", "contiguous", "mirror", "balanced", "native" },
        cp = { 1, 2, 3, 4, 8 },
    },
    stream = function(case) return streams[case.stream]() end,
    model = function(case)
        local mtp = { depth = 2, kind = case.policy == "zigzag" and "gqa" or "gdn" }
        return cplab.model {
            schedule = cplab.schedule.pattern("GG*G", 4), policy = case.policy, hidden = 12,
            vocab = 17, dtype = "f64", seed = 3, mlp = { width = 20 },
            gqa = { heads = 4, kv_heads = 2, head_dim = 8, block = 1 },
            gdn = { key_heads = 2, value_heads = 4, key_dim = 5, value_dim = 6, chunk = 4 },
            mtp = case.stream == "batch" and mtp or nil,
        }
    end,
    run = function(lab)
        local m = lab:step { backward = true, reference = true, trace = true }
        lab:check("parity_fwd", m.parity_fwd, 1e-12)
        lab:check("parity_grad", m.parity_grad, 1e-12)
        lab:check("wrong_rows", m.wrong_rows, { equals = 0 })
        local trained = lab:step { iters = 4, optimizer = "sgd", lr = 0.25 }
        local reference = lab:reference { iters = 4, optimizer = "sgd", lr = 0.25 }
        lab:record { losses = trained.losses, reference = reference.losses }
    end,
}
