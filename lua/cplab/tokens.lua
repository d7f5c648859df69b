--- Tokens and labels of a rank: data that depends on (stream, position, column) alone.
-- A stream may carry its own tokens; without them they are drawn from its digest and the
-- position. Labels are the next real token of the same sequence, and deeper predictions read later
-- ones: shift views bring them, over ranks where need be.
-- @module cplab.tokens
local blame = require "blame"
local clib = require "clib"
local rows = require "cplab.rows"
local route = require "cplab.route"
local view = require "cplab.view"
local C = clib.C

local M = {}

local function own_token(stream, vocab)
    local list = stream:token_list()
    return function(position)
        local token = list[position + 1]
        if token < 0 or token >= vocab then
            error(("stack: token %d at %s, vocabulary of %d"):format(token,
                stream:place(position), vocab), blame())
        end
        return token
    end
end

--- The token at each position of a stream: its own, or one drawn from its digest.
-- @treturn function(position)
function M.reader(stream, vocab)
    if stream.tokens then
        return own_token(stream, vocab)
    end
    local key = C.cpl_stream_digest(stream._ptr)
    return function(position)
        return tonumber(C.cpl_random_bits(key, position) % vocab)
    end
end

--- How many tokens of a stream have a label: all real ones but the last of each sequence.
function M.n_labels(stream)
    local n = 0
    for i = 0, tonumber(C.cpl_stream_n_sequences(stream._ptr)) - 1 do
        n = n + math.max(tonumber(C.cpl_stream_sequence(stream._ptr, i).real) - 1, 0)
    end
    return n
end

-- One exchange of tokens: `result` becomes those of another layout, or what a view shows of them.
local function new_move(stack, src, layout, the_route)
    local plan = clib.create("cpl_plan", C.cpl_plan_destroy, 1, C.cpl_plan_create,
        the_route._ptr, stack.comm, C.CPL_I32, 1, nil)
    local result = rows.new(stack.comm, "i32", layout:n_local(stack.rank), 1)
    return { plan = plan, src = src, result = result, layout = layout }
end

local function carry_out(move)
    clib.check(C.cpl_plan_start(move.plan, move.src, move.result))
    clib.check(C.cpl_plan_finish(move.plan))
end

local function add(tensor, n, delta)
    rows.edit(tensor, "int32_t", function(data)
        for i = 0, n - 1 do
            data[i] = data[i] + delta
        end
    end)
end

local function write(placed, token_at)
    rows.edit(placed.tokens, "int32_t", function(data)
        for slot, position in ipairs(placed.live:positions(placed.rank)) do
            data[slot - 1] = token_at(position) + 1
        end
    end)
end

--- Collective. The tokens of a stream with the lengths of the stack's become those of the stack.
-- The shift view fills with 0 where there is no such token; tokens travel as token + 1, so that 0
-- is no token and becomes -1. What was rolled is then rows of the layout: each stands beside the
-- row that predicts it.
-- @tparam table placed of `place`
-- @tparam table stream
function M.fill(placed, stream)
    write(placed, M.reader(stream, placed.vocab))
    clib.check(C.cpl_tensor_mark(placed.tokens, placed.from._ptr, placed.rank, false))
    if placed.there then carry_out(placed.there) end
    for _, roll in ipairs(placed.rolls) do
        carry_out(roll)
        C.cpl_tensor_remark(roll.result, roll.layout._ptr)
    end
    for _, roll in ipairs(placed.rolls) do
        add(roll.result, roll.layout:n_local(placed.rank), -1)
    end
    add(placed.tokens, placed.live:n_local(placed.rank), -1)
end

--- Collective. The tokens of the rank's slots in the entry layout, and the same rolled by 1 to n
-- in the exit layout: in each slot the real token k positions later in the same sequence, or -1.
-- Rolled by one they are the labels. Each is one exchange from the tokens themselves, never a roll
-- of a roll. Where entry and exit differ the tokens go there first, as a batch does at the boundary
-- to what follows the last layer. All I32.
-- @tparam table stack
-- @tparam ?number n how many rolls; 1
-- @tparam ?table from the stack's entry layout, with sequences that end the rolls; default: it
-- @tparam ?table to likewise its exit layout
-- @treturn table tokens; rolled, a list by k; n_routes, how many routes that took
function M.place(stack, n, from, to)
    local live = stack.entry
    from, to = from or live, to or stack.exit
    local placed = { live = live, from = from, rank = stack.rank, vocab = stack.model.vocab,
        tokens = rows.new(stack.comm, "i32", live:n_local(stack.rank), 1),
        rolls = {}, rolled = {} }
    if not from:equals(to) then
        placed.there = new_move(stack, placed.tokens, to, route(from, to))
    end
    local there = placed.there and placed.there.result or placed.tokens
    for k = 1, n or 1 do
        placed.rolls[k] = new_move(stack, there, to, route(to, view.shift(to, k)))
        placed.rolled[k] = placed.rolls[k].result
    end
    placed.n_routes = #placed.rolls + (placed.there and 1 or 0)
    M.fill(placed, live:stream())
    clib.check(C.cpl_tensor_mark(placed.tokens, live._ptr, stack.rank, stack.trace))
    return placed
end

return M
