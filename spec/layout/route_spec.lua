-- Routes: published numbers, and what must hold of every route.
local cplab = require "cplab"
local cases = require "spec.support.layout_cases"
local naive = require "spec.support.layout_naive"
local message = require "spec.support.message"

local layout, thd = cplab.layout, cplab.stream.thd

local function local_count(z)
    return function(r) return z:n_local(r) end
end

describe("published routes", function()
    it("cu [0,8,12,16] on 2 ranks, rank 0", function()
        local s = thd { cu_seqlens = { 0, 8, 12, 16 } }
        local r = cplab.route(layout.zigzag(s, { cp = 2 }), layout.contiguous(s, { cp = 2 }))
        assert.same({ 0, 1, 2, 3, 4, 5, 6, 7 }, naive.slots(r:sends(0)))
        assert.same({ 0, 1, 6, 7, 2, 3, 4, 5 }, naive.slots(r:receives(0)))
        assert.same({ { 4, 4 }, { 4, 4 } }, { r:split_sizes(0) })
    end)

    it("one sequence on 4 ranks: zigzag moves 3/4 in 6 messages, mirror 1/2 in 4", function()
        local s = thd { lengths = { 64 } }
        local c = layout.contiguous(s, { cp = 4 })
        local function stats(kind)
            local found = cplab.route(layout[kind](s, { cp = 4 }), c):stats()
            assert.is_true(found.build_us > 0)
            found.build_us = nil
            return found
        end
        assert.same({ moved_tokens = 48, messages = 6, busiest_tokens = 16, segments = 8 },
            stats "zigzag")
        assert.same({ moved_tokens = 32, messages = 4, busiest_tokens = 8, segments = 8 },
            stats "mirror")
    end)

    it("one sequence on cp ranks: mirror swaps its second half with rank cp-1-r", function()
        for cp = 1, 9 do
            local s = thd { lengths = { 6 * cp } }
            local r = cplab.route(layout.contiguous(s, { cp = cp }), layout.mirror(s, { cp = cp }))
            for rank = 0, cp - 1 do
                for _, move in ipairs(r:sends(rank)) do
                    if move.slot < 3 then
                        assert.same({ rank, move.slot }, { move.peer, move.peer_slot })
                    else
                        assert.same({ cp - 1 - rank, move.slot }, { move.peer, move.peer_slot })
                    end
                end
            end
        end
    end)
end)

local function check_pair(name, a, b)
    local route = cplab.route(a, b)
    for r = 0, a:n_ranks() - 1 do
        local to, from = route:split_sizes(r)
        local out, into = 0, 0
        for p = 1, a:n_ranks() do
            out, into = out + to[p], into + from[p]
            local _, back = route:split_sizes(p - 1)
            assert.equal(to[p], back[r + 1], name)
        end
        assert.equal(a:n_local(r), out, name)
        assert.equal(b:n_local(r), into, name)
    end
    local rows = naive.carry_out(route, local_count(b))
    for r = 0, b:n_ranks() - 1 do
        assert.same(b:positions(r), rows[r + 1], name .. ": " .. route:describe())
    end
end

-- The i-th of mine to p is the i-th of p's from me; order and maximality on either side.
local function check_segments(name, route)
    local n = route:n_ranks()
    for r = 0, n - 1 do
        local sends, last = route:sends(r), nil
        local index = {}
        for _, move in ipairs(sends) do
            index[move.peer] = (index[move.peer] or 0) + 1
            local wanted = index[move.peer]
            for _, other in ipairs(route:receives(move.peer)) do
                if other.peer == r then
                    wanted = wanted - 1
                    if wanted == 0 then
                        assert.same({ move.position, move.slot, move.peer_slot, move.length },
                            { other.position, other.peer_slot, other.slot, other.length }, name)
                        break
                    end
                end
            end
            assert(wanted == 0, name .. ": sent and not received")
            assert(not last or last.peer < move.peer or (last.peer == move.peer
                and last.position < move.position), name .. ": order")
            assert(not last or last.peer ~= move.peer
                or last.position + last.length ~= move.position
                or last.slot + last.length ~= move.slot
                or last.peer_slot + last.length ~= move.peer_slot, name .. ": not maximal")
            last = move
        end
    end
end

local function check_stats(name, route)
    local n, stats = route:n_ranks(), route:stats()
    local moved, messages, busiest, segments = 0, 0, 0, 0
    for r = 0, n - 1 do
        local to, from = route:split_sizes(r)
        local out, into = 0, 0
        for p = 1, n do
            if p ~= r + 1 then
                out, into = out + to[p], into + from[p]
                messages = messages + (to[p] > 0 and 1 or 0)
            end
        end
        moved = moved + out
        busiest = math.max(busiest, out, into)
        segments = segments + #route:sends(r)
    end
    stats.build_us = nil
    assert.same({ moved_tokens = moved, messages = messages, busiest_tokens = busiest,
        segments = segments }, stats, name)
