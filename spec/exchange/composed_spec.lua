-- The path of sequence parallelism, gather, convert, keep: the same rows as one exchange, more
-- bytes, and gradients that are split among the tp ranks, not reduced over them.
local counts = require "spec.exchange.counts"
local ranks = require "spec.support.ranks"

-- The planted mistake: each tp rank brings the gradients of its whole CP shard, which all of them
-- have alike, and these are summed over the ranks, as after a gather whose copies went apart.
local function reduced_gradients(comm, a, y, there, tp)
    local width, here = 2, {}
    local all, n = {}, 0
    for _, rank in ipairs(comm:gather { rows = y:values(), positions = there }) do
        for slot, position in ipairs(rank.positions) do
            n = n + 1
            for c = 1, width do
                all[position * width + c] = rank.rows[(slot - 1) * width + c]
            end
        end
    end
    local shard = {}
    for i = 1, n * width do shard[i] = 0 end
    local first = comm:rank() - comm:rank() % tp
    for rank = first, first + tp - 1 do
        for _, position in ipairs(a:positions(rank)) do
            for c = 1, width do
                shard[position * width + c] = all[position * width + c]
            end
        end
    end
    local sums = comm:sum(shard)
    for _, position in ipairs(a:positions(comm:rank())) do
        for c = 1, width do here[#here + 1] = sums[position * width + c] end
    end
    return here
end

-- <Ax, y> = <x, A'y>, and <x, By> with B the planted mistake.
local function dots(comm, p)
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local cp, rank = comm:size() / p.tp, comm:rank()
    local stream = rows.stream("thd", cp, p.tp)
    local a = rows.layout("zigzag", stream, cp, p.tp)
    local b = rows.layout(p.to, stream, cp, p.tp)
    local plan = exchange.plan(route(a, b), comm, "i64", 2, "composed")
    local x, y = rows.draw(rank, a:n_local(rank), 1), rows.draw(rank, b:n_local(rank), 2)
    local ax, aty = rows.draw(rank, b:n_local(rank), 3), rows.draw(rank, a:n_local(rank), 4)
    plan:convert(x, ax)
    plan:adjoint(y, aty)
    local forward, back = rows.dot(comm, ax, y), rows.dot(comm, x, aty)
    local reduced = loadstring(p.reduced_gradients)(comm, a, y, b:positions(rank), p.tp)
    aty:set(function(i) return reduced[i + 1] end)
    return { forward, back, rows.dot(comm, x, aty) }
end

-- What the one exchange and the composed path leave behind, bit by bit, and what they send.
local function compare(comm, p)
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local cp, rank, wrong, bytes = comm:size() / p.tp, comm:rank(), {}, { 0, 0 }
    local stream = rows.stream("thd", cp, p.tp)
    local layouts = require "cplab.layout"
    local group = { cp = cp, tp = p.tp, group_order = p.order }
    for _, dtype in ipairs { "f64", "f32", "i64", "i32" } do
        local a, b
        if p.order then
            a, b = layouts.mirror(stream, group), layouts.zigzag(stream, group)
        else
            a, b = rows.layout("mirror", stream, cp, p.tp), rows.layout("random", stream, cp, p.tp)
        end
        local here, there = a:n_local(rank), b:n_local(rank)
        local r, out = route(a, b), {}
        for i, method in ipairs { p.fused, "composed" } do
            local plan = exchange.plan(r, comm, dtype, 3, method)
            local function draw(n, seed)
                return rows.tensor(dtype, n, 3):set(function(k)
                    return (k * 7919 + rank * 104729 + seed) % 2003 / 7
                end)
            end
            local x, y, dx = draw(here, 1), draw(there, 2), draw(here, 3)
            plan:convert(x, y)
            plan:adjoint(draw(there, 4), dx, true)
            out[i] = y:contents() .. dx:contents()
            bytes[i] = bytes[i] + plan:sent_bytes()
        end
        if out[1] ~= out[2] then wrong[#wrong + 1] = dtype end
    end
    return { wrong = wrong, bytes = bytes }
end

local function refusal(comm, p)
    local cplab = require "cplab"
    local exchange = require "cplab.exchange"
    local stream = cplab.stream.thd { lengths = { 16 } }
    local cp = comm:size() / p.tp
    local a = cplab.layout.zigzag(stream, { cp = cp, tp = p.tp })
    local b = p.view and cplab.view.halo(a, 2)
        or cplab.layout.contiguous(stream, { cp = cp, tp = p.tp, group_order = p.order })
    local ok, message = pcall(exchange.plan, cplab.route(a, b), comm, "f32", 3, "composed")
    return ok and "a plan" or message
end

describe("the composed path", function()
    for _, n in ipairs(counts.of { 4, 8 }) do
        for _, to in ipairs { "contiguous", "random" } do
            it(("has the adjoint that splits: <Ax, y> = <x, A'y>, %d ranks, %s"):format(n, to),
                function()
                    local forward, back, reduced = unpack(ranks.run(n, dots,
                        { tp = 2, to = to, reduced_gradients = string.dump(reduced_gradients) })[1])
                    assert.equal(forward, back)
                    assert.not_equal(0, forward)
                    -- The control: the planted mistake gives every gradient tp times.
                    assert.equal(2 * forward, reduced)
                end)
        end
        for _, fused in ipairs(counts.methods { "copy", "packed" }) do
            it(("gives the bits of one exchange by %s and sends more, %d ranks"):format(fused, n),
                function()
                    local sums = { 0, 0 }
                    for _, result in ipairs(ranks.run(n, compare, { tp = 2, fused = fused })) do
                        assert.same({}, result.wrong)
                        sums[1] = sums[1] + result.bytes[1]
                        sums[2] = sums[2] + result.bytes[2]
                    end
                    assert.is_true(sums[2] > 1.5 * sums[1])
                end)
        end
    end

    for _, n in ipairs(counts.of { 4 }) do
        it("works where tp ranks are in no order", function()
            for _, order in ipairs { { 1, 0, 3, 2 }, { 3, 0, 2, 1 }, { 2, 1, 0, 3 } } do
                for _, result in ipairs(ranks.run(n, compare,
                    { tp = 2, fused = "packed", order = order })) do
                    assert.same({}, result.wrong)
                end
            end
        end)

        it("refuses tp 1, views and two group orders, on every rank", function()
            local cases = {
                { { tp = 1 }, 'method "composed" needs tp > 1; zigzag, cp 4.* has tp 1' },
                { { tp = 2, view = true }, 'converts between partitions; halo .* is a view' },
                { { tp = 2, order = { 1, 0, 3, 2 } }, "needs equal group orders on both sides" },
            }
            for _, case in ipairs(cases) do
                for _, message in ipairs(ranks.run(n, refusal, case[1])) do
                    assert.matches(case[2], message)
                end
            end
            for _, message in ipairs(ranks.run(n, refusal, { tp = 2 })) do
                assert.equal("a plan", message)
            end
        end)
    end
end)
