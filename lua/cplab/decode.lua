--- Decoding a text that is known: what lab:decode does.
-- The stream is the text. All but the last tokens of each sequence are prefilled, the last ones are
-- decoded, and every logit is compared with those of one forward pass over the whole text on one
-- rank (cplab.decoder does the work).
-- @module cplab.decode
local args = require "cplab.check_args"
local clib = require "clib"
local decoders = require "cplab.decoder"
local measure = require "cplab.measure"
local metrics = require "cplab.metrics"
local parity = require "cplab.parity"
local references = require "cplab.reference"
local steps = require "cplab.steps"
local tokens = require "cplab.tokens"
local C, ffi = clib.C, clib.ffi

local M = {}

local FIELDS = {
    last = "integer", chunk = "integer?", prefill = "integer?", capacity = "integer|list?",
    reference = "boolean?", trace = "boolean?",
}

-- ---- what is fed when --------------------------------------------------------------

local function text_of(lab)
    return lab.stream:batch() > 1 and lab.stream:columns() or lab.stream
end

-- Appends feeds, counts of new tokens, until each sequence has what `upto` says, at most `most`
-- tokens at a time. Sequences that are shorter end earlier.
local function add_feeds(feeds, at, upto, most, is_decode)
    while true do
        local counts, sum = {}, 0
        for i = 1, #upto do
            counts[i] = math.min(most, upto[i] - at[i])
            at[i], sum = at[i] + counts[i], sum + counts[i]
        end
        if sum == 0 then return end
        feeds[#feeds + 1] = { counts = counts, is_decode = is_decode }
    end
end

local function plan(text, options)
    local at, prompt, real, feeds = {}, {}, {}, {}
    for i = 1, text:n_sequences() do
        at[i], real[i] = 0, text:sequence(i - 1).real
        prompt[i] = math.max(real[i] - options.last, 0)
    end
    add_feeds(feeds, at, prompt, options.prefill or math.huge, false)
    add_feeds(feeds, at, real, options.chunk or 1, true)
    return feeds, real
end

-- Real rows of each sequence that a rank gets from one feed, by layer.
local function rows_of(lab, counts)
    local stream, group = decoders.stream(lab, counts), { cp = lab.cp, tp = lab.tp }
    local assignment = lab.model:assignment(stream, group)
    local layouts = lab.model:layouts(assignment, stream, group).shard
    local by_name, by_layer = {}, {}
    for i, entry in ipairs(assignment.layers) do
        local name = entry.mixer
        if not by_name[name] then
            by_name[name] = {}
            for j = 1, #counts do by_name[name][j] = 0 end
            for _, span in ipairs(layouts[name]:spans(math.floor(lab.rank / lab.tp), true)) do
                local j = span.sequence + 1
                by_name[name][j] = by_name[name][j] + span.length
            end
        end
        by_layer[i] = by_name[name]
    end
    return by_layer
end

-- The same of all feeds: what the caches of each layer must have room for.
local function shares_of(lab, feeds)
    local shares, made = {}, {}
    for i in ipairs(lab.model:layers()) do shares[i] = {} end
    for _, feed in ipairs(feeds) do
        local key = table.concat(feed.counts, " ")
        made[key] = made[key] or rows_of(lab, feed.counts)
        for i, share in ipairs(shares) do
            for j, n in ipairs(made[key][i]) do share[j] = (share[j] or 0) + n end
        end
    end
    return shares
end

-- ---- running -----------------------------------------------------------------------

local function tokens_of(text, token_at, before, counts)
    local lists = {}
    for i, n in ipairs(counts) do
        local start, list = text:sequence(i - 1).start + before[i], {}
        for j = 1, n do list[j] = token_at(start + j - 1) end
        lists[i] = list
    end
    return lists
end

-- A function of a layout: where the step's real rows of this rank lie in it, and which rows of the
-- text they are.
local function rows_in_text(text, made, rank)
    return function(layout)
        local list = {}
        for i, span in ipairs(layout:spans(rank, true)) do
            list[i] = { slot = span.slot, length = span.length,
                row = text:sequence(span.sequence).start + made.before[span.sequence + 1]
                    + span.offset }
        end
        return list
    end
end

-- Collective, so that nobody is past the step yet, or still in it.
local function allocations(lab)
    clib.check(C.cpl_comm_barrier(lab.comm))
    local memory = ffi.new "cpl_memory_stats"
    C.cpl_memory(memory)
    clib.check(C.cpl_comm_barrier(lab.comm))
    return tonumber(memory.n_allocations)
end

-- Collective. One feed; what it took is added to `run`, by phase.
local function feed(run, decoder, text, token_at, f)
    local phase = f.is_decode and run.decode or run.prefill
    local made = decoder:prepare(tokens_of(text, token_at, decoder.seen, f.counts))
    local before = allocations(decoder.lab)
    phase.records[#phase.records + 1] = measure.iteration(made.stack, function()
        decoder:run(made)
    end)
    run.host_syncs = run.host_syncs + made.stack.host_syncs
    local taken = allocations(decoder.lab) - before
    if made.has_run then phase.allocations = math.max(phase.allocations, taken) end
    made.has_run = true
    steps.add_trace(decoder.lab.comm, run.trace)
    if run.key then
        parity.add_rows(phase.sums, run.key, made.stack:outputs(),
            rows_in_text(text, made, decoder.lab.rank))
    end
end

local function new_phase()
    return { records = {}, sums = {}, allocations = 0 }
end

local function feed_all(lab, options, decoder, feeds)
    local text = text_of(lab)
    local token_at = tokens.reader(text, lab.model.vocab)
    local run = {
        prefill = new_phase(), decode = new_phase(),
        key = options.reference ~= false and references.parity(lab) or nil,
        trace = { wrong_rows = 0, first = ffi.new "cpl_first_wrong" },
        host_syncs = 0,
    }
    for _, f in ipairs(feeds) do feed(run, decoder, text, token_at, f) end
    return run
end

-- ---- what came of it ---------------------------------------------------------------

-- Collective. Bytes of all ranks; states are the same on all CP ranks, and count once.
local function add_bytes(result, lab, decoder)
    local keys, states = decoder:bytes()
    local most = ffi.new("double[1]", keys)
    local sums = ffi.new("double[2]", keys, lab.rank < lab.tp and states or 0)
    clib.check(C.cpl_comm_max(lab.comm, most, 1))
    clib.check(C.cpl_comm_sum(lab.comm, sums, 2, C.CPL_F64))
    result.cache_bytes, result.gdn_state_bytes = sums[0], sums[1]
    result.cache_imbalance = sums[0] > 0 and most[0] * lab.size / sums[0] or 1
end

-- Collective. The milliseconds of all steps of a phase.
local function total_ms(lab, records)
    if #records == 0 then return 0 end
    local _, samples = measure.times(measure.gather(lab.comm, records))
    local sum = 0
    for _, ms in ipairs(samples) do sum = sum + ms end
    return sum
end

local function result_of(lab, decoder, run, feeds)
    local stack = decoder.last.stack
    stack.host_syncs = run.host_syncs -- of all steps
    local result = metrics.structure(stack)
    for name, value in pairs(metrics.counts(stack)) do result[name] = value end
    result.routes_built = decoder.routes_built
    result.attention_imbalance = nil -- of new tokens alone; what a rank has to do are its keys
    add_bytes(result, lab, decoder)
    local prefill, decode = run.prefill, run.decode
    result.prefill_ms = total_ms(lab, prefill.records)
    local times, samples = measure.times(measure.gather(lab.comm, decode.records), lab.on_device)
    result.decode_ms, result.decode_convert_ms = times.step_ms, times.convert_ms
    result.prefill_steps, result.decode_steps = #feeds - #samples, #samples
    result.decode_allocations = not decoder.trace and decode.allocations or nil
    if run.key then
        result.parity_prefill = parity.total(lab.comm, prefill.sums)
        result.parity_decode, result.parity_decode_where = parity.total(lab.comm, decode.sums)
    end
    return result, samples
end

--- What lab:decode is asked for, checked.
-- @treturn table options
-- @raise unknown, missing or wrong fields; a stream without real tokens
function M.check(lab, options, level)
    level = (level or 1) + 1
    args.fields("lab:decode", options, FIELDS, level)
    for _, name in ipairs { "last", "chunk", "prefill" } do
        if options[name] then args.integer("lab:decode", name, options[name], 1, nil, level) end
    end
    local text = text_of(lab)
    for i = 1, text:n_sequences() do
        if text:sequence(i - 1).real > 0 then return options end
    end
    error("lab:decode: the stream has no real tokens", level)
end

--- Collective. See lab:decode.
-- @tparam table lab
-- @tparam table options of M.check, the same on all ranks
-- @treturn table metrics
-- @treturn {number,...} milliseconds of each decoding step
-- @treturn ?table trace, as cplab.metrics.wrong_rows takes it
function M.run(lab, options, level)
    level = (level or 1) + 1
    local feeds, real = plan(text_of(lab), options)
    local decoder = decoders.new(lab, { capacity = options.capacity or real }, level,
        not options.capacity and shares_of(lab, feeds) or nil)
    collectgarbage() -- the peak is of this, not of stacks that are gone
    C.cpl_memory_reset_peak()
    local traced = options.trace or lab.options.trace_tokens or false
    decoder:set_trace(traced)
    local run = feed_all(lab, options, decoder, feeds)
    local result, samples = result_of(lab, decoder, run, feeds)
    return result, samples, traced and run.trace or nil
end

return M
