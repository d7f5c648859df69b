-- The definitions of layouts, work, views and chains, read aloud: token by token, with no runs,
-- no searches and no closed forms. Nothing here is shared with what it checks.
local M = {}

local kinds = {}

function kinds.contiguous(stream, cp, rank)
    local list, m = {}, stream:n_positions() / cp
    for p = rank * m, (rank + 1) * m - 1 do list[#list + 1] = p end
    return list
end

local function two_blocks(stream, cp, first, second)
    local list = {}
    for i = 0, stream:n_sequences() - 1 do
        local sequence = stream:sequence(i)
        local n = sequence.padded / (2 * cp)
        for _, block in ipairs { first, second } do
            for o = 0, n - 1 do list[#list + 1] = sequence.start + block * n + o end
        end
    end
    return list
end

function kinds.zigzag(stream, cp, rank)
    return two_blocks(stream, cp, rank, 2 * cp - 1 - rank)
end

function kinds.mirror(stream, cp, rank)
    return two_blocks(stream, cp, 2 * rank, 2 * cp - 1 - 2 * rank)
end

function kinds.snake(stream, cp, rank)
    local list, n = {}, stream:n_positions() / (2 * cp)
    for _, block in ipairs { rank, 2 * cp - 1 - rank } do
        for o = 0, n - 1 do list[#list + 1] = block * n + o end
    end
    return list
end

function kinds.striped(stream, cp, rank, block)
    local list = {}
    for p = 0, stream:n_positions() - 1 do
        if math.floor(p / (block or 1)) % cp == rank then list[#list + 1] = p end
    end
    return list
end

-- The positions of every group rank, indexed by rank + 1; `block` of striped.
function M.positions(kind, stream, cp, tp, order, block)
    local ranks = {}
    for r = 0, cp - 1 do
        local list = kinds[kind](stream, cp, r, block)
        local w = #list / tp
        for t = 0, tp - 1 do
            local window = {}
            for x = 1, w do window[x] = list[t * w + x] end
            local logical = r * tp + t
            ranks[(order and order[logical + 1] or logical) + 1] = window
        end
    end
    return ranks
end

-- For each position: sequence, offset, whether it is real.
function M.tokens(stream)
    local tokens = {}
    for i = 0, stream:n_sequences() - 1 do
        local sequence = stream:sequence(i)
        for o = 0, sequence.padded - 1 do
            tokens[sequence.start + o] = { sequence = i, offset = o, real = o < sequence.real }
        end
    end
    return tokens
end

-- Real keys that the real queries of a list of positions see.
function M.work(tokens, positions)
    local n = 0
    for _, p in ipairs(positions) do
        if tokens[p].real then
            for q = p - tokens[p].offset, p do
                if tokens[q].real then n = n + 1 end
            end
        end
    end
    return n
end

-- Spans: a slot starts one unless it goes on from the slot before.
function M.spans(tokens, positions, real_only)
    local spans, last = {}, nil
    for x, p in ipairs(positions) do
        local token = tokens[p]
        if real_only and not token.real then
            last = nil
        elseif last and positions[x - 1] == p - 1 and last.sequence == token.sequence then
            last.length = last.length + 1
        else
            last = { sequence = token.sequence, offset = token.offset, slot = x - 1, length = 1 }
            spans[#spans + 1] = last
        end
    end
    return spans
end

-- Views, as one position (or -1) a slot.
function M.halo(tokens, positions, width, real_only)
    local seen = {}
    for _, span in ipairs(M.spans(tokens, positions, real_only)) do
        for back = width, 1, -1 do
            local start = positions[span.slot + 1]
            seen[#seen + 1] = span.offset >= back and start - back or -1
        end
    end
    return seen
end

function M.shift(tokens, positions, k)
    local seen = {}
    for x, p in ipairs(positions) do
        local to = tokens[p + k]
        local ok = tokens[p].real and to and to.real and to.sequence == tokens[p].sequence
        seen[x] = ok and p + k or -1
    end
    return seen
end

function M.keys(tokens, positions, window)
    local wanted, seen = {}, {}
    for _, p in ipairs(positions) do
        if tokens[p].real then
            local first = math.max(tokens[p].offset - (window or math.huge) + 1, 0)
            for o = first, tokens[p].offset do wanted[p - tokens[p].offset + o] = true end
        end
    end
    for p in pairs(wanted) do seen[#seen + 1] = p end
    table.sort(seen)
    return seen
end

function M.whole(tokens)
    local seen = {}
    for p in pairs(tokens) do seen[#seen + 1] = p end
    table.sort(seen)
    return seen
end

-- The tokens of one stream in the slots of another.
function M.onto(tokens, other_tokens, other_positions)
    local at, seen = {}, {}
    for p, token in pairs(tokens) do at[token.sequence .. " " .. token.offset] = p end
    for x, p in ipairs(other_positions) do
        seen[x] = at[other_tokens[p].sequence .. " " .. other_tokens[p].offset] or -1
    end
    return seen
end

-- Who follows whom: every real span of every rank, sorted by sequence and offset.
function M.chains(tokens, ranks)
    local all, links = {}, {}
    for r, positions in ipairs(ranks) do
        links[r] = {}
        for i, span in ipairs(M.spans(tokens, positions, true)) do
            all[#all + 1] = { rank = r - 1, index = i - 1, span = span }
        end
    end
    table.sort(all, function(a, b)
        if a.span.sequence ~= b.span.sequence then return a.span.sequence < b.span.sequence end
        return a.span.offset < b.span.offset
    end)
    local level
    for i, item in ipairs(all) do
        local function neighbour(other)
            local same = other and other.span.sequence == item.span.sequence
            return same and other.rank or -1, same and other.index or -1
        end
        local prev_rank, prev_span = neighbour(all[i - 1])
        local next_rank, next_span = neighbour(all[i + 1])
        level = prev_rank >= 0 and level + 1 or 0
        links[item.rank + 1][item.index + 1] = {
            level = level, prev_rank = prev_rank, next_rank = next_rank,
            prev_span = prev_span, next_span = next_span,
        }
    end
    return links
end

-- Runs as the positions that they stand for.
function M.expand(runs)
    local list = {}
    for _, run in ipairs(runs) do
        for o = 0, run[2] - 1 do list[#list + 1] = run[1] < 0 and -1 or run[1] + o end
    end
    return list
end

-- The slots of a list of segments, one by one.
function M.slots(segments)
    local list = {}
    for _, segment in ipairs(segments) do
        for o = 0, segment.length - 1 do list[#list + 1] = segment.slot + o end
    end
    return list
end

-- Every rank's rows after a route has been carried out on the source's own positions: what a
-- sender packs in its order, a receiver unpacks in its own; fill stays -1.
function M.carry_out(route, n_target)
    local mail, rows = {}, {}
    local n = route:n_ranks()
    for r = 0, n - 1 do
        for _, move in ipairs(route:sends(r)) do
            local key = r * n + move.peer
            mail[key] = mail[key] or {}
            for o = 0, move.length - 1 do
                table.insert(mail[key], route:from():position(r, move.slot + o))
            end
        end
    end
    for r = 0, n - 1 do
        rows[r + 1] = {}
        for x = 1, n_target(r) do rows[r + 1][x] = -1 end
        local taken = {}
        for _, move in ipairs(route:receives(r)) do
            local key = move.peer * n + r
            for o = 1, move.length do
                taken[key] = (taken[key] or 0) + 1
                rows[r + 1][move.slot + o] = mail[key] and mail[key][taken[key]]
            end
        end
        for p = 0, n - 1 do
            assert(#(mail[p * n + r] or {}) == (taken[p * n + r] or 0), "mail was left over")
        end
    end
    return rows
end

return M
