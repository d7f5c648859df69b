--- How rows look: a line of fixed columns for a reader, or one JSON object for a program.
-- @module cplab.bench.table
local columns = require "cplab.bench.columns"
local json = require "cplab.json"

local fixed, text = columns.fixed, columns.text

local M = {}

-- A row that could not be made has only the size that it was to have.
local function bytes(row)
    return tostring(row.size_bytes or row.asked_bytes)
end

local one_digit, two_digits = fixed "%.1f", fixed "%.2f"

-- The columns: field, head, width (< 0: flush left), how it is shown.
local COLUMNS = {
    { "size_bytes", "bytes", 11, bytes }, { "rows", "rows", 9, text },
    { "sequences", "seqs", 6, text }, { "transport", "transport", -9, text },
    { "ranks", "ranks", 5, text }, { "from", "from", -10, text }, { "to", "to", -10, text },
    { "method", "method", -9, text }, { "dtype", "dtype", -5, text },
    { "row_bytes", "row B", 6, text }, { "pass", "pass", -10, text },
    { "place", "place", -5, text },
    { "min_us", "min us", 10, one_digit }, { "median_us", "median us", 10, one_digit },
    { "p99_us", "p99 us", 10, one_digit }, { "algbw", "algbw", 7, two_digits },
    { "busbw", "busbw", 7, two_digits }, { "copy_us", "copy us", 10, one_digit },
    { "copy_percent", "%copy", 6, one_digit },
    { "plain_us", "plain us", 10, one_digit, only = "mpi" },
    { "plain_percent", "%plain", 6, one_digit, only = "mpi" },
    { "wrong_rows", "#wrong", 6, text },
}

-- Which columns a table has.
local function takes(transport)
    return function(column) return column.only == nil or column.only == transport end
end

-- What stands behind the columns.
local function note(row)
    if row.reason then return ("  %s: %s"):format(row.status, row.reason) end
    local less, shown = row.asked_bytes - row.size_bytes, ""
    if row.method_used ~= row.method then shown = ("  (by %s)"):format(row.method_used) end
    if less == 0 then return shown end
    return shown .. ("  (%d bytes of %d do not divide)"):format(less, row.asked_bytes)
end

--- The head of the table.
-- @tparam string transport which decides whether there is a plain exchange to compare with
function M.head(transport)
    return columns.head(COLUMNS, takes(transport))
end

--- A row. Behind it stands why it has no times, or what of the size was left out; a row that was
-- skipped has no more than its name.
function M.line(row, transport)
    local last = row.status == "skipped" and "place" or nil
    return columns.row(COLUMNS, row, takes(transport), last) .. note(row)
end

local ORDER = { "schema", "status", "reason", "asked_bytes", "size_bytes", "rows", "sequences",
    "pack", "transport", "ranks", "cp", "tp", "from", "to", "method", "method_used", "dtype",
    "row_bytes", "pass", "place", "wrong_rows", "min_us", "median_us", "p99_us", "algbw", "busbw",
    "copy_us", "copy_percent", "plain_us", "plain_percent" }

--- A row as one line of JSON.
function M.json(row)
    return json.encode(row, ORDER)
end

return M
