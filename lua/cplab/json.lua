--- JSON as cplab writes it: keys in the order that the writer names, every number with all of its
-- digits, one text for one value.
--
-- JSON has no NaN and no infinity. Here they are the strings "nan", "inf" and "-inf", so that a
-- number that went wrong is never mistaken for one that was not measured (null). The libraries
-- write at most 14 digits, which is why writing is done here; reading is cjson's.
-- @module cplab.json
-- @usage json.encode({ cp = 4, ratio = "1:3" }, { "ratio", "cp" })  --> {"ratio":"1:3","cp":4}
local cjson = require "cjson".new()

cjson.decode_invalid_numbers(false) -- no NaN, no 0x10

local M = {}

--- Stands for null where a Lua table cannot hold nil.
M.null = cjson.null

local escapes = {
    ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f",
    ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
}

-- UTF-8 beyond ASCII, as Unicode 15, table 3-7 has it: no overlong forms, no surrogates.
local tail = "[\128-\191]"
local sequences = {
    "^[\194-\223]" .. tail, "^\224[\160-\191]" .. tail, "^[\225-\236\238\239]" .. tail .. tail,
    "^\237[\128-\159]" .. tail, "^\240[\144-\191]" .. tail .. tail,
    "^[\241-\243]" .. tail .. tail .. tail, "^\244[\128-\143]" .. tail .. tail,
}

local function sequence_at(text, at)
    for _, pattern in ipairs(sequences) do
        local _, last = text:find(pattern, at)
        if last then return text:sub(at, last) end
    end
    return nil
end

-- Bytes that are no UTF-8 become the characters of their numbers, as of Latin-1.
local function valid(text)
    local parts, at = {}, 1
    while true do
        local high = text:find("[\128-\255]", at)
        parts[#parts + 1] = text:sub(at, (high or 0) - 1)
        if not high then return table.concat(parts) end
        local sequence = sequence_at(text, high)
        parts[#parts + 1] = sequence or ("\\u%04x"):format(text:byte(high))
        at = high + (sequence and #sequence or 1)
    end
end

local function quote(text)
    text = text:gsub('[%c"\\\127]', function(c)
        return escapes[c] or ("\\u%04x"):format(c:byte())
    end)
    if text:find "[\128-\255]" then text = valid(text) end
    return '"' .. text .. '"'
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

--- Reads one JSON value; null is `json.null`.
-- @tparam string text
-- @return the value, or nil and a sentence that names the place
function M.decode(text)
    local ok, value = pcall(cjson.decode, text)
    if ok then return value end
    return nil, "json: no JSON at character " .. (tostring(value):match "at character (%d+)" or 1)
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
