--- JSON as cplab writes it: keys in the order that the writer names, every number with all of its
-- digits, one text for one value.
--
-- JSON has no NaN and no infinity. Here they are the strings "nan", "inf" and "-inf", so that a
-- number that went wrong is never mistaken for one that was not measured (null). Both Debian
-- libraries stop at 14 digits, which is why this file exists.
-- @module cplab.json
-- @usage json.encode({ cp = 4, ratio = "1:3" }, { "ratio", "cp" })  --> {"ratio":"1:3","cp":4}
local M = {}

--- Stands for null where a Lua table cannot hold nil.
M.null = setmetatable({}, { __tostring = function() return "null" end })

local escapes = {
    ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f",
    ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
}

local function quote(text)
    return '"' .. text:gsub('[%c"\\\127]', function(c)
        return escapes[c] or ("\\u%04x"):format(c:byte())
    end) .. '"'
end

local function number(x)
    if x ~= x then return '"nan"' end
    if x == math.huge then return '"inf"' end
    if x == -math.huge then return '"-inf"' end
    if x == math.floor(x) and math.abs(x) < 2 ^ 53 then return ("%d"):format(x) end
    -- The shortest text that reads back as the same number.
    for digits = 15, 16 do
        local text = ("%." .. digits .. "g"):format(x)
        if tonumber(text) == x then return text end
    end
    return ("%.17g"):format(x)
end

--- The keys of a table: first those that `order` names, then the others by name.
-- @tparam table object
-- @tparam ?table order list of keys
-- @treturn table list of keys
function M.keys(object, order)
    local keys, rest, seen = {}, {}, {}
    for _, key in ipairs(order or {}) do
        if object[key] ~= nil and not seen[key] then
            keys[#keys + 1], seen[key] = key, true
        end
    end
    for key in pairs(object) do
        if not seen[key] then rest[#rest + 1] = key end
    end
    table.sort(rest, function(a, b) return tostring(a) < tostring(b) end)
    for _, key in ipairs(rest) do keys[#keys + 1] = key end
    return keys
end

local encode

local function encode_list(list)
    local parts = {}
    for i, value in ipairs(list) do parts[i] = encode(value) end
    return "[" .. table.concat(parts, ",") .. "]"
end

local function encode_object(object, order)
    local parts = {}
    for i, key in ipairs(M.keys(object, order)) do
        parts[i] = quote(tostring(key)) .. ":" .. encode(object[key])
    end
    return "{" .. table.concat(parts, ",") .. "}"
end

function encode(value, order)
    local kind = type(value)
    if value == nil or value == M.null then return "null" end
    if kind == "string" then return quote(value) end
    if kind == "number" then return number(value) end
    if kind == "boolean" then return tostring(value) end
    if kind ~= "table" then return quote(tostring(value)) end
    if value[1] ~= nil then return encode_list(value) end
    return encode_object(value, order)
end

--- The JSON text of a value. A table with an element 1 is a list, every other one an object.
-- @param value
-- @tparam ?table order the first keys of the outermost object; inner ones are ordered by name
-- @treturn string one line
function M.encode(value, order)
    return encode(value, order)
end

-- ---- reading ----------------------------------------------------------------

local unescapes = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function utf8(code)
    if code < 0x80 then return string.char(code) end
    if code < 0x800 then
        return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64)
    end
    return string.char(0xE0 + math.floor(code / 4096), 0x80 + math.floor(code / 64) % 64,
        0x80 + code % 64)
end

-- Every reader takes (text, place of its first character) and returns (value, place after it);
-- what is no JSON raises.
local read

local function skip_blank(text, at)
    return text:find("[^ \t\r\n]", at) or #text + 1
end

local function wrong(at)
    error({ at = at }, 0)
end

local function read_string(text, at)
    local stop = at + 1
    while true do
        local hit = text:find('["\\]', stop) or wrong(at)
        if text:sub(hit, hit) == '"' then stop = hit break end
        stop = hit + 2
    end
    local raw = text:sub(at + 1, stop - 1)
    return (raw:gsub("\\(.)(%x?%x?%x?%x?)", function(c, hex)
        if c == "u" and #hex == 4 then return utf8(tonumber(hex, 16)) end
        return (unescapes[c] or c) .. hex
    end)), stop + 1
end

local function read_list(text, at)
    local list, n = {}, 0
    at = skip_blank(text, at + 1)
    if text:sub(at, at) == "]" then return list, at + 1 end
    while true do
        n = n + 1
        list[n], at = read(text, at)
        at = skip_blank(text, at)
        local c = text:sub(at, at)
        if c == "]" then return list, at + 1 end
        if c ~= "," then wrong(at) end
        at = at + 1
    end
end

local function read_object(text, at)
    local object = {}
    at = skip_blank(text, at + 1)
    if text:sub(at, at) == "}" then return object, at + 1 end
    while true do
        at = skip_blank(text, at)
        if text:sub(at, at) ~= '"' then wrong(at) end
        local key
        key, at = read_string(text, at)
        at = skip_blank(text, at)
        if text:sub(at, at) ~= ":" then wrong(at) end
        object[key], at = read(text, at + 1)
        at = skip_blank(text, at)
        local c = text:sub(at, at)
        if c == "}" then return object, at + 1 end
        if c ~= "," then wrong(at) end
        at = at + 1
    end
end

local words = { { "true", true }, { "false", false }, { "null", M.null } }

function read(text, at)
    at = skip_blank(text, at)
    local c = text:sub(at, at)
    if c == '"' then return read_string(text, at) end
    if c == "[" then return read_list(text, at) end
    if c == "{" then return read_object(text, at) end
    for _, word in ipairs(words) do
        if text:sub(at, at + #word[1] - 1) == word[1] then return word[2], at + #word[1] end
    end
    local digits = text:match("^%-?%d[%d%.eE%+%-]*", at)
    local value = digits and tonumber(digits)
    if not value then wrong(at) end
    return value, at + #digits
end

--- Reads one JSON value; null is `json.null`.
-- @tparam string text
-- @return the value, or nil and a sentence that names the place
function M.decode(text)
    local ok, value, at = pcall(read, text, 1)
    if ok then
        at = skip_blank(text, at)
        if at > #text then return value end
        value = { at = at }
    end
    if type(value) ~= "table" or not value.at then error(value, 0) end
    return nil, ("json: no JSON at character %d"):format(value.at)
end

--- A number that `encode` may have written as a string; anything else is nil.
-- @param value
-- @treturn ?number
function M.to_number(value)
    if type(value) == "number" then return value end
    if value == "nan" then return 0 / 0 end
    if value == "inf" then return math.huge end
    if value == "-inf" then return -math.huge end
    return nil
end

return M
