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
