-- Rates that prices tell apart: kernels that compute on what they move, and all gradients that are
-- swept at the speed of memory.
local clusters = require "cplab.cluster"
local cost = require "cplab.cost"
local cplab = require "cplab"

local SLOW = 1e9
local PLAIN = clusters.load("h100"):with { memory = { bandwidth = 1e12, half = 0 },
    host = { launch = 0, sync = 0 } }

local function prices(cluster, n_layers)
    return cost.new {
        cluster = cluster, cp = 1, stream = cplab.stream.thd { lengths = { 64 } },
        model = cplab.model {
            schedule = cplab.schedule.pattern("G*", n_layers or 2), policy = "contiguous",
            hidden = 64, vocab = 32, gqa = { heads = 4, kv_heads = 2, head_dim = 16 },
            gdn = { key_heads = 2, value_heads = 2, key_dim = 16, value_dim = 16 },
            mlp = { width = 128 },
        },
    }
end

local function difference(name, ...)
    local fast = prices(PLAIN)
    local slow = prices(PLAIN:with { memory = { pointwise = SLOW } })
    return slow[name](slow, ...) - fast[name](fast, ...)
end

describe("pointwise kernels", function()
    it("are as fast as memory where the cluster does not say otherwise", function()
        assert.is_nil(PLAIN.memory.pointwise)
        assert.equal(PLAIN:move(1e6, 1), PLAIN:pointwise(1e6, 1))
        local slow = PLAIN:with { memory = { pointwise = SLOW } }
        assert.near(1e6 / SLOW, slow:pointwise(1e6, 1), 1e-15)
        assert.equal(PLAIN:move(1e6, 1), slow:move(1e6, 1))
    end)

    it("are in mixers, networks and the loss, forward once and backward twice", function()
        local rate, rows = 1 / SLOW - 1 / 1e12, 64 * 4
        assert.near(3 * rows * 3 * 128 * rate, difference("rest", 1, "contiguous"), 1e-12)
        assert.near(rows * 2 * 32 * rate, difference("ends", "contiguous", "contiguous"), 1e-12)
        for layer = 1, 2 do
            assert.truthy(difference("mixer", layer, "contiguous") > 3 * rows * 64 * rate)
        end
    end)

    it("are not in conversions", function()
        assert.equal(0, difference("convert", "contiguous", "zigzag"))
    end)
end)

describe("gradients", function()
    it("are written once and read once at the speed of memory", function()
        local two, four = prices(PLAIN, 2), prices(PLAIN, 4)
        local n = 2 * 3 * 64 * 128 + 64 * (3 * 4 + 2 * 2) * 16 -- two networks and a GQA layer
            + 64 * (2 * 32 + 3 * 32 + 2 * 2) -- and a GDN layer
        assert.near(2 * n * 4 / 1e12, four:ends("contiguous", "contiguous")
            - two:ends("contiguous", "contiguous"), 1e-15)
    end)
end)
