--- Lengths of sequences that fill shards of a size. What does not divide is left out, so that the
-- rows of every layout of a bench are the same.
-- @module cplab.bench.lengths
local packs = require "cplab.packs"

local M = {}

local function gcd(a, b)
    while b > 0 do a, b = b, a % b end
    return a
end

--- What every length is a multiple of, so that all layouts divide: 2 * cp * tp, and the block of
-- balanced where that is among the kinds.
-- @tparam integer cp
-- @tparam integer tp
-- @tparam table kinds names of layouts
-- @treturn integer
function M.unit(cp, tp, kinds)
    local unit, block = 2 * cp * tp, 64
    for _, kind in ipairs(kinds) do
        if kind == "balanced" then return unit / gcd(unit, block) * block end
    end
    return unit
end

local function equal(n, tokens, unit)
    local each = math.floor(tokens / (n * unit)) * unit
    if each == 0 then
        return nil, ("%d sequence%s of at least %d rows need %d; the shards hold %d"):format(n,
            n == 1 and "" or "s", unit, n * unit, tokens)
    end
    local lengths = {}
    for i = 1, n do lengths[i] = each end
    return lengths
end

-- The given lengths, all larger or smaller by one factor.
local function scaled(list, tokens, unit)
    local sum, lengths = 0, {}
    for _, length in ipairs(list) do sum = sum + length end
    for i, length in ipairs(list) do
        lengths[i] = math.floor(length * tokens / sum / unit) * unit
        if lengths[i] == 0 then
            return nil, ("sequence %d of the list would have %.1f of %d rows; it needs at least %d")
                :format(i - 1, length * tokens / sum, tokens, unit)
        end
    end
    return lengths
end

local function packed(name, tokens, unit, seed)
    local whole = math.floor(tokens / (2 * unit)) * 2 * unit
    if whole == 0 then
        return nil, ("a pack needs at least %d rows; the shards hold %d"):format(2 * unit, tokens)
    end
    return packs.draw(name, whole, unit, seed)
end

--- Lengths that take `tokens` positions or somewhat fewer.
-- @tparam table kind one of: sequences (a number of equal ones), lengths (a list that is scaled),
-- pack (a name of cplab.packs)
-- @tparam integer tokens positions that all shards together hold
-- @tparam integer unit that every length is a multiple of
-- @tparam integer seed of a pack
-- @treturn ?table lengths, or nil
-- @treturn ?string why there are none
function M.make(kind, tokens, unit, seed)
    if kind.lengths then return scaled(kind.lengths, tokens, unit) end
    if kind.pack then return packed(kind.pack, tokens, unit, seed) end
    return equal(kind.sequences, tokens, unit)
end

return M
