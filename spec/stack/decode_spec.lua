-- Decoding equals a forward pass over the whole text on one rank, every layer's output and the
-- logits, in every policy and mode; and what a decoder could forget on the way shows.
local labs = require "spec.support.labs"
local sanitized = require "spec.support.sanitized"

local BOUND = 1e-12

-- Documents that end at different steps: long, one token, none, short.
local STREAM = labs.padded({ 17, 1, 0, 9, 3 }, 24)
local POLICIES = { "zigzag", "contiguous", "mirror", "balanced", "native" }
local MODES = { "gather", "p2p", "a2a", "a2a+p2p" }

-- GDN, MLA and GQA; 12 heads, which 1 to 4 ranks divide.
local function model(policy, mode, cp, changes)
    local a2a = mode == "a2a+p2p" and (cp % 2 == 0 and 2 or cp) or nil
    local fields = labs.model {
        pattern = "GL*", policy = policy,
        gqa = { heads = 12, kv_heads = 12, head_dim = 4, rope_theta = 100, cp_mode = mode,
            a2a = a2a },
        mla = { heads = 12, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2, value_dim = 4,
            rope_theta = 100, cp_mode = mode, a2a = a2a },
    }
    for name, value in pairs(changes or {}) do fields[name] = value end
    return fields
end

local function decode(of, options, job)
    local run = { stream = STREAM, model = of, cp = 1, calls = { { "decode", options } } }
    for name, value in pairs(job or {}) do run[name] = value end
    local result, text = labs.run(run)
    assert(result, text)
    return result.answers[1], result
end

local function assert_equal(m, where)
    assert.is_true(m.parity_decode <= BOUND, ("%s: %g at %s"):format(where, m.parity_decode,
        m.parity_decode_where))
    assert.is_true(m.parity_prefill <= BOUND, where)
    assert.equal(0, m.wrong_rows, where)
    assert.equal(0, m.routes_built_in_step, where)
end

