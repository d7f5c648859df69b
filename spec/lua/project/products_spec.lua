-- What the fit times is what it says that it times.
local pointwise = require "cplab.project.pointwise"
local products = require "cplab.project.products"

describe("the products of a fit", function()
    it("count the FLOP of one of three, and can run for long", function()
        local call, flop = products.new("f32", 16, 8, 24)
        assert.equal(2 * 16 * 8 * 24, flop)
        for _ = 1, 200 do call() end
    end)

    it("go round over copies that fill the cache", function()
        assert.equal(64, products.copies(1))
        assert.equal(16, products.copies(2 ^ 20))
        assert.equal(1, products.copies(2 ^ 30))
        local seen = {}
        local call = products.rotating(3, function(i)
            return function() seen[#seen + 1] = i end
        end)
        for _ = 1, 4 do call() end
        assert.same({ 1, 2, 3, 1 }, seen)
    end)
end)

describe("the pointwise kernels of a fit", function()
    it("count bytes as prices do: forward once, backward twice", function()
        local sizes = require "cplab.cost.sizes"
        local call, bytes = pointwise.new(4, 128)
        local gdn = sizes.gdn({ key_heads = 2, value_heads = 2, key_dim = 64, value_dim = 64,
            hidden = 128, chunk = 64, conv = 4 }, 1)
        local mlp = sizes.ffn("mlp", { hidden = 128, width = 384 }, 1)
        -- The gates, four numbers a head, are left out.
        assert.equal(3 * 4 * 4 * (gdn.elements - 4 * 2 + mlp.elements), bytes)
        call()
    end)
end)
