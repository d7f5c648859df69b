--- Checks of arguments that blame the caller.
-- A wrong name gets the nearest right one, a wrong value is shown. Every `level` is as in
-- error(): 1 is the function that calls the check, 2 (the default) its caller; from there on the
-- innermost line that is not ours is blamed. A tail call leaves no level behind, so functions that
-- hand a level on write `return (f(x, level + 1))`.
--
-- Types are "any", "boolean", "string", "number" (not NaN), "integer", "table", "list" (a table
-- with the keys 1 .. n alone), "function"; with alternatives "string|table"; with a "?" at the end
-- for what may be nil.
-- @module cplab.check_args
-- @usage args.fields("model", t, { hidden = "integer", seed = "integer?" }, 2)
local blame = require "blame"

local M = {}

-- Integers beyond this are not exact in a Lua number.
local MAX_INTEGER = 2 ^ 53

--- Whether a value is a whole number that a Lua number holds exactly.
function M.is_integer(value)
    return type(value) == "number" and value == math.floor(value)
        and math.abs(value) <= MAX_INTEGER
end

--- Whether a value is a table with the keys 1 .. n and no others.
function M.is_list(value)
    if type(value) ~= "table" then return false end
    local n = 0
    for _ in pairs(value) do n = n + 1 end
    for i = 1, n do
        if value[i] == nil then return false end
    end
    return true
end

local matches = {
    any = function() return true end,
    number = function(value) return type(value) == "number" and value == value end,
    integer = M.is_integer,
    list = M.is_list,
}
for _, name in ipairs { "boolean", "string", "table", "function" } do
    matches[name] = function(value) return type(value) == name end
end

