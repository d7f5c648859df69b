-- Properties of layouts and routes on random streams. The seed is new in each run and stands in
-- the name of the spec; CPLAB_SEED=n repeats a run.
local ffi = require "ffi"
local cplab = require "cplab"
local cases = require "spec.support.layout_cases"
local naive = require "spec.support.layout_naive"

local C = require "clib".C
local layout, thd = cplab.layout, cplab.stream.thd
local seed = tonumber(os.getenv "CPLAB_SEED") or os.time() % 2 ^ 31

local function permutation(n, next_random)
    local list = {}
    for i = 1, n do table.insert(list, 1 + next_random(i), i - 1) end
    return list
end

-- A stream and layouts of one group, every option drawn.
local function draw(next_random)
    local cp, tp, lengths = 1 + next_random(7), 1 + next_random(4), {}
    for i = 1, next_random(7) do lengths[i] = 2 * cp * tp * next_random(5) end
    local s = thd { lengths = lengths, real = cases.real(lengths) }
    local layouts = {}
    for i = 1, 4 do
        local kind = cases.kinds[1 + next_random(#cases.kinds)]
        local options = { cp = cp, tp = tp }
        if next_random(2) == 1 then options.group_order = permutation(cp * tp, next_random) end
        if layouts[1] and next_random(3) == 1 then
            options.order, options.near = "auto", layouts[next_random(#layouts) + 1]
        elseif next_random(3) == 1 then
            options.order = permutation(cp, next_random)
        end
        if kind == "striped" and next_random(2) == 1 then
            options.block = 1 + next_random(2 * tp)
            if s:n_positions() % (cp * options.block) ~= 0 then options.block = 2 end
        end
        layouts[i] = layout[kind](s, options)
    end
    layouts[5] = layout.custom(s, { tp = tp,
        ranks = cases.custom_ranks(s:n_positions(), cp * tp, next_random) })
    return s, layouts
end

local function check_bijection(s, z)
    local n = 0
    for r = 0, z:n_ranks() - 1 do
        local positions = z:positions(r)
        for x, p in ipairs(positions) do
            local rank, slot = z:locate(p)
            assert(rank == r and slot == x - 1 and z:position(r, x - 1) == p, z:describe())
        end
        n = n + #positions
    end
    assert.equal(s:n_positions(), n)
end

-- What each slot of the source becomes.
local function targets(route)
    local map = {}
    for r = 0, route:n_ranks() - 1 do
        for _, move in ipairs(route:sends(r)) do
            for o = 0, move.length - 1 do
                map[r * 2 ^ 20 + move.slot + o] = move.peer * 2 ^ 20 + move.peer_slot + o
            end
        end
    end
    return map
end

describe(("random layouts, CPLAB_SEED=%d"):format(seed), function()
    local next_random = cases.random(seed)
    for round = 1, 60 do
        it(("are bijections and their routes compose, round %d"):format(round), function()
            local s, layouts = draw(next_random)
            for _, z in ipairs(layouts) do check_bijection(s, z) end
            local a, b, c = layouts[1 + next_random(4)], layouts[5], layouts[1 + next_random(4)]
            local ab, bc, ac = cplab.route(a, b), cplab.route(b, c), cplab.route(a, c)
            local first, second, composed = targets(ab), targets(bc), {}
            for from, via in pairs(first) do composed[from] = second[via] end
            assert.same(targets(ac), composed)
            for _, route in ipairs { ab, bc, ac } do
                -- Pairing, conservation, and that what arrives is the target.
                local rows = naive.carry_out(route, function(r) return route:to():n_local(r) end)
                local back, stay, moved = route:inverse(), 0, 0
                for r = 0, route:n_ranks() - 1 do
                    assert.same(route:to():positions(r), rows[r + 1], route:describe())
                    assert.same(route:sends(r), back:receives(r))
                    assert.same(route:receives(r), back:sends(r))
                    for peer, n in ipairs((route:split_sizes(r))) do
                        stay, moved = stay + (peer == r + 1 and n or 0),
                            moved + (peer ~= r + 1 and n or 0)
                    end
                end
                assert.equal(s:n_positions(), stay + moved)
                assert.equal(moved, route:stats().moved_tokens)
            end
        end)
    end
end)

describe(("a stream of many sequences, CPLAB_SEED=%d"):format(seed), function()
    local next_random = cases.random(seed)
    -- 10^6 sequences of 0 to 3 units, and one of 2^40 positions at the end or alone.
    local function many(n, unit, last)
        local cu = ffi.new("int64_t[?]", n + 2)
        for i = 1, n do cu[i] = cu[i - 1] + unit * next_random(4) end
        cu[n + 1] = cu[n] + last
        local out = ffi.new "cpl_stream *[1]"
        assert.equal(C.CPL_OK, tonumber(C.cpl_stream_thd(cu, nil, n + 1, out)))
        return ffi.gc(out[0], C.cpl_stream_destroy), cu
    end

    local function create(kind, stream, cp)
        local out, options = ffi.new "cpl_layout *[1]", ffi.new "cpl_layout_options"
        options.cp, options.block = cp, 2
        assert.equal(C.CPL_OK, tonumber(C.cpl_layout_create(kind, stream, options, out)))
        return ffi.gc(out[0], C.cpl_layout_destroy)
    end

    -- The definition of a paired kind at one position.
    local function where(kind, cu, i, p, cp)
        local start, length = cu[i], (cu[i + 1] - cu[i]) / (2 * cp)
        local block = tonumber((p - start) / length)
        local half = kind == "zigzag" and (block >= cp and 1 or 0) or block % 2
        local owner = half == 0 and block or 2 * cp - 1 - block
        if kind == "mirror" then owner = math.floor(owner / 2) end
        return owner, start / cp + half * length + (p - start) % length
    end

    for _, case in ipairs { { 1e6, 2 * 64, 0, 64 }, { 1000, 2 * 8, 2 ^ 40, 8 },
        { 0, 2, 2 ^ 40, 64 } } do
        local n, unit, last, cp = unpack(case)
        it(("%d sequences and one of %.0f positions on %d ranks"):format(n, last, cp), function()
            local stream, cu = many(n, unit, last)
            local rank, slot, back = ffi.new "int[1]", ffi.new "int64_t[1]", ffi.new "int64_t[1]"
            local made = {}
            for _, kind in ipairs { "zigzag", "mirror", "contiguous", "snake", "striped" } do
                local z = create(kind, stream, cp)
                made[kind] = z
                for _ = 1, 500 do
                    local i = (next_random(32768) * 32768 + next_random(32768)) % (n + 1)
                    if cu[i + 1] > cu[i] then
                        local p = cu[i] + (cu[i + 1] - cu[i]) * next_random(32768) / 32768
                        C.cpl_layout_locate(z, p, rank, slot)
                        if kind == "zigzag" or kind == "mirror" then
                            local r, x = where(kind, cu, i, p, cp)
                            assert(rank[0] == r and slot[0] == x)
                        end
                        C.cpl_layout_position(z, rank[0], slot[0], back)
                        assert(back[0] == p)
                    end
                end
            end
            -- One rank's part of a route: every row of it is where both layouts say.
            local route, part = ffi.new "cpl_route *[1]", ffi.new "cpl_route_part"
            assert.equal(C.CPL_OK, tonumber(C.cpl_route_create(made.zigzag, made.contiguous,
                route)))
            ffi.gc(route[0], C.cpl_route_destroy)
            local me = cp / 2
            assert.equal(C.CPL_OK, tonumber(C.cpl_route_rank(route[0], me, part)))
            for _, side in ipairs { { part.sends, part.n_sends, made.zigzag, made.contiguous },
                { part.receives, part.n_receives, made.contiguous, made.zigzag } } do
                local segments, count, mine, other = unpack(side)
                local rows = 0LL
                for i = 0, tonumber(count) - 1 do rows = rows + segments[i].length end
                assert.equal(cu[n + 1] / cp, rows)
                for _ = 1, 500 do
                    local s = segments[math.floor(next_random(32768) * tonumber(count) / 32768)]
                    for _, o in ipairs { 0LL, s.length - 1 } do
                        C.cpl_layout_locate(mine, s.position + o, rank, slot)
                        assert(rank[0] == me and slot[0] == s.slot + o)
                        C.cpl_layout_locate(other, s.position + o, rank, slot)
                        assert(rank[0] == s.peer and slot[0] == s.peer_slot + o)
                    end
                end
            end
        end)
    end
end)
