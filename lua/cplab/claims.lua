--- Published results that can be recomputed on paper: what was claimed, what cplab's own counts
-- give for the same inputs, and which inputs nobody published.
--
-- A claim holds *numbers*, each { what it is, published } with the published value as a text, so
-- that its digits are known: a number is reproduced if it is within half a unit of the last digit.
-- "> 1" and "< 1" claim a side. The numbers of cplab come from counted steps (cplab.assignment),
-- layouts, routes and presets; `given` holds what the source says of its set-up and nothing that
-- is a result. A claim that is `open`, with a reason, is not judged; it may still have numbers.
--
-- MLM, fla, RFA, Magi, Relax, pt, sglang, maxtext: threads and repositories of
-- NVIDIA/Megatron-LM, fla-org/flash-linear-attention, zhuzilin/ring-flash-attention,
-- SandAI-org/MagiAttention, redai-studio/Relax, pytorch/pytorch, sgl-project/sglang,
-- AI-Hypercomputer/maxtext.
-- @module cplab.claims
local assignments = require "cplab.assignment"
local costs = require "cplab.cost"
local gdn_core = require "cplab.bench.gdn_core"
local layouts = require "cplab.layout"
local models = require "cplab.model"
local packs = require "cplab.packs"
local policies = require "cplab.policy"
local routes = require "cplab.route"
local schedules = require "cplab.schedule"
local streams = require "cplab.stream"
local views = require "cplab.view"

local M = {}

local MIB = 2 ^ 20

-- ---- what is counted ----------------------------------------------------------------

-- Conversions of a forward pass over one period of 1:k.
local function conversions(policy, k, cp)
    local layers = schedules.ratio("1:" .. k, k + 1).layers
    local assignment, n = assignments.from_policy(policies.resolve(policy), layers), 0
    for _, step in ipairs(assignments.steps(assignment, cp, function() return "mlp" end)) do
        n = n + (step.op == "convert" and 1 or 0)
    end
    return n
end

local function one(tokens, kind, cp, tp)
    return layouts.create(kind, streams.thd { lengths = { tokens } }, { cp = cp, tp = tp })
end

-- Rows that the busiest rank sends or receives when one sequence changes from zigzag to contiguous.
local function busiest(tokens, cp, tp)
    return routes(one(tokens, "zigzag", cp, tp), one(tokens, "contiguous", cp, tp)):stats()
        .busiest_tokens
end

-- Elements of a row of the projections of a GDN layer: into the mixer (q, k, v, z, b, a), and out.
local function projected(gdn)
    local keys, values = gdn.key_heads * gdn.key_dim, gdn.value_heads * gdn.value_dim
    return 2 * keys + 2 * values + 2 * gdn.value_heads + values
end

-- A rank's summary of a span for the chain: the transition K x K and the state K x V of each head.
local function summary_bytes(heads, key_dim, value_dim, bytes)
    return heads * key_dim * (key_dim + value_dim) * bytes
end

-- The part of the keys and values that a ring brings to a rank which has no use for them.
local function redundant(kind, tokens, cp)
    local layout = one(tokens, kind, cp)
    local needed = routes(layout, views.keys(layout)):stats().moved_tokens
    return 1 - needed / (tokens * (cp - 1))
end

-- ---- the claims -----------------------------------------------------------------------

local CLAIMS = {}

