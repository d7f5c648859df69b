-- What the model of costs counts: against numbers by hand, published ones, and what really ran.
local cplab = require "cplab"
local gqa_modes = require "spec.support.gqa_modes"
local labs = require "spec.support.labs"
local ranks = require "spec.support.ranks"
local sizes = require "cplab.cost.sizes"
local support = require "spec.support.prices"

local assignment_of, cluster_of = support.assignment_of, support.cluster_of
local model_of, prices_of = support.model_of, support.prices_of

-- ---- what really ran --------------------------------------------------------------

describe("what the model of costs counts is what runs:", function()
    local cp = 4
    local configs = {
        { cp_mode = "gather" }, { cp_mode = "p2p" }, { cp_mode = "a2a" },
        { cp_mode = "a2a+p2p", a2a = 2 }, { cp_mode = "gather", window = 3 },
        { cp_mode = "p2p", window = 3 },
        { cp_mode = "gather", kind = "mla" }, { cp_mode = "p2p", kind = "mla" },
        { cp_mode = "a2a+p2p", a2a = 2, kind = "mla" },
    }

    local function prices_for(case, config)
        local kind = config.kind or "gqa"
        local mixer = kind == "gqa" and { heads = 4, kv_heads = 2, head_dim = 4, block = 2 }
            or { heads = 4, q_rank = 5, kv_rank = 4, nope_dim = 3, rope_dim = 2, value_dim = 7 }
        mixer.window, mixer.a2a, mixer.cp_mode = config.window, config.a2a, config.cp_mode
        return prices_of { cluster = "local", cp = cp, stream = case.stream,
            model = model_of { hidden = 6, schedule = cplab.schedule.list { kind },
                [kind] = mixer } }
    end

    for _, config in ipairs(configs) do
        local kind = config.kind or "gqa"
        it(kind .. " " .. config.cp_mode .. (config.window and " in a window" or ""), function()
            local cases, options = {}, { window = config.window, a2a = config.a2a,
                cp_mode = config.cp_mode }
            for _, layout in ipairs { "zigzag", "mirror", "contiguous", "snake", "balanced" } do
                for _, real in ipairs { { 24 }, { 7, 9, 8 }, { 17, 0, 7 }, { 1, 1, 1, 21 } } do
                    cases[#cases + 1] = gqa_modes.case(layout, real, cp, options, { kind = kind })
                end
            end
            for i, result in ipairs(gqa_modes.run(cp, cases)) do
                local case = cases[i]
                local _, detail = prices_for(case, config):mixer(1, case.layout, config.cp_mode)
                local forward, backward = unpack(detail.passes)
                local name = case.layout .. " " .. table.concat(case.stream.real, ",")
                assert.equal(result.forward.bytes, forward.total_bytes, name)
                assert.equal(result.backward.bytes, backward.total_bytes, name)
                assert.equal(result.forward.messages, forward.total_messages, name)
            end
        end)
    end

    for _, mode in ipairs { "chunkwise", "headwise" } do
        it("gdn " .. mode, function()
            local cases = {}
            for _, kind in ipairs { "contiguous", "zigzag", "mirror", "snake" } do
                for _, lengths in ipairs { { 24 }, { 8, 16, 8 }, { 8, 0, 40 } } do
                    cases[#cases + 1] = { lengths = lengths, kind = kind, cp_mode = mode }
                end
            end
            local by_rank = ranks.run(cp, "spec.support.gdn_runs", cases)
            local gdn = { key_heads = 2, value_heads = 4, key_dim = 3, value_dim = 5, conv = 4,
                chunk = 4 }
            for i, case in ipairs(cases) do
                local prices = prices_of { cluster = "local", cp = cp,
                    stream = { lengths = case.lengths },
                    model = model_of { schedule = cplab.schedule.list { "gdn" }, hidden = 6,
                        gdn = gdn } }
                local sum = { bytes = 0, state = 0, messages = 0, back = 0 }
                for rank = 1, cp do
                    local r = by_rank[rank][i]
                    sum.bytes, sum.state = sum.bytes + r.sent.bytes, sum.state + r.sent.state
                    sum.messages = sum.messages + r.sent.messages
                    sum.back = sum.back + r.sent_back.bytes
                end
                local _, detail = prices:mixer(1, case.kind, mode)
                local forward, backward = unpack(detail.passes)
                assert.same(sum, { bytes = forward.total_bytes, state = forward.state_bytes,
                    messages = forward.total_messages, back = backward.total_bytes })
            end
        end)
    end

    for _, case in ipairs {
        { policy = "zigzag", live = "zigzag", mixers = { "contiguous", "zigzag" } },
        { policy = "contiguous", live = "contiguous", mixers = { "contiguous", "zigzag" } },
        { policy = "mirror", live = "contiguous", mixers = { "contiguous", "mirror" } },
        { policy = "native", live = "zigzag", mixers = { "zigzag", "zigzag" } },
        { policy = "mirror", live = "contiguous", mixers = { "contiguous", "mirror" }, tp = 2 },
        { policy = "zigzag", live = "zigzag", mixers = { "contiguous", "zigzag" }, tp = 2 },
        { policy = "contiguous", live = "contiguous", mixers = { "contiguous", "zigzag" }, tp = 2 },
        { policy = "balanced", live = "contiguous", mixers = { "contiguous", "balanced" } },
        { policy = "mirror", live = "contiguous", mixers = { "contiguous", "mirror" },
            stream = { seqlen = 16, batch = 3 } },
        { policy = "mirror", live = "contiguous", mixers = { "contiguous", "mirror", "mirror" },
            mtp = { kind = "gqa" } },
    } do
        it(("a step of policy %s, tp %d%s%s"):format(case.policy, case.tp or 1,
            case.stream and ", three columns" or "", case.mtp and ", mtp" or ""), function()
            local fields = labs.model { policy = case.policy, pattern = "G*", mtp = case.mtp }
            local stream = case.stream or { lengths = { 16, 32 }, real = { 13, 32 } }
            local metrics = labs.parity_step(stream, fields, 4, nil, case.tp)
            fields.schedule, fields.pattern = cplab.schedule.pattern("G*", 2), nil
            local prices = prices_of { cluster = "local", cp = 4, tp = case.tp, stream = stream,
                model = cplab.model(fields) }
            local step = prices:step(assignment_of(prices, case.live, case.mixers))
            for name, value in pairs(step.metrics) do
                assert.equal(metrics[name], value, name)
            end
        end)
    end
end)

-- With windows the residual stream converts otherwise than what goes to a mixer, and the way back
-- is that there backwards.
describe("what the model of costs counts is what runs where layers live elsewhere:", function()
    for _, tp in ipairs { 1, 2 } do
        it("tp " .. tp, function()
            local assignment = { entry = "zigzag", exit = "snake", layers = {
                { live = "contiguous", mixer = "mirror", cp_mode = "chunkwise" },
                { live = "mirror", mixer = "zigzag", cp_mode = "p2p" } } }
            local fields = labs.model { policy = assignment, pattern = "G*" }
            local stream = { lengths = { 16, 32, 16 }, real = { 13, 32, 1 } }
            local metrics = labs.parity_step(stream, fields, 4, nil, tp)
            fields.schedule, fields.pattern = cplab.schedule.pattern("G*", 2), nil
            local prices = prices_of { cluster = "local", cp = 4, tp = tp, stream = stream,
                model = cplab.model(fields) }
            local step = prices:step(assignment)
            for name, value in pairs(step.metrics) do
                assert.equal(metrics[name], value, name)
            end
            local planner = require "cplab.planner"
            assert.near(step.seconds, planner.price(prices, assignment), 1e-12 * step.seconds)
        end)
    end
end)

-- ---- published and by hand ----------------------------------------------------------

describe("the model of costs counts", function()
    -- Facts on limits, 5.1 and 5.3: at cp 8 zigzag leaves 1/8 of the rows where contiguous has them
    -- and its busiest rank gives away all; mirror leaves half, on every rank.
    it("a whole shard for zigzag and half a shard for mirror", function()
        local prices = prices_of { cp = 8, stream = { lengths = { 128 } }, backward = false }
        local shard = 128 / 8 * 64 * 8 -- rows, hidden, f64
        local function moved(to)
            local _, d = prices:convert("contiguous", to)
            return { d.bytes / shard, d.messages, d.passes[1].total_bytes / (8 * shard) }
        end
        assert.same({ 1, 2, 7 / 8 }, moved "zigzag")
        assert.same({ 1 / 2, 1, 1 / 2 }, moved "mirror")
    end)

    it("for mirror no byte between nodes where both partners share one", function()
        local function seconds(to, cp)
            local link = { between = { beta = 1 } }
            local prices = prices_of { cp = cp, stream = { lengths = { 256 } },
                cluster = cluster_of { ranks_per_node = cp / 2, links = link } }
            return (prices:convert("contiguous", to))
        end
        -- Partners are r and cp-1-r: in default order always on the other of two nodes.
        local half_shard = 256 / 8 / 2 * 64 * 8
        assert.near(2 * half_shard, seconds("mirror", 8), 1e-6)
        assert.is_true(seconds("zigzag", 8) >= 2 * half_shard)
    end)

    -- MLM#3282: 28,800 elements a token for what converting inside would move, 8,192 for hidden.
    it("the widths of the 397B", function()
        local model = cplab.model.qwen35_397b {}
        local s = sizes.gdn(require("cplab.layers").mixer_config(model, "gdn", {}), 1)
        assert.equal(28800, 2 * s.key_heads * s.K + 2 * s.value_width + 2 * s.value_heads
            + s.value_width)
        assert.equal(8192, 2 * model.hidden)
        -- fla's message: 8 MiB a rank; cplab's state alone is half of it.
        local config = require("cplab.layers").mixer_config(model, "gdn", {})
        assert.equal(8 * 2 ^ 20, sizes.fla_message(config))
        assert.equal(4 * 2 ^ 20, 4 * s.state)
    end)

    -- Facts on GDN, 5.6: forward MFLOP a token of the 397B; 3.8: FLOP a head and token.
    it("the FLOP of the 397B", function()
        local model, layers = cplab.model.qwen35_397b {}, require "cplab.layers"
        local gqa = sizes.attention("gqa", layers.mixer_config(model, "gqa", {}), 1)
        local gdn = sizes.gdn(layers.mixer_config(model, "gdn", {}), 1)
        local moe = sizes.ffn("moe", layers.ffn_config(model, "moe"), 1)
        assert.near(209.7, 2 * gqa.params / 1e6, 0.05)
        assert.near(235.9, 2 * gdn.params / 1e6, 0.05)
        assert.near(281.0, 2 * moe.params / 1e6, 0.6) -- the shared expert's gate
        assert.near(1.82e5, sizes.gdn_forward(128, 128, 64), 500)
        assert.near(5.08e5, sizes.gdn_backward(128, 128, 64), 500)
        assert.equal(163840, sizes.gdn_summary(128, 128, 64, true)) -- 4KV + 2K^2 + 2K^3/C
        assert.near(1.97e5, sizes.gdn_summary_backward(128, 128, 64), 500)
        assert.equal(32768, gqa.pair) -- balanced.md, section 7
    end)

    -- Chunks of 64, 26 and 28 rows: what a row costs grows with the rows of its chunk, so that
    -- their mean would be too little.
    it("every chunk of GDN by its own rows, in both modes", function()
        local per_row, sum = sizes.gdn_forward, 0
        for _, n in ipairs { 64, 26, 28 } do sum = sum + 4 * n * per_row(8, 8, n) end
        local model = model_of { schedule = cplab.schedule.list { "gdn" }, gdn = { key_heads = 2,
            value_heads = 4, key_dim = 8, value_dim = 8, chunk = 64 } }
        local function core(cp, mode, real)
            local prices = prices_of { cp = cp, stream = { lengths = { 100, 28 }, real = real },
                backward = false, model = model,
                cluster = cluster_of { efficiency = { gdn_forward = { max = 1e-300 } } } }
            return (prices:mixer(1, "contiguous", mode))
        end
        assert.near(sum, core(1, "chunkwise", { 90, 28 }), 1e-9 * sum)
        assert.near(sum / 2, core(2, "headwise", { 90, 28 }), 1e-9 * sum)
    end)

    -- A ring in the contiguous layout: every step waits for the rank that sees its whole shard, so
    -- P/(2P-1) of the ideal, 53.3 % at P = 8 (facts on limits, section 6). Zigzag wastes nothing.
    it("how well a ring does: 53.3 % contiguous at 8 ranks, zigzag all of it", function()
        local P, tokens = 8, 2 ^ 15
        local function share(layout, flops)
            local prices = prices_of { cp = P, stream = { lengths = { tokens } }, backward = false,
                cluster = cluster_of { flops = flops },
                model = model_of { schedule = cplab.schedule.list { "gqa" } } }
            local s = sizes.attention("gqa", prices.list[1].about.config, 1)
            local _, d = prices:mixer(1, layout, "p2p")
            local rows = 2 * tokens / P * s.params / 1e9
            local ideal = tokens * (tokens + 1) / 2 / P * s.pair / 1e9
            return ideal / (d.compute - rows)
        end
        assert.near(P / (2 * P - 1), share("contiguous", { f64 = 1e9 }), 1e-3)
        assert.near(1, share("zigzag", { f64 = 1e9 }), 1e-3)
        assert.near(1, share("mirror", { f64 = 1e9 }), 1e-3)
    end)

    -- Facts on limits, section 6, claim 11: of the chunks that a causal ring brings to ranks other
    -- than their own, 25 % are needed by none in zigzag, 50 % in contiguous.
    it("the keys that a ring brings in vain: 25 % in zigzag, 50 % in contiguous", function()
        for _, P in ipairs { 2, 4, 8, 16 } do
            local prices = prices_of { cp = P, stream = { lengths = { 64 * P } } }
            local function wasted(layout)
                local keys, n = prices.counts:keys(layout, 0, 8), 0
                for i = 0, P - 1 do
                    for j = 0, P - 1 do
                        n = n + (i ~= j and tonumber(keys.keys[i * P + j]) or 0)
                    end
                end
                return 1 - n / (P * (P - 1) * 64)
            end
            assert.near(0.25, wasted "zigzag", 1e-12)
            assert.near(0.5, wasted "contiguous", 1e-12)
        end
    end)

    it("windows: keys out of sight cost nothing", function()
        local function compute(window)
            local prices = prices_of { cp = 2, stream = { lengths = { 64 } },
                backward = false, cluster = cluster_of { flops = { f64 = 1 } },
                model = model_of { schedule = cplab.schedule.list { "gqa" },
                    gqa = { heads = 8, kv_heads = 2, head_dim = 16, window = window } } }
            return select(2, prices:mixer(1, "zigzag", "gather")).passes[1].busy
        end
        local pair = 4 * 8 * 16
        local all, near = compute(nil), compute(4)
        -- 64 * 65 / 2 pairs, and 4 a query but for the first three.
        assert.equal(pair * (2080 - (64 * 4 - 6)), all[0] + all[1] - near[0] - near[1])
    end)

    it("real tokens for attention and GDN, padded ones for products", function()
        local function busy(real, i, mode)
            local prices = prices_of { cp = 1, stream = { lengths = { 32 }, real = { real } },
                backward = false, cluster = cluster_of { flops = { f64 = 1 } } }
            return select(2, prices:mixer(i, "contiguous", mode)).compute
        end
        assert.equal(4 * 8 * 16 * (32 * 33 - 16 * 17) / 2, busy(32, 2) - busy(16, 2))
        assert.near(16 * 4 * sizes.gdn_forward(8, 8, 4), busy(32, 1) - busy(16, 1), 1e-6)
    end)
end)
