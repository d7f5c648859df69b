-- The mistakes of others with GDN under context parallelism (gdn_and_attention.md, section 7), each
-- with a small input that shows it, and planted faults or wrong ways that the specs must see.
-- spec/traps/reports_gdn.lua lists them all.
local cplab = require "cplab"
local ranks = require "spec.support.ranks"
local said = require "spec.support.message"

local MODES = { "chunkwise", "headwise" }
local FAR = 1000 -- rows are known by sequence * 1000 + offset
local BIT = { changes = { x = { [3] = 1 + 2 ^ -52 } } } -- a row changed in its last bits

local function padded(list, multiple)
    local lengths = {}
    for i, n in ipairs(list) do lengths[i] = math.ceil(n / multiple) * multiple end
    return lengths
end

local function case_of(cp, list, kind, cp_mode, changes)
    local case = { lengths = padded(list, 2 * cp), real = list, kind = kind, cp_mode = cp_mode }
    for name, value in pairs(changes or {}) do case[name] = value end
    return case
end

-- The results of all ranks, by case: rows of all ranks together, gradients and distances of rank 0
-- (gradients are the same on all).
local function run(cp, cases)
    local of_ranks = ranks.run(cp, "spec.support.gdn_runs", cases, 120)
    local merged = of_ranks[1]
    for rank = 2, cp do
        for i, result in ipairs(of_ranks[rank]) do
            for _, name in ipairs { "y", "dx" } do
                for key, row in pairs(result[name]) do merged[i][name][key] = row end
            end
            merged[i].padding = merged[i].padding + result.padding
            merged[i].distance = math.max(merged[i].distance, result.distance)
        end
    end
    return merged
end

local function right(cp, cases)
    for i, result in ipairs(run(cp, cases)) do
        assert.is_true(result.distance <= 1e-12,
            ("case %d: %g at %s"):format(i, result.distance, result.where))
        assert.equal(0, result.padding)
    end
end

local function no_nan(t)
    for _, x in pairs(t) do
        if type(x) == "table" then no_nan(x) else assert.is_true(x == x and x ~= math.huge) end
    end
end

describe("a planted fault in a GDN layer", function()
    it("a hand-off dropped is seen, in the output and in the gradients", function()
        local wrong, clean = unpack(run(3, {
            case_of(3, { 17, 0, 7 }, "zigzag", "chunkwise",
                { faults = { rank = 1, drop_handoff = 1 } }),
            case_of(3, { 17, 0, 7 }, "zigzag", "chunkwise"),
        }))
        assert.is_true(wrong.distance > 1e-3)
        assert.is_true(clean.distance <= 1e-12)
    end)

    -- FLA#833, FLA#812; prime-rl#3042: key head j of a rank is floor(j Hk / W), not j mod Hk.
    it("heads tiled instead of repeated are seen where ranks share them", function()
        local config = { key_heads = 2, value_heads = 8 }
        local wrong, clean = unpack(run(4, {
            case_of(4, { 17, 0, 7 }, "mirror", "headwise",
                { config = config, faults = { rank = 2, tile_heads = 1 } }),
            case_of(4, { 17, 0, 7 }, "mirror", "headwise", { config = config }),
        }))
        assert.is_true(wrong.distance > 1e-3)
        assert.is_true(clean.distance <= 1e-12)
    end)

    it("another rank's slice of the convolution's weight is seen", function()
        local wrong, clean = unpack(run(2, {
            case_of(2, { 9 }, "zigzag", "headwise", { faults = { rank = 1, first_slice = 1 } }),
            case_of(2, { 9 }, "zigzag", "headwise"),
        }))
        assert.is_true(wrong.distance > 1e-3)
        assert.is_true(clean.distance <= 1e-12)
    end)
end)

