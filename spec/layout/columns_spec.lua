-- Columns of an sbhd stream: their stream, and their layouts against lists made column by column.
local clib = require "clib"
local cplab = require "cplab"
local cases = require "spec.support.layout_cases"
local naive = require "spec.support.layout_naive"
local message = require "spec.support.message"

local layout, sbhd = cplab.layout, cplab.stream.sbhd

-- What each rank must hold: of every column in turn, its positions of the layout.
local function expected(of, columns)
    local ranks = {}
    for rank = 0, of:n_ranks() - 1 do
        local list = {}
        for column = 0, columns - 1 do
            for _, p in ipairs(of:positions(rank)) do
                list[#list + 1] = column * of:stream():n_positions() + p
            end
        end
        ranks[rank + 1] = list
    end
    return ranks
end

-- Layouts of many kinds and groups of one stream.
local function each(visit)
    local next_random = cases.random(11)
    for cp = 1, 5 do
        local tp = cp % 3 == 0 and 2 or 1
        for _, unit in ipairs { 0, 1, 3 } do
            local stream = sbhd { seqlen = 2 * cp * tp * unit, batch = cp % 4 + 1 }
            local options = { cp = cp, tp = tp }
            for _, kind in ipairs(cases.kinds) do visit(layout[kind](stream, options)) end
            visit(layout.striped(stream, { cp = cp, tp = tp, block = math.max(unit, 1) }))
            visit(layout.custom(stream, { tp = tp,
                ranks = cases.custom_ranks(stream:n_positions(), cp * tp, next_random) }))
            if tp == 1 then
                visit(layout.balanced(stream, { cp = cp, block = 1 }))
                local order = {}
                for i = 1, cp do order[i] = i % cp end
                visit(layout.zigzag(stream, { cp = cp, order = order }))
            end
        end
    end
end

describe("the columns of a stream", function()
    it("are its sequences, one after the other, and carry its tokens", function()
        local stream = sbhd { seqlen = 3, batch = 2, tokens = { 10, 20, 11, 21, 12, 22 } }
        local columns = stream:columns()
        assert.equal("2 columns of 3 positions", columns:describe())
        assert.same({ 10, 11, 12, 20, 21, 22 }, columns.tokens)
        assert.same({ 2, 6, 1 }, { columns:n_sequences(), columns:n_positions(), columns:batch() })
        assert.same({ start = 3, padded = 3, real = 3 }, columns:sequence(1))
        assert.equal("position 2 of column 1", columns:place(5))
        assert.equal("position 2", stream:place(2))
        assert.equal(columns, stream:columns())
        assert.same({ 97, 99, 98, 100 },
            sbhd { seqlen = 2, batch = 2, tokens = "abcd" }:columns().tokens)
    end)

    it("are no thd stream, though the sequences are the same", function()
        local a, b = sbhd { seqlen = 3, batch = 2 }, sbhd { seqlen = 2, batch = 3 }
        assert.is_false(a:columns():equals(cplab.stream.thd { lengths = { 3, 3 } }))
        assert.is_false(a:columns():equals(b:columns()))
        assert.is_false(sbhd { seqlen = 3 }:columns():equals(sbhd { seqlen = 3 }))
        assert.is_true(a:columns():equals(sbhd { seqlen = 3, batch = 2 }:columns()))
    end)

    it("are refused where there are none, or too many", function()
        local thd = cplab.stream.thd { lengths = { 4 } }
        assert.equal("stream.columns: thd of 1 sequence, 4 positions has none; an sbhd stream has",
            message(thd.columns, thd))
        local wide = sbhd { seqlen = 2, batch = 2 ^ 52 + 1 }
        assert.equal("stream.columns: sbhd of 2 positions, batch 4503599627370497: more than 2^53 "
            .. "rows", message(wide.columns, wide))
    end)
end)

describe("a layout of columns", function()
    it("holds each column's rows of the layout in turn, however it is asked", function()
        each(function(of)
            local columns, stream = of:columns(), of:stream():columns()
            local where = tostring(columns)
            local lists = expected(of, of:stream():batch())
            local tokens = naive.tokens(stream)
            local held, chains = {}, naive.chains(tokens, lists)
            assert.equal("columns of " .. tostring(of), where)
            assert.equal(of.kind, columns.kind)
            assert.same({ of:cp(), of:tp(), of:order() },
                { columns:cp(), columns:tp(), columns:order() })
            for rank = 0, of:n_ranks() - 1 do
                local list = lists[rank + 1]
                assert.same(list, columns:positions(rank), where)
                assert.same(list, naive.expand(columns:runs(rank)), where)
                assert.equal(#list, columns:n_local(rank), where)
                assert.same(naive.spans(tokens, list), columns:spans(rank), where)
                assert.same(chains[rank + 1], columns:chain(rank), where)
                for slot = #list - 1, 0, -1 do
                    local position = list[slot + 1]
                    assert.is_nil(held[position])
                    held[position] = true
                    assert.equal(position, columns:position(rank, slot), where)
                    assert.same({ rank, slot }, { columns:locate(position) }, where)
                end
            end
            assert.equal(stream:n_positions(), #naive.whole(held), where)
        end)
    end)

    it("has the work of each column", function()
        each(function(of)
            local work, times = of:work(), of:stream():batch()
            for i, n in ipairs(work) do work[i] = n * times end
            assert.same(work, of:columns():work(), tostring(of))
        end)
    end)

    it("is routed row by row, to a layout and to a view", function()
        local stream = sbhd { seqlen = 24, batch = 3 }
        local lists, made = {}, {}
        for i, kind in ipairs(cases.kinds) do
            local of = layout[kind](stream, { cp = 3 })
            made[i], lists[i] = of:columns(), expected(of, 3)
        end
        local tokens = naive.tokens(stream:columns())
        for i, from in ipairs(made) do
            for j, to in ipairs(made) do
                assert.same(lists[j], naive.carry_out(cplab.route(from, to),
                    function(rank) return to:n_local(rank) end))
                assert.equal(from:positions_layout():equals(to:positions_layout()),
                    from:equals(to))
            end
            local halo, shift = cplab.view.halo(from, 3), cplab.view.shift(from, 1)
            for rank = 0, 2 do
                local list = lists[i][rank + 1]
                assert.same(naive.halo(tokens, list, 3), naive.expand(halo:runs(rank)))
                assert.same(naive.shift(tokens, list, 1), naive.expand(shift:runs(rank)))
            end
        end
    end)

    it("takes the messages of one column, and its rows once a column", function()
        local stream = sbhd { seqlen = 48, batch = 3 }
        for _, kinds in ipairs { { "contiguous", "zigzag" }, { "contiguous", "mirror" },
            { "zigzag", "striped" } } do
            local a, b = layout[kinds[1]](stream, { cp = 4 }), layout[kinds[2]](stream, { cp = 4 })
            local one = cplab.route(a, b):stats()
            local all = cplab.route(a:columns(), b:columns()):stats()
            assert.equal(one.messages, all.messages)
            assert.equal(3 * one.segments, all.segments)
            assert.equal(3 * one.moved_tokens, all.moved_tokens)
            assert.equal(3 * one.busiest_tokens, all.busiest_tokens)
        end
    end)

    it("equals another where their layouts of positions are equal", function()
        local stream = sbhd { seqlen = 16, batch = 2 }
        local zigzag, snake = layout.zigzag(stream, { cp = 2 }), layout.snake(stream, { cp = 2 })
        assert.is_true(zigzag:columns():equals(snake:columns()))
        assert.is_false(zigzag:columns():equals(zigzag))
        assert.is_false(zigzag:columns():equals(layout.contiguous(stream, { cp = 2 }):columns()))
        assert.is_false(zigzag:columns():equals(
            layout.zigzag(sbhd { seqlen = 16, batch = 3 }, { cp = 2 }):columns()))
        assert.equal(zigzag, zigzag:columns():positions_layout())
        assert.equal(zigzag, zigzag:positions_layout())
    end)

    it("holds 2^40 positions without memory for each", function()
        local z = layout.zigzag(sbhd { seqlen = 2 ^ 38, batch = 4 }, { cp = 4 }):columns()
        assert.same({ 1, 2 ^ 36 + 7 }, { z:locate(2 ^ 38 + 2 ^ 35 + 7) })
        assert.equal(2 ^ 38 + 2 ^ 35 + 7, z:position(1, 2 ^ 36 + 7))
    end)

    it("is made of the stream's own columns only, and of nothing else", function()
        local a, b = sbhd { seqlen = 8, batch = 2 }, sbhd { seqlen = 4, batch = 4 }
        local thd = cplab.stream.thd { lengths = { 8, 8 } }
        local z, box = layout.zigzag(a, { cp = 2 }), clib.ffi.new "cpl_layout *[1]"
        for _, stream in ipairs { a, b:columns(), thd } do
            assert.equal(clib.C.CPL_MISMATCH,
                tonumber(clib.C.cpl_layout_columns(z._ptr, stream._ptr, box)))
            assert.equal(("layout.columns: %s are not the columns of the stream of zigzag, cp 2, "
                .. "sbhd of 8 positions, batch 2"):format(stream:describe()),
                clib.ffi.string(clib.C.cpl_last_error()))
        end
        assert.is_true(box[0] == nil)
        assert.equal("layout.zigzag: lay out the sbhd stream, and take the columns of that, not "
            .. "2 columns of 8 positions", message(layout.zigzag, a:columns(), { cp = 2 }))
        assert.equal("stream.columns: thd of 2 sequences, 16 positions has none; an sbhd stream "
            .. "has", message(z.columns, layout.zigzag(thd, { cp = 2 })))
    end)
end)
