--- The rows of a bench: the product of what was asked for, each with the stream that it runs on or
-- the reason why there is none.
-- @module cplab.bench.cases
local lengths = require "cplab.bench.lengths"
local layouts = require "cplab.layout"
local streams = require "cplab.stream"

local M = {}

-- An error raised by the library, as the sentence that it is.
local function sentence(message)
    return (tostring(message):gsub("^[^\n]-:%d+: ", ""))
end

--- Both layouts of a case.
-- @treturn Layout from
-- @treturn Layout to
function M.layouts(case)
    local stream = streams.thd { lengths = case.lengths }
    local group = { cp = case.cp, tp = case.tp }
    return layouts.create(case.from, stream, group), layouts.create(case.to, stream, group)
end

--- Why rows cannot change their layout in place: a rank has more of them in one than in the other.
-- @treturn ?string
function M.why_not_in_place(from, to)
    for rank = 0, from:n_ranks() - 1 do
        if from:n_local(rank) ~= to:n_local(rank) then
            return ("not in place: rank %d has %d rows in %s and %d in %s"):format(rank,
                from:n_local(rank), from.kind, to:n_local(rank), to.kind)
        end
    end
end

-- Whether the layouts can be made, and how many rows a rank has.
local function check(case)
    local ok, from, to = pcall(M.layouts, case)
    if not ok then return sentence(from) end
    case.rows = 0
    for rank = 0, from:n_ranks() - 1 do
        case.rows = math.max(case.rows, from:n_local(rank), to:n_local(rank))
    end
    case.bytes = case.rows * case.row_bytes
    return case.in_place and M.why_not_in_place(from, to) or nil
end

local function settle(case, kind, unit)
    local n_ranks = case.cp * case.tp
    local tokens = math.floor(case.asked_bytes / case.row_bytes) * n_ranks
    case.lengths, case.reason = lengths.make(kind, tokens, unit, case.seed)
    case.sequences = case.lengths and #case.lengths or kind.sequences
    case.pack = kind.pack
    case.reason = case.reason or check(case)
    return case
end

-- Calls f with every choice of one entry from each list, the last list turning fastest.
local function each_choice(lists, f, chosen)
    chosen = chosen or {}
    if #chosen == #lists then return f(unpack(chosen)) end
    for _, entry in ipairs(lists[#chosen + 1]) do
        chosen[#chosen + 1] = entry
        each_choice(lists, f, chosen)
        chosen[#chosen] = nil
    end
end

--- All rows in the order in which they run.
-- @tparam table options of `cplab.bench.options`
-- @treturn {table,...} cases: asked_bytes, bytes, rows (of a rank), lengths, sequences, pack, from,
-- to, method, dtype, row_bytes, cp, tp, in_place, pass, launch (on devices), iters, warmup, seed;
-- `reason` where it cannot be made
function M.make(options)
    local cases, kinds = {}, {}
    for _, list in ipairs { options.from, options.to } do
        for _, kind in ipairs(list) do kinds[#kinds + 1] = kind end
    end
    local unit = lengths.unit(options.cp, options.tp, kinds)
    local lists = { options.sequences, options.dtypes, options.sizes, options.from, options.to,
        options.methods, options.launches }
    each_choice(lists, function(kind, dtype, bytes, from, to, method, launch)
        cases[#cases + 1] = settle({
            asked_bytes = bytes, from = from, to = to, method = method, dtype = dtype,
            row_bytes = options.row_bytes[dtype], cp = options.cp, tp = options.tp,
            in_place = options.in_place, pass = options.pass,
            launch = options.on_device and launch or nil, iters = options.iters,
            warmup = options.warmup, seed = options.seed, fault = options.fault,
        }, kind, unit)
    end)
    return cases
end

return M
