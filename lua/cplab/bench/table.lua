--- How rows of `bench convert` look: a line of columns for a reader, or one JSON object for a
-- program. (The number of rows has no column: it is bytes / row B.)
-- @classmod cplab.bench.table
local columns = require "cplab.bench.columns"
local json = require "cplab.json"

local fixed, text = columns.fixed, columns.text

local Table = {}
Table.__index = Table

local M = {}

local one_digit, two_digits = fixed "%.1f", fixed "%.2f"
local whole = fixed "%.0f"

-- Microseconds in seven characters up to ten seconds: a tenth says nothing from 0.1 s on.
local function time(row, name)
    return (row[name] and row[name] >= 99999.95 and whole or one_digit)(row, name)
end

-- A row that could not be made has only the size that it was to have.
local function bytes(row)
    return tostring(row.size_bytes or row.asked_bytes)
end

local function say_sequences(n)
    return n == 1 and "1 sequence" or ("%s sequences"):format(n)
end

local function say_place(place)
    return place == "in" and "in place" or ("%s of place"):format(place)
end

local function say_launch(launch)
    return launch == "graph" and "replayed from a graph" or "launched one by one"
end

local NAMES = {
    { "size_bytes", "bytes", bytes },
    { "pack", "pack", text, left = true, line = "data", said = "pack %s" },
    { "sequences", "seqs", text, line = "data", said = say_sequences },
    { "from", "from", text, left = true, line = "exchange", said = "from %s" },
    { "to", "to", text, left = true, line = "exchange", said = "to %s" },
    { "method", "method", text, left = true, line = "exchange", said = "by %s" },
    { "dtype", "dtype", text, left = true, line = "data", said = "%s" },
    { "row_bytes", "row B", text, line = "data", said = "rows of %s bytes" },
    { "pass", "pass", text, left = true, line = "exchange", said = "%s" },
    { "place", "place", text, left = true, line = "exchange", said = say_place },
    { "launch", "launch", text, left = true, line = "exchange", said = say_launch },
}

local FIGURES = {
    { "min_us", "min us", time, 7 }, { "median_us", "median us", time, 9 },
    { "p99_us", "p99 us", time, 7 }, { "algbw", "algbw", two_digits, 6 },
    { "busbw", "busbw", two_digits, 6 }, { "copy_us", "copy us", time, 7 },
    { "copy_percent", "%copy", one_digit, 6 },
    { "host_us", "host us", time, 7, only = "device" },
    { "plain_us", "plain us", time, 8, only = "mpi" },
    { "plain_percent", "%plain", one_digit, 6, only = "mpi" },
    { "wrong_rows", "#wrong", text, 6 },
}

--- A table that is to hold these rows.
-- @tparam {table,...} rows those of `cplab.bench.figures`; what they measure need not be known yet
-- @tparam string transport which decides whether there is a plain exchange to compare with
-- @tparam boolean on_device whether rows are on devices, which hosts ask to move them
function M.new(rows, transport, on_device)
    local figures = {}
    for _, column in ipairs(FIGURES) do
        if column.only == nil or column.only == (on_device and "device" or transport) then
            figures[#figures + 1] = column
        end
    end
    return setmetatable({ shown = columns.new(NAMES, figures, rows) }, Table)
end

--- What is the same in all rows: lines to stand before the table.
function Table:preface()
    return self.shown:preface { "data", "exchange" }
end

--- The head of the table.
function Table:head()
    return self.shown:head()
end

-- What stands behind the columns.
local function note(row)
    if row.reason then return ("  %s: %s"):format(row.status, row.reason) end
    local less, shown = row.asked_bytes - row.size_bytes, ""
    if row.method_used ~= row.method then shown = ("  (by %s)"):format(row.method_used) end
    if less == 0 then return shown end
    return shown .. ("  (%d bytes left out)"):format(less)
end

--- A row. Behind it stands what of the size was left out; a row without times has no more than its
-- name and the reason.
function Table:line(row)
    return self.shown:line(row) .. note(row)
end

local ORDER = { "schema", "status", "reason", "asked_bytes", "size_bytes", "rows", "sequences",
    "pack", "transport", "ranks", "cp", "tp", "from", "to", "method", "method_used", "dtype",
    "row_bytes", "pass", "place", "launch", "wrong_rows", "min_us", "median_us", "p99_us", "algbw",
    "busbw", "copy_us", "copy_percent", "host_us", "plain_us", "plain_percent" }

--- A row as one line of JSON.
function M.json(row)
    return json.encode(row, ORDER)
end

return M
