-- Streams: boundaries, real lengths, the sequence of a position, and what is refused.
local cplab = require "cplab"
local message = require "spec.support.message"

describe("a stream", function()
    it("is the same from lengths as from boundaries", function()
        local a = cplab.stream.thd { lengths = { 16, 24 }, real = { 13, 24 } }
        local b = cplab.stream.thd {
            cu_seqlens = { 0, 16, 40 }, cu_seqlens_real = { 0, 13, 37 },
        }
        assert.is_true(a:equals(b))
        assert.equal("thd of 2 sequences, 40 positions, 37 real", a:describe())
        assert.same({ start = 16, padded = 24, real = 24 }, a:sequence(1))
        assert.same({ start = 0, padded = 16, real = 13 }, b:sequence(0))
    end)

    it("finds the sequence of a position past empty ones", function()
        local s = cplab.stream.thd { lengths = { 0, 3, 0, 0, 2, 0 } }
        local found = {}
        for p = 0, 4 do found[p + 1] = s:sequence_of(p) end
        assert.same({ 1, 1, 1, 4, 4 }, found)
        assert.equal(6, s:n_sequences())
    end)

    it("may be empty", function()
        assert.equal(0, cplab.stream.thd { lengths = {} }:n_positions())
        assert.equal(0, cplab.stream.thd { cu_seqlens = { 0 } }:n_sequences())
        assert.equal(0, cplab.stream.sbhd { seqlen = 0 }:n_positions())
    end)

    it("counts an sbhd position once, not per column", function()
        local s = cplab.stream.sbhd { seqlen = 4096, batch = 2 }
        assert.equal(4096, s:n_positions())
        assert.equal(2, s:batch())
        assert.equal("sbhd", s:format())
        assert.equal("sbhd of 4096 positions, batch 2", s:describe())
    end)

    it("differs with boundaries, real lengths, format and batch", function()
        local streams = {
            cplab.stream.thd { lengths = { 16 } },
            cplab.stream.thd { lengths = { 16 }, real = { 15 } },
            cplab.stream.thd { lengths = { 8, 8 } },
            cplab.stream.thd { lengths = { 16, 0 } },
            cplab.stream.sbhd { seqlen = 16 },
            cplab.stream.sbhd { seqlen = 16, batch = 2 },
        }
        for i, a in ipairs(streams) do
            for j, b in ipairs(streams) do assert.equal(i == j, a:equals(b)) end
        end
    end)

    it("carries tokens, one a padded position", function()
        assert.equal("abcd", cplab.stream.thd { lengths = { 3, 1 }, tokens = "abcd" }.tokens)
        assert.same({ 5, 6 }, cplab.stream.sbhd { seqlen = 1, batch = 2, tokens = { 5, 6 } }.tokens)
    end)

    it("holds 2^40 positions without memory for each", function()
        local s = cplab.stream.thd { lengths = { 2 ^ 39, 2 ^ 39 } }
        assert.equal(2 ^ 40, s:n_positions())
        assert.equal(1, s:sequence_of(2 ^ 39))
    end)

    local thd = {
        ["boundaries that start late"] = { { cu_seqlens = { 3, 8 } },
            "stream.thd: cu_seqlens starts at 3, not at 0" },
        ["a negative start"] = { { cu_seqlens = { -4, 16 } },
            "stream.thd: cu_seqlens starts at -4, not at 0" },
        ["boundaries that decrease"] = { { cu_seqlens = { 0, 16, 8 } },
            "stream.thd: cu_seqlens must be nondecreasing, sequence 1 goes from 16 to 8" },
        ["no boundary at all"] = { { cu_seqlens = {} },
            "stream.thd: cu_seqlens must hold at least the 0" },
        ["boundaries in two dimensions"] = { { cu_seqlens = { { 0, 16 }, { 0, 16 } } },
            "stream.thd: cu_seqlens[1] must be an integer (got a table)" },
        ["a boundary between tokens"] = { { cu_seqlens = { 0, 16.7 } },
            "stream.thd: cu_seqlens[2] must be an integer (got 16.699999999999999)" },
        ["a length between tokens"] = { { lengths = { 2, 2.5 } },
            "stream.thd: lengths[2] must be an integer >= 0 (got 2.5)" },
        ["a length that is not a number"] = { { lengths = { 0 / 0 } },
            "stream.thd: lengths[1] must be an integer >= 0 (got nan)" },
        ["a negative length"] = { { lengths = { -1 } },
            "stream.thd: lengths[1] must be an integer >= 0 (got -1)" },
        ["too many positions"] = { { lengths = { 2 ^ 53, 2 ^ 53 } },
            "stream.thd: cu_seqlens ends at 18014398509481984, beyond 2^53" },
        ["a hole in the lengths"] = { { lengths = { 1, nil, 3 } },
            "stream.thd: lengths must be a list (got a table)" },
        ["more real tokens than positions"] = { { lengths = { 16, 24 }, real = { 13, 25 } },
            "stream.thd: sequence 1 has 25 real tokens, more than its 24 positions" },
        ["real lengths of other sequences"] = { { lengths = { 16, 24 }, real = { 13 } },
            "stream.thd: 2 sequences, but real lengths of 1" },
        ["real boundaries that decrease"] = {
            { cu_seqlens = { 0, 4, 8 }, cu_seqlens_real = { 0, 4, 3 } },
            "stream.thd: cu_seqlens_real must be nondecreasing, sequence 1 goes from 4 to 3" },
        ["lengths and boundaries"] = { { lengths = { 1 }, cu_seqlens = { 0, 1 } },
            "stream.thd: give either lengths or cu_seqlens" },
        ["neither lengths nor boundaries"] = { {},
            "stream.thd: give either lengths or cu_seqlens" },
        ["both kinds of real lengths"] = {
            { lengths = { 1 }, real = { 1 }, cu_seqlens_real = { 0, 1 } },
            "stream.thd: give either real or cu_seqlens_real" },
        ["an unknown field"] = { { length = { 1 } },
            'stream.thd: unknown field "length"; did you mean "lengths"?' },
        ["too few tokens"] = { { lengths = { 3, 1 }, tokens = "abc" },
            "stream.thd: 3 tokens for 4 positions and columns" },
        ["a token that is no id"] = { { lengths = { 2 }, tokens = { 1, 1.5 } },
            "stream.thd: tokens[2] must be an integer in 0 .. 2147483647 (got 1.5)" },
        ["no table"] = { 16, "stream.thd: takes a table of named fields (got 16)" },
    }
    for name, case in pairs(thd) do
        it("refuses " .. name, function()
            assert.equal(case[2], message(cplab.stream.thd, case[1]))
        end)
    end

    local sbhd = {
        ["a negative length"] = { { seqlen = -1 },
            "stream.sbhd: seqlen must be in 0 .. 2^53 (got -1)" },
        ["no column"] = { { seqlen = 4, batch = 0 }, "stream.sbhd: batch must be >= 1 (got 0)" },
        ["a length between tokens"] = { { seqlen = 4.5 },
            "stream.sbhd: seqlen must be an integer (got 4.5)" },
        ["no length"] = { { batch = 4 }, 'stream.sbhd: field "seqlen" is missing' },
        ["tokens of one column"] = { { seqlen = 2, batch = 2, tokens = { 1, 2 } },
            "stream.sbhd: 2 tokens for 4 positions and columns" },
    }
    for name, case in pairs(sbhd) do
        it("refuses sbhd with " .. name, function()
            assert.equal(case[2], message(cplab.stream.sbhd, case[1]))
        end)
    end

    it("refuses sequences that it does not have", function()
        local s = cplab.stream.thd { lengths = { 1 } }
        assert.equal("stream.sequence: sequence must be an integer in 0 .. 0 (got 1)",
            message(s.sequence, s, 1))
        assert.equal("stream.sequence_of: position must be an integer in 0 .. 0 (got -1)",
            message(s.sequence_of, s, -1))
    end)
end)
