-- The core of the gated delta rule: what is counted, and the head that is computed token by token.
local arrays = require "cplab.bench.arrays"
local cores = require "cplab.bench.core"
local kind = require "cplab.bench.gdn_core"

local function case(changes)
    local c = { tokens = 300, key_heads = 2, value_heads = 4, key_dim = 5, value_dim = 3,
        chunk = 64, dtype = "f64", small = 150 }
    for name, value in pairs(changes or {}) do c[name] = value end
    return c
end

local function run(c, given)
    local core = cores.new(kind, c, given)
    core:poison()
    core:forward()
    core:backward()
    return core
end

describe("the core of bench gdn", function()
    it("counts by the formulas at chunk 64, whichever chunk runs", function()
        for _, chunk in ipairs { 64, 7 } do
            local forward, backward = kind.flops(case { tokens = 1, value_heads = 1, key_heads = 1,
                key_dim = 128, value_dim = 128, chunk = chunk })
            assert.is_true(math.abs(forward / 1.82e5 - 1) < 0.005)
            assert.is_true(math.abs(backward / 5.08e5 - 1) < 0.005)
        end
        local forward, backward = kind.flops(case())
        assert.same({ 300 * 4 * (6 * 15 + 128 * 21 + 4096 / 3),
            300 * 4 * (16 * 15 + 128 * 60 + 4 * 4096) }, { forward, backward })
    end)

    it("knows what a head must be over parts, as the reference over the whole", function()
        local c = case()
        local reference = run(c, run(c))
        local error = kind.error(reference, kind.expected(reference))
        assert.is_true(error < 1e-13, tostring(error))
    end)

    it("looks at a head that remembers: its first tokens still count at the end", function()
        local core = run(case { tokens = 70 })
        local expected = kind.expected(core)
        local data = arrays.pointer(core.v)
        for i = 0, 12 * 20 - 1 do data[i] = -data[i] end
        core:forward()
        local last = 69 * 12
        local column = expected[1].at
        local changed = 0
        for j = 0, expected[1].width - 1 do
            local now = arrays.pointer(core.o)[last + column + j]
            local was = arrays.pointer(expected[1].expected)[69 * expected[1].width + j]
            changed = math.max(changed, math.abs(now - was))
        end
        assert.is_true(changed > 1e-6, tostring(changed))
    end)

    it("sees one wrong number, and which array it is in", function()
        for _, name in ipairs { "o", "dq", "dk", "dv", "dg", "dbeta" } do
            local core = run(case { tokens = 70 })
            local expected = kind.expected(core)
            for _, entry in ipairs(expected) do
                if entry.name == name then
                    arrays.pointer(core[name])[entry.at] = 0 / 0
                end
            end
            local error, where = kind.error(core, expected)
            assert.is_true(error ~= error)
            assert.equal(name, where)
        end
    end)

    it("is wrong where a fault says so, in the small case or in the large one", function()
        for fault, sees in pairs { scale = { true, true }, backward = { true, false },
            handoff = { false, true } } do
            local small = run(kind.small(case { fault = fault }))
            local reference = run(small.case, small)
            local large = run(case { fault = fault, is_large = true })
            local large_is_wrong = kind.error(large, kind.expected(large)) > 1e-6
            assert.equal(sees[1], small:error(reference) > 1e-6, fault)
            -- The last value head, whose gradient is spoilt, may be the one that is looked at.
            if fault ~= "backward" then assert.equal(sees[2], large_is_wrong, fault) end
        end
    end)
end)
