--- A table of lines for a reader. What is the same in all rows stands before the table, once; what
-- names a row has a column only where it varies; then come the figures, in columns of fixed width.
--
-- A name is { field, head, how it is shown (a function of row and field), left = true: words, flush
-- left, line = the line before the table that says it where it is common, said = how it says it };
-- a figure is { field, head, how it is shown, width }.
-- @classmod cplab.bench.columns
local Table = {}
Table.__index = Table

local M = {}

--- Shows a field as it is; "-" where there is none.
function M.text(row, name)
    return tostring(row[name] or "-")
end

--- Shows a number by a format; "wrong" where the row is.
function M.fixed(format)
    return function(row, name)
        if row.status == "wrong" then return "wrong" end
        return row[name] and format:format(row[name]) or "-"
    end
end

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
-- @tparam {table,...} names
-- @tparam {table,...} figures
-- @tparam {table,...} rows what they measure need not be known yet
function M.new(names, figures, rows)
    local self = setmetatable({ names = names, columns = {}, n_names = 0, common = {} }, Table)
    for _, column in ipairs(names) do
        local width, same = survey(rows, column)
        if column.line and same then
            self.common[column[1]] = rows[1][column[1]]
        else
            self.n_names = self.n_names + 1
            if column.left then width = -width end
            self.columns[self.n_names] = { column = column, width = width }
        end
    end
    for _, column in ipairs(figures) do
        self.columns[#self.columns + 1] = { column = column, width = column[4] }
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
    if type(column.said) == "function" then return column.said(value) end
    return column.said:format(value)
end

--- What is the same in all rows: a line for each of these names of lines.
function Table:preface(lines)
    local list = {}
    for _, name in ipairs(lines) do
        local parts = {}
        for _, column in ipairs(self.names) do
            local value = self.common[column[1]]
            if column.line == name and value ~= nil then parts[#parts + 1] = say(column, value) end
        end
        if #parts > 0 then list[#list + 1] = "# " .. name .. ": " .. table.concat(parts, ", ") end
    end
    return list
end

--- The head of the table.
function Table:head()
    return line(self, #self.columns, function(column) return column[2] end)
end

--- A row; one with a reason has no more than its name.
function Table:line(row)
    local n = row.reason and self.n_names or #self.columns
    return line(self, n, function(column) return column[3](row, column[1]) end)
end

return M
