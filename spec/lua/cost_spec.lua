-- The model of costs: how counts become seconds, and its face.
local cplab = require "cplab"
local exchange = require "cplab.cost.exchange"
local sizes = require "cplab.cost.sizes"
local support = require "spec.support.prices"

local message_of, cluster_of = support.message_of, support.cluster_of
local model_of, prices_of = support.model_of, support.prices_of

-- ---- seconds ----------------------------------------------------------------------

describe("seconds of the model of costs", function()
    it("are those of the busiest rank, not of the mean", function()
        local prices = prices_of { cp = 4, stream = { lengths = { 64 } }, backward = false,
            cluster = cluster_of { efficiency = { attention_forward = { max = 1e-300 } } } }
        local function attention(layout) return (prices:mixer(2, layout, "gather")) end
        -- Of 64 * 65 / 2 pairs the last of four contiguous ranks has 64 * 65 / 2 - 48 * 49 / 2.
        local pair = 4 * 8 * 16
        assert.near((2080 - 1176) * pair, attention "contiguous", 1e-6)
        assert.near(2080 / 4 * pair, attention "zigzag", 1e-6)
        local _, detail = prices:mixer(2, "contiguous", "gather")
        assert.near((2080 - 1176) / (2080 / 4), detail.imbalance, 1e-12)
    end)

    it("are those of a rank's busier direction", function()
        local cluster = cluster_of { links = { inside = { beta = 1 } } }
        local load, nodes = exchange.load(3), { [0] = 0, 0, 0 }
        exchange.send(load, nodes, 0, 1, 5)
        exchange.send(load, nodes, 2, 1, 7)
        exchange.send(load, nodes, 1, 1, 100) -- stays
        assert.near(24, exchange.price(cluster, load, 2).seconds, 1e-9)
    end)

    it("know a swap from rows that only go one way, or to a third", function()
        local function swaps(rows)
            rows[0] = table.remove(rows, 1)
            return exchange.swaps { rows = rows, n_from = 3, n_to = 3 }
        end
        assert.is_true(swaps { 4, 2, 0, 2, 4, 0, 0, 0, 6 })
        assert.is_false(swaps { 4, 2, 0, 1, 4, 0, 0, 0, 6 })
        assert.is_false(swaps { 4, 2, 2, 2, 4, 0, 2, 0, 6 })
    end)

    it("of attention backward are of five products where forward has two", function()
        local prices = prices_of { cp = 1, stream = { lengths = { 64 } },
            cluster = cluster_of { efficiency = { attention_forward = { max = 1e-300 },
                attention_backward = { max = 1e-300 } } } }
        local _, detail = prices:mixer(2, "contiguous")
        local forward, backward = unpack(detail.passes)
        assert.near(4 * 8 * 16 * 2080, forward.compute, 1e-6)
        assert.near(10 * 8 * 16 * 2080, backward.compute, 1e-6)
    end)

    it("wait in a ring at every step, in a gather once", function()
        local prices = prices_of { cp = 4, stream = { lengths = { 64 } }, backward = false,
            cluster = cluster_of { efficiency = { attention_forward = { max = 1e-300 } } } }
        local function attention(mode) return (prices:mixer(2, "contiguous", mode)) end
        local pair = 4 * 8 * 16
        assert.near((136 + 3 * 256) * pair, attention "p2p", 1e-6)
        assert.near((136 + 3 * 256) * pair, attention "gather", 1e-6)
        -- Balanced in sum (535 pairs at most, 520 on average), but not step by step: the slowest of
        -- each have 136, 175, 144, 135.
        assert.near(535 * pair, (prices:mixer(2, "balanced", "gather")), 1e-6)
        assert.near(590 * pair, (prices:mixer(2, "balanced", "p2p")), 1e-6)
    end)

    it("of a ring hide its hops behind attention as far as the cluster lets them", function()
        local function seconds(share)
            local prices = prices_of { cp = 4, stream = { lengths = { 64 } }, backward = false,
                cluster = cluster_of { efficiency = { attention_forward = { max = 1e-300 } },
                    links = { inside = { beta = 1e-3 } }, overlap = { ring = share } } }
            local s, d = prices:mixer(2, "zigzag", "p2p")
            return s, d
        end
        local hidden, apart = seconds(1), seconds(0)
        local hop = 16 * 2 * 2 * 16 * 8 * 1e3
        local pair = 4 * 8 * 16
        -- Steps of 136, 128, 128, 128 pairs; three hops.
        assert.near((136 + 3 * 128) * pair + 3 * hop, apart, 1e-6 * apart)
        assert.near(math.max(136 * pair, hop) + 2 * math.max(128 * pair, hop) + 128 * pair, hidden,
            1e-6 * hidden)
    end)

    it("add up over the hops of a chain, each of which waits for the one before", function()
        local function comm(layout, lengths)
            local prices = prices_of { cp = 4, stream = { lengths = lengths }, backward = false,
                cluster = cluster_of { links = { inside = { alpha = 1 } } },
                model = model_of { schedule = cplab.schedule.list { "gdn" },
                    gdn = { key_heads = 2, value_heads = 4, key_dim = 8, value_dim = 8, conv = 1,
                        chunk = 4 } } }
            return (prices:mixer(1, layout, "chunkwise"))
        end
        assert.near(3, comm("contiguous", { 64 }), 1e-9)
        assert.near(6, comm("zigzag", { 64 }), 1e-9) -- 8 blocks, the middle two are one span
        assert.near(6, comm("mirror", { 64 }), 1e-9) -- rank 2 hands one to itself
        assert.near(6, comm("zigzag", { 64, 32, 32 }), 1e-9) -- all chains in the same hops
        assert.near(0, comm("contiguous", { 16, 16, 16, 16 }), 1e-9)
    end)

    -- A state is brought through each span in the middle before it goes on: 2 K^2 V a head.
    it("hold what states are brought through, and the summaries that it takes", function()
        local function seconds(kinds)
            local changes = {}
            for _, kind in ipairs(kinds) do changes[kind] = { max = 1e-300 } end
            local prices = prices_of { cp = 4, stream = { lengths = { 64 } }, backward = false,
                cluster = cluster_of { efficiency = changes },
                model = model_of { schedule = cplab.schedule.list { "gdn" } } }
            return (prices:mixer(1, "contiguous", "chunkwise"))
        end
        local s = sizes.gdn(prices_of({ cp = 4, stream = { lengths = { 64 } } }).list[1].about
            .config, 1)
        local projections = 2 * 16 * s.params
        assert.near(projections + 2 * 2 * 8 * 8 * 8 * 4, seconds { "gemm" }, 1e-3)
        local core = 16 * 4 * sizes.gdn_forward(8, 8, 4)
        local middle = 16 * 4 * sizes.gdn_summary(8, 8, 4, true)
        assert.near(core + middle, seconds { "gdn_forward" }, 1e-3)
    end)

    it("hide halos beside projections as far as the cluster lets them", function()
        local function comm(share)
            local prices = prices_of { cp = 2, stream = { lengths = { 64 } }, backward = false,
                cluster = cluster_of { flops = { f64 = 1e11 }, overlap = { halo = share },
                    links = { inside = { beta = 1e9 } } } }
            local _, detail = prices:mixer(1, "contiguous", "chunkwise")
            return detail.comm
        end
        local width = 2 * 2 * 8 + 4 * 8
        local halo, state = 3 * width * 8 / 1e9, 4 * 8 * 8 * 8 / 1e9
        assert.near(halo + state, comm(0), 1e-12)
        assert.near(state, comm(1), 1e-12)
    end)

    it("take the cheapest way to gather: own copies, one a node, or all", function()
        local function variant(cluster, lengths, layout)
            local prices = prices_of { cp = 8, stream = { lengths = lengths }, cluster = cluster }
            return select(2, prices:mixer(2, layout, "gather")).variant
        end
        local two_nodes = cluster_of { ranks_per_node = 4, links = { between = { beta = 1e6 } } }
        assert.equal("node", variant(two_nodes, { 512 }, "contiguous"))
        assert.equal("exact", variant(two_nodes, { 64, 64, 64, 64, 64, 64, 64, 64 }, "contiguous"))
        local costly = two_nodes:with { links = { between = { beta = 1e300 } } }
        assert.equal("exact", variant(costly, { 512 }, "contiguous"))
        assert.equal("exact", variant(two_nodes:with { cores = 2 }, { 512 }, "contiguous"))
    end)

    -- 4 ranks of 16 rows on two nodes: the second node sees the 32 rows of the first, which its two
    -- ranks fetch half each; alone each of them fetches all.
    it("of one copy a node are those of its share of it", function()
        local function comm(ranks_per_node)
            local prices = prices_of { cp = 4, stream = { lengths = { 64 } }, backward = false,
                cluster = cluster_of { ranks_per_node = ranks_per_node,
                    links = { between = { beta = 1e6 } } } }
            return select(2, prices:mixer(2, "contiguous", "gather")).comm
        end
        local key_bytes = 2 * 2 * 16 * 8
        assert.near(16 * key_bytes / 1e6, comm(2), 1e-9)
        assert.near(48 * key_bytes / 1e6, comm(1), 1e-9)
    end)

    it("of lazy routes are blocking waits and segments that are built", function()
        local host = { sync = 1, segment = 1000, lazy_syncs = 3, prebuilt_syncs = 0 }
        local function seconds(routes)
            local prices = prices_of { cp = 4, stream = { lengths = { 64 } },
                cluster = cluster_of { host = host }, model = model_of { routes = routes } }
            return (prices:convert("contiguous", "zigzag"))
        end
        assert.near(0, seconds "prebuilt", 1e-9)
        assert.near(2 * (3 + 2 * 1000), seconds "lazy", 1e-9) -- two blocks a rank; twice
    end)

    it("of a swap pack nothing and keep nothing; others do", function()
        local function pack(to)
            local prices = prices_of { cp = 4, stream = { lengths = { 64 } }, backward = false,
                cluster = cluster_of { memory = { bandwidth = 1, pack = 4 } } }
            local _, detail = prices:convert("contiguous", to)
            return { detail.pack, detail.variant }
        end
        assert.same({ 0, "swap" }, pack "mirror")
        assert.same({ 4 * 16 * 64 * 8, "packed" }, pack "zigzag") -- a rank that moves all
    end)

    it("where cores are shared are those of ranks that work in turns", function()
        local function seconds(cores)
            local changes = { efficiency = { attention_forward = { max = 1e-300 } } }
            changes.cores = cores
            local prices = prices_of { cp = 4, stream = { lengths = { 64 } }, backward = false,
                cluster = cluster_of(changes) }
            return (prices:mixer(2, "contiguous", "gather")) / (4 * 8 * 16)
        end
        assert.near(2080 - 1176, seconds(nil), 1e-9)
        -- 136, 392, 648 and 904 pairs: half a core each, 2/3, then a core
        assert.near(136 * 2 + 256 * 1.5 + 256 + 256, seconds(2), 1e-9)
        assert.near(2080 - 1176, seconds(4), 1e-9)
    end)

    it("with recompute hold the forward pass twice", function()
        local stream = { lengths = { 64 } }
        local function all(options)
            options.cp, options.stream = 4, stream
            local prices = prices_of(options)
            return { (prices:mixer(2, "zigzag", "p2p")),
                (prices:mixer(1, "zigzag", "chunkwise")), (prices:rest(1, "zigzag")),
                (prices:convert("zigzag", "contiguous")) }
        end
        local forward = all { backward = false }
        local both, again = all {}, all { recompute = true }
        for i in ipairs(forward) do assert.near(both[i] + forward[i], again[i], 1e-12) end
    end)

    it("go with the cluster: the same counts, priced anew", function()
        local prices = prices_of { cp = 4, stream = { lengths = { 64 } } }
        local first = prices:convert("contiguous", "zigzag")
        local slow = prices:on(prices.cluster:with { links = { inside = { beta = 1e6 } } })
        assert.equal(prices.counts, slow.counts)
        assert.is_true(slow:convert("contiguous", "zigzag") > 10 * first)
        assert.equal(first, (prices:convert("contiguous", "zigzag")))
        assert.equal("a100", prices:on("a100").cluster.name)
    end)
end)

