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
        local v = view.keys(z)
        assert.equal("view.runs: rank must be an integer in 0 .. 1 (got 2)", message(v.runs, v, 2))
    end)
end)