describe("decoding equals one forward pass", function()
    for p, policy in ipairs(POLICIES) do
        it("under the policy " .. policy .. ", in every mode", function()
            for cp = 1, 4 do
                for i, mode in ipairs(MODES) do
                    if (cp == 4 or i == cp) and sanitized.takes(i + cp, 3, p) then
                        assert_equal(decode(model(policy, mode, cp), { last = 3, trace = true },
                            { cp = cp }), ("%s, cp %d"):format(mode, cp))
                    end
                end
            end
        end)
    end

    it("in chunks, of prefill and of decoding; with no prompt at all", function()
        for _, options in ipairs {
            { last = 7, chunk = 3, steps = { 1, 3 } },
            { last = 5, chunk = 3, prefill = 4, steps = { 3, 2 } },
            { last = 100, chunk = 2, steps = { 0, 9 } },
            { last = 1, prefill = 1, steps = { 16, 1 } },
        } do
            local steps = options.steps
            options.trace, options.steps = true, nil
            local m = decode(model("mirror", "gather", 2), options, { cp = 2 })
            assert_equal(m, ("last %d, chunk %d"):format(options.last, options.chunk or 1))
            -- Of 17, 1, 0, 9 and 3 tokens.
            assert.same(steps, { m.prefill_steps, m.decode_steps })
        end
    end)

    it("with a window, spread heads of GDN, experts, a tied head", function()
        local windowed = model("zigzag", "p2p", 3)
        windowed.gqa.window, windowed.mla.window = 4, 1
        local spread = model("contiguous", "gather", 2)
        spread.gdn.cp_mode = "headwise"
        local sparse = model("zigzag", "gather", 2, { tied = true,
            moe = { experts = 5, top_k = 2, width = 7, shared_width = 4 } })
        sparse.mlp = nil
        for cp, of in pairs { [3] = windowed, [2] = spread, [4] = sparse } do
            assert_equal(decode(of, { last = 4, trace = true }, { cp = cp }), "cp " .. cp)
        end
    end)

    it("with tensor parallelism, of fewer key heads than tp too", function()
        for i, mode in ipairs { "gather", "a2a", "p2p" } do
            local of = model(i == 2 and "native" or "zigzag", mode, 2)
            of.gdn.key_heads = i == 3 and 1 or 2
            of.gdn.cp_mode = i == 1 and "headwise" or nil
            if of.gdn.cp_mode then of.gdn.key_heads, of.gdn.value_heads = 4, 8 end
            assert_equal(decode(of, { last = 3, trace = true }, { cp = 2, tp = 2 }), mode)
        end
        local of = labs.model()
        of.gdn.key_heads = 4 -- windows of a CP rank's rows: streams are padded for them, too
        assert_equal(decode(of, { last = 3, trace = true }, { cp = 1, tp = 4 }), "tp 4")
    end)

    it("for a batch of columns, and with tokens of its own", function()
        local tokens = {}
        for i = 1, 36 do tokens[i] = (i * i + 3 * i) % 17 end
        local streams = { { seqlen = 12, batch = 3 },
            { seqlen = 12, batch = 3, tokens = tokens },
            { lengths = { 24, 12 }, real = { 22, 7 }, tokens = tokens } }
        for i, stream in ipairs(streams) do
            assert_equal(decode(model("zigzag", "gather", 3), { last = 3, trace = true },
                { cp = 3, stream = stream }), "stream " .. i)
        end
    end)

    it("for more sequences than attention takes in one call", function()
        local real = {}
        for i = 1, 150 do real[i] = i % 7 == 0 and 0 or 1 + i % 3 end
        assert_equal(decode(labs.model { pattern = "G*" }, { last = 1, trace = true },
            { cp = 2, stream = labs.padded(real, 8) }), "150 sequences")
    end)

    it("of one kind of layer alone, and leaves depths of MTP out", function()
        for pattern, kind in pairs { GG = "gdn", ["**"] = "gqa" } do
            assert_equal(decode(labs.model { pattern = pattern, mtp = { depth = 1, kind = kind } },
                { last = 3, trace = true }, { cp = 2 }), pattern)
        end
    end)
end)

describe("a decoding step", function()
    it("counts what it did, and takes no memory", function()
        local m, result = decode(labs.model { policy = "zigzag" }, { last = 3 }, { cp = 2 })
        assert.equal(6, m.conversions_fwd) -- three GDN layers
        assert.equal(0, m.conversions_bwd)
        assert.equal(0, m.routes_built_in_step)
        assert.equal(1, m.prefill_steps)
        assert.equal(3, m.decode_steps)
        -- Rows of 2 kv heads of 8 + 8 numbers for 30 tokens in one layer; of 5 sequences and three
        -- layers 4 states of 5 x 6, and 3 rows of 2 * 2 * 5 + 4 * 6.
        assert.equal(30 * 32 * 8, m.cache_bytes)
        assert.equal(5 * 3 * (4 * 30 + 3 * 44) * 8, m.gdn_state_bytes)
        -- The prompts are 14 and 6, in zigzag of 16 and 8 positions; 4 + 2 and 2 of these are rank
        -- 0's, and all 10 tokens that come one by one: they are first in their streams.
        assert.equal(18 / 15, m.cache_imbalance)
        assert.is_nil(m.attention_imbalance)
        assert.is_true(m.decode_ms > 0 and m.prefill_ms > 0)
        assert.equal(m.decode_ms, result.metrics.decode_ms)
        assert.is_nil(m.wrong_rows)
        local split = decode(labs.model { policy = "zigzag" }, { last = 3 }, { cp = 2, tp = 2 })
        assert.equal(18 / 15, split.cache_imbalance) -- of each head as many
        local one = decode(labs.model { policy = "zigzag" }, { last = 1 }, { cp = 2 })
        -- Four for the prompts, and for each set of sequences that go on: four, or three of them
        -- with one token, then without.
        assert.same({ 4 * 2, 4 * 3 }, { one.routes_built, m.routes_built })
        m = decode(labs.model { policy = "zigzag" }, { last = 3, reference = false },
            { cp = 2, stream = { lengths = { 16, 16 } } })
        assert.equal(0, m.decode_allocations) -- its stack ran twice
        local lazy = decode(labs.model { policy = "zigzag", routes = "lazy" }, { last = 3,
            reference = false }, { cp = 2, stream = { lengths = { 16, 16 } } })
        -- The control: the route between the two layouts is made in each step anew.
        assert.is_true(lazy.decode_allocations > 0)
        assert.equal(1, lazy.routes_built_in_step)
        assert.is_nil(m.parity_decode)
    end)
end)

