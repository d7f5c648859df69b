--- Streams: the global sequence of token positions of one microbatch.
-- `thd` packs sequences one after the other; `sbhd` has one sequence length and a batch of
-- columns, and a position counts once, not per column. A real length is at most the padded one;
-- real tokens stand first. Positions, columns and sequences count from 0, Lua lists from 1.
-- A position of an sbhd stream stands for its tokens in all columns: tensors that go with its
-- layouts have rows [batch, ...]. Layers know sequences only, and see the stream by its `columns`.
-- @module cplab.stream
-- @usage local s = cplab.stream.thd { lengths = { 16, 24 }, real = { 13, 24 } }
local clib = require "clib"
local args = require "cplab.check_args"

local C, ffi = clib.C, clib.ffi

local Stream = {}
Stream.__index = Stream

local M = {}

local THD = {
    lengths = "list?", real = "list?", cu_seqlens = "list?", cu_seqlens_real = "list?",
    tokens = "list|string?",
}
local SBHD = { seqlen = "integer", batch = "integer?", tokens = "list|string?" }

-- Boundaries as int64_t[n + 1], or nil where there is nothing.
local function boundaries(who, name, list, level)
    if list == nil then return nil end
    args.integers(who, name, list, nil, nil, level + 1)
    if #list == 0 then error(("%s: %s must hold at least the 0"):format(who, name), level + 1) end
    return ffi.new("int64_t[?]", #list, list)
end

local function summed(who, name, lengths, level)
    if lengths == nil then return nil end
    args.integers(who, name, lengths, 0, nil, level + 1)
    local cu = ffi.new("int64_t[?]", #lengths + 1)
    for i = 1, #lengths do cu[i] = cu[i - 1] + lengths[i] end
    return cu
end

local function check_counts(n, n_real, level)
    if n_real and n_real ~= n then
        error(("stream.thd: %d sequences, but real lengths of %d"):format(n, n_real), level + 1)
    end
end

-- The padded and the real boundaries, and the number of sequences.
local function both_boundaries(t, level)
    level = level + 1
    if (t.lengths == nil) == (t.cu_seqlens == nil) then
        error("stream.thd: give either lengths or cu_seqlens", level)
    end
    if t.real and t.cu_seqlens_real then
        error("stream.thd: give either real or cu_seqlens_real", level)
    end
    local cu = summed("stream.thd", "lengths", t.lengths, level)
        or boundaries("stream.thd", "cu_seqlens", t.cu_seqlens, level)
    local real = summed("stream.thd", "real", t.real, level)
        or boundaries("stream.thd", "cu_seqlens_real", t.cu_seqlens_real, level)
    local n = t.lengths and #t.lengths or #t.cu_seqlens - 1
    check_counts(n, t.real and #t.real or real and #t.cu_seqlens_real - 1, level)
    return cu, real, n
end

local function check_tokens(who, tokens, n, level)
    if tokens == nil then return end
    if #tokens ~= n then
        error(("%s: %d tokens for %.0f positions and columns"):format(who, #tokens, n), level + 1)
    end
    if type(tokens) == "table" then
        args.integers(who, "tokens", tokens, 0, 2 ^ 31 - 1, level + 1)
    end
end

local function wrap(ptr, tokens)
    return setmetatable({ _ptr = ptr, tokens = tokens }, Stream)
end

--- A packed stream.
-- @tparam table t lengths (padded) or cu_seqlens (their boundaries from 0); optionally real
-- lengths or cu_seqlens_real (boundaries that count real tokens only); optionally tokens: a list
-- or a string of bytes, one for each padded position
-- @treturn Stream
-- @raise what is not an integer, boundaries that do not start at 0 or that decrease, real lengths
-- beyond the padded ones, unknown fields
function M.thd(t)
    args.fields("stream.thd", t, THD, 2)
    local cu, real, n = both_boundaries(t, 2)
    local ptr = clib.create("cpl_stream", C.cpl_stream_destroy, 2, C.cpl_stream_thd, cu, real, n)
    check_tokens("stream.thd", t.tokens, tonumber(cu[n]), 2)
    return wrap(ptr, t.tokens)
end

--- An unpacked stream.
-- @tparam table t seqlen, batch (default 1); optionally tokens, position by position, all columns
-- of a position together
-- @treturn Stream
-- @raise what is not an integer or out of range, unknown fields
function M.sbhd(t)
    args.fields("stream.sbhd", t, SBHD, 2)
    local batch = t.batch or 1
    local ptr = clib.create("cpl_stream", C.cpl_stream_destroy, 2, C.cpl_stream_sbhd, t.seqlen,
        batch)
    check_tokens("stream.sbhd", t.tokens, t.seqlen * batch, 2)
    return wrap(ptr, t.tokens)
end

--- Whether a value is a stream.
function M.is(value)
    return getmetatable(value) == Stream
end

--- "thd" or "sbhd".
function Stream:format()
    return C.cpl_stream_is_sbhd(self._ptr) and "sbhd" or "thd"
end

--- How many positions there are, padding included.
function Stream:n_positions()
    return tonumber(C.cpl_stream_n_positions(self._ptr))
end

--- How many sequences there are, empty ones included.
function Stream:n_sequences()
    return tonumber(C.cpl_stream_n_sequences(self._ptr))
end

--- How many columns a position has.
function Stream:batch()
    return tonumber(C.cpl_stream_batch(self._ptr))
end

--- Its own tokens as a list of numbers, or nil.
function Stream:token_list()
    if type(self.tokens) ~= "string" then return self.tokens end
    local list = {}
    for i = 1, #self.tokens do list[i] = self.tokens:byte(i) end
    return list
end

-- Column by column what is position by position.
local function turned(tokens, n, batch)
    local list = {}
    for column = 0, batch - 1 do
        for position = 0, n - 1 do
            list[column * n + position + 1] = tokens[position * batch + column + 1]
        end
    end
    return list
end

--- The columns of an sbhd stream as sequences, one after the other: position p of column c is
-- their position c * seqlen + p. Tokens go with them. Only `layout:columns()` lays it out.
-- @treturn Stream the same object at each call
-- @raise a thd stream
function Stream:columns()
    if not self._columns then
        local ptr = clib.create("cpl_stream", C.cpl_stream_destroy, 2, C.cpl_stream_columns,
            self._ptr)
        self._columns = wrap(ptr, self.tokens and turned(self:token_list(), self:n_positions(),
            self:batch()))
        self._columns._of = self
    end
    return self._columns
end

--- A position in words: "position 6", of columns "position 6 of column 1".
function Stream:place(position)
    local n = self._of and self._of:n_positions()
    return n and ("position %d of column %d"):format(position % n, math.floor(position / n))
        or ("position %d"):format(position)
end

--- Sequence i, from 0.
-- @treturn table start (its first position), padded, real
function Stream:sequence(i)
    args.integer("stream.sequence", "sequence", i, 0, self:n_sequences() - 1, 2)
    local sequence = C.cpl_stream_sequence(self._ptr, i)
    return {
        start = tonumber(sequence.start),
        padded = tonumber(sequence.padded),
        real = tonumber(sequence.real),
    }
end

--- The sequence that holds a position.
function Stream:sequence_of(position)
    args.integer("stream.sequence_of", "position", position, 0, self:n_positions() - 1, 2)
    return tonumber(C.cpl_stream_sequence_of(self._ptr, position))
end

--- Whether another stream has the same boundaries and real lengths; tokens are not compared.
function Stream:equals(other)
    return C.cpl_stream_digest(self._ptr) == C.cpl_stream_digest(other._ptr)
end

--- A line of text: "thd of 2 sequences, 40 positions, 37 real".
function Stream:describe()
    return ffi.string(C.cpl_stream_describe(self._ptr))
end

Stream.__tostring = Stream.describe

return M
