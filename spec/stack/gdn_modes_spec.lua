-- The cp_modes of GDN in a stack: a headwise layer runs where the model lives, whatever that is;
-- nothing is converted around it; and the numbers are those of one rank.
local labs = require "spec.support.labs"

local BOUND = 1e-12

local LISTS = { { 24 }, { 7, 9, 8 }, { 1, 1, 1, 21 }, { 3, 3, 2, 2, 3, 3 }, { 17, 0, 7 } }

local function gdn(cp, changes)
    local t = { key_heads = cp, value_heads = 2 * cp, key_dim = 5, value_dim = 6, conv = 4,
        chunk = 4, cp_mode = "headwise" }
    for name, value in pairs(changes or {}) do t[name] = value end
    return t
end

local function check(real, cp, changes)
    local model = labs.model { gdn = gdn(cp) }
    for name, value in pairs(changes) do model[name] = value end
    local m = labs.parity_step(labs.padded(real, 2 * cp), model, cp)
    assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND,
        ("%g, %g at %s"):format(m.parity_fwd, m.parity_grad, tostring(m.parity_grad_where)))
    assert.equal(0, m.wrong_rows)
    assert.equal(0, m.routes_built_in_step)
    return m
end

describe("headwise GDN layers in a stack", function()
    for _, policy in ipairs { "zigzag", "contiguous", "mirror", "balanced", "native" } do
        for _, cp in ipairs { 2, 3, 4, 5, 8 } do
            it(("equal one rank: %s at cp %d"):format(policy, cp), function()
                for _, real in ipairs(LISTS) do check(real, cp, { policy = policy }) end
            end)
        end
    end

    it("are not converted around, only the attention is", function()
        local cp = 4
        local function counts(cp_mode, policy)
            return check({ 64 }, cp, { policy = policy, gdn = gdn(cp, { cp_mode = cp_mode }) })
        end
        -- GG*G: three GDN layers, one of attention.
        assert.equal(6, counts("chunkwise", "zigzag").conversions_fwd)
        assert.equal(0, counts("headwise", "zigzag").conversions_fwd)
        assert.equal(2, counts("chunkwise", "mirror").conversions_fwd)
        assert.equal(2, counts("headwise", "mirror").conversions_fwd)
        assert.equal(0, counts("headwise", "zigzag").conversion_bytes_bwd)
        assert.equal(0, counts("headwise", "zigzag").state_bytes)
        -- Routes: labels, keys, the whole stream.
        assert.equal(3, counts("headwise", "zigzag").routes_built)
    end)

    it("[report 56] may stand beside chunkwise ones: each layer says its own", function()
        local function layers(...)
            local m = labs.model { policy = "zigzag", gdn = gdn(4) }
            m.list, m.pattern, m.gdn.cp_mode = { ... }, nil, nil
            local metrics = labs.parity_step(labs.padded({ 17, 0, 7 }, 8), m, 4)
            assert.is_true(metrics.parity_fwd <= BOUND and metrics.parity_grad <= BOUND)
            assert.equal(0, metrics.wrong_rows)
            return metrics.conversions_fwd
        end
        local headwise = { "gdn", cp_mode = "headwise" }
        assert.equal(2, layers(headwise, "gdn", "gqa"))
        assert.equal(4, layers("gdn", "gdn", headwise))
        assert.equal(0, layers(headwise, headwise, "gqa"))
    end)

    it("are shown where they run", function()
        local cplab, outline = require "cplab", require "cplab.outline"
        local function shown(entries)
            local fields = labs.model { policy = "zigzag", gdn = gdn(2, { cp_mode = "chunkwise" }) }
            fields.schedule, fields.pattern = cplab.schedule.list(entries), nil
            local stream = cplab.stream.thd { lengths = { 16 } }
            local lines = outline.lines(stream, cplab.model(fields), 2)
            return lines[3] .. "\n" .. lines[4]
        end
        local headwise = { "gdn", cp_mode = "headwise" }
        assert.equal("modes        GQA gather (1); GDN chunkwise (2)\n"
            .. "layouts      model zigzag, GQA zigzag, GDN contiguous",
            shown { "gdn", "gdn", "gqa" })
        assert.equal("modes        GQA gather (1); GDN headwise (1)\n"
            .. "layouts      model zigzag, GQA zigzag, GDN zigzag",
            shown { headwise, "gqa" })
        assert.equal("modes        GDN chunkwise (1), headwise (2)\n"
            .. "layouts      model zigzag, GDN contiguous and zigzag",
            shown { "gdn", headwise, headwise })
    end)

    it("hold in f32 at 1e-4", function()
        local m = labs.parity_step(labs.padded({ 24, 30 }, 8),
            labs.model { policy = "zigzag", dtype = "f32", gdn = gdn(4) }, 4)
        assert.is_true(m.parity_fwd <= 1e-4 and m.parity_grad <= 1e-4)
        assert.is_true(m.parity_grad > 0)
    end)

    it("are refused with the numbers where the heads do not divide", function()
        local result, message = labs.run {
            stream = { lengths = { 24 } }, cp = 3, model = labs.model { gdn = gdn(4) },
            calls = { { "step", {} } },
        }
        assert.is_nil(result)
        assert.truthy(message:find("layers.0.gdn: headwise with 8 value_heads, not a multiple of "
            .. "3 ranks", 1, true), message)
    end)

    it("see a row in the wrong place, though they take any", function()
        local m, result = labs.parity_step({ lengths = { 32, 16 }, real = { 30, 13 } },
            labs.model { policy = "zigzag", gdn = gdn(4) }, 4,
            { faults = { swap_runs = { rank = 2 } } })
        assert.is_true(m.wrong_rows > 0)
        assert.is_true(m.parity_fwd > 1e-3)
        assert.truthy(result.checks[1].name:match "^trace: ")
    end)

    -- FLA#740, FLA#1179: chains of f32 over many hops. One rounding is 6e-8; the states of 16
    -- hops through four layers stay below 1e-4.
    it("chains of f32 do not lose the states of far away", function()
        local m = labs.parity_step({ lengths = { 512 } },
            labs.model { policy = "native", dtype = "f32" }, 8)
        assert.is_true(m.parity_fwd <= 1e-4 and m.parity_grad <= 1e-4)
    end)
end)
