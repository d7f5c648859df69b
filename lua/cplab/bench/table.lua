--- How rows look: a line of columns for a reader, or one JSON object for a program. What is the
-- same in all rows stands before the table, once; what names a row has a column only where it
-- varies. (The number of rows has none: it is bytes / row B.)
-- @classmod cplab.bench.table
local json = require "cplab.json"

local Table = {}
Table.__index = Table

local M = {}

local function text(row, name)
    return tostring(row[name] or "-")
end

local function fixed(format)
    return function(row, name)
        if row.status == "wrong" then return "wrong" end
        return row[name] and format:format(row[name]) or "-"
    end
end

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

-- What names a row: field, head, how it is shown; `left`: words, flush left; `line`: of the lines
-- before the table the one that says it where it is the same in all rows, as `said`.
local NAMES = {
    { "size_bytes", "bytes", bytes },
    { "pack", "pack", text, left = true, line = "data", said = "pack %s" },
    { "sequences", "seqs", text, line = "data", said = "%s sequences" },
    { "from", "from", text, left = true, line = "exchange", said = "from %s" },
    { "to", "to", text, left = true, line = "exchange", said = "to %s" },
    { "method", "method", text, left = true, line = "exchange", said = "by %s" },
    { "dtype", "dtype", text, left = true, line = "data", said = "%s" },
    { "row_bytes", "row B", text, line = "data", said = "rows of %s bytes" },
    { "pass", "pass", text, left = true, line = "exchange", said = "%s" },
    { "place", "place", text, left = true, line = "exchange", said = "%s of place" },
}

-- What is measured: field, head, how it is shown, width.
local FIGURES = {
    { "min_us", "min us", time, 7 }, { "median_us", "median us", time, 9 },
    { "p99_us", "p99 us", time, 7 }, { "algbw", "algbw", two_digits, 6 },
    { "busbw", "busbw", two_digits, 6 }, { "copy_us", "copy us", time, 7 },
    { "copy_percent", "%copy", one_digit, 6 },
    { "plain_us", "plain us", time, 8, only = "mpi" },
    { "plain_percent", "%plain", one_digit, 6, only = "mpi" },
    { "wrong_rows", "#wrong", text, 6 },
}

-- The widest entry of a column, and whether all are the same.
local function survey(rows, column)
    local width, same = #column[2], true
    for _, row in ipairs(rows) do
        width = math.max(width, #column[3](row, column[1]))
        same = same and row[column[1]] == rows[1][column[1]]
    end
    return width, same
end

--- A table that is to hold these rows.
-- @tparam {table,...} rows those of `cplab.bench.figures`; what they measure need not be known yet
-- @tparam string transport which decides whether there is a plain exchange to compare with
function M.new(rows, transport)
    local self = setmetatable({ columns = {}, n_names = 0, common = {} }, Table)
    for _, column in ipairs(NAMES) do
        local width, same = survey(rows, column)
        if column.line and same then
            self.common[column[1]] = rows[1][column[1]]
        else
            self.n_names = self.n_names + 1
            if column.left then width = -width end
            self.columns[self.n_names] = { column = column, width = width }
        end
    end
    for _, column in ipairs(FIGURES) do
        if column.only == nil or column.only == transport then
            self.columns[#self.columns + 1] = { column = column, width = column[4] }
        end
    end
    return self
end

-- A line of the first n columns.
local function line(self, n, cell)
    local parts = {}
    for i = 1, n do
        local entry = self.columns[i]
        parts[i] = ("%" .. entry.width .. "s"):format(cell(entry.column))
    end
    return table.concat(parts, "  ")
end

local function say(column, value)
    if column[1] == "place" and value == "in" then return "in place" end
    if column[1] == "sequences" and value == 1 then return "1 sequence" end
    return column.said:format(value)
end

--- What is the same in all rows: lines to stand before the table.
function Table:preface()
    local lines = {}
    for _, name in ipairs { "data", "exchange" } do
        local parts = {}
        for _, column in ipairs(NAMES) do
            local value = self.common[column[1]]
            if column.line == name and value ~= nil then parts[#parts + 1] = say(column, value) end
        end
        if #parts > 0 then lines[#lines + 1] = "# " .. name .. ": " .. table.concat(parts, ", ") end
    end
    return lines
end

--- The head of the table.
function Table:head()
    return line(self, #self.columns, function(column) return column[2] end)
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
    local n = row.reason and self.n_names or #self.columns
    return line(self, n, function(column) return column[3](row, column[1]) end) .. note(row)
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
