-- The model of costs in its parts, by hand: gathers over nodes, the steps of a ring, what is in f32
-- whatever the rows are, what the host starts.
local cplab = require "cplab"
local exchange = require "cplab.cost.exchange"
local gather = require "cplab.cost.gather"
local sizes = require "cplab.cost.sizes"
local support = require "spec.support.prices"

local cluster_of, model_of, prices_of = support.cluster_of, support.model_of, support.prices_of

local function gdn_model()
    return model_of { schedule = cplab.schedule.list { "gdn" } }
end

-- 8 ranks of R rows in the contiguous layout, two a node: rank i sees i shards of others, node n
-- all that nodes before it hold, and nodes behind it all that it holds.
describe("a gather over nodes", function()
    local R = 8

    local function variants(links)
        local prices = prices_of { cp = 8, stream = { lengths = { 8 * R } },
            cluster = cluster_of { ranks_per_node = 2, links = links } }
        local counts = prices.counts
        return gather.variants(prices.env, counts:keys("contiguous", 0, 2),
            counts:rows "contiguous", 1)
    end

    local function busy(x)
        local list = {}
        for i = 0, 7 do list[i + 1] = math.floor(x.busy[i] * 1e6 + 0.5) / 1e6 end
        return list
    end

    it("spreads what a node gets or gives over its ranks", function()
        local v = variants { between = { beta = 1 } }
        -- Into node n 2 n R rows, out of it 2 (3 - n) R; of both the larger, by two ranks.
        assert.same({ 3 * R, 3 * R, 2 * R, 2 * R, 2 * R, 2 * R, 3 * R, 3 * R }, busy(v.node))
        assert.same({ 3 * R, 3 * R, 3 * R, 3 * R, 3 * R, 3 * R, 3 * R, 3 * R }, busy(v.all))
    end)

    -- Shards of its own node come from their rank; of those from elsewhere it fetched half itself
    -- and has the other half from its neighbour, to which it hands its own half on.
    it("brings a rank from its neighbour what that holds or fetched", function()
        local v = variants { inside = { beta = 1 } }
        -- The second of node n gets R + 2 n R / 2; the first gives as much.
        assert.same({ R, R, 2 * R, 2 * R, 3 * R, 3 * R, 4 * R, 4 * R }, busy(v.node))
        assert.same({ 4 * R, 4 * R, 4 * R, 4 * R, 4 * R, 4 * R, 4 * R, 4 * R }, busy(v.all))
    end)

    it("is nothing else than own copies where there is one node", function()
        local prices = prices_of { cp = 8, stream = { lengths = { 8 * R } },
            cluster = cluster_of { ranks_per_node = 8, links = { inside = { beta = 1 } } } }
        local counts = prices.counts
        local v = gather.variants(prices.env, counts:keys("contiguous", 0, 8),
            counts:rows "contiguous", 1)
        assert.same(busy(v.exact), busy(v.node))
        assert.equal(v.exact.total_bytes, v.node.total_bytes)
        assert.equal("exact", (gather.cheapest(v)))
    end)

    it("takes a message to each other node, and to each neighbour", function()
        local v = variants { between = { message = 1 } }
        assert.same({ 3, 3, 3, 3, 3, 3, 3, 3 }, busy(v.node))
        v = variants { inside = { message = 1 } }
        assert.same({ 1, 1, 1, 1, 1, 1, 1, 1 }, busy(v.node))
    end)
end)

-- Sequences of three shards and of one: in step 1 ranks 1 and 2 see the shard before their own, in
-- step 2 rank 2 the first, which went on in step 1.
it("a ring hides a hop behind the work of its own step", function()
    local R, pair, beta = 16, 4 * 8 * 16, 1e-3
    local prices = prices_of { cp = 4, stream = { lengths = { 3 * R, R } }, backward = false,
        cluster = cluster_of { efficiency = { attention_forward = { max = 1e-300 } },
            links = { inside = { beta = beta } }, overlap = { ring = 1 } } }
    local hop = R * 2 * 2 * 16 * 8 / beta
    local own, other = R * (R + 1) / 2 * pair, R * R * pair
    assert.near(math.max(own, hop) + math.max(other, hop) + other,
        (prices:mixer(2, "contiguous", "p2p")), 1e-6)
end)

describe("rows of two bytes", function()
    it("leave the states of GDN in four", function()
        local prices = prices_of { cp = 2, stream = { lengths = { 64 } }, dtype = "bf16",
            model = gdn_model() }
        local _, detail = prices:mixer(1, "contiguous", "chunkwise")
        assert.equal(4 * 8 * 8 * 4, detail.passes[1].state_bytes)
    end)

    it("leave gradients of keys and values in four", function()
        local prices = prices_of { cp = 2, stream = { lengths = { 64 } }, dtype = "bf16" }
        for mode, factor in pairs { gather = 2, p2p = 1 + 2 } do -- a ring brings keys again
            local _, detail = prices:mixer(2, "contiguous", mode)
            local forward, backward = unpack(detail.passes)
            assert.equal(32 * 2 * 2 * 16 * 2, forward.total_bytes)
            assert.equal(factor * forward.total_bytes, backward.total_bytes, mode)
        end
    end)
end)

