--- Runs on a rank: a lab on a stream and a model given as plain tables.
-- The payload: stream { lengths, real, tokens } or { seqlen, batch, tokens }, or streams, a list of
-- which step i takes the one at i mod n; model { pattern and layers, or list, ... } or { preset,
-- fields }, cp, tp (1), options of the lab, and calls { { method, argument, ... }, ... } on it. The
-- call "convert_and_gather" moves rows that hold their own position and brings them back together,
-- "convert_and_gather_batch" those of a batch of columns; "gather_columns_as_positions" takes rows
-- that do not fit; "token_losses" runs a step and gathers the loss of each token; "gradients" runs
-- a step, "step_by_rank" another one on each rank, "with_rates" calls a method with a learning rate
-- that is a function of the step, and a list what it returns; "feed" drives a decoder by hand,
-- "generate" lets it choose tokens, "feed_by_rank" gives each rank others, "clear_by_rank" what to
-- go on from; "feed_in_many_ways" makes it forget stacks, "capture_decoding" tries to capture a
-- step of it; "run_out_of_turn" and "decode_by_rank" misuse it; "plan_by_rank" plans from other
-- candidates on each rank, "assignments" says what runs where in each step.
local buffer = require "string.buffer"

local function make_stream(t)
    local stream = require "cplab.stream"
    return t.seqlen and stream.sbhd(t) or stream.thd(t)
end

