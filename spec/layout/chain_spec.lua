-- Chains: who hands the state of a sequence on to whom.
local cplab = require "cplab"
local cases = require "spec.support.layout_cases"
local naive = require "spec.support.layout_naive"

local layout, thd = cplab.layout, cplab.stream.thd

local function link(level, prev_rank, prev_span, next_rank, next_span)
    return { level = level, prev_rank = prev_rank, prev_span = prev_span, next_rank = next_rank,
        next_span = next_span }
end

describe("a chain", function()
    it("goes down and up again in zigzag; the two blocks of the last rank are one span", function()
        local z = layout.zigzag(thd { lengths = { 12 } }, { cp = 3 })
        assert.same({ link(0, -1, -1, 1, 0), link(4, 1, 1, -1, -1) }, z:chain(0))
        assert.same({ link(1, 0, 0, 2, 0), link(3, 2, 0, 0, 1) }, z:chain(1))
        assert.same({ link(2, 1, 0, 1, 1) }, z:chain(2))
    end)

    it("ends with the real tokens", function()
        local z = layout.zigzag(thd { lengths = { 8, 8 }, real = { 3, 0 } }, { cp = 2 })
        assert.same({ link(0, -1, -1, 1, 0) }, z:chain(0))
        assert.same({ link(1, 0, 0, -1, -1) }, z:chain(1))
    end)

    it("joins no two sequences", function()
        local c = layout.contiguous(thd { cu_seqlens = { 0, 6, 12, 18, 24 } }, { cp = 4 })
        for r = 0, 3 do assert.same({ link(0, -1, -1, -1, -1) }, c:chain(r)) end
    end)

    -- Published: predecessors to merge (pre) of the first sequence of an interval, and successors
    -- (post) of its last; in the contiguous layout an interval is a span of each sequence.
    local published = {
        { { 0, 5, 12 }, 3, { { 0, 1 }, { 1, 1 }, { 1, 0 } } },
        { { 0, 7, 7, 24 }, 4, { { 0, 1 }, { 1, 2 }, { 1, 1 }, { 2, 0 } } },
        { { 0, 6, 12, 18, 24 }, 4, { { 0, 0 }, { 0, 0 }, { 0, 0 }, { 0, 0 } } },
        { { 0, 40, 600, 700, 1024 }, 2, { { 0, 1 }, { 1, 0 } } },
    }
    for _, case in ipairs(published) do
        it(("of cu {%s} on %d ranks as published"):format(table.concat(case[1], ","), case[2]),
            function()
                local c = layout.contiguous(thd { cu_seqlens = case[1] }, { cp = case[2] })
                for r = 0, case[2] - 1 do
                    local links = c:chain(r)
                    local rank, span, post = links[#links].next_rank, links[#links].next_span, 0
                    while rank >= 0 do
                        local next_link = c:chain(rank)[span + 1]
                        rank, span, post = next_link.next_rank, next_link.next_span, post + 1
                    end
                    assert.same(case[3][r + 1], { links[1].level, post })
                end
            end)
    end

    -- Published for the two halves of a rank of snake, parts of L positions: local boundaries (a
    -- cut between the halves), sequences in the front half, then for front and back: earlier
    -- tokens of the first sequence (halo), parts of its chain before (pre), parts of the last
    -- sequence's chain after (post). Two halves that adjoin are one span here, so spans count
    -- by the parts that they touch.
    local halves = {
        { { 0, 5, 12 }, 3, {
            { { 0, 2, 4 }, 1, { 0, 5 }, { 0, 3 }, { 2, 0 } },
            { { 0, 2, 4 }, 1, { 2, 3 }, { 1, 2 }, { 1, 1 } },
            { { 0, 1, 2, 4 }, 2, { 4, 1 }, { 2, 1 }, { 3, 2 } },
        } },
        { { 0, 7, 7, 24 }, 4, {
            { { 0, 3, 6 }, 1, { 0, 14 }, { 0, 5 }, { 2, 0 } },
            { { 0, 3, 6 }, 1, { 3, 11 }, { 1, 4 }, { 1, 1 } },
            { { 0, 1, 3, 6 }, 2, { 6, 8 }, { 2, 3 }, { 5, 2 } },
            { { 0, 3, 6 }, 1, { 2, 5 }, { 1, 2 }, { 4, 3 } },
        } },
        { { 0, 3, 24 }, 2, {
            { { 0, 3, 6, 12 }, 2, { 0, 15 }, { 0, 3 }, { 3, 0 } },
            { { 0, 6, 12 }, 1, { 3, 9 }, { 1, 2 }, { 2, 1 } },
        } },
        { { 0, 40, 600, 700, 1024 }, 2, {
            { { 0, 40, 256, 512 }, 2, { 0, 68 }, { 0, 1 }, { 2, 0 } },
            { { 0, 256, 344, 444, 512 }, 1, { 216, 472 }, { 1, 2 }, { 1, 1 } },
        } },
        { { 0, 6, 12, 18, 24 }, 4, {
            { { 0, 3, 6 }, 1, { 0, 3 }, { 0, 1 }, { 1, 0 } },
            { { 0, 3, 6 }, 1, { 3, 0 }, { 1, 0 }, { 0, 1 } },
            { { 0, 3, 6 }, 1, { 0, 3 }, { 0, 1 }, { 1, 0 } },
            { { 0, 3, 6 }, 1, { 3, 0 }, { 1, 0 }, { 0, 1 } },
        } },
    }

    -- The span of a rank that holds a slot, its index from 1.
    local function span_at(z, rank, slot)
        for i, span in ipairs(z:spans(rank, true)) do
            if slot >= span.slot and slot < span.slot + span.length then return i, span end
        end
    end

    -- The parts of `length` positions that the chain through a slot touches, before or after its
    -- own; a step is "prev" or "next".
    local function parts(z, rank, slot, length, step)
        local own, touched, n = math.floor(z:position(rank, slot) / length), {}, 0
        local i = span_at(z, rank, slot)
        while rank >= 0 do
            local span, here = z:spans(rank, true)[i], z:chain(rank)[i]
            for x = span.slot, span.slot + span.length - 1 do
                local part = math.floor(z:position(rank, x) / length)
                if (part - own) * (step == "prev" and -1 or 1) > 0 and not touched[part] then
                    touched[part], n = true, n + 1
                end
            end
            rank, i = here[step .. "_rank"], here[step .. "_span"] + 1
        end
        return n
    end

    -- Both halves as published, from runs, spans and links alone.
    local function describe_halves(z, rank)
        local n = z:n_local(rank) / 2
        local cuts, is_cut, fronts = { 0 }, { [0] = true }, 0
        for _, span in ipairs(z:spans(rank)) do
            fronts = fronts + (span.slot < n and 1 or 0)
            for _, slot in ipairs { span.slot, n, span.slot + span.length } do
                is_cut[slot] = true
            end
        end
        for slot = 1, 2 * n do
            if is_cut[slot] then cuts[#cuts + 1] = slot end
        end
        local halo, pre, post = {}, {}, {}
        for half = 0, 1 do
            local _, span = span_at(z, rank, half * n)
            halo[half + 1] = span.offset + half * n - span.slot
            pre[half + 1] = parts(z, rank, half * n, n, "prev")
            post[half + 1] = parts(z, rank, half * n + n - 1, n, "next")
        end
        return { cuts, fronts, halo, pre, post }
    end

    for _, case in ipairs(halves) do
        it(("of snake, cu {%s} on %d ranks, as published"):format(table.concat(case[1], ","),
            case[2]), function()
                local z = layout.snake(thd { cu_seqlens = case[1] }, { cp = case[2] })
                for r = 0, case[2] - 1 do
                    assert.same(case[3][r + 1], describe_halves(z, r))
                end
            end)
    end

    it("is what sorting all spans of all ranks gives", function()
        cases.each(function(name, stream, layouts)
            local tokens = naive.tokens(stream)
            for _, z in ipairs(layouts) do
                local ranks = {}
                for r = 0, z:n_ranks() - 1 do ranks[r + 1] = z:positions(r) end
                local expected = naive.chains(tokens, ranks)
                for r = 0, z:n_ranks() - 1 do
                    assert.same(expected[r + 1], z:chain(r), name .. ": " .. z:describe())
                end
            end
        end)
    end)
end)
