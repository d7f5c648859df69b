--- A rank's exchanges for one stream, made in a mould: to another layout, on the spot, to the keys
-- that queries see, to what lies before spans, and back. All streams have as many positions.
local capture = require "cplab.capture"
local clib = require "clib"
local cplab = require "cplab"
local exchange = require "cplab.exchange"
local rows = require "spec.exchange.rows"
local view = require "cplab.view"

local WIDTH = 4

-- Tensors of positions' rows: what an exchange brings, and what its adjoint brings back.
local function leg(comm, route, from, to)
    return {
        plan = exchange.plan(route, comm, "i64", WIDTH), from = from, to = to,
        src = rows.tensor("i64", #from, WIDTH), dst = rows.tensor("i64", #to, WIDTH),
        back = rows.tensor("i64", #from, WIDTH),
    }
end

local M = {}

function M.make(comm, lengths)
    local stream = cplab.stream.thd { lengths = lengths }
    local cp, rank = comm:size(), comm:rank()
    local z = cplab.layout.zigzag(stream, { cp = cp })
    local c = cplab.layout.contiguous(stream, { cp = cp })
    local keys, halo = view.keys(c), view.halo(c, 3, { real_only = true })
    local function of(thing) return rows.positions(thing, rank) end
    local t = { legs = {
        leg(comm, cplab.route(z, c), of(z), of(c)),
        leg(comm, cplab.route(c, keys), of(c), of(keys)),
        leg(comm, cplab.route(c, halo), of(c), of(halo)),
    } }
    t.swap = leg(comm, cplab.route(z, c), of(z), of(c))
    t.swap.dst = t.swap.src
    return t
end

--- What is done in a step.
function M.work(t)
    for _, one in ipairs(t.legs) do
        one.plan:convert(one.src, one.dst)
        one.plan:adjoint(one.dst, one.back)
    end
    t.swap.plan:convert(t.swap.src, t.swap.src)
    clib.C.cpl_tensor_unmark(t.swap.src._ptr) -- for the next time
end

--- Before a step: sources hold their positions, nothing else holds anything.
function M.fill(t)
    for _, one in ipairs(t.legs) do
        one.src:fill_positions(one.from)
        one.dst:poison()
        one.back:poison()
    end
    t.swap.src:fill_positions(t.swap.from)
end

-- How often each position is seen by all ranks.
local function seen(comm, one)
    local times = {}
    for _, list in ipairs(comm:gather { one.to }) do
        for _, position in ipairs(list[1]) do
            times[position] = (times[position] or 0) + 1
        end
    end
    return times
end

-- An adjoint of a view adds the rows that repeat.
local function first_wrong_sum(comm, one)
    local times, values = seen(comm, one), one.back:values()
    for slot, position in ipairs(one.from) do
        for column = 0, WIDTH - 1 do
            local expected = (times[position] or 0) * (position * WIDTH + column + 1)
            if values[(slot - 1) * WIDTH + column + 1] ~= expected then return slot - 1 end
        end
    end
end

--- After a step: names of what is wrong.
function M.wrong(comm, t)
    local wrong = {}
    for i, one in ipairs(t.legs) do
        if one.dst:first_wrong(one.to) then wrong[#wrong + 1] = "there " .. i end
        if first_wrong_sum(comm, one) then wrong[#wrong + 1] = "back " .. i end
    end
    if t.swap.src:first_wrong(t.swap.to) then wrong[#wrong + 1] = "on the spot" end
    return wrong
end

--- One stream: whether its launches are those of the one before, what is wrong after a replay of
-- the last graph, and what was counted, in the rehearsal and by launches. In a function of its own,
-- whose frame does not keep what was made.
function M.serve(comm, now, lengths)
    local made = now.mould:fill(M.make, comm, lengths)
    local rehearsal = now.mould:rehearse(function() M.work(made) end)
    M.fill(made)
    local bytes = tonumber(clib.C.cpl_counters_here().sent_bytes)
    M.work(made)
    bytes = tonumber(clib.C.cpl_counters_here().sent_bytes) - bytes
    local row = { launched = M.wrong(comm, made), bytes = bytes,
        rehearsed = tonumber(rehearsal.counted.sent_bytes) }
    row.same = comm:agree(now.digest == rehearsal.digest)
    if not row.same then
        now.graph = nil
        now.graph = capture.of(comm._ptr, function() M.work(made) end, now.mould)
    end
    now.digest = rehearsal.digest
    M.fill(made)
    now.graph:replay_as(rehearsal)
    row.replayed = M.wrong(comm, made)
    return row
end

return M
