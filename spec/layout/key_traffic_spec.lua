-- Counts over all ranks against the definitions, token by token.
local clib = require "clib"
local cplab = require "cplab"
local counting = require "cplab.cost.counts"
local cases = require "spec.support.layout_cases"
local naive = require "spec.support.layout_naive"

local C, ffi = clib.C, clib.ffi
local layout, thd = cplab.layout, cplab.stream.thd

-- A square list of lists of numbers, from a C array.
local function numbers(array, n_rows, n_columns)
    local list = {}
    for i = 1, n_rows do
        list[i] = {}
        for j = 1, n_columns do list[i][j] = tonumber(array[(i - 1) * n_columns + j - 1]) end
    end
    return list
end

local function zeros(n_rows, n_columns)
    local list = {}
    for i = 1, n_rows do
        list[i] = {}
        for j = 1, n_columns do list[i][j] = 0 end
    end
    return list
end

-- Counts of one layout that was made elsewhere.
local function counts_of(l)
    local counts = counting.new { stream = l:stream(), cp = l:cp(), tp = 1 }
    local named = counts.over_cp
    function counts.over_cp(name) return name == "it" and l or named(name) end
    return counts
end

-- Streams and layouts to look at: all kinds, cp 1 to 5, ragged and empty sequences, some padding.
local function each_layout(visit)
    local next_random = cases.random(11)
    for cp = 1, 5 do
        for i, units in ipairs(cases.units) do
            local lengths = cases.lengths(units, 2 * cp)
            local s = thd { lengths = lengths, real = i % 2 == 0 and cases.real(lengths) or nil }
            for _, kind in ipairs(cases.kinds) do
                visit(("%s of list %d at cp %d"):format(kind, i, cp), layout[kind](s, { cp = cp }))
            end
            visit(("custom of list %d at cp %d"):format(i, cp), layout.custom(s, { cp = cp,
                ranks = cases.custom_ranks(s:n_positions(), cp, next_random) }))
        end
    end
end

-- Owners of positions.
local function owners(l)
    local owner = {}
    for rank = 0, l:cp() - 1 do
        for _, p in ipairs(l:positions(rank)) do owner[p] = rank + 1 end
    end
    return owner
end

-- Every pair of a query and a key of its sequence that it sees.
local function each_pair(l, window, visit)
    local tokens, owner = naive.tokens(l:stream()), owners(l)
    for q = 0, l:stream():n_positions() - 1 do
        local first = window > 0 and math.max(tokens[q].offset - window + 1, 0) or 0
        for o = first, tokens[q].real and tokens[q].offset or -1 do
            visit(q, q - tokens[q].offset + o, owner)
        end
    end
end

-- The span, as text, that a query is in.
local function span_of(l)
    local of = {}
    for rank = 0, l:cp() - 1 do
        for i, span in ipairs(l:spans(rank, true)) do
            local start = l:stream():sequence(span.sequence).start + span.offset
            for p = start, start + span.length - 1 do of[p] = rank .. " " .. i end
        end
    end
    return of
end

local function naive_keys(l, window, node_size)
    local n, spans, met = l:cp(), span_of(l), {}
    local n_nodes = math.ceil(n / node_size)
    local t = { pairs = zeros(n, n), blocks = zeros(n, n), keys = zeros(n, n),
        node_keys = zeros(n_nodes, n) }
    local function first(list, row, column, ...)
        local key = table.concat({ ... }, " ")
        if not met[key] then list[row][column] = list[row][column] + 1 end
        met[key] = true
    end
    each_pair(l, window, function(q, k, owner)
        local a, b = owner[q], owner[k]
        local node = math.floor((a - 1) / node_size) + 1
        t.pairs[a][b] = t.pairs[a][b] + 1
        first(t.blocks, a, b, "block", spans[q], b)
        first(t.keys, a, b, "key", a, k)
        first(t.node_keys, node, b, "node", node, k)
    end)
    return t
end