-- The trap: one exit of a converting layer, that of decoding alone, does not convert back. With two
-- documents and more some real row is then not where it should be.
describe("a decoding exit that skips the way back", function()
    for policy, layer in pairs { zigzag = 1, mirror = 2 } do
        it(("is seen by the trace and by parity, under %s"):format(policy), function()
            local function run(has_past)
                return decode(labs.model { policy = policy }, { last = 3, trace = true }, { cp = 2,
                    options = { faults = { skip_back = { layer = layer, has_past = has_past } } } })
            end
            local m, result = run(true)
            assert.is_true(m.parity_prefill <= BOUND)
            assert.is_true(m.parity_decode > 1e-3)
            assert.is_true(m.wrong_rows > 0)
            local kind = policy == "zigzag" and "gdn" or "gqa"
            local found
            for _, check in ipairs(result.checks) do
                assert.is_false(check.passed)
                found = found or check.name
            end
            assert.truthy(found:match(("^trace: layers%%.%d%%.%s %%(output%%), rank %%d, slot")
                :format(layer, kind)))
        end)
    end
end)

describe("a decoder that a script drives", function()
    it("is traced by --trace-tokens, and a wrong row fails the case", function()
        local feeds = { { { 3, 1, 4, 1, 5 }, { 9, 2, 6 } }, { { 5 }, { 3 } }, { { 5 }, {} } }
        local function checks(options)
            local result = assert(labs.run { stream = { lengths = { 8, 8 } }, cp = 2,
                model = labs.model { policy = "mirror" }, options = options,
                calls = { { "feed", { capacity = 8 }, feeds } } })
            return result.checks
        end
        local faults = { skip_back = { layer = 2, has_past = true } }
        assert.same({}, checks { trace_tokens = true })
        assert.same({}, checks { faults = faults })
        local found = checks { trace_tokens = true, faults = faults }
        assert.equal(2, #found) -- of the prompts none
        for _, check in ipairs(found) do
            assert.is_false(check.passed)
            assert.truthy(check.name:find "^trace: layers%.2%.gqa %(output%), rank %d, slot")
        end
    end)
end)

describe("decoding is not the whole", function()
    local function off(name, job)
        local options = { last = 3, capacity = 24 }
        local run = { cp = 2, options = { faults = { [name] = {} } } }
        for key, value in pairs(job or {}) do run[key] = value end
        local m = decode(labs.model(run.changes), options, run)
        assert.is_true(m.parity_prefill <= BOUND, name)
        return m.parity_decode
    end

    for name, what in pairs {
        forget_state = "the state is not carried", forget_tail = "the tail is dropped",
        forget_offset = "rotary positions begin again", cache_padding = "padding is kept",
        drop_partial = "the keys of a rank are left out",
    } do
        it("where " .. what, function()
            assert.is_true(off(name) > 1e-6)
        end)
    end

    it("but it is with a fault of another name", function()
        assert.is_true(off("drop_merge") <= BOUND)
    end)
end)

describe("a decoder", function()
    local VOCAB = 17
    local TEXT = { { 3, 1, 4, 1, 5, 9, 2, 6 }, { 5, 3, 5 }, {}, { 8, 9, 7, 9 } }

    local function drive(cp, ...)
        local result, text = labs.run { stream = { lengths = { 8, 8, 8, 8 } }, cp = cp,
            model = labs.model { policy = "zigzag" }, calls = { { ... } } }
        return result and result.answers[1], text
    end

    -- Tokens first .. last of each sequence of the text.
    local function cut(first, last)
        local feed = {}
        for i, list in ipairs(TEXT) do
            feed[i] = {}
            for j = first, math.min(last, #list) do feed[i][j - first + 1] = list[j] end
        end
        return feed
    end

    it("gives the logits of the last token of each sequence, however it was fed", function()
        local whole = drive(1, "feed", { capacity = 8 }, { TEXT })
        for cp = 1, 3 do
            local parts = drive(cp, "feed", { capacity = { 8, 4, 0, 4 } }, { cut(1, 3), cut(4, 4),
                cut(5, 8), "clear", cut(1, 5), cut(6, 8) })
            for i = 1, 4 do
                local step = ({ 6, 1, 1, 2 })[i] -- at which the sequence ended
                local from = (i - 1) * VOCAB
                for token = 1, VOCAB do
                    assert.is_true(math.abs(parts.lists[step][from + token]
                        - whole.lists[1][from + token]) <= BOUND)
                end
            end
            for token = VOCAB + 1, 2 * VOCAB do
                assert.equal(0, parts.lists[6][token]) -- ended before
            end
            assert.same({ 8, 3, 0, 4 }, parts.seen)
            assert.is_true(parts.is_marked)
            assert.is_true(parts.is_same)
            assert.equal(2 * cp * math.ceil(3 / (2 * cp)), parts.n_rows)
        end
    end)

    it("chooses the same tokens on any number of ranks", function()
        local one = drive(1, "generate", cut(1, 2), 6)
        assert.same(one, drive(3, "generate", cut(1, 2), 6))
        assert.equal(6, #one[1])
    end)

    it("refuses what it cannot be fed, before anything changes", function()
        local function refusal(options, feeds, cp)
            local answer, text = drive(cp or 1, "feed", options, feeds)
            assert.is_nil(answer)
            return (text:gsub("^[^:]+:%d+: ", ""))
        end
        assert.equal("decoder.feed: sequence 1 has 3 tokens, and 2 more come, but the capacity is "
            .. "4", refusal({ capacity = { 8, 4, 0, 4 } }, { cut(1, 3), { {}, { 1, 2 }, {}, {} } }))
        assert.equal("decoder.feed: no sequence has a new token", refusal({ capacity = 4 },
            { { {}, {}, {}, {} } }))
        assert.equal("decoder.feed: expected the new tokens of each of 4 sequences, a list of 4 "
            .. "lists", refusal({ capacity = 4 }, { { { 1 } } }))
        assert.truthy(refusal({ capacity = 4 }, { { { 17 }, {}, {}, {} } }):find(
            "decoder.feed: tokens of sequence 0", 1, true))
        assert.equal("lab:decoder: a capacity for each of 4 sequences (got 2)",
            refusal({ capacity = { 1, 2 } }, {}))
        assert.truthy(refusal({ capacity = 0 }, {}):find("lab:decoder: capacity must be", 1, true))
        assert.equal('lab:decoder: unknown field "capazity"; did you mean "capacity"?',
            refusal({ capazity = 3 }, {}))
    end)

    it("takes a list of lists, and nothing else", function()
        for _, tokens in ipairs { { { 1 }, {}, {}, {}, x = { 1 } }, { [2] = { 1 }, [3] = {},
            [4] = {} }, "text", {} } do
            local _, text = drive(1, "feed", { capacity = 4 }, { tokens })
            assert.truthy(text:find("decoder.feed: expected the new tokens of each of 4 sequences, "
                .. "a list of 4 lists", 1, true))
        end
        local _, text = drive(1, "feed", { capacity = 2 ^ 31 }, {})
        assert.truthy(text:find("lab:decoder: capacity must be an integer in 1 .. 2147483647 (got "
            .. "2147483648)", 1, true))
    end)

    it("keeps the stacks that were used last, and makes the others again", function()
        local result = assert(labs.run { stream = { lengths = { 8 } }, cp = 2,
            model = labs.model { pattern = "G*" }, calls = { { "feed_in_many_ways", 20 } } })
        local answer = result.answers[1]
        assert.equal(16, answer.most)
        assert.same(answer.first, answer.again)
        assert.is_true(answer.is_kept and answer.is_made_again)
    end)

    it("runs what was made ready last, once", function()
        local result = assert(labs.run { stream = { lengths = { 8 } }, cp = 2,
            model = labs.model(), calls = { { "run_out_of_turn" } } })
        local answer = result.answers[1]
        assert.equal(6, answer.seen)
        assert.equal(4, #answer.refusals)
        for _, text in ipairs(answer.refusals) do
            assert.equal("decoder.run: runs what decoder:prepare made ready last, and that once",
                text)
        end
    end)

    it("refuses other tokens on another rank", function()
        local result, text = labs.run { stream = { lengths = { 8 } }, cp = 2, model = labs.model(),
            calls = { { "feed_by_rank" } } }
        assert.is_nil(result)
        assert.truthy(text:match "decoder.feed: the ranks feed different tokens; rank %d: %d")
    end)

    it("refuses the same on a rank that goes on from others, or traces alone", function()
        for what, first in pairs { clear = "2 (after 0)", trace = "2 (traced, after 1)" } do
            local result, text = labs.run { stream = { lengths = { 8 } }, cp = 2,
                model = labs.model(), calls = { { "clear_by_rank", what } } }
            assert.is_nil(result)
            local rank, said = text:match "the ranks feed different tokens; rank (%d): ([^\n]*)"
            assert.equal(rank == "0" and first or "2 (after 1)", said)
        end
    end)
end)

describe("lab:decode on ranks", function()
    it("is one thing that all ask for", function()
        for name, value in pairs { last = 3, trace = true, reference = false, capacity = { 8, 9 },
            chunk = 2 } do
            local result, text = labs.run { stream = { lengths = { 8, 8 } }, cp = 2,
                model = labs.model(), calls = { { "decode_by_rank", name, value } } }
            assert.is_nil(result)
            assert.truthy(text:find("lab:decode: the ranks ask for different decodings; rank %d: "),
                text)
        end
    end)

    it("decodes the first stream, which is that of the reference, after steps on others", function()
        local streams = { { lengths = { 8 } }, { lengths = { 16, 8 } } }
        local result = assert(labs.run { streams = streams, cp = 2, model = labs.model(),
            calls = { { "step", { iters = 2 } }, { "decode", { last = 2 } } } })
        assert_equal(setmetatable({ wrong_rows = 0 }, { __index = result.answers[2] }), "streams")
    end)
end)

describe("lab:decode", function()
    local function refusal(options, stream)
        local result, text = labs.run { stream = stream or { lengths = { 8 } }, cp = 1,
            model = labs.model(), calls = { { "decode", options } } }
        assert.is_nil(result)
        return (text:gsub("^[^:]+:%d+: ", ""))
    end

    it("says what is wrong in one sentence", function()
        assert.equal("lab:decode: last must be an integer >= 1 (got 0)",
            refusal { last = 0 })
        assert.equal("lab:decode: chunk must be an integer >= 1 (got 0)",
            refusal { last = 1, chunk = 0 })
        assert.equal('lab:decode: unknown field "lats"; did you mean "last"?', refusal { lats = 1 })
        assert.equal("lab:decode: the stream has no real tokens", refusal({ last = 1 },
            { lengths = { 8 }, real = { 0 } }))
        assert.equal("decoder.feed: sequence 0 has 7 tokens, and 1 more come, but the capacity is "
            .. "7", refusal { last = 2, capacity = 7 })
    end)
end)
