--- Prices in specs: of small models, on clusters on which only what is named takes time.
local cplab = require "cplab"

local M = {}

--- The text of the error that a call raises.
function M.message_of(f, ...)
    local ok, message = pcall(f, ...)
    return not ok and message or "no error"
end

--- A cluster on which only what is named takes time.
function M.cluster_of(changes)
    local free = { max = 1, half = 0 }
    local link = { alpha = 0, message = 0, beta = 1e300, half = 0 }
    return cplab.cluster.load("h100"):with {
        flops = { bf16 = 1e300, f32 = 1e300, f64 = 1e300 },
        efficiency = { gemm = free, attention_forward = free, attention_backward = free,
            gdn_forward = free, gdn_backward = free },
        memory = { bandwidth = 1e300, half = 0, pack = 0 },
        links = { inside = link, between = link, overlap = 1 },
        host = { sync = 0, launch = 0, segment = 0 },
    }:with(changes)
end

--- A GDN layer, then a GQA layer, with an MLP each.
function M.model_of(fields)
    local model = {
        schedule = cplab.schedule.list { "gdn", "gqa" }, policy = "contiguous", hidden = 64,
        vocab = 100, dtype = "f64",
        gqa = { heads = 8, kv_heads = 2, head_dim = 16, block = 2 },
        gdn = { key_heads = 2, value_heads = 4, key_dim = 8, value_dim = 8, conv = 4, chunk = 4 },
        mlp = { width = 96 },
    }
    for name, value in pairs(fields or {}) do model[name] = value or nil end
    return cplab.model(model)
end

--- Prices with defaults: h100, that model.
function M.prices_of(t)
    return cplab.cost.new {
        cluster = t.cluster or "h100", model = t.model or M.model_of(),
        stream = t.stream.seqlen and cplab.stream.sbhd(t.stream) or cplab.stream.thd(t.stream),
        cp = t.cp, tp = t.tp, backward = t.backward, recompute = t.recompute, dtype = t.dtype,
        layouts = t.layouts,
    }
end

--- All layers live in one layout; mixers run where a list says.
function M.assignment_of(prices, live, mixers)
    local layers = {}
    for i in ipairs(prices.model:layers()) do
        layers[i] = { live = live, mixer = mixers and mixers[i] or live }
    end
    return { name = "mine", entry = live, exit = live, layers = layers }
end

return M
