--- Sizes: what one row costs in each kind of layer, from the layer's configuration alone.
-- Products count 2 FLOP a multiply-add. Backward does twice the forward's products; where a core
-- does more, it is said. Formulas: facts on GDN and attention, sections 3.8 and 5.6, for the layers
-- as cplab builds them (core/layer).
--
-- With tensor parallelism a rank has its share of heads or of a width, and of key heads that are
-- fewer than tp a copy.
-- @module cplab.cost.sizes
local M = {}

-- ---- attention ------------------------------------------------------------------

local function gqa(config, tp)
    local heads, kv_heads = config.heads / tp, math.max(config.kv_heads / tp, 1)
    local D, H = config.head_dim, config.hidden
    return {
        heads = heads, kv_heads = kv_heads, key_dim = D, value_dim = D, kv_shared = 0,
        params = H * (3 * heads + 2 * kv_heads) * D, -- query, gate, key, value, output
        gemms = 4,
        -- q is normed and rotated, so is k; the gate multiplies o.
        elements = 2 * (heads + 2 * kv_heads) * D + 3 * heads * D,
        launches = 10,
    }
end

-- The absorbed form: one kv head, whose values are a part of its keys.
local function mla(config, tp)
    local heads, H = config.heads / tp, config.hidden
    local q_dim = config.nope_dim + config.rope_dim
    local key_dim = config.kv_rank + config.rope_dim
    local queries = config.q_rank > 0 and H * config.q_rank + config.q_rank * heads * q_dim
        or H * heads * q_dim
    return {
        heads = heads, kv_heads = 1, key_dim = key_dim, value_dim = config.kv_rank,
        kv_shared = config.kv_rank,
        params = queries + H * key_dim
            + heads * config.kv_rank * (config.nope_dim + config.value_dim)
            + heads * config.value_dim * H,
        gemms = 3 + 2 * heads,
        elements = 4 * heads * key_dim + 6 * key_dim,
        launches = 10 + 2 * heads,
    }
end

--- Attention: heads, kv_heads, key_dim, value_dim of a rank; kv_width (elements of a row of keys
-- and values, which is what travels); q_width, o_width; params (of its products, a row of which is
-- one multiply-add each); gemms; elements (that pointwise kernels read or write for a row,
-- forward); pair (FLOP of a visible pair forward) and pair_backward (five products, the scores
-- again).
-- @tparam string kind "gqa" or "mla"
-- @tparam table config of cplab.layers.mixer_config
-- @tparam number tp
function M.attention(kind, config, tp)
    local s = (kind == "mla" and mla or gqa)(config, tp)
    s.q_width, s.o_width = s.heads * s.key_dim, s.heads * s.value_dim
    s.kv_width = s.kv_heads * (s.key_dim + s.value_dim - s.kv_shared)
    s.pair = 2 * s.heads * (s.key_dim + s.value_dim)
    s.pair_backward = 2 * s.heads * (3 * s.key_dim + 2 * s.value_dim)
    return s
end

-- ---- gdn ------------------------------------------------------------------------

--- FLOP of the chunked delta rule for one value head, as what to multiply the sums over chunks of c
-- rows with: { rows =, squares =, cubes =, chunks = } (of 1 the number of chunks).
M.delta = {}

function M.delta.forward(K, V)
    return { rows = 6 * K * V, squares = 2 * (3 * K + 2 * V), cubes = 1 / 3, chunks = 0 }
end

-- What forward made is recomputed.
function M.delta.backward(K, V)
    return { rows = 16 * K * V, squares = 2 * (9 * K + 5 * V), cubes = 4, chunks = 0 }
end

-- To summarise: what the state becomes, as kernels/gdn/gdn_summary_cpu.c does it.
function M.delta.state(K, V)
    return { rows = 4 * K * V, squares = 2 * K + V, cubes = 0, chunks = 0 }
end

-- The transition as well; the facts' number at K = V = 128, c = 64.
function M.delta.summary(K, V)
    return { rows = 4 * K * V + 4 * K * K, squares = 3 * K + V, cubes = 0, chunks = 0 }
end

-- Rows' part in the gradient of the state.
function M.delta.gradient(K, V)
    return { rows = 6 * K * V + 2 * K * K, squares = 0, cubes = 0, chunks = 2 * K * K * K }
end

--- FLOP of all chunks.
-- @tparam table terms of `delta`
-- @param sums rows, squares, cubes, chunks: numbers, or a cpl_chain_load
function M.flop(terms, sums)
    return terms.rows * tonumber(sums.rows) + terms.squares * tonumber(sums.squares)
        + terms.cubes * tonumber(sums.cubes) + terms.chunks * tonumber(sums.chunks)
