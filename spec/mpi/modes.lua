-- Does every cp_mode compute the same bits on every transport? Traced steps with parity, and
-- training steps with and without recomputation, of a small hybrid stack with MTP in each mode.
local cplab = require "cplab"

-- By name: attention's mode, window and GDN's mode.
local MODES = {
    p2p = { "p2p" }, a2a = { "a2a" }, ["a2a+p2p"] = { "a2a+p2p" },
    ["p2p, window"] = { "p2p", 9 }, ["a2a+p2p, window"] = { "a2a+p2p", 9 },
    headwise = { "gather", nil, "headwise" }, ["a2a, headwise"] = { "a2a", nil, "headwise" },
}

return cplab.experiment {
    name = "modes", about = "The numbers of a small stack in every cp_mode.",
    sweep = {
        mode = { "p2p", "a2a", "a2a+p2p", "p2p, window", "a2a+p2p, window", "headwise",
            "a2a, headwise" },
        policy = { "zigzag", "mirror" },
        cp = { 1, 2, 3, 4, 8 },
    },
    stream = function() return cplab.stream.thd { lengths = { 96, 48 }, real = { 91, 48 } } end,
    model = function(case)
        local mode, window, gdn_mode = unpack(MODES[case.mode], 1, 3)
        local cp = case.cp
        local a2a = mode == "a2a+p2p" and (cp % 2 == 0 and 2 or cp) or nil
        return cplab.model {
            schedule = cplab.schedule.pattern("GL*", 3), policy = case.policy, hidden = 12,
            vocab = 17, dtype = "f64", seed = 3, mlp = { width = 20 },
            gqa = { heads = 2 * cp, kv_heads = cp, head_dim = 8, cp_mode = mode, window = window,
                a2a = a2a },
            mla = { heads = cp, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2,
                value_dim = 7, cp_mode = mode, window = window, a2a = a2a },
            gdn = { key_heads = cp, value_heads = 2 * cp, key_dim = 5, value_dim = 6, chunk = 4,
                cp_mode = gdn_mode },
            mtp = { depth = 2, kind = case.policy == "zigzag" and "gdn" or "gqa" },
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
