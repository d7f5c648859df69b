--- Attention layers over ranks, brought together and compared with one rank.
local clib = require "clib"
local gqa_rank = require "spec.support.gqa_rank"
local ranks = require "spec.support.ranks"
local C = clib.C

local M = {}

--- The short length lists of gdn_and_attention.md sections 8.c and 3.3: a sequence over all ranks,
-- cuts one off a rank's edge, ones, an empty sequence, equal ones.
M.LISTS = {
    { 24 }, { 7, 9, 8 }, { 5, 6, 8, 5 }, { 6, 6, 6, 6 }, { 1, 1, 1, 21 }, { 23, 1 },
    { 3, 3, 2, 2, 3, 3 }, { 17, 0, 7 }, { 5, 7 }, { 7, 0, 17 },
}

--- Layouts by name; custom: see M.dealt.
M.LAYOUTS = { "zigzag", "mirror", "contiguous", "snake", "striped", "balanced", "custom" }

--- Pads real lengths to a multiple.
function M.padded(real, multiple)
    local lengths = {}
    for i, n in ipairs(real) do lengths[i] = math.ceil(n / multiple) * multiple end
    return { lengths = lengths, real = real }
end

--- Runs of 1 to 5 positions dealt to ranks in an order that a seed gives: counts differ, nothing is
-- in order, and with many ranks some have nothing.
function M.dealt(stream, cp, seed)
    local list, total, key = {}, 0, C.cpl_random_key(seed or 5, "deal")
    for _, n in ipairs(stream.lengths) do total = total + n end
    for rank = 1, cp do list[rank] = {} end
    local at, i = 0, 0
    while at < total do
        local length = math.min(total - at, 1 + math.floor(5 * C.cpl_random_uniform(key, 2 * i)))
        local runs = list[1 + math.floor(cp * C.cpl_random_uniform(key, 2 * i + 1))]
        table.insert(runs, i % 3 == 0 and 1 or #runs + 1, { at, length })
        at, i = at + length, i + 1
    end
    return list
end

--- A case for gqa_rank: a layout by name, "custom" dealt.
function M.case(layout, real, cp, config, changes)
    local stream = M.padded(real, 2 * cp)
    local case = { stream = stream, layout = layout, config = config }
    if layout == "custom" then case.ranks = M.dealt(stream, cp) end
    if layout == "balanced" then case.options = { block = 2 } end
    for name, value in pairs(changes or {}) do case[name] = value end
    return case
end

local function by_position(parts, name)
    local rows = {}
    for _, part in ipairs(parts) do
        for slot, position in ipairs(part.positions) do
            local row = {}
            for j = 1, 6 do row[j] = part[name][(slot - 1) * 6 + j] end
            rows[position + 1] = row
        end
    end
    return rows
end

local function sum(parts, name, what)
    local total = 0
    for _, part in ipairs(parts) do total = total + part[name][what] end
    return total
end

-- What the ranks have, in global order.
local function join(parts)
    local result = { y = by_position(parts, "y"), dx = by_position(parts, "dx"), parts = parts,
        dy = by_position(parts, "dy"),
        grads = parts[1].grads, wrong_rows = 0, allocations = 0 }
    for _, pass in ipairs { "forward", "backward" } do
        result[pass] = { bytes = sum(parts, pass, "bytes"), messages = sum(parts, pass, "messages"),
            state_bytes = sum(parts, pass, "state_bytes") }
        result.wrong_rows = result.wrong_rows + sum(parts, pass, "wrong_rows")
    end
    for _, part in ipairs(parts) do
        result.allocations = math.max(result.allocations, part.allocations or 0)
    end
    return result
end

--- Runs cases on cp ranks; one result a case: y, dx (rows by position), grads, forward and backward
-- { bytes, messages }, wrong_rows, allocations, parts.
function M.run(cp, cases)
    local by_rank = ranks.run(cp, "spec.support.gqa_rank", cases, 60)
    local results = {}
    for i = 1, #cases do
        local parts = {}
        for rank = 1, cp do parts[rank] = by_rank[rank][i] end
        results[i] = join(parts)
    end
    return results
end

--- The same case on one rank, by gather in one contiguous piece.
function M.alone(case)
    local copy = {}
    for name, value in pairs(case) do copy[name] = value end
    copy.config = {}
    for name, value in pairs(case.config or {}) do copy.config[name] = value end
    copy.config.cp_mode, copy.config.a2a, copy.fault = nil, nil, nil
    return join { gqa_rank.run(C.cpl_comm_self(), copy) }
end

local function norms(rows, reference)
    local d2, r2, worst, largest = 0, 0, 0, 0
    for i, row in ipairs(reference) do
        local d, r = 0, 0
        for j, value in ipairs(row) do
            local x = rows[i][j] - value
            if x ~= x then return 0 / 0, 1, 0 / 0, 1 end
            d, r = d + x * x, r + value * value
        end
        d2, r2, worst, largest = d2 + d, r2 + r, math.max(worst, d), math.max(largest, r)
    end
    return d2 ^ 0.5, r2 ^ 0.5, worst ^ 0.5, largest ^ 0.5
end

--- Parity as DESIGN section 9 defines it: ratio of norms, or of the worst row to the largest; where
-- the reference is 0, only 0 will do. NaN is inf here.
function M.parity(rows, reference)
    local d, r, worst, largest = norms(rows, reference)
    if d ~= d then return math.huge end
    if r == 0 then return d == 0 and 0 or math.huge end
    return math.max(d / r, worst / largest)
end

local QUERY_KEY = { ["gqa.k_proj"] = true, ["gqa.q_norm"] = true, ["gqa.k_norm"] = true }

--- The worst parity of all results, and whose it is. In a window of 1 all weights are 1, so the
-- gradients of k_proj, q_norm and k_norm are sums that cancel to 0, and so is that of q_proj but
-- for its gates: these are measured against the gradient of v_proj.
function M.worst(result, reference, window)
    local worst, where = 0, "nothing"
    local function take(name, value)
        if value > worst then worst, where = value, name end
    end
    take("y", M.parity(result.y, reference.y))
    take("dx", M.parity(result.dx, reference.dx))
    for name, list in pairs(reference.grads) do
        if window == 1 and QUERY_KEY[name] then
            local d = norms({ result.grads[name] }, { list })
            local _, scale = norms({ reference.grads["gqa.v_proj"] },
                { reference.grads["gqa.v_proj"] })
            take(name, d / scale)
        else
            take(name, M.parity({ result.grads[name] }, { list }))
        end
    end
    return worst, where
end

--- <y, dy>, whose gradients backward gives.
function M.loss(result)
    local total = 0
    for i, row in ipairs(result.y) do
        for j, value in ipairs(row) do total = total + value * result.dy[i][j] end
    end
    return total
end

--- The configurations in which attention can run on cp ranks, by name: every mode, kv heads fewer
-- than, as many as, and more than the ranks.
function M.configs(cp)
    local list = {}
    local function add(mode, kv_heads, a2a)
        list[#list + 1] = { cp_mode = mode, a2a = a2a, heads = 2 * cp, kv_heads = kv_heads }
    end
    local few = cp % 2 == 0 and 2 or 1
    add("gather", few)
    add("p2p", few)
    add("a2a", few)
    add("a2a", 2 * cp)
    add("a2a", 1)
    for a2a = 2, cp - 1 do
        if cp % a2a == 0 then
            add("a2a+p2p", few, a2a)
            add("a2a+p2p", cp, a2a)
        end
    end
    add("a2a+p2p", cp, 1)
    add("a2a+p2p", cp, cp)
    return list
end

--- The name of a configuration.
function M.name(config)
    return ("%s%s, %d/%d heads"):format(config.cp_mode, config.a2a and " of " .. config.a2a or "",
        config.heads, config.kv_heads)
end

return M