-- ---- the face ---------------------------------------------------------------------

describe("prices", function()
    local stream = { lengths = { 64, 128 } }

    it("list the layouts that a stream can have, and say why not the others", function()
        local prices = prices_of { cp = 4, stream = { lengths = { 12 } } }
        assert.same({ "contiguous", "balanced", "balanced@0.1" }, prices.layouts)
        assert.matches("sequence 0 has 12 tokens", prices.refused.zigzag)
        assert.matches("multiple of 2*cp = 8", prices.refused.mirror, 1, true)
        local seconds, why = prices:mixer(1, "zigzag")
        assert.is_nil(seconds)
        assert.equal(prices.refused.zigzag, why)
        assert.matches("prices:convert: zigzag: ",
            message_of(prices.convert, prices, "contiguous", "zigzag"))
        assert.matches("the stream can have none of the layouts zigzag, mirror",
            message_of(prices_of, { cp = 4, stream = { lengths = { 12 } },
                layouts = { "zigzag", "mirror" } }))
    end)

    it("list the modes that a layer can run with, and say why not the others", function()
        local prices = prices_of { cp = 8, stream = stream }
        assert.same({ "chunkwise" }, prices:modes(1))
        assert.same({ "gather", "p2p", "a2a" }, prices:modes(2))
        local seconds, why = prices:mixer(1, "zigzag", "headwise")
        assert.is_nil(seconds)
        assert.matches("4 value_heads, not a multiple of 8 ranks", why)
        local _, without = prices:mixer(2, "zigzag", "a2a+p2p")
        assert.matches("the model says no a2a", without)
    end)

    it("refuse names that are not known", function()
        local prices = prices_of { cp = 4, stream = stream }
        assert.matches('unknown layout "zigzg"; did you mean "zigzag"?',
            message_of(prices.mixer, prices, 1, "zigzg"), 1, true)
        assert.matches('unknown cp_mode "p2q"; did you mean "p2p"?',
            message_of(prices.mixer, prices, 2, "zigzag", "p2q"), 1, true)
        assert.matches("layer must be an integer in 1 .. 2 (got 3)",
            message_of(prices.rest, prices, 3, "zigzag"), 1, true)
        assert.matches('the tolerance of "balanced@x" must be a number from 0 on',
            message_of(prices.rest, prices, 1, "balanced@x"), 1, true)
        assert.matches('unknown field "clustr"; did you mean "cluster"?',
            message_of(cplab.cost.new, { clustr = "h100" }), 1, true)
        assert.matches('unknown cluster "h10"; did you mean "h100"?',
            message_of(prices.on, prices, "h10"), 1, true)
    end)

    it("refuse a tp that cannot split the layers", function()
        local function refused(tp, fields)
            return message_of(prices_of, { cp = 2, tp = tp, stream = stream,
                model = model_of(fields) })
        end
        assert.matches("cost.new: gqa.heads = 8 is not a multiple of tp = 3", refused(3))
        assert.matches("cost.new: gdn.value_heads = 4 is not a multiple of tp = 8", refused(8))
        assert.matches("mlp.width = 98 is not a multiple of tp = 4",
            refused(4, { mlp = { width = 98 } }))
        assert.matches("gqa.kv_heads = 4 is neither a multiple nor a divisor of tp = 6",
            refused(6, { gqa = { heads = 12, kv_heads = 4, head_dim = 16 } }))
    end)

    it("are shared by layers that are alike, and not by others", function()
        local list = cplab.schedule.list { "gqa", { "gqa", window = 8 }, "gqa" }
        local prices = prices_of { cp = 4, stream = stream, model = model_of { schedule = list } }
        local _, first = prices:mixer(1, "zigzag", "p2p")
        local _, other = prices:mixer(2, "zigzag", "p2p")
        local _, third = prices:mixer(3, "zigzag", "p2p")
        assert.equal(first, third)
        assert.is_true(other.compute < first.compute)
    end)

    it("of parts add up to the price", function()
        local prices = prices_of { cp = 4, stream = stream }
        local function check(seconds, d)
            assert.near(seconds, d.compute + d.comm + d.pack + d.host, 1e-12 * seconds)
            assert.is_true(seconds > 0 and d.imbalance >= 1)
        end
        for _, layout in ipairs(prices.layouts) do
            for i = 1, 2 do
                for _, mode in ipairs(prices:modes(i)) do check(prices:mixer(i, layout, mode)) end
                check(prices:rest(i, layout))
            end
            check(prices:ends("contiguous", layout))
        end
        check(prices:convert("zigzag", "balanced@0.1"))
        assert.equal(0, (prices:convert("zigzag", "zigzag")))
    end)

    it("on one rank are of work alone", function()
        local prices = prices_of { cp = 1, stream = stream }
        assert.equal(0, (prices:convert("contiguous", "zigzag")))
        for i = 1, 2 do
            assert.equal(1, #prices:modes(i))
            local _, detail = prices:mixer(i, "contiguous")
            assert.same({ 0, 0 }, { detail.comm, detail.bytes })
        end
    end)

    -- With windows every branch gathers: cp * tp ranks, of which tp see all rows of a CP rank.
    it("with tensor parallelism hold the gathers of windows", function()
        local cluster = cluster_of { flops = { f64 = 1 } }
        local alone = prices_of { cp = 2, stream = stream, backward = false, cluster = cluster }
        local split = prices_of { cp = 2, tp = 2, stream = stream, backward = false,
            cluster = cluster }
        local _, one = alone:rest(1, "contiguous")
        local _, two = split:rest(1, "contiguous")
        assert.equal(0, one.bytes)
        -- 48 rows of each other window come, and as many partial sums go.
        assert.equal(2 * 48 * 64 * 8, two.bytes)
        assert.near(one.compute / 2, two.compute, 1e-6)
    end)
end)

describe("candidates", function()
    it("are also what the model binds its kinds to, and the ends of auto", function()
        local function candidates(fields, gqa)
            local model = { policy = "auto" }
            for name, value in pairs(fields or {}) do model[name] = value end
            if gqa then
                model.gqa = { heads = 8, kv_heads = 2, head_dim = 16, layouts = gqa }
            end
            return table.concat(prices_of { cp = 2, stream = { lengths = { 64 } },
                model = model_of(model) }.layouts, " ")
        end
        local usual = table.concat(cplab.cost.candidates, " ")
        assert.equal(usual, candidates())
        assert.equal(usual .. " striped snake", candidates({ auto = { exit = "snake" } },
            { "striped", "zigzag" }))
        assert.equal(usual, candidates({ auto = { entry = "mirror" } }, "any"))
        -- Equal layouts have equal names.
        assert.equal(usual, candidates({}, { "balanced@0.10" }))
    end)
end)

describe("a projected step", function()
    local stream = { lengths = { 64, 128 } }
    local mixed = {
        name = "mixed", entry = "contiguous", exit = "mirror", layers = {
            { live = "contiguous", mixer = "zigzag", cp_mode = "chunkwise" },
            { live = "zigzag", mixer = "balanced", cp_mode = "gather" },
        },
    }

    it("is the sum of its prices", function()
        local p = prices_of { cp = 4, stream = stream }
        local step = p:step(mixed)
        local sum = p:ends("contiguous", "mirror") + p:rest(1, "contiguous") + p:rest(2, "zigzag")
            + p:mixer(1, "zigzag", "chunkwise") + p:mixer(2, "balanced", "gather")
            + p:convert("contiguous", "zigzag") + p:convert("zigzag", "contiguous")
            + p:convert("contiguous", "zigzag")
            + p:convert("zigzag", "balanced") + p:convert("balanced", "zigzag")
            + p:convert("zigzag", "mirror")
        assert.near(sum, step.seconds, 1e-12 * sum)
        assert.near(sum, step.compute + step.comm + step.convert + step.host, 1e-12 * sum)
        assert.equal(6, step.metrics.conversions_fwd)
    end)

    it("fills the time of every rank with its events, in order", function()
        local step = prices_of { cp = 4, stream = stream }:step(mixed)
        local at = { [0] = 0, 0, 0, 0 }
        local kinds = {}
        for _, event in ipairs(step.ranks) do
            assert.near(at[event.rank], event.start, 1e-9 * step.seconds)
            at[event.rank] = event.start + event.duration
            kinds[event.kind] = true
        end
        for rank = 0, 3 do assert.near(step.seconds, at[rank], 1e-9 * step.seconds) end
        assert.is_true(kinds.compute and kinds.comm and kinds.convert and kinds.wait)
    end)

    it("refuses an assignment that does not fit or cannot run", function()
        local p = prices_of { cp = 8, stream = stream }
        local function fails(change)
            local t = { name = "x", entry = "contiguous", exit = "contiguous", layers = {
                { live = "contiguous", mixer = "contiguous" },
                { live = "contiguous", mixer = "contiguous" } } }
            change(t)
            return message_of(p.step, p, t)
        end
        assert.matches("the assignment has 1 layers, the model 2",
            fails(function(t) t.layers[2] = nil end))
        assert.matches("layers%[1%].live must be a string",
            fails(function(t) t.layers[1].live = nil end))
        assert.matches('field "exit" is missing', fails(function(t) t.exit = nil end))
        assert.matches("layer 0 cannot run: headwise with 4 value_heads",
            fails(function(t) t.layers[1].cp_mode = "headwise" end))
        assert.matches("balanced layouts stay near zigzag in the assignment, near contiguous in",
            fails(function(t) t.near, t.layers[2].mixer = "zigzag", "balanced" end))
        assert.matches('did you mean "mirror"', fails(function(t) t.layers[2].live = "miror" end))
    end)
end)
