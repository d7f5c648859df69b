--- Runs on a rank: softmax attention with a dense mask and a bias over all keys, by hand, inside a
-- boundary; gives the worst difference from one rank, whose keys are all in order. The payload:
-- target, columns.
local D = 3 -- of a head

local function number(what, i, j) return math.sin(what + 1.7 * i + 0.31 * i * j + 2.3 * j) end

-- No causal mask: the pattern has holes, and every query sees itself.
local function sees(q, k) return k <= q and (q * 7 + k * 3) % 5 ~= 0 or k == q end

-- The output of query i of lists that lie row by row.
local function attend(q, keys, values, mask, bias, i)
    local n_keys, sum, weights, out = #keys / D, 0, {}, {}
    for k = 0, n_keys - 1 do
        local score = bias[i * n_keys + k + 1]
        for j = 1, D do score = score + q[i * D + j] * keys[k * D + j] end
        weights[k] = mask[i * n_keys + k + 1] ~= 0 and math.exp(score) or 0
        sum = sum + weights[k]
    end
    for j = 1, D do
        out[j] = 0
        for k = 0, n_keys - 1 do out[j] = out[j] + weights[k] * values[k * D + j] / sum end
    end
    return out
end

-- Rows of `of`, entry by entry, a row for each of these positions.
local function rows(positions, width, of)
    local list = {}
    for _, position in ipairs(positions) do
        for j = 0, width - 1 do list[#list + 1] = of(position, j) end
    end
    return require("cplab").tensor.from(list, { #positions, width })
end

local function of(what)
    return function(position, j) return number(what, position, j) end
end

local function mask_entry(q, k) return sees(q, k) and 1 or 0 end

-- All rows, in the order in which shards come together: rank by rank.
local function all(comm, tensor)
    local list = {}
    for _, shard in ipairs(comm:gather(tensor:totable())) do
        for _, x in ipairs(shard) do list[#list + 1] = x end
    end
    return list
end

local function module(comm, inside, side)
    local q, out = inside.q:totable(), {}
    local keys = all(comm, side.key_value_states.k)
    local values = all(comm, side.key_value_states.v)
    local mask, bias = side.masks:totable(), side.bias:totable()
    for i = 0, #q / D - 1 do
        for _, x in ipairs(attend(q, keys, values, mask, bias, i)) do out[#out + 1] = x end
    end
    return require("cplab").tensor.from(out, { #out / D, D })
end

return function(comm, p)
    local support, cplab = require "spec.support.boundary_lab", require "cplab"
    local lab = support.lab(comm)
    local n_keys, everything = lab.stream:n_positions(), {}
    for k = 1, n_keys do everything[k] = k - 1 end
    local own = support.layout(lab, "contiguous"):positions(lab.rank)
    -- Contiguous: the rank order of columns is global order.
    local q, mask, bias = rows(own, D, of(1)), rows(own, n_keys, mask_entry),
        rows(own, n_keys, of(4))
    local out = cplab.boundary.run(lab, { q = q }, p.target, { masks = mask, bias = bias,
        key_value_states = { k = rows(own, D, of(2)), v = rows(own, D, of(3)) },
        columns = p.columns }, function(inside, side) return module(comm, inside, side) end)
    local worst, got = 0, out:totable()
    local keys, values = rows(everything, D, of(2)):totable(), rows(everything, D, of(3)):totable()
    for i = 0, #own - 1 do
        for j, x in ipairs(attend(q:totable(), keys, values, mask:totable(), bias:totable(), i)) do
            worst = math.max(worst, math.abs(x - got[i * D + j]))
        end
    end
    return worst
end
