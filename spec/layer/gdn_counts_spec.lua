-- What a GDN layer sends, against gdn_and_attention.md sections 3.2 and 4.
local ranks = require "spec.support.ranks"

local BYTES = 8 -- f64

-- What all ranks send in the forward and in the backward pass of one case.
local function sent(cp, case)
    local total = { bytes = 0, state = 0, messages = 0, back = 0, messages_back = 0 }
    local of_ranks = {}
    for rank, results in ipairs(ranks.run(cp, "spec.support.gdn_runs", { case })) do
        local r = results[1]
        assert.is_true(r.distance <= 1e-12)
        of_ranks[rank] = r.sent.bytes
        total.bytes, total.state = total.bytes + r.sent.bytes, total.state + r.sent.state
        total.messages = total.messages + r.sent.messages
        total.back = total.back + r.sent_back.bytes
        total.messages_back = total.messages_back + r.sent_back.messages
    end
    return total, of_ranks
end

local function lengths(n, length)
    local list = {}
    for i = 1, n do list[i] = length end
    return list
end

describe("a chunkwise GDN layer", function()
    -- In zigzag each sequence is a chain of 2 cp spans: ranks 0 .. cp-1, then back; between its two
    -- halves rank cp-1 hands over to itself. Without a convolution nothing else is sent.
    for _, cp in ipairs { 2, 4, 5 } do
        for _, n in ipairs { 1, 3, 16 } do
            it(("sends one message a hop for %d sequences on %d ranks"):format(n, cp), function()
                local s = sent(cp, { lengths = lengths(n, 2 * cp * 3), kind = "zigzag",
                    config = { conv = 1 } })
                assert.equal(2 * cp - 2, s.messages)
                assert.equal(2 * cp - 2, s.messages_back)
                assert.equal(n * (2 * cp - 2) * 4 * 3 * 5 * BYTES, s.state)
                assert.equal(s.state, s.bytes)
                assert.equal(s.bytes, s.back)
            end)
        end
    end

    it("sends nothing where every sequence is whole on a rank", function()
        local s = sent(4, { lengths = { 6, 6, 6, 6 }, kind = "contiguous" })
        assert.equal(0, s.messages)
        assert.equal(0, s.bytes)
    end)

    it("sends states only along the sequences that are cut", function()
        -- Contiguous ranks of 6: sequence 0 is cut once, sequence 2 once.
        local s = sent(3, { lengths = { 7, 2, 9 }, kind = "contiguous", config = { conv = 1 } })
        assert.equal(2, s.messages)
        assert.equal(2 * 4 * 3 * 5 * BYTES, s.state)
    end)

    it("sends conv - 1 rows to each span, less at a sequence's start", function()
        -- Ranks of 6: spans at offset 1 (one row before it) and at 4 (three of them).
        local s = sent(3, { lengths = { 5, 2, 11 }, kind = "contiguous" })
        local width = 2 * 2 * 3 + 4 * 5
        assert.equal((1 + 3) * width * BYTES, s.bytes - s.state)
    end)
end)

describe("a headwise GDN layer", function()
    local K, V = 3, 5

    -- (W-1)/W (T/W) width e per rank and direction, in by 2 Hk K + Hv V + 2 Hv (z stays), out by
    -- Hv V; the same again in the backward pass. Whatever the layout.
    for _, cp in ipairs { 2, 3, 4, 8 } do
        for _, kind in ipairs { "contiguous", "zigzag", "striped" } do
            it(("sends %s rows once in and once out on %d ranks"):format(kind, cp), function()
                local Hk, Hv, T = cp, 2 * cp, 10 * cp
                local s, of_ranks = sent(cp, { lengths = { 4 * cp, 0, 6 * cp }, kind = kind,
                    cp_mode = "headwise", config = { key_heads = Hk, value_heads = Hv } })
                local width = 2 * Hk * K + Hv * V + 2 * Hv + Hv * V
                for _, bytes in ipairs(of_ranks) do
                    assert.equal((cp - 1) / cp * (T / cp) * width * BYTES, bytes)
                end
                assert.equal(s.bytes, s.back)
                assert.equal(2 * cp * (cp - 1), s.messages)
                assert.equal(0, s.state)
            end)
        end
    end

    it("sends a copy of a shared key head to each rank that uses it", function()
        local s = sent(4, { lengths = { 16 }, kind = "zigzag", cp_mode = "headwise",
            config = { key_heads = 2, value_heads = 4 } })
        local slice = 2 * K + V + 2 + V -- one key head, one value head
        assert.equal(4 * 3 * 4 * slice * BYTES, s.bytes)
        assert.equal(s.bytes, s.back)
    end)

    it("sends the padding too: rows of the padded stream", function()
        local s = sent(2, { lengths = { 12 }, real = { 5 }, kind = "zigzag", cp_mode = "headwise" })
        local width = 2 * 2 * K + 4 * V + 2 * 4 + 4 * V
        assert.equal(2 * (1 / 2) * 6 * width * BYTES, s.bytes)
    end)
end)

-- x and dy; the halo, or what comes in and goes home in either pass.
it("a GDN layer compares the trace of all that it gets", function()
    for cp_mode, n in pairs { chunkwise = 3, headwise = 6 } do
        for _, results in ipairs(ranks.run(2, "spec.support.gdn_runs",
            { { lengths = { 12 }, kind = "zigzag", cp_mode = cp_mode, traced = true } })) do
            assert.equal(n, results[1].trace_checks)
            assert.equal(0, results[1].wrong_rows)
        end
    end
end)

it("a GDN layer takes no memory in a step", function()
    for _, cp_mode in ipairs { "chunkwise", "headwise" } do
        local of_ranks = ranks.run(4, "spec.support.gdn_memory", { ask = "blocks_of_a_step",
            lengths = { 24, 0, 16 }, real = { 21, 0, 16 }, kind = "zigzag", cp_mode = cp_mode })
        assert.same({ 0, 0, 0, 0 }, of_ranks)
    end
end)
