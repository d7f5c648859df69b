-- The state of a GDN layer: tokens that come in parts give what they give at once, outputs and all
-- gradients, in f64 at 1e-12, wherever each part runs. Decoding is the part of one token.
local clib = require "clib"
local gdn = require "spec.support.gdn_layer"
local ranks = require "spec.support.ranks"
local C, ffi = clib.C, clib.ffi

local BOUND = 1e-12

local function check(cp, cases)
    for _, wrong in ipairs(ranks.run(cp, "spec.support.gdn_cases",
        { cases = cases, bound = BOUND }, 120)) do
        assert.same({}, wrong)
    end
end

local function padded(list, multiple)
    local lengths = {}
    for i, n in ipairs(list) do lengths[i] = math.ceil(n / multiple) * multiple end
    return lengths
end

local WAYS = {
    { "contiguous", "chunkwise" }, { "zigzag", "headwise" }, { "mirror", "chunkwise" },
    { "striped", "headwise" }, { "snake", "chunkwise" }, { "zigzag", "chunkwise" },
    { "striped", "chunkwise" },
}

-- A case of parts; part k runs in way first + k.
local function case_of(name, cp, lists, first, changes)
    local case = { name = name, parts = {}, states = true }
    for k, list in ipairs(lists) do
        local way = WAYS[(first + k) % #WAYS + 1]
        case.parts[k] = { kind = way[1], cp_mode = way[2], lengths = padded(list, 2 * cp),
            real = list }
    end
    for key, value in pairs(changes or {}) do case[key] = value end
    return case
end

-- Sequences of 7, 9, 0 and 4 tokens: cut in two everywhere, in parts shorter than the tail, with
-- sequences that rest, and token by token.
local PARTS = {
    { { 7, 9, 0, 4 } },
    { { 3, 0, 0, 4 }, { 4, 9, 0, 0 } },
    { { 1, 2, 0, 0 }, { 1, 0, 0, 1 }, { 5, 7, 0, 3 } },
    { { 1, 1, 0, 1 }, { 1, 1, 0, 1 }, { 0, 1, 0, 1 }, { 5, 6, 0, 1 } },
    { { 0, 0, 0, 0 }, { 7, 9, 0, 4 }, { 0, 0, 0, 0 } },
}

describe("the state of a GDN layer", function()
    for _, cp in ipairs { 1, 2, 3, 4, 5, 8 } do
        it(("on %d ranks: parts equal the whole, in any layout and mode"):format(cp), function()
            local cases = {}
            for i, lists in ipairs(PARTS) do
                for first = 1, #WAYS do
                    cases[#cases + 1] = case_of(("parts %d, way %d"):format(i, first), cp, lists,
                        first, { config = { key_heads = cp, value_heads = 2 * cp },
                            reference_key = "all", poison = first % 2 == 0 })
                end
            end
            check(cp, cases)
        end)
    end

    -- syv-ai#43: a state lost between two parts of a prefill.
    it("[report 39] holds at every split of a sequence, also without a convolution or a wide one",
        function()
            for _, conv in ipairs { 1, 2, 4, 7 } do
                local cases = {}
                for m = 0, 9 do
                    cases[#cases + 1] = case_of(("conv %d, split at %d"):format(conv, m), 4,
                        { { m, 2 }, { 9 - m, 3 } }, m, { config = { conv = conv },
                            reference_key = "all" })
                end
                check(4, cases)
            end
            -- The second part alone has neither state nor rows for the convolution.
            for _, config in ipairs { { conv = 4 }, { conv = 1 } } do
                local whole = gdn.run(C.cpl_comm_self(), { lengths = { 9 }, states = true,
                    config = config })
                local part = case_of("part", 1, { { 4 }, { 5 } }, 0, { config = config })
                part.parts = { part.parts[2] }
                local alone = gdn.run(C.cpl_comm_self(), part)
                assert.is_true(math.abs(alone.y[4 - 4][1] - whole.y[4][1]) > 1e-3)
            end
        end)

    it("is copied where ranks share a key head", function()
        local cases = {}
        for i, lists in ipairs(PARTS) do
            cases[i] = case_of("parts " .. i, 4, lists, i, { reference_key = "all",
                config = { key_heads = 2, value_heads = 8 } })
        end
        check(4, cases)
    end)

    it("carries over thousands of tokens of decay near 1: a lost state is seen", function()
        local lists = { { 90 }, { 1 }, { 33 } }
        local p = case_of("long", 1, lists, 0, { a_log = -12 })
        local whole = gdn.reference(p)
        assert.is_true(gdn.distance(gdn.run(C.cpl_comm_self(), p), whole) <= BOUND)
        -- Without the states of before, the last part starts from nothing.
        local lost = gdn.run(C.cpl_comm_self(), { lengths = { 33 }, a_log = -12, states = true })
        local worst = 0
        for t = 0, 32 do
            for c = 1, 6 do
                worst = math.max(worst, math.abs(lost.y[t][c] - whole.y[91 + t][c]))
            end
        end
        assert.is_true(worst > 0.01)
    end)

    -- The state that comes in is one more input: its gradient against central differences, which
    -- err by about h^2 here and 1e-16 / h of rounding.
    -- FLA#1140, FLA#1141: a gradient in the wrong slot, or none, where a sequence is short.
    it("[report 24] has the gradient that differences of the loss say", function()
        local p = { lengths = { 5, 0, 2 }, states = true }
        local result = gdn.run(C.cpl_comm_self(), p)
        local h = 1e-6
        for name, gradient in pairs { state = "d_state", tail = "d_tail" } do
            for i = 1, #result.lists[gradient], 13 do
                local function loss(change)
                    return gdn.loss(C.cpl_comm_self(), p, name, i, change)
                end
                local expected = (loss(h) - loss(-h)) / (2 * h)
                assert.is_true(math.abs(expected - result.lists[gradient][i]) <= 1e-7,
                    ("%s[%d]: differences %.10g, backward %.10g"):format(name, i, expected,
                        result.lists[gradient][i]))
                -- The next slot's is another one.
                local other = result.lists[gradient][i + 32] or result.lists[gradient][i - 32]
                assert.is_true(other == 0 or math.abs(expected - other) > 1e-6)
            end
        end
    end)

    it("may come in and go out in the same tensors", function()
        for _, list in ipairs { { 5, 0, 1 }, { 1, 1, 2 }, { 0, 0, 0 } } do
            local apart = gdn.forward_states(C.cpl_comm_self(), { lengths = list }, false)
            local same = gdn.forward_states(C.cpl_comm_self(), { lengths = list }, true)
            assert.same(apart, same)
        end
    end)

    it("leaves all ranks alike where memory runs out on one, in either mode", function()
        for _, cp_mode in ipairs { "chunkwise", "headwise" } do
            local of_ranks = ranks.run(3, "spec.support.gdn_memory", {
                ask = "prepare_without_memory", lengths = { 12, 0, 7 }, real = { 11, 0, 7 },
                kind = "custom", cp_mode = cp_mode, config = { key_heads = 3, value_heads = 6 },
                ranks = { { { 0, 8 } }, { { 8, 8 } }, { { 16, 3 } } } })
            assert.is_true(#of_ranks[1] > 20)
            for rank = 2, 3 do assert.same(of_ranks[1], of_ranks[rank]) end
        end
    end)

    it("is refused where it does not fit, or where there is none", function()
        local layers = require "spec.support.layers"
        local live = layers.live("gdn", { lengths = { 5, 4 } })
        local config = { key_heads = 2, value_heads = 4, key_dim = 3, value_dim = 5, conv = 4 }
        local function status(state)
            clib.check(C.cpl_layer_gdn_state(live.layer, state, nil))
            return C.cpl_layer_prepare(live.layer, "gdn", live.place)
        end
        assert.equal(C.CPL_OK, status(gdn.state_tensors(nil, config, 2).struct))
        assert.equal(C.CPL_MISMATCH, status(gdn.state_tensors(nil, config, 3).struct))
        assert.equal("gdn: the state that comes in must be f64 of 2 sequences x 60, got f64 of "
            .. "3 x 60", ffi.string(C.cpl_last_error()))
        local short = gdn.state_tensors(nil, config, 2)
        short.struct.tail = nil
        assert.equal(C.CPL_MISMATCH, status(short.struct))
        assert.equal(C.CPL_OK, status(nil))
        local mlp = layers.live("mlp", { lengths = { 5 } })
        assert.equal(C.CPL_INVALID, C.cpl_layer_gdn_state(mlp.layer, nil, nil))
        assert.equal("mlp: only gdn layers have a state", ffi.string(C.cpl_last_error()))
    end)
end)
