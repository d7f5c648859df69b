-- Layouts: published vectors, properties over many streams, and what is refused.
local cplab = require "cplab"
local cases = require "spec.support.layout_cases"
local naive = require "spec.support.layout_naive"
local message = require "spec.support.message"

local layout, thd = cplab.layout, cplab.stream.thd

local function ranges(text)
    local list = {}
    for first, last in text:gmatch "(%d+)%-(%d+)" do
        for p = tonumber(first), tonumber(last) do list[#list + 1] = p end
    end
    return list
end

describe("published layouts", function()
    it("cu [0,16,40] on 2 ranks: contiguous cuts the flat stream, zigzag each sequence", function()
        local s = thd { cu_seqlens = { 0, 16, 40 } }
        local z, c = layout.zigzag(s, { cp = 2 }), layout.contiguous(s, { cp = 2 })
        assert.same(ranges "0-3 12-15 16-21 34-39", z:positions(0))
        assert.same(ranges "4-11 22-33", z:positions(1))
        assert.same(ranges "0-19", c:positions(0))
        assert.same(ranges "20-39", c:positions(1))
        assert.same({ { 0, 4 }, { 12, 10 }, { 34, 6 } }, z:runs(0))
        assert.same({ { 4, 8 }, { 22, 12 } }, z:runs(1))
    end)

    it("cu [0,16,40,40,40] is laid out as [0,16,40]", function()
        local a = layout.zigzag(thd { cu_seqlens = { 0, 16, 40 } }, { cp = 2 })
        local b = layout.zigzag(thd { cu_seqlens = { 0, 16, 40, 40, 40 } }, { cp = 2 })
        for r = 0, 1 do assert.same(a:runs(r), b:runs(r)) end
    end)

    it("contiguous needs only cp: cu [0,10,18] on 2 ranks", function()
        local c = layout.contiguous(thd { cu_seqlens = { 0, 10, 18 } }, { cp = 2 })
        assert.same(ranges "0-8", c:positions(0))
        assert.same(ranges "9-17", c:positions(1))
        assert.equal(4, layout.contiguous(cplab.stream.sbhd { seqlen = 12 }, { cp = 3 }):n_local(2))
    end)

    it("S = 8 on 2 ranks, rank 1", function()
        local s = cplab.stream.sbhd { seqlen = 8 }
        assert.same({ 2, 3, 4, 5 }, layout.zigzag(s, { cp = 2 }):positions(1))
        assert.same({ 4, 5, 6, 7 }, layout.contiguous(s, { cp = 2 }):positions(1))
    end)

    it("zigzag chunks of cu [0,8,16,24,40] on 4 ranks", function()
        local z = layout.zigzag(thd { cu_seqlens = { 0, 8, 16, 24, 40 } }, { cp = 4 })
        local expected = {
            { { 0, 7 }, { 0, 1, 14, 15 } }, { { 1, 6 }, { 2, 3, 12, 13 } },
            { { 2, 5 }, { 4, 5, 10, 11 } }, { { 3, 4 }, { 6, 7, 8, 9 } },
        }
        for r = 0, 3 do
            local short, long = expected[r + 1][1], expected[r + 1][2]
            local list = {}
            for i = 0, 2 do
                for _, o in ipairs(short) do list[#list + 1] = 8 * i + o end
            end
            for _, o in ipairs(long) do list[#list + 1] = 24 + o end
            assert.same(list, z:positions(r))
        end
    end)

    it("zigzag of cu [0,8,12,16] on 2 ranks", function()
        local z = layout.zigzag(thd { cu_seqlens = { 0, 8, 12, 16 } }, { cp = 2 })
        assert.same({ 0, 1, 6, 7, 8, 11, 12, 15 }, z:positions(0))
        assert.same({ 2, 3, 4, 5, 9, 10, 13, 14 }, z:positions(1))
    end)

    it("mirror keeps half of each shard where contiguous has it, in its order", function()
        local m = layout.mirror(thd { lengths = { 16 } }, { cp = 4 })
        assert.same({ { 0, 2 }, { 14, 2 } }, m:runs(0))
        assert.same({ { 4, 2 }, { 10, 2 } }, m:runs(1))
        assert.same({ { 8, 2 }, { 6, 2 } }, m:runs(2))
        assert.same({ { 12, 2 }, { 2, 2 } }, m:runs(3))
    end)

    it("real tokens of a padded sequence on the ranks of zigzag", function()
        local published = {
            { 704, 698, { 170, 176, 176, 176 } }, { 12, 7, { 3, 4 } }, { 12, 9, { 3, 6 } },
            { 12, 8, { 3, 5 } }, { 16, 1, { 1, 0, 0, 0 } },
        }
        for _, case in ipairs(published) do
            local s = thd { lengths = { case[1] }, real = { case[2] } }
            local z, counts = layout.zigzag(s, { cp = #case[3] }), {}
            for r = 0, #case[3] - 1 do
                counts[r + 1] = 0
                for _, span in ipairs(z:spans(r, true)) do
                    counts[r + 1] = counts[r + 1] + span.length
                end
            end
            assert.same(case[3], counts)
        end
    end)

    it("snake is zigzag of the whole stream, and of one sequence it is zigzag", function()
        local s = thd { cu_seqlens = { 0, 5, 12 } }
        local z = layout.snake(s, { cp = 3 })
        assert.same({ { 0, 1, 10, 11 }, { 2, 3, 8, 9 }, { 4, 5, 6, 7 } },
            { z:positions(0), z:positions(1), z:positions(2) })
        local one = cplab.stream.sbhd { seqlen = 48, batch = 2 }
        for _, options in ipairs { { cp = 4 }, { cp = 4, tp = 3 }, { cp = 1, tp = 6 } } do
            assert.is_true(layout.snake(one, options):equals(layout.zigzag(one, options)))
        end
    end)

    it("striped deals single positions, or blocks, round robin", function()
        local s = thd { lengths = { 7, 5 } }
        local z = layout.striped(s, { cp = 3 })
        assert.same({ { 0, 3, 6, 9 }, { 1, 4, 7, 10 }, { 2, 5, 8, 11 } },
            { z:positions(0), z:positions(1), z:positions(2) })
        z = layout.striped(s, { cp = 2, block = 3 })
        assert.same({ { { 0, 3 }, { 6, 3 } }, { { 3, 3 }, { 9, 3 } } }, { z:runs(0), z:runs(1) })
        z = layout.striped(s, { cp = 2, block = 3, tp = 3 })
        assert.same({ { 0, 1 }, { 2, 6 }, { 7, 8 }, { 3, 4 }, { 5, 9 }, { 10, 11 } },
            { z:positions(0), z:positions(1), z:positions(2), z:positions(3), z:positions(4),
                z:positions(5) })
    end)

    it("work of 128 tokens a rank: contiguous is skewed, zigzag and mirror are not", function()
        local s = cplab.stream.sbhd { seqlen = 256 }
        assert.same({ 8256, 24640 }, layout.contiguous(s, { cp = 2 }):work())
        assert.equal(24640 / 16448, layout.contiguous(s, { cp = 2 }):imbalance())
        for cp, each in pairs { [2] = 16448, [4] = 32832, [8] = 65600 } do
            for _, kind in ipairs { "zigzag", "mirror" } do
                local work = layout[kind](thd { lengths = { 128 * cp } }, { cp = cp }):work()
                for r = 1, cp do assert.equal(each, work[r]) end
            end
        end
    end)

    it("work within a window is what counting query by query gives", function()
        local s = thd { lengths = { 24, 0, 48, 12 }, real = { 19, 0, 48, 1 } }
        for _, kind in ipairs { "contiguous", "zigzag", "mirror", "striped" } do
            local z = layout[kind](s, { cp = 3, tp = 2 })
            for _, window in ipairs { 0, 1, 2, 7, 18, 19, 20, 47, 48, 1000 } do
                local expected = { 0, 0, 0 }
                for r = 0, 5 do
                    for _, position in ipairs(z:positions(r)) do
                        local sequence = s:sequence(s:sequence_of(position))
                        local keys = position - sequence.start + 1
                        if keys <= sequence.real then
                            local cp_rank = math.floor(r / 2) + 1
                            expected[cp_rank] = expected[cp_rank]
                                + (window > 0 and math.min(keys, window) or keys)
                        end
                    end
                end
                assert.same(expected, z:work(window), kind .. " " .. window)
            end
            assert.same(z:work(0), z:work())
            assert.not_same(z:work(0), z:work(47))
        end
    end)
end)

describe("every layout", function()
    it("holds what its definition says", function()
        cases.each(function(name, stream, layouts)
            for i = 1, #cases.kinds do
                local z = layouts[i]
                local expected = naive.positions(z.kind, stream, z:cp(), z:tp())
                for r = 0, z:n_ranks() - 1 do
                    assert.same(expected[r + 1], z:positions(r), name .. " " .. z.kind)
                end
            end
        end)
    end)

    it("follows the group order", function()
        local s = thd { lengths = { 24, 0, 48 } }
        local order = { 5, 0, 3, 1, 4, 2 }
        for _, kind in ipairs(cases.kinds) do
            local z = layout[kind](s, { cp = 3, tp = 2, group_order = order })
            local expected = naive.positions(kind, s, 3, 2, order)
            for r = 0, 5 do assert.same(expected[r + 1], z:positions(r)) end
            assert.same(layout[kind](s, { cp = 3, tp = 2 }):work(), z:work())
        end
    end)

    it("holds each position once, where locate says, in maximal runs", function()
        cases.each(function(name, stream, layouts)
            for _, z in ipairs(layouts) do
                local seen = 0
                for r = 0, z:n_ranks() - 1 do
                    local positions, runs = z:positions(r), z:runs(r)
                    assert.equal(z:n_local(r), #positions, name)
                    for x, p in ipairs(positions) do
                        local rank, slot = z:locate(p)
                        assert(rank == r and slot == x - 1, name)
                        assert(z:position(r, x - 1) == p, name)
                    end
                    for i, run in ipairs(runs) do
                        assert(run[2] > 0, name)
                        assert(i == 1 or runs[i - 1][1] + runs[i - 1][2] ~= run[1], name)
                    end
                    seen = seen + #positions
                end
                assert.equal(stream:n_positions(), seen, name)
            end
        end)
    end)

    it("has the spans and the work of its tokens, one by one", function()
        cases.each(function(name, stream, layouts)
            local tokens = naive.tokens(stream)
            for _, z in ipairs(layouts) do
                local work = {}
                for r = 0, z:n_ranks() - 1 do
                    local positions = z:positions(r)
                    for _, real in ipairs { false, true } do
                        assert.same(naive.spans(tokens, positions, real), z:spans(r, real), name)
                    end
                    local c = math.floor(r / z:tp()) + 1
                    work[c] = (work[c] or 0) + naive.work(tokens, positions)
                end
                assert.same(work, z:work(), name .. " " .. z.kind)
            end
        end)
    end)

    it("is equal to another exactly where the runs are", function()
        cases.each(function(name, stream, layouts)
            local function text(z)
                local all = {}
                for r = 0, z:n_ranks() - 1 do
                    all[#all + 1] = table.concat(z:positions(r), " ")
                end
                return table.concat(all, "|")
            end
            local ranks = {}
            for r = 0, layouts[1]:n_ranks() - 1 do ranks[r + 1] = layouts[2]:runs(r) end
            layouts[#layouts + 1] = cplab.layout.custom(stream, { ranks = ranks,
                tp = layouts[1]:tp() })
            for _, a in ipairs(layouts) do
                for _, b in ipairs(layouts) do
                    assert.equal(text(a) == text(b), a:equals(b),
                        name .. ": " .. a:describe() .. " and " .. b:describe())
                end
            end
        end)
    end)
end)

describe("equality", function()
    local s = thd { lengths = { 32 } }

    it("sees that one rank is one rank, whatever the kind", function()
        for _, kind in ipairs { "zigzag", "mirror" } do
            assert.is_true(layout[kind](s):equals(layout.contiguous(s)))
        end
    end)

    it("sees through an order of the ranks that makes one kind another", function()
        local zigzag = layout.zigzag(s, { cp = 2, tp = 2, group_order = { 0, 1, 3, 2 } })
        assert.is_true(layout.mirror(s, { cp = 2, tp = 2 }):equals(zigzag))
        assert.is_false(layout.mirror(s, { cp = 2, tp = 2 }):equals(
            layout.zigzag(s, { cp = 2, tp = 2 })))
    end)

    it("finds the block of a stripe in the runs alone", function()
        for _, case in ipairs { { 2, 1 }, { 3, 1 }, { 2, 2 }, { 2, 3 }, { 1, 2 } } do
            local cp, tp = unpack(case)
            local even = thd { lengths = { 12 * cp * tp } }
            local n = 12 * tp
            for block = 1, n do
                if n % block == 0 then
                    local z = layout.striped(even, { cp = cp, tp = tp, block = block })
                    local ranks = {}
                    for r = 0, cp * tp - 1 do ranks[r + 1] = z:runs(r) end
                    assert.is_true(z:equals(layout.custom(even, { tp = tp, ranks = ranks })))
                    for other = 1, block - 1 do
                        if n % other == 0 then
                            local y = layout.striped(even, { cp = cp, tp = tp, block = other })
                            assert.equal(cp == 1, z:equals(y))
                        end
                    end
                end
            end
            local c = layout.contiguous(even, { cp = cp, tp = tp })
            assert.is_true(layout.striped(even, { cp = cp, tp = tp, block = n }):equals(c))
        end
    end)

    it("depends on order, group, stream and real lengths", function()
        local z = layout.zigzag(s, { cp = 2 })
        assert.is_true(z:equals(layout.zigzag(thd { lengths = { 32 } }, { cp = 2 })))
        local others = {
            layout.zigzag(s, { cp = 2, group_order = { 1, 0 } }),
            layout.mirror(s, { cp = 2 }),
            layout.zigzag(thd { lengths = { 32 }, real = { 31 } }, { cp = 2 }),
            layout.zigzag(thd { lengths = { 32, 0 } }, { cp = 2 }),
            layout.zigzag(cplab.stream.sbhd { seqlen = 32 }, { cp = 2 }),
        }
        for _, other in ipairs(others) do assert.is_false(z:equals(other)) end
        assert.is_false(layout.contiguous(s, { cp = 2 }):equals(
            layout.contiguous(s, { cp = 1, tp = 2 })))
    end)

    it("sees that nobody holds anything of an empty stream, in any order", function()
        local none = thd { lengths = { 0 } }
        local a = layout.contiguous(none, { cp = 2, group_order = { 1, 0 } })
        assert.is_true(a:equals(layout.zigzag(none, { cp = 2 })))
        assert.is_true(a:equals(layout.custom(none, { ranks = { {}, {} } })))
        assert.is_false(a:equals(layout.contiguous(none, { cp = 3 })))
    end)

    it("of two runs of a custom layout that are swapped is no equality", function()
        local a = layout.custom(s, { ranks = { { { 0, 4 }, { 8, 24 } }, { { 4, 4 } } } })
        local b = layout.custom(s, { ranks = { { { 8, 24 }, { 0, 4 } }, { { 4, 4 } } } })
        local c = layout.custom(s, { ranks = { { { 0, 4 }, { 8, 8 }, { 16, 16 } }, { { 4, 4 } } } })
        assert.is_false(a:equals(b))
        assert.is_true(a:equals(c))
    end)
end)

describe("a large layout", function()
    it("of 2^40 positions answers at once", function()
        local s = thd { lengths = { 2 ^ 39, 2 ^ 39 } }
        local z = layout.zigzag(s, { cp = 8 })
        local quarter = 2 ^ 39 / 16
        assert.same({ { quarter, quarter }, { 2 ^ 39 - 2 * quarter, quarter },
            { 2 ^ 39 + quarter, quarter }, { 2 ^ 40 - 2 * quarter, quarter } }, z:runs(1))
        local rank, slot = z:locate(2 ^ 40 - 1)
        assert.same({ 0, 2 ^ 37 - 1 }, { rank, slot })
    end)

    it("says when its work passes 2^63", function()
        local s = thd { lengths = { 2 ^ 40 } }
        assert.equal("layout.work: the work of rank 0 passes 2^63",
            message(function() layout.zigzag(s, { cp = 2 }):work() end))
        -- Within a window it does not.
        assert.same({ 2 ^ 39 * 7 - 21, 2 ^ 39 * 7 }, layout.zigzag(s, { cp = 2 }):work(7))
    end)

    it("refuses a window that is none", function()
        local z = layout.zigzag(thd { lengths = { 8 } }, { cp = 2 })
        for wrong, text in pairs { [-1] = "-1", [2.5] = "2.5" } do
            assert.equal("layout.work: window must be an integer >= 0 (got " .. text .. ")",
                message(function() z:work(wrong) end))
        end
    end)
end)

describe("a layout refuses", function()
    local s = thd { lengths = { 16, 10 } }
    local even = thd { lengths = { 16 } }
    local refused = {
        ["a sequence that 2*cp does not divide"] = { "zigzag", s, { cp = 2 },
            "layout.zigzag: sequence 1 has 10 tokens, not a multiple of 2*cp = 4" },
        ["the same in mirror"] = { "mirror", s, { cp = 4 },
            "layout.mirror: sequence 1 has 10 tokens, not a multiple of 2*cp = 8" },
        ["an odd sequence on one rank"] = { "zigzag", thd { lengths = { 3 } }, {},
            "layout.zigzag: sequence 0 has 3 tokens, not a multiple of 2*cp = 2" },
        ["a total that divides of sequences that do not"] = { "zigzag",
            thd { cu_seqlens = { 0, 6, 16 } }, { cp = 4 },
            "layout.zigzag: sequence 0 has 6 tokens, not a multiple of 2*cp = 8" },
        ["a stream that 2*cp does not divide, in snake"] = { "snake", s, { cp = 3 },
            "layout.snake: the stream has 26 positions, not a multiple of 2*cp = 6" },
        ["uneven last blocks"] = { "striped", s, { cp = 2, block = 2 },
            "layout.striped: the stream has 26 positions, not a multiple of cp = 2 blocks of 2: "
            .. "the last blocks would be uneven" },
        ["a last block that is not whole"] = { "striped", s, { cp = 2, block = 4 },
            "layout.striped: the stream has 26 positions, not a multiple of cp = 2 blocks of 4: "
            .. "the last blocks would be uneven" },
        ["blocks larger than the stream"] = { "striped", s, { cp = 2, block = 2 ^ 53 },
            "layout.striped: the stream has 26 positions, not a multiple of cp = 2 blocks of "
            .. "9007199254740992: the last blocks would be uneven" },
        ["no block"] = { "striped", s, { block = 0 },
            "layout.striped: block must be an integer >= 1 (got 0)" },
        ["a stripe that tp does not divide"] = { "striped", thd { lengths = { 20 } },
            { cp = 2, tp = 4 },
            "layout.striped: a CP rank has 10 rows, not a multiple of tp = 4" },
        ["a stream that cp does not divide"] = { "contiguous", s, { cp = 4 },
            "layout.contiguous: the stream has 26 positions, not a multiple of cp = 4" },
        ["rows that tp does not divide"] = { "contiguous", thd { lengths = { 20 } },
            { cp = 2, tp = 4 },
            "layout.contiguous: a CP rank has 10 rows, not a multiple of tp = 4" },
        ["an odd tp"] = { "zigzag", even, { cp = 2, tp = 3 },
            "layout.zigzag: a CP rank has 8 rows, not a multiple of tp = 3" },
        ["no CP rank"] = { "zigzag", even, { cp = 0 },
            "layout.zigzag: cp must be an integer in 1 .. 2147483647 (got 0)" },
        ["half a CP rank"] = { "zigzag", even, { cp = 2.5 },
            "layout.zigzag: cp must be an integer (got 2.5)" },
        ["no TP rank"] = { "zigzag", even, { cp = 2, tp = 0 },
            "layout.zigzag: tp must be an integer in 1 .. 2147483647 (got 0)" },
        ["more ranks than there can be"] = { "zigzag", even, { cp = 2048, tp = 1024 },
            "layout.zigzag: cp and tp must be >= 1 and cp*tp <= 1048576 "
            .. "(got cp = 2048, tp = 1024)" },
        ["a group order with a rank twice"] = { "zigzag", even,
            { cp = 2, tp = 2, group_order = { 0, 0, 2, 3 } },
            "layout.zigzag: group_order must be a permutation, but logical ranks 0 and 1 are both "
            .. "group rank 0" },
        ["a group order out of range"] = { "zigzag", even,
            { cp = 2, tp = 2, group_order = { 0, 1, 2, 4 } },
            "layout.zigzag: group_order of logical rank 3 is 4, not in 0 .. 3" },
        ["a short group order"] = { "zigzag", even, { cp = 2, tp = 2, group_order = { 0, 1 } },
            "layout.zigzag: group_order has 2 entries, not cp*tp = 4" },
        ["an unknown field"] = { "zigzag", even, { cpp = 2 },
            'layout.zigzag: unknown field "cpp"; did you mean "cp"?' },
        ["a field of another kind"] = { "zigzag", even, { cp = 1, ranks = {} },
            'layout.zigzag: unknown field "ranks"; there are cp, group_order, near, node_size, '
            .. "order, tp" },
        ["what is no stream"] = { "zigzag", { 16 }, {},
            "layout.zigzag: the first argument must be a stream (got a table)" },
        ["a position held twice"] = { "custom", even,
            { ranks = { { { 0, 8 } }, { { 8, 8 }, { 4, 2 } } } },
            "layout.custom: position 4 is held twice, by rank 0 and rank 1" },
        ["a position held by nobody"] = { "custom", even,
            { ranks = { { { 0, 4 } }, { { 8, 8 } } } },
            "layout.custom: position 4 is held by no rank" },
        ["a missing end"] = { "custom", even, { ranks = { { { 0, 15 } } } },
            "layout.custom: position 15 is held by no rank" },
        ["a run beyond the stream"] = { "custom", even, { ranks = { { { 0, 17 } } } },
            "layout.custom: run 0 of rank 0, (start 0, length 17), is empty or not in 0 .. 15" },
        ["an empty run"] = { "custom", even, { ranks = { {}, { { 0, 16 }, { 3, 0 } } } },
            "layout.custom: run 1 of rank 1, (start 3, length 0), is empty or not in 0 .. 15" },
        ["a run before the stream"] = { "custom", even, { ranks = { { { -1, 17 } } } },
            "layout.custom: run 0 of rank 0, (start -1, length 17), is empty or not in 0 .. 15" },
        ["a run of three numbers"] = { "custom", even, { ranks = { { { 0, 16, 1 } } } },
            "layout.custom: ranks[1][1] must be {start, length}" },
        ["a run between positions"] = { "custom", even, { ranks = { { { 0.5, 16 } } } },
            "layout.custom: ranks[1][1][1] must be an integer (got 0.5)" },
        ["runs that are no list"] = { "custom", even, { ranks = { 16 } },
            "layout.custom: ranks[1] must be a list (got 16)" },
        ["runs of too few ranks"] = { "custom", even, { cp = 2, ranks = { { { 0, 16 } } } },
            "layout.custom: runs of 1 ranks, not of cp*tp = 2" },
        ["no runs"] = { "custom", even, { cp = 2 }, 'layout.custom: field "ranks" is missing' },
    }
    for name, case in pairs(refused) do
        it(name, function()
            assert.equal(case[4], message(layout[case[1]], case[2], case[3]))
        end)
    end

    it("names that it does not know, with the nearest", function()
        assert.equal('cplab.layout: unknown layout "zigzg"; did you mean "zigzag"?',
            message(function() return layout.zigzg end))
        assert.equal('cplab.layout: unknown layout "interleaved"; there are '
            .. table.concat(layout.kinds, ", "), message(layout.create, "interleaved", even))
    end)

    it("ranks, slots and positions that it does not have", function()
        local z = layout.zigzag(even, { cp = 2 })
        assert.equal("layout.runs: rank must be an integer in 0 .. 1 (got 2)",
            message(z.runs, z, 2))
        assert.equal("layout.n_local: rank must be an integer in 0 .. 1 (got -1)",
            message(z.n_local, z, -1))
        assert.equal("layout.chain: rank must be an integer in 0 .. 1 (got 7)",
            message(z.chain, z, 7))
        assert.equal("layout.position: rank 1 has no slot 8, it holds 8 rows",
            message(z.position, z, 1, 8))
        assert.equal("layout.locate: position 16 is not in the stream of 16",
            message(z.locate, z, 16))
        assert.equal("layout.locate: position must be an integer (got 1.5)",
            message(z.locate, z, 1.5))
    end)

    it("at the line of the caller", function()
        local line = debug.getinfo(1, "l").currentline + 1
        local _, text = pcall(function() local z = layout.zigzag(s, { cp = 2 }) return z end)
        assert.equal(("spec/layout/layout_spec.lua:%d: layout.zigzag: sequence 1 has 10 tokens, "
            .. "not a multiple of 2*cp = 4"):format(line), (text:gsub("^.*spec/layout/",
            "spec/layout/")))
    end)
end)