describe("key traffic", function()
    for _, window in ipairs { 0, 1, 3, 7 } do
        it("counts what each query sees, window " .. window, function()
            each_layout(function(name, l)
                local n, node_size = l:cp(), math.min(2, l:cp())
                local expected = naive_keys(l, window, node_size)
                local got = counts_of(l):keys("it", window, node_size)
                assert.same(expected.pairs, numbers(got.pairs, n, n), name)
                assert.same(expected.blocks, numbers(got.blocks, n, n), name)
                assert.same(expected.keys, numbers(got.keys, n, n), name)
                assert.same(expected.node_keys, numbers(got.node_keys, got.n_nodes, n), name)
            end)
        end)
    end

    it("adds up sequences that are cut alike as if each came alone", function()
        local s = thd { lengths = { 8, 16, 8, 24, 8 }, real = { 8, 16, 7, 24, 8 } }
        local l = layout.zigzag(s, { cp = 4 })
        assert.same(naive_keys(l, 0, 2).pairs,
            numbers(counts_of(l):keys("it", 0, 2).pairs, 4, 4))
    end)

    it("has the work of a layout as its row sums", function()
        local l = layout.balanced(thd { lengths = { 640, 192, 64 } }, { cp = 4, block = 32 })
        local got = counts_of(l):keys("it", 0, 8)
        for rank, work in ipairs(l:work()) do
            local sum = 0
            for j = 0, 3 do sum = sum + tonumber(got.pairs[(rank - 1) * 4 + j]) end
            assert.equal(work, sum)
        end
    end)

    it("refuses windows below 0, nodes of no rank, tp and work beyond a double", function()
        local function fails(l, window, node_size)
            local pairs_of = ffi.new("int64_t[64]")
            local out = ffi.new("cpl_key_traffic", { pairs_of, pairs_of, pairs_of, pairs_of })
            pairs_of[0] = 77
            assert.equal(C.CPL_INVALID, C.cpl_layout_key_traffic(l._ptr, window, node_size, out))
            assert.equal(77, tonumber(pairs_of[0]))
            return ffi.string(C.cpl_last_error())
        end
        local l = layout.contiguous(thd { lengths = { 8 } }, { cp = 2 })
        assert.matches("window %-1", fails(l, -1, 8))
        assert.matches("node_size 0", fails(l, 0, 0))
        assert.matches("tp 2", fails(layout.contiguous(thd { lengths = { 8 } },
            { cp = 2, tp = 2 }), 0, 8))
        assert.matches("2^62", fails(layout.contiguous(thd { lengths = { 2 ^ 32 } }, { cp = 2 }),
            0, 8), 1, true)
    end)
end)

