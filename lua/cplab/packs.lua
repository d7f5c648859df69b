--- Packs: lengths of documents that fill a stream, drawn from the counter-based generator.
-- The same name, tokens, unit and seed give the same lengths everywhere. Every length is a multiple
-- of the unit; the last one is what is left.
-- @module cplab.packs
-- @usage local s = cplab.stream.thd { lengths = cplab.packs.draw("pareto", 2 ^ 18, 64, 1) }
local clib = require "clib"
local args = require "cplab.check_args"

local C = clib.C

local M = {}

local function log_normal(mu)
    return function(key, i) return math.exp(mu + C.cpl_random_normal(key, i)) end
end

-- A heavy tail: P(x > t) = (800 / t)^1.1.
local function pareto(key, i)
    return 800 * C.cpl_random_uniform(key, i) ^ (-1 / 1.1)
end

-- How many equal documents come first, what part of the stream they fill, and how the rest is
-- drawn. The mean of a log-normal length is exp(mu + 1/2).
local packs = {
    one = { first = 1, part = 1 },
    two = { first = 2, part = 1 },
    ["long+short"] = { first = 1, part = 1 / 2, draw = log_normal(7.5) },
    ["log-normal 16k"] = { first = 0, part = 0, draw = log_normal(9.2) },
    ["log-normal 1k"] = { first = 0, part = 0, draw = log_normal(6.4) },
    pareto = { first = 0, part = 0, draw = pareto },
}

--- The names of all packs: one document; two; one that fills half the stream among short ones;
-- log-normal lengths around 16k and 1k; a heavy tail.
M.names = { "one", "two", "long+short", "log-normal 16k", "log-normal 1k", "pareto" }

--- Draws a pack.
-- @tparam string name one of `names`
-- @tparam number tokens of the stream, a multiple of the unit
-- @tparam number unit >= 1; "two" and "long+short" halve the stream, so 2 * unit must divide it
-- @tparam ?number seed default 0
-- @treturn {number,...} lengths
function M.draw(name, tokens, unit, seed)
    args.one_of("packs.draw", "pack", name, M.names, 2)
    args.integer("packs.draw", "tokens", tokens, 0, nil, 2)
    args.integer("packs.draw", "unit", unit, 1, nil, 2)
    local pack = packs[name]
    local step = pack.first == 2 or pack.part == 1 / 2
    local least = step and 2 * unit or unit
    if tokens % least ~= 0 then
        error(("packs.draw: %d tokens are not a multiple of %d"):format(tokens, least), 2)
    end
    local lengths, left, key = {}, tokens, C.cpl_random_key(seed or 0, name)
    for i = 1, pack.first do
        lengths[i] = tokens * pack.part / pack.first
        left = left - lengths[i]
    end
    while left > 0 do
        local drawn = math.ceil(pack.draw(key, #lengths) / unit) * unit
        lengths[#lengths + 1] = math.min(left, math.max(unit, drawn))
        left = left - lengths[#lengths]
    end
    return lengths
end

return M