end

-- FLOP of a row in chunks of c.
local function of_row(terms, c)
    return terms.rows + terms.squares * c + terms.cubes * c * c + terms.chunks / c
end

--- FLOP of the chunked delta rule for one row and value head, in whole chunks of c rows.
function M.gdn_forward(K, V, c)
    return of_row(M.delta.forward(K, V), c)
end

--- The same backward.
function M.gdn_backward(K, V, c)
    return of_row(M.delta.backward(K, V), c)
end

--- FLOP to summarise one row: what the state becomes, and with `whole` the transition as well.
function M.gdn_summary(K, V, c, whole)
    return of_row(whole and M.delta.summary(K, V) or M.delta.state(K, V), c)
end

--- The same of a row's part in the gradient of the state.
function M.gdn_summary_backward(K, V, c)
    return of_row(M.delta.gradient(K, V), c)
end

--- GDN: key_heads, value_heads, K, V, chunk of a rank; conv_width (elements of q, k, v), params,
-- gemms, elements as of attention; key_elements (those of q and k); state (elements of all states
-- of one span), apply (FLOP to bring a state through a span).
function M.gdn(config, tp)
    local key_heads, value_heads = math.max(config.key_heads / tp, 1), config.value_heads / tp
    local K, V, H = config.key_dim, config.value_dim, config.hidden
    local keys, values = key_heads * K, value_heads * V
    return {
        key_heads = key_heads, value_heads = value_heads, K = K, V = V, chunk = config.chunk,
        conv = config.conv,
        conv_width = 2 * keys + values, value_width = values,
        params = H * (2 * keys + 3 * values + 2 * value_heads), -- q, k, v, z, output; a, b
        gemms = 5,
        -- Convolution of q, k, v; norms of q and k; the gated norm reads o and z.
        elements = 2 * (2 * keys + values) + 4 * keys + 3 * values + 4 * value_heads,
        key_elements = 2 * 2 * keys + 4 * keys,
        launches = 12,
        state = value_heads * K * V,
        apply = 2 * value_heads * K * K * V,
    }
end

--- What fla's chunkwise CP gathers from every rank, forward, in bytes: state and transition of all
-- heads in f32. cplab hands the state alone from span to span (`gdn(...).state`).
function M.fla_message(config)
    local K, V = config.key_dim, config.value_dim
    return config.value_heads * K * (K + V) * 4
end

-- ---- feed-forward networks --------------------------------------------------------

--- A feed-forward network: params of a row's products, gemms, elements, launches.
-- @tparam string kind "mlp" or "moe"
-- @tparam table config of cplab.layers.ffn_config
function M.ffn(kind, config, tp)
    local H, F = config.hidden, config.width / tp
    if kind == "mlp" then
        return { params = 3 * H * F, gemms = 3, elements = 3 * F, launches = 4, computes = true,
            weights = 3 * H * F * tp }
    end
    local k, shared = config.top_k, (config.shared_width or 0) / tp
    return {
        params = H * config.experts + 3 * H * (k * F + shared) + (shared > 0 and H or 0),
        gemms = 3 * config.experts + (shared > 0 and 5 or 1),
        -- Rows go to their experts and come back, once a choice.
        elements = k * (3 * F + 4 * H) + 3 * shared + 2 * H + 2 * config.experts,
        launches = 16, computes = true,
        weights = H * config.experts + 3 * H * (config.experts * F + shared) * tp,
    }
end

-- ---- tensor parallelism -----------------------------------------------------------

-- What tp must divide, and what it may also be a multiple of.
local SPLIT = {
    gqa = { "heads" }, mla = { "heads" }, gdn = { "value_heads" }, mlp = { "width" },
    moe = { "width", "shared_width" },
}
local COPIED = { gqa = "kv_heads", gdn = "key_heads" }

--- Why tp ranks cannot split the layers of a model; nil if they can. The rules are those of
-- core/layer (cpli_layer_share).
function M.split_refusal(model, tp)
    for _, kind in ipairs { "gqa", "mla", "gdn", "mlp", "moe" } do
        for _, name in ipairs(model[kind] and SPLIT[kind] or {}) do
            if model[kind][name] % tp ~= 0 then
                return ("%s.%s = %d is not a multiple of tp = %d"):format(kind, name,
                    model[kind][name], tp)
            end
        end
        local n = model[kind] and model[kind][COPIED[kind]]
        if n and n % tp ~= 0 and tp % n ~= 0 then
            return ("%s.%s = %d is neither a multiple nor a divisor of tp = %d"):format(kind,
                COPIED[kind], n, tp)
        end
    end
end

return M
