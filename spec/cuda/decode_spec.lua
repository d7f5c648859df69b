-- Decoding on devices that are emulated, against one forward pass of one rank of the host: every
-- layer's output and the logits of a few tokens, in several policies and modes, with the rows of
-- all tensors traced, and no wait for a device inside a step.
--
-- Bounds: in f64 that of spec/stack/decode_spec.lua, 1e-12; in f32 1e-4. bf16 keeps 8 bits: of what
-- lies between a token and a logit some ten numbers are stored one after the other, each off by up
-- to 2^-9, keys and results that are merged among them, and the reference has parameters that are
-- not rounded: 2 % if they all go one way.
local labs = require "spec.support.labs"
local on_device = require "spec.support.on_device"

local it_there = on_device.it(it, pending)

-- What is planted, and what a script asks for, runs the same kernels: where every access is checked
-- it is left out.
local it_unchecked = os.getenv "CPLAB_CUDA_CHECK" and function() end or it_there

local BOUNDS = { f64 = 1e-12, f32 = 1e-4, bf16 = 0.02 }

-- Documents that end at different steps: long, one token, none, short.
local REAL = { 7, 1, 0, 4 }

local MLA = { heads = 4, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2, value_dim = 4,
    rope_theta = 100 }

local function changed(what, changes)
    local sizes = labs.model()[what]
    for name, value in pairs(changes) do sizes[name] = value end
    return sizes
end

local function run(job)
    local options = { last = 2, trace = true }
    for name, value in pairs(job.options or {}) do options[name] = value end
    local fields = { pattern = "G*", policy = "zigzag" }
    for name, value in pairs(job.model or {}) do fields[name] = value end
    local model = labs.model(fields)
    model.mlp = not model.moe and model.mlp or nil
    local result, message = on_device.with(job.transport, labs.run, {
        stream = job.stream or labs.padded(REAL, 8), model = model, cp = job.cp or 2,
        tp = job.tp, options = { faults = job.faults }, calls = { { "decode", options } },
    })
    if not result then error(message, 2) end
    return result.answers[1], result
end

local JOBS = {
    ["on one rank"] = { cp = 1 },
    ["contiguous, keys by p2p, chunks"] = { model = { policy = "contiguous",
        gqa = changed("gqa", { cp_mode = "p2p" }) },
        options = { last = 4, chunk = 3, prefill = 2 } },
    ["mirror, keys by a2a, heads of the delta rule spread, a window"] = { model = {
        policy = "mirror", gqa = changed("gqa", { cp_mode = "a2a", window = 3 }),
        gdn = changed("gdn", { cp_mode = "headwise" }) } },
    ["balanced, in f32"] = { model = { policy = "balanced", dtype = "f32" } },
    ["native at cp 4, by nccl"] = { cp = 4, transport = "nccl", model = { policy = "native" } },
    ["mla"] = { model = { pattern = "L", mla = MLA } },
    ["experts, a tied head, keys by a2a+p2p"] = { model = { tied = true,
        gqa = changed("gqa", { cp_mode = "a2a+p2p", a2a = 2 }),
        moe = { experts = 5, top_k = 2, width = 7, shared_width = 4 } } },
    ["tp 2, by nccl"] = { tp = 2, transport = "nccl" },
    ["a batch of columns"] = { cp = 2, stream = { seqlen = 4, batch = 3 } },
    ["in bf16"] = { model = { dtype = "bf16" } },
    ["mla in bf16, mirror"] = { model = { pattern = "L", mla = MLA, policy = "mirror",
        dtype = "bf16" } },
}

describe("decoding on devices equals one forward pass of the host", function()
    for name, job in pairs(JOBS) do
        it_there(name, function()
            local m = run(job)
            local bound = BOUNDS[job.model and job.model.dtype or "f64"]
            assert.is_true(m.parity_prefill <= bound, m.parity_prefill)
            assert.is_true(m.parity_decode <= bound, ("%g at %s"):format(m.parity_decode,
                tostring(m.parity_decode_where)))
            assert.same({ 0, 0, 0 },
                { m.wrong_rows, m.routes_built_in_step, m.host_syncs_in_step })
        end)
    end

    it_unchecked("for more sequences than attention takes at once, on devices that lag", function()
        local real = {}
        for i = 1, 90 do real[i] = i % 7 == 0 and 0 or 1 + i % 2 end
        on_device.set("delay", "200")
        local m = run { stream = labs.padded(real, 4), options = { last = 1 },
            model = { pattern = "*" } }
        on_device.set("delay", "0")
        assert.is_true(m.parity_decode <= 1e-12, m.parity_decode)
        assert.equal(0, m.host_syncs_in_step)
    end)
end)

