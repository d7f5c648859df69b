-- Orders of the ranks: given ones by definition, found ones against every permutation.
local ffi = require "ffi"
local cplab = require "cplab"
local cases = require "spec.support.layout_cases"
local naive = require "spec.support.layout_naive"
local message = require "spec.support.message"

local C = require "clib".C
local layout, thd = cplab.layout, cplab.stream.thd

-- Calls visit(permutation of 0 .. n-1) in lexicographic order.
local function each_permutation(n, visit)
    local list, used = {}, {}
    local function extend()
        if #list == n then return visit(list) end
        for value = 0, n - 1 do
            if not used[value] then
                used[value] = true
                list[#list + 1] = value
                extend()
                list[#list], used[value] = nil, nil
            end
        end
    end
    extend()
end

-- The first permutation of the lowest cost, and the cost.
local function brute_force(n, cost)
    local best, best_sum
    each_permutation(n, function(order)
        local sum = 0
        for i = 1, n do sum = sum + cost(i - 1, order[i]) end
        if not best or sum < best_sum then best, best_sum = { unpack(order) }, sum end
    end)
    return best or {}, best_sum or 0
end

local function assign(n, values)
    local cost, out = ffi.new("int64_t[?]", math.max(n * n, 1)), ffi.new("int[?]", math.max(n, 1))
    for i = 0, n * n - 1 do cost[i] = values[i + 1] end
    assert.equal(C.CPL_OK, tonumber(C.cpl_assign(n, cost, out)))
    local list = {}
    for i = 1, n do list[i] = out[i - 1] end
    return list
end

describe("an assignment", function()
    it("is the lexicographically lowest of the cheapest, as all permutations say", function()
        local next_random = cases.random(11)
        for n = 0, 6 do
            for _, range in ipairs { 1, 2, 3, 10, 30000 } do -- small ranges have many ties
                for _ = 1, n < 6 and 40 or 10 do
                    local values = {}
                    for i = 1, n * n do values[i] = next_random(range) - math.floor(range / 2) end
                    assert.same(brute_force(n, function(i, j) return values[i * n + j + 1] end),
                        assign(n, values), "seed 11, {" .. table.concat(values, ",") .. "}")
                end
            end
        end
    end)

    -- The prices of a larger one cannot be seen, but exchanging two, or rotating three, of its
    -- rows must not make it cheaper, and of equals none may be lower.
    it("of many rows gains nothing by exchanges of two or three", function()
        local n, next_random = 67, cases.random(5)
        for _, range in ipairs { 2, 40, 30000 } do
            local values = {}
            for i = 1, n * n do values[i] = next_random(range) end
            local order, seen = assign(n, values), {}
            local function cost(i, j) return values[(i - 1) * n + order[j] + 1] end
            for i = 1, n do
                assert.is_nil(seen[order[i]])
                seen[order[i]] = true
                for j = i + 1, n do
                    local change = cost(i, j) + cost(j, i) - cost(i, i) - cost(j, j)
                    assert.is_true(change > 0 or change == 0 and order[i] < order[j])
                    for k = j + 1, n do
                        local own = cost(i, i) + cost(j, j) + cost(k, k)
                        assert.is_true(cost(i, j) + cost(j, k) + cost(k, i) >= own)
                        assert.is_true(cost(i, k) + cost(j, i) + cost(k, j) >= own)
                    end
                end
            end
        end
    end)

    it("does not overflow at the limits, which it names", function()
        local limit = 2 ^ 57 / 3
        local big = limit - limit % 1024
        assert.same({ 1, 2, 0 }, assign(3, { big, -big, big, big, big, -big, -big, big, big }))
        local cost, out = ffi.new("int64_t[9]", 2 ^ 56), ffi.new("int[3]", -7)
        assert.equal(C.CPL_INVALID, tonumber(C.cpl_assign(3, cost, out)))
        assert.equal("assign: the cost 72057594037927936 is beyond 2^57 / 3",
            ffi.string(C.cpl_last_error()))
        assert.equal(-7, out[0])
        assert.equal(C.CPL_INVALID, tonumber(C.cpl_assign(2049, cost, out)))
        assert.equal("assign: a matrix of 2049 rows, not of 0 .. 2048",
            ffi.string(C.cpl_last_error()))
    end)
end)

describe("a given order", function()
    it("says which CP rank holds each shard, and work follows", function()
        local s = thd { lengths = { 24, 0, 48 }, real = { 20, 0, 31 } }
        local order, group = { 2, 0, 1 }, { 5, 0, 3, 1, 4, 2 }
        for _, kind in ipairs(cases.kinds) do
            local z = layout[kind](s, { cp = 3, tp = 2, order = order, group_order = group })
            local plain = layout[kind](s, { cp = 3, tp = 2 })
            assert.same(order, z:order())
            assert.same({ 0, 1, 2 }, plain:order())
            for shard = 0, 2 do
                for t = 0, 1 do
                    assert.same(plain:positions(shard * 2 + t),
                        z:positions(group[order[shard + 1] * 2 + t + 1]))
                end
                assert.equal(plain:work()[shard + 1], z:work()[order[shard + 1] + 1])
            end
            assert.truthy(z:describe():find("cp 3, tp 2, reordered", 1, true))
        end
    end)

    it("of mirror is zigzag for one sequence on an even number of ranks", function()
        local s = thd { lengths = { 64 } }
        local near = layout.contiguous(s, { cp = 4 })
        local z = layout.zigzag(s, { cp = 4, order = "auto", near = near })
        local moved = cplab.route(layout.mirror(s, { cp = 4 }), near):stats().moved_tokens
        assert.equal(moved, cplab.route(z, near):stats().moved_tokens)
    end)
end)

-- Rows that a relabelling moves: 1 each, with nodes 1 inside the node and 8 out of it.
local function cost_of(kind, stream, options, near, node_size)
    local cost = {}
    local cp, tp = options.cp, options.tp or 1
    local group = options.group_order
    local ranks = naive.positions(kind, stream, cp, tp, nil, options.block)
    for shard = 0, cp - 1 do
        for rank = 0, cp - 1 do
            local sum = 0
            for t = 0, tp - 1 do
                local here = group and group[rank * tp + t + 1] or rank * tp + t
                for _, p in ipairs(ranks[shard * tp + t + 1]) do
                    local there = near:locate(p)
                    local far = node_size
                        and math.floor(here / node_size) ~= math.floor(there / node_size)
                    sum = sum + (here == there and 0 or far and 8 or 1)
                end
            end
            cost[shard * cp + rank] = sum
        end
    end
    return function(shard, rank) return cost[shard * cp + rank] end
end

local function shuffled(n, next_random)
    local list = {}
    for i = 1, n do table.insert(list, 1 + next_random(i), i - 1) end
    return list
end

describe("a found order", function()
    local seed = 29
    it("is the cheapest of all permutations, seed " .. seed, function()
        local next_random = cases.random(seed)
        for cp = 1, 6 do
            for round = 1, cp < 6 and 12 or 5 do
                local tp = ({ 1, 2, 3 })[1 + next_random(3)]
                local lengths = {}
                for i = 1, next_random(4) do lengths[i] = 2 * cp * tp * next_random(3) end
                local s = thd { lengths = lengths }
                local kind = cases.kinds[1 + next_random(#cases.kinds)]
                local near = round % 2 == 0
                    and layout.contiguous(s, { cp = cp, tp = tp })
                    or layout.custom(s, { tp = tp, ranks = cases.custom_ranks(s:n_positions(),
                        cp * tp, next_random) })
                local node_size = next_random(2) == 1 and 1 + next_random(4) or nil
                local options = {
                    cp = cp, tp = tp, order = "auto", near = near, node_size = node_size,
                    group_order = next_random(2) == 1 and shuffled(cp * tp, next_random) or nil,
                }
                local z = layout[kind](s, options)
                local cost = cost_of(kind, s, options, near, node_size)
                assert.same(brute_force(cp, cost), z:order(), z:describe())
                -- It is no more than a layout with that order given.
                options.near, options.node_size, options.order = nil, nil, z:order()
                assert.is_true(z:equals(layout[kind](s, options)))
            end
        end
    end)

    it("moves as few rows as were published", function()
        -- One sequence: 15/16 to 1/2; two 3/4; four 7/8 (16 ranks).
        for n, moved in pairs { [1] = 0.5, [2] = 0.75, [4] = 0.875 } do
            local lengths = {}
            for i = 1, n do lengths[i] = 4096 / n end
            local s = thd { lengths = lengths }
            local c = layout.contiguous(s, { cp = 16 })
            assert.equal(4096 * 15 / 16,
                cplab.route(layout.zigzag(s, { cp = 16 }), c):stats().moved_tokens)
            local z = layout.zigzag(s, { cp = 16, order = "auto", near = c })
            assert.equal(4096 * moved, cplab.route(z, c):stats().moved_tokens)
            local work = layout.zigzag(s, { cp = 16 }):work()
            assert.same(work, z:work()) -- as balanced as before
        end
    end)

    it("is the identity where that is as good, and brings a layout back to itself", function()
        local s = thd { lengths = { 96 } }
        for _, kind in ipairs(cases.kinds) do
            local z = layout[kind](s, { cp = 6 })
            assert.same({ 0, 1, 2, 3, 4, 5 },
                layout[kind](s, { cp = 6, order = "auto", near = z }):order())
            local turned = layout[kind](s, { cp = 6, order = { 3, 1, 0, 5, 2, 4 } })
            assert.is_true(turned:equals(layout[kind](s,
                { cp = 6, order = "auto", near = turned })))
        end
        local none = thd { lengths = {} }
        assert.same({ 0, 1, 2 }, layout.zigzag(none, { cp = 3, order = "auto",
            near = layout.contiguous(none, { cp = 3 }) }):order())
    end)

    it("with nodes moves more rows where fewer of them leave their node", function()
        local s = thd { lengths = { 8, 16 } }
        local c = layout.contiguous(s, { cp = 4 })
        -- Rows that change rank, and of these those that change node.
        local function moved(node_size)
            local z = layout.zigzag(s,
                { cp = 4, order = "auto", near = c, node_size = node_size })
            local n, across = 0, 0
            for r = 0, 3 do
                for _, move in ipairs(cplab.route(z, c):sends(r)) do
                    n = n + (move.peer ~= r and move.length or 0)
                    across = across
                        + (math.floor(r / 2) ~= math.floor(move.peer / 2) and move.length or 0)
                end
            end
            return { n, across }
        end
        assert.same({ 13, 12 }, moved(nil))
        assert.same({ 14, 8 }, moved(2))
    end)
end)

describe("an order refuses", function()
    local s = thd { lengths = { 16 } }
    local c = layout.contiguous(s, { cp = 2 })
    local refused = {
        ["a shard too few"] = { { cp = 2, order = { 0 } },
            "layout.zigzag: order has 1 entries, not cp = 2" },
        ["a rank twice"] = { { cp = 2, order = { 1, 1 } },
            "layout.zigzag: order must be a permutation, but shards 0 and 1 are both on CP rank "
            .. "1" },
        ["a rank that there is not"] = { { cp = 2, order = { 0, 2 } },
            "layout.zigzag: order of shard 1 is 2, not in 0 .. 1" },
        ["another word"] = { { cp = 2, order = "atuo" },
            'layout.zigzag: unknown order "atuo"; did you mean "auto"?' },
        ["auto without near"] = { { cp = 2, order = "auto" },
            'layout.zigzag: order = "auto" needs near, the layout to stay close to (got nil)' },
        ["near without auto"] = { { cp = 2, near = c },
            'layout.zigzag: near is of no use without order = "auto"' },
        ["nodes without auto"] = { { cp = 2, node_size = 2 },
            'layout.zigzag: node_size is of no use without order = "auto"' },
        ["a node of no ranks"] = { { cp = 2, order = "auto", near = c, node_size = 0 },
            "layout.zigzag: node_size must be an integer in 1 .. 2147483647 (got 0)" },
        ["near of another group"] = { { cp = 4, order = "auto", near = c },
            "layout.zigzag: near is contiguous, cp 2, thd of 1 sequence, 16 positions, of another "
            .. "group than cp 4, tp 1" },
        ["near of another stream"] = { { cp = 2, order = "auto",
            near = layout.contiguous(thd { lengths = { 8, 8 } }, { cp = 2 }) },
            "layout.zigzag: near is contiguous, cp 2, thd of 2 sequences, 16 positions, a layout "
            .. "of another stream than thd of 1 sequence, 16 positions" },
    }
    for name, case in pairs(refused) do
        it(name, function() assert.equal(case[2], message(layout.zigzag, s, case[1])) end)
    end

    it("what has no shards", function()
        assert.equal('layout.custom: unknown field "order"; there are cp, group_order, ranks, tp',
            message(layout.custom, s, { ranks = { { { 0, 16 } } }, order = { 0 } }))
    end)
end)
