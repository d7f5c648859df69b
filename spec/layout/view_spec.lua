-- Views: published vectors, and agreement with their definitions slot by slot.
local cplab = require "cplab"
local cases = require "spec.support.layout_cases"
local naive = require "spec.support.layout_naive"
local message = require "spec.support.message"

local layout, thd, view = cplab.layout, cplab.stream.thd, cplab.view

-- What the rows of a layout hold after a shift of the values by one, 0 where there is fill.
local function rolled(z, values, rank)
    local rows = {}
    for i, p in ipairs(naive.expand(view.shift(z, 1):runs(rank))) do
        rows[i] = p < 0 and 0 or values[p + 1]
    end
    return rows
end

describe("published rolls by one", function()
    it("packed on one rank", function()
        local z = layout.contiguous(thd { cu_seqlens = { 0, 3, 5 } })
        assert.same({ 2, 3, 0, 5, 0 }, rolled(z, { 1, 2, 3, 4, 5 }, 0))
        z = layout.contiguous(thd { cu_seqlens = { 0, 3, 5, 5, 5 } })
        assert.same({ 2, 3, 0, 5, 0 }, rolled(z, { 1, 2, 3, 4, 5 }, 0))
        z = layout.contiguous(cplab.stream.sbhd { seqlen = 3 })
        assert.same({ 20, 30, 0 }, rolled(z, { 10, 20, 30 }, 0))
    end)

    it("zigzag on 2 ranks", function()
        local values = {}
        for i = 1, 8 do values[i] = i end
        for i = 9, 20 do values[i] = i + 2 end
        local z = layout.zigzag(thd { cu_seqlens = { 0, 8, 20 } }, { cp = 2 })
        assert.same({ 2, 3, 8, 0, 12, 13, 14, 21, 22, 0 }, rolled(z, values, 0))
        assert.same({ 4, 5, 6, 7, 15, 16, 17, 18, 19, 20 }, rolled(z, values, 1))
    end)

    -- The published row holds garbage-free zeros in its pads, so fill and pad look alike there.
    it("zigzag and contiguous on 2 ranks with odd real lengths", function()
        local values = {}
        for i = 1, 7 do values[i] = i end
        values[8] = 0
        for i = 9, 19 do values[i] = i + 2 end
        values[20] = 0
        local s = thd { lengths = { 8, 12 }, real = { 7, 11 } }
        local z = layout.zigzag(s, { cp = 2 })
        assert.same({ 2, 3, 0, 0, 12, 13, 14, 21, 0, 0 }, rolled(z, values, 0))
        assert.same({ 4, 5, 6, 7, 15, 16, 17, 18, 19, 20 }, rolled(z, values, 1))
        local c = layout.contiguous(s, { cp = 2 })
        assert.same({ 2, 3, 4, 5, 6, 7, 0, 0, 12, 13 }, rolled(c, values, 0))
        assert.same({ 14, 15, 16, 17, 18, 19, 20, 21, 0, 0 }, rolled(c, values, 1))
    end)

    it("by three in depth, cu [0,6,8] on 2 ranks", function()
        local z = layout.contiguous(thd { cu_seqlens = { 0, 6, 8 } }, { cp = 2 })
        local expected = {
            { { 2, 3, 4, 5 }, { 6, 0, 8, 0 } },
            { { 3, 4, 5, 6 }, { 0, 0, 0, 0 } },
            { { 4, 5, 6, 0 }, { 0, 0, 0, 0 } },
        }
        for k, by_rank in ipairs(expected) do
            for r = 0, 1 do
                local rows = {}
                for i, p in ipairs(naive.expand(view.shift(z, k):runs(r))) do rows[i] = p + 1 end
                assert.same(by_rank[r + 1], rows)
            end
        end
    end)
end)

-- Published interval metadata: how many earlier tokens of the first sequence of an interval exist.
-- A wide halo sees exactly those of each span: here, of the first span of each interval.
describe("published intervals", function()
    local published = {
        { { 0, 5, 12 }, 3, { 0, 4, 3 } },
        { { 0, 7, 7, 24 }, 4, { 0, 6, 5, 11 } },
        { { 0, 6, 12, 18, 24 }, 4, { 0, 0, 0, 0 } },
        { { 0, 40, 600, 700, 1024 }, 2, { 0, 472 } },
    }
    for _, case in ipairs(published) do
        it(("cu {%s} on %d ranks"):format(table.concat(case[1], ","), case[2]), function()
            local s = thd { cu_seqlens = case[1] }
            local c = layout.contiguous(s, { cp = case[2] })
            for r = 0, case[2] - 1 do
                local seen = naive.expand(view.halo(c, 1024):runs(r))
                local n = 0
                for i = 1, 1024 do n = n + (seen[i] >= 0 and 1 or 0) end
                assert.equal(case[3][r + 1], n)
            end
        end)
    end
end)

