--- Runs on a rank: a lab on a stream and a model given as plain tables.
-- The payload: stream { lengths, real, tokens } or { seqlen }, or streams, a list of which step i
-- takes the one at i mod n; model { pattern and layers, or list, ... } or { preset, fields },
-- cp, tp (1), options of the lab, and calls { { method, argument, ... }, ... } on it. The call
-- "convert_and_gather" moves rows that hold their own position and brings them back together;
-- "step_by_rank" asks for another step on each rank.
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

function own.step_by_rank(lab)
    return lab:step { optimizer = "sgd", lr = 0.1 + lab.rank }
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
