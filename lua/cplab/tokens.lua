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

-- The tokens in a layout, or as a view of it shows them.
local function moved(stack, tokens, layout, the_route)
    local plan = clib.create("cpl_plan", C.cpl_plan_destroy, 1, C.cpl_plan_create,
        the_route._ptr, stack.comm, C.CPL_I32, 1, nil)
    local result = rows.new(stack.comm, "i32", layout:n_local(stack.rank), 1)
    clib.check(C.cpl_plan_start(plan, tokens, result))
    clib.check(C.cpl_plan_finish(plan))
    return result
end

-- The shift view fills with 0 where there is no such token; tokens travel as token + 1, so that 0
-- is no token and becomes -1. They are then rows of the layout: each stands beside the row that
-- predicts it.
local function rolled(stack, tokens, layout, k)
    local result = moved(stack, tokens, layout, route(layout, view.shift(layout, k)))
    C.cpl_tensor_remark(result, layout._ptr)
    return result
end

local function add(tensor, n, delta)
    rows.edit(tensor, "int32_t", function(data)
        for i = 0, n - 1 do
            data[i] = data[i] + delta
        end
    end)
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
-- @treturn cdata tokens
-- @treturn table rolled by k
-- @treturn number how many routes that took
function M.place(stack, n, from, to)
    local live = stack.entry
    from, to = from or live, to or stack.exit
    local n_rows = live:n_local(stack.rank)
    local token_at = M.reader(live:stream(), stack.model.vocab)
    local tokens, list = rows.new(stack.comm, "i32", n_rows, 1), {}
    rows.edit(tokens, "int32_t", function(data)
        for slot, position in ipairs(live:positions(stack.rank)) do
            data[slot - 1] = token_at(position) + 1
        end
    end)
    clib.check(C.cpl_tensor_mark(tokens, from._ptr, stack.rank, false))
    local is_there = from:equals(to)
    local there = is_there and tokens or moved(stack, tokens, to, route(from, to))
    for k = 1, n or 1 do
        list[k] = rolled(stack, there, to, k)
    end
    for k = 1, #list do add(list[k], to:n_local(stack.rank), -1) end
    add(tokens, n_rows, -1)
    clib.check(C.cpl_tensor_mark(tokens, live._ptr, stack.rank, stack.trace))
    return tokens, list, #list + (is_there and 0 or 1)
end

return M