describe("a decoding step on devices", function()
    it_there("takes no memory", function()
        for _, transport in ipairs { "direct", "nccl" } do
            local m = run { transport = transport, stream = { lengths = { 16, 16 } },
                options = { last = 3, trace = false, reference = false } }
            assert.equal(0, m.decode_allocations)
            assert.equal(0, m.host_syncs_in_step)
            assert.is_nil(m.decode_convert_ms) -- the host's clock says nothing of it
            assert.is_true(m.decode_ms > 0)
        end
    end)

    -- Rows of 2 kv heads of 8 + 8 numbers for 12 tokens; of 4 sequences 4 states of 5 x 6, and 3
    -- rows of 2 * 2 * 5 + 4 * 6.
    it_there("keeps bf16 rows in two bytes, and states in four", function()
        local m = run { model = { dtype = "bf16" }, options = { reference = false } }
        assert.equal(12 * 32 * 2, m.cache_bytes)
        assert.equal(4 * (4 * 30 * 4 + 3 * 44 * 2), m.gdn_state_bytes)
    end)
end)

describe("decoding on devices is not the whole", function()
    for name, what in pairs {
        forget_state = "the state is not carried", forget_tail = "the tail is dropped",
        forget_offset = "rotary positions begin again", cache_padding = "padding is kept",
        drop_partial = "the keys of a rank are left out",
    } do
        it_unchecked("where " .. what, function()
            local m = run { faults = { [name] = {} }, stream = labs.padded({ 17, 1, 0, 9 }, 24),
                options = { last = 3, capacity = 24 } }
            assert.is_true(m.parity_prefill <= 1e-12)
            assert.is_true(m.parity_decode > 1e-6, m.parity_decode)
        end)
    end

    it_unchecked("where a way back is skipped, and the trace says so", function()
        local m, result = run { faults = { skip_back = { layer = 0, has_past = true } } }
        assert.is_true(m.parity_prefill <= 1e-12)
        assert.is_true(m.parity_decode > 1e-3)
        assert.is_true(m.wrong_rows > 0)
        assert.matches("^trace: layers%.0%.gdn %(output%), rank %d, slot", result.checks[1].name)
    end)

    it_unchecked("where two rows of new tokens change places: all ranks see it", function()
        local case = { trace = true, swap = 0, parts = { { real = { 4 } }, { real = { 4 } } } }
        local of_ranks = on_device.run("direct", 2, "spec.support.kv_rank", { case })
        assert.equal(2 + 2 + 2 * 2, of_ranks[1][1].wrong_rows) -- x, queries, two parts at home
        assert.equal(2, of_ranks[2][1].wrong_rows) -- queries
        assert.equal(0, of_ranks[1][1].syncs + of_ranks[2][1].syncs)
    end)
end)

describe("a decoder on devices", function()
    local PROMPTS = { { 3, 1, 4 }, { 5 }, {}, { 8, 9 } }
    local FEEDS = { PROMPTS, { { 1 }, { 3 }, {}, { 7 } }, { { 5, 9, 2 }, {}, {}, {} }, "clear",
        PROMPTS }

    local function drive(transport, ...)
        local job = { stream = { lengths = { 8, 8, 8, 8 } }, cp = 2, calls = { { ... } },
            model = labs.model { pattern = "G*", policy = "zigzag" } }
        local result, text
        if transport then
            result, text = on_device.with(transport, labs.run, job)
        else
            result, text = labs.run(job)
        end
        return assert(result, text).answers[1]
    end

    it_unchecked("gives a script the logits of the host", function()
        local here = drive(nil, "feed", { capacity = 8 }, FEEDS)
        for _, transport in ipairs { "direct", "nccl" } do
            local there = drive(transport, "feed", { capacity = 8 }, FEEDS)
            for i, logits in pairs(here.lists) do
                for j, value in ipairs(logits) do
                    assert.is_true(math.abs(value - there.lists[i][j]) <= 1e-12)
                end
            end
            assert.same(here.seen, there.seen)
            assert.is_true(there.is_marked)
            assert.is_true(there.is_same)
        end
    end)

    it_unchecked("chooses the tokens that the host chooses", function()
        assert.same(drive(nil, "generate", PROMPTS, 3), drive("direct", "generate", PROMPTS, 3))
    end)

    -- What a graph would hold is where this step's rows go, and which keys are there now.
    it_there("is not captured, and goes on after it was tried", function()
        for _, transport in ipairs { "direct", "nccl" } do
            local answer = drive(transport, "capture_decoding", PROMPTS, { { 1 }, { 3 }, {}, {} })
            assert.matches("decoder.run: in a capture: each step goes on from what the host knows "
                .. "of the step before, and replays would all go on from this one$", answer.run)
            assert.matches("cuda%-emulated %d: a list that is another one in each step, in a "
                .. "capture: replays would read what it is now$", answer.forward)
            assert.same(answer.expected, answer.logits)
        end
    end)
end)
