-- Traps of other systems that concern layouts and routes: each is a spec that shows the right rows
-- beside the wrong ones. spec/traps lists all traps, with the reasons of those that have none.
local cplab = require "cplab"
local naive = require "spec.support.layout_naive"
local message = require "spec.support.message"
local ranks = require "spec.support.ranks"

local layout, thd, view = cplab.layout, cplab.stream.thd, cplab.view

local function interval(first, last)
    local list = {}
    for p = first, last do list[#list + 1] = p end
    return list
end

-- Checks that a route turns one layout into the other, row by row.
local function check_route(from, to)
    local rows = naive.carry_out(cplab.route(from, to), function(r) return to:n_local(r) end)
    for r = 0, to:n_ranks() - 1 do assert.same(to:positions(r), rows[r + 1]) end
end

describe("trap", function()
    it("T-01: contiguous cuts the flat buffer, not each sequence", function()
        local c = layout.contiguous(thd { cu_seqlens = { 0, 16, 40 } }, { cp = 2 })
        assert.same(interval(0, 19), c:positions(0))
        assert.same(interval(20, 39), c:positions(1))
        -- Each sequence in halves would have 8 on rank 1 and 20 on rank 0.
        assert.same({ 0, 1 }, { (c:locate(8)), (c:locate(20)) })
    end)

    it("T-02: boundaries on a rank come from the global ones, not from cu div cp", function()
        local s = thd { cu_seqlens = { 0, 7, 18 } }
        local c = layout.contiguous(s, { cp = 2 })
        local spans = c:spans(0)
        assert.same({ 7, 2 }, { spans[1].length, spans[2].length }) -- cu div 2 has 3 and 6
        assert.equal("layout.zigzag: sequence 0 has 7 tokens, not a multiple of 2*cp = 4",
            message(layout.zigzag, s, { cp = 2 }))
    end)

    it("T-03, T-48: an unknown layout is an error, not zigzag, and so is none", function()
        local s = thd { lengths = { 16 } }
        assert.truthy(message(layout.create, "interleaved", s, { cp = 2 })
            :find('unknown layout "interleaved"', 1, true))
        assert.truthy(message(layout.create, nil, s, { cp = 2 })
            :find("unknown layout nil", 1, true))
        assert.equal('model: field "policy" is missing', message(cplab.model.new, {
            schedule = cplab.schedule.ratio("1:3", 4), hidden = 8, vocab = 8 }))
    end)

    it("T-04: contiguous needs cp to divide, conversion to zigzag 2*cp", function()
        local s = thd { cu_seqlens = { 0, 10, 18 } }
        local c = layout.contiguous(s, { cp = 2 })
        assert.same(interval(0, 8), c:positions(0))
        assert.same(interval(9, 17), c:positions(1))
        assert.equal("layout.zigzag: sequence 0 has 10 tokens, not a multiple of 2*cp = 4",
            message(layout.zigzag, s, { cp = 2 }))
    end)

    it("T-05: padded boundaries make layouts, routes and rolls", function()
        local padded = thd { cu_seqlens = { 0, 16, 40 }, cu_seqlens_real = { 0, 13, 37 } }
        local full = thd { cu_seqlens = { 0, 16, 40 } }
        for _, kind in ipairs { "zigzag", "contiguous", "mirror" } do
            for r = 0, 1 do
                assert.same(layout[kind](full, { cp = 2 }):runs(r),
                    layout[kind](padded, { cp = 2 }):runs(r))
            end
        end
        -- Sequence 1 starts at 16, its row 0 has a successor; real boundaries would say 13.
        local shift = naive.expand(view.shift(layout.contiguous(padded), 1):runs(0))
        assert.same({ -1, -1, 17 }, { shift[13], shift[16], shift[17] })
    end)

    it("T-06: repeated boundaries at the end mean nothing", function()
        local a, b = thd { cu_seqlens = { 0, 16, 40 } }, thd { cu_seqlens = { 0, 16, 40, 40, 40 } }
        local za, zb = layout.zigzag(a, { cp = 2 }), layout.zigzag(b, { cp = 2 })
        local ca, cb = layout.contiguous(a, { cp = 2 }), layout.contiguous(b, { cp = 2 })
        for r = 0, 1 do
            assert.same(cplab.route(za, ca):sends(r), cplab.route(zb, cb):sends(r))
            assert.same(cplab.route(za, ca):receives(r), cplab.route(zb, cb):receives(r))
            assert.same(za:chain(r), zb:chain(r))
            for _, name in ipairs { "shift", "halo" } do
                assert.same(view[name](ca, 1):runs(r), view[name](cb, 1):runs(r))
            end
            assert.same(view.keys(za):runs(r), view.keys(zb):runs(r))
        end
    end)

    it("T-07: bad boundaries are an error where they are given", function()
        local bad = {
            { { 0, 16, 8 }, "stream.thd: cu_seqlens must be nondecreasing, sequence 1 goes from 16 "
                .. "to 8" },
            { { 4, 16 }, "stream.thd: cu_seqlens starts at 4, not at 0" },
            { { { 0, 16 } }, "stream.thd: cu_seqlens[1] must be an integer (got a table)" },
            { {}, "stream.thd: cu_seqlens must hold at least the 0" },
        }
        for _, case in ipairs(bad) do
            assert.equal(case[2], message(thd, { cu_seqlens = case[1] }))
        end
    end)

    it("T-10: a route is of one stream for ever, and meets no rows of another", function()
        local cu = { 0, 16, 40 }
        local s = thd { cu_seqlens = cu }
        local before = layout.zigzag(s, { cp = 2 }):runs(0)
        cu[2] = 24 -- the stream has its own
        assert.same(before, layout.zigzag(s, { cp = 2 }):runs(0))
        local results = ranks.run(2, function(comm)
            local cp = require "cplab"
            local exchange = require "cplab.exchange"
            local rows = require "spec.exchange.rows"
            local function pair(lengths)
                local stream = cp.stream.thd { lengths = lengths }
                return cp.layout.zigzag(stream, { cp = 2 }),
                    cp.layout.contiguous(stream, { cp = 2 })
            end
            local z, c = pair { 16, 24 }
            local next_z = pair { 24, 16 } -- the next microbatch, of the same size
            local plan = exchange.plan(cp.route(z, c), comm, "f32", 1)
            local n, rank = z:n_local(comm:rank()), comm:rank()
            local _, text = pcall(plan.convert, plan, rows.tensor("f32", n, 1):mark(next_z, rank,
                false), rows.tensor("f32", n, 1))
            local ok = pcall(plan.convert, plan, rows.tensor("f32", n, 1):mark(z, rank, false),
                rows.tensor("f32", n, 1))
            return { text = text, ok = ok }
        end)
        for _, result in ipairs(results) do
            assert.is_true(result.ok)
            assert.matches("src holds rows of layout %x+, but zigzag, cp 2, thd of 2 sequences, 40 "
                .. "positions %-> contiguous.* takes rows of layout %x+", result.text)
        end
    end)

    it("T-11: a route keeps what it was made of, and equality is by content", function()
        local function make()
            local s = thd { lengths = { 16, 24 } }
            return cplab.route(layout.zigzag(s, { cp = 2 }), layout.contiguous(s, { cp = 2 }))
        end
        local route = make()
        collectgarbage()
        collectgarbage()
        local again = make()
        assert.same(again:sends(1), route:sends(1))
        assert.is_true(route:from():equals(again:from()))
    end)

    it("T-12: a route is of the group of its layouts; another group is refused", function()
        local s = thd { lengths = { 16, 24 } }
        local two, four = layout.zigzag(s, { cp = 2 }), layout.contiguous(s, { cp = 4 })
        assert.equal("route: the groups differ: zigzag, cp 2, thd of 2 sequences, 40 positions has "
            .. "cp 2, tp 1, contiguous, cp 4, thd of 2 sequences, 40 positions has cp 4, tp 1",
            message(cplab.route.new, two, four))
        assert.equal(2, cplab.route(two, two):n_ranks())
    end)

    it("T-15: both sides of a pair order by position, where slots do not", function()
        local s = thd { lengths = { 32, 16 } }
        local m = layout.mirror(s, { cp = 4 })
        local swapped = layout.contiguous(s, { cp = 4, order = { 3, 2, 1, 0 } })
        local differ = false
        for _, pair in ipairs { { m, swapped }, { swapped, m } } do
            check_route(pair[1], pair[2])
            for r = 0, 3 do
                local last
                for _, move in ipairs(cplab.route(pair[1], pair[2]):sends(r)) do
                    if last and last.peer == move.peer then
                        assert.is_true(last.position < move.position)
                        differ = differ or last.slot > move.slot
                    end
                    last = move
                end
            end
        end
        assert.is_true(differ) -- an order by slot would have been another
    end)

    it("T-16: a group may list its ranks in any order", function()
        local s = thd { lengths = { 32, 64, 32 } }
        local orders = {
            { 2, 2, { 0, 2, 1, 3 } }, { 2, 4, { 7, 6, 5, 4, 3, 2, 1, 0 } },
            { 4, 2, { 0, 4, 1, 5, 2, 6, 3, 7 } }, { 2, 2, { 1, 3, 0, 2 } },
        }
        for _, case in ipairs(orders) do
            local cp, tp, order = unpack(case)
            local options = { cp = cp, tp = tp, group_order = order }
            local z, c = layout.zigzag(s, options), layout.contiguous(s, options)
            for kind, one in pairs { zigzag = z, contiguous = c } do
                local expected = naive.positions(kind, s, cp, tp, order)
                for r = 0, cp * tp - 1 do assert.same(expected[r + 1], one:positions(r)) end
            end
            check_route(z, c)
            check_route(c, z)
        end
    end)

    it("T-17: gradients over tensor-parallel shards are not summed tp times", function()
        local results = ranks.run(4, function(comm)
            local cp = require "cplab"
            local exchange = require "cplab.exchange"
            local rows = require "spec.exchange.rows"
            local s = cp.stream.thd { lengths = { 16, 24 } }
            local options = { cp = 2, tp = 2, group_order = { 0, 2, 1, 3 } }
            local z, c = cp.layout.zigzag(s, options), cp.layout.contiguous(s, options)
            local plan = exchange.plan(cp.route(z, c), comm, "f64", 1)
            local n = z:n_local(comm:rank())
            local ones = rows.tensor("f64", n, 1):set(function() return 1 end)
            local sums = rows.tensor("f64", n, 1):poison()
            plan:adjoint(ones, sums)
            return sums:values()
        end)
        for _, values in ipairs(results) do
            for _, value in ipairs(values) do assert.equal(1, value) end
        end
    end)

    it("T-18: an odd tp, refused elsewhere, is right here; tp 1 is the plain route", function()
        for _, case in ipairs { { 2, 3, 48 }, { 3, 5, 60 }, { 4, 1, 48 }, { 1, 3, 12 } } do
            local cp, tp, n = unpack(case)
            local streams = { cplab.stream.sbhd { seqlen = n }, thd { lengths = { n, 2 * n } } }
            for _, s in ipairs(streams) do
                local options = { cp = cp, tp = tp }
                local z, c = layout.zigzag(s, options), layout.contiguous(s, options)
                local expected = naive.positions("zigzag", s, cp, tp)
                for r = 0, cp * tp - 1 do assert.same(expected[r + 1], z:positions(r)) end
                check_route(z, c)
                check_route(c, z)
            end
        end
    end)

    it("T-19: rows that tp does not divide are an error that names tp", function()
        assert.equal("layout.contiguous: a CP rank has 10 rows, not a multiple of tp = 4",
            message(layout.contiguous, thd { cu_seqlens = { 0, 20 } }, { cp = 2, tp = 4 }))
    end)

    it("T-21: more than two segments a rank are more than a flip", function()
        local s = thd { lengths = { 16, 8, 24 } }
        local z, c = layout.zigzag(s, { cp = 2 }), layout.contiguous(s, { cp = 2 })
        assert.is_true(#cplab.route(z, c):receives(0) > 2)
        check_route(z, c)
        check_route(c, z)
    end)

    it("T-22: ranks without rows take part", function()
        local results = ranks.run(3, function(comm)
            local cp = require "cplab"
            local exchange = require "cplab.exchange"
            local rows = require "spec.exchange.rows"
            local rank, sums = comm:rank(), {}
            local pairs_of_runs = {
                { { {}, {}, {} }, { {}, {}, {} }, 0 }, -- no rows at all
                { { { { 0, 6 } }, {}, {} }, { {}, { { 0, 3 } }, { { 3, 3 } } }, 6 }, -- one has all
            }
            for _, case in ipairs(pairs_of_runs) do
                local s = cp.stream.thd { lengths = { case[3] } }
                local a = cp.layout.custom(s, { ranks = case[1] })
                local b = cp.layout.custom(s, { ranks = case[2] })
                local here, there = a:positions(rank), b:positions(rank)
                local x = rows.tensor("i64", #here, 2):fill_positions(here)
                local y = rows.tensor("i64", #there, 2):poison()
                exchange.plan(cp.route(a, b), comm, "i64", 2):convert(x, y)
                sums[#sums + 1] = y:first_wrong(there) or "right"
            end
            return sums
        end)
        for _, sums in ipairs(results) do assert.same({ "right", "right" }, sums) end
    end)

    it("T-52, T-73: zigzag is per sequence; over the whole stream it is called snake", function()
        local s = thd { cu_seqlens = { 0, 8, 16 } }
        local z = layout.zigzag(s, { cp = 2 })
        assert.same({ 0, 1, 6, 7, 8, 9, 14, 15 }, z:positions(0))
        assert.same({ 2, 3, 4, 5, 10, 11, 12, 13 }, z:positions(1))
        local wrong = layout.snake(s, { cp = 2 })
        assert.same({ 0, 1, 2, 3, 12, 13, 14, 15 }, wrong:positions(0))
        assert.equal(1, z:imbalance())
        assert.is_true(layout.snake(thd { lengths = { 24, 8 } }, { cp = 2 }):imbalance() > 1)
    end)

    it("T-86: padding of the tail is no real token, and is there before the cut", function()
        local extended = thd { lengths = { 8, 16 }, real = { 8, 9 } } -- the last one, from 9
        local dummy = thd { lengths = { 8, 9, 7 }, real = { 8, 9, 0 } } -- a sequence of pads
        local sums = {}
        for i, s in ipairs { extended, dummy } do
            local c = layout.contiguous(s, { cp = 2 })
            local n = 0
            for r = 0, 1 do
                for _, span in ipairs(c:spans(r, true)) do n = n + span.length end
            end
            sums[i] = { n, c:work(), c:positions(0), c:positions(1) }
            assert.same({ 8, 9 }, { s:sequence(0).real, s:sequence(1).real })
        end
        assert.equal(17, sums[1][1])
        assert.same(sums[1], sums[2])
        -- On demand too: real lengths stay, the last padded one grows until tp divides.
        local unpadded = thd { lengths = { 3, 3 } }
        local z = view.padded_zigzag(layout.contiguous(unpadded, { cp = 2, tp = 3 })):target()
        assert.same({ 3, 4, 3, 8 }, { z:stream():sequence(0).real, z:stream():sequence(0).padded,
            z:stream():sequence(1).real, z:stream():sequence(1).padded })
    end)

    it("T-88: alignment is by layout, shards are clamped to what they meet [report 75]", function()
        -- Each sequence by 2*cp, the rows of a CP rank by tp: 2*cp*tp for each is not needed.
        local s = thd { lengths = { 4, 12 } }
        check_route(layout.zigzag(s, { cp = 2, tp = 4 }), layout.contiguous(s, { cp = 2, tp = 4 }))
        local c = layout.contiguous(thd { lengths = { 3, 0, 4, 5 } }, { cp = 3 })
        local expected = {
            { { sequence = 0, offset = 0, slot = 0, length = 3 },
                { sequence = 2, offset = 0, slot = 3, length = 1 } },
            { { sequence = 2, offset = 1, slot = 0, length = 3 },
                { sequence = 3, offset = 0, slot = 3, length = 1 } },
            { { sequence = 3, offset = 1, slot = 0, length = 4 } },
        }
        for r = 0, 2 do assert.same(expected[r + 1], c:spans(r)) end
        for _, end_of_route in ipairs { { "contigous", c }, { c, "zigzg" } } do
            assert.truthy(message(cplab.route.new, end_of_route[1], end_of_route[2])
                :find("must be a layout", 1, true))
        end
    end)

    it("T-47: work counts real tokens, not padded ones", function()
        local function work(fields)
            local total = 0
            for _, n in ipairs(layout.zigzag(thd(fields), { cp = 2 }):work()) do
                total = total + n
            end
            return total
        end
        -- A token and those before it in its sequence: n (n + 1) / 2.
        assert.equal(9 * 10 / 2 + 3 * 4 / 2, work { lengths = { 16, 8 }, real = { 9, 3 } })
        assert.equal(16 * 17 / 2 + 8 * 9 / 2, work { lengths = { 16, 8 } })
    end)

    it("T-53: documents in a zigzag of the whole stream keep their boundaries", function()
        -- Documents need not divide by 2*cp there; zigzag, which is per document, refuses them.
        for _, cu in ipairs { { 0, 5, 16 }, { 0, 8, 16 } } do
            local s = thd { cu_seqlens = cu }
            local z, c = layout.snake(s, { cp = 2 }), layout.contiguous(s, { cp = 2 })
            assert.same({ 0, 1, 2, 3, 12, 13, 14, 15 }, z:positions(0))
            check_route(z, c)
            check_route(c, z)
            -- Rank 1 holds 4 .. 11: the end of the first document, then the second from its start.
            local first = cu[2] - 4
            assert.same({ { sequence = 0, offset = 4, slot = 0, length = first },
                { sequence = 1, offset = 0, slot = first, length = 8 - first } }, z:spans(1))
        end
        assert.equal("layout.zigzag: sequence 0 has 5 tokens, not a multiple of 2*cp = 4",
            message(layout.zigzag, thd { cu_seqlens = { 0, 5, 16 } }, { cp = 2 }))
    end)

    it("T-64: what is of one group is not of another, though the stream is the same", function()
        local s, seen = cplab.stream.sbhd { seqlen = 48, batch = 2 }, {}
        for _, options in ipairs { { cp = 2 }, { cp = 4 }, { cp = 2, tp = 2 },
            { cp = 2, tp = 2, group_order = { 0, 2, 1, 3 } } } do
            local one = layout.contiguous(s, options)
            assert.is_true(one:equals(layout.contiguous(s, options)))
            for _, other in ipairs(seen) do
                assert.is_false(one:equals(other))
                assert.is_false(one:columns():equals(other:columns()))
            end
            seen[#seen + 1] = one
        end
    end)

    it("T-76: boundaries on a rank are offsets on that rank", function()
        local c = layout.contiguous(thd { lengths = { 2048 } }, { cp = 2 })
        assert.equal(1024, c:position(1, 0)) -- where the wrong boundaries 1024, 3072 come from
        assert.same({ { sequence = 0, offset = 1024, slot = 0, length = 1024 } }, c:spans(1))
        local two = layout.contiguous(thd { lengths = { 1000, 1048 } }, { cp = 2 })
        assert.same({ { sequence = 1, offset = 24, slot = 0, length = 1024 } }, two:spans(1))
    end)

    it("[report 68] real boundaries equal to padded ones are no padding, however given", function()
        local cu = { 0, 8, 16 }
        local plain = thd { cu_seqlens = cu }
        for _, real in ipairs { cu, { 0, 8, 16 } } do -- the same list, and an equal one
            local s = thd { cu_seqlens = cu, cu_seqlens_real = real }
            assert.is_true(plain:equals(s))
            assert.is_true(layout.zigzag(plain, { cp = 2 }):equals(layout.zigzag(s, { cp = 2 })))
        end
        local padded = thd { cu_seqlens = cu, cu_seqlens_real = { 0, 7, 15 } }
        assert.is_false(plain:equals(padded))
        assert.equal(7, padded:sequence(0).real)
    end)

    it("[report 70] offsets restart with each sequence: the angles of a rank's rows", function()
        local z = layout.zigzag(thd { cu_seqlens = { 0, 4, 8 } }, { cp = 2 })
        local offsets = {}
        for _, span in ipairs(z:spans(0)) do
            for i = 0, span.length - 1 do offsets[span.slot + i + 1] = span.offset + i end
        end
        assert.same({ 0, 3, 0, 3 }, offsets)
        assert.same({ 0, 3, 4, 7 }, z:positions(0)) -- the rows of a table of all packed tokens
    end)
end)
