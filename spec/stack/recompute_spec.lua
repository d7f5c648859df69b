-- Recomputation: the same bits as without it, its conversions counted, less memory; and that the
-- replay is what makes it right.
local clib = require "clib"
local cplab = require "cplab"
local labs = require "spec.support.labs"
local optimizers = require "cplab.optimizer"
local stacks = require "cplab.stack"
local C, ffi = clib.C, clib.ffi

ffi.cdef "int memcmp(const void *a, const void *b, size_t n);"

local STREAM = { lengths = { 32, 16 }, real = { 30, 13 } }
local MOE = { experts = 6, top_k = 2, width = 10, shared_width = 7, aux_coefficient = 0.1 }

local function steps(policy, cp, changes)
    local stream = cp == 3 and { lengths = { 36, 18 }, real = { 30, 13 } } or STREAM
    local model = labs.model { policy = policy }
    for name, value in pairs(changes or {}) do model[name] = value or nil end
    local training = { iters = 4, optimizer = "adamw", lr = 3e-3, clip = 1 }
    local again = { iters = 4, optimizer = "adamw", lr = 3e-3, clip = 1, recompute = "layer" }
    local result, message = labs.run { stream = stream, cp = cp, model = model, calls = {
        { "step", { reference = true, trace = true } },
        { "step", { reference = true, trace = true, recompute = "layer" } },
        { "step", training }, { "step", again }, { "step", { backward = true } } } }
    if not result then error(message, 2) end
    return result.answers
end

describe("recomputation", function()
    local MODELS = { ["with an MLP"] = {}, ["with experts"] = { mlp = false, moe = MOE },
        ["without either"] = { mlp = false } }
    for name, changes in pairs(MODELS) do
        for _, case in ipairs { { "zigzag", 4 }, { "mirror", 2 }, { "balanced", 4 },
            { "native", 3 }, { "contiguous", 1 } } do
            it(("gives the same bits: %s, %s at cp %d"):format(name, case[1], case[2]), function()
                local plain, again, trained, trained_again, last = unpack(steps(case[1], case[2],
                    changes))
                for _, metric in ipairs { "loss", "grad_norm", "parity_fwd", "parity_grad",
                    "aux_loss", "moe_choices", "conversions_fwd", "conversion_bytes_fwd" } do
                    assert.equal(plain[metric], again[metric], metric)
                end
                assert.is_true(again.parity_grad <= 1e-12)
                assert.equal(0, again.wrong_rows)
                assert.same(trained.losses, trained_again.losses)
                assert.equal(plain.conversions_bwd, plain.conversions_fwd)
                assert.equal(2 * plain.conversions_bwd, again.conversions_bwd)
                assert.equal(2 * plain.conversion_bytes_bwd, again.conversion_bytes_bwd)
                assert.equal(plain.conversions_bwd, last.conversions_bwd) -- off again
            end)
        end
    end

    it("keeps what layers of two modes keep apart, where both run in one layout", function()
        local plain, again = unpack(steps("native", 4, { pattern = false, list = {
            "gdn", { "gdn", cp_mode = "headwise" }, "gqa", "gdn",
            { "gdn", cp_mode = "headwise" } } }))
        assert.equal(plain.grad_norm, again.grad_norm)
        assert.is_true(again.parity_grad <= 1e-12)
    end)

    local SIZES = labs.model()
    local function with_gqa(changes, list)
        local gqa = {}
        for name, value in pairs(SIZES.gqa) do gqa[name] = value end
        for name, value in pairs(changes) do gqa[name] = value end
        local mla = { heads = 4, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2,
            value_dim = 7 }
        return { gqa = gqa, mla = mla, pattern = not list and "G*L*" or false, list = list }
    end

    for _, mode in ipairs { "gather", "p2p", "a2a", "a2a+p2p" } do
        it("gives the same bits with attention by " .. mode, function()
            local changes = with_gqa { cp_mode = mode, a2a = mode == "a2a+p2p" and 2 or nil }
            local plain, again, trained, trained_again = unpack(steps("zigzag", 4, changes))
            assert.equal(plain.grad_norm, again.grad_norm)
            assert.equal(plain.loss, again.loss)
            assert.is_true(again.parity_grad <= 1e-12)
            assert.same(trained.losses, trained_again.losses)
        end)
    end

    -- The sizes of buffers agree where their meanings, or the places of their padding, do not: of a
    -- group of 2 and one of 4, of GQA and MLA with the same widths, of windows.
    it("keeps apart what attention of other modes, windows, groups and kinds keeps", function()
        local function gqa(mode, window, a2a)
            return { "gqa", cp_mode = mode, window = window, a2a = a2a }
        end
        local changes = with_gqa({}, { gqa("a2a+p2p", 0, 2), gqa("a2a+p2p", 0, 4), gqa("p2p", 3),
            gqa("gather", 4), gqa("gather", 7), gqa("a2a"), { "mla", cp_mode = "p2p" }, "gqa",
            gqa("a2a+p2p", 5, 4), gqa("a2a+p2p", 0, 2) })
        changes.mla = { heads = 4, q_rank = 16, kv_rank = 8, nope_dim = 3, value_dim = 8 }
        for _, policy in ipairs { "native", "contiguous" } do
            local plain, again, trained, trained_again = unpack(steps(policy, 4, changes))
            assert.equal(plain.grad_norm, again.grad_norm)
            assert.is_true(again.parity_grad <= 1e-12)
            assert.equal(0, again.wrong_rows)
            assert.same(trained.losses, trained_again.losses)
        end
    end)

    it("refuses what it does not know", function()
        local result, message = labs.run { stream = STREAM, cp = 1, model = labs.model(),
            calls = { { "step", { backward = true, recompute = "block" } } } }
        assert.is_nil(result)
        assert.truthy(message:find('lab:step: unknown recompute "block"; there are layer', 1,
            true), message)
    end)
end)