describe("overlap", function()
    it("counts the rows that two ranks share, and in how many pieces", function()
        local s = thd { lengths = { 12, 24 } }
        local z, c = layout.zigzag(s, { cp = 3 }), layout.contiguous(s, { cp = 3 })
        local counts = counting.new { stream = s, cp = 3, tp = 1 }
        local got = counts:overlap("zigzag", "contiguous")
        local expected, r = zeros(3, 3), cplab.route(z, c)
        local most = 0
        for rank = 0, 2 do
            for _, move in ipairs(r:sends(rank)) do
                local row = expected[rank + 1]
                row[move.peer + 1] = row[move.peer + 1] + move.length
            end
            most = math.max(most, #r:sends(rank))
        end
        assert.same(expected, numbers(got.rows, 3, 3))
        assert.equal(most, got.segments)
    end)

    it("is that of routes for all kinds", function()
        each_layout(function(name, l)
            local c = layout.contiguous(l:stream(), { cp = l:cp() })
            local r = cplab.route(l, c)
            local got, stats = counts_of(l):overlap("it", "contiguous"), r:stats()
            local moved, most = 0, 0
            for rank = 0, l:cp() - 1 do most = math.max(most, #r:sends(rank)) end
            assert.equal(most, got.segments, name)
            for i = 0, l:cp() - 1 do
                for j = 0, l:cp() - 1 do
                    moved = moved + (i ~= j and tonumber(got.rows[i * l:cp() + j]) or 0)
                end
            end
            assert.equal(stats.moved_tokens, moved, name)
        end)
    end)

    it("refuses layouts of different streams", function()
        local a = layout.contiguous(thd { lengths = { 8 } }, { cp = 2 })
        local b = layout.contiguous(thd { lengths = { 4, 4 } }, { cp = 2 })
        local rows = ffi.new("int64_t[6]")
        assert.equal(C.CPL_MISMATCH, C.cpl_layout_overlap(a._ptr, b._ptr, rows, rows + 4))
    end)
end)

-- Sums over spans of a rank that satisfy a condition on their link.
local function naive_load(l, rank, chunk, wanted)
    local t = { spans = 0, rows = 0, chunks = 0, squares = 0, cubes = 0 }
    local links = l:chain(rank)
    for i, span in ipairs(l:spans(rank, true)) do
        if wanted(links[i]) then
            t.spans, t.rows = t.spans + 1, t.rows + span.length
            for at = 0, span.length - 1, chunk do
                local n = math.min(chunk, span.length - at)
                t.chunks, t.squares, t.cubes = t.chunks + 1, t.squares + n ^ 2, t.cubes + n ^ 3
            end
        end
    end
    return t
end

local function plain(load)
    return { spans = tonumber(load.spans), rows = tonumber(load.rows),
        chunks = tonumber(load.chunks), squares = tonumber(load.squares),
        cubes = tonumber(load.cubes) }
end

describe("chains", function()
    local function has_prev(link) return link.prev_rank >= 0 end
    local function has_next(link) return link.next_rank >= 0 end
    local subsets = {
        all = function() return true end,
        heads = function(link) return not has_prev(link) and has_next(link) end,
        middles = function(link) return has_prev(link) and has_next(link) end,
        followers = has_prev,
    }

    it("load ranks with their spans", function()
        each_layout(function(name, l)
            local loads = counts_of(l):loads("it", 3, 2).loads
            for rank = 0, l:cp() - 1 do
                for subset, wanted in pairs(subsets) do
                    assert.same(naive_load(l, rank, 3, wanted), plain(loads[rank][subset]),
                        name .. ", " .. subset)
                end
            end
        end)
    end)

    it("read the halos that views show", function()
        each_layout(function(name, l)
            local got, n = counts_of(l):loads("it", 1, 3), l:cp()
            local expected, owner = zeros(n, n), owners(l)
            for rank = 0, n - 1 do
                for _, p in ipairs(naive.halo(naive.tokens(l:stream()), l:positions(rank), 3,
                    true)) do
                    if p >= 0 then
                        local row = expected[rank + 1]
                        row[owner[p]] = row[owner[p]] + 1
                    end
                end
            end
            assert.same(expected, numbers(got.rows, n, n), name)
        end)
    end)

    it("hand states over hop by hop", function()
        each_layout(function(name, l)
            local expected = {}
            for rank = 0, l:cp() - 1 do
                for _, link in ipairs(l:chain(rank)) do
                    if link.next_rank >= 0 then
                        local key = ("%d: %d -> %d"):format(link.level + 1, rank, link.next_rank)
                        expected[key] = (expected[key] or 0) + 1
                    end
                end
            end
            local hops, got, level = counts_of(l):hops "it", {}, 0
            for i = 0, hops.n - 1 do
                local hop = hops.items[i]
                local key = ("%d: %d -> %d"):format(tonumber(hop.level), hop.from, hop.to)
                assert.is_nil(got[key], name)
                assert.is_true(tonumber(hop.level) >= level, name)
                got[key], level = tonumber(hop.states), tonumber(hop.level)
            end
            assert.same(expected, got, name)
        end)
    end)

    it("refuse chunks below 1 and widths below 0", function()
        local l = layout.contiguous(thd { lengths = { 8 } }, { cp = 2 })
        local loads, halo = ffi.new("cpl_chain_loads[2]"), ffi.new("int64_t[4]")
        assert.equal(C.CPL_INVALID, C.cpl_layout_chain_loads(l._ptr, 0, 1, loads, halo))
        assert.equal(C.CPL_INVALID, C.cpl_layout_chain_loads(l._ptr, 1, -1, loads, halo))
        -- Cubes that are no int64_t: chunks of 2^21 rows, the longest that this sequence has.
        local long = layout.contiguous(thd { lengths = { 2 ^ 21 } }, { cp = 2 })
        assert.equal(C.CPL_OK, C.cpl_layout_chain_loads(long._ptr, 2 ^ 20, 0, loads, halo))
        assert.equal(2 ^ 60, tonumber(loads[0].all.cubes))
        assert.equal(C.CPL_INVALID, C.cpl_layout_chain_loads(long._ptr, 2 ^ 21, 0, loads, halo))
    end)

    it("leave no memory behind where it runs out", function()
        local l = layout.zigzag(thd { lengths = { 16, 32 } }, { cp = 4 })
        local stats = ffi.new "cpl_memory_stats"
        local function live()
            C.cpl_memory(stats)
            return tonumber(stats.live_blocks)
        end
        local rows = ffi.new("int64_t[64]")
        local loads, keys = ffi.new("cpl_chain_loads[4]"),
            ffi.new("cpl_key_traffic", { rows, rows, rows, rows })
        local hops, n = ffi.new "cpl_hop *[1]", ffi.new "int64_t[1]"
        local calls = {
            function() return C.cpl_layout_key_traffic(l._ptr, 0, 2, keys) end,
            function() return C.cpl_layout_chain_loads(l._ptr, 2, 3, loads, rows) end,
            function() return C.cpl_layout_hops(l._ptr, hops, n) end,
        }
        for _, call in ipairs(calls) do
            local before, fail_after = live(), 0
            local function fails()
                C.cpl_memory_fail_after(fail_after)
                local status = call()
                C.cpl_memory_fail_after(-1)
                return status ~= C.CPL_OK
            end
            while fails() do
                assert.equal(before, live())
                fail_after = fail_after + 1
            end
            assert.is_true(fail_after > 0)
        end
        C.cpl_free(hops[0])
    end)
end)
