-- When does it pay to leave the reference's layouts, and for which?
--
-- Nothing is run: the model of costs (cplab.cost) projects a step, forward and backward, of one
-- period of the 397B proxy (3 GDN and 1 GQA layer, each with its experts) in bf16 on H100 nodes.
-- `reference ms` is the reference system at its best: the model lives in contiguous, attention
-- converts to zigzag by prebuilt routes, keys and values go round a ring. The columns from `mirror
-- ring` on say how many times as fast as that a step is:
--   mirror ring      the same with mirror instead of zigzag
--   zigzag gather    the same, but each rank fetches the keys that its queries see
--   contig gather    attention stays in contiguous, unbalanced; nothing is converted
--   balanced gather  attention in balanced, at its tolerance of 3 %
--   native           the model lives in zigzag; GDN hands its state along a longer chain
--   heads            GDN and attention both spread heads, not rows
--   auto             what the planner takes, tolerances and modes included; it is never below 1
-- `convert %` and `keys %` are shares of the reference's step: conversions; keys, values and states
-- that no work hides. What a ring costs beyond those is in its work: it meets the keys rank by
-- rank, and so short documents in many small pieces. `attn max/mean` is the imbalance of
-- contiguous: what is lost where nothing is converted. `context` is the mean number of keys that a
-- query sees: a ring hides behind attention only where that is long. `network` says how many ranks
-- of a group share a node: 8 by NVLink, or 1, as with 8 tensor-parallel ranks a node: then all
-- bytes go over InfiniBand. A case passes if the planner is as good as all the others, and if the
-- projection of its whole step is the sum that it planned with.
local cplab = require "cplab"

local PER_RANK = 32768

local NETWORK = { nvlink = 8, infiniband = 1 }

-- Where the model lives, where and how attention runs, where and how GDN runs.
local RIVALS = {
    { "mirror ring", "contiguous", "mirror", "p2p", "contiguous", "chunkwise" },
    { "zigzag gather", "contiguous", "zigzag", "gather", "contiguous", "chunkwise" },
    { "contig gather", "contiguous", "contiguous", "gather", "contiguous", "chunkwise" },
    { "balanced gather", "contiguous", "balanced", "gather", "contiguous", "chunkwise" },
    { "native", "zigzag", "zigzag", "p2p", "zigzag", "chunkwise" },
    { "heads", "zigzag", "zigzag", "a2a", "zigzag", "headwise" },
}
local REFERENCE = { "reference", "contiguous", "zigzag", "p2p", "contiguous", "chunkwise" }

local function stream(case)
    return cplab.stream.thd { lengths = cplab.packs.draw(case.pack, case.group * PER_RANK,
        2 * case.group, case.draw) }
end

local function model(case)
    return cplab.model.qwen35_397b_proxy { layers = 4, policy = "auto",
        auto = { cluster = case.cluster, dtype = "bf16" } }
end

local function assignment(lab, rival)
    local name, live, gqa, gqa_mode, gdn, gdn_mode = unpack(rival)
    local layers = {}
    for i, layer in ipairs(lab.model:layers()) do
        local is_gdn = layer.kind == "gdn"
        layers[i] = { live = live, mixer = is_gdn and gdn or gqa,
            cp_mode = is_gdn and gdn_mode or gqa_mode }
    end
    return { name = name, entry = live, exit = live, layers = layers }
end

-- The mean number of keys that a query sees.
local function context(lab)
    local layout = cplab.layout.contiguous(lab.stream, { cp = lab.case.group })
    local pairs_of_all = 0
    for _, n in ipairs(layout:work()) do pairs_of_all = pairs_of_all + n end
    return pairs_of_all / lab.stream:n_positions(), layout:imbalance()
end

-- "gather in balanced@0.1; GDN chunkwise in contiguous"
local function picks(plan, lab)
    local words, seen = {}, {}
    for i, layer in ipairs(lab.model:layers()) do
        local choice = plan.assignment.layers[i]
        local text = ("%s %s in %s"):format(layer.kind:upper(), choice.cp_mode, choice.mixer)
        if not seen[text] then words[#words + 1], seen[text] = text, true end
    end
    return table.concat(words, "; ")
end

local function rounded(value, digits)
    return value and tonumber(("%." .. digits .. "f"):format(value))
end

local function run(lab)
    local cluster = cplab.cluster.load(lab.case.cluster):with {
        ranks_per_node = NETWORK[lab.case.network] }
    local prices = cplab.cost.new { cluster = cluster, model = lab.model, stream = lab.stream,
        cp = lab.case.group, dtype = "bf16" }
    local plan = cplab.planner.plan(prices)
    local reference = prices:step(assignment(lab, REFERENCE))
    local record = { ["reference ms"] = rounded(reference.seconds * 1e3, 2),
        ["convert %"] = rounded(100 * reference.convert / reference.seconds, 1),
        ["keys %"] = rounded(100 * reference.comm / reference.seconds, 1) }
    local best = reference.seconds
    for _, rival in ipairs(RIVALS) do
        local seconds = cplab.planner.price(prices, assignment(lab, rival))
        best = math.min(best, seconds or best)
        record[rival[1]] = seconds and rounded(reference.seconds / seconds, 3)
    end
    local mean, imbalance = context(lab)
    record.context, record["attn max/mean"] = rounded(mean, 0), rounded(imbalance, 2)
    record.auto, record["auto picks"] = rounded(reference.seconds / plan.seconds, 3),
        picks(plan, lab)
    lab:record(record)
    lab:check("auto / best of the others", plan.seconds / best, 1 + 1e-9)
    lab:check("planned sum / projected step",
        math.abs(prices:step(plan.assignment).seconds / plan.seconds - 1), 1e-9)
end

return cplab.experiment {
    name = "when_does_it_pay",
    about = "Projected gain of layouts and modes over the reference's best, by documents, network.",
    sweep = {
        order = { "network", "group", "pack" },
        network = { "infiniband", "nvlink" },
        group = { 8, 16, 32 },
        pack = cplab.packs.names,
    },
    params = { cluster = "h100", draw = 1 },
    stream = stream,
    model = model,
    run = run,
    report = {
        "context", "attn max/mean", "reference ms", "convert %", "keys %", "mirror ring",
        "zigzag gather", "contig gather", "balanced gather", "native", "heads", "auto",
        "auto picks", "verdict",
    },
}
