-- The delta rule on an emulated device, by tokens and by chunks, against the reference on the host.
local cuda_device = require "spec.support.cuda_device"
local gdn = require "spec.support.gdn_device"
local numbers = require "spec.kernels.numbers"

local OPS = { "gdn", "gdn_summary", "gdn_summary_backward", "gdn_backward" }
local WAYS = { "naive", "best" }

-- Largest difference over the largest number of a result. f32: some hundred roundings of 6e-8 in a
-- row, of which a transition that has shrunk to a tenth sees the most. bf16: a result is rounded to
-- 8 bits once, 2^-9 of itself, and what a sum of dq or dk rounds is no smaller than that of the
-- largest; everything before it is wider.
local BOUNDS = { f64 = 1e-12, f32 = 1e-5, bf16 = 2 ^ -8 }
-- In bf16 states stay wide: chunks multiply numbers cut into two bf16, which errs by 2^-16.
local WIDE_BOUND = 1e-4

-- Two chunks and a half, spans of nothing and of one token, rows outside, shared key heads, rows
-- with something between them.
local function awkward()
    return {
        spans = { { 0, 7 }, { 7, 0 }, { 9, 13 }, { 23, 1 }, { 24, 0 } }, T = 26,
        K = 5, V = 3, Hk = 2, Hv = 4, chunk = 5, pad = 3,
    }
end

local function describe_results(device)
    for _, way in ipairs(WAYS) do
        for _, dtype in ipairs { "f64", "f32", "bf16" } do
            local function check(case)
                for _, op in ipairs(OPS) do
                    gdn.check(device, case, op, dtype, way, BOUNDS[dtype])
                end
            end

            it(("%s, %s: spans of every kind"):format(way, dtype), function()
                check(awkward())
            end)

            it(("%s, %s: chunks of 64, and rows of 128 bits"):format(way, dtype), function()
                check { spans = { { 0, 130 } }, K = 16, V = 24, Hk = 1, Hv = 2, g_low = -0.1 }
            end)

            it(("%s, %s: more than one tile of columns"):format(way, dtype), function()
                check { spans = { { 1, 9 } }, T = 10, K = 72, V = 70, chunk = 8 }
            end)

            it(("%s, %s: no states given, and no spans"):format(way, dtype), function()
                check { spans = { { 2, 9 } }, T = 12, K = 8, V = 4, without_states = true }
                check { spans = {}, T = 3, K = 8, V = 4 }
                check { spans = { { 0, 0 } }, T = 0, K = 8, V = 4 }
            end)
        end
    end

    it("the largest heads", function()
        for _, op in ipairs(OPS) do
            gdn.check(device, { spans = { { 0, 3 } }, K = 128, V = 128 }, op, "bf16", "best",
                BOUNDS.bf16)
            gdn.check(device, { spans = { { 0, 3 } }, K = 256, V = 130, chunk = 2 }, op, "f32",
                "best", BOUNDS.f32)
        end
    end)

    it("bf16: states are wide", function()
        local case = { spans = { { 0, 130 } }, K = 16, V = 24, g_low = -0.02 }
        local is_wide = { state_out = true, d_state_in = true, transition = true, offset = true,
            dg = true, dbeta = true }
        for _, op in ipairs(OPS) do
            local results, expected = gdn.run(device, case, op, "bf16", "best")
            for name, list in pairs(results) do
                local distance = numbers.error(list, expected[name])
                -- What is bf16 itself cannot be as close.
                assert.equal(is_wide[name] or false, distance < WIDE_BOUND, op .. " " .. name)
            end
        end
    end)
end

local function describe_decay(device)
    -- Gates of 0, some that forget nearly all, and some that forget all.
    local function forgetful()
        local gates = {}
        for i = 0, 79 do
            gates[i] = ({ 0, -1e-3, -50, 0, -0.1, -1e4, -200 })[i * i % 7 + 1]
        end
        return { spans = { { 0, 70 }, { 71, 9 } }, K = 8, V = 6, gates = gates }
    end

    for _, way in ipairs(WAYS) do
        it(way .. ": a reset costs no accuracy after it", function()
            for _, op in ipairs(OPS) do
                gdn.check(device, forgetful(), op, "f64", way, BOUNDS.f64)
                if op ~= "gdn_summary" then -- a transition of 1e-40 is no normal f32
                    gdn.check(device, forgetful(), op, "f32", way, BOUNDS.f32)
                end
            end
            -- A difference of sums of f32 would be off by half a unit of 1e4, this much of a decay.
            assert.is_true(2 ^ -24 * 8192 > 10 * BOUNDS.f32)
        end)

        it(way .. ": nothing is infinite, whatever the decay", function()
            for _, g in ipairs { -50, -1e4, -math.huge } do
                local case = { spans = { { 0, 66 } }, K = 4, V = 3, g_low = g, g_high = g }
                if g == -math.huge then
                    case.g_low, case.g_high, case.gates = 0, 0, {}
                    for i = 0, 65, 3 do case.gates[i] = g end
                end
                for _, op in ipairs(OPS) do
                    for name, list in pairs((gdn.run(device, case, op, "bf16", way))) do
                        for _, x in ipairs(list) do
                            assert.is_true(x - x == 0, ("%s %s"):format(op, name))
                        end
                    end
                end
            end
        end)
    end
end

