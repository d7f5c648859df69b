-- Steps over sequences that nobody has seen before, each of them new: a graph that was captured for
-- some serves all that come later, as far as there is room, and says what launched steps say.
local labs = require "spec.support.labs"
local on_device = require "spec.support.on_device"

local it_there = on_device.it(it, pending)

-- As many positions and tokens in each, whatever the sequences are. Those of the first two need most
-- room: many sequences, and one over all ranks.
local SEQUENCES = {
    { { 8, 8, 8, 8, 8, 8, 8, 8 }, { 7, 8, 1, 5, 8, 8, 3, 2 } },
    { { 64 }, { 64 } },
    { { 24, 8, 32 }, { 20, 0, 32 } },
    { { 8, 56 }, { 8, 49 } },
    { { 16, 16, 8, 24 }, { 16, 9, 8, 24 } },
    { { 40, 24 }, { 33, 24 } },
    { { 8, 48, 8 }, { 1, 48, 1 } },
    { { 32, 32 }, { 32, 31 } },
}

local function streams()
    local list = {}
    for i, one in ipairs(SEQUENCES) do
        local tokens = {}
        for position = 1, 64 do tokens[position] = (2 * i + 1) * position % 17 end
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
local HEADWISE = sizes_of("gdn", { cp_mode = "headwise" })

local JOBS = {
    ["chains of states, zigzag"] = { model = { pattern = "GG", policy = "zigzag" } },
    ["chains of states, mirror, at cp 4"] = { cp = 4, model = { pattern = "GG",
        policy = "mirror" } },
    ["heads of the delta rule spread"] = { model = { pattern = "G*", policy = "zigzag",
        gdn = HEADWISE } },
    ["keys by gather, in windows"] = { model = { policy = "mirror", pattern = "**",
        gqa = gqa { window = 5 } } },
    ["keys by p2p at cp 4"] = { cp = 4, model = { policy = "zigzag", pattern = "**",
        gqa = gqa { cp_mode = "p2p" } } },
    ["keys by p2p, in windows, in place"] = { model = { policy = "contiguous", pattern = "G*",
        gqa = gqa { cp_mode = "p2p", window = 9 } } },
    ["keys by a2a"] = { model = { policy = "native", pattern = "G*",
        gqa = gqa { cp_mode = "a2a" } } },
    ["keys by a2a+p2p at cp 4"] = { cp = 4, model = { policy = "native", pattern = "G*",
        gqa = gqa { cp_mode = "a2a+p2p", a2a = 2 } } },
    ["latent attention"] = { model = { pattern = "LG", mla = MLA, policy = "zigzag" } },
    ["experts, tp 2"] = { tp = 2, model = { pattern = "G*", policy = "zigzag", moe = MOE } },
    ["in bf16"] = { model = { pattern = "G*", policy = "zigzag", dtype = "bf16" } },
    ["tied, two depths of MTP, recomputed"] = { step = { recompute = "layer" }, model = {
        pattern = "G*", tied = true, mtp = { depth = 2, kind = "gqa", loss_scale = 0.3 },
        policy = "zigzag" } },
    ["two stages"] = { step = { pipeline = { pp = 2 } }, model = { policy = "native" } },
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

describe("sequences that were never seen", function()
    for name, job in pairs(JOBS) do if not os.getenv "JOB" or name:find(os.getenv "JOB", 1, true) then
        it_there("are replayed from a graph of others: " .. name, function()
            local launched, replayed = run(job), run(job, 1)
            assert.same(launched.losses, replayed.losses) -- to the bit
            for what, value in pairs(launched) do
                if what ~= "losses" and not what:find "_ms$" and what ~= "peak_bytes" then
                    assert.same(value, replayed[what], what)
                end
            end
            print(name, replayed.graph_captures, replayed.graph_replays)
            assert.equal(0, replayed.host_syncs_in_step)
            assert.equal(1, replayed.graph_captures)
            assert.is_true(replayed.graph_replays >= #SEQUENCES - 3)
        end)
    end end
end)
