-- What public attention code over ranks got wrong, and what a mode must not do: each with a small
-- input, and a control that fails.
local clib = require "clib"
local modes = require "spec.support.gqa_modes"
local layers = require "spec.support.layers"
local ranks = require "spec.support.ranks"
local sanitized = require "spec.support.sanitized"
local C, ffi = clib.C, clib.ffi

local BOUND = 1e-12

-- One configuration of each mode on 4 ranks, kv heads fewer than ranks.
local CONFIGS = {}
for _, mode in ipairs { "gather", "p2p", "a2a", "a2a+p2p" } do
    CONFIGS[#CONFIGS + 1] = { cp_mode = mode, a2a = mode == "a2a+p2p" and 2 or nil, heads = 8,
        kv_heads = 2 }
end

local function with(t, changes)
    local copy = {}
    for name, value in pairs(t) do copy[name] = value end
    for name, value in pairs(changes) do copy[name] = value end
    return copy
end

-- Calls f(config, layout, window) for each of them.
local function each(f)
    for part, config in ipairs(CONFIGS) do
        for i, layout in ipairs(modes.LAYOUTS) do
            if sanitized.takes(i, 3, part) then
                f(with(config, { window = i % 2 == 0 and 3 or nil }), layout)
            end
        end
    end
end

local function cases_of(stream, changes)
    local cases = {}
    each(function(config, layout)
        local case = { stream = stream, layout = layout, config = config }
        if layout == "custom" then case.ranks = modes.dealt(stream, 4) end
        if layout == "balanced" then case.options = { block = 1 } end
        cases[#cases + 1] = with(case, changes or {})
    end)
    return cases
end

local function describe_case(case)
    return ("%s in %s"):format(modes.name(case.config), case.layout)
end

describe("padding of attention (T-85)", function()
    -- Real boundaries 0, 3, 8, padded ones 0, 4, 12, a buffer of 16, in units of two tokens for
    -- zigzag on 4 ranks: pad rows are { 3, 9 .. 11, 12 .. 15 }.
    local STREAM = { lengths = { 8, 16, 8 }, real = { 6, 10, 0 } }
    local is_pad = {}
    for _, first in ipairs { 6, 7, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31 } do
        is_pad[first] = true
    end

    it("T-35: gives and gets exactly 0 on every rank, whatever stands in it [report 67]", function()
        local cases = cases_of(STREAM)
        for i, result in ipairs(modes.run(4, cases)) do
            for position = 0, 31 do
                for _, name in ipairs { "y", "dx" } do
                    for _, value in ipairs(result[name][position + 1]) do
                        assert.equal(is_pad[position] or false, value == 0, ("%s of %d, %s"):format(
                            name, position, describe_case(cases[i])))
                    end
                end
            end
        end
    end)

    it("never reaches a real row: NaN there changes no bit", function()
        local clean = modes.run(4, cases_of(STREAM))
        for i, result in ipairs(modes.run(4, cases_of(STREAM, { change = { 19, 0 / 0 } }))) do
            for position = 0, 31 do
                if not is_pad[position] then
                    assert.same(clean[i].y[position + 1], result.y[position + 1])
                end
            end
        end
    end)
end)

describe("real lengths (T-84)", function()
    -- The lists of TransformerEngine's reports: a tail that 2 * cp does not divide, and halves of
    -- a rank that are all padding.
    local STREAMS = {
        { lengths = { 704 }, real = { 698 } }, { lengths = { 16 }, real = { 1 } },
        { lengths = { 16, 8, 8, 16, 8, 16 }, real = { 9, 8, 8, 12, 8, 12 } },
    }

    it("[report 63] count for every query and key, not their share of a rank", function()
        for _, stream in ipairs(STREAMS) do
            local floored = { lengths = stream.lengths, real = {} }
            for i, n in ipairs(stream.real) do floored.real[i] = math.floor(n / 8) * 8 end
            for _, config in ipairs(CONFIGS) do
                local case = { stream = stream, layout = "zigzag", config = config }
                local result = modes.run(4, { case })[1]
                local worst, where = modes.worst(result, modes.alone(case))
                assert.is_true(worst <= BOUND, ("%g at %s"):format(worst, where))
                -- The control: lengths as cu / cp has them drop real keys, and rows become 0.
                case.stream = floored
                assert.is_true(modes.worst(result, modes.alone(case)) > 1e-3)
            end
        end
    end)
end)

describe("what a query may not see", function()
    local STREAM = { lengths = { 24, 16, 8 }, real = { 22, 13, 8 } }

    it("other documents, the future, and what its window has left: not a bit", function()
        local before = modes.run(4, cases_of(STREAM))
        local cases = cases_of(STREAM, { change = { 28, 0.5 } })
        for i, result in ipairs(modes.run(4, cases)) do
            local window = cases[i].config.window or 100
            for position = 0, 47 do
                local may = position >= 28 and position < 37 and position < 28 + window
                local same = true
                for j, value in ipairs(result.y[position + 1]) do
                    same = same and value == before[i].y[position + 1][j]
                end
                assert.equal(not may, same, ("%d, %s"):format(position, describe_case(cases[i])))
                -- Gradients go the other way, inside the document.
                if position < 24 or position >= 37 then
                    assert.same(before[i].dx[position + 1], result.dx[position + 1])
                end
            end
        end
    end)
end)

describe("a mode", function()
    local STREAM = { lengths = { 24, 0, 16 }, real = { 21, 0, 16 } }

    it("leaves nothing of what was there: after a pass of NaN, the same bits", function()
        local fresh = modes.run(4, cases_of(STREAM))
        for i, result in ipairs(modes.run(4, cases_of(STREAM, { poison = true }))) do
            for _, name in ipairs { "y", "dx", "grads" } do
                assert.same(fresh[i][name], result[name])
            end
        end
    end)

    it("has the same bits in every run, and in the second pass", function()
        local first = modes.run(4, cases_of(STREAM))
        for _, changes in ipairs { {}, { again = true } } do
            for i, result in ipairs(modes.run(4, cases_of(STREAM, changes))) do
                for _, name in ipairs { "y", "dx", "grads" } do
                    assert.same(first[i][name], result[name])
                end
            end
        end
    end)

    it("allocates nothing while it runs", function()
        local cases = cases_of(STREAM, { again = true })
        for i, result in ipairs(modes.run(4, cases)) do
            assert.equal(0, result.allocations, describe_case(cases[i]))
        end
        -- The control: making a trace is counted.
        local traced = modes.run(4, cases_of(STREAM, { trace = true }))
        assert.is_true(traced[1].allocations > 0)
    end)

    it("takes ranks without rows, and a stream without tokens", function()
        local nothing = { {}, {}, {}, {} }
        for _, config in ipairs(CONFIGS) do
            local case = { stream = { lengths = { 5, 9 } }, layout = "custom", config = config,
                ranks = { {}, { { 9, 5 }, { 0, 4 } }, {}, { { 4, 5 } } } }
            local result = modes.run(4, { case })[1]
            assert.is_true(modes.worst(result, modes.alone(case)) <= BOUND)
            case.stream, case.ranks = { lengths = { 0, 0 } }, nothing
            for _, list in pairs(modes.run(4, { case })[1].grads) do
                for _, value in ipairs(list) do assert.equal(0, value) end
            end
        end
    end)

    it("has an error in f32 that does not grow with the ranks", function()
        -- Partial results are joined in f32: 6e-8 a rounding, 1e-6 leaves room for some tens.
        for _, cp in ipairs { 2, 4, 8 } do
            local config = { cp_mode = "p2p", heads = 8, kv_heads = 2 }
            local case = { stream = { lengths = { 256 } }, layout = "zigzag", config = config }
            local reference = modes.alone(case)
            case.dtype = "f32"
            assert.is_true(modes.parity(modes.run(cp, { case })[1].y, reference.y) <= 1e-6)
        end
    end)
end)

describe("memory that runs out on one rank", function()
    -- On a rank: fails the n-th allocation of rank 1 for n = 0, 1, .. until all can prepare.
    local function sweep(comm, config)
        local clib = require "clib" -- luacheck: ignore 431
        local C, ffi = clib.C, clib.ffi -- luacheck: ignore 431
        local live = require("spec.support.gqa_rank").make(comm._ptr, {
            stream = { lengths = { 16, 24 } }, layout = "zigzag", config = config })
        local stats = ffi.new "cpl_memory_stats"
        local function prepare(n)
            C.cpl_memory_fail_after(comm:rank() == 1 and n or -1)
            local status = tonumber(C.cpl_layer_prepare(live.layer, "gqa", live.place))
            C.cpl_memory_fail_after(-1)
            clib.check(C.cpl_comm_barrier(comm._ptr))
            C.cpl_memory(stats)
            clib.check(C.cpl_comm_barrier(comm._ptr))
            return status, tonumber(stats.live_blocks)
        end
        collectgarbage()
        collectgarbage "stop"
        clib.check(C.cpl_comm_barrier(comm._ptr))
        local statuses, _, empty = {}, prepare(0)
        repeat
            local status, blocks = prepare(#statuses)
            if status ~= 0 and blocks ~= empty then
                error(("%d blocks after failure %d, not %d"):format(blocks, #statuses, empty))
            end
            statuses[#statuses + 1] = status
        until status == 0 or #statuses > 500
        return statuses
    end

    it("refuses a mode on all of them, leaks nothing, and can be tried again", function()
        for _, config in ipairs(CONFIGS) do
            local answers = ranks.run(4, sweep, config)
            assert.is_true(#answers[1] > 20 and #answers[1] < 500)
            for i = 1, #answers[1] do
                for rank = 2, 4 do
                    assert.equal(answers[1][i] == 0, answers[rank][i] == 0)
                end
            end
        end
    end)
end)

describe("what a mode moves", function()
    local N, D, E = 64, 4, 8 -- tokens, head_dim, bytes
    local function counts(cp, config, layout, changes)
        local case = { stream = { lengths = { N } }, layout = layout, config = config }
        local result = modes.run(cp, { with(case, changes or {}) })[1]
        return result.forward, result.backward
    end

    it("p2p: every shard to every other rank, and its gradients home, in zigzag", function()
        for _, cp in ipairs { 2, 4, 8 } do
            for _, layout in ipairs { "zigzag", "mirror" } do
                local forward, backward = counts(cp, { cp_mode = "p2p", heads = 8, kv_heads = 2 },
                    layout)
                assert.equal((cp - 1) * N * 2 * 2 * D * E, forward.bytes)
                assert.equal(cp * (cp - 1), forward.messages)
                assert.equal(2 * forward.bytes, backward.bytes)
                assert.equal(2 * forward.messages, backward.messages)
            end
        end
    end)

    it("p2p: a shard goes no further than somebody sees it", function()
        local config = { cp_mode = "p2p", heads = 8, kv_heads = 2 }
        local shard = N / 4 * 2 * 2 * D * E
        -- Contiguous: the first rank's is seen by three, the last one's by none.
        local forward, backward = counts(4, config, "contiguous")
        assert.same({ 6 * shard, 6 }, { forward.bytes, forward.messages })
        assert.same({ 12 * shard, 12 }, { backward.bytes, backward.messages })
        -- A window reaches one rank back, and one of a token none.
        forward = counts(4, with(config, { window = 5 }), "contiguous")
        assert.same({ 3 * shard, 3 }, { forward.bytes, forward.messages })
        forward, backward = counts(4, with(config, { window = 1 }), "contiguous")
        assert.same({ 0, 0 }, { forward.bytes, backward.bytes })
        -- Documents that each lie on one rank.
        forward, backward = counts(4, config, "contiguous",
            { stream = { lengths = { 16, 16, 16, 16 } } })
        assert.same({ 0, 0 }, { forward.messages, backward.messages })
        -- Gradients begin at the first that sees the shard, and go home from the last: of five
        -- ranks, only the fourth sees keys of the first.
        forward, backward = counts(5, config, "custom", { stream = { lengths = { 4, 4, 4, 4 } },
            ranks = { { { 0, 2 } }, { { 4, 4 } }, { { 8, 4 } }, { { 2, 2 } }, { { 12, 4 } } } })
        local row = 2 * 2 * D * E
        assert.same({ 3 * 2 * row, 3 }, { forward.bytes, forward.messages })
        assert.same({ 4 * 2 * row, 4 }, { backward.bytes, backward.messages })
    end)

    it("a2a: slices of queries, keys and results, in one layout as in another", function()
        for _, cp in ipairs { 2, 4, 8 } do
            for _, kv_heads in ipairs { 1, 2, 8 } do
                for _, layout in ipairs { "zigzag", "contiguous" } do
                    local forward, backward = counts(cp,
                        { cp_mode = "a2a", heads = 8, kv_heads = kv_heads }, layout)
                    local width = 2 * 8 * D + 2 * math.max(kv_heads, cp) * D
                    assert.equal((cp - 1) * N / cp * width * E, forward.bytes)
                    assert.equal(3 * cp * (cp - 1), forward.messages)
                    assert.same(forward, backward)
                end
            end
        end
    end)

    it("a2a+p2p: both, inside groups and between them", function()
        local forward = counts(8, { cp_mode = "a2a+p2p", a2a = 4, heads = 8, kv_heads = 2 },
            "zigzag")
        local spread = 3 * N / 4 * (2 * 8 + 2 * 4) * D * E -- within each group, of 4 ranks
        local round = 8 * (N / 2) * 2 * 1 * D * E -- each rank its group's rows of one kv head
        assert.equal(spread + round, forward.bytes)
        assert.equal(3 * 8 * 3 + 8, forward.messages)
    end)
end)

describe("memory of a mode", function()
    local function bytes(config, cp, n)
        local case = { stream = { lengths = { n } }, layout = "zigzag", config = config,
            measure = true }
        return modes.run(cp, { case })[1].parts[1].prepared
    end

    it("grows with the tokens, not with their square", function()
        for _, config in ipairs(CONFIGS) do
            local small, large = bytes(config, 4, 2048), bytes(config, 4, 4096)
            assert.is_true(large < 2.05 * small and large > 1.2 * small)
        end
    end)

    it("of p2p holds a few shards, of gather all keys", function()
        local wide = { heads = 8, kv_heads = 8, cp_mode = "p2p" }
        local p2p = bytes(wide, 16, 2048)
        local gather = bytes(with(wide, { cp_mode = "gather" }), 16, 2048)
        -- Keys, values and their gradients: at most 6 shards a rank on top of its own, or 2 * 16.
        local shard = 2048 / 16 * 2 * 8 * 4 * 8
        assert.is_true(gather - p2p > 16 * (20 - 6) * shard)
    end)
end)

describe("planted faults of a mode", function()
    local function worst(config, fault)
        local case = { stream = { lengths = { 40, 24 }, real = { 37, 24 } }, layout = "zigzag",
            config = config, fault = fault }
        return modes.worst(modes.run(4, { case })[1], modes.alone(case))
    end

    it("are caught: a merge that forgets, a ring that turns back, kv heads off by one [report 73]",
        function()
            local p2p, a2a, both = CONFIGS[2], CONFIGS[3], CONFIGS[4]
            local faults = {
                { p2p, "drop_merge" }, { p2p, "reverse_ring" }, { a2a, "kv_head_shift" },
                { both, "drop_merge" }, { both, "kv_head_shift" },
            }
            for _, fault in ipairs(faults) do
                assert.is_true(worst(fault[1]) <= BOUND)
                local wrong = worst(fault[1], { rank = 2, name = fault[2], value = 1 })
                assert.is_true(wrong > 1e-3, fault[2])
            end
        end)

    it("a row in a wrong place is seen by every rank that it reaches", function()
        local function wrong_rows(config, swap)
            local case = { stream = { lengths = { 48 } }, layout = "zigzag", config = config,
                trace = true, swap = swap }
            return modes.run(4, { case })[1].wrong_rows
        end
        for _, config in ipairs(CONFIGS) do assert.equal(0, wrong_rows(config)) end
        -- Two rows: in x, and in the keys of three other ranks.
        assert.equal(2 + 3 * 2, wrong_rows(CONFIGS[2], 1))
        -- In x, in queries and in keys of four ranks, in four slices of the result.
        assert.equal(2 + 3 * 4 * 2, wrong_rows(CONFIGS[3], 1))
        -- In x, in queries and keys of two ranks, in keys of two others, in two slices.
        assert.equal(2 + 2 * 2 * 2 + 2 * 2 + 2 * 2, wrong_rows(CONFIGS[4], 1))
    end)
end)

describe("gradients of a mode", function()
    -- Central differences: h^2 of a third derivative and 1e-16 / h of rounding.
    local STEP, TOLERANCE = 1e-5, 1e-7

    it("[report 66] equal finite differences, with a window and without", function()
        for _, config in ipairs(CONFIGS) do
            for _, window in ipairs { 0, 3 } do
                local base = { stream = { lengths = { 16, 8 }, real = { 14, 8 } },
                    layout = "zigzag", config = with(config, { window = window }) }
                local cases, positions = {}, { 0, 3, 9, 13, 16, 22 }
                for _, position in ipairs(positions) do
                    for _, sign in ipairs { 1, -1 } do
                        cases[#cases + 1] = with(base,
                            { change = { position, 0.25 + sign * STEP } })
                    end
                    cases[#cases + 1] = with(base, { change = { position, 0.25 } })
                end
                local results = modes.run(4, cases)
                for i, position in ipairs(positions) do
                    local up, down = modes.loss(results[3 * i - 2]), modes.loss(results[3 * i - 1])
                    local got = results[3 * i].dx[position + 1][1]
                    assert.is_true(math.abs((up - down) / (2 * STEP) - got) <= TOLERANCE * 10)
                end
            end
        end
    end)
end)

describe("what attention refuses", function()
    local function prepared(cp, config)
        return pcall(modes.run, cp, { { stream = { lengths = { 48 } }, layout = "contiguous",
            config = config } })
    end

    local function refused(message, cp, config)
        local ok, text = prepared(cp, config)
        assert.is_false(ok)
        text = text:match("rank %d+: (.-)stack traceback"):gsub("^[^ ]+:%d+: ", "")
        assert.equal(message, (text:gsub("^rank %d failed: ", ""))) -- of it, or of another one
    end

    it("heads that do not divide by the ranks, kv heads that do not fit", function()
        refused("gqa: 4 heads, not a multiple of the 3 ranks that they are spread over", 3,
            { cp_mode = "a2a" })
        refused("gqa: 2 kv_heads and 3 ranks that they are spread over: neither is a multiple of "
            .. "the other", 3, { cp_mode = "a2a", heads = 6 })
        refused("gqa: 4 ranks, not a multiple of a2a = 3", 4,
            { cp_mode = "a2a+p2p", a2a = 3, heads = 6, kv_heads = 3 })
        assert.is_true(prepared(3, { cp_mode = "a2a", heads = 6, kv_heads = 1 }))
    end)

    it("modes, windows and groups that there are not", function()
        local function message(changes)
            local _, text = pcall(layers.create, "gqa", changes)
            return (text:gsub("^[^ ]+:%d+: ", ""))
        end
        assert.equal('gqa: unknown cp_mode "ring"; there are gather, p2p, a2a, a2a+p2p',
            message { cp_mode = "ring" })
        assert.equal("gqa: window must be >= 0 (got -1)", message { window = -1 })
        assert.equal('gqa: a2a = 0, the ranks that spread heads, must be >= 1 with cp_mode '
            .. '"a2a+p2p"', message { cp_mode = "a2a+p2p" })
        assert.equal('gqa: a2a = 2, the ranks that spread heads, must be 0 with cp_mode "p2p"',
            message { cp_mode = "p2p", a2a = 2 })
    end)

    it("more than eight windows of keys in one place, whose routes it shares", function()
        local live = layers.live("gqa", { lengths = { 9 } })
        local function routes_with(window)
            local other = layers.create("gqa", { window = window })
            assert.equal(C.CPL_OK, C.cpl_layer_prepare(other, "other", live.place))
            return tonumber(C.cpl_place_routes_built(live.place))
        end
        assert.equal(1, routes_with(0))
        for window = 1, 7 do assert.equal(window + 1, routes_with(window)) end
        assert.equal(8, routes_with(3))
        local ninth = layers.create("gqa", { window = 8 })
        assert.equal(C.CPL_UNSUPPORTED, C.cpl_layer_prepare(ninth, "ninth", live.place))
        assert.equal("place: more than 8 windows of keys in one layout",
            ffi.string(C.cpl_last_error()))
    end)
end)
