-- Does decoding compute the same bits on every transport? A small hybrid stack decodes the last
-- tokens of documents that end at different steps, and goes on with tokens that it chooses.
local cplab = require "cplab"

local function likeliest(logits, sequence, vocab)
    local best, list = 1, logits:totable()
    for token = 2, vocab do
        local at = sequence * vocab
        if list[at + token] > list[at + best] then best = token end
    end
    return best - 1
end

return cplab.experiment {
    name = "decode", about = "The numbers of a decoder.",
    sweep = { policy = { "zigzag", "mirror" }, cp = { 1, 2, 3, 4 } },
    stream = function()
        return cplab.stream.thd { lengths = { 48, 24, 24 }, real = { 40, 1, 13 } }
    end,
    model = function(case)
        local is_zigzag = case.policy == "zigzag"
        return cplab.model {
            schedule = cplab.schedule.pattern("GL*", 3), policy = case.policy, hidden = 12,
            vocab = 17, dtype = "f64", seed = 3, mlp = { width = 20 },
            gqa = { heads = 12, kv_heads = 12, head_dim = 8, window = 9,
                cp_mode = is_zigzag and "gather" or "p2p" },
            mla = { heads = 12, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2,
                value_dim = 7, cp_mode = is_zigzag and "gather" or "a2a" },
            gdn = { key_heads = 2, value_heads = 4, key_dim = 5, value_dim = 6, chunk = 4 },
        }
    end,
    run = function(lab)
        local m = lab:decode { last = 3, trace = true }
        lab:check("parity_decode", m.parity_decode, 1e-12)
        lab:check("parity_prefill", m.parity_prefill, 1e-12)
        lab:check("wrong_rows", m.wrong_rows, { equals = 0 })
        local decoder, tokens = lab:decoder { capacity = 16 }, { { 3, 1, 4, 1, 5 }, {}, { 9 } }
        for _ = 1, 3 do
            decoder:feed(tokens)
            local logits = decoder:last_logits()
            lab:record { logits = logits:totable() }
            tokens = {}
            for i = 1, 3 do tokens[i] = { likeliest(logits, i - 1, lab.model.vocab) } end
        end
    end,
}
