--- A decoder: forward passes over sequences that go on where earlier passes ended.
-- *Decoding is a forward pass over a stream with a past.* What is fed, some new tokens of each
-- sequence (one, several, none), is a microbatch like any other: its own stream, padded to what the
-- layouts demand, laid out by the policy, walked by a stack (cplab.stack) with all its conversions
-- and traces. So prefill, chunked prefill and token-by-token decoding are the same thing, and every
-- way out of a layer is the one that training takes. What sequences were before lies in
--
--   * a cache of keys and values for each GQA and MLA layer: real tokens alone, each on the rank
--     that computed it (cpl_kv_cache); rotary positions and masks follow from how many it has seen;
--   * the state of the delta rule and the tail of the convolution for each GDN layer, on all ranks
--     of a CP group (cpl_gdn_state).
--
-- Both are where the rank's rows are. On a device no step waits; who gives it tokens, or reads
-- logits, does.
--
-- What is fed alike twice runs on the same stack, which is made at the first time: from then on a
-- step allocates nothing, unless more than 16 other ways of feeding came in between: the stacks
-- that were used last are kept. `routes_built` counts the routes of all. Parameters are the model's
-- initial ones. Depths of MTP serve training and are left out; there is no backward.
-- @classmod cplab.decoder
-- @usage local decoder = lab:decoder { capacity = 64 }
-- decoder:feed { { 3, 1, 4 }, { 1, 5 } }        -- the prompts of two sequences
-- for _ = 1, 10 do
--     local logits, next = decoder:last_logits(), {}
--     for i = 1, 2 do next[i] = { argmax(logits, i) } end
--     decoder:feed(next)
-- end
local args = require "cplab.check_args"
local captures = require "cplab.capture"
local clib = require "clib"
local comms = require "cplab.comm"
local layers = require "cplab.layers"
local rows = require "cplab.rows"
local schedules = require "cplab.schedule"
local stacks = require "cplab.stack"
local steps = require "cplab.steps"
local streams = require "cplab.stream"
local tensors = require "cplab.tensor"
local C, ffi = clib.C, clib.ffi

local Decoder = {}
Decoder.__index = Decoder

local M = {}

local FIELDS = { capacity = "integer|list" }
local MAX_STACKS = 16 -- that live on; see above
local MAX_SHOWN = 60 -- letters of what a rank feeds, in a message
local MAX_CAPACITY = 2 ^ 31 - 1 -- of one sequence, so that sums of them are exact

-- ---- streams of new tokens -------------------------------------------------------

local function gcd(a, b)
    return b == 0 and a or gcd(b, a % b)
end

-- What every layout that a policy may name divides, windows of tp ranks too.
local function padding_of(lab)
    local need, block = 2 * lab.cp * lab.tp, lab.model.balance.block or 1
    return need / gcd(need, block) * block
end

--- The stream of so many new tokens of each sequence: padded, and with nothing where there are
-- none.
-- @tparam table lab
-- @tparam {int,...} counts
function M.stream(lab, counts)
    local multiple, lengths = padding_of(lab), {}
    for i, n in ipairs(counts) do lengths[i] = math.ceil(n / multiple) * multiple end
    return streams.thd { lengths = lengths, real = counts }
end

-- ---- the past of each layer --------------------------------------------------------

local function each_mixer(stack, visit)
    for i, block in ipairs(stack.blocks) do
        visit(i, stack.model.schedule.layers[i], block.mixer)
    end
end

-- Rows of each sequence that a layer's cache has room for on this rank: all that the sequence may
-- have, since where they will lie depends on what is fed, or what is known to come.
local function capacities(self, i)
    local shares = self.shares and self.shares[i] or self.capacity
    return ffi.new("int64_t[?]", self.n, shares)
end

local function new_cache(self, i)
    return clib.create("cpl_kv_cache", C.cpl_kv_cache_destroy, 2, C.cpl_kv_cache_create, self.n,
        capacities(self, i))
