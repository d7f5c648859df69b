-- The attention core: what is counted, and the rows that are computed the naive way.
local arrays = require "cplab.bench.arrays"
local cores = require "cplab.bench.core"
local kind = require "cplab.bench.gqa_core"

local function case(changes)
    local c = { tokens = 37, heads = 6, kv_heads = 2, head_dim = 5, window = 0, dtype = "f64",
        small = 20 }
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

describe("the core of bench gqa", function()
    it("counts the pairs that are seen", function()
        for _, tokens in ipairs { 1, 2, 7, 30 } do
            for _, window in ipairs { 0, 1, 3, 30, 99 } do
                local n = 0
                for i = 1, tokens do
                    for j = 1, i do
                        if window == 0 or i - j < window then n = n + 1 end
                    end
                end
                assert.equal(n, kind.pairs_of(tokens, window), tokens .. " " .. window)
            end
        end
    end)

    it("counts 4 D forward and 8 D backward, a head and pair", function()
        assert.same({ 4 * 5 * 6 * 703, 8 * 5 * 6 * 703 }, { kind.flops(case()) })
    end)

    it("looks at the ends and the middle, each row once", function()
        for _, tokens in ipairs { 1, 2, 3, 1000 } do
            local list, seen = kind.sample(tokens), {}
            for _, row in ipairs(list) do
                assert.is_true(row >= 0 and row < tokens and not seen[row])
                seen[row] = true
            end
            assert.is_true(seen[0] and seen[tokens - 1] and seen[math.floor(tokens / 2)])
        end
    end)

    it("takes a small case of the same shape", function()
        local small = kind.small(case { window = 30 })
        assert.same({ 20, 8, 6, 2, 5 }, { small.tokens, small.window, small.heads, small.kv_heads,
            small.head_dim })
        assert.same({ 20, 0 }, { kind.small(case { tokens = 25 }).tokens,
            kind.small(case()).window })
        assert.equal(3, kind.small(case { tokens = 3 }).tokens)
    end)

    for _, window in ipairs { 0, 2, 7, 100 } do
        it("knows what rows must be, by itself: window " .. window, function()
            local c = case { window = window }
            local reference = run(c, run(c))
            local error = kind.error(reference, kind.expected(reference))
            assert.is_true(error < 1e-13, tostring(error))
        end)
    end

    it("sees one wrong number in a row that it looks at, and which array it is in", function()
        for _, name in ipairs { "o", "lse", "dq", "dk", "dv" } do
            local core = run(case())
            local expected = kind.expected(core)
            local data = arrays.pointer(core[name])
            data[0] = data[0] + 0.1
            local error, where = kind.error(core, expected)
            assert.is_true(error > 1e-3)
            assert.equal(name, where)
            data[0] = 0 / 0
            error, where = kind.error(core, expected)
            assert.is_true(error ~= error)
            assert.equal(name, where)
        end
    end)

    it("is wrong where a fault says so, in the small case or in the large one", function()
        for fault, sees in pairs { scale = { true, true }, backward = { true, true },
            handoff = { false, true } } do
            local small = run(kind.small(case { fault = fault }))
            local reference = run(small.case, small)
            local large = run(case { fault = fault, is_large = true })
            assert.same(sees, { small:error(reference) > 1e-6,
                kind.error(large, kind.expected(large)) > 1e-6 }, fault)
        end
    end)
end)
