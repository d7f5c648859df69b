--- What all else costs: norms and feed-forward networks, the two ends of the model, conversions and
-- gathers of hidden states, routes that are built on the way.
-- @module cplab.cost.rest
local exchanges = require "cplab.cost.exchange"
local layers = require "cplab.layers"
local sizes = require "cplab.cost.sizes"

local M = {}

-- ---- hidden states --------------------------------------------------------------

-- What the host does for one exchange of hidden states.
local function wait_for_host(env, pass, matrix)
    local host = env.cluster.host
    if env.model.routes == "lazy" then
        pass.host = pass.host + host.lazy_syncs * host.sync + matrix.segments * host.segment
    else
        pass.host = pass.host + host.prebuilt_syncs * host.sync
    end
end

local function hidden_bytes(env)
    return env.model.hidden * env.bytes * env.batch
end

-- One exchange of hidden states, with nothing beside it to hide behind but what hides always.
local function add_exchange(pass, x, share)
    pass:sync()
    pass.comm = pass.comm + x.seconds * (1 - share)
    pass:count(x)
end

--- Adds the gather of a layout's windows to whole shards, or its adjoint: nothing with tp 1.
function M.gather(env, counts, layout, pass)
    if env.tp == 1 then return end
    local matrix = counts:window_overlap(layout, layout)
    add_exchange(pass, exchanges.to_shards(env, matrix, hidden_bytes(env)), 0)
    wait_for_host(env, pass, matrix)
end

-- With windows the conversion and the gather are one exchange; what remains of it once the gather
-- alone is paid for.
local function fused(env, counts, from, to)
    local x = exchanges.to_shards(env, counts:window_overlap(from, to), hidden_bytes(env))
    local alone = exchanges.to_shards(env, counts:window_overlap(to, to), hidden_bytes(env))
    x.seconds = math.max(x.seconds - alone.seconds, 0)
    for i = 0, env.cp - 1 do
        x.bytes[i] = math.max(x.bytes[i] - alone.bytes[i], 0)
        x.messages[i] = math.max(x.messages[i] - alone.messages[i], 0)
    end
    return x
end

--- The passes of one conversion and its adjoint, which moves the same rows back.
-- @tparam boolean is_residual the residual stream goes, from windows to windows; else from windows
-- to the whole shard where a mixer runs (with tp 1 that is the same)
-- @treturn table forward
-- @treturn table backward
-- @treturn string "swap" (in place) or "packed"
function M.conversion(env, counts, from, to, is_residual)
    local forward, backward = env:pass(), env:pass()
    local matrix, bytes = counts:overlap(from, to), hidden_bytes(env)
    local x = env.tp == 1 and exchanges.between(env, matrix, bytes)
        or is_residual and exchanges.to_windows(env, counts:windows_between(from, to), bytes)
        or fused(env, counts, from, to)
    local packing, is_swap = exchanges.packing(env, matrix, bytes / env.tp)
    for _, pass in ipairs { forward, backward } do
        add_exchange(pass, x, env.cluster.overlap.convert)
        pass.pack = pass.pack + env.cluster:slowest(packing)
        wait_for_host(env, pass, matrix)
    end
    return forward, backward, is_swap and "swap" or "packed"
end

-- ---- pointwise work and products of all rows ----------------------------------------

-- What a rank does for 1/split of its rows: `elements` read or written (`computes`: by kernels that
-- compute exponentials), products of `params`.
local function add_rows(env, pass, rows, split, about)
    local list, cluster = {}, env.cluster
    for i = 1, #rows do
        local n = rows[i] * env.batch / split
        local move = about.computes and cluster.pointwise or cluster.move
        list[i] = move(cluster, n * about.elements * env.bytes, about.launches)
        if about.params then
            list[i] = list[i] + cluster:work("gemm", env.dtype, 2 * n * about.params, about.gemms)
        end
    end
    pass:work(list)
    pass:launch(about.launches + (about.gemms or 0))
end

local function twice(about)
    local t = {}
    for name, value in pairs(about) do
        t[name] = type(value) == "number" and 2 * value or value
    end
    return t
end

