-- Whole steps on devices that are emulated, against one rank of the host: every number of a small
-- hybrid stack, with the rows of all tensors traced, and no wait for a device inside a step.
--
-- Bounds: in f64 that of spec/stack/parity_spec.lua, 1e-12; in f32 1e-4, as there. bf16 keeps 8
-- bits, so that each stored number is off by up to 2^-9, and the reference has parameters that are
-- not rounded: some twenty such steps lie between a token and a gradient, which is 4 % if they all
-- go one way, and what gradients of decays are sums of nearly cancels. Measured: 0.7 % forward, 6 %
-- in the gradient of A_log.
local labs = require "spec.support.labs"
local on_device = require "spec.support.on_device"

local it_there = on_device.it(it, pending)

local BOUNDS = { f64 = 1e-12, f32 = 1e-4, bf16 = 0.1 }

local MOE = { experts = 5, top_k = 2, width = 8, shared_width = 4, aux_coefficient = 0.5 }
local MLA = { heads = 4, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2, value_dim = 7 }

local function gqa(changes)
    local sizes = labs.model().gqa
    for name, value in pairs(changes) do sizes[name] = value end
    return sizes
end

local function gdn(changes)
    local sizes = labs.model().gdn
    for name, value in pairs(changes) do sizes[name] = value end
    return sizes
end

-- A step of training, which is not traced.
local STEP = { "step", { backward = true, optimizer = "adamw", lr = 0.01, iters = 2 } }

-- Runs a traced step that is compared, then two of training; their metrics.
local function run(job)
    local tp = job.tp or 1
    local model = labs.model(job.model)
    model.mlp = not model.moe and model.mlp or nil
    local compared = { backward = true, reference = true, trace = true, recompute = job.recompute,
        pipeline = job.pipeline }
    local result, message = on_device.with(job.transport, labs.run, {
        stream = labs.padded(job.real, 2 * job.cp * tp), model = model, cp = job.cp, tp = tp,
        calls = { { "step", compared }, STEP },
    })
    if not result then error(message, 2) end
    return result.answers[1], result.answers[2]
end

local function check(job)
    local compared, trained = run(job)
    labs.assert_parity(compared, BOUNDS[job.model and job.model.dtype or "f64"])
    assert.equal(0, compared.routes_built_in_step)
    assert.same({ 0, 0 }, { compared.host_syncs_in_step, trained.host_syncs_in_step })
    assert.is_nil(trained.convert_ms) -- the host's clock says nothing of it
    assert.is_true(trained.step_ms > 0)
end

-- As few layers and rows as show what there is to see: the emulator is no fast machine.
local REAL = { 7, 0, 9, 1 }
local JOBS = {
    ["on one rank"] = { real = REAL, cp = 1 },
    ["in f32, contiguous"] = { real = REAL, cp = 2, model = { pattern = "G*", dtype = "f32" } },
    ["zigzag, keys by p2p"] =
        { real = REAL, cp = 2, model = { policy = "zigzag", gqa = gqa { cp_mode = "p2p" } } },
    ["mirror, keys by a2a, heads of the delta rule spread"] = { real = REAL, cp = 2, model = {
        pattern = "G*", policy = "mirror", gqa = gqa { cp_mode = "a2a" },
        gdn = gdn { cp_mode = "headwise" } } },
    ["native at cp 4, keys by a2a+p2p"] = { real = REAL, cp = 4, model = {
        pattern = "G*", policy = "native",
        gqa = gqa { cp_mode = "a2a+p2p", a2a = 2, window = 5 } } },
    ["balanced, experts"] = { real = REAL, cp = 2, model = { pattern = "G*", policy = "balanced",
        moe = MOE } },
    ["experts, tp 2"] = { real = REAL, cp = 2, tp = 2, model = { pattern = "G*", moe = MOE } },
    ["in bf16"] = { real = REAL, cp = 2, model = { pattern = "G*", policy = "zigzag",
        dtype = "bf16" } },
    ["mla, by nccl"] =
        { real = REAL, cp = 2, transport = "nccl", model = { pattern = "LG", mla = MLA } },
    ["tied, two depths of MTP, recomputed"] = { real = REAL, cp = 2, recompute = "layer",
        model = { pattern = "G*", tied = true, mtp = { depth = 2, kind = "gqa", loss_scale = 0.3 },
            policy = "zigzag" } },
    ["two stages"] = { real = REAL, cp = 2, pipeline = { pp = 2 }, model = { policy = "native" } },
}