-- 16 rows a rank of 4; a slice is q, k and v of one head of 8 and its gates: 26 numbers of 8 bytes.
describe("headwise", function()
    local function seconds(cp, memory)
        local prices = prices_of { cp = cp, stream = { lengths = { 64 } }, model = gdn_model(),
            backward = false, cluster = cluster_of { memory = memory } }
        return (prices:mixer(1, "contiguous", "headwise"))
    end

    it("packs what goes to other ranks and what comes home from them", function()
        local into, home = 16 * 4 * 26 * 8, 16 * 4 * 8 * 8
        assert.near(2 * (into + home), seconds(4, { bandwidth = 1, pointwise = 1e300 }), 1e-3)
    end)

    it("works on a key head twice where two ranks have it", function()
        local s = sizes.gdn({ key_heads = 2, value_heads = 4, key_dim = 8, value_dim = 8,
            hidden = 64 }, 1)
        local function of(cp) return seconds(cp, { bandwidth = 1e300, pointwise = 1 }) end
        local own = 64 * s.elements * 8
        assert.near(own / 2, of(2), 1e-3)
        assert.near(own / 4 + 64 * s.key_elements * 8 / 4, of(4), 1e-3)
    end)
end)

describe("backward through GDN", function()
    -- Of two spans the second takes a state: its rows' part in the gradient comes first.
    it("begins with what takes a state, not with what hands one on alone", function()
        local prices = prices_of { cp = 2, stream = { lengths = { 64 } }, model = gdn_model(),
            cluster = cluster_of { efficiency = { gdn_backward = { max = 1e-300 } } } }
        local rows = 32 * 4
        assert.near(rows * (sizes.gdn_backward(8, 8, 4) + sizes.gdn_summary_backward(8, 8, 4)),
            (prices:mixer(1, "contiguous", "chunkwise")), 1e-3)
    end)

    -- 5 products and 12 kernels of rows, then 2 of chunks; twice as many backward.
    it("starts twice the kernels of forward", function()
        local prices = prices_of { cp = 1, stream = { lengths = { 64 } }, model = gdn_model(),
            cluster = cluster_of { host = { launch = 1 } } }
        local _, detail = prices:mixer(1, "contiguous")
        local forward, backward = unpack(detail.passes)
        assert.near(5 + 12 + 2, forward.compute, 1e-9)
        assert.near(2 * (5 + 12 + 2), backward.compute, 1e-9)
    end)
end)

-- Each column is a product of its own to a core, with a block that is not full.
it("columns of a batch have a span of queries each", function()
    local function attention(batch)
        local prices = prices_of { cp = 1, stream = { seqlen = 8, batch = batch },
            backward = false, cluster = cluster_of { flops = { f64 = 1 },
                efficiency = { attention_forward = { half = 1e9 } } } }
        return (prices:mixer(2, "contiguous"))
    end
    assert.near(3 * attention(1), attention(3), 1e-6 * attention(3))
    assert.is_true(attention(1) > 1e9)
end)

-- A layer without a feed-forward network has one norm and one residual sum, not two.
it("layers without a network have half of the pointwise work", function()
    local function moved(mlp)
        local model = { schedule = cplab.schedule.list { "gdn" }, mlp = mlp }
        local prices = prices_of { cp = 1, stream = { lengths = { 64 } }, model = model_of(model),
            cluster = cluster_of { memory = { bandwidth = 1, pointwise = 1e300 } } }
        return (prices:rest(1, "contiguous"))
    end
    assert.near(3 * 64 * 5 * 64 * 8, moved(false), 1e-6) -- rows, elements, hidden, f64
    assert.near(2 * moved(false), moved { width = 96 }, 1e-6)
end)

it("bytes of a rank are those of its busier direction", function()
    local load, nodes = exchange.load(3), { [0] = 0, 0, 0 }
    exchange.send(load, nodes, 0, 1, 5)
    exchange.send(load, nodes, 2, 1, 7)
    local x = exchange.price(cluster_of {}, load, 2)
    assert.same({ 10, 24, 14, 24, 2 }, { x.bytes[0], x.bytes[1], x.bytes[2], x.total_bytes,
        x.messages[1] })
end)

it("gradients of an embedding that is the head, too, are summed once", function()
    local function bytes(tied)
        local prices = prices_of { cp = 2, stream = { lengths = { 64 } },
            model = model_of { tied = tied } }
        return select(2, prices:ends("contiguous", "contiguous")).bytes
    end
    assert.equal(100 * 64 * 8, bytes(false) - bytes(true)) -- vocab, hidden, f64; 2 (n - 1) / n = 1
end)

describe("a conversion of windows", function()
    local function prices_at(tp, changes)
        return prices_of { cp = 4, tp = tp, stream = { lengths = { 64, 32 } }, backward = false,
            cluster = cluster_of(changes or {}) }
    end

    it("to a mixer costs what the exchange takes longer than the gather alone", function()
        local prices = prices_at(2, { links = { inside = { beta = 1 } } })
        local function seconds(from)
            return exchange.to_shards(prices.env, prices.counts:window_overlap(from, "zigzag"),
                64 * 8).seconds
        end
        local alone = seconds "zigzag"
        assert.is_true(alone > 0 and seconds "contiguous" > alone)
        assert.near(seconds "contiguous" - alone,
            (prices:convert("contiguous", "zigzag", "there")), 1e-9)
        assert.equal((prices:convert("contiguous", "zigzag", "there")),
            (prices:convert("zigzag", "contiguous", "back")))
    end)

    it("packs a window's share of the rows", function()
        local changes = { memory = { bandwidth = 1, pack = 4 } }
        local whole = prices_at(1, changes):convert("contiguous", "zigzag", "there")
        for _, place in ipairs { "there", "residual" } do
            assert.near(whole / 2, (prices_at(2, changes):convert("contiguous", "zigzag", place)),
                1e-6)
        end
        local prices = prices_at(1)
        assert.matches('unknown place "their"; there are residual, there, back',
            support.message_of(prices.convert, prices, "contiguous", "zigzag", "their"), 1, true)
    end)
end)