--- The names of a table's fields, in alphabetical order.
function M.sorted_names(t)
    local names = {}
    for name in pairs(t) do names[#names + 1] = name end
    table.sort(names)
    return names
end

--- A value as a message shows it: short, with strings in quotes.
function M.show(value)
    if type(value) == "string" then return ('"%s"'):format(value) end
    if type(value) == "number" then return ("%.17g"):format(value) end
    if type(value) == "boolean" or value == nil then return tostring(value) end
    return "a " .. type(value)
end

-- Levenshtein distance; a swap of neighbours counts as one step.
local function distance(a, b)
    local rows = { [-1] = {}, [0] = {} }
    for j = 0, #b do rows[0][j] = j end
    for i = 1, #a do
        local row, above, top = { [0] = i }, rows[i - 1], rows[i - 2]
        for j = 1, #b do
            local x, y = a:byte(i), b:byte(j)
            row[j] = math.min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x == y and 0 or 1))
            if i > 1 and j > 1 and x == b:byte(j - 1) and y == a:byte(i - 1) then
                row[j] = math.min(row[j], top[j - 2] + 1)
            end
        end
        rows[i] = row
    end
    return rows[#a][#b]
end

--- The name of a list that is nearest to what was written; nil if none is near.
-- Near means one step in three letters, or that one is the beginning of the other.
-- @param name what was written
-- @tparam table list names; of equally near ones the first
-- @treturn ?string
function M.nearest(name, list)
    if type(name) ~= "string" or name == "" then return nil end
    local best, best_distance
    for _, known in ipairs(list) do
        local steps = distance(name:lower(), known:lower())
        local shorter = math.min(#name, #known)
        if shorter >= 3 and name:sub(1, shorter) == known:sub(1, shorter) then
            steps = math.min(steps, 1)
        end
        if steps <= math.max(1, math.floor(math.max(#name, #known) / 3))
            and (not best or steps < best_distance) then
            best, best_distance = known, steps
        end
    end
    return best
end

--- The end of a message about an unknown name: `; did you mean "cp"?`, or all that there are.
-- @param name what was written
-- @tparam table list the known names
-- @treturn string
function M.suggestion(name, list)
    local near = M.nearest(name, list)
    if near then return ('; did you mean "%s"?'):format(near) end
    if #list == 0 then return "; there are none" end
    return "; there are " .. table.concat(list, ", ")
end

--- Raises `who: unknown <what> "<name>"; did you mean ...?`.
-- @tparam string who the function to name
-- @tparam string what such as "layout"
-- @param name what was written
-- @tparam table list the known names
-- @tparam ?number level
function M.unknown(who, what, name, list, level)
    error(("%s: unknown %s %s%s"):format(who, what, M.show(name), M.suggestion(name, list)),
        blame((level or 2) + 1))
end

local function fits(value, wanted)
    if value == nil and wanted:sub(-1) == "?" then return true end
    for name in wanted:gmatch "[^|?]+" do
        local match = matches[name]
        if not match then error("check_args: no type " .. name, 0) end
        if match(value) then return true end
    end
    return false
end

--- Checks that a value is the name of a type, as `fields` takes them.
-- @return the value
-- @raise `rules.set: fields.depth: unknown type "integr"; did you mean "integer"?`
function M.type_name(who, name, value, level)
    level = (level or 2) + 1
    M.value(who, name, value, "string", level)
    local known = M.sorted_names(matches)
    local alternatives = value:gsub("%?$", "")
    for part in (alternatives .. "|"):gmatch "([^|]*)|" do
        M.one_of(("%s: %s"):format(who, name), "type", part, known, level)
    end
    return value
end

-- "integer|table?" -> "an integer or a table"
local function in_words(wanted)
    local words = {}
    for name in wanted:gmatch "[^|?]+" do
        words[#words + 1] = (name:find "^[aeiou]" and "an " or "a ") .. name
    end
    return table.concat(words, " or ")
end

--- Checks one value against a type.
-- @tparam string who the function to name
-- @tparam string name what the value is called
-- @param value the value
-- @tparam string wanted the type
-- @tparam ?number level
-- @return the value
-- @raise `layout.zigzag: cp must be an integer (got 2.5)`
function M.value(who, name, value, wanted, level)
    if fits(value, wanted) then return value end
    error(("%s: %s must be %s (got %s)"):format(who, name, in_words(wanted), M.show(value)),
        blame((level or 2) + 1))
end

--- Checks an integer and its bounds, both of which may be nil.
-- @return the value
-- @raise `layout.runs: rank must be an integer in 0 .. 3 (got 4)`
function M.integer(who, name, value, low, high, level)
    if M.is_integer(value) and value >= (low or value) and value <= (high or value) then
        return value
    end
    local bounds = ""
    if low and high then
        bounds = (" in %.0f .. %.0f"):format(low, high)
    elseif low then
        bounds = (" >= %.0f"):format(low)
    elseif high then
        bounds = (" <= %.0f"):format(high)
    end
    error(("%s: %s must be an integer%s (got %s)"):format(who, name, bounds, M.show(value)),
        blame((level or 2) + 1))
end

--- Checks that a value is one of a list of names.
-- @return the value
-- @raise `model: unknown dtype "f23"; did you mean "f32"?`
function M.one_of(who, what, value, list, level)
    for _, known in ipairs(list) do
        if value == known then return value end
    end
    M.unknown(who, what, value, list, (level or 2) + 1)
end

local function check_no_other(who, t, types, names, level)
    local others = {}
    for name in pairs(t) do
        if types[name] == nil then others[#others + 1] = name end
    end
    if #others == 0 then return end
    table.sort(others, function(a, b) return tostring(a) < tostring(b) end)
    M.unknown(who, "field", others[1], names, level + 1)
end

--- Checks a table of named fields: no unknown ones, and every one of its type.
-- @tparam string who the function to name
-- @param t the table
-- @tparam table types name -> type
-- @tparam ?number level
-- @return the table
-- @raise `layout.zigzag: unknown field "cpp"; did you mean "cp"?`, a missing field, a wrong type
function M.fields(who, t, types, level)
    level = level or 2
    if type(t) ~= "table" then
        error(("%s: takes a table of named fields (got %s)"):format(who, M.show(t)),
            blame(level + 1))
    end
    local names = M.sorted_names(types)
    check_no_other(who, t, types, names, level + 1)
    for _, name in ipairs(names) do
        if t[name] == nil and types[name]:sub(-1) ~= "?" then
            error(("%s: field \"%s\" is missing"):format(who, name), blame(level + 1))
        end
        M.value(who, name, t[name], types[name], level + 1)
    end
    return t
end

--- Checks a list of integers.
-- @return the list
-- @raise `stream.thd: lengths[2] must be an integer >= 0 (got 2.5)`
function M.integers(who, name, list, low, high, level)
    level = level or 2
    M.value(who, name, list, "list", level + 1)
    for i = 1, #list do
        if not M.is_integer(list[i]) or (low and list[i] < low) or (high and list[i] > high) then
            M.integer(who, ("%s[%d]"):format(name, i), list[i], low, high, level + 1)
        end
    end
    return list
end

return M
