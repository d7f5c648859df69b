--- A line of fixed columns for a reader. A column is { field, head, width (< 0: flush left), how it
-- is shown: a function of row and field }.
-- @module cplab.bench.columns
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

--- The columns that `takes` says yes to, up to the one called `last` or all.
-- @tparam table columns
-- @tparam function cell the text of a column
-- @tparam ?function takes
-- @tparam ?string last
function M.line(columns, cell, takes, last)
    local parts = {}
    for _, column in ipairs(columns) do
        if not takes or takes(column) then
            parts[#parts + 1] = ("%" .. column[3] .. "s"):format(cell(column))
        end
        if column[1] == last then break end
    end
    return (table.concat(parts, "  "):gsub(" +$", ""))
end

--- The head of a table.
function M.head(columns, takes)
    return M.line(columns, function(column) return column[2] end, takes)
end

--- A row of it.
function M.row(columns, row, takes, last)
    return M.line(columns, function(column) return column[4](row, column[1]) end, takes, last)
end

return M