describe("a step on devices equals one rank of the host", function()
    for name, job in pairs(JOBS) do
        it_there(name, function() check(job) end)
    end
end)

-- Training by each optimizer, clipped to less than the gradients are. bf16: each number of a step
-- is off by up to 2^-9, a parameter also by the rounding of every update; losses by 1 % then. What
-- the steps change is at least twice the bound.
local ADAMW = { optimizer = "adamw", lr = 0.02, weight_decay = 0.1, clip = 0.05 }
local SGD = { optimizer = "sgd", lr = 2, clip = 0.25 }
local TRAINING = {
    ["adamw, clipped, in f64"] = { ADAMW, "f64" },
    ["sgd in f64"] = { { optimizer = "sgd", lr = 0.5 }, "f64" },
    ["sgd, clipped, in f32"] = { SGD, "f32" },
    ["sgd, clipped, in bf16"] = { SGD, "bf16" },
    ["adamw, clipped, in bf16"] = { ADAMW, "bf16" },
    ["adamw, clipped, in bf16, as a graph"] = { ADAMW, "bf16", 1 },
}
local LOSSES = { f64 = 1e-12, f32 = 1e-4, bf16 = 0.01 }

-- The losses of three steps on devices and on one rank of the host, and what the steps waited and
-- how many were replays.
local function train(training, dtype, graphs)
    local options, there = { iters = 3 }, { iters = 3, graphs = graphs }
    for name, value in pairs(training) do options[name], there[name] = value, value end
    local result, message = on_device.with(nil, labs.run, {
        stream = labs.padded({ 7, 0, 9, 1 }, 4), cp = 2,
        model = labs.model { pattern = "G*", policy = "zigzag", dtype = dtype },
        calls = { { "step", there }, { "reference", options } },
    })
    if not result then error(message, 2) end
    local trained, reference = unpack(result.answers)
    return trained.losses, reference.losses, trained.host_syncs_in_step, trained.graph_replays
end

local function farthest(losses, expected)
    local most = 0
    for i, loss in ipairs(expected) do
        local difference = math.abs(losses[i] - loss) / loss
        if difference ~= difference then return math.huge end
        most = math.max(most, difference)
    end
    return most
end

