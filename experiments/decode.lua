-- Where do the keys of a decoder lie, and what does a token cost, by the policy of the layouts?
-- Prompts of several documents are prefilled over the ranks, then each goes on token by token. Keys
-- stay on the rank that computed them: a prefill spreads them as its attention layout says, but a
-- token that comes alone is the first of its stream, and zigzag gives the first to rank 0.
--   cache_imbalance  keys of the busiest rank over the mean: what attention costs it in a step
--   cache_bytes      keys and values of all ranks and layers; gdn_state_bytes: states and tails,
--                    which do not grow with the text
--   prefill_ms       all prompts; decode_ms: the median step, a token of each document
--   last             tokens of each document that come one by one (--set last=8)
local cplab = require "cplab"

local REAL = { 700, 301, 64, 90, 12, 205, 448, 33 }

-- In bf16, which devices alone compute in, each of the numbers that eight layers store one after
-- the other is off by up to 2^-9.
local BOUNDS = { f64 = 1e-12, f32 = 1e-4, bf16 = 0.1 }

return cplab.experiment {
    name = "decode",
    about = "Prefill, then tokens one by one: keys by rank, conversions, time of a step.",
    sweep = {
        policy = { "zigzag", "contiguous", "mirror", "balanced", "native" }, cp = { 1, 2, 4 },
    },
    params = { last = 32 },
    stream = function()
        local lengths = {}
        for i, n in ipairs(REAL) do lengths[i] = math.ceil(n / 64) * 64 end
        return cplab.stream.thd { lengths = lengths, real = REAL }
    end,
    model = function(case)
        return cplab.model {
            schedule = cplab.schedule.ratio("1:3", 8), policy = case.policy, hidden = 64,
            vocab = 256, dtype = "f64", mlp = { width = 128 },
            gqa = { heads = 4, kv_heads = 2, head_dim = 16 },
            gdn = { key_heads = 2, value_heads = 4, key_dim = 16, value_dim = 16 },
        }
    end,
    run = function(lab)
        local bound, last = BOUNDS[lab.model.dtype], lab.case.last
        local m = lab:decode { last = last, trace = true }
        lab:check("parity_prefill", m.parity_prefill, bound)
        lab:check("parity_decode", m.parity_decode, bound)
        lab:check("wrong_rows", m.wrong_rows, { equals = 0 })
        lab:check("host_syncs_in_step", m.host_syncs_in_step, { equals = 0 })
        lab:decode { last = last, reference = false }
    end,
    report = {
        "conversions", "cache_imbalance", "cache_bytes", "gdn_state_bytes", "prefill_ms",
        "decode_ms", "verdict",
    },
}