describe("isolation of documents", function()
    -- NeMo-Automodel#2147, trl#6843, FLA#774: perturb a document; the others keep their bits. At cp
    -- 3 the documents of 7 and 9 tokens touch inside a run and are cut by ranks.
    for _, cp_mode in ipairs(MODES) do
        for _, kind in ipairs { "contiguous", "zigzag", "striped" } do
            it(("[reports 32, 35] is exact: %s in %s"):format(cp_mode, kind), function()
                local lists, factor = { 7, 9, 0, 8 }, {}
                for t = 0, 8 do factor[FAR + t] = 1.5 end
                local config = { key_heads = 3, value_heads = 6 }
                local before, after = unpack(run(3, {
                    case_of(3, lists, kind, cp_mode, { config = config }),
                    case_of(3, lists, kind, cp_mode,
                        { config = config, changes = { x = factor, dy = factor } }),
                }))
                for _, sequence in ipairs { 0, 3 } do
                    for t = 0, lists[sequence + 1] - 1 do
                        assert.same(before.y[sequence * FAR + t], after.y[sequence * FAR + t])
                        assert.same(before.dx[sequence * FAR + t], after.dx[sequence * FAR + t])
                    end
                end
                for t = 0, 8 do
                    assert.not_same(before.y[FAR + t], after.y[FAR + t])
                    assert.not_same(before.dx[FAR + t], after.dx[FAR + t])
                end
            end)
        end
    end

    -- accelerate#4177: a layer that begins anew on each rank.
    it("[report 49] is not for want of reach: the first token of a document reaches the last",
        function()
            for _, cp_mode in ipairs(MODES) do
                for _, kind in ipairs { "contiguous", "zigzag", "mirror", "striped" } do
                    local function pair(faults)
                        return unpack(run(4, {
                            case_of(4, { 61 }, kind, cp_mode, { a_log = -14, faults = faults }),
                            case_of(4, { 61 }, kind, cp_mode, { a_log = -14, faults = faults,
                                changes = { x = { [0] = 2 }, dy = { [60] = 2 } } }),
                        }))
                    end
                    local before, after = pair()
                    assert.is_true(math.abs(before.y[60][1] - after.y[60][1]) > 1e-6)
                    assert.is_true(math.abs(before.dx[0][1] - after.dx[0][1]) > 1e-6)
                    if cp_mode == "chunkwise" and kind ~= "striped" then
                        local last = kind == "contiguous" and 3 or 0 -- the rank of token 60
                        before, after = pair { rank = last, drop_handoff = 1 }
                        assert.same(before.y[60], after.y[60])
                    end
                end
            end
        end)

    it("a later token does not reach an earlier output", function()
        for _, cp_mode in ipairs(MODES) do
            local before, after = unpack(run(4, {
                case_of(4, { 29 }, "mirror", cp_mode),
                case_of(4, { 29 }, "mirror", cp_mode, { changes = { x = { [20] = 3 } } }),
            }))
            for t = 0, 19 do assert.same(before.y[t], after.y[t]) end
            assert.not_same(before.y[20], after.y[20])
        end
    end)
end)

describe("gates", function()
    -- FLA#781: under CP all heads used the gate of head 0. Here heads forget within a token, slowly
    -- and not at all.
    it("[report 43] are those of their heads in every mode", function()
        for _, cp_mode in ipairs(MODES) do
            local own, one = unpack(run(4, {
                case_of(4, { 24 }, "zigzag", cp_mode, { config = { value_heads = 8 } }),
                case_of(4, { 24 }, "zigzag", cp_mode, { config = { value_heads = 8 }, a_log = -5 }),
            }))
            assert.is_true(own.distance <= 1e-12)
            local worst = 0
            for key, row in pairs(own.y) do
                for c, x in ipairs(row) do worst = math.max(worst, math.abs(x - one.y[key][c])) end
            end
            assert.is_true(worst > 1e-2)
        end
    end)

    -- FLA#99, FLA#792, FLA#111: g = 0, -50, -200, -1e4 everywhere, in runs shorter than a chunk.
    it("of any strength leave all finite and right", function()
        local cases = {}
        for _, cp_mode in ipairs(MODES) do
            for _, a_log in ipairs { -40, 3.9, 5.3, 9.2, 12 } do
                cases[#cases + 1] = case_of(4, { 75, 3 }, "zigzag", cp_mode,
                    { a_log = a_log, config = { chunk = 64 }, poison = true })
            end
        end
        for _, result in ipairs(run(4, cases)) do
            no_nan(result.y)
            no_nan(result.dx)
            no_nan(result.lists)
            assert.is_true(result.distance <= 1e-12, result.where)
        end
    end)
end)