describe("training on devices goes as on one rank of the host, and waits for nothing:", function()
    for name, job in pairs(TRAINING) do
        it_there(name, function()
            local losses, expected, syncs, replays = train(unpack(job))
            local bound = LOSSES[job[2]]
            assert.equal(3, #losses)
            assert.is_true(farthest(losses, expected) <= bound,
                table.concat(losses, " ") .. " / " .. table.concat(expected, " "))
            assert.is_true(expected[1] - expected[3] > 2 * bound * expected[1])
            assert.same({ 0, job[3] and 2 }, { syncs, replays })
        end)
    end
end)

-- The checks see on a device what they see elsewhere.
describe("a step on devices whose rows went wrong", function()
    local function metrics(faults, changes)
        changes = changes or {}
        changes.pattern = "G*"
        local result, message = on_device.with(nil, labs.run, {
            stream = labs.padded({ 16 }, 4), model = labs.model(changes), cp = 2,
            options = { faults = faults },
            calls = { { "step", { backward = true, reference = true, trace = true } } },
        })
        return result and result.answers[1], message
    end

    it_there("is far from the reference, and its trace says so", function()
        local m = metrics({ swap_runs = { rank = 1 } })
        assert.is_true(m.parity_fwd > 1e-3)
        assert.is_true(m.wrong_rows > 0)
    end)

    it_there("is far from the reference where a state is forgotten", function()
        assert.is_true(metrics({ drop_handoff = { rank = 1 } }).parity_fwd > 1e-6)
    end)

    it_there("is refused where a conversion did not happen", function()
        local _, message = metrics({ leave_out = { layer = 0, way = "to" } }, { policy = "zigzag" })
        assert.matches("expected rows of contiguous", message)
    end)
end)

-- A step that is a graph: forward, loss, backward and the sum of gradients of all ranks, replayed
-- with other parameters than those that it was captured with.
local function replay(comm)
    local cplab, capture = require "cplab", require "cplab.capture"
    local rows, stacks = require "cplab.rows", require "cplab.stack"
    local model = cplab.model {
        schedule = cplab.schedule.pattern("G*", 2), policy = "zigzag", hidden = 8, vocab = 11,
        dtype = "f64", gqa = { heads = 2, kv_heads = 1, head_dim = 8 },
        gdn = { key_heads = 1, value_heads = 2, key_dim = 4, value_dim = 4 },
    }
    local stack = stacks.new { model = model, comm = comm._ptr, cp = comm:size(),
        stream = cplab.stream.thd { lengths = { 16, 8 } } }
    local options = { backward = true }
    local function results()
        local list = { stack:read_step(options), stack.grad_norm }
        rows.look(stack.parameters.grads, "double", function(data)
            for i = 0, stack.parameters.n - 1 do list[i + 3] = data[i] end
        end)
        return list
    end
    stack:run_step(options)
    local out = { first = results() }
    local graph = capture.of(comm._ptr, function() stack:run_step(options) end)
    stack.parameters:draw(model.seed + 1)
    graph:replay()
    out.replayed = results()
    stack:run_step(options)
    out.again = results()
    return out
end

-- Steps of training as a graph: as many replays as steps, from where parameters, moments and the
-- number of the step are then. `job` is { settings of the optimizer, dtype }. Three steps and two
-- more are the measure; replays start where these did, all drawn again or forgotten, or go on after
-- two steps of another stack that shares the parameters.
local function replay_training(comm, job)
    local cplab, capture = require "cplab", require "cplab.capture"
    local optimizers, rows = require "cplab.optimizer", require "cplab.rows"
    local stacks = require "cplab.stack"
    local model = cplab.model {
        schedule = cplab.schedule.pattern("G", 1), policy = "zigzag", hidden = 8, vocab = 11,
        dtype = job.dtype, gqa = { heads = 2, kv_heads = 1, head_dim = 8 },
        gdn = { key_heads = 1, value_heads = 2, key_dim = 4, value_dim = 4 },
    }
    local options = optimizers.settings("spec", job.settings, 1)
    options.backward = true
    local stream = cplab.stream.thd { lengths = { 16, 8 } }
    local function new(parameters)
        return stacks.new { model = model, comm = comm._ptr, cp = comm:size(), stream = stream,
            parameters = parameters }
    end
    local stack = new()
    local other = new(stack.parameters)
    stack.parameters:draw(model.seed)
    -- Every bit of the parameters and of the gradients' norm.
    local function results()
        local list = { stack:read_step(options), stack.grad_norm }
        for _, entry in ipairs(stack.parameters.list) do
            local here = rows.at_home(entry.weight)
            list[#list + 1] = require("ffi").string(here.data,
                entry.n * tonumber(require("clib").C.cpl_dtype_bytes(here.dtype)))
        end
        return list
    end
    local function times(n, f)
        local list = {}
        for i = 1, n do
            f()
            list[i] = results()
        end
        return list
    end
    local function step() stack:run_step(options) end
    local out = { steps = times(5, step) }
    local graph = capture.of(comm._ptr, step)
    local function replayed() graph:replay() end
    stack.parameters:draw(model.seed)
    out.replays = times(5, replayed)
    stack.parameters:draw(model.seed)
    for _ = 1, 2 do other:run_step(options) end
    out.later_replays = times(3, replayed)
    return out
end

describe("training on devices that was captured", function()
    for name, job in pairs {
        ["adamw, clipped"] = { dtype = "f64",
            settings = { optimizer = "adamw", lr = 0.02, clip = 0.05 } },
        ["adamw, clipped, in bf16"] = { dtype = "bf16",
            settings = { optimizer = "adamw", lr = 0.02, clip = 0.05, weight_decay = 0.1 } },
        ["sgd, clipped, in bf16"] = { dtype = "bf16",
            settings = { optimizer = "sgd", lr = 2, clip = 0.25 } },
    } do
        it_there("goes on by replays as by steps, to the bit: " .. name, function()
            for _, r in ipairs(on_device.run(nil, 2, replay_training, job)) do
                assert.same(r.steps, r.replays)
                assert.same({ unpack(r.steps, 3) }, r.later_replays)
                assert.not_same(r.steps[1], r.steps[2])
            end
        end)
    end
end)

describe("a step on devices that was captured", function()
    for _, transport in ipairs { "direct", "nccl" } do
        it_there("is replayed with what the parameters are then, by " .. transport, function()
            for _, r in ipairs(on_device.run(transport, 2, replay)) do
                assert.same(r.again, r.replayed) -- to the bit
                assert.not_same(r.first, r.replayed)
            end
        end)
    end
end)