local function each_view(z, visit)
    for _, width in ipairs { 1, 3, 64 } do
        for _, real in ipairs { false, true } do
            visit(view.halo(z, width, { real_only = real }), function(tokens, positions)
                return naive.halo(tokens, positions, width, real)
            end)
        end
    end
    for _, k in ipairs { -64, -2, -1, 0, 1, 2, 5, 64 } do
        visit(view.shift(z, k), function(tokens, positions)
            return naive.shift(tokens, positions, k)
        end)
    end
    visit(view.keys(z), naive.keys)
    for _, window in ipairs { 1, 2, 5, 64, 2 ^ 53 } do
        visit(view.keys(z, { window = window }), function(tokens, positions)
            return naive.keys(tokens, positions, window)
        end)
    end
    visit(view.whole(z), naive.whole)
end

describe("every view", function()
    it("shows what its definition says, in maximal runs", function()
        cases.each(function(name, stream, layouts)
            local tokens = naive.tokens(stream)
            for _, z in ipairs(layouts) do
                each_view(z, function(v, define)
                    for r = 0, z:n_ranks() - 1 do
                        local runs = v:runs(r)
                        local expected = define(tokens, z:positions(r))
                        assert.same(expected, naive.expand(runs), name .. ": " .. v:describe())
                        assert.equal(#expected, v:n_local(r))
                        for i = 2, #runs do
                            local a, b = runs[i - 1], runs[i]
                            assert(not (a[1] < 0 and b[1] < 0), name)
                            assert(a[1] < 0 or a[1] + a[2] ~= b[1], name)
                        end
                    end
                end)
            end
        end)
    end)

    it("is reached by its route, fill where it has no source", function()
        cases.each(function(name, _, layouts)
            for _, z in ipairs(layouts) do
                each_view(z, function(v)
                    local rows = naive.carry_out(cplab.route(z, v),
                        function(r) return v:n_local(r) end)
                    for r = 0, z:n_ranks() - 1 do
                        assert.same(naive.expand(v:runs(r)), rows[r + 1],
                            name .. ": " .. v:describe())
                    end
                end)
            end
        end)
    end)

    it("is ordered by peer, position and target slot on both sides", function()
        local s = thd { lengths = { 40, 0, 24 }, real = { 33, 0, 24 } }
        local next_random = cases.random(3)
        for _ = 1, 20 do
            local z = layout.custom(s, { ranks = cases.custom_ranks(64, 3, next_random) })
            each_view(z, function(v)
                local route = cplab.route(z, v)
                for r = 0, 2 do
                    for _, side in ipairs { { "sends", "peer_slot" }, { "receives", "slot" } } do
                        local last
                        for _, move in ipairs(route[side[1]](route, r)) do
                            local key = move.peer * 2 ^ 40 + move.position * 2 ^ 20
                                + move[side[2]]
                            assert(not last or last < key, v:describe())
                            last = key
                        end
                    end
                end
            end)
        end
    end)
end)

-- Published: cu, physical boundaries where they are padded, cp, tp, the logical ranks' group ranks,
-- and what is known of the padded boundaries.
describe("padded on demand", function()
    local published = {
        { { 0, 3, 8 }, nil, 2, 1, nil, { 0, 4, 12 } },
        { { 0, 8, 24 }, nil, 2, 1, nil, { 0, 8, 24 } },
        { { 0, 16, 48 }, nil, 4, 2, { 0, 4, 1, 5, 2, 6, 3, 7 }, { 0, 16, 48 } },
        { { 0, 3, 10, 16 }, nil, 4, 1, nil, { 0, 8, 16, 24 } },
        { { 0, 7, 16 }, nil, 4, 2, nil, { 0, 8, 24 } },
        { { 0, 5, 11 }, { 0, 8, 16 }, 4, 1, nil, { 0, 8, 16 } },
        -- (0, 2*cp - 1, 4*cp) for more ranks, an odd tp, empty sequences, no stream at all
        { { 0, 5, 12 }, nil, 3, 1, nil, { 0, 6, 18 } },
        { { 0, 3, 6 }, nil, 2, 3, nil, { 0, 4, 12 } },
        { { 0, 4, 4, 12, 12 }, nil, 2, 2, { 3, 2, 1, 0 }, { 0, 4, 4, 12, 12 } },
        { { 0, 0 }, nil, 2, 1, nil, { 0, 0 } },
    }
    for _, case in ipairs(published) do
        local cu, padded, cp, tp, order, target = unpack(case, 1, 6)
        it(("cu {%s}, cp %d, tp %d"):format(table.concat(cu, ","), cp, tp), function()
            local s = padded and thd { cu_seqlens = padded, cu_seqlens_real = cu }
                or thd { cu_seqlens = cu }
            local c = layout.contiguous(s, { cp = cp, tp = tp, group_order = order })
            local v = view.padded_zigzag(c, { group_order = order })
            local z = v:target()
            local boundaries = { 0 }
            for i = 0, z:stream():n_sequences() - 1 do
                local sequence = z:stream():sequence(i)
                boundaries[i + 2] = sequence.start + sequence.padded
                assert.equal(s:sequence(i).real, sequence.real)
            end
            assert.same(target, boundaries)
            local tokens, padded_tokens = naive.tokens(s), naive.tokens(z:stream())
            local forward = naive.carry_out(cplab.route(c, v), function(r) return v:n_local(r) end)
            for r = 0, cp * tp - 1 do
                local expected = naive.onto(tokens, padded_tokens, z:positions(r))
                assert.same(expected, naive.expand(v:runs(r)))
                assert.same(expected, forward[r + 1])
            end
            -- The reverse drops the pads: a view of the padded layout without fill.
            local back = view.onto(z, c)
            local rows = naive.carry_out(cplab.route(z, back), function(r) return c:n_local(r) end)
            for r = 0, cp * tp - 1 do
                for x, p in ipairs(rows[r + 1]) do
                    local rank, slot = z:locate(p)
                    assert.equal(c:position(r, x - 1), forward[rank + 1][slot + 1])
                end
                assert.same(rows[r + 1], naive.expand(back:runs(r)))
            end
        end)
    end

    it("cu [0,3,8] on 2 ranks, slot by slot", function()
        local c = layout.contiguous(thd { cu_seqlens = { 0, 3, 8 } }, { cp = 2 })
        local v = view.padded_zigzag(c)
        assert.same({ 0, -1, 3, 4, -1, -1 }, naive.expand(v:runs(0)))
        assert.same({ 1, 2, 5, 6, 7, -1 }, naive.expand(v:runs(1)))
        assert.equal("onto zigzag, cp 2, thd of 2 sequences, 12 positions, 8 real, of contiguous, "
            .. "cp 2, thd of 2 sequences, 8 positions", v:describe())
    end)

    it("pads an unpacked stream too, and takes a group of its own", function()
        local c = layout.contiguous(cplab.stream.sbhd { seqlen = 20, batch = 3 }, { cp = 4 })
        local v = view.padded_zigzag(c, { cp = 2, tp = 2 })
        assert.equal("sbhd", v:target():stream():format())
        assert.equal(3, v:target():stream():batch())
        assert.equal(20, v:target():stream():n_positions())
        assert.same({ { 0, 5 } }, v:runs(0))
        v = view.padded_zigzag(c)
        assert.equal(24, v:target():stream():n_positions())
        assert.same({ { 0, 3 }, { -1, 3 } }, v:runs(0))
    end)

    it("any layout onto any other, both ways, as the definition says", function()
        local next_random = cases.random(41)
        for round = 1, 40 do
            local cp, a, b = 1 + next_random(5), {}, {}
            for i = 1, next_random(5) do
                a[i], b[i] = 2 * cp * next_random(4), 2 * cp * next_random(4)
            end
            local layouts = {}
            for i, lengths in ipairs { a, b } do
                local s = thd { lengths = lengths, real = cases.real(lengths) }
                layouts[i] = round % 3 == 0
                    and layout.custom(s, { ranks = cases.custom_ranks(s:n_positions(), cp,
                        next_random) })
                    or layout[cases.kinds[1 + next_random(#cases.kinds)]](s, { cp = cp })
            end
            for i = 1, 2 do
                local from, to = layouts[i], layouts[3 - i]
                local v = view.onto(from, to)
                local route = cplab.route(from, v)
                local rows = naive.carry_out(route, function(r) return to:n_local(r) end)
                for r = 0, cp - 1 do
                    local expected = naive.onto(naive.tokens(from:stream()),
                        naive.tokens(to:stream()), to:positions(r))
                    assert.same(expected, naive.expand(v:runs(r)), "seed 41: " .. v:describe())
                    assert.same(expected, rows[r + 1], "seed 41: " .. v:describe())
                end
            end
        end
    end)

    it("costs a sender its own segments only", function()
        local lengths = {}
        for i = 1, 4096 do lengths[i] = 127 end
        local c = layout.contiguous(thd { lengths = lengths }, { cp = 64 })
        local v = view.padded_zigzag(c)
        local r = cplab.route(c, v)
        -- 64 sequences of 128 blocks of one position each; the last block of each is a pad, and
        -- the two in its middle adjoin.
        assert.equal(64 * 126, #r:sends(5))
    end)
end)

describe("keys in a window", function()
    it("are the token's own and those before it, each once", function()
        local s = thd { lengths = { 24 } }
        local z = layout.zigzag(s, { cp = 3 })
        assert.same({ { 0, 4 }, { 18, 6 } }, view.keys(z, { window = 3 }):runs(0))
        assert.same({ { 2, 6 }, { 14, 6 } }, view.keys(z, { window = 3 }):runs(1))
        assert.same({ { 6, 10 } }, view.keys(z, { window = 3 }):runs(2))
        assert.same({ { 4, 4 }, { 16, 4 } }, view.keys(z, { window = 1 }):runs(1))
        assert.same(view.keys(z):runs(1), view.keys(z, { window = 24 }):runs(1))
    end)
end)

describe("a view", function()
    local s = thd { lengths = { 16 } }
    local z = layout.zigzag(s, { cp = 2 })

    it("describes itself", function()
        local of = " of zigzag, cp 2, thd of 1 sequence, 16 positions"
        assert.equal("halo 3" .. of, view.halo(z, 3):describe())
        assert.equal("halo 3 (real tokens)" .. of,
            view.halo(z, 3, { real_only = true }):describe())
        assert.equal("shift -1" .. of, view.shift(z, -1):describe())
        assert.equal("keys" .. of, view.keys(z):describe())
        assert.equal("keys in a window of 4" .. of, view.keys(z, { window = 4 }):describe())
        assert.equal("whole" .. of, view.whole(z):describe())
    end)

    it("of 2^40 positions answers at once", function()
        local big = layout.zigzag(thd { lengths = { 2 ^ 40 } }, { cp = 2 })
        assert.same({ { -1, 3 }, { 2 ^ 39 + 2 ^ 38 - 3, 3 } }, view.halo(big, 3):runs(0))
        assert.same({ { 0, 2 ^ 40 } }, view.keys(big):runs(0))
        assert.same({ { 1, 2 ^ 38 }, { 2 ^ 39 + 2 ^ 38 + 1, 2 ^ 38 - 1 }, { -1, 1 } },
            view.shift(big, 1):runs(0))
        assert.equal(2 ^ 39 + 2 ^ 38, cplab.route(big, view.keys(big)):stats().moved_tokens)
    end)

    it("refuses what it cannot be", function()
        assert.equal("view.halo: width must be an integer >= 1 (got 0)", message(view.halo, z, 0))
        assert.equal("view.halo: width must be an integer >= 1 (got 1.5)",
            message(view.halo, z, 1.5))
        assert.equal('view.halo: unknown field "real"; did you mean "real_only"?',
            message(view.halo, z, 1, { real = true }))
        assert.equal("view.shift: k must be an integer (got nil)", message(view.shift, z))
        assert.equal("view.keys: the first argument must be a layout (got a table)",
            message(view.keys, s))
        assert.equal('cplab.view: unknown view "hallo"; did you mean "halo"?',
            message(function() return view.hallo end))
        assert.equal("view.keys: window must be an integer >= 1 (got 0)",
            message(view.keys, z, { window = 0 }))
        assert.equal('view.keys: unknown field "windw"; did you mean "window"?',
            message(view.keys, z, { windw = 2 }))
        assert.equal("view.onto: the second argument must be a layout (got nil)",
            message(view.onto, z))
        assert.equal("view.onto: the sequences differ: zigzag, cp 2, thd of 1 sequence, 16 "
            .. "positions, and contiguous, cp 2, thd of 2 sequences, 16 positions",
            message(view.onto, z, layout.contiguous(thd { lengths = { 8, 8 } }, { cp = 2 })))
        assert.equal("view.onto: 2 ranks in zigzag, cp 2, thd of 1 sequence, 16 positions, 3 in "
            .. "contiguous, cp 3, thd of 1 sequence, 12 positions",
            message(view.onto, z, layout.contiguous(thd { lengths = { 12 } }, { cp = 3 })))
        assert.equal("view.padded_zigzag: cp must be an integer in 1 .. 2 (got 3)",
            message(view.padded_zigzag, z, { cp = 3 }))
        local line = debug.getinfo(1, "l").currentline + 1
        local _, text = pcall(function() view.padded_zigzag(z, { group_order = { 0 } }) end)
        assert.truthy(text:find(("view_spec.lua:%d: layout.zigzag: group_order has 1 entries, not "
            .. "cp*tp = 2"):format(line), 1, true))
        local v = view.keys(z)
        assert.equal("view.runs: rank must be an integer in 0 .. 1 (got 2)", message(v.runs, v, 2))
    end)
end)
