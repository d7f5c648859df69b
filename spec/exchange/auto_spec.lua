-- What "auto" chooses: the cheapest of the methods that move a row once, by the table of costs,
-- for the busiest rank, and the same one on every rank.
local counts = require "spec.exchange.counts"
local ranks = require "spec.support.ranks"

-- Plans with prices of its own: p.prices[rank + 1] or p.prices.all lists those of copy, direct,
-- packed, alltoallv and composed, each { us a message, us a piece, GB/s crossing, GB/s carried }.
local function choose(comm, p)
    local clib = require "clib"
    local C, ffi = clib.C, clib.ffi
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    pcall(ffi.cdef, [[
        typedef struct cpli_cost { double message_us, piece_us, crossing_gbs, carried_gbs; }
            cpli_cost;
        void cpli_costs_replace(const cpli_cost *costs);
    ]])
    local prices = p.prices and (p.prices[comm:rank() + 1] or p.prices.all)
    local table_of_costs = prices and ffi.new("cpli_cost[5]", prices)
    C.cpli_costs_replace(table_of_costs)
    local cp = comm:size() / (p.tp or 1)
    local stream = rows.stream("thd", cp, p.tp)
    local r = route(rows.layout("zigzag", stream, cp, p.tp),
        rows.layout(p.to or "contiguous", stream, cp, p.tp))
    local plan = exchange.plan(r, comm, "f32", 3, p.method)
    local costs, out = {}, { plan:method(), plan:estimate() }
    for i, method in ipairs { "copy", "direct", "packed", "alltoallv" } do
        costs[i] = exchange.plan(r, comm, "f32", 3, method):estimate()
    end
    C.cpli_costs_replace(nil)
    return { method = out[1], estimate = out[2], costs = costs }
end

-- The quantities of this rank that have a price, by hand, and the estimates of plans in which only
-- one of them has: a second for a message, a piece, a byte that crosses, a byte that is carried.
local function estimate_each(comm, p)
    local clib = require "clib"
    local C, ffi = clib.C, clib.ffi
    local exchange = require "cplab.exchange"
    local rows = require "spec.exchange.rows"
    pcall(ffi.cdef, [[
        typedef struct cpli_cost { double message_us, piece_us, crossing_gbs, carried_gbs; }
            cpli_cost;
        void cpli_costs_replace(const cpli_cost *costs);
    ]])
    local cp, rank, row_bytes = comm:size() / p.tp, comm:rank(), 12
    local stream = rows.stream("thd", cp, p.tp)
    local from = rows.layout("random", stream, cp, p.tp)
    local to = rows.layout("zigzag", stream, cp, p.tp)
    if p.back then from, to = to, from end
    local r = require "cplab.route"(from, to)
    local function count(segments)
        local sums = { peers = 0, pieces = 0, bytes = 0, own_pieces = 0, own_bytes = 0 }
        local last = rank
        for _, segment in ipairs(segments) do
            local own = segment.peer == rank and "own_" or ""
            sums[own .. "pieces"] = sums[own .. "pieces"] + 1
            sums[own .. "bytes"] = sums[own .. "bytes"] + segment.length * row_bytes
            if own == "" and segment.peer ~= last then sums.peers = sums.peers + 1 end
            last = segment.peer
        end
        return sums
    end
    local prices = { { 1e6, 0, math.huge, math.huge }, { 0, 1e6, math.huge, math.huge },
        { 0, 0, 1e-9, math.huge }, { 0, 0, math.huge, 1e-9 } }
    local estimates = {}
    for i, price in ipairs(prices) do
        C.cpli_costs_replace(ffi.new("cpli_cost[5]", { price, price, price, price, price }))
        estimates[i] = exchange.plan(r, comm, "f32", 3, p.method):estimate()
        C.cpli_costs_replace(nil)
    end
    return { out = count(r:sends(rank)), into = count(r:receives(rank)), estimates = estimates }
end

-- Messages, pieces, bytes that cross, bytes that are carried.
local quantities = {
    copy = function(out, into)
        return { out.peers + into.peers, into.pieces + into.own_pieces, into.bytes, into.own_bytes }
    end,
    direct = function(out, into)
        return { out.peers + into.peers, out.pieces + into.pieces + into.own_pieces,
            math.max(out.bytes, into.bytes), into.own_bytes }
    end,
    packed = function(out, into)
        return { out.peers + into.peers, out.pieces + into.pieces + into.own_pieces,
            math.max(out.bytes, into.bytes), out.bytes + into.bytes + into.own_bytes }
    end,
    alltoallv = function(out, into, n)
        return { 2 * (n - 1), out.pieces + into.pieces + into.own_pieces,
            math.max(out.bytes, into.bytes), out.bytes + into.bytes + into.own_bytes }
    end,
    -- Both tp ranks: the other's window comes, then twice of what one exchange brings.
    composed = function(out, into)
        return { 2 + out.peers + into.peers, 2 * (into.pieces + into.own_pieces),
            out.bytes + out.own_bytes + 2 * into.bytes, into.bytes + into.own_bytes }
    end,
}

