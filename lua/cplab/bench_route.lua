--- The command `bench route`: what it costs to build one rank's part of a route.
-- Per row a stream of equal sequences; the time is that of making the route and the part of the
-- middle rank, layouts made before. A row is printed only if its check held: the part moves
-- exactly the rows that the rank holds on either side. Times are of this thread's CPU, the median
-- and the least of the repetitions.
-- @module cplab.bench_route
local clib = require "clib"
local json = require "cplab.json"
local layouts = require "cplab.layout"
local streams = require "cplab.stream"

local C, ffi = clib.C, clib.ffi

local M = {}

local PAIRS = { { "zigzag", "contiguous" }, { "contiguous", "mirror" } }
local SEQUENCES = { 1, 64, 1024, 16384 }
local CP = { 8, 64, 256 }

local function stream_of(n_sequences, cp)
    local lengths = {}
    for i = 1, n_sequences do lengths[i] = 2 * cp * (1 + i % 3) end
    return streams.thd { lengths = lengths }
end

local function rows_of(segments, n)
    local rows = 0
    for i = 0, tonumber(n) - 1 do rows = rows + tonumber(segments[i].length) end
    return rows
end

-- One repetition: seconds, segments, and whether the part is whole.
local function build(from, to, rank)
    local out, part = ffi.new "cpl_route *[1]", ffi.new "cpl_route_part"
    local start = C.cpl_thread_clock()
    clib.check(C.cpl_route_create(from._ptr, to._ptr, out))
    clib.check(C.cpl_route_rank(out[0], rank, part))
    local seconds = C.cpl_thread_clock() - start
    local whole = rows_of(part.sends, part.n_sends) == from:n_local(rank)
        and rows_of(part.receives, part.n_receives) == to:n_local(rank)
    local segments = tonumber(part.n_sends + part.n_receives)
    C.cpl_route_destroy(out[0])
    return seconds, segments, whole
end

local function measure(from, to, repetitions)
    local rank, times = math.floor(from:n_ranks() / 2), {}
    local segments, whole
    for i = 1, repetitions do
        times[i], segments, whole = build(from, to, rank)
        if not whole then return nil end
    end
    table.sort(times)
    return { median_ms = times[math.ceil(repetitions / 2)] * 1e3, min_ms = times[1] * 1e3,
        segments = segments }
end

local function row_of(pair, n_sequences, cp, repetitions)
    local stream = stream_of(n_sequences, cp)
    local from = layouts.create(pair[1], stream, { cp = cp })
    local to = layouts.create(pair[2], stream, { cp = cp })
    local row = measure(from, to, repetitions)
    if not row then return nil end
    row.from, row.to, row.sequences, row.cp = pair[1], pair[2], n_sequences, cp
    row.ns_per_segment = row.median_ms * 1e6 / row.segments
    return row
end

local HEADER = "from        to          sequences    cp  segments  median ms     min ms  ns/segment"
local FORMAT = "%-11s %-11s %9d %5d %9d %10.4f %10.4f %11.1f"

local function show(row, as_json)
    if as_json then
        return json.encode(row, { "from", "to", "sequences", "cp", "segments" })
    end
    return FORMAT:format(row.from, row.to, row.sequences, row.cp, row.segments, row.median_ms,
        row.min_ms, row.ns_per_segment)
end

--- Carries the command out.
-- @tparam table arguments json, iters (repetitions, 11)
-- @treturn number exit status: 1 where a check failed
function M.run(arguments)
    if not arguments.json then io.stdout:write(HEADER, "\n") end
    for _, pair in ipairs(PAIRS) do
        for _, n_sequences in ipairs(SEQUENCES) do
            for _, cp in ipairs(CP) do
                local row = row_of(pair, n_sequences, cp, arguments.iters or 11)
                if not row then
                    return 1, ("bench route: %s -> %s, %d sequences, cp %d: the part does not "
                        .. "move the rows that the rank holds"):format(pair[1], pair[2],
                        n_sequences, cp)
                end
                io.stdout:write(show(row, arguments.json), "\n")
            end
        end
    end
    return 0
end

return M
