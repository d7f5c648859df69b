-- Whole steps whose every access is judged: as few tokens and numbers as pass through all kernels
-- of all layers, since the checker takes fifty times as long. Where it runs (spec/devices.txt), a
-- fault of memory or a race ends the program; here it is asked that the numbers are right, too.
local labs = require "spec.support.labs"
local on_device = require "spec.support.on_device"

local it_there = on_device.it(it, pending)

-- In f32 as in spec/cuda/steps_spec.lua. In bf16 the gradients of decays are sums of eleven numbers
-- that nearly cancel, each off by some 1 %; measured: 17 %.
local BOUNDS = { f32 = 1e-4, bf16 = 0.3 }

local function model(changes)
    local fields = { pattern = "G*", policy = "zigzag", hidden = 6, vocab = 7, seed = 3,
        gqa = { heads = 2, kv_heads = 1, head_dim = 4, rotary_dim = 2 },
        mla = { heads = 2, q_rank = 3, kv_rank = 4, nope_dim = 2, rope_dim = 2, value_dim = 3 },
        gdn = { key_heads = 1, value_heads = 2, key_dim = 3, value_dim = 4, conv = 3, chunk = 4 },
        mlp = { width = 5 } }
    for name, value in pairs(changes) do fields[name] = value end
    return fields
end

local JOBS = {
    ["in f32"] = model { dtype = "f32" },
    ["in bf16"] = model { dtype = "bf16" },
    ["with latents and experts"] = model { dtype = "bf16", pattern = "GL", mlp = false,
        moe = { experts = 3, top_k = 2, width = 4, shared_width = 3, aux_coefficient = 0.5 } },
    ["in place, with heads that are spread"] = model { dtype = "f32", policy = "mirror",
        gqa = { heads = 2, kv_heads = 1, head_dim = 4, rotary_dim = 2, cp_mode = "a2a" },
        gdn = { key_heads = 1, value_heads = 2, key_dim = 3, value_dim = 4, conv = 3, chunk = 4,
            cp_mode = "headwise" } },
    ["with keys that go round"] = model { dtype = "f32", pattern = "*",
        gqa = { heads = 2, kv_heads = 1, head_dim = 4, rotary_dim = 2, cp_mode = "p2p" } },
}

local STEP = { "step", { backward = true, reference = true, trace = true } }
local TRAIN = { "step", { optimizer = "adamw", lr = 0.01, clip = 1 } }

describe("a small step on devices", function()
    for name, job in pairs(JOBS) do
        it_there("is right to the last access " .. name, function()
            job.mlp = job.mlp or nil
            local result, message = on_device.with(nil, labs.run, {
                stream = { lengths = { 8, 4 }, real = { 7, 4 } }, model = job, cp = 2,
                calls = { STEP, TRAIN } })
            assert(result, message)
            labs.assert_parity(result.answers[1], BOUNDS[job.dtype])
        end)
    end

    -- What stands behind the end of lists that have room is judged, too.
    it_there("is right to the last access over sequences that were never seen", function()
        local streams = { { lengths = { 8, 4 }, real = { 7, 4 } }, { lengths = { 12 } },
            { lengths = { 4, 8 } }, { lengths = { 4, 4, 4 }, real = { 4, 1, 0 } } }
        local function losses(graphs)
            local result, message = on_device.with(nil, labs.run, { streams = streams, cp = 2,
                model = model { dtype = "f32", gqa = { heads = 2, kv_heads = 1, head_dim = 4,
                    rotary_dim = 2, cp_mode = "p2p" } },
                calls = { { "step", { iters = 4, optimizer = "sgd", lr = 0.1, graphs = graphs } } },
            })
            assert(result, message)
            return result.answers[1].losses, result.answers[1].graph_replays
        end
        local launched = losses()
        local replayed, n = losses(1)
        for i, loss in ipairs(launched) do
            assert.is_true(math.abs(replayed[i] - loss) <= BOUNDS.f32 * loss, "step " .. i)
        end
        assert.is_true(n >= 1)
    end)
end)
