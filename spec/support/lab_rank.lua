--- Runs on a rank: a lab on a stream and a model given as plain tables.
-- The payload: stream { lengths, real, tokens } or { seqlen, batch, tokens }, or streams, a list of
-- which step i takes the one at i mod n; model { pattern and layers, or list, ... } or { preset,
-- fields }, cp, tp (1), options of the lab, and calls { { method, argument, ... }, ... } on it. The
-- call "convert_and_gather" moves rows that hold their own position and brings them back together,
-- "convert_and_gather_batch" those of a batch of columns; "gather_columns_as_positions" takes rows
-- that do not fit; "token_losses" runs a step and gathers the loss of each token; "gradients" runs
-- a step, "step_by_rank" another one on each rank; "feed" drives a decoder by hand, "generate" lets
-- it choose tokens, "feed_by_rank" gives each rank others; "plan_by_rank" plans from other
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

-- Feeds one after the other: a list of the last logits after each, as one list; and, of the last,
-- how many rows the ranks have, and whether the logits say that they are in the caller's layout.
-- A feed "clear" forgets all.
function own.feed(lab, options, feeds)
    local C = require("clib").C
    local decoder, lists, n_rows, is_marked = lab:decoder(options), {}, 0, true
    for i, tokens in ipairs(feeds) do
        if tokens == "clear" then
            decoder:clear()
        else
            local logits, layout = decoder:feed(tokens)
            n_rows = lab:gather(logits, layout):shape()[1]
            is_marked = decoder.last.stack.logits.layout == C.cpl_layout_digest(layout._ptr)
            lists[i] = decoder:last_logits():totable()
        end
    end
    return { lists = lists, n_rows = n_rows, is_marked = is_marked, seen = decoder.seen }
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