end

-- Of the heads that tensor parallelism leaves to a rank; key heads that are fewer than tp are
-- shared.
local function new_state(self, layer)
    local c = layers.mixer_config(self.model, "gdn", layer)
    local key_heads, value_heads = math.ceil(c.key_heads / self.lab.tp), c.value_heads / self.lab.tp
    local width = 2 * key_heads * c.key_dim + value_heads * c.value_dim
    local dtype = self.model.dtype
    local function tensor(of, n) return rows.new(self.lab.comm, of, self.n, n) end
    local state = { state = tensor(clib.wide_dtype(dtype), value_heads * c.key_dim * c.value_dim),
        tail = c.conv > 1 and tensor(dtype, (c.conv - 1) * width) or nil }
    state.struct = ffi.new("cpl_gdn_state", { state = state.state, tail = state.tail })
    return state
end

--- Gives the layers of a stack their past, before they are prepared.
function Decoder:bind(stack)
    stack.has_past = self:has_past()
    each_mixer(stack, function(i, layer, mixer)
        if schedules.is_attention(layer.kind) then
            self.caches[i] = self.caches[i] or new_cache(self, i)
            clib.check(C.cpl_layer_kv_cache(mixer.layer.ptr, self.caches[i]))
        elseif layer.kind == "gdn" then
            self.states[i] = self.states[i] or new_state(self, layer)
            local struct = self.states[i].struct
            clib.check(C.cpl_layer_gdn_state(mixer.layer.ptr, struct, struct))
        end
    end)
end

--- Whether some sequence has been fed something.
function Decoder:has_past()
    for _, n in ipairs(self.seen) do
        if n > 0 then return true end
    end
    return false
end

--- Bytes of keys and values, and of recurrent states and tails, that this rank holds.
function Decoder:bytes()
    local keys, states = 0, 0
    for _, cache in pairs(self.caches) do keys = keys + tonumber(C.cpl_kv_cache_bytes(cache)) end
    for _, state in pairs(self.states) do
        states = states + tonumber(C.cpl_tensor_bytes(state.state)
            + (state.tail and C.cpl_tensor_bytes(state.tail) or 0))
    end
    return keys, states
end

-- ---- feeding -----------------------------------------------------------------------

local function find_stack(self, key)
    for i, made in ipairs(self.stacks) do
        if made.key == key then return table.remove(self.stacks, i) end
    end
    return nil
end

-- Of those that were used, the last ones live on.
local function make_room(self)
    if #self.stacks < MAX_STACKS then return end
    table.remove(self.stacks, 1)
    collectgarbage() -- it does not know how much hangs on a stack
end

