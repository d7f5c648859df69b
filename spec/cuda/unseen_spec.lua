-- Steps over sequences that nobody has seen before, each of them new: a graph that was captured for
-- some serves all that come later, as far as there is room, and says what launched steps say.
--
-- To the bit, where the same kernels run. Attention has other ones for blocks that are very short
-- on average, and counts the room as blocks, too: then the last bits of some hundred sums differ,
-- and what AdamW makes of a gradient that nearly cancels may differ a thousand times as much; so
-- 1e-12 in f64, 1e-3 in f32. In bf16, by SGD, half the last bit of a number that is stored.
local labs = require "spec.support.labs"
local on_device = require "spec.support.on_device"

local it_there = on_device.it(it, pending)

-- As many positions and tokens in each, whatever the sequences are. The first two need most room:
-- many sequences, and one over all ranks.
local SEQUENCES = {
    { { 8, 8, 8, 8, 8, 8 }, { 7, 8, 1, 5, 8, 3 } },
    { { 48 }, { 48 } },
    { { 16, 8, 24 }, { 13, 0, 24 } },
    { { 8, 40 }, { 8, 33 } },
    { { 16, 16, 8, 8 }, { 16, 9, 8, 8 } },
    { { 24, 24 }, { 17, 24 } },
    { { 8, 32, 8 }, { 1, 32, 1 } },
    { { 40, 8 }, { 40, 7 } },
}
local LAUNCHED = 4 -- at most, until there is room for all

local function streams()
    local list = {}
    for i, one in ipairs(SEQUENCES) do
        local tokens = {}
        for position = 1, 48 do tokens[position] = (2 * i + 1) * position % 17 end
        list[i] = { lengths = one[1], real = one[2], tokens = tokens }
    end
    return list
end

local function sizes_of(kind, changes)
    local sizes = labs.model()[kind]
    for name, value in pairs(changes) do sizes[name] = value end
    return sizes
end
local function gqa(changes) return sizes_of("gqa", changes) end

local MOE = { experts = 5, top_k = 2, width = 8, shared_width = 4, aux_coefficient = 0.5 }
local MLA = { heads = 4, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2, value_dim = 7 }

local JOBS = {
    ["chains of states, mirror, at cp 4"] = { cp = 4, exact = true,
        model = { pattern = "GG", policy = "mirror" } },
    ["heads of the delta rule spread, keys by a2a"] = { exact = true, model = { pattern = "G*",
        policy = "native", gdn = sizes_of("gdn", { cp_mode = "headwise" }),
        gqa = gqa { cp_mode = "a2a" } } },
    ["keys by p2p at cp 4"] = { cp = 4, model = { policy = "zigzag", pattern = "*",
        gqa = gqa { cp_mode = "p2p" } } },
    ["keys by a2a+p2p at cp 4, in f32"] = { cp = 4, bound = 1e-3, model = { policy = "contiguous",
        pattern = "*", dtype = "f32", gqa = gqa { cp_mode = "a2a+p2p", a2a = 2 } } },
    ["latent attention and experts, tp 2"] = { tp = 2, model = { pattern = "L", mla = MLA,
        policy = "zigzag", moe = MOE } },
    ["keys by gather, in windows, balanced, in bf16"] = { bound = 0.002,
        step = { optimizer = "sgd" }, model = { pattern = "G*", policy = "balanced",
            dtype = "bf16", gqa = gqa { window = 5 } } },
    ["tied, a depth of MTP, recomputed, two stages"] = {
        step = { recompute = "layer", pipeline = { pp = 2 } },
        model = { pattern = "G*", tied = true, policy = "zigzag",
            mtp = { depth = 1, kind = "gqa", loss_scale = 0.3 } } },
}

local function run(job, graphs)
    local step = { iters = #SEQUENCES, optimizer = "adamw", lr = 0.02, clip = 0.05,
        graphs = graphs }
    for name, value in pairs(job.step or {}) do step[name] = value end
    local model = labs.model(job.model)
    model.mlp = not model.moe and model.mlp or nil
    local result, message = on_device.with(nil, labs.run, { streams = streams(), cp = job.cp or 2,
        tp = job.tp, model = model, calls = { { "step", step } } })
    assert(result, message)
    return result.answers[1]
end

local function assert_near(expected, losses, bound)
    assert.equal(#expected, #losses)
    for i, loss in ipairs(expected) do
        assert.is_true(math.abs(losses[i] - loss) <= bound * loss,
            ("step %d: %.17g, launched %.17g"):format(i, losses[i], loss))
    end
end

-- What is counted of the last step, by all ranks.
local COUNTED = { "conversions_fwd", "conversions_bwd", "conversion_bytes_fwd",
    "conversion_bytes_bwd", "conversion_messages_fwd", "state_bytes", "routes_built_in_step" }

describe("sequences that were never seen", function()
    for name, job in pairs(JOBS) do
        it_there("are replayed from a graph of others: " .. name, function()
            local launched, replayed = run(job), run(job, 1)
            assert_near(launched.losses, replayed.losses, job.exact and 0 or job.bound or 1e-12)
            for _, what in ipairs(COUNTED) do
                assert.is_not_nil(launched[what], what)
                assert.equal(launched[what], replayed[what], what)
            end
            assert.equal(0, replayed.host_syncs_in_step)
            assert.is_true(replayed.graph_captures <= 2)
            assert.is_true(#SEQUENCES - replayed.graph_replays <= LAUNCHED,
                replayed.graph_replays .. " replays")
        end)
    end
end)
