--- Words of a command line made into numbers and lists, for the benches. What is wrong with one
-- ends the reading with a sentence.
-- @module cplab.bench.words
local args = require "cplab.check_args"

local M = {}

local MAX_RANKS = 1024

--- Ends the reading with a sentence; `M.reading` brings it to the user.
function M.refuse(text, ...)
    error({ sentence = text:format(...) }, 0)
end

--- What f(...) gives, or nil and the sentence that it was refused with.
-- @tparam string who stands before the sentence
function M.reading(who, f, ...)
    local ok, result = pcall(f, ...)
    if ok then return result end
    if type(result) ~= "table" then error(result, 0) end
    return nil, who .. ": " .. result.sentence
end

--- The given words, over those that stand where nothing is said.
function M.with_defaults(given, defaults)
    local words = {}
    for name, value in pairs(defaults) do words[name] = value end
    for name, value in pairs(given) do words[name] = value end
    return words
end

local function split(text)
    local list = {}
    for word in text:gmatch "[^,]+" do list[#list + 1] = word end
    return list
end

local function check_name(name, option, known)
    for _, other in ipairs(known) do
        if name == other then return name end
    end
    M.refuse("%s: there is no %s%s", option, name, args.suggestion(name, known))
end

--- Names of a list, each of them known; "all" stands for all of them, or for those of `every`.
function M.names(text, option, known, every)
    local list = {}
    for _, word in ipairs(split(text)) do
        for _, name in ipairs(word == "all" and (every or known) or { word }) do
            list[#list + 1] = check_name(name, option, known)
        end
    end
    if #list == 0 then M.refuse("%s: there are no names", option) end
    return list
end

--- Whole numbers >= 1 of a list.
function M.counts(text, option)
    local list = {}
    for i, word in ipairs(split(text)) do
        list[i] = tonumber(word)
        if not (args.is_integer(list[i]) and list[i] >= 1) then
            M.refuse("%s takes whole numbers >= 1, got '%s'", option, word)
        end
    end
    if #list == 0 then M.refuse("%s: there are no numbers", option) end
    return list
end

--- Refuses a group that is too large, or larger than what mpirun started.
-- @tparam integer cp
-- @tparam integer tp
-- @tparam ?integer processes nil: ranks are threads
function M.check_group(cp, tp, processes)
    if cp * tp > MAX_RANKS then
        M.refuse("cp %d and tp %d are more than %d ranks", cp, tp, MAX_RANKS)
    end
    if processes and cp * tp > processes then
        M.refuse("cp %d and tp %d need %d ranks, but mpirun started %d process%s", cp, tp, cp * tp,
            processes, processes == 1 and "" or "es")
    end
end

return M
