--- Lists of what went wrong elsewhere: each entry names the spec here that would see it, or says
-- why there is none.
--
-- An entry is { id =, source =, about =, spec = file, name = words of its `it` }, perhaps with
-- also = a list of more { spec =, name = }, or { id =, source =, about =, reason = one sentence }.
-- An id is a number (a bug report) or a word ("20b", "T-29").
local lfs = require "lfs"

local environment = require "cplab.environment"

local M = {}

local FIELDS = { id = true, source = true, about = true, spec = true, name = true, also = true,
    reason = true }

--- The text of a file of the repository, or nil.
function M.read(path)
    local file = io.open(environment.root() .. "/" .. path, "rb")
    local text = file and file:read "*a"
    if file then file:close() end
    return text
end

--- A list that may not be there yet: an empty one then.
-- @tparam string name of the file in spec/traps, without .lua
function M.load(name)
    if not lfs.attributes(("%s/spec/traps/%s.lua"):format(environment.root(), name)) then
        return {}
    end
    return require("spec.traps." .. name)
end

--- Ids of bug reports and traps from a to b: numbers, or "T-29" and so on with that prefix.
function M.ids(a, b, prefix)
    local list = {}
    for i = a, b do list[#list + 1] = prefix and ("%s%02d"):format(prefix, i) or i end
    return list
end

-- Whether a text carries the tag of an id: "[report 9]" or "[reports 1, 9]" for a report, the word
-- itself for a trap.
local function is_tagged(text, id)
    if tostring(id):find "^T%-" then
        return text:find("%f[%w]" .. id:gsub("%-", "%%-") .. "%f[%W]") ~= nil
    end
    for tag in text:gmatch "%[reports? ([^%]]*)%]" do
        if tag:find("%f[%w]" .. id .. "%f[%W]") then return true end
    end
    return false
end

--- The `it`s of a spec's text, with the words of the `describe`s around each. The text must be
-- indented as all of ours is. Words that a format completes are as they stand in the text.
-- @treturn table by name: the words of the describes around it, joined
function M.names(text)
    local found, around = {}, {} -- around: { indentation, words }, from the outside in
    -- Words may stand on the line below `it(`.
    for indentation, kind, name in text:gsub('%(%s*\n%s*"', '("'):gmatch
        '\n( *)(%a+)%d?%(*%s*"([^\n]-[^\\])"' do
        while #around > 0 and #around[#around][1] >= #indentation do around[#around] = nil end
        if kind == "describe" then
            around[#around + 1] = { indentation, name }
        elseif kind == "it" then
            local words = {}
            for i, outer in ipairs(around) do words[i] = outer[2] end
            found[name] = table.concat(words, " ")
        end
    end
    return found
end

--- The specs that an entry names: a list of { spec =, name = }.
function M.places(entry)
    local list = { entry.spec and entry or nil }
    for _, place in ipairs(entry.also or {}) do list[#list + 1] = place end
    return list
end

local function is_text(x) return type(x) == "string" and x:find "%S" ~= nil end

-- What is wrong with the words of an entry itself.
local function wrong_fields(entry)
    for field in pairs(entry) do
        if not FIELDS[field] then return "has an unknown field " .. tostring(field) end
    end
    if not is_text(entry.source) then return "has no source" end
    if not is_text(entry.about) then return "does not say what it is about" end
    local has_spec = entry.spec ~= nil or entry.name ~= nil
    if has_spec == (entry.reason ~= nil) then
        return "must have either spec and name or a reason"
    end
    for _, place in ipairs(has_spec and M.places(entry) or {}) do
        if not (is_text(place.spec) and is_text(place.name)) then
            return "must have both spec and name"
        end
    end
    if entry.also and not (has_spec and #entry.also > 0) then return "has an empty also" end
    if not has_spec and not is_text(entry.reason) then return "has an empty reason" end
    return nil
end

-- What is wrong with a spec that an entry names.
local function wrong_spec(id, place, read)
    local text = read(place.spec)
    if not text then return "names a file that is not there: " .. place.spec end
    local describes = M.names("\n" .. text)[place.name]
    if not describes then
        return ('names an it that %s does not have: "%s"'):format(place.spec, place.name)
    end
    if not is_tagged(place.name, id) and not is_tagged(describes, id) then
        return ('is not told by the name of its it: "%s"'):format(place.name)
    end
    return nil
end

-- What is wrong with an entry.
local function wrong_entry(entry, read)
    local text = wrong_fields(entry)
    for _, place in ipairs(not text and M.places(entry) or {}) do
        text = text or wrong_spec(entry.id, place, read)
    end
    return text
end

--- What is wrong with a list, a line each; empty where nothing is.
-- @tparam table expected the ids that must be there, once each, and no other
-- @tparam table entries
-- @tparam ?function read text of a path, or nil; by default of the repository
-- @treturn {string,...}
function M.wrong(expected, entries, read)
    local wrong, times, is_expected = {}, {}, {}
    local function add(id, text) wrong[#wrong + 1] = ("%s %s"):format(id, text) end
    for _, id in ipairs(expected) do is_expected[id] = true end
    for _, entry in ipairs(entries) do
        local id = entry.id
        times[id] = (times[id] or 0) + 1
        if not is_expected[id] then add(id, "is not expected") end
        local text = wrong_entry(entry, read or M.read)
        if text then add(id, text) end
    end
    for _, id in ipairs(expected) do
        if times[id] ~= 1 then add(id, ("is there %d times"):format(times[id] or 0)) end
    end
    return wrong
end

return M
