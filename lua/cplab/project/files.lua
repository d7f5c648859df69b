--- The files that `project` writes: opened before anything is projected, none unless asked for.
-- @module cplab.project.files
local results = require "cplab.results"

local M = {}

local Sink = {}
Sink.__index = Sink

--- Writes a text, in one write. After a failure nothing more is written.
function Sink:put(text)
    if self.problem then return end
    local ok, message = self.file:write(text)
    if not ok then self.problem = ("project: cannot write %s: %s"):format(self.path, message) end
end

-- Names of options in a fixed order.
local function named(paths)
    local list = {}
    for name, path in pairs(paths) do list[#list + 1] = { "--" .. name, path } end
    table.sort(list, function(a, b) return a[1] < b[1] end)
    return list
end

local function refused(message)
    return nil, (message:gsub("^%l+: ", "project: "))
end

--- Opens files, all or none.
-- @tparam table paths by option
-- @tparam ?string script which none of them may be
-- @treturn ?table sinks by option
-- @treturn ?string the sentence
function M.open(paths, script)
    local list, plain = named(paths), {}
    local ok, message = results.distinct(list, script or "")
    if not ok then return refused(message) end
    for i, entry in ipairs(list) do plain[i] = entry[2] end
    ok, message = results.writable(plain)
    if not ok then return refused(message) end
    local sinks = {}
    for name, path in pairs(paths) do
        local file, problem = io.open(path, "wb")
        if not file then return refused("results: cannot write " .. problem) end
        file:setvbuf "no"
        sinks[name] = setmetatable({ file = file, path = path }, Sink)
    end
    return sinks
end

--- Closes what `open` gave. Returns what could not be written.
function M.close(sinks)
    local problem
    for _, sink in pairs(sinks) do
        local ok, message = sink.file:close()
        problem = problem or sink.problem
            or not ok and ("project: cannot write %s: %s"):format(sink.path, message) or nil
    end
    return problem
end

return M
