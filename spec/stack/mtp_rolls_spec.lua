-- Rolls of tokens, masks and rows: the published vectors of multi-token prediction, over ranks, and
-- what a stack's depths read. A mask travels as 1 for a real token, so that fill says "none".
local cplab = require "cplab"
local ranks = require "spec.support.ranks"

local ROLL = "spec.support.mtp_roll"

-- Each value is a row; a list of two is a row of two, rolled in the same exchange.
local function as_rows(values)
    local list = {}
    for i, value in ipairs(values) do list[i] = type(value) == "table" and value or { value } end
    return list
end

local function roll(cp, layout, stream, values, k, more)
    local p = { layout = layout, stream = stream, rows = as_rows(values), k = k or 1 }
    for name, value in pairs(more or {}) do p[name] = value end
    local lists = {}
    for r, result in ipairs(ranks.run(cp, ROLL, p)) do lists[r] = result.rolled end
    return lists
end

local function zipped(a, b)
    local list = {}
    for i = 1, #a do list[i] = { a[i], b[i] } end
    return list
end

-- Values and marks of real tokens by position.
local function real_only(stream)
    local marks = {}
    for i, length in ipairs(stream.lengths) do
        for j = 1, length do
            marks[#marks + 1] = j <= (stream.real or stream.lengths)[i] and 1 or 0
        end
    end
    return marks
end

-- The definition: the real token k on in the same sequence, or 0.
local function naive(stream, values, k)
    local out, start = {}, 0
    for i, length in ipairs(stream.lengths) do
        local real = (stream.real or stream.lengths)[i]
        for j = 1, length do
            out[start + j] = j + k <= real and j <= real and values[start + j + k] or 0
        end
        start = start + length
    end
    return out
end

describe("a published roll", function()
    it("on one rank: packed, with duplicate boundaries, with a tail, unpacked", function()
        for _, lengths in ipairs { { 3, 2 }, { 3, 2, 0, 0 } } do
            local one = { 1, 1, 1, 1, 1 }
            assert.same({ { 2, 1, 3, 1, 0, 0, 5, 1, 0, 0 } }, roll(1, "contiguous",
                { lengths = lengths }, zipped({ 1, 2, 3, 4, 5 }, one)))
        end
        -- What lies beyond the last boundary is padding of the last sequence here.
        assert.same({ { 20, 0, 40, 0, 0, 0 } }, roll(1, "contiguous",
            { lengths = { 2, 4 }, real = { 2, 2 } }, { 10, 20, 30, 40, 0, 0 }))
        assert.same({ { 20, 1, 30, 1, 0, 0 } }, roll(1, "contiguous", { seqlen = 3 },
            zipped({ 10, 20, 30 }, { 1, 1, 1 })))
    end)

    it("[report 72] in zigzag on 2 ranks, of odd real lengths too", function()
        local values = { 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22 }
        local second = { 4, 5, 6, 7, 15, 16, 17, 18, 19, 20 }
        assert.same({ { 2, 3, 8, 0, 12, 13, 14, 21, 22, 0 }, second },
            roll(2, "zigzag", { lengths = { 8, 12 } }, values))
        local odd = { lengths = { 8, 12 }, real = { 7, 11 } }
        values[8], values[20] = 0, 0
        assert.same({ { 2, 3, 0, 0, 12, 13, 14, 21, 0, 0 }, second },
            roll(2, "zigzag", odd, values))
    end)

    it("in contiguous on 2 ranks, tokens and mask in one exchange", function()
        local odd = { lengths = { 8, 12 }, real = { 7, 11 } }
        local values = { 1, 2, 3, 4, 5, 6, 7, 0, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 0 }
        local lists = roll(2, "contiguous", odd, zipped(values, real_only(odd)))
        assert.same({ 2, 1, 3, 1, 4, 1, 5, 1, 6, 1, 7, 1, 0, 0, 0, 0, 12, 1, 13, 1 }, lists[1])
        assert.same({ 14, 1, 15, 1, 16, 1, 17, 1, 18, 1, 19, 1, 20, 1, 21, 1, 0, 0, 0, 0 },
            lists[2])
    end)

    it("by three depths, some of whose rows come from the next rank's sequence", function()
        local expected = {
            { { 2, 3, 4, 5 }, { 6, 0, 8, 0 } }, { { 3, 4, 5, 6 }, { 0, 0, 0, 0 } },
            { { 4, 5, 6, 0 }, { 0, 0, 0, 0 } },
        }
        for k = 1, 3 do
            assert.same(expected[k], roll(2, "contiguous", { lengths = { 6, 2 } },
                { 1, 2, 3, 4, 5, 6, 7, 8 }, k))
        end
    end)

    -- Values 1 .. 32 as 16 rows of 2, weights 0 .. 31, three successive rolls: each is one offset
    -- from the source, and its gradient is the weight of the row that read it.
    local PACKED = { lengths = { 4, 8, 4 }, real = { 3, 7, 4 } }
    local TENSOR_PARALLEL = { lengths = { 6, 10 } }
    for name, case in pairs { packed = { 2, "contiguous", PACKED },
        unpacked = { 2, "contiguous", { seqlen = 16 }, { lengths = { 16 } } },
        ["unpacked zigzag"] = { 2, "zigzag", { seqlen = 16 }, { lengths = { 16 } } },
        ["cp 2 x tp 2"] = { 4, "contiguous", TENSOR_PARALLEL, nil, 2 } } do
        ranks.with(case[1], it)("of differentiable rows: " .. name, function()
            local by_row, weights, both = {}, {}, {}
            for i = 1, 16 do
                by_row[i], weights[i] = { 2 * i - 1, 2 * i }, { 2 * i - 2, 2 * i - 1 }
                both[i] = i
            end
            for k = 1, 3 do
                local from = naive(case[4] or case[3], both, k)
                local results = ranks.run(case[1], ROLL, { layout = case[2], stream = case[3],
                    tp = case[5], rows = by_row, gradient = weights, k = k })
                local back = {}
                for i = 1, 16 do back[i] = { 0, 0 } end
                for i = 1, 16 do back[from[i]] = from[i] > 0 and weights[i] or nil end
                for _, result in ipairs(results) do
                    local rolled, gradient, kept = {}, {}, {}
                    for _, p in ipairs(result.positions) do
                        for c = 1, 2 do
                            local row = by_row[from[p + 1]]
                            rolled[#rolled + 1] = row and row[c] or 0
                            gradient[#gradient + 1] = back[p + 1][c]
                            kept[#kept + 1] = by_row[p + 1][c]
                        end
                    end
                    assert.same(rolled, result.rolled)
                    assert.same(gradient, result.back)
                    assert.same(kept, result.kept)
                end
            end
        end)
    end
end)

-- Tokens of a stack by layout and group, each position's once: tokens, and rolled by 1 to n.
local function place(fields, layout_name, cp, n)
    local by_rank = ranks.run(cp, function(comm, p)
        local cplab = require "cplab" -- luacheck: ignore 431
        local ffi = require("clib").ffi
        local stream = p.fields.seqlen and cplab.stream.sbhd(p.fields)
            or cplab.stream.thd(p.fields)
        local layout = cplab.layout[p.layout](stream, { cp = comm:size() })
        local placed = require("cplab.tokens").place({
            stream = stream, entry = layout, exit = layout, rank = comm:rank(), comm = comm._ptr,
            model = { vocab = 1000 }, trace = false,
        }, p.n)
        local rows = {}
        for slot, position in ipairs(layout:positions(comm:rank())) do
            local row = { position, ffi.cast("int32_t *", placed.tokens.data)[slot - 1] }
            for k = 1, p.n do
                row[2 + k] = ffi.cast("int32_t *", placed.rolled[k].data)[slot - 1]
            end
            rows[slot] = row
        end
        return rows
    end, { fields = fields, layout = layout_name, n = n })
    local list = {}
    for _, rows in ipairs(by_rank) do
        for _, row in ipairs(rows) do list[row[1] + 1] = { unpack(row, 2) } end
    end
    return list
end

describe("the tokens of depths", function()
    local STREAMS = {
        { lengths = { 12, 0, 12, 12 }, real = { 10, 0, 1, 0 } },
        { lengths = { 12, 24 }, real = { 2, 23 } }, { lengths = { 36 }, real = { 35 } },
    }
    it("are the real token k on, one offset from the source each, in every layout", function()
        for _, stream in ipairs(STREAMS) do
            local one = place(stream, "contiguous", 1, 6)
            local token = {}
            for i, row in ipairs(one) do token[i] = row[1] + 1 end
            for k = 1, 6 do
                local expected = naive(stream, token, k)
                for i, row in ipairs(one) do assert.equal(expected[i] - 1, row[1 + k]) end
            end
            for _, cp in ipairs(ranks.sizes { 2, 3 }) do
                for _, layout in ipairs { "contiguous", "zigzag", "mirror" } do
                    assert.same(one, place(stream, layout, cp, 6))
                end
            end
        end
    end)

    it("are so on an unpacked stream too, contiguous included", function()
        local one = place({ seqlen = 24 }, "contiguous", 1, 4)
        for i, row in ipairs(one) do
            for k = 1, 4 do
                assert.equal(one[i + k] and one[i + k][1] or -1, row[1 + k])
            end
        end
        for _, cp in ipairs(ranks.sizes { 2, 3, 4 }) do
            for _, layout in ipairs { "contiguous", "zigzag", "mirror" } do
                assert.same(one, place({ seqlen = 24 }, layout, cp, 4))
            end
        end
    end)

    it("T-70: are there exactly where the depth's stream is real: the mask, rolled once", function()
        local mtp, tokens = require "cplab.mtp", require "cplab.tokens"
        for _, fields in ipairs(STREAMS) do
            local stream, by_position = cplab.stream.thd(fields), place(fields, "contiguous", 1, 4)
            for d = 1, 3 do
                local shorter = mtp.stream(stream, d)
                local start, labels = 0, 0
                for s = 0, shorter:n_sequences() - 1 do
                    local sequence = shorter:sequence(s)
                    assert.equal(fields.lengths[s + 1], sequence.padded)
                    for j = 1, sequence.padded do
                        local row = by_position[start + j]
                        assert.equal(j <= sequence.real, row[1 + d] >= 0)
                        labels = labels + (row[2 + d] >= 0 and 1 or 0)
                    end
                    start = start + sequence.padded
                end
                assert.equal(labels, tokens.n_labels(shorter))
            end
        end
    end)
end)

-- Traps of other systems about rolls; T-79 and T-81 are in mtp_spec, those of groups in traps_spec.
describe("trap", function()
    local it8 = ranks.with(8, it)

    it("T-65: a roll stops at a boundary inside the next rank's shard", function()
        local lists = roll(2, "contiguous", { lengths = { 6, 2 } }, { 1, 2, 3, 4, 5, 6, 7, 8 }, 3)
        assert.equal(0, lists[1][4]) -- 7 where only the halo is looked at
    end)

    it("T-66, T-80: the last real token learns nothing from padding that holds tokens", function()
        for _, cp in ipairs(ranks.sizes { 1, 2, 4 }) do
            for _, layout in ipairs { "contiguous", "zigzag", "mirror" } do
                for _, dtype in ipairs { "f64", "f32", "i32", "i64" } do
                    local stream, got = { lengths = { 8 }, real = { 7 } }, {}
                    local ones, values = { 1, 1, 1, 1, 1, 1, 1, 1 }, { 1, 2, 3, 4, 5, 6, 7, 99 }
                    for k = 1, 6 do
                        local results = ranks.run(cp, ROLL, { layout = layout, stream = stream,
                            rows = zipped(values, ones), k = k, dtype = dtype })
                        for _, result in ipairs(results) do
                            for slot, p in ipairs(result.positions) do
                                got[p + 1] = { result.rolled[2 * slot - 1],
                                    result.rolled[2 * slot] }
                                assert.equal(values[p + 1], result.kept[2 * slot - 1])
                            end
                        end
                        assert.same(zipped(naive(stream, values, k), naive(stream, ones, k)), got)
                    end
                end
            end
        end
        assert.same({ 1, 1, 1, 1, 1, 1, 0, 0 },
            naive({ lengths = { 8 }, real = { 7 } }, { 1, 1, 1, 1, 1, 1, 1, 1 }, 1))
    end)

    it("T-67: in zigzag the last rank's front is followed by its own back, rank 0's back by none",
        function()
            local lists = roll(2, "zigzag", { lengths = { 8 } }, { 1, 2, 3, 4, 5, 6, 7, 8 })
            assert.same({ { 2, 3, 8, 0 }, { 4, 5, 6, 7 } }, lists)
        end)

    it8("T-69: rolls further than a shard is long reach over it", function()
        local values = { 1, 2, 3, 4, 5, 6, 7, 8 }
        for k = 1, 8 do
            local lists, got = roll(8, "contiguous", { lengths = { 8 } }, values, k), {}
            for r = 1, 8 do got[r] = lists[r][1] end
            assert.same(naive({ lengths = { 8 } }, values, k), got)
        end
    end)

    it("T-82: six successive rolls are six offsets: rolls by one in a chain agree", function()
        local stream, values = { lengths = { 8, 12 }, real = { 7, 10 } }, {}
        for i = 1, 20 do values[i] = i end
        local chain = values
        for k = 1, 6 do
            chain = naive(stream, chain, 1)
            assert.same({ chain }, roll(1, "contiguous", stream, values, k))
        end
    end)
end)
