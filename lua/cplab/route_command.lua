--- The command `route`: who holds what in two layouts of a stream, and what moves between them.
-- Pictures for a reader, JSON for a program, and the send matrix in the text form that the
-- alltoallv benchmark of nccl-tests reads (NCCL_TESTS_ALLTOALLV_MATRIX_FILE; src/alltoallv.cu of
-- NVIDIA/nccl-tests: one line a sender, bytes separated by blanks; it rounds each down to 16).
-- @module cplab.route_command
local draw = require "cplab.draw"
local json = require "cplab.json"
local layouts = require "cplab.layout"
local routes = require "cplab.route"
local streams = require "cplab.stream"

local M = {}

local MAX_DRAWN_RANKS = 32

-- ---- input -------------------------------------------------------------------

-- Numbers separated by commas, blanks or lines.
local function numbers(text, what)
    local list = {}
    for word in text:gmatch "[^%s,]+" do
        local value = tonumber(word)
        if not value then
            return nil, ("route: %s: '%s' is no number"):format(what, word)
        end
        list[#list + 1] = value
    end
    if #list == 0 then return nil, ("route: %s: there are no numbers"):format(what) end
    return list
end

-- "16,24", "@FILE", or "-" for standard input.
local function read_list(word, what)
    local path = word:match "^@(.+)$"
    if word ~= "-" and not path then return numbers(word, what) end
    local file, message = io.stdin, "standard input"
    if path then file, message = io.open(path, "r") end
    if not file then return nil, ("route: %s: cannot read %s"):format(what, message) end
    local text, problem = file:read "*a"
    if path then file:close() end
    if not text then return nil, ("route: %s: cannot read %s: %s"):format(what, word, problem) end
    return numbers(text, what)
end

-- An error raised by the library, as the sentence that it is.
local function sentence(message)
    return (tostring(message):gsub("^[^\n]-:%d+: ", ""))
end

local function make(arguments)
    local lengths, message = read_list(arguments.lengths, "--lengths")
    if not lengths then return nil, message end
    local real
    if arguments.real then
        real, message = read_list(arguments.real, "--real")
        if not real then return nil, message end
    end
    local ok, result = pcall(function()
        local stream = streams.thd { lengths = lengths, real = real }
        local group = { cp = arguments.cp, tp = arguments.tp or 1 }
        local from = layouts.create(arguments.from, stream, group)
        return routes(from, layouts.create(arguments.to, stream, group))
    end)
    if not ok then return nil, sentence(result) end
    return result
end

-- ---- output ------------------------------------------------------------------

local function send_matrix(route)
    local matrix = {}
    for rank = 0, route:n_ranks() - 1 do
        matrix[rank + 1] = route:split_sizes(rank)
    end
    return matrix
end

local function picture(route, matrix, colour)
    local from, to, stats = route:from(), route:to(), route:stats()
    local stream = from:stream()
    local options = { width = 72, colour = colour }
    local lines = {
        stream:describe() .. (", a cell is %d position%s"):format(draw.per_cell(stream, options),
            draw.per_cell(stream, options) == 1 and "" or "s"),
        ("%-12s%s"):format("sequences", draw.sequences(stream, options)),
        ("%-12s%s"):format(from.kind, draw.holders(from, options)),
        ("%-12s%s"):format(to.kind, draw.holders(to, options)),
        "",
    }
    if route:n_ranks() <= MAX_DRAWN_RANKS then
        for _, line in ipairs(draw.matrix(matrix, colour)) do lines[#lines + 1] = line end
    else
        lines[#lines + 1] = ("(the matrix of %d ranks is not drawn; --matrix writes it)"):format(
            route:n_ranks())
    end
    lines[#lines + 1] = ""
    lines[#lines + 1] = ("%d of %d rows change rank in %d messages; the busiest rank moves %d; "
        .. "%d segments; one rank's part took %.0f us"):format(stats.moved_tokens,
        stream:n_positions(), stats.messages, stats.busiest_tokens, stats.segments, stats.build_us)
    return lines
end

local function as_json(route, matrix)
    local ranks = {}
    for rank = 0, route:n_ranks() - 1 do
        ranks[rank + 1] = {
            rank = rank, from_runs = route:from():runs(rank), to_runs = route:to():runs(rank),
            sends = route:sends(rank), receives = route:receives(rank),
        }
    end
    local order = { "schema", "from", "to", "cp", "tp", "n_positions", "stats", "matrix", "ranks" }
    return json.encode({
        schema = "cplab.route/1", from = route:from().kind, to = route:to().kind,
        cp = route:from():cp(), tp = route:from():tp(),
        n_positions = route:from():stream():n_positions(), stats = route:stats(),
        matrix = matrix, ranks = ranks,
    }, order)
end

local function matrix_text(matrix, row_bytes)
    local lines = {}
    for i, row in ipairs(matrix) do
        local cells = {}
        for j, rows in ipairs(row) do cells[j] = ("%.0f"):format(rows * row_bytes) end
        lines[i] = table.concat(cells, " ")
    end
    return table.concat(lines, "\n") .. "\n"
end

local function write(path, text)
    if path == "-" then
        io.stdout:write(text)
        return true
    end
    local file, message = io.open(path, "w")
    if not file then return nil, ("route: --matrix: cannot write %s"):format(message) end
    local ok, problem = file:write(text)
    ok = file:close() and ok
    return ok, ("route: --matrix: cannot write %s: %s"):format(path, tostring(problem))
end

--- Carries the command out.
-- @tparam table arguments cp, tp, lengths, real, from, to, json, matrix, row_bytes, colour
-- @treturn number exit status
-- @treturn ?string what was wrong
function M.run(arguments)
    local route, message = make(arguments)
    if not route then return 2, message end
    local matrix = send_matrix(route)
    if arguments.matrix then
        local ok, problem = write(arguments.matrix, matrix_text(matrix, arguments.row_bytes))
        if not ok then return 2, problem end
        if arguments.matrix == "-" then return 0 end
    end
    if arguments.json then
        io.stdout:write(as_json(route, matrix), "\n")
    else
        io.stdout:write(table.concat(picture(route, matrix, arguments.colour), "\n"), "\n")
    end
    return 0
end

return M