local function all_of(n, price)
    local list = {}
    for i = 1, n do list[i] = price end
    return list
end

local dear, cheap, free = { 100, 100, 0.001, 0.001 }, { 1, 1, 10, 10 }, { 0, 0, 1e9, 1e9 }

describe("auto", function()
    for _, n in ipairs(counts.of { 2, 4 }) do
        it(("takes the method with the lowest estimate, and tells it, %d ranks"):format(n),
            function()
                for _, result in ipairs(ranks.run(n, choose, {})) do
                    local best = math.min(unpack(result.costs))
                    assert.is_true(best > 0)
                    assert.equal(best, result.estimate)
                    assert.equal("copy", result.method)
                end
            end)

        for i, name in ipairs { "copy", "direct", "packed", "alltoallv" } do
            it(("takes %s where the table says that it is the cheapest, %d ranks"):format(name, n),
                function()
                    local prices = all_of(5, dear)
                    prices[i] = cheap
                    for _, result in ipairs(ranks.run(n, choose, { prices = { all = prices } })) do
                        assert.equal(name, result.method)
                    end
                end)
        end

        it(("counts the busiest rank, and all ranks choose alike, %d ranks"):format(n), function()
            local prices = { all = { cheap, dear, dear, dear, dear } }
            for _, result in ipairs(ranks.run(n, choose, { prices = prices })) do
                assert.equal("copy", result.method)
            end
            -- To one rank alone copies are much dearer than all else is to anybody.
            prices[1] = { { 1e9, 1e9, 1, 1 }, cheap, dear, dear, dear }
            for _, result in ipairs(ranks.run(n, choose, { prices = prices })) do
                assert.equal("direct", result.method)
            end
        end)

        it(("takes what costs nothing to everybody: a forced method stays, %d ranks"):format(n),
            function()
                local prices = { all = { dear, dear, dear, free, dear } }
                for method, expected in pairs { auto = "alltoallv", packed = "packed" } do
                    for _, result in ipairs(ranks.run(n, choose,
                        { prices = prices, method = method })) do
                        assert.equal(expected, result.method)
                    end
                end
            end)
    end

    for _, n in ipairs(counts.of { 3 }) do
        it("takes the first of those that cost the same", function()
            local nothing = all_of(5, { 0, 0, math.huge, math.huge })
            for _, result in ipairs(ranks.run(n, choose, { prices = { all = nothing } })) do
                assert.same({ "copy", 0 }, { result.method, result.estimate })
            end
            nothing[1] = dear
            for _, result in ipairs(ranks.run(n, choose, { prices = { all = nothing } })) do
                assert.same({ "direct", 0 }, { result.method, result.estimate })
            end
        end)

        -- Threads send as they copy, so packing only adds to it; a message over MPI is dear.
        it("goes by the prices of its transport", function()
            for _, result in ipairs(ranks.run(n, choose, { to = "striped" })) do
                local direct, packed = result.costs[2], result.costs[3]
                assert.equal(ranks.transport() == "mpi", direct > packed)
            end
        end)
    end

    for method, quantities_of in pairs(quantities) do
        for _, n in ipairs(counts.of { 4, 8 }) do
            it(("prices what %s does on the busiest rank, %d ranks"):format(method, n), function()
                for _, back in ipairs { false, true } do
                    local results = ranks.run(n, estimate_each,
                        { method = method, tp = method == "composed" and 2 or 1, back = back })
                    local most = { 0, 0, 0, 0 }
                    for _, result in ipairs(results) do
                        for i, q in ipairs(quantities_of(result.out, result.into, n)) do
                            most[i] = math.max(most[i], q)
                        end
                    end
                    for _, result in ipairs(results) do
                        for i, estimate in ipairs(result.estimates) do
                            assert.is_true(math.abs(estimate - most[i]) < 1e-6,
                                ("%d: %g, not %g"):format(i, estimate, most[i]))
                        end
                    end
                end
            end)
        end
    end

    for _, n in ipairs(counts.of { 4 }) do
        it("never takes the composed path, which sends rows more than once", function()
            local prices = all_of(5, dear)
            prices[3], prices[5] = cheap, free
            for _, result in ipairs(ranks.run(n, choose, { tp = 2, prices = { all = prices } })) do
                assert.equal("packed", result.method)
            end
        end)
    end
end)
