-- What goes wrong at the edges of ranks and of documents in a GDN layer: traps of other systems,
-- each with a small input, and with what the wrong rule would give. A row is known by its sequence
-- * 1000 + its offset there, so that sequences keep their numbers however they are cut.
local cplab = require "cplab"
local message = require "spec.support.message"
local ranks = require "spec.support.ranks"

local BOUND, FAR = 1e-12, 1000
-- A_log: nothing is forgotten; all is, so that only the convolution reaches further.
local SLOW, ALL = -12, 12

local function case_of(lengths, changes)
    local case = { lengths = lengths, kind = "contiguous", cp_mode = "chunkwise" }
    for name, value in pairs(changes or {}) do case[name] = value end
    return case
end

-- The results of all ranks, by case: rows of all, the worst distance to one rank; `of_ranks` has
-- each one's own.
local function run(cp, cases)
    local of_ranks, merged = ranks.run(cp, "spec.support.gdn_runs", cases, 60), {}
    for i = 1, #cases do
        local result = { y = {}, dx = {}, distance = 0, of_ranks = {} }
        for rank = 1, cp do
            local own = of_ranks[rank][i]
            for _, name in ipairs { "y", "dx" } do
                for key, row in pairs(own[name]) do result[name][key] = row end
            end
            result.distance = math.max(result.distance, own.distance)
            result.of_ranks[rank] = own
        end
        merged[i] = result
    end
    return unpack(merged)
end

-- Factors for rows first .. last of a sequence.
local function rows_of(sequence, first, last, factor)
    local list = {}
    for t = first, last do list[sequence * FAR + t] = factor or 1.5 end
    return list
end

local function difference(a, b)
    local most = 0
    for c = 1, #a do most = math.max(most, math.abs(a[c] - b[c])) end
    return most
end

-- The rows, of n sequences, that differ in one bit at least: { [key] = true }.
local function changed(before, after)
    local list = {}
    for key, row in pairs(before) do
        if difference(row, after[key]) > 0 then list[key] = true end
    end
    return list
end

-- The worst difference in rows first .. last of a sequence.
local function worst(a, b, sequence, first, last)
    local most = 0
    for t = first, last do
        most = math.max(most, difference(a[sequence * FAR + t], b[sequence * FAR + t]))
    end
    return most
end

local function right(cp, ...)
    for i, result in ipairs { run(cp, { ... }) } do
        assert.is_true(result.distance <= BOUND, ("case %d: %g"):format(i, result.distance))
    end
end

