-- Multi-token prediction: CP = N equals CP = 1, forward and every gradient, in f64 at 1e-12; its
-- losses by their definition; finite differences; and the bugs of this field, planted.
local clib = require "clib"
local cplab = require "cplab"
local labs = require "spec.support.labs"
local layers = require "spec.support.layers"
local sanitized = require "spec.support.sanitized"
local stacks = require "cplab.stack"
local C, ffi = clib.C, clib.ffi

local BOUND = 1e-12

-- Ragged; sequences shorter than the depth, and an empty one; one token.
local LISTS = { { 7, 9, 8 }, { 2, 17, 0, 1, 3 }, { 1 } }
local MLA = { heads = 4, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2, value_dim = 7 }
local MOE = { experts = 6, top_k = 2, width = 10, shared_width = 7, aux_coefficient = 0.1 }

local function model(policy, depth, kind, changes)
    local m = labs.model { policy = policy, pattern = "G*",
        mtp = { depth = depth, kind = kind, loss_scale = 0.3 } }
    for name, value in pairs(changes or {}) do m[name] = value or nil end
    return m
end

local function check(stream, m, cp, options, tp)
    local metrics = labs.parity_step(stream, m, cp, options, tp)
    labs.assert_parity(metrics, BOUND)
    assert.equal(0, metrics.routes_built_in_step)
    assert.equal(m.mtp.depth, #metrics.mtp_losses)
    return metrics
end

describe("a stack with MTP equals one rank", function()
    for _, policy in ipairs { "zigzag", "contiguous", "mirror", "balanced", "native" } do
        for _, cp in ipairs { 1, 2, 3, 4 } do
            for depth = 1, 3 do
                it(("under %s at cp %d, depth %d"):format(policy, cp, depth), function()
                    for i, real in ipairs(LISTS) do
                        local kind = (i + depth) % 2 == 0 and "gdn" or "gqa"
                        if sanitized.takes(i + cp, 3, depth) then
                            check(labs.padded(real, 2 * cp), model(policy, depth, kind), cp)
                        end
                    end
                end)
            end
        end
    end

    it("at cp 8, with more ranks than tokens", function()
        check(labs.padded({ 5 }, 16), model("mirror", 2, "gqa"), 8)
        check(labs.padded({ 5, 6, 8, 5 }, 16), model("native", 2, "gdn"), 8)
    end)

    it("on an unpacked stream, contiguous included", function()
        for _, policy in ipairs { "zigzag", "contiguous", "native", { "balanced", "balanced",
            "contiguous" }, { "contiguous", "contiguous", "contiguous" } } do
            check({ seqlen = 24, batch = 1 }, model(policy, 2, "gqa"), 3)
            check({ seqlen = 24, batch = 1 }, model(policy, 2, "gdn"), 3)
        end
    end)

    it("near any layout, also where the model lives in a balanced one", function()
        for _, live in ipairs { "contiguous", "zigzag", "mirror", "balanced" } do
            check(labs.padded({ 13, 3, 0, 29 }, 8), model({ live, "balanced", "contiguous" }, 2,
                "gqa"), 4)
            check(labs.padded({ 13, 3, 0, 29 }, 8), model({ live, "balanced", "balanced" }, 2,
                "gdn"), 4)
        end
    end)

    it("with every mode of its block", function()
        local stream = labs.padded({ 2, 17, 0, 11 }, 8)
        for _, kind in ipairs { { "gqa", cp_mode = "p2p" }, { "gqa", cp_mode = "a2a" },
            { "gqa", cp_mode = "a2a+p2p", a2a = 2 }, { "gqa", cp_mode = "p2p", window = 3 },
            { "gdn", cp_mode = "headwise" }, { "mla", cp_mode = "p2p" }, "mla" } do
            for _, policy in ipairs { "zigzag", "mirror" } do
                check(stream, model(policy, 2, kind, { mla = MLA }), 4)
            end
        end
    end)

    it("with a tied head, without an MLP, with lazy routes", function()
        local stream = labs.padded({ 7, 2, 8 }, 8)
        check(stream, model("zigzag", 2, "gqa", { tied = true }), 4)
        check(stream, model("mirror", 2, "gdn", { tied = true, mlp = false }), 4)
        local m = labs.parity_step(stream, model("zigzag", 2, "gdn", { routes = "lazy" }), 4)
        assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND)
        assert.equal(3, m.routes_built_in_step) -- the layer's and one for each depth
    end)

    it("with experts, of which a depth gives none to rows without a token", function()
        local real = { 7, 2, 8 }
        for _, case in ipairs { { "zigzag", 4, "gqa" }, { "mirror", 3, "gdn" },
            { "balanced", 2, "gqa" }, { "native", 1, "gdn" } } do
            local m = check(labs.padded(real, 2 * case[2]), model(case[1], 2, case[3],
                { mlp = false, moe = MOE }), case[2])
            assert.is_true(m.moe_margin > 1e-9)
            -- Two layers of 17 tokens; 6 + 1 + 7 of depth 1, 5 + 0 + 6 of depth 2.
            assert.equal(2 * (2 * 17 + 14 + 11), m.moe_choices)
            assert.equal(4, #m.expert_tokens)
        end
    end)

    it("on a batch of columns, which is the same as packed sequences", function()
        local n, batch, columns, packed = 24, 3, {}, {}
        for i = 0, n * batch - 1 do
            packed[i + 1] = (7 * i + i * i) % 17
            columns[i % n * batch + math.floor(i / n) + 1] = packed[i + 1]
        end
        local sbhd, thd = { seqlen = n, batch = batch, tokens = columns },
            { lengths = { n, n, n }, tokens = packed }
        for _, policy in ipairs { "zigzag", "mirror", "balanced", "native" } do
            for cp = 1, 4 do
                local kind = cp % 2 == 0 and "gqa" or "gdn"
                local m = check(sbhd, model(policy, 2, kind), cp)
                local alone = check(thd, model(policy, 2, kind), 1)
                for d = 1, 2 do
                    assert.is_true(math.abs(m.mtp_losses[d] - alone.mtp_losses[d]) <= BOUND * 10)
                end
                assert.is_true(math.abs(m.grad_norm / alone.grad_norm - 1) <= BOUND)
            end
        end
    end)

    it("with tensor parallelism, fused and composed", function()
        for _, policy in ipairs { "zigzag", "mirror", "balanced", "native" } do
            for _, group in ipairs { { 1, 2 }, { 2, 2 }, { 3, 2 }, { 2, 4 } } do
                local cp, tp = unpack(group)
                local stream = labs.padded({ 13, 2, 0, 9 }, 2 * cp * tp)
                check(stream, model(policy, 2, "gqa", { tied = true }), cp, nil, tp)
                check(stream, model(policy, 2, "gdn", { exchange = { method = "composed" } }), cp,
                    nil, tp)
            end
            check({ seqlen = 24, batch = 3 }, model(policy, 2, "gqa"), 2, nil, 2)
            local even = { experts = 6, top_k = 2, width = 10, shared_width = 8,
                aux_coefficient = 0.1 }
            local m = check(labs.padded({ 7, 2, 8 }, 8), model(policy, 2, "gdn", { mlp = false,
                moe = even }), 2, nil, 2)
            assert.equal(2 * (2 * 17 + 14 + 11), m.moe_choices)
        end
    end)

    it("and so does training with it", function()
        local training = { iters = 10, optimizer = "adamw", lr = 3e-3, clip = 1 }
        for _, case in ipairs { { "zigzag", 4 }, { "native", 3 } } do
            local multiple = 2 * case[2]
            local result = assert(labs.run { cp = case[2], stream = labs.padded({ 30, 13 },
                multiple), model = model(case[1], 2, "gqa", { tied = true }),
                calls = { { "step", training }, { "reference", training } } })
            local trained, reference = unpack(result.answers)
            assert.is_true(trained.losses[10] < trained.losses[1] - 0.01)
            for i = 1, 10 do
                assert.is_true(math.abs(trained.losses[i] - reference.losses[i])
                    <= 1e-10 * trained.losses[i])
            end
        end
    end)
end)

describe("recomputation with MTP", function()
    for _, case in ipairs { { "zigzag", 4, "gqa", { tied = true } }, { "mirror", 2, "gdn" },
        { "native", 3, "gdn", { mlp = false, moe = MOE } }, { "contiguous", 1, "gqa" },
        { "zigzag", 2, "gdn", nil, 2 } } do
        local cp, tp = case[2], case[5] or 1
        it(("gives the same bits under %s at cp %d, tp %d"):format(case[1], cp, tp), function()
            local result = assert(labs.run { cp = cp, tp = tp,
                stream = labs.padded({ 30, 2, 13 }, 2 * cp * tp),
                model = model(case[1], 3, case[3], case[4]), calls = {
                    { "step", { reference = true, trace = true } },
                    { "step", { reference = true, trace = true, recompute = "layer" } } } })
            local plain, again = unpack(result.answers)
            for _, name in ipairs { "loss", "total_loss", "grad_norm", "parity_fwd", "parity_grad",
                "aux_loss", "moe_choices", "conversions_fwd" } do
                assert.equal(plain[name], again[name], name)
            end
            assert.is_true(again.parity_grad <= BOUND)
            assert.equal(2 * plain.conversions_bwd, again.conversions_bwd)
        end)
    end
end)

-- ---- on one rank, from inside -------------------------------------------------------

local function live(changes, stream, recompute)
    local fields = labs.model(changes)
    fields.schedule = cplab.schedule.pattern(fields.pattern, #fields.pattern)
    fields.pattern = nil
    return stacks.new { model = cplab.model(fields), cp = 1, tp = 1, recompute = recompute,
        stream = cplab.stream.thd(stream or { lengths = { 10, 0, 6, 2 }, real = { 7, 0, 6, 1 } }),
        comm = C.cpl_comm_self() }
end

local function doubles(tensor)
    return ffi.cast("double *", tensor.data), tonumber(C.cpl_tensor_n_elements(tensor))
end

-- The mean of -log softmax(logits)[the token `ahead` on], where the sequence has one.
local function naive_loss(stack, logits, ahead)
    local data, vocab = doubles(logits), stack.model.vocab
    local token, sum, n = ffi.cast("int32_t *", stack.tokens.data), 0, 0
    local start = 0
    for s = 0, stack.stream:n_sequences() - 1 do
        local sequence = stack.stream:sequence(s)
        for p = start, start + sequence.real - 1 - ahead do
            local total = 0
            for v = 0, vocab - 1 do total = total + math.exp(data[p * vocab + v]) end
            sum, n = sum + math.log(total) - data[p * vocab + token[p + ahead]], n + 1
        end
        start = start + sequence.padded
    end
    return sum / math.max(n, 1), n
end

describe("the losses of MTP", function()
    it("are means over the tokens that have a label at that depth, added by their scale", function()
        local stack = live { pattern = "G*", mtp = { depth = 3, kind = "gqa", loss_scale = 0.3 } }
        layers.fill(stack.parameters.weights, "weights")
        local loss = stack:step {}
        local expected = naive_loss(stack, stack.logits, 1)
        assert.is_true(math.abs(loss - expected) < 1e-12)
        local sum = 0
        for d, labelled in ipairs { 5 + 4, 4 + 3, 3 + 2 } do
            local of_depth, n = naive_loss(stack, stack.depths[d].logits, d + 1)
            assert.equal(labelled, n)
            assert.is_true(math.abs(stack.mtp_losses[d] - of_depth) < 1e-12)
            sum = sum + of_depth
        end
        assert.is_true(math.abs(stack.total_loss - loss - 0.3 / 3 * sum) < 1e-12)
    end)

    it("are 0 where no sequence is long enough, and so are all gradients of that depth", function()
        local stack = live({ pattern = "G*", mtp = { depth = 2, kind = "gdn" } },
            { lengths = { 4, 4 }, real = { 2, 1 } })
        stack:step { backward = true }
        assert.same({ 0, 0 }, stack.mtp_losses)
        for _, entry in ipairs(stack.parameters.list) do
            if entry.name:match "^mtp%." then
                local data, n = doubles(entry.grad)
                for i = 0, n - 1 do assert.equal(0, data[i]) end
            end
        end
    end)

    it("change no bit of the main loss, nor, with scale 0, of its gradients", function()
        local plain = live { pattern = "G*" }
        local with = live { pattern = "G*", mtp = { depth = 2, kind = "gqa", loss_scale = 0 } }
        assert.equal(plain:step { backward = true }, with:step { backward = true })
        for i, entry in ipairs(plain.parameters.list) do
            local other = with.parameters.list[i]
            assert.equal(entry.name, other.name)
            local a, n = doubles(entry.grad)
            local b = doubles(other.grad)
            for j = 0, n - 1 do assert.equal(a[j], b[j], entry.name) end
        end
    end)
end)

describe("depths of MTP", function()
    it("keep less with recomputation", function()
        local function bytes(recompute)
            local stats = ffi.new "cpl_memory_stats"
            local function now()
                collectgarbage()
                collectgarbage()
                C.cpl_memory(stats)
                return tonumber(stats.live_bytes)
            end
            local before = now()
            local stack = live({ pattern = "G*", mtp = { depth = 3, kind = "gqa" } }, nil,
                recompute)
            return now() - before, stack
        end
        local plain, again = bytes(nil), bytes("layer")
        -- At least e, ne, nh and final_h of two depths, 18 rows of 12.
        assert.is_true(plain - again >= 8 * 2 * 4 * 18 * 12)
    end)

    it("read nothing that a step has not written: NaN in all scratch changes no bit", function()
        for _, recompute in ipairs { false, "layer" } do
            local function gradients(poison)
                local stack = live({ pattern = "G*", mtp = { depth = 2, kind = "gdn" } }, nil,
                    recompute or nil)
                C.cpl_faults_here().poison_scratch = poison and 1 or 0
                local places = { stack, unpack(stack.depths) }
                for _, place in ipairs(poison and places or {}) do
                    for _, name in ipairs { "h", "y", "d", "dh", "t", "e", "ne", "nh", "de",
                        "final_h", "logits", "dlogits" } do
                        if place[name] then C.cpl_tensor_fill(place[name], 0 / 0) end
                    end
                end
                stack:step { backward = true }
                C.cpl_faults_here().poison_scratch = 0
                local data, n = doubles(stack.parameters.grads)
                return ffi.string(data, n * 8), stack.grad_norm
            end
            local clean, norm = gradients(false)
            assert.is_true(norm > 0)
            assert.is_true(clean == gradients(true))
        end
    end)

    it("see no other document: other tokens there change no bit here", function()
        for _, kind in ipairs { "gqa", "gdn" } do
            local function logits_of(changed)
                local tokens = {}
                for i = 1, 18 do tokens[i] = (5 * i + (i > 10 and changed or 0)) % 17 end
                local stack = live({ pattern = "G*", mtp = { depth = 2, kind = kind } },
                    { lengths = { 10, 8 }, real = { 9, 8 }, tokens = tokens })
                stack:step {}
                local lists = {}
                for d = 1, 2 do
                    local data, n = doubles(stack.depths[d].logits)
                    lists[d] = {}
                    for i = 1, n do lists[d][i] = data[i - 1] end
                end
                return lists
            end
            local a, b = logits_of(0), logits_of(1)
            for d = 1, 2 do
                local differs = false
                for i = 1, 18 * 17 do
                    if i <= 10 * 17 then assert.equal(a[d][i], b[d][i]) end
                    differs = differs or a[d][i] ~= b[d][i]
                end
                assert.is_true(differs)
            end
        end
    end)
end)

describe("the gradients of MTP equal finite differences of the total loss", function()
    local STEP, TOLERANCE = 1e-6, 1e-5
    for name, changes in pairs { ["of two depths of gqa"] = { mtp = { depth = 2, kind = "gqa",
        loss_scale = 0.7 } }, ["of one of gdn, tied"] = { tied = true,
        mtp = { depth = 1, kind = "gdn", loss_scale = 2 } } } do
        it(name, function()
            changes.pattern = "G*"
            local stack = live(changes)
            layers.fill(stack.parameters.weights, "weights")
            stack:step { backward = true }
            local all, n_all = doubles(stack.parameters.grads)
            local kept = ffi.new("double[?]", n_all)
            ffi.copy(kept, all, n_all * 8)
            local function total(weights, i, value)
                weights[i] = value
                stack:step {}
                return stack.total_loss
            end
            for _, entry in ipairs(stack.parameters.list) do
                local grads, n = doubles(entry.grad)
                local weights = doubles(entry.weight)
                local gradient, largest = kept + (grads - all), 1e-3
                for i = 0, n - 1 do largest = math.max(largest, math.abs(gradient[i])) end
                for i = 0, n - 1, math.max(1, math.floor(n / 3)) do
                    local w = weights[i]
                    local expected = (total(weights, i, w + STEP) - total(weights, i, w - STEP))
                        / (2 * STEP)
                    weights[i] = w
                    assert.is_true(math.abs(expected - gradient[i]) <= TOLERANCE * largest,
                        ("%s[%d]: differences %.10g, backward %.10g"):format(entry.name, i,
                            expected, gradient[i]))
                end
            end
        end)
    end
end)

describe("a step with MTP", function()
    it("allocates nothing after the first, with and without recomputation", function()
        for _, recompute in ipairs { false, "layer" } do
            local stack = live({ pattern = "G*", mtp = { depth = 2, kind = "gqa" } }, nil,
                recompute or nil)
            stack:step { backward = true }
            local before, after = ffi.new "cpl_memory_stats", ffi.new "cpl_memory_stats"
            C.cpl_memory(before)
            stack:step { backward = true }
            C.cpl_memory(after)
            assert.equal(before.n_allocations, after.n_allocations)
        end
    end)

    it("converts around the block of each depth as around a layer", function()
        local function conversions(policy, kind, cp)
            return labs.parity_step({ lengths = { 24 } }, model(policy, 3, kind), cp)
                .conversions_fwd
        end
        assert.equal(2 + 6, conversions("zigzag", "gdn", 2))
        assert.equal(2, conversions("zigzag", "gqa", 2))
        assert.equal(2 + 6, conversions("mirror", "gqa", 2))
        assert.equal(2, conversions("mirror", { "gqa", cp_mode = "a2a" }, 2))
        assert.equal(0, conversions("native", "gdn", 2))
        assert.equal(0, conversions("mirror", "gqa", 1))
    end)

    it("prepares a route for each roll, and rolls nothing", function()
        local function routes(depth)
            return labs.parity_step({ lengths = { 24 } }, model("native", depth, "gdn"), 2)
                .routes_built
        end
        -- Of each depth a roll, and the halo and the chain of its block.
        assert.equal(routes(2) - routes(1), routes(3) - routes(2))
    end)
end)

describe("planted faults of MTP", function()
    local REAL = { 30, 2, 13 }
    local function step(faults, changes, seed)
        changes = changes or {}
        changes.seed = seed
        return labs.parity_step(labs.padded(REAL, 8), model("zigzag", 2, "gqa", changes), 4,
            { faults = faults })
    end

    it("a roll across the end of a sequence: the loss and parity", function()
        local clean, m = step(nil, nil, 31), step({ roll = "across" }, nil, 31)
        assert.is_true(clean.parity_fwd <= BOUND)
        assert.is_true(math.abs(m.mtp_losses[1] - clean.mtp_losses[1]) > 1e-3)
        assert.is_true(m.parity_fwd > 1e-6 and m.parity_grad > 1e-6)
    end)

    it("fill at the padded end instead of the real one: the loss and parity", function()
        local clean, m = step(nil, nil, 32), step({ roll = "padded" }, nil, 32)
        assert.is_true(math.abs(m.mtp_losses[1] - clean.mtp_losses[1]) > 1e-3)
        assert.is_true(m.parity_fwd > 1e-6 and m.parity_grad > 1e-6)
    end)

    it("T-79, T-81: the padding mask not rolled, or rolled twice: the counts of experts", function()
        local moe = { mlp = false, moe = MOE }
        assert.equal(2 * (2 * 45 + 42 + 39), step(nil, moe, 33).moe_choices)
        for roll, choices in pairs { [0] = 2 * 4 * 45, [2] = 2 * (2 * 45 + 39 + 35) } do
            local m = step({ mask_roll = roll }, moe, 33)
            assert.equal(choices, m.moe_choices)
            assert.is_true(m.parity_grad > 1e-6)
        end
    end)

    it("a depth's sum over tp ranks left out: parity", function()
        local m = model("zigzag", 2, "gqa")
        for _, name in ipairs { "mtp.1.gqa", "mtp.2.mlp" } do
            local function with(pass)
                return labs.parity_step(labs.padded(REAL, 8), m, 2, { faults = { skip_sum = {
                    name = name, pass = pass } } }, 2)
            end
            assert.is_true(with("fwd").parity_fwd > 1e-6)
            local backward = with "bwd"
            assert.is_true(backward.parity_fwd <= BOUND)
            assert.is_true(backward.parity_grad > 1e-6)
        end
    end)

    it("a column's state handed to the next one: parity", function()
        -- Depths alone have a state.
        local m = labs.parity_step({ seqlen = 24, batch = 3 }, model("contiguous", 2, "gdn",
            { pattern = "**" }), 2, { faults = { cross_columns = { rank = 1 } } })
        assert.is_true(m.parity_fwd > 1e-6)
        assert.truthy(m.parity_fwd_where:match "^mtp%.")
    end)

    it("a conversion of a depth skipped: the trace names it", function()
        local result = assert(labs.run { stream = labs.padded(REAL, 8), cp = 4,
            model = model("mirror", 2, "gqa"), options = { faults = { skip_back = { layer = 3 } } },
            calls = { { "step", { reference = true, trace = true } } } })
        assert.is_true(result.answers[1].wrong_rows > 0)
        assert.truthy(result.checks[1].name:match "^trace: mtp%.2%.gqa %(output%), rank %d+, slot")
    end)
end)

describe("a model with MTP", function()
    local function fields(mtp, changes)
        local t = labs.model(changes)
        t.schedule, t.pattern, t.mtp = cplab.schedule.pattern("G*", 2), nil, mtp
        return t
    end

    it("refuses what cannot be", function()
        local function refused(message, mtp, changes)
            local ok, got = pcall(function() return cplab.model(fields(mtp, changes)) end)
            assert.is_false(ok)
            assert.equal(message, (got:gsub("^.-mtp_spec%.lua:%d+: ", "")))
        end
        refused('model.mtp: unknown field "depht"; did you mean "depth"?',
            { kind = "gqa", depht = 1 })
        refused("model.mtp: depth must be an integer in 1 .. 2147483647 (got 0)",
            { kind = "gqa", depth = 0 })
        refused("model.mtp: a mla layer, but there is no field 'mla'", { kind = "mla" })
        refused("model.mtp: loss_scale must be a number from 0 on (got -1)",
            { kind = "gqa", loss_scale = -1 })
        refused('model.mtp: unknown layer kind "gqb"; did you mean "gqa"?', { kind = "gqb" })
    end)

    it("has another signature, but for modes, and as many parameters as its stack", function()
        local seen = {}
        for _, mtp in ipairs { { kind = "gqa" }, { kind = "gdn" }, { kind = "gqa", depth = 2 },
            { kind = "gqa", loss_scale = 0.2 }, { kind = { "gqa", window = 3 } } } do
            local text = cplab.model(fields(mtp)):signature()
            assert.is_nil(seen[text])
            seen[text] = true
        end
        assert.is_true(seen[cplab.model(fields { kind = { "gqa", cp_mode = "p2p" } }):signature()])
        local stack = live { pattern = "G*", mtp = { depth = 2, kind = "gqa" } }
        assert.equal(stack.parameters.n, (stack.model:n_parameters()))
    end)

    it("is described by show as it runs with tensor parallelism", function()
        local outline = require "cplab.outline"
        for _, method in ipairs { "auto", "composed" } do
            local changes = { policy = "mirror", exchange = { method = method } }
            local mtp = { kind = { "gqa", cp_mode = "a2a" }, depth = 2 }
            local text = table.concat(outline.lines(cplab.stream.thd { lengths = { 32 } },
                cplab.model(fields(mtp, changes)), 2, 2), "\n")
            changes.pattern, changes.mtp = "G*", mtp
            local m = labs.parity_step({ lengths = { 32 } }, labs.model(changes), 2, nil, 2)
            assert.truthy(text:find(("conversions  %d a forward pass"):format(m.conversions_fwd),
                1, true), text)
            assert.truthy(text:find(("gathers      %d a forward pass"):format(m.gathers_fwd), 1,
                true), text)
        end
    end)

    it("is described by show, its conversions counted", function()
        local outline = require "cplab.outline"
        local m = cplab.model(fields({ kind = { "gqa", cp_mode = "p2p" }, depth = 2,
            loss_scale = 0.5 }, { policy = "mirror" }))
        local text = table.concat(outline.lines(cplab.stream.thd { lengths = { 16 } }, m, 2), "\n")
        assert.truthy(text:find("mtp          2 depths of GQA p2p in mirror; loss scale 0.5", 1,
            true))
        assert.truthy(text:find("conversions  6 a forward pass", 1, true))
    end)
end)