local function describe_order(device)
    it("the same bits in every order of threads", function()
        for _, way in ipairs(WAYS) do
            for _, op in ipairs(OPS) do
                local first
                for _, order in ipairs(device.orders) do
                    device:set_order(order)
                    local case = { spans = { { 0, 7 }, { 9, 2 } }, T = 12, K = 5, V = 3, Hk = 1,
                        Hv = 2, chunk = 5 }
                    local results = gdn.run(device, case, op, "bf16", way)
                    first = first or results
                    assert.same(first, results)
                end
            end
        end
        device:set_order(device.orders[1])
    end)
end

-- One span a row, of one token; or, by chunks, of none but here and there: the emulator is slow.
local function many(n, is_one)
    local spans, slot = {}, 0
    for i = 1, n do
        local length = is_one(i) and 1 or 0
        spans[i] = { slot, length }
        slot = slot + length
    end
    return { spans = spans, K = 1, V = 1 }
end

local function describe_lists(device)
    it("70,000 spans", function()
        gdn.check(device, many(70000, function() return true end), "gdn", "f32", "naive",
            BOUNDS.f32)
        local few = many(70000, function(i) return i % 2000 == 7 end)
        gdn.check(device, few, "gdn_backward", "f32", "best", BOUNDS.f32)
    end)

    it("M S + B is the state that leaves", function()
        local case = { spans = { { 0, 70 }, { 70, 0 }, { 70, 3 } }, K = 4, V = 3, Hk = 1, Hv = 2 }
        for _, dtype in ipairs { "f64", "bf16" } do
            local out = gdn.run(device, case, "gdn", dtype, "best").state_out
            local start = gdn.inputs(case, dtype).state_in
            case.without_states = true
            local summary = gdn.run(device, case, "gdn_summary", dtype, "best")
            case.without_states = nil
            local made = {}
            for i = 0, 3 * 2 * 4 * 3 - 1 do -- span and head, row, column
                local at, row, column = math.floor(i / 12), math.floor(i / 3) % 4, i % 3
                local sum = summary.offset[i + 1]
                for j = 0, 3 do
                    sum = sum + summary.transition[at * 16 + row * 4 + j + 1]
                        * start.exact[at * 12 + j * 3 + column]
                end
                made[i + 1] = sum
            end
            local bound = dtype == "f64" and BOUNDS.f64 or WIDE_BOUND
            numbers.close("state", made, out, bound)
        end
    end)

    it("spans are read when a graph is replayed", function()
        local case = awkward()
        local other = awkward()
        other.spans = { { 1, 2 }, { 4, 8 }, { 12, 0 }, { 13, 1 }, { 14, 12 } }
        local results, expected = gdn.replay(device, case, other, "gdn_backward", "f64")
        for name, list in pairs(results) do
            numbers.close(name, list, expected[name], BOUNDS.f64)
        end
    end)
end

local function describe_refusals(device)
    local function refusal(change)
        local case = { K = 64, V = 64, chunk = 64 }
        for name, value in pairs(change) do case[name] = value end
        return gdn.refusal(device, case, "f32")
    end

    it("says what it does not take", function()
        assert.is_nil(refusal {})
        assert.is_nil(refusal { K = 256, V = 1, chunk = 1 })
        assert.equal("gdn: a device takes key_dim and value_dim from 1 to 256, not 257 and 64",
            refusal { K = 257 })
        assert.equal("gdn: a device takes key_dim and value_dim from 1 to 256, not 64 and 0",
            refusal { V = 0 })
        assert.equal("gdn: a device takes chunks of 1 to 64 rows, not 65", refusal { chunk = 65 })
        assert.has_error(function()
            gdn.run(device, { spans = { { 0, 1 } }, K = 257, V = 1 }, "gdn", "f32", "best")
        end)
    end)

    it("is seen to be wrong by the bounds of this spec", function()
        local case = awkward()
        case.gates = { [1] = -0.3 }
        local results = gdn.run(device, case, "gdn", "bf16", "best")
        case.gates = { [1] = -0.35 }
        local _, expected = gdn.run(device, case, "gdn", "bf16", "best")
        assert.is_true(numbers.error(results.o, expected.o) > BOUNDS.bf16)
        assert.is_true(numbers.error(results.state_out, expected.state_out) > 10 * WIDE_BOUND)
    end)
end

for _, name in ipairs { "plain", "device" } do
    describe(("the delta rule, %s,"):format(name), function()
        local device, why = cuda_device.open(name)
        if not device then
            it("is the reference's", function() pending(why) end)
            return
        end
        describe_results(device)
        describe_decay(device)
        describe_order(device)
        describe_lists(device)
        describe_refusals(device)
    end)
end

describe("the delta rule, checked,", function()
    local device, why = cuda_device.open "checked"
    if not device then
        it("keeps to its memory", function() pending(why) end)
        return
    end

    local small = { spans = { { 1, 3 }, { 4, 0 } }, T = 5, K = 3, V = 2, Hk = 1, Hv = 2, chunk = 2,
        pad = 1 }
    for _, way in ipairs(WAYS) do
        for _, op in ipairs(OPS) do
            it(("%s %s keeps to its memory"):format(op, way), function()
                gdn.check(device, small, op, "bf16", way, BOUNDS.bf16)
            end)
        end
    end

    it("is told of spans beyond the rows", function()
        local case = { spans = { { 0, 4 } }, K = 3, V = 2 }
        for _, way in ipairs(WAYS) do
            assert.matches("out of bounds", gdn.fault(device, case, "gdn", "f32", way), 1, true)
        end
    end)
end)