describe("the convolution at a rank's edge", function()
    it("T-56: brings nothing of a sequence that ended there, and of one that goes on its rows",
        function()
            -- The edge is before the second sequence, and two of its rows before.
            for first, expected in pairs { [8] = {}, [6] = { 2, 3, 4 } } do
                local before, after = run(2, {
                    case_of({ first, 16 - first }, { a_log = ALL }),
                    case_of({ first, 16 - first }, { a_log = ALL,
                        changes = { x = rows_of(0, 0, first - 1) } }) })
                assert.is_true(before.distance <= BOUND and after.distance <= BOUND)
                for t = 0, 15 - first do
                    assert.same(before.y[FAR + t], after.y[FAR + t])
                end
                -- Rows 0 and 1 of the second sequence, where it has them on rank 0.
                local own, other = run(2, {
                    case_of({ first, 16 - first }, { a_log = ALL }),
                    case_of({ first, 16 - first }, { a_log = ALL,
                        changes = { x = rows_of(1, 0, 7 - first) } }) })
                local seen = {}
                for t = 8 - first, 15 - first do
                    if changed(own.y, other.y)[FAR + t] then seen[#seen + 1] = t end
                end
                assert.same(expected, seen)
            end
        end)

    it("T-57: gives the rows before it no gradient of another sequence, and its own theirs",
        function()
            for first, expected in pairs { [8] = {}, [6] = { 0, 1 } } do
                local before, after = run(2, {
                    case_of({ first, 16 - first }, { a_log = ALL }),
                    case_of({ first, 16 - first }, { a_log = ALL,
                        changes = { dy = rows_of(1, 8 - first, 15 - first) } }) })
                assert.is_true(before.distance <= BOUND and after.distance <= BOUND)
                local differ, seen = changed(before.dx, after.dx), {}
                for t = 0, first - 1 do assert.is_nil(differ[t]) end
                for t = 0, 7 - first do
                    if differ[FAR + t] then seen[#seen + 1] = t end
                end
                assert.same(expected, seen)
                assert.is_true(differ[FAR + 8 - first])
            end
        end)

    it("T-60: comes over several hops where a shard is shorter than the kernel", function()
        -- Shards of two rows, a kernel of five: the rows of two ranks before.
        local config = { conv = 5 }
        right(4, case_of({ 8 }, { config = config }), case_of({ 3, 5 }, { config = config }))
        local before, after = run(4, { case_of({ 8 }, { config = config, a_log = ALL }),
            case_of({ 8 }, { config = config, a_log = ALL, changes = { x = rows_of(0, 2, 2) } }) })
        local differ = changed(before.y, after.y)
        for t = 0, 7 do assert.equal(t >= 2 and t <= 6, differ[t] or false) end
    end)

    it("T-75: is not cut at a rank's edge, where no sequence ends", function()
        local before, after = run(2, { case_of({ 24 }, { a_log = ALL }),
            case_of({ 24 }, { a_log = ALL, changes = { x = rows_of(0, 11, 11) } }) })
        assert.is_true(before.distance <= BOUND)
        local differ = changed(before.y, after.y)
        -- A reset there would leave 12 .. 14 as they were.
        for t = 0, 23 do assert.equal(t >= 11 and t <= 14, differ[t] or false) end
    end)
end)

describe("the state of a GDN layer over ranks", function()
    it("T-59: goes through a rank that lies inside of one sequence", function()
        local clean, other, lost = run(4, { case_of({ 3, 26, 3 }, { a_log = SLOW }),
            case_of({ 3, 26, 3 }, { a_log = SLOW, changes = { x = rows_of(1, 0, 0) } }),
            case_of({ 3, 26, 3 }, { a_log = SLOW, faults = { rank = 2, drop_handoff = 1 } }) })
        assert.is_true(clean.distance <= BOUND and other.distance <= BOUND)
        -- Ranks 1 and 2 hold offsets 5 to 12 and 13 to 20, and what the first token left gets over.
        for t = 0, 25 do assert.is_true(worst(clean.y, other.y, 1, t, t) > 1e-6) end
        assert.equal(0, worst(clean.y, other.y, 0, 0, 2) + worst(clean.y, other.y, 2, 0, 2))
        -- Forgotten on rank 2 when it had gone on, it is missed there alone.
        assert.is_true(worst(clean.y, lost.y, 1, 13, 20) > 1e-3)
        assert.equal(0, worst(clean.y, lost.y, 1, 0, 12) + worst(clean.y, lost.y, 1, 21, 25))
    end)

    it("T-62: starts anew with each sequence: packed, each is as it is alone", function()
        local list, sizes = { 7, 9, 8 }, { 12, 12, 12 }
        for _, cp_mode in ipairs { "chunkwise", "headwise" } do
            local config = { key_heads = 3, value_heads = 6 }
            local function part(real)
                return case_of(sizes, { kind = "zigzag", cp_mode = cp_mode, config = config,
                    real = real, a_log = SLOW })
            end
            local packed, a, b, c = run(3, { part(list), part { 7, 0, 0 }, part { 0, 9, 0 },
                part { 0, 0, 8 } })
            for i, alone in ipairs { a, b, c } do
                assert.equal(0, worst(packed.y, alone.y, i - 1, 0, list[i] - 1))
                assert.equal(0, worst(packed.dx, alone.dx, i - 1, 0, list[i] - 1))
            end
        end
    end)

    it("T-63: carries the gradient of the last token alone back to the first rank", function()
        local last, none = run(4, {
            case_of({ 32 }, { a_log = SLOW, changes = { dy = rows_of(0, 0, 30, 0) } }),
            case_of({ 32 }, { a_log = SLOW, changes = { dy = rows_of(0, 0, 31, 0) } }) })
        assert.is_true(last.distance <= BOUND) -- of every gradient to that of one rank
        for t = 0, 31 do assert.is_true(worst(last.dx, none.dx, 0, t, t) > 1e-6) end
        for t = 0, 31 do
            for _, value in ipairs(none.dx[t]) do assert.equal(0, value) end
        end
    end)

    it("T-74: leaks from no document into the next, but goes on inside [report 79]", function()
        local cases = {}
        for i, lengths in ipairs { { 37, 51, 40 }, { 37, 91 } } do
            cases[2 * i - 1] = case_of(lengths, { a_log = SLOW })
            cases[2 * i] = case_of(lengths, { a_log = SLOW, changes = { x = rows_of(1, 40, 50) } })
        end
        local before, after, one_before, one_after = run(2, cases)
        assert.is_true(before.distance <= BOUND and after.distance <= BOUND)
        assert.equal(0, worst(before.y, after.y, 2, 0, 39))
        assert.is_true(worst(before.y, after.y, 1, 40, 50) > 1e-3)
        -- The last boundary forgotten, rows 51 to 90 of one document are those 40.
        assert.is_true(worst(one_before.y, one_after.y, 1, 51, 90) > 1e-3)
        local layout = cplab.layout.contiguous(cplab.stream.thd { lengths = { 37, 51, 40 } },
            { cp = 2 })
        for rank, expected in pairs { [0] = { 37, 27 }, { 24, 40 } } do
            local lengths = {}
            for i, span in ipairs(layout:spans(rank)) do lengths[i] = span.length end
            assert.same(expected, lengths)
        end
    end)
end)

describe("the modes of a GDN layer", function()
    it("T-29: headwise gives the bits of a sequence in order, whatever layout brings it", function()
        local cases = {}
        for i, kind in ipairs { "contiguous", "zigzag", "mirror", "striped", "custom", "custom" } do
            cases[i] = case_of({ 16 }, { kind = kind, cp_mode = "headwise" })
        end
        -- Runs as they are in zigzag, and rows of contiguous undone as if they were zigzag's.
        cases[5].ranks = { { { 0, 4 }, { 12, 4 } }, { { 4, 8 } } }
        cases[6].ranks = { { { 12, 4 }, { 0, 4 } }, { { 8, 4 }, { 4, 4 } } }
        local first, a, b, c, d, e = run(2, cases)
        for _, result in ipairs { a, b, c, d, e } do
            assert.equal(0, worst(first.y, result.y, 0, 0, 15))
        end
        -- The control: rows that change places are other rows.
        local swapped = {}
        for t = 0, 15 do swapped[t] = first.y[t >= 4 and t < 12 and t or (t + 12) % 24] end
        assert.is_true(worst(first.y, swapped, 0, 0, 15) > 1e-3)
    end)

    it("T-31: headwise takes lengths that only cp divides; zigzag of them is refused", function()
        right(2, case_of({ 6, 10 }, { cp_mode = "headwise" }),
            case_of({ 6, 10 }, { cp_mode = "headwise", kind = "snake" }))
        assert.equal("layout.zigzag: sequence 0 has 6 tokens, not a multiple of 2*cp = 4",
            message(cplab.layout.zigzag, cplab.stream.thd { lengths = { 6, 10 } }, { cp = 2 }))
    end)

    it("[report 77] headwise: what goes in one message is what each part would be alone", function()
        for cp, config in pairs { [2] = {}, [4] = { key_heads = 2, value_heads = 8 } } do
            local lengths = {}
            for i = 1, cp do lengths[i] = 9 end
            -- Where no sequence is cut, chunkwise sends nothing, and must have the same bits.
            local local_one, fused, wrong = run(cp, { case_of(lengths, { config = config }),
                case_of(lengths, { config = config, cp_mode = "headwise" }),
                case_of(lengths, { config = config, cp_mode = "headwise",
                    faults = { rank = 1, first_slice = 1 } }) })
            for i = 1, cp do
                assert.equal(0, local_one.of_ranks[i].sent.messages)
                assert.equal(2 * (cp - 1), fused.of_ranks[i].sent.messages) -- there and back
                assert.equal(0, worst(local_one.y, fused.y, i - 1, 0, 8))
                assert.is_true(worst(local_one.y, wrong.y, i - 1, 0, 8) > 1e-3)
            end
        end
    end)

    it("T-58: every rank takes part, also where it has nothing to hand over", function()
        -- Only the third sequence is cut, between ranks 2 and 3.
        local result = run(4, { case_of { 8, 8, 9, 7 } })
        assert.is_true(result.distance <= BOUND)
        local sent = {}
        for rank, own in ipairs(result.of_ranks) do sent[rank] = own.sent.state > 0 end
        assert.same({ false, false, true, false }, sent)
        -- One that stays away is missed: the others end with its error, none waits for ever.
        local _, failure = ranks.try(4, function(comm)
            if comm:rank() == 1 then error("rank 1 stays away", 0) end
            require("spec.support.gdn_runs")(comm, { { lengths = { 8, 8, 9, 7 } } })
        end)
        assert.same({ 1, "rank 1 stays away" }, { failure.rank, failure.message })
    end)

    it("T-72: differ by rounding where a cut is no chunk's edge, elsewhere by no bit", function()
        local function apart(lengths, faults)
            local a, b = run(2, { case_of(lengths, { a_log = SLOW, faults = faults }),
                case_of(lengths, { a_log = SLOW, cp_mode = "headwise" }) })
            local most = 0
            for i, n in ipairs(lengths) do
                most = math.max(most, worst(a.y, b.y, i - 1, 0, n - 1))
            end
            return most
        end
        local rounded = apart { 98 } -- 49 tokens a rank, chunks of 4
        assert.is_true(rounded > 0 and rounded <= BOUND)
        assert.equal(0, apart { 96 })
        assert.equal(0, apart { 49, 49 })
        assert.is_true(apart({ 98 }, { rank = 1, drop_handoff = 1 }) > 1e-3)
    end)
end)
