-- Tokens and labels: which position holds which, whatever the layout.
local ranks = require "spec.support.ranks"
local cplab = require "cplab"
local tokens = require "cplab.tokens"

local LENGTHS, REAL = { 12, 0, 6, 6 }, { 10, 0, 1, 0 }

-- Tokens and labels by position, and who held it; with `before` those of another microbatch were
-- there before.
local function place(layout_name, cp, given, before)
    local by_rank = ranks.run(cp, function(comm, p)
        local cplab = require "cplab" -- luacheck: ignore 431
        local ffi = require("clib").ffi
        local function stream_of(list)
            return cplab.stream.thd { lengths = p.lengths, real = p.real, tokens = list }
        end
        local placing, stream = require "cplab.tokens", stream_of(p.before or p.given)
        local layout = cplab.layout[p.layout](stream, { cp = comm:size() })
        local placed = placing.place {
            stream = stream, entry = layout, exit = layout, rank = comm:rank(), comm = comm._ptr,
            model = { vocab = 50 }, trace = false,
        }
        if p.before then placing.fill(placed, stream_of(p.given)) end
        local list = {}
        for slot, position in ipairs(layout:positions(comm:rank())) do
            list[slot] = { position, ffi.cast("int32_t *", placed.tokens.data)[slot - 1],
                ffi.cast("int32_t *", placed.rolled[1].data)[slot - 1] }
        end
        return list
    end, { lengths = LENGTHS, real = REAL, layout = layout_name, given = given,
        before = before })
    local token, label = {}, {}
    for _, list in ipairs(by_rank) do
        for _, row in ipairs(list) do
            token[row[1] + 1], label[row[1] + 1] = row[2], row[3]
        end
    end
    return token, label
end

describe("tokens", function()
    it("are the stream's own, and each label is the next real token of its sequence", function()
        local given = {}
        for i = 1, 24 do given[i] = 2 * i end
        local expected = {}
        for i = 1, 24 do expected[i] = i <= 9 and given[i + 1] or -1 end
        for _, layout in ipairs { "contiguous", "zigzag", "mirror" } do
            local token, label = place(layout, 3, given)
            assert.same(given, token)
            assert.same(expected, label)
        end
    end)

    it("of the next microbatch take the places of those before", function()
        local before, given = {}, {}
        for i = 1, 24 do before[i], given[i] = 2 * i, i end
        for _, layout in ipairs { "contiguous", "zigzag", "mirror" } do
            assert.same({ place(layout, 3, given) }, { place(layout, 3, given, before) })
            assert.not_same({ place(layout, 3, given) }, { place(layout, 3, before) })
        end
    end)

    it("may be bytes", function()
        assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
            23, 24 }, (place("zigzag", 3, "\1\2\3\4\5\6\7\8\9\10\11\12\13\14\15\16\17\18\19"
            .. "\20\21\22\23\24")))
    end)

    it("are drawn from the vocabulary by position, the same in every layout", function()
        local token, label = place("contiguous", 1)
        local different = {}
        for i = 1, 24 do
            assert.is_true(token[i] >= 0 and token[i] < 50)
            different[token[i]] = true
            assert.equal(i <= 9 and token[i + 1] or -1, label[i])
        end
        assert.is_true(#token == 24 and next(different, next(different)) ~= nil)
        for _, layout in ipairs { "zigzag", "mirror" } do
            assert.same({ token, label }, { place(layout, 3) })
        end
    end)

    it("have a label but for padding and the last real one of a sequence", function()
        assert.equal(9, tokens.n_labels(cplab.stream.thd { lengths = LENGTHS, real = REAL }))
        assert.equal(0, tokens.n_labels(cplab.stream.thd { lengths = { 0, 4 }, real = { 0, 1 } }))
        assert.equal(31, tokens.n_labels(cplab.stream.sbhd { seqlen = 32 }))
    end)
end)
