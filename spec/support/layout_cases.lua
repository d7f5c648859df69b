-- Streams and layouts to enumerate over: ranks 1 to 9, ragged, empty, odd, prime, one.
local cplab = require "cplab"

local M = {}

-- A generator of its own (not math.random), so that a case is the same in every run.
function M.random(seed)
    local state = seed
    return function(n)
        state = (state * 1103515245 + 12345) % 2 ^ 31
        return math.floor(state / 2 ^ 16) % n
    end
end

-- Lengths in units; every kind of layout divides when the unit is 2*cp*tp.
M.units = {
    {}, { 0 }, { 1 }, { 0, 0, 0 }, { 3 }, { 1, 1, 1 }, { 2, 0, 1, 3 }, { 0, 1, 0, 0, 5, 0 },
    { 7, 1, 2 }, { 1, 13, 0, 2, 1 },
}

function M.lengths(units, unit)
    local lengths = {}
    for i, n in ipairs(units) do lengths[i] = n * unit end
    return lengths
end

-- Real lengths: full, odd, one and none in turn.
function M.real(lengths)
    local real = {}
    for i, n in ipairs(lengths) do
        local choices = { n, math.max(0, n - 1), math.min(1, n), 0, math.floor(n / 2) }
        real[i] = choices[(i - 1) % #choices + 1]
    end
    return real
end

-- Cuts a stream at random places and deals the pieces out in random order.
function M.custom_ranks(n_positions, n_ranks, next_random)
    local ranks, pieces, at = {}, {}, 0
    for r = 1, n_ranks do ranks[r] = {} end
    while at < n_positions do
        local length = math.min(1 + next_random(5), n_positions - at)
        table.insert(pieces, 1 + next_random(#pieces + 1), { at, length })
        at = at + length
    end
    for _, piece in ipairs(pieces) do
        local runs = ranks[1 + next_random(n_ranks)]
        runs[#runs + 1] = piece
    end
    return ranks
end

-- The kinds in closed form that need no options but cp and tp.
M.kinds = { "contiguous", "zigzag", "mirror", "snake", "striped" }

-- Calls visit(name, stream, layouts) for many streams; layouts is a list of layouts of one group.
function M.each(visit)
    local next_random = M.random(7)
    for cp = 1, 9 do
        for i, units in ipairs(M.units) do
            local tp = (cp + i) % 3 == 0 and 2 or cp * i % 7 == 3 and 3 or 1
            local lengths = M.lengths(units, 2 * cp * tp)
            local stream = cplab.stream.thd { lengths = lengths, real = M.real(lengths) }
            local layouts = {}
            for _, kind in ipairs(M.kinds) do
                layouts[#layouts + 1] = cplab.layout[kind](stream, { cp = cp, tp = tp })
            end
            for _ = 1, 2 do
                layouts[#layouts + 1] = cplab.layout.custom(stream, {
                    tp = tp,
                    ranks = M.custom_ranks(stream:n_positions(), cp * tp, next_random),
                })
            end
            visit(("cp %d, tp %d, lengths {%s}"):format(cp, tp, table.concat(lengths, ",")),
                stream, layouts)
        end
    end
end

return M