local function make_model(t)
    if t.preset then
        return require("cplab.model")[t.preset](t.fields)
    end
    local fields = {}
    for name, value in pairs(t) do
        fields[name] = value
    end
    local schedule = require "cplab.schedule"
    fields.schedule = t.list and schedule.list(t.list)
        or schedule.pattern(t.pattern, t.layers or #t.pattern)
    fields.pattern, fields.layers, fields.list = nil, nil, nil
    return require "cplab.model" (fields)
end

local own = {}

function own.convert_and_gather(lab, from, to, options)
    local cplab = require "cplab"
    local layout = cplab.layout[from](lab.stream, { cp = lab.cp })
    local values = {}
    for slot, position in ipairs(layout:positions(lab.rank)) do
        values[2 * slot - 1], values[2 * slot] = position, -position
    end
    local rows = cplab.tensor.from(values, { #values / 2, 2 }, "f64")
    return lab:gather(lab:convert(rows, from, to, options), to):totable()
end

-- Rows that hold their position and column, of positions ([rows, batch, 2]) and of columns; `live`
-- is what comes together where no layout is named.
function own.convert_and_gather_batch(lab, from, to, batch)
    local cplab = require "cplab"
    local layout = cplab.layout
    local a, b = layout[from](lab.stream, { cp = lab.cp }), layout[to](lab.stream, { cp = lab.cp })
    local function rows(of, each)
        local values = {}
        for _, position in ipairs(of:positions(lab.rank)) do each(values, position) end
        return values
    end
    local n, seqlen = a:n_local(lab.rank), lab.stream:n_positions()
    local function of_positions(of)
        return cplab.tensor.from(rows(of, function(values, p)
            for c = 0, batch - 1 do values[#values + 1], values[#values + 2] = p, c end
        end), { n, batch, 2 }, "f64")
    end
    local by_column = cplab.tensor.from(rows(a:columns(), function(values, p)
        values[#values + 1], values[#values + 2] = p % seqlen, math.floor(p / seqlen)
    end), { n * batch, 2 }, "f64")
    return {
        positions = lab:gather(lab:convert(of_positions(a), from, to), to):totable(),
        columns = lab:gather(lab:convert(by_column, a:columns(), b:columns()),
            b:columns()):totable(),
        live = lab:gather(of_positions(layout[lab.model.policy.live](lab.stream,
            { cp = lab.cp }))):totable(),
    }
end

-- The loss and every gradient of a step: { { name, number, ... }, ... }.
function own.gradients(lab)
    local ffi, clib = require "ffi", require "clib"
    local m = lab:step { backward = true }
    local lists = { { "loss", m.loss } }
    for _, entry in ipairs(lab.stack:gradients()) do
        local list, data = { entry.name }, ffi.cast("double *", entry.tensor.data)
        for i = 1, tonumber(clib.C.cpl_tensor_n_elements(entry.tensor)) do
            list[i + 1] = data[i - 1]
        end
        lists[#lists + 1] = list
    end
    return lists
end

-- After a step: the loss of each token in global order, the mean, and this rank's rows.
function own.token_losses(lab)
    local m = lab:step {}
    local losses, layout = lab:token_losses()
    return { losses = lab:gather(losses, layout):totable(), loss = m.loss, mine = losses:totable(),
        positions = layout:positions(lab.rank) }
end

function own.token_losses_before_a_step(lab)
    return lab:token_losses()
end

function own.gather_columns_as_positions(lab)
    local rows = require("cplab").tensor.zeros({ 8, 2 }, "f64")
    return lab:gather(rows):totable()
end

-- Whether what feed returned has the last logits of the sequences in their places.
local function has_last(lab, logits, layout, last)
    local all, vocab, stream = lab:gather(logits, layout):totable(), lab.model.vocab,
        layout:stream()
    for i = 0, stream:n_sequences() - 1 do
        local sequence = stream:sequence(i)
        local row = sequence.start + sequence.real - 1
        for token = 1, sequence.real > 0 and vocab or 0 do
            if all[row * vocab + token] ~= last[i * vocab + token] then return false end
        end
    end
    return true
end

-- Feeds one after the other: a list of the last logits after each, as one list; whether they are
-- those that feed returned; and, of the last, how many rows the ranks have, and whether the logits
-- say that they are in the caller's layout. A feed "clear" forgets all.
function own.feed(lab, options, feeds)
    local C = require("clib").C
    local decoder, lists, n_rows, is_marked, is_same = lab:decoder(options), {}, 0, true, true
    for i, tokens in ipairs(feeds) do
        if tokens == "clear" then
            decoder:clear()
            is_same = is_same and not pcall(decoder.last_logits, decoder)
        else
            local logits, layout = decoder:feed(tokens)
            n_rows = lab:gather(logits, layout):shape()[1]
            is_marked = decoder.last.stack.logits.layout == C.cpl_layout_digest(layout._ptr)
            lists[i] = decoder:last_logits():totable()
            is_same = is_same and has_last(lab, logits, layout, lists[i])
        end
    end
    return { lists = lists, n_rows = n_rows, is_marked = is_marked, is_same = is_same,
        seen = decoder.seen }
end

function own.clear_by_rank(lab, what)
    local decoder = lab:decoder { capacity = 4 }
    decoder:feed { { 1 } }
    if lab.rank == 0 and what == "clear" then decoder:clear() end
    decoder:set_trace(lab.rank == 0 and what == "trace")
    decoder:feed { { 2 } }
end

-- What the second half of a feed says where it is asked for at a wrong time.
function own.run_out_of_turn(lab)
    local decoder, tokens = lab:decoder { capacity = 6 }, { { 1, 2 } }
    local refusals = {}
    local function refused(made)
        local ok, text = pcall(decoder.run, decoder, made)
        refusals[#refusals + 1] = not ok and text:gsub("^[^:]+:%d+: ", "") or "nothing"
    end
    refused(nil)
    local first = decoder:prepare(tokens)
    decoder:run(first)
    refused(first) -- twice
    local second, third = decoder:prepare(tokens), decoder:prepare { { 3 } }
    refused(second) -- not the last
    decoder:clear()
    refused(third) -- forgotten
    decoder:feed { { 1, 2, 3, 4, 5, 6 } }
    return { refusals = refusals, seen = decoder.seen[1] }
end

-- What is said where a step of decoding is captured, by the decoder and by what it runs; and the
-- logits of that step, taken then, and taken by a decoder that nobody tried to capture.
function own.capture_decoding(lab, prompts, tokens)
    local capture = require "cplab.capture"
    local function refused(f)
        local ok, text = pcall(capture.of, lab.comm, f)
        return not ok and tostring(text) or "nothing"
    end
    local function logits(decoder, try)
        decoder:feed(prompts)
        decoder:feed(tokens) -- what runs twice takes nothing
        local made = decoder:prepare(tokens)
        if try then try(decoder, made) end
        decoder:run(made)
        return decoder:last_logits():totable()
    end
    local answer = {}
    answer.expected = logits(lab:decoder { capacity = 8 })
    answer.logits = logits(lab:decoder { capacity = 8 }, function(decoder, made)
        answer.run = refused(function() decoder:run(made) end)
        answer.forward = refused(function() made.stack:forward() end)
    end)
    return answer
end

-- Feeds sequences in so many ways that not all stacks live on; the last logits of the first way
-- again, after all others and after the other ways of n, and how many stacks there are.
function own.feed_in_many_ways(lab, n)
    local decoder = lab:decoder { capacity = 2000 }
    local function last(n_tokens)
        local tokens = {}
        for i = 1, n_tokens do tokens[i] = i % lab.model.vocab end
        decoder:clear()
        decoder:feed { tokens }
        return decoder:last_logits():totable()
    end
    local first, most = last(1), 0
    for i = 2, n do
        last(i)
        most = math.max(most, #decoder.stacks)
        last(2) -- used all the time, it lives on
    end
    local built = decoder.routes_built
    last(2)
    local is_kept = decoder.routes_built == built
    return { first = first, again = last(1), most = most, is_kept = is_kept,
        is_made_again = decoder.routes_built > built }
end

-- Each rank asks for another decoding.
function own.decode_by_rank(lab, name, value)
    local options = { last = 2 }
    if lab.rank == 1 then options[name] = value end
    return lab:decode(options)
end

-- The n tokens that each sequence goes on with, each the likeliest.
function own.generate(lab, prompts, n)
    local decoder, texts, vocab = lab:decoder { capacity = 40 }, {}, lab.model.vocab
    local tokens = prompts
    for i = 1, #prompts do texts[i] = {} end
    for step = 1, n do
        decoder:feed(tokens)
        local logits = decoder:last_logits():totable()
        tokens = {}
        for i = 1, #prompts do
            local best = 0
            for token = 1, vocab - 1 do
                local at = (i - 1) * vocab + 1
                if logits[at + token] > logits[at + best] then best = token end
            end
            tokens[i], texts[i][step] = { best }, best
        end
    end
    return texts
end

function own.feed_by_rank(lab)
    return lab:decoder({ capacity = 4 }):feed { { lab.rank } }
end

function own.step_by_rank(lab)
    return lab:step { optimizer = "sgd", lr = 0.1 + lab.rank }
end

function own.with_rates(lab, method, options, rates)
    options.lr = function(step)
        local rate = rates[step + 1]
        return type(rate) == "table" and rate[lab.rank + 1] or rate
    end
    return lab[method](lab, options)
end

function own.plan_by_rank(lab)
    local names = { "contiguous", "mirror", "zigzag" }
    lab.model.auto.layouts = { names[lab.rank % #names + 1] }
    return lab:step()
end

-- Of each step, where streams vary.
function own.assignments(lab, n)
    local texts = {}
    for step = 0, n - 1 do
        local assignment = require("cplab.steps").stack_at(lab, step).assignment
        texts[step + 1] = table.concat(require("cplab.assignment").describe(assignment), "; ")
    end
    return texts
end

return function(comm, payload)
    local job = buffer.decode(payload)
    require("cplab.tensor").live_in(comm)
    local function stream_of_step(_, step)
        return make_stream(job.streams[step % #job.streams + 1])
    end
    local lab = require("cplab.lab").new {
        experiment = {
            stream = job.streams and stream_of_step
                or function() return make_stream(job.stream) end,
            model = function() return make_model(job.model) end,
        },
        case = { cp = job.cp, tp = job.tp }, comm = comm, options = job.options or {},
    }
    local answers = {}
    for i, call in ipairs(job.calls) do
        answers[i] = (own[call[1]] or lab[call[1]])(lab, unpack(call, 2, call.n or 4)) or false
    end
    return buffer.encode { answers = answers, checks = lab.checks, metrics = lab.metrics }
end