end

describe("every route", function()
    it("turns its source into its target, and conserves rows", function()
        cases.each(function(name, _, layouts)
            for _, a in ipairs(layouts) do
                for _, b in ipairs(layouts) do check_pair(name, a, b) end
            end
        end)
    end)

    it("pairs sends with receives, in order and maximal, and counts them", function()
        cases.each(function(name, _, layouts)
            for i, a in ipairs(layouts) do
                local route = cplab.route(a, layouts[i % #layouts + 1])
                -- Before and after its parts are built.
                check_stats(name, route)
                check_segments(name, route)
                check_stats(name, route)
            end
        end)
    end)

    it("is undone by its inverse", function()
        cases.each(function(name, _, layouts)
            for i, a in ipairs(layouts) do
                local b = layouts[i % #layouts + 1]
                local route = cplab.route(a, b)
                local back = route:inverse()
                assert.equal(b:describe() .. " -> " .. a:describe(), back:describe())
                for r = 0, a:n_ranks() - 1 do
                    assert.same(route:sends(r), back:receives(r), name)
                    assert.same(route:receives(r), back:sends(r), name)
                end
            end
        end)
    end)

    it("A to B to C is A to C", function()
        cases.each(function(name, _, layouts)
            local n = layouts[1]:n_ranks()
            -- Where each slot of the source goes, as rank * 2^20 + slot.
            local function targets(route)
                local map = {}
                for r = 0, n - 1 do
                    for _, move in ipairs(route:sends(r)) do
                        for o = 0, move.length - 1 do
                            map[r * 2 ^ 20 + move.slot + o] =
                                move.peer * 2 ^ 20 + move.peer_slot + o
                        end
                    end
                end
                return map
            end
            for _, three in ipairs { { 2, #layouts, 3 }, { 5, 4, 1 }, { 3, 5, 2 } } do
                local a, b, c = layouts[three[1]], layouts[three[2]], layouts[three[3]]
                local ab, bc = targets(cplab.route(a, b)), targets(cplab.route(b, c))
                local composed = {}
                for from, via in pairs(ab) do composed[from] = bc[via] end
                assert.same(targets(cplab.route(a, c)), composed, name)
            end
        end)
    end)

    it("is the identity exactly between equal layouts, and then moves nothing", function()
        cases.each(function(name, _, layouts)
            for _, a in ipairs(layouts) do
                for _, b in ipairs(layouts) do
                    local route = cplab.route(a, b)
                    local moves = 0
                    for r = 0, a:n_ranks() - 1 do
                        for _, move in ipairs(route:sends(r)) do
                            if move.peer ~= r or move.slot ~= move.peer_slot then
                                moves = moves + 1
                            end
                        end
                    end
                    assert.equal(moves == 0, route:is_identity(), name .. route:describe())
                end
            end
        end)
    end)
end)

-- Published cases of the conversion with tensor parallelism in one exchange, and without: cu, cp,
-- tp, logical rank -> group rank.
describe("the published case", function()
    local published = {
        { { 0, 16, 40 }, 2, 1 },
        { { 0, 32, 96, 128 }, 4, 1 },
        { { 0, 32, 96, 128, 128, 128 }, 4, 1 },
        { { 0, 16, 40 }, 2, 2, { 0, 2, 1, 3 } },
        { { 0, 128 }, 4, 2 },
        { { 0, 32, 96, 128 }, 4, 2, { 0, 4, 1, 5, 2, 6, 3, 7 } },
        { { 0, 32, 96, 128, 128, 128 }, 2, 4, { 7, 6, 5, 4, 3, 2, 1, 0 } },
        { { 0, 48, 128 }, 2, 4 },
        { { 0, 16, 48, 64, 128 }, 4, 2 },
    }
    for _, case in ipairs(published) do
        local cu, cp, tp, order = unpack(case)
        it(("cu {%s}, cp %d, tp %d, order {%s}"):format(table.concat(cu, ","), cp, tp,
            table.concat(order or {}, ",")), function()
            local s = thd { cu_seqlens = cu }
            local options = { cp = cp, tp = tp, group_order = order }
            local z, c = layout.zigzag(s, options), layout.contiguous(s, options)
            for kind, one in pairs { zigzag = z, contiguous = c } do
                local expected = naive.positions(kind, s, cp, tp, order)
                for r = 0, cp * tp - 1 do assert.same(expected[r + 1], one:positions(r)) end
            end
            check_pair("z to c", z, c)
            check_pair("c to z", c, z)
        end)
    end
end)

describe("a route from a wholly reversed order", function()
    it("is in position order all the same", function()
        local s, ranks = thd { lengths = { 512 } }, { {}, {} }
        for p = 255, 0, -1 do
            table.insert(ranks[1], { 2 * p, 1 })
            table.insert(ranks[2], { 2 * p + 1, 1 })
        end
        local reversed = layout.custom(s, { ranks = ranks })
        local contiguous = layout.contiguous(s, { cp = 2 })
        check_pair("reversed", reversed, contiguous)
        check_pair("reversed", contiguous, reversed)
        check_segments("reversed", cplab.route(reversed, contiguous))
        check_segments("reversed", cplab.route(contiguous, reversed))
    end)
end)

describe("a large route", function()
    it("of 2^40 positions is a handful of segments", function()
        local s = thd { lengths = { 2 ^ 39, 2 ^ 39 } }
        local r = cplab.route(layout.zigzag(s, { cp = 4 }), layout.contiguous(s, { cp = 4 }))
        local stats = r:stats()
        assert.equal(16, stats.segments)
        assert.equal(2 ^ 40 * 3 / 4, stats.moved_tokens)
    end)

    it("costs a rank memory for its own segments only", function()
        local C, ffi = require "clib".C, require "ffi"
        local lengths = {}
        for i = 1, 1024 do lengths[i] = 512 end
        local s = thd { lengths = lengths }
        local r = cplab.route(layout.zigzag(s, { cp = 256 }), layout.contiguous(s, { cp = 256 }))
        local before, after = ffi.new "cpl_memory_stats", ffi.new "cpl_memory_stats"
        collectgarbage()
        collectgarbage()
        collectgarbage "stop" -- nothing of other specs may go between the two counts
        C.cpl_memory(before)
        C.cpl_memory_reset_peak()
        local n = #r:sends(3) + #r:receives(3)
        C.cpl_memory(after)
        collectgarbage "restart"
        local segment = ffi.sizeof "cpl_segment"
        assert.is_true(n < 4200)
        assert.equal(n * segment, tonumber(after.live_bytes - before.live_bytes))
        assert.is_true(after.peak_bytes - before.live_bytes < n * segment + 257 * 8 + 4096)
    end)
end)

describe("a route refuses", function()
    local s = thd { lengths = { 64 } }
    local z = layout.zigzag(s, { cp = 4 })

    it("another stream, and names both", function()
        local other = layout.contiguous(thd { lengths = { 32, 32 } }, { cp = 4 })
        local text = message(cplab.route.new, z, other)
        assert.equal("route: the streams differ: zigzag, cp 4, thd of 1 sequence, 64 positions has "
            .. "boundaries X, contiguous, cp 4, thd of 2 sequences, 64 positions has X",
            (text:gsub("%x%x%x%x%x%x%x%x", "X")))
    end)

    it("the same boundaries with other real lengths", function()
        local other = layout.contiguous(thd { lengths = { 64 }, real = { 63 } }, { cp = 4 })
        assert.truthy(message(cplab.route.new, z, other):find("the streams differ", 1, true))
    end)

    it("another group", function()
        assert.equal("route: the groups differ: zigzag, cp 4, thd of 1 sequence, 64 positions has "
            .. "cp 4, tp 1, contiguous, cp 2, tp 2, thd of 1 sequence, 64 positions has cp 2, tp 2",
            message(cplab.route.new, z, layout.contiguous(s, { cp = 2, tp = 2 })))
    end)

    it("ranks that there are not", function()
        local r = cplab.route(z, z)
        assert.equal("route.sends: rank must be an integer in 0 .. 3 (got 4)",
            message(r.sends, r, 4))
        assert.equal("route.split_sizes: rank must be an integer in 0 .. 3 (got 0.5)",
            message(r.split_sizes, r, 0.5))
    end)

    it("what is no layout", function()
        assert.equal("route: the source must be a layout (got nil)",
            message(cplab.route.new, nil, z))
        assert.equal('route: the target must be a layout or a view (got "zigzag")',
            message(cplab.route.new, z, "zigzag"))
    end)

    it("a view of another layout, and the way back from a view", function()
        local view = cplab.view.halo(z, 3)
        assert.equal("route: a view is reached from its own layout: halo 3 of zigzag, cp 4, thd of "
            .. "1 sequence, 64 positions does not look at contiguous, cp 4, thd of 1 sequence, 64 "
            .. "positions", message(cplab.route.new, layout.contiguous(s, { cp = 4 }), view))
        local r = cplab.route(z, view)
        assert.equal("route.inverse: halo 3 of zigzag, cp 4, thd of 1 sequence, 64 positions is a "
            .. "view; it has no inverse, only an adjoint", message(r.inverse, r))
    end)

    it("at the line of the caller", function()
        local line = debug.getinfo(1, "l").currentline + 1
        local _, text = pcall(function() local r = cplab.route(z, 1) return r end)
        assert.truthy(text:find(("spec/layout/route_spec.lua:%d: route: "):format(line), 1, true))
    end)
end)
