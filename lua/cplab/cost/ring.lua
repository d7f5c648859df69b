--- Rings: what attention by p2p does step by step (core/layer/gqa_ring.h and gqa_p2p.c). Groups of
-- `a2a` consecutive ranks hold a shard each, for a slice of the heads; shards go round, no further
-- than to the last group that sees a key of theirs, and their gradients from the first that does to
-- the last and home. Every step waits for its slowest rank.
-- @module cplab.cost.ring
local exchanges = require "cplab.cost.exchange"

local M = {}

-- Sums a square array of ranks over groups.
local function by_group(values, n, size)
    local groups, list = n / size, {}
    for i = 0, groups * groups - 1 do list[i] = 0 end
    for i = 0, n - 1 do
        local row = math.floor(i / size) * groups
        for j = 0, n - 1 do
            local at = row + math.floor(j / size)
            list[at] = list[at] + tonumber(values[i * n + j])
        end
    end
    return list
end

-- The steps at which each group's keys are first and last seen by another; 0: never.
local function reach(pairs_of, n)
    local first, last = {}, {}
    for origin = 0, n - 1 do
        first[origin], last[origin] = 0, 0
        for step = 1, n - 1 do
            if pairs_of[(origin + step) % n * n + origin] > 0 then
                last[origin] = step
                if first[origin] == 0 then first[origin] = step end
            end
        end
    end
    return first, last
end

--- A ring over the ranks of a layout.
-- @tparam table keys of Counts:keys
-- @tparam table rows by CP rank, from 1
-- @tparam number a2a
-- @treturn table n (groups), a2a, pairs and blocks (query group * n + key group), rows by group,
-- first, last; groups from 0
function M.new(keys, rows, a2a)
    local n = #rows / a2a
    local ring = { n = n, a2a = a2a, pairs = by_group(keys.pairs, #rows, a2a),
        blocks = by_group(keys.blocks, #rows, a2a), rows = {} }
    for i, count in ipairs(rows) do
        local group = math.floor((i - 1) / a2a)
        ring.rows[group] = (ring.rows[group] or 0) + count
    end
    ring.first, ring.last = reach(ring.pairs, n)
    return ring
end

-- Seconds by rank of the work of one step.
local function step_work(ring, step, seconds_of)
    local list = {}
    for group = 0, ring.n - 1 do
        local at = group * ring.n + (group - step) % ring.n
        local seconds = ring.pairs[at] > 0 and seconds_of(ring.pairs[at], ring.blocks[at]) or 0
        for member = 1, ring.a2a do list[group * ring.a2a + member] = seconds end
    end
    return list
end

-- Each member of a group to its like in another.
local function send(env, ring, load, from, to, bytes)
    local first, last = from * ring.a2a, to % ring.n * ring.a2a
    for member = 0, ring.a2a - 1 do
        exchanges.send(load, env.nodes, first + member, last + member, bytes)
    end
end

-- Keys on their way to step + 1.
local function send_keys(env, ring, step, row_bytes, load)
    for group = 0, ring.n - 1 do
        local held = (group - step) % ring.n
        if ring.last[held] > step then
            send(env, ring, load, group, group + 1, ring.rows[held] * row_bytes)
        end
    end
end

-- Gradients that step - 1 made: on to the next group, or home.
local function send_gradients(env, ring, step, row_bytes, load)
    if step < 2 then return end
    for group = 0, ring.n - 1 do
        local held = (group - step + 1) % ring.n
        local first, last = ring.first[held], ring.last[held]
        local bytes = ring.rows[held] * row_bytes
        if first > 0 and first < step and step - 1 < last then
            send(env, ring, load, group, group + 1, bytes)
        elseif last == step - 1 then
            send(env, ring, load, group, held, bytes)
        end
    end
end

--- Adds all steps of a forward pass.
-- @tparam table env of cplab.cost.exchange
-- @tparam table pass
-- @tparam table ring
-- @tparam function seconds_of of (pairs, blocks)
-- @tparam number row_bytes of keys and values
function M.forward(env, pass, ring, seconds_of, row_bytes)
    local load, x = exchanges.load(env.cp), exchanges.exchange(env.cp)
    for step = 0, ring.n - 1 do
        exchanges.clear(load)
        pass:work(step_work(ring, step, seconds_of))
        pass:launch(1)
        if step + 1 < ring.n then send_keys(env, ring, step, row_bytes, load) end
        pass:exchange(exchanges.price(env.cluster, load, 1, x), env.cluster.overlap.ring)
    end
end

--- Adds all steps of a backward pass: keys again, and their gradients behind them.
-- @tparam number gradient_bytes of a row of gradients
function M.backward(env, pass, ring, seconds_of, row_bytes, gradient_bytes)
    local load, x = exchanges.load(env.cp), exchanges.exchange(env.cp)
    for step = 0, ring.n do
        exchanges.clear(load)
        if step < ring.n then
            pass:work(step_work(ring, step, seconds_of))
            pass:launch(2)
        end
        if step + 1 < ring.n then send_keys(env, ring, step, row_bytes, load) end
        send_gradients(env, ring, step, gradient_bytes, load)
        pass:exchange(exchanges.price(env.cluster, load, 1, x), env.cluster.overlap.ring)
    end
end

return M