local function claim(fields)
    CLAIMS[#CLAIMS + 1] = fields
end

claim {
    name = "conversions at 1:3", source = "MLM#6387",
    numbers = { { "zigzag base", "6" }, { "contiguous base", "2" }, { "% saved", "67" } },
    given = { k = 3, cp = 8 },
    compute = function(x)
        local zigzag = conversions("zigzag", x.k, x.cp)
        local contiguous = conversions("contiguous", x.k, x.cp)
        return { zigzag, contiguous, 100 * (1 - contiguous / zigzag) }
    end,
    unknown = "none",
}

claim {
    name = "1.20 x 1.075 = 1.29, and what it implies", source = "MLM#6387",
    numbers = { { "together", "1.29" }, { "% of the old step is route building", "16.7" },
        { "% of the prebuilt step are conversions", "10.5" }, { "% of it stay", "3.5" } },
    given = { prebuilt = 1.20, contiguous = 1.075, k = 3, cp = 8 },
    compute = function(x)
        local left = conversions("contiguous", x.k, x.cp) / conversions("zigzag", x.k, x.cp)
        local share = (1 - 1 / x.contiguous) / (1 - left)
        return { x.prebuilt * x.contiguous, 100 * (1 - 1 / x.prebuilt), 100 * share,
            100 * share * left }
    end,
    unknown = "GPUs, S or lengths, CP, TP, EP, microbatches, recompute, layers, whether CP spans "
        .. "nodes; that only conversions changed",
}

claim {
    name = "a conversion over InfiniBand", source = "MLM#6387",
    numbers = { { "ms each", "1.46" }, { "ms saved a period", "5.8" } },
    given = { preset = "qwen35_397b_proxy", tokens = 8192, cp = 16, bytes = 2, rate = 46e9, k = 3 },
    compute = function(x)
        local hidden = models[x.preset] {}.hidden
        local each = busiest(x.tokens * x.cp, x.cp) * hidden * x.bytes / x.rate
        local saved = conversions("zigzag", x.k, x.cp) - conversions("contiguous", x.k, x.cp)
        return { 1e3 * each, 1e3 * each * saved }
    end,
    unknown = "tokens a rank, CP, fabric (8K, 16 and a measured 46 GB/s are assumed)",
}

-- A step of the proxy by the model of costs.
local function step_seconds(x, tokens, policy, route)
    local model = models[x.preset] { policy = policy, routes = route }
    local stream = streams.thd { lengths = packs.draw(x.pack, tokens * x.cp, 2 * x.cp) }
    return costs.new { cluster = x.cluster, model = model, stream = stream, cp = x.cp,
        dtype = "bf16" }:step(model:assignment(stream, { cp = x.cp, tp = 1 })).seconds
end

claim {
    name = "the same projected, CP 16 on H100 nodes", source = "MLM#6387",
    numbers = { { "x by a contiguous base, 4K tokens a rank", "1.075" },
        { "32K tokens a rank", "1.075" }, { "x by prebuilt routes, 4K tokens a rank", "1.20" } },
    given = { preset = "qwen35_397b_proxy", pack = "log-normal 16k", cp = 16, cluster = "h100" },
    compute = function(x)
        local few, many = 4096, 32768
        local zigzag = step_seconds(x, few, "zigzag")
        return { zigzag / step_seconds(x, few, "contiguous"),
            step_seconds(x, many, "zigzag") / step_seconds(x, many, "contiguous"),
            step_seconds(x, few, "zigzag", "lazy") / zigzag }
    end,
    open = "everything but the model is assumed; a sync costs what the cluster says, not what "
        .. "waits for it",
}

claim {
    name = "a step without its host syncs", source = "Relax#254",
    numbers = { { "s", "11.5" }, { "x", "1.27" } },
    given = { step = 14.60, syncs = 3.1 },
    compute = function(x)
        return { x.step - x.syncs, x.step / (x.step - x.syncs) }
    end,
    unknown = "how much of the 3.1 s overlaps",
}

claim {
    name = "chunkwise against headwise", source = "Relax#206, #254",
    numbers = { { "with syncs", "> 1" }, { "without", "< 1" } },
    given = { chunkwise = 14.60, headwise = 12.53, syncs = 3.1 },
    compute = function(x)
        return { x.chunkwise / x.headwise, (x.chunkwise - x.syncs) / x.headwise }
    end,
    unknown = "the syncs of headwise",
}

claim {
    name = "projections against hidden states", source = "MLM#3282",
    numbers = { { "35B", "4.02" }, { "397B", "3.52" } },
    given = { presets = { "qwen35_35b", "qwen35_397b" } },
    compute = function(x)
        local ratios = {}
        for i, name in ipairs(x.presets) do
            local model = models[name] {}
            ratios[i] = projected(model.gdn) / (2 * model.hidden)
        end
        return ratios
    end,
    unknown = "none (TP 1)",
}

-- Rows that the busiest rank receives: whole shards gathered over TP, converted over CP, and cut
-- again, less what one exchange over TP x CP takes.
local function composed_more(x)
    local tokens = x.tokens * x.cp
    local live, shard = one(tokens, "zigzag", x.cp, x.tp), one(tokens, "zigzag", x.cp)
    local gathered = routes(live, views.shard(live, shard)):stats().busiest_tokens
    return gathered + busiest(tokens, x.cp) - busiest(tokens, x.cp, x.tp)
end

local K3 = { hidden = 7168, tokens = 32768, cp = 16, tp = 4, bytes = 2, microbatches = 32 }

-- GB a rank and iteration of conversions there and back around some layers, in so many passes.
local function gigabytes(x, rows, layers, passes)
    return rows * x.hidden * x.bytes * layers * 2 * passes * x.microbatches / 1e9
end

claim {
    name = "one exchange over TP x CP", source = "MLM#7545",
    numbers = { { "GB less, forward and backward", "631" }, { "GB with recompute", "947" },
        { "GB/s", "415" }, { "GB/s, recompute", "6.2e2" } },
    given = { shape = K3, layers = 7, seconds = 71.80 - 70.28 },
    compute = function(x)
        local more = composed_more(x.shape)
        local plain = gigabytes(x.shape, more, x.layers, 2)
        local again = gigabytes(x.shape, more, x.layers, 3)
        return { plain, again, plain / x.seconds, again / x.seconds }
    end,
    unknown = "lengths (one sequence is assumed), recompute, what overlaps",
}

claim {
    name = "a contiguous base for 5 layers", source = "MLM#7545",
    numbers = { { "GB less", "75" }, { "GB/s", "134" } },
    given = { shape = K3, layers = 5, seconds = 70.28 - 69.72 },
    compute = function(x)
        local shape = x.shape
        local rows = busiest(shape.tokens * shape.cp, shape.cp, shape.tp)
        local saved = gigabytes(shape, rows, x.layers, 2)
        return { saved, saved / x.seconds }
    end,
    unknown = "lengths, recompute, what overlaps",
}

-- The rest of a rank's time is the pre-pass: the states of its span from a zero state (4 K V) and
-- their transition (4 K K); the rows W and U of each chunk are kept, or made again (2 C (K + V)).
claim {
    name = "efficiency of the chain at CP 4", source = "fla#691",
    numbers = { { "W, U made again", "0.53" }, { "kept", "0.58" }, { "measured", "0.60" } },
    given = { key_dim = 128, value_dim = 128, chunk = 64, cp = 4, one = 4.808, all = 2.001 },
    compute = function(x)
        local K, V = x.key_dim, x.value_dim
        local base = gdn_core.flops { key_dim = K, value_dim = V, tokens = 1, value_heads = 1 }
        local pass = 4 * K * V + 4 * K * K
        local again = 2 * x.chunk * (K + V)
        return { base / (base + pass + again), base / (base + pass), x.one / (x.cp * x.all) }
    end,
    unknown = "what the kernels share, their efficiency, the link",
}

claim {
    name = "head all-to-all of the same layer at CP 4", source = "fla#691",
    numbers = { { "efficiency", "0.29" } },
    open = "needs the link (H800: 200 GB/s each way, unverified) and the cost of its packing",
}

-- In a ring every step waits for the last rank, which has work in all of them.
claim {
    name = "ring attention in contiguous layout, 8 ranks", source = "RFA",
    numbers = { { "% of ideal", "53.3" } },
    given = { tokens = 65536, cp = 8 },
    compute = function(x)
        return { 100 / one(x.tokens, "contiguous", x.cp):imbalance() }
    end,
    unknown = "kernel and link (53.9 % was measured)",
}

claim {
    name = "keys of a causal ring that nobody reads", source = "Magi, its blog",
    numbers = { { "% in zigzag, CP 4", "25" }, { "CP 16", "25" }, { "% in contiguous", "50" } },
    given = { tokens = 8192, cps = { 4, 16, 16 }, kinds = { "zigzag", "zigzag", "contiguous" } },
    compute = function(x)
        local list = {}
        for i, kind in ipairs(x.kinds) do list[i] = 100 * redundant(kind, x.tokens, x.cps[i]) end
        return list
    end,
    unknown = "none",
}

claim {
    name = "documents of 4 and 12 on 2 ranks", source = "pt#189902",
    numbers = { { "max/mean in zigzag", "1" } },
    given = { kind = "zigzag", lengths = { 4, 12 }, cp = 2 },
    compute = function(x)
        local stream = streams.thd { lengths = x.lengths }
        return { layouts.create(x.kind, stream, { cp = x.cp }):imbalance() }
    end,
    unknown = "none",
}

claim {
    name = "state of a KDA layer", source = "sglang#34059",
    numbers = { { "MiB a rank", "4" } },
    given = { heads = 32, key_dim = 128, value_dim = 128, bytes = 4 },
    compute = function(x)
        return { summary_bytes(x.heads, x.key_dim, x.value_dim, x.bytes) / MIB }
    end,
    unknown = "none",
}

claim {
    name = "tokens a rank where states cost what K/V do", source = "maxtext#5040",
    numbers = { { "f32 states", "2048" }, { "bf16 states", "1024" } },
    given = { preset = "qwen35_35b", bytes = 2 },
    compute = function(x)
        local model = models[x.preset] {}
        local gqa, gdn, list = model.gqa, model.gdn, {}
        local row = 2 * gqa.kv_heads * gqa.head_dim * x.bytes
        for i, bytes in ipairs { 4, 2 } do
            list[i] = summary_bytes(gdn.value_heads, gdn.key_dim, gdn.value_dim, bytes) / row
        end
        return list
    end,
    unknown = "the dtype of its states (about 1024 was claimed)",
}

-- Gathered summaries, one a span: zigzag has twice as many spans; contiguous converts the rows.
local function native_from(x, model, cp)
    local tokens = 64 * cp
    local zigzag, contiguous = one(tokens, "zigzag", cp), one(tokens, "contiguous", cp)
    local spans = #zigzag:spans(0) - #contiguous:spans(0)
    local gdn = model.gdn
    local more = (cp - 1) * spans
        * summary_bytes(gdn.value_heads, gdn.key_dim, gdn.value_dim, 4)
    local rows = busiest(tokens, cp) / zigzag:n_local(0)
    return more / (2 * model.hidden * x.bytes * rows)
end

claim {
    name = "tokens a rank from which zigzag-native pays, 512 (P - 1)", source = "fla KCP, 397B",
    numbers = { { "P 4", "1536" }, { "P 8", "3584" }, { "P 16", "7680" } },
    given = { preset = "qwen35_397b", bytes = 2, cps = { 4, 8, 16 } },
    compute = function(x)
        local model, list = models[x.preset] {}, {}
        for i, cp in ipairs(x.cps) do list[i] = native_from(x, model, cp) end
        return list
    end,
    unknown = "time of the pre-pass (bytes only)",
}

claim {
    name = "scaling curves, 8 to 64 H100", source = "Magi, its benchmark",
    numbers = {},
    open = "their shapes need the lengths of its file and its kernels' efficiency by size",
}

claim {
    name = "1.48 x and 1.98 x by dynamic CP", source = "Megatron dynamic CP, FlexSP",
    numbers = {},
    open = "needs the lengths and a CP size for each sequence, which is not built here",
}

--- The claims, in order: name, source, numbers, given, compute or open, unknown.
M.list = CLAIMS

-- ---- judging --------------------------------------------------------------------------

--- Whether a number is what a text with so many digits says, or on the side that it says.
-- @tparam number ours
-- @tparam string published "4.02", "67", "6.2e2" (two digits), "> 1", "< 1"
-- @treturn boolean
function M.agrees(ours, published)
    local side, bound = published:match "^([<>]) (.+)$"
    if side then
        bound = tonumber(bound)
        return side == "<" and ours < bound or side == ">" and ours > bound
    end
    local fraction, exponent = published:match "^%d+%.?(%d*)e?(%d*)$"
    local unit = 10 ^ ((tonumber(exponent) or 0) - #fraction)
    -- A sum in binary may fall short of a half by a last bit.
    return math.abs(ours - tonumber(published)) <= 0.5 * unit * (1 + 1e-9)
end

--- Recomputes a claim.
-- @tparam table claim of `list`, or one like it
-- @treturn table name, source, published and ours (lists of numbers and texts, in order), labels,
-- verdict ("reproduced", "off" or "open"), unknown (a text; of an open claim the reason)
function M.evaluate(claim_)
    local row = { name = claim_.name, source = claim_.source, labels = {}, published = {},
        verdict = "open", unknown = claim_.open or claim_.unknown }
    for i, number in ipairs(claim_.numbers) do row.labels[i], row.published[i] = unpack(number) end
    if not claim_.compute then return row end
    row.ours = claim_.compute(claim_.given)
    if claim_.open then return row end
    row.verdict = "reproduced"
    for i, published in ipairs(row.published) do
        local ours = row.ours[i]
        if not (ours and M.agrees(ours, published)) then row.verdict = "off" end
    end
    return row
end

--- All claims, recomputed.
function M.rows()
    local rows = {}
    for i, entry in ipairs(CLAIMS) do rows[i] = M.evaluate(entry) end
    return rows
end

return M