describe("lengths", function()
    -- FLA#774 (gradients NaN, or in a neighbour's sequence, where few rows are between a boundary
    -- and the rank's edge); rtp-llm#876: chunks that are cut at the edges of runs.
    local CONV = {
        [2] = { { 300, 400, 324 }, { 512, 512 }, { 100, 150, 200, 250, 124, 100, 100 },
            { 513, 511 }, { 514, 510 }, { 200, 313, 511 }, { 512, 1, 511 } },
        [4] = { { 700, 324 }, { 1024 }, { 257, 255, 257, 255 }, { 257, 253, 257, 257 },
            { 257, 1, 253, 257, 1, 253, 2 } },
    }
    for cp, lists in pairs(CONV) do
        it(("[reports 23, 51] a row or two off a rank's edge, %d ranks"):format(cp), function()
            local cases = {}
            for _, list in ipairs(lists) do
                for _, kind in ipairs { "contiguous", "snake" } do
                    for _, cp_mode in ipairs(MODES) do
                        cases[#cases + 1] = { lengths = list, kind = kind, cp_mode = cp_mode,
                            config = { chunk = 64 } }
                    end
                end
            end
            right(cp, cases)
            -- What comes over the edge: rows for the convolution, where nothing else is
            -- remembered; the state, wherever a chunk ends.
            local function edge(changes)
                local case = case_of(cp, { 6 * cp }, "contiguous", "chunkwise", changes)
                case.a_log, case.changes = case.a_log or 12, nil
                local other = {}
                for name, value in pairs(case) do other[name] = value end
                other.changes = { x = { [5] = 2 } }
                local before, after = unpack(run(cp, { case, other }))
                return math.abs(before.y[6][1] - after.y[6][1])
            end
            assert.is_true(edge {} > 1e-6)
            assert.equal(0, edge { config = { conv = 1 } })
            assert.is_true(edge { a_log = -14, config = { conv = 1, chunk = 64 } } > 1e-6)
            assert.equal(0, edge { a_log = -14, config = { conv = 1, chunk = 64 },
                faults = { rank = 1, drop_handoff = 1 } })
        end)
    end

    -- MEG#3282, ISEEKYAN/Megatron-LM#111: only one dense sequence had been tested.
    it("[reports 34, 48, 54] unequal and packed, on 2 and 4 ranks", function()
        for _, cp in ipairs { 2, 4 } do
            local cases = {}
            for _, cp_mode in ipairs(MODES) do
                cases[#cases + 1] = case_of(cp, { 8, 16 }, "contiguous", cp_mode)
                cases[#cases + 1] = case_of(cp, { 13, 24, 40 }, "zigzag", cp_mode)
            end
            right(cp, cases)
            -- Boundaries dropped: the first document's rows are the same, the second's are not.
            for _, cp_mode in ipairs(MODES) do
                local packed, flat = unpack(run(cp, {
                    case_of(cp, { 8, 16 }, "contiguous", cp_mode, { by_position = true }),
                    case_of(cp, { 24 }, "contiguous", cp_mode, { by_position = true }),
                }))
                assert.is_true(packed.distance <= 1e-12 and flat.distance <= 1e-12)
                assert.is_true(math.abs(packed.y[7][1] - flat.y[7][1]) <= 1e-12)
                assert.is_true(math.abs(packed.y[FAR][1] - flat.y[8][1]) > 1e-3)
            end
        end
    end)

    -- maxtext#5295, vllm#28202, MEG#4230: padding is right of its sequence, left of the next one.
    it("[reports 20b, 40, 52] padded on either side: no state, no output, no gradient", function()
        for _, cp_mode in ipairs(MODES) do
            for _, kind in ipairs { "contiguous", "zigzag", "striped" } do
                local function case(real, zero)
                    return { lengths = { 8, 8, 16 }, real = real, kind = kind, cp_mode = cp_mode,
                        states = true, config = { key_heads = 2, value_heads = 4 },
                        changes = { x = zero } }
                end
                -- The control takes the padding for tokens, in one run with rows of zeros: these
                -- too have gates that are not neutral.
                local zero = { [5] = 0, [6] = 0, [7] = 0 }
                local good, bad, zeros = unpack(run(2, { case { 5, 0, 14 }, case { 8, 0, 14 },
                    case({ 8, 0, 14 }, zero) }))
                assert.is_true(good.distance <= 1e-12, good.where)
                assert.equal(0, good.padding)
                for _, other in ipairs { bad, zeros } do
                    assert.is_true(other.distance <= 1e-12, other.where)
                    assert.is_true(math.abs(other.lists.state[1] - good.lists.state[1]) > 1e-6)
                    assert.equal(good.y[2 * FAR][1], other.y[2 * FAR][1])
                end
            end
        end
    end)

    -- vllm-ascend#9479: the state after prefill on several ranks.
    it("[report 50] leave the state of one rank, unless a hand-off is lost", function()
        local function state(cp, cp_mode, faults)
            return run(cp, { case_of(4, { 17, 0, 7 }, "zigzag", cp_mode,
                { states = true, faults = faults, a_log = -5 }) })[1].lists.state
        end
        local function error_of(list, expected)
            local worst, largest = 0, 0
            for i, x in ipairs(expected) do
                worst = math.max(worst, math.abs(list[i] - x))
                largest = math.max(largest, math.abs(x))
            end
            return worst / largest
        end
        for _, cp_mode in ipairs(MODES) do
            local expected = state(1, "chunkwise")
            for _, cp in ipairs { 2, 4 } do
                assert.is_true(error_of(state(cp, cp_mode), expected) <= 1e-12)
            end
        end
        local lost = state(4, "chunkwise", { rank = 2, drop_handoff = 1 })
        assert.is_true(error_of(lost, state(1, "chunkwise")) > 1e-3)
    end)

    -- FLA#1093: tokens that ranks do not divide were cut all the same.
    it("[report 44] that ranks do not divide are refused, in zigzag that twice as many do not",
        function()
            local layout, thd = cplab.layout, cplab.stream.thd
            for _, case in ipairs { { 10, 3 }, { 14, 4 }, { 2, 3 } } do
                local s = thd { lengths = { case[1] } }
                assert.equal(("layout.contiguous: the stream has %d positions, not a multiple of "
                    .. "cp = %d"):format(case[1], case[2]),
                    said(layout.contiguous, s, { cp = case[2] }))
                local more = math.ceil(case[1] / case[2])
                s = thd { lengths = { more * case[2] } }
                assert.equal(more, layout.contiguous(s, { cp = case[2] }):n_local(0))
            end
            for _, kind in ipairs { "zigzag", "snake" } do
                local s = thd { lengths = { 12 } }
                assert.truthy(said(layout[kind], s, { cp = 4 }):find(
                    "not a multiple of 2*cp = 8", 1, true))
                assert.equal(4, layout[kind](s, { cp = 3 }):n_local(0))
            end
        end)

    -- MEG#3282: each sequence cut on its own is another layout, and has its own name: a custom one.
    it("[report 45] cut flat are contiguous; both ways are right, with their own rows", function()
        local s = cplab.stream.thd { cu_seqlens = { 0, 8, 24 } }
        local flat = cplab.layout.contiguous(s, { cp = 2 })
        local runs = { { { 0, 4 }, { 8, 8 } }, { { 4, 4 }, { 16, 8 } } }
        local each = cplab.layout.custom(s, { cp = 2, ranks = runs })
        assert.same({ { 0, 12 } }, flat:runs(0))
        assert.same({ { 0, 4 }, { 8, 8 } }, each:runs(0))
        local cases = {}
        for _, cp_mode in ipairs(MODES) do
            cases[#cases + 1] = case_of(2, { 8, 16 }, "contiguous", cp_mode)
            cases[#cases + 1] = case_of(2, { 8, 16 }, "custom", cp_mode, { ranks = runs })
        end
        right(2, cases)
        -- Of 12 rows a rank has 8 both ways; the others move.
        assert.equal(8, cplab.route(flat, each):stats().moved_tokens)
        assert.not_equal(flat:positions(0)[5], each:positions(0)[5])
    end)

    -- flashinfer#3536; MEG#4230 and TE#2186: padding of any size writes nothing.
    it("of nothing, anywhere, and padding without a token on some ranks", function()
        local cases = {}
        for _, cp_mode in ipairs(MODES) do
            cases[#cases + 1] = case_of(4, { 0, 0, 5, 0, 4, 0 }, "mirror", cp_mode)
            cases[#cases + 1] = { lengths = { 64, 8 }, real = { 1, 0 }, kind = "zigzag",
                cp_mode = cp_mode, poison = true }
            cases[#cases + 1] = { lengths = { 8, 8 }, real = { 0, 0 }, kind = "zigzag",
                cp_mode = cp_mode, poison = true }
        end
        right(4, cases)
    end)

    -- maxtext#5295: a row of zeros is not neutral for the gates, but l2norm must not break there.
    it("with rows of zeros: gradients are finite and right", function()
        for _, cp_mode in ipairs(MODES) do
            local zero = {}
            for t = 0, 10 do zero[t] = 0 end
            local result = run(2, { case_of(2, { 11, 6 }, "zigzag", cp_mode,
                { changes = { x = zero } }) })[1]
            no_nan(result.dx)
            no_nan(result.lists)
            assert.is_true(result.distance <= 1e-12)
        end
    end)
end)

describe("headwise", function()
    -- Relax#206, DeepSpeed#8316: heads that do not divide are refused, with the numbers.
    it("[report 55] refuses heads that cannot be cut, on all ranks", function()
        local function refused(message, cp, config)
            local failure = select(2, ranks.try(cp, "spec.support.gdn_runs",
                { { lengths = { 12 }, kind = "contiguous", cp_mode = "headwise",
                    config = config } }))
            assert.truthy(failure and failure.message:find(message, 1, true),
                failure and failure.message)
        end
        refused("gdn: headwise with 4 value_heads, not a multiple of 3 ranks", 3, {})
        refused("gdn: headwise with 3 key_heads, neither a multiple nor a divisor of 2 ranks", 2,
            { key_heads = 3, value_heads = 6 })
        refused("gdn: headwise with 2 key_heads, neither a multiple nor a divisor of 3 ranks", 3,
            { key_heads = 2, value_heads = 6 })
        right(3, { case_of(3, { 12 }, "contiguous", "headwise",
            { config = { key_heads = 3, value_heads = 6 } }) })
    end)

    -- MEG#5664 mapped it to one layout; here rows arrive in order from any.
    it("[report 46] gives the same bits whatever the layout", function()
        local cases = {}
        for i, kind in ipairs { "contiguous", "zigzag", "mirror", "snake", "striped" } do
            cases[i] = case_of(4, { 17, 0, 7 }, kind, "headwise")
        end
        cases[6] = case_of(4, { 17, 0, 7 }, "zigzag", "headwise", BIT)
        local results = run(4, cases)
        for i = 2, 5 do assert.same(results[1].y, results[i].y) end
        assert.not_same(results[1].y, results[6].y)
    end)
end)

-- MEG#6040, MEG#6954: backward tests that flicker.
it("[report 18] twenty runs of a GDN layer give the same bits", function()
    for _, cp_mode in ipairs(MODES) do
        local cases = {}
        for i = 1, 20 do
            cases[i] = case_of(4, { 17, 0, 7, 33 }, "zigzag", cp_mode, { states = true })
        end
        cases[21] = case_of(4, { 17, 0, 7, 33 }, "zigzag", cp_mode, BIT)
        cases[21].states = true
        local results = run(4, cases)
        assert.not_same(results[1].y, results[21].y)
        for i = 2, 20 do
            assert.same(results[1].y, results[i].y)
            assert.same(results[1].dx, results[i].dx)
            assert.same(results[1].lists, results[i].lists)
        end
    end
end)