--- The passes of what is no mixer in a layer: two norms, two residual sums and the network.
-- @tparam ?string ffn "mlp", "moe" or nil
function M.layer(env, counts, layout, ffn)
    local forward, backward = env:pass(), env:pass()
    local rows, H = counts:rows(layout), env.model.hidden
    local branches = ffn and 2 or 1
    local pointwise = { elements = branches * 5 * H, launches = branches * 2 }
    local about = ffn and sizes.ffn(ffn, layers.ffn_config(env.model, ffn), env.tp)
    add_rows(env, forward, rows, env.tp, pointwise)
    if about then
        M.gather(env, counts, layout, forward)
        add_rows(env, forward, rows, 1, about)
        M.gather(env, counts, layout, forward)
        M.gather(env, counts, layout, backward)
        add_rows(env, backward, rows, 1, twice(about))
        M.gather(env, counts, layout, backward)
    end
    add_rows(env, backward, rows, env.tp, twice(pointwise))
    return forward, backward
end

-- ---- the two ends ----------------------------------------------------------------

local function n_parameters(model)
    local H, V = model.hidden, model.vocab
    local n = V * H * (model.tied and 1 or 2)
    for i, layer in ipairs(model:layers()) do
        local config = layers.mixer_config(model, layer.kind, layer)
        n = n + (layer.kind == "gdn" and sizes.gdn(config, 1)
            or sizes.attention(layer.kind, config, 1)).params
        local ffn = model:ffn(i - 1)
        n = n + (ffn and sizes.ffn(ffn, layers.ffn_config(model, ffn), 1).weights or 0)
    end
    return n
end

-- A ring over all ranks: each sends and gets 2 (n - 1) / n of the gradients, over its slowest link.
local function add_reduction(env, pass, n)
    local ranks = env.cp * env.tp
    if ranks == 1 then return end
    local cluster, bytes = env.cluster, 2 * (ranks - 1) / ranks * n * env.gradient_bytes
    local messages = 2 * (ranks - 1)
    local seconds = ranks > cluster.ranks_per_node and cluster:exchange(0, 0, bytes, messages)
        or cluster:exchange(bytes, messages, 0, 0)
    local x = exchanges.exchange(env.cp)
    for i = 0, env.cp - 1 do
        x.busy[i], x.bytes[i], x.messages[i] = seconds, bytes, messages
    end
    x.seconds = cluster:slowest(x.busy, env.cp)
    add_exchange(pass, x, cluster.overlap.gradients)
end

-- All gradients once, at the speed of memory: they are zeroed before the forward pass, and their
-- norm is taken behind the backward one.
local function add_sweep(env, pass)
    pass:work_of_all(env.cluster:move(env.n_parameters * env.gradient_bytes, 1))
    pass:launch(1)
end

--- The passes of the ends: the embedding at the entry; final norm, head and loss at the exit, and
-- those of MTP depths, with the two projections that each begins with; all gradients zeroed, summed
-- and measured.
function M.ends(env, counts, entry, exit)
    local forward, backward = env:pass(), env:pass()
    local H, V = env.model.hidden, env.model.vocab
    local depths = env.model.mtp and env.model.mtp.depth or 0
    local embedding = { elements = 2 * H, launches = 1 }
    local head = { elements = (1 + depths) * (2 * H + V) + depths * 8 * H,
        launches = 2 + 6 * depths, params = (1 + depths) * H * V + depths * 2 * H * H,
        gemms = 1 + 3 * depths }
    -- The loss reads logits and writes their gradient in the forward pass.
    local loss = { elements = (1 + depths) * 2 * V, launches = 1 + depths, computes = true }
    add_rows(env, forward, counts:rows(entry), env.tp, embedding)
    add_rows(env, forward, counts:rows(exit), env.tp, head)
    add_rows(env, forward, counts:rows(exit), env.tp, loss)
    add_rows(env, backward, counts:rows(exit), env.tp, twice(head))
    add_rows(env, backward, counts:rows(entry), env.tp, embedding)
    backward:sync()
    env.n_parameters = env.n_parameters or n_parameters(env.model)
    add_sweep(env, forward)
    add_sweep(env, backward)
    add_reduction(env, backward, env.n_parameters)
    return forward, backward
end

return M
