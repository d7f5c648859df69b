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
