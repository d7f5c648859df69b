--- What a layer of attention costs in a layout and a mode: projections of the rank's rows, the core
-- over the keys that its queries see, and what brings the two together.
-- @module cplab.cost.attention
local exchanges = require "cplab.cost.exchange"
local gather = require "cplab.cost.gather"
local ring = require "cplab.cost.ring"
local sizes = require "cplab.cost.sizes"

local M = {}

-- Projections and pointwise kernels of all rows; `times` is 1 forward and 2 backward.
function M.rows(env, pass, s, rows, times)
    local list, cluster = {}, env.cluster
    for i = 1, #rows do
        local n = rows[i] * env.batch
        list[i] = cluster:work("gemm", env.dtype, 2 * times * n * s.params, times * s.gemms)
            + cluster:pointwise(times * n * s.elements * env.bytes, times * s.launches)
    end
    pass:work(list)
    pass:launch(times * (s.gemms + s.launches))
end

-- Seconds of so many visible pairs in so many spans of queries.
local function core(env, s, is_backward)
    local kind = is_backward and "attention_backward" or "attention_forward"
    local pair = is_backward and s.pair_backward or s.pair
    return function(pairs_seen, blocks)
        return env.cluster:work(kind, env.dtype, pairs_seen * pair * env.batch,
            blocks * env.batch)
    end
end

-- ---- gather ---------------------------------------------------------------------

-- One call over all spans of the rank's queries, each of which sees a key of its own.
local function gather_core(env, keys, seconds_of)
    local n, list = env.cp, {}
    for i = 0, n - 1 do
        local sum = 0
        for j = 0, n - 1 do sum = sum + tonumber(keys.pairs[i * n + j]) end
        list[i + 1] = seconds_of(sum, tonumber(keys.blocks[i * n + i]))
    end
    return list
end

local function by_gather(env, counts, layout, s, keys)
    local rows, overlap = counts:rows(layout), env.cluster.overlap.gather
    local forward, backward = env:pass(), env:pass()
    local function cheapest(bytes)
        return gather.cheapest(gather.variants(env, keys, rows, s.kv_width * bytes * env.batch))
    end
    local variant, there = cheapest(env.bytes)
    local _, home = cheapest(env.gradient_bytes)
    M.rows(env, forward, s, rows, 1)
    forward:sync()
    forward:work(gather_core(env, keys, core(env, s, false)))
    forward:launch(1)
    forward:exchange(there, overlap)
    backward:work(gather_core(env, keys, core(env, s, true)))
    backward:launch(2)
    backward:exchange(home, overlap)
    M.rows(env, backward, s, rows, 2)
    return forward, backward, variant
end

-- ---- p2p, a2a -------------------------------------------------------------------

local function slices(env, pass, s, rows, size)
    local kv_heads = math.max(s.kv_heads / size, 1)
    local kv = kv_heads * (s.key_dim + s.value_dim - s.kv_shared)
    for _, width in ipairs { s.q_width / size, kv, s.o_width / size } do
        local bytes = width * env.bytes * env.batch
        exchanges.pack_slices(pass, rows, size, bytes)
        pass:exchange(exchanges.slices(env, rows, size, bytes), 0)
    end
    return kv
end

-- Heads spread over groups of `size` ranks, whose shards go round.
local function by_ring(env, counts, layout, s, keys, size)
    local rows = counts:rows(layout)
    local round = ring.new(keys, rows, size)
    local forward, backward = env:pass(), env:pass()
    local inner = { pair = s.pair / size, pair_backward = s.pair_backward / size }
    local kv = s.kv_width
    M.rows(env, forward, s, rows, 1)
    if size > 1 then
        kv = slices(env, forward, s, rows, size)
        slices(env, backward, s, rows, size)
    end
    forward:sync()
    ring.forward(env, forward, round, core(env, inner, false), kv * env.bytes * env.batch)
    ring.backward(env, backward, round, core(env, inner, true), kv * env.bytes * env.batch,
        kv * env.gradient_bytes * env.batch)
    M.rows(env, backward, s, rows, 2)
    return forward, backward
end

-- ---- modes ----------------------------------------------------------------------

local function group_of(mode, config, cp)
    if mode == "a2a" then return cp end
    return mode == "a2a+p2p" and config.a2a or 1
end

--- Why a mode cannot run here; nil if it can. The rules are those of core/layer/gqa_a2a.c.
-- @tparam string mode
-- @tparam table config of cplab.layers.mixer_config
function M.refusal(env, kind, mode, config)
    local size, s = group_of(mode, config, env.cp), sizes.attention(kind, config, env.tp)
    if mode == "a2a+p2p" and (size < 1 or env.cp % size ~= 0) then
        return ("a2a = %d does not divide cp = %d"):format(size, env.cp)
    elseif size > 1 and s.heads % size ~= 0 then
        return ("%d heads, not a multiple of the %d ranks that they are spread over"):format(
            s.heads, size)
    elseif size > 1 and s.kv_heads % size ~= 0 and size % s.kv_heads ~= 0 then
        return ("%d kv_heads and %d ranks that they are spread over: neither is a multiple of the "
            .. "other"):format(s.kv_heads, size)
    end
end

--- The passes of a layer.
-- @tparam table env of cplab.cost
-- @tparam table counts
-- @tparam string layout
-- @tparam string kind "gqa" or "mla"
-- @tparam string mode
-- @tparam table config
-- @treturn table the forward pass
-- @treturn table the backward pass
-- @treturn ?string how keys are gathered
function M.passes(env, counts, layout, kind, mode, config)
    local s = sizes.attention(kind, config, env.tp)
    local keys = counts:keys(layout, config.window, env.node_size)
    if mode == "gather" then return by_gather(env, counts, layout, s, keys) end
    return by_ring(env, counts, layout, s, keys, group_of(mode, config, env.cp))
end

return M
