-- Pipeline stages: run one after the other they give the bits of the whole, forward and backward;
-- and a stage that gets rows in another layout than it expects says so.
local labs = require "spec.support.labs"
local ranks = require "spec.support.ranks"

local BOUND = 1e-12
local STREAM = { lengths = { 32, 16 }, real = { 30, 13 } }

local function lives(...)
    local layers = {}
    for i, live in ipairs { ... } do layers[i] = { live = live } end
    return layers
end

-- Two layers in zigzag, two in contiguous, mirror, zigzag; attention away from home once.
local function mixed()
    local layers = lives("zigzag", "zigzag", "contiguous", "contiguous", "mirror", "zigzag")
    layers[4].mixer = "mirror"
    return { entry = "contiguous", exit = "mirror", layers = layers }
end

local function model(policy, changes)
    local fields = labs.model { policy = policy, pattern = "GGG*G*" }
    for name, value in pairs(changes or {}) do fields[name] = value or nil end
    return fields
end

-- Steps in one lab, so that each follows the one before; raises what a rank raised.
local function run(fields, cp, tp, steps, stream, options)
    local calls = {}
    for i, step in ipairs(steps) do
        step.reference, step.trace = true, true
        calls[i] = { "step", step }
    end
    local result, message = labs.run { stream = stream or STREAM, model = fields, cp = cp, tp = tp,
        options = options, calls = calls }
    if not result then error(message, 2) end
    return unpack(result.answers)
end

local SAME = { "loss", "grad_norm", "parity_fwd", "parity_grad", "conversions_fwd",
    "conversions_bwd", "conversion_bytes_fwd", "conversion_bytes_bwd", "conversion_messages_fwd",
    "routes_built", "aux_loss", "total_loss" }

local function assert_same(whole, cut, what)
    for _, name in ipairs(SAME) do
        assert.equal(whole[name], cut[name], ("%s: %s"):format(what, name))
    end
    assert.is_true(cut.parity_fwd <= BOUND and cut.parity_grad <= BOUND, what)
    assert.equal(0, cut.wrong_rows, what)
end