-- Sequences that begin meet keys by the layers' modes, those that go on by the caches: a stack
-- knows one of the two.
local function stack_for(self, counts)
    local key = (self:has_past() and "goes on " or "begins ") .. table.concat(counts, " ")
    local made = find_stack(self, key)
    if not made then
        local lab = self.lab
        make_room(self)
        made = { key = key, stack = stacks.new {
            model = self.model, stream = M.stream(lab, counts), comm = lab.comm, cp = lab.cp,
            tp = lab.tp, trace = self.trace, faults = lab.options.faults, past = self,
            parameters = self.parameters,
        } }
        self.parameters = made.stack.parameters
        made.entry_spans = made.stack.entry:spans(lab.rank, true)
        made.spans = made.stack.exit:spans(lab.rank, true)
        self.routes_built = self.routes_built + made.stack:count_routes()
    end
    self.stacks[#self.stacks + 1] = made
    return made
end

local function check_tokens(self, tokens, level)
    if not args.is_list(tokens) or #tokens ~= self.n then
        error(("decoder.feed: expected the new tokens of each of %d sequences, a list of %d lists")
            :format(self.n, self.n), level + 1)
    end
    local counts, sum = {}, 0
    for i, list in ipairs(tokens) do
        args.integers("decoder.feed", ("tokens of sequence %d"):format(i - 1), list, 0,
            self.model.vocab - 1, level + 1)
        counts[i], sum = #list, sum + #list
        if self.seen[i] + #list > self.capacity[i] then
            error(("decoder.feed: sequence %d has %d tokens, and %d more come, but the capacity is "
                .. "%d"):format(i - 1, self.seen[i], #list, self.capacity[i]), level + 1)
        end
    end
    if sum == 0 then error("decoder.feed: no sequence has a new token", level + 1) end
    return counts
end

-- Collective. Ranks that feed different tokens, or go on from others, would go different ways.
local function agree(self, tokens, level)
    local words = {}
    for i, list in ipairs(tokens) do words[i] = table.concat(list, " ") end
    local text = ("%s (%safter %s)"):format(table.concat(words, ", "), self.trace and "traced, "
        or "", table.concat(self.seen, ", "))
    if not comms.wrap(self.lab.comm):same(text) then
        error(("decoder.feed: the ranks feed different tokens; rank %d: %s"):format(self.lab.rank,
            #text > MAX_SHOWN and text:sub(1, MAX_SHOWN) .. " ..." or text), level + 1)
    end
end

local function place_tokens(made, tokens)
    rows.edit(made.stack.tokens, "int32_t", function(data)
        for _, span in ipairs(made.entry_spans) do
            local list = tokens[span.sequence + 1]
            for i = 0, span.length - 1 do data[span.slot + i] = list[span.offset + i + 1] end
        end
    end)
end

--- Collective. Makes ready what the next tokens need; nothing is changed yet.
-- @tparam {{int,...},...} tokens as in `feed`
-- @treturn table stack, entry_spans and spans (this rank's real rows where tokens live, and where
-- logits live), before (tokens that each sequence had)
function Decoder:prepare(tokens, level)
    level = (level or 1) + 1
    local counts = check_tokens(self, tokens, level)
    agree(self, tokens, level)
    local made = stack_for(self, counts)
    place_tokens(made, tokens)
    made.before = {}
    for i, n in ipairs(self.seen) do made.before[i] = n end
    self.ready = made
    return made
end

--- Collective. The forward pass over what was made ready; the sequences are longer then.
-- @raise what is not ready: not made ready last, run already, or forgotten with all tokens; in a
-- capture, whose replays would feed tokens behind the same past
function Decoder:run(made)
    if captures.is_open() then
        error("decoder.run: in a capture: each step goes on from what the host knows of the step "
            .. "before, and replays would all go on from this one", 2)
    end
    if made == nil or made ~= self.ready then
        error("decoder.run: runs what decoder:prepare made ready last, and that once", 2)
    end
    self.ready = nil
    if made.stack.has_past then made.stack:forget_past(self.states) end
    made.stack:forward()
    made.stack:end_step()
    for i, n in ipairs(self.seen) do
        self.seen[i] = n + made.stack.exit:stream():sequence(i - 1).real
    end
    self.last = made
end

-- Collective. A wrong row on any rank fails the case.
local function judge_trace(self)
    local trace = { wrong_rows = 0, first = ffi.new "cpl_first_wrong" }
    steps.add_trace(self.lab.comm, trace)
    self.lab:judge_trace(trace)
end

--- Collective. Some new tokens of each sequence.
-- @tparam {{int,...},...} tokens a list for each sequence, empty where it gets none; the same on
-- all ranks
-- @treturn cplab.tensor logits [rows of this rank, vocab], in the layout where the head lives,
-- padding included; a copy
-- @treturn table that layout: `layout:spans(lab.rank, true)` are the real rows, with their sequence
-- and their offset among what was fed; `lab:gather(logits, layout)` brings all rows together
-- @raise lists that do not fit sequences, vocabulary or capacity, nothing to feed, other tokens on
-- another rank; nothing is changed then
function Decoder:feed(tokens)
    local made = self:prepare(tokens, 2)
    if self.trace then C.cpl_counters_reset() end
    self:run(made)
    if self.trace then judge_trace(self) end
    local stack = self.last.stack
    local exit = stack.exit
    local logits = tensors.zeros({ exit:n_local(self.lab.rank), self.model.vocab },
        self.model.dtype)
    clib.check(C.cpl_tensor_copy(logits._ptr, stack.logits))
    return logits, exit
end

--- Collective. The logits of the last token that each sequence was fed in the last step.
-- @treturn cplab.tensor [sequences, vocab], the same on all ranks; zeros where it was fed none
function Decoder:last_logits()
    if not self.last then error("decoder.last_logits: nothing was fed yet", 2) end
    local stack, vocab = self.last.stack, self.model.vocab
    local result = tensors.zeros({ self.n, vocab }, self.model.dtype)
    local row_bytes = tonumber(vocab * C.cpl_dtype_bytes(stack.logits.dtype))
    local sum = ffi.new("char[?]", self.n * row_bytes)
    rows.look(stack.logits, "char", function(from)
        for _, span in ipairs(self.last.spans) do
            local real = stack.exit:stream():sequence(span.sequence).real
            if span.offset + span.length == real then
                ffi.copy(sum + span.sequence * row_bytes,
                    from + (span.slot + span.length - 1) * row_bytes, row_bytes)
            end
        end
    end)
    clib.check(C.cpl_comm_sum(self.lab.comm, sum, self.n * vocab, stack.logits.dtype))
    clib.check(C.cpl_tensor_upload(result._ptr, sum))
    return result
end

--- Forgets all tokens: sequences begin anew.
function Decoder:clear()
    for _, cache in pairs(self.caches) do C.cpl_kv_cache_clear(cache) end
    for _, state in pairs(self.states) do
        C.cpl_tensor_fill(state.state, 0)
        if state.tail then C.cpl_tensor_fill(state.tail, 0) end
    end
    for i = 1, self.n do self.seen[i] = 0 end
    self.last, self.ready = nil, nil
end

--- Token tracing of the steps to come: a wrong row in what is fed fails the case.
-- @tparam boolean on the same on all ranks
function Decoder:set_trace(on)
    self.trace = args.value("decoder.set_trace", "on", on, "boolean", 2)
    for _, made in ipairs(self.stacks) do made.stack:set_trace(on) end
end

--- A decoder for the sequences of a lab's stream (of a batch its columns), with nothing seen.
-- @tparam table lab with model and stream
-- @tparam table options capacity: tokens that a sequence may have in all, a number or one for each;
-- every rank keeps room for all of them, for it is not known where they will lie
-- @tparam ?number level whom an error blames
-- @tparam ?table shares where that is known: rows of each sequence on this rank, by where a layer
-- runs ("live", "gqa")
function M.new(lab, options, level, shares)
    level = (level or 1) + 1
    args.fields("lab:decoder", options, FIELDS, level)
    local columns = lab.stream:batch()
    local n = columns > 1 and columns or lab.stream:n_sequences()
    local capacity = options.capacity
    if type(capacity) == "number" then
        local each = args.integer("lab:decoder", "capacity", capacity, 1, MAX_CAPACITY, level)
        capacity = {}
        for i = 1, n do capacity[i] = each end
    end
    args.integers("lab:decoder", "capacity", capacity, 0, MAX_CAPACITY, level)
    if #capacity ~= n then
        error(("lab:decoder: a capacity for each of %d sequences (got %d)"):format(n, #capacity),
            level)
    end
    local self = setmetatable({
        lab = lab, model = lab.model:with { mtp = false }, n = n, capacity = capacity,
        shares = shares, seen = {}, caches = {}, states = {}, stacks = {}, routes_built = 0,
        trace = false,
    }, Decoder)
    for i = 1, n do self.seen[i] = 0 end
    return self
end

return M
