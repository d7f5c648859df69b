-- The view of whole shards: every rank sees what its CP rank holds in another layout, so that the
-- gather over tensor parallelism and a conversion are one exchange.
local cplab = require "cplab"
local cases = require "spec.support.layout_cases"
local naive = require "spec.support.layout_naive"
local message = require "spec.support.message"

local layout, thd, view = cplab.layout, cplab.stream.thd, cplab.view

-- The CP rank of a group rank, by the definition: group_order[cp_rank * tp + tp_rank].
local function cp_rank_of(rank, tp, group_order)
    for i = 1, group_order and #group_order or 0 do
        if group_order[i] == rank then return math.floor((i - 1) / tp) end
    end
    return math.floor(rank / tp)
end

local KINDS = { "contiguous", "zigzag", "mirror", "snake", "striped" }

local function shuffled(n, next_random)
    local list = {}
    for i = 1, n do
        local j = 1 + next_random(i)
        list[i] = list[j]
        list[j] = i - 1
    end
    return list
end

local function check(from, to, group_order, what)
    local v = view.shard(from, to)
    local tp = from:tp()
    local r = cplab.route(from, v)
    local rows = naive.carry_out(r, function(rank) return v:n_local(rank) end)
    for rank = 0, from:n_ranks() - 1 do
        local positions = to:positions(cp_rank_of(rank, tp, group_order))
        assert.same(positions, naive.expand(v:runs(rank)), what)
        assert.same(positions, rows[rank + 1], what)
        for _, side in ipairs { "sends", "receives" } do
            local last
            for _, move in ipairs(r[side](r, rank)) do
                local key = move.peer * 2 ^ 40 + move.position
                assert(not last or last < key, what)
                last = key
            end
        end
    end
    -- Every row goes to the tp ranks of one CP rank; that a rank keeps is no move.
    local stats, kept = r:stats(), 0
    for rank = 0, from:n_ranks() - 1 do
        for _, move in ipairs(r:receives(rank)) do
            kept = kept + (move.peer == rank and move.length or 0)
        end
    end
    assert.equal(from:stream():n_positions() * tp - kept, stats.moved_tokens)
    return stats
end

describe("a view of shards", function()
    for _, group in ipairs { { 1, 2 }, { 1, 4 }, { 2, 2 }, { 4, 2 }, { 2, 4 }, { 3, 2 }, { 3, 1 },
        { 2, 3 } } do
        local cp, tp = unpack(group)
        it(("is what the CP rank holds, and reached by its route, cp %d, tp %d"):format(cp, tp),
            function()
                local next_random = cases.random(7 * cp + tp)
                for round = 1, 24 do
                    local lengths = {}
                    for i = 1, 1 + next_random(4) do
                        lengths[i] = 2 * cp * tp * next_random(4)
                    end
                    lengths[#lengths + 1] = 2 * cp * tp
                    local s = thd { lengths = lengths, real = cases.real(lengths) }
                    local order = round % 2 == 0 and shuffled(cp * tp, next_random) or nil
                    local shards = round % 3 == 0 and shuffled(cp, next_random) or nil
                    local a, b = KINDS[1 + next_random(#KINDS)], KINDS[1 + next_random(#KINDS)]
                    local from = round % 5 == 0
                        and layout.custom(s, { cp = cp, tp = tp, group_order = order,
                            ranks = cases.custom_ranks(s:n_positions(), cp * tp, next_random) })
                        or layout[a](s, { cp = cp, tp = tp, group_order = order, order = shards })
                    local to = round % 7 == 0
                        and layout.custom(s, { cp = cp,
                            ranks = cases.custom_ranks(s:n_positions(), cp, next_random) })
                        or layout[b](s, { cp = cp })
                    check(from, to, order, ("round %d: %s -> %s"):format(round, tostring(from),
                        tostring(to)))
                end
            end)
    end

    it("is the balanced layout's shard too", function()
        local s = thd { lengths = { 64, 16, 16, 32 } }
        local near = layout.contiguous(s, { cp = 2 })
        local to = layout.balanced(s, { cp = 2, near = near, block = 4 })
        check(layout.contiguous(s, { cp = 2, tp = 2 }), to)
    end)

    it("in its own layout is the gather of the windows: tp - 1 of tp rows move", function()
        local s = thd { lengths = { 48 } }
        for _, tp in ipairs { 2, 4 } do
            local stats = check(layout.zigzag(s, { cp = 3, tp = tp }), layout.zigzag(s, { cp = 3 }))
            assert.equal(48 * (tp - 1), stats.moved_tokens)
            assert.equal(3 * tp * (tp - 1), stats.messages)
        end
    end)

    it("moves fewer rows than gather and conversion in two steps", function()
        local s = thd { lengths = { 64 } }
        local live = layout.contiguous(s, { cp = 4, tp = 2 })
        local shard, there = layout.contiguous(s, { cp = 4 }), layout.mirror(s, { cp = 4 })
        local fused = check(live, there).moved_tokens
        local gather = check(live, shard).moved_tokens
        local convert = cplab.route(shard, there):stats().moved_tokens
        assert.equal(64, gather)
        assert.equal(32, convert)
        assert.equal(96, fused) -- of 2 * 64 that are seen; 32 lie in the window of who sees them
        assert.equal(128, gather + 2 * convert)
    end)

    it("with tp 1 is the layout", function()
        local s = thd { lengths = { 24 } }
        local a, b = layout.zigzag(s, { cp = 3 }), layout.contiguous(s, { cp = 3 })
        assert.equal(cplab.route(a, b):stats().moved_tokens, check(a, b).moved_tokens)
    end)

    it("describes itself, and refuses what does not fit", function()
        local s, other = thd { lengths = { 16 } }, thd { lengths = { 8, 8 } }
        local live = layout.zigzag(s, { cp = 2, tp = 2 })
        local v = view.shard(live, layout.contiguous(s, { cp = 2 }))
        assert.equal("shards of contiguous, cp 2, thd of 1 sequence, 16 positions, of zigzag, cp "
            .. "2, tp 2, thd of 1 sequence, 16 positions", v:describe())
        assert.equal("contiguous", v:target().kind)
        assert.equal("view.shard: the streams differ: zigzag, cp 2, tp 2, thd of 1 sequence, 16 "
            .. "positions, and contiguous, cp 2, thd of 2 sequences, 16 positions",
            message(view.shard, live, layout.contiguous(other, { cp = 2 })))
        for _, group in ipairs { { 4, 1 }, { 2, 2 }, { 1, 2 } } do
            local target = layout.contiguous(s, { cp = group[1], tp = group[2] })
            assert.equal(("view.shard: shards of %s, which must have cp 2, tp 1, as there is one "
                .. "for each CP rank of %s"):format(tostring(target), tostring(live)),
                message(view.shard, live, target))
        end
        assert.equal("view.shard: the second argument must be a layout (got nil)",
            message(view.shard, live))
    end)
end)