describe("pipeline stages, one after the other,", function()
    local CUTS = { { pp = 2 }, { stages = { 1, 3, 2 } }, { pp = 3, virtual = 2 }, { pp = 6 },
        { pp = 3, first = 1, last = 1 } }

    for _, policy in ipairs { "zigzag", "contiguous", "mirror", "balanced", "native" } do
        it("give the bits of the whole under " .. policy, function()
            local steps = { {}, CUTS[1], CUTS[2] }
            for i = 2, 3 do steps[i] = { pipeline = steps[i] } end
            local whole, two, three = run(model(policy), 2, 1, steps)
            assert_same(whole, two, "two stages")
            assert_same(whole, three, "three stages")
        end)
    end

    it("T-38: and under an assignment, however they are cut", function()
        local steps = { {} }
        for i, cut in ipairs(CUTS) do steps[i + 1] = { pipeline = cut } end
        local all = { run(model(mixed()), 4, 1, steps) }
        for i = 1, #CUTS do assert_same(all[1], all[i + 1], "cut " .. i) end
        assert.equal(5 + 2, all[1].conversions_fwd)
    end)

    local MTP = { depth = 2, kind = "gqa", loss_scale = 0.3 }
    local MOE = { experts = 5, top_k = 2, width = 8, shared_width = 4, aux_coefficient = 0.5 }
    for what, t in pairs {
        ["tensor parallelism"] = { tp = 2 },
        ["tensor parallelism, composed"] = { tp = 2, changes = { exchange =
            { method = "composed" } } },
        ["recomputation"] = { step = { recompute = "layer" } },
        ["lazy routes"] = { changes = { routes = "lazy" } },
        ["experts"] = { changes = { mlp = false, moe = MOE } },
        ["MTP"] = { changes = { mtp = MTP }, depths = 2 },
        ["a batch of columns"] = { stream = { seqlen = 24, batch = 2 } },
    } do
        it("and with " .. what, function()
            local policy, whole, cut = mixed(), t.step or {}, { pipeline = { stages = { 2, 4 } } }
            for name, value in pairs(whole) do cut[name] = value end
            for _ = 1, t.depths or 0 do
                policy.layers[#policy.layers + 1] = { live = policy.exit, mixer = "zigzag" }
            end
            local a, b = run(model(policy, t.changes), 2, t.tp, { whole, cut }, t.stream)
            assert_same(a, b, what)
        end)
    end

    it("and at cp 1, where all layouts are one", function()
        local whole, cut = run(model(mixed()), 1, 1, { {}, { pipeline = { pp = 2,
            entries = { [1] = "snake" } } } })
        assert_same(whole, cut, "cp 1")
    end)

    it("convert to the entry that they are given, and from there", function()
        local whole, cut = run(model(mixed()), 4, 1, { {}, { pipeline = { stages = { 1, 2, 3 },
            entries = { [1] = "snake", [2] = "contiguous" } } } })
        assert.equal(whole.conversions_fwd + 2, cut.conversions_fwd)
        assert.equal(whole.conversions_bwd + 2, cut.conversions_bwd)
        assert.is_true(cut.parity_fwd <= BOUND and cut.parity_grad <= BOUND)
        assert.equal(whole.loss, cut.loss)
        assert.equal(whole.grad_norm, cut.grad_norm)
        assert.equal(0, cut.wrong_rows)
    end)

    it("may be entered in a layout that is another by name alone", function()
        -- With a tolerance of 9 nothing is swapped: the rows are those of contiguous.
        for home, entry in pairs { contiguous = "balanced@9", ["balanced@9"] = "contiguous" } do
            local layers = lives(home, home, home)
            layers[3].mixer = "mirror"
            local whole, cut = run(model({ entry = home, exit = home, layers = layers },
                { pattern = "GG*" }), 2, 1, { {}, { pipeline = { stages = { 1, 2 },
                    entries = { entry } } } })
            assert.equal(whole.loss, cut.loss)
            assert.equal(whole.conversions_fwd + 2, cut.conversions_fwd)
            assert.equal(whole.conversion_bytes_fwd, cut.conversion_bytes_fwd)
        end
    end)

    -- Stages of two microbatches in turn: 1F1B for two stages and two microbatches.
    it("T-27: may be interleaved with those of another microbatch", function()
        local losses = ranks.run(2, function(comm, p)
            local cplab, stacks = require "cplab", require "cplab.stack"
            local fields = p.fields
            fields.schedule = cplab.schedule.pattern(fields.pattern, #fields.pattern)
            fields.pattern = nil
            local the_model = cplab.model(fields)
            local cut = cplab.pipeline.cut(the_model.schedule, { stages = { 2, 4 } })
            local function new(lengths)
                local stack = stacks.new { model = the_model, comm = comm._ptr, cp = 2, tp = 1,
                    stages = cut, stream = cplab.stream.thd { lengths = lengths } }
                stack.parameters:zero_gradients()
                return stack
            end
            local function gradients(stack)
                local list = {}
                for _, entry in ipairs(stack:gradients()) do
                    local n = tonumber(require("clib").C.cpl_tensor_n_elements(entry.tensor))
                    local data = require("ffi").cast("double *", entry.tensor.data)
                    for i = 0, n - 1 do list[#list + 1] = data[i] end
                end
                return list
            end
            local out = {}
            for i, lengths in ipairs { { 32 }, { 16, 24 } } do
                local stack = new(lengths)
                stack:forward()
                out[i] = { stack:loss() }
                stack:backward()
                out[i][2] = gradients(stack)
            end
            local a, b = new { 32 }, new { 16, 24 }
            a:forward_stage(1) b:forward_stage(1)
            a:forward_stage(2)
            out[3] = { a:loss() }
            a:backward_stage(2)
            b:forward_stage(2)
            out[4] = { b:loss() }
            a:backward_stage(1) b:backward_stage(2) b:backward_stage(1)
            out[3][2], out[4][2] = gradients(a), gradients(b)
            return out
        end, { fields = model(mixed()) })
        for _, out in ipairs(losses) do
            assert.same(out[1], out[3])
            assert.same(out[2], out[4])
        end
    end)
end)

describe("a pipeline stage", function()
    local function message(steps, faults, cp, fields)
        local calls = {}
        for i, step in ipairs(steps) do calls[i] = { "step", step } end
        local result, text = labs.run { stream = STREAM, model = fields or model(mixed()),
            cp = cp or 4, options = { faults = faults }, calls = calls }
        assert.is_nil(result)
        return text
    end

    local CUT = { pipeline = { stages = { 2, 3, 1 } } }

    it("T-37: says which layout it expects and which arrived, where the two differ", function()
        local text = message({ CUT }, { stage_exit = { stage = 1, layout = "contiguous" } })
        assert.matches("pipeline: stage 1 (layers 2-4) expects hidden states in zigzag, but they "
            .. "arrived in contiguous", text, 1, true)
        text = message({ CUT }, { stage_exit = { stage = 2, layout = "zigzag" } })
        assert.matches("pipeline: stage 2 (layer 5) expects hidden states in mirror, but they "
            .. "arrived in zigzag", text, 1, true)
    end)

    it("is cut from the schedule by the step", function()
        assert.matches("pipeline.cut: 6 layers, not a multiple of pp = 4",
            message { { pipeline = { pp = 4 } } }, 1, true)
        assert.matches('pipeline.cut: unknown field "stage"; did you mean "stages"?',
            message { { pipeline = { stage = { 3, 3 } } } }, 1, true)
    end)
end)