local function live(recompute, pattern, n)
    local fields = labs.model()
    fields.schedule = type(pattern) == "table" and cplab.schedule.list(pattern)
        or cplab.schedule.pattern(pattern or "GG*", n or 6)
    fields.pattern = nil
    return stacks.new { model = cplab.model(fields), cp = 1, tp = 1, recompute = recompute,
        stream = cplab.stream.thd { lengths = { 40, 24 }, real = { 37, 24 } },
        comm = C.cpl_comm_self() }
end

local function live_bytes()
    local stats = ffi.new "cpl_memory_stats"
    collectgarbage()
    collectgarbage()
    C.cpl_memory(stats)
    return tonumber(stats.live_bytes)
end

-- What f makes takes so many bytes. Measured until it is the same twice: the collector keeps what a
-- stale slot of the stack still names, and what specs before left may go in between.
local function bytes_of(f)
    local last
    for _ = 1, 6 do
        local before = live_bytes()
        local made = f()
        local bytes = live_bytes() - before
        if made and bytes == last then return bytes end
        last = bytes
    end
    error "no two measurements are equal"
end

describe("a stack that recomputes", function()
    it("has every gradient's bits, and outputs that stay", function()
        local plain, again = live(), live("layer")
        assert.equal(plain:step { backward = true }, again:step { backward = true })
        for i, list in ipairs { "gradients", "outputs", "input_gradients" } do
            local a, b = plain[list](plain), again[list](again)
            assert.is_true(#a > (i < 3 and 5 or 0))
            for j = 1, #a do
                assert.equal(0, ffi.C.memcmp(a[j].tensor.data, b[j].tensor.data,
                    C.cpl_tensor_bytes(a[j].tensor)), a[j].name)
            end
        end
    end)

    it("T-42: is wrong without the replay: blocks share what they keep", function()
        local plain, again = live(), live("layer")
        plain:step { backward = true }
        again.recompute = nil
        again:step { backward = true }
        assert.is_true(math.abs(plain.grad_norm - again.grad_norm) > 1e-6)
    end)

    it("keeps one input a block: memory grows by that and the parameters alone", function()
        local function growth(recompute)
            local few = bytes_of(function() return live(recompute, "GG*", 3) end)
            local many = bytes_of(function() return live(recompute, "GG*", 9) end)
            return many - few
        end
        local plain, again = growth(nil), growth("layer")
        local three, nine = live(nil, "GG*", 3), live(nil, "GG*", 9)
        -- Values, gradients and the drawn ones; block inputs of 64 rows of 12.
        local needed = 8 * (3 * (nine.parameters.n - three.parameters.n) + 6 * 64 * 12)
        assert.is_true(again >= needed)
        assert.is_true(again - needed < (plain - needed) / 4,
            ("%d bytes beyond, %d without"):format(again - needed, plain - needed))
    end)

    it("shares what attention keeps among layers alike in mode, window and group", function()
        local function bytes(one, other)
            return bytes_of(function() return live("layer", { one, other }) end)
        end
        local function layer(mode, window, a2a)
            return { "gqa", cp_mode = mode, window = window, a2a = a2a }
        end
        local gqa = labs.model().gqa
        local q, kv = gqa.heads * gqa.head_dim, gqa.kv_heads * gqa.head_dim
        local kept = 64 * (5 * q + 3 * kv + gqa.heads) * 8
        for name, pair in pairs { mode = { layer("p2p", 5), layer("gather", 5) },
            window = { layer("p2p", 5), layer("p2p", 6) },
            group = { layer("a2a+p2p", 5, 2), layer("a2a+p2p", 5, 4) } } do
            local more = bytes(unpack(pair)) - bytes(pair[1], pair[1])
            assert.is_true(more >= kept, ("another %s: %d bytes more, not %d"):format(name, more,
                kept))
        end
    end)

    it("allocates nothing in a step after the first", function()
        local stack = live("layer")
        local options = optimizers.settings("spec", { optimizer = "sgd", lr = 0.1 }, 1)
        options.backward = true
        stack:step(options)
        local before, after = ffi.new "cpl_memory_stats", ffi.new "cpl_memory_stats"
        C.cpl_memory(before)
        stack:step(options)
        C.cpl_memory(after)
        assert.equal(before.n_allocations, after.n_allocations)
    end)
end)
