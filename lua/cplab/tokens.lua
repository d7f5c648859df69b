--- Tokens and labels of a rank: data that depends on (stream, position, column) alone.
-- A stream may carry its own tokens; without them they are drawn from its digest and the
-- position. Labels are the next real token of the same sequence: a shift view brings them,
-- over ranks where need be.
-- @module cplab.tokens
local clib = require "clib"
local rows = require "cplab.rows"
local route = require "cplab.route"
local view = require "cplab.view"
local C, ffi = clib.C, clib.ffi

local M = {}

local function own_token(stream, vocab)
    local list = stream:token_list()
    return function(position)
        local token = list[position + 1]
        if token < 0 or token >= vocab then
            error(("stack: token %d at %s, vocabulary of %d"):format(token,
                stream:place(position), vocab), 0)
        end
        return token
    end
end

local function reader(stream, vocab)
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

-- The shift view fills with 0 where there is no next token; tokens travel as token + 1, so
-- that 0 is no token and becomes the label -1.
local function shifted(stack, tokens, layout)
    local n = layout:n_local(stack.rank)
    local shift = view.shift(layout, 1)
    local r = route(layout, shift)
    local plan = clib.create("cpl_plan", C.cpl_plan_destroy, 1, C.cpl_plan_create, r._ptr,
        stack.comm, C.CPL_I32, 1, nil)
    local labels = rows.new(stack.comm, "i32", n, 1)
    clib.check(C.cpl_plan_start(plan, tokens, labels))
    clib.check(C.cpl_plan_finish(plan))
    return labels
end

local function add(tensor, n, delta)
    local data = ffi.cast("int32_t *", tensor.data)
    for i = 0, n - 1 do
        data[i] = data[i] + delta
    end
end

--- Collective. The tokens of the rank's slots and their labels (-1: none), I32.
function M.place(stack)
    local layout = stack.layouts.live
    local n = layout:n_local(stack.rank)
    local token_at = reader(layout:stream(), stack.model.vocab)
    local tokens = rows.new(stack.comm, "i32", n, 1)
    local data = ffi.cast("int32_t *", tokens.data)
    for slot, position in ipairs(layout:positions(stack.rank)) do
        data[slot - 1] = token_at(position) + 1
    end
    clib.check(C.cpl_tensor_mark(tokens, layout._ptr, stack.rank, false))
    local labels = shifted(stack, tokens, layout)
    add(labels, n, -1)
    add(tokens, n, -1)
    clib.check(C.cpl_tensor_mark(tokens, layout._ptr, stack.rank, stack.trace))
    return tokens, labels
end

return M
