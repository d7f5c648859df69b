-- Long sequences: the lists that flash-linear-attention tests under context parallelism
-- (gdn_and_attention.md, sections 6.4 and 3.4), so that each pair of a list, a mode and a layout is
-- there, and one sequence of 65,536 tokens for GDN alone. All equal one rank in f64 at 1e-12.
local labs = require "spec.support.labs"
local sanitized = require "spec.support.sanitized"

local BOUND = 1e-12

-- Ranks, and lengths.
local LISTS = {
    { 2, { 3000, 4000, 3240 } }, { 2, { 5120, 5120 } },
    { 2, { 1000, 1500, 2000, 2500, 1240, 1000, 1000 } },
    { 4, { 7000, 3240 } }, { 4, { 10240 } },
}
-- Those of its zigzag alone.
local ZIGZAG_LISTS = {
    { 2, { 10240 } }, { 4, { 1500, 2600, 3000, 3140 } }, { 4, { 2560, 2560, 2560, 2560 } },
}
for _, lists in ipairs { LISTS, ZIGZAG_LISTS } do
    for _, list in ipairs(lists) do
        for i, n in ipairs(list[2]) do list[2][i] = sanitized.length(n) end
    end
end
-- All layers run in one layout; with balanced attention GDN is contiguous.
local LAYOUTS = { "contiguous", "zigzag", "mirror", "snake", "striped", "balanced" }
local GDN_MODES = { "chunkwise", "headwise" }
local GQA_MODES = { "gather", "p2p", "a2a", "a2a+p2p" }

local function policy_of(layout)
    return layout == "balanced" and layout or { layout, layout, layout }
end

-- Two value heads for each key head; a small layer, as the lengths are the point.
local function model(cp, layout, list, window)
    return {
        list = list, policy = policy_of(layout), hidden = 8, vocab = 17, dtype = "f64", seed = 3,
        gqa = { heads = cp, kv_heads = cp / 2, head_dim = 4, rotary_dim = 2, rope_theta = 100,
            window = window },
        gdn = { key_heads = 2, value_heads = 4, key_dim = 3, value_dim = 5, conv = 4 },
    }
end

local function gqa_of(mode)
    return { "gqa", cp_mode = mode, a2a = mode == "a2a+p2p" and 2 or nil }
end

local function parity(real, cp, m, options)
    local metrics = labs.parity_step(labs.padded(real, 2 * cp), m, cp, options)
    assert.equal(0, metrics.wrong_rows)
    return math.max(metrics.parity_fwd, metrics.parity_grad), metrics
end

local function check(list, layout, i)
    local cp, real = list[1], list[2]
    local gdn, gqa = GDN_MODES[i % 2 + 1], GQA_MODES[i % 4 + 1]
    -- In striped each token is a hop of the chain: chunkwise meets it in one list.
    gdn = layout == "striped" and list ~= LISTS[1] and "headwise" or gdn
    it(("%s on %d ranks in %s, %s and %s"):format(table.concat(real, ","), cp, layout, gdn, gqa),
        function()
            local layers = { { "gdn", cp_mode = gdn }, gqa_of(gqa) }
            assert.is_true(parity(real, cp, model(cp, layout, layers, 100)) <= BOUND)
        end)
end

describe("a long list equals one rank:", function()
    for i, list in ipairs(LISTS) do
        for j, layout in ipairs(LAYOUTS) do check(list, layout, i + j) end
    end
    for i, list in ipairs(ZIGZAG_LISTS) do
        for j, layout in ipairs { "zigzag", "snake" } do check(list, layout, i + j) end
    end

    -- Pairs of a query and a key are what takes time: without a window in three lists, a mode each.
    for i, case in ipairs { { LISTS[3], "zigzag" }, { LISTS[1], "balanced" },
        { ZIGZAG_LISTS[3], "striped" } } do
        local cp, real = case[1][1], case[1][2]
        it(("%s on %d ranks in %s, all keys"):format(table.concat(real, ","), cp, case[2]),
            function()
                local m = model(cp, case[2], { gqa_of(GQA_MODES[i + 1]) })
                assert.is_true(parity(real, cp, m) <= BOUND)
            end)
    end
end)

describe("65,536 tokens of one sequence", function()
    local function step(faults)
        local m = model(8, "zigzag", { "gdn" })
        m.gdn = { key_heads = 1, value_heads = 1, key_dim = 16, value_dim = 16, conv = 4 }
        return parity({ sanitized.length(65536) }, 8, m, { faults = faults })
    end

    it("through a GDN layer on 8 ranks in zigzag equal one rank", function()
        local worst, metrics = step()
        assert.is_true(worst <= BOUND)
        -- A state a hop, there and back, over 14 hops that leave a rank.
        assert.equal(2 * 14 * 16 * 16 * 8, metrics.state_bytes)
    end)

    it("show a state that one rank of the 8 drops", function()
        assert.is_true(step { drop_handoff = { rank = 3 } } > 1e-6)
    end)
end)
