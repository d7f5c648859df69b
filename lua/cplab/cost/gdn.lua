--- What a GDN layer costs in a layout and a mode.
-- Chunkwise: every rank scans its own spans; the first span of a chain is summarised by the state
-- that it leaves, those in the middle by their transition too; then states go from span to span,
-- hop by hop, and each hop waits for the one before. Headwise: all positions, some heads.
-- @module cplab.cost.gdn
local attention = require "cplab.cost.attention"
local clib = require "clib"
local exchanges = require "cplab.cost.exchange"
local sizes = require "cplab.cost.sizes"
local ffi = clib.ffi

local M = {}

-- ---- cores ----------------------------------------------------------------------

-- What some heads do in chunks: `what` is one of sizes.delta, `sums` those of its chunks' rows.
local function chunk_seconds(env, s, heads, sums, what, kind)
    local chunks = tonumber(sums.chunks)
    if chunks == 0 then return 0 end
    local flop = sizes.flop(sizes.delta[what](s.K, s.V), sums)
    return env.cluster:work(kind, env.dtype, env.batch * heads * flop, env.batch * chunks)
end

local KINDS = { forward = "gdn_forward", backward = "gdn_backward" }

-- ---- chunkwise --------------------------------------------------------------------

local function each_load(env, loads, seconds_of)
    local list = {}
    for i = 0, env.cp - 1 do list[i + 1] = seconds_of(loads[i]) end
    return list
end

-- A hop's states have arrived; they are brought through the spans in the middle.
local function add_hop(env, pass, s, load, x, through)
    pass:exchange(exchanges.price(env.cluster, load, 1, x), 0)
    for i = 0, env.cp - 1 do
        local n = through[i] * env.batch
        pass.open[i] = n > 0 and env.cluster:work("gemm", env.dtype, n * s.apply, n) or 0
    end
    pass:launch(1)
    pass:sync()
end

-- All hops in turn; backward they go the other way and take as long. A state that a rank hands on
-- in one hop was brought through a span of its own after the hop before, but for the first hop.
local function chain(env, s, hops)
    local pass, load, x = env.pass(), exchanges.load(env.cp), exchanges.exchange(env.cp)
    local through, at = ffi.new("double[?]", env.cp), 0
    local bytes = s.state * math.max(env.bytes, 4) * env.batch
    while at < hops.n do
        local level, next_at = hops.items[at].level, at
        exchanges.clear(load)
        ffi.fill(through, env.cp * 8)
        while next_at < hops.n and hops.items[next_at].level == level do
            local hop = hops.items[next_at]
            exchanges.send(load, env.nodes, hop.from, hop.to, tonumber(hop.states) * bytes)
            next_at = next_at + 1
        end
        at = next_at
        while next_at < hops.n and hops.items[next_at].level == level + 1 do
            local hop = hops.items[next_at]
            through[hop.from] = through[hop.from] + tonumber(hop.states)
            next_at = next_at + 1
        end
        add_hop(env, pass, s, load, x, through)
    end
    pass.state_bytes = pass.total_bytes
    return pass
end

-- Halos travel beside the projections of what needs none.
local function halo(env, pass, s, counts)
    local x = exchanges.between(env, counts, s.conv_width * env.bytes * env.batch)
    pass:exchange(x, env.cluster.overlap.halo)
end

local function chunkwise(env, counts, layout, s)
    local forward, backward = env:pass(), env:pass()
    local rows = counts:rows(layout)
    local loads = counts:loads(layout, s.chunk, s.conv - 1)
    local hops = env.cp > 1 and chain(env, s, counts:hops(layout))
    local function cores(way)
        return each_load(env, loads.loads, function(l)
            return chunk_seconds(env, s, s.value_heads, l.all, way, KINDS[way])
        end)
    end
    attention.rows(env, forward, s, rows, 1)
    halo(env, forward, s, loads)
    forward:work(each_load(env, loads.loads, function(l)
        return chunk_seconds(env, s, s.value_heads, l.heads, "state", KINDS.forward)
            + chunk_seconds(env, s, s.value_heads, l.middles, "summary", KINDS.forward)
    end))
    if hops then forward:include(hops) end
    forward:work(cores "forward")
    forward:launch(2)
    backward:work(each_load(env, loads.loads, function(l)
        return chunk_seconds(env, s, s.value_heads, l.followers, "gradient", KINDS.backward)
    end))
    if hops then backward:include(hops) end
    backward:work(cores "backward")
    backward:launch(4)
    attention.rows(env, backward, s, rows, 2)
    halo(env, backward, s, loads)
    return forward, backward
end

-- ---- headwise -------------------------------------------------------------------

-- [q | k | v | b | a] of the rank's heads comes, o goes home; z stays. Both times one side packs
-- its rows, slice by slice.
local function slices(env, pass, s, rows, n)
    local heads = s.value_heads / n
    local into = (2 * math.max(s.key_heads / n, 1) * s.K + heads * s.V + 2 * heads)
    local home = heads * s.V
    local function travel(width)
        local bytes = width * env.bytes * env.batch
        return function()
            exchanges.pack_slices(pass, rows, n, bytes)
            pass:exchange(exchanges.slices(env, rows, n, bytes), 0)
        end
    end
    return travel(into), travel(home)
end

-- Key heads that are fewer than ranks are convolved and normed by several of them: what a rank does
-- beside its share, in elements of a row.
local function copied_elements(s, n)
    local copies = math.max(n / s.key_heads, 1) - 1
    return copies * s.key_elements / n
end

local function sum(list)
    local all = 0
    for _, n in ipairs(list) do all = all + n end
    return all
end

local function headwise(env, counts, layout, s)
    local forward, backward = env:pass(), env:pass()
    local rows, whole, n = counts:rows(layout), counts:whole(s.chunk), env.cp
    local copied = copied_elements(s, n) * sum(rows) * env.bytes * env.batch
    local function core(pass, way)
        local times = way == "backward" and 2 or 1
        pass:work_of_all(env.cluster:pointwise(times * copied, 0)
            + chunk_seconds(env, s, s.value_heads / n, whole, way, KINDS[way]))
        pass:launch(2 * times)
    end
    local into, home = slices(env, forward, s, rows, n)
    attention.rows(env, forward, s, rows, 1)
    into()
    core(forward, "forward")
    home()
    into, home = slices(env, backward, s, rows, n)
    home()
    core(backward, "backward")
    into()
    attention.rows(env, backward, s, rows, 2)
    return forward, backward
end

-- ---- modes ----------------------------------------------------------------------

--- Why a mode cannot run here; nil if it can. The rules are those of core/layer/gdn_headwise.c.
function M.refusal(env, mode, config)
    local s, n = sizes.gdn(config, env.tp), env.cp
    if mode ~= "headwise" or n == 1 then return nil end
    if s.value_heads % n ~= 0 then
        return ("headwise with %d value_heads, not a multiple of %d ranks"):format(s.value_heads,
            n)
    elseif s.key_heads % n ~= 0 and n % s.key_heads ~= 0 then
        return ("headwise with %d key_heads, neither a multiple nor a divisor of %d ranks"):format(
            s.key_heads, n)
    end
end

--- The passes of a layer: see cplab.cost.attention.
function M.passes(env, counts, layout, mode, config)
    local s = sizes.gdn(config, env.tp)
    if mode == "headwise" and env.cp > 1 then return headwise(env, counts, layout, s) end
    return chunkwise(env, counts, layout, s)
end

return M
