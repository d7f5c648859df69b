--- An experiment: one question, as a table of functions that a script returns.
--
-- The fields: `name`; `about`, one sentence; `sweep`, lists by axis (see cplab.sweep) with an
-- optional `order`; `params`, what `--set` may set beside the axes; `skip(case)`, true or a reason;
-- `stream(case, step)`; `model(case)`; `run(lab)`, the same code on every rank; `report`, names of
-- the columns of the table (see cplab.report).
-- @module cplab.experiment
-- @usage return cplab.experiment { name = "demo", sweep = { cp = { 1, 2 } }, run = run }
local args = require "cplab.check_args"

local M = {}

local Experiment = {}
Experiment.__index = Experiment

local types = {
    name = "string", about = "string?", sweep = "table?", params = "table?", report = "list?",
    skip = "function?", stream = "function?", model = "function?", run = "function",
}
local param_types = "string|number|boolean"
local value_types = param_types .. "|table"

local function check_axis(axis, values, level)
    args.value("experiment", "sweep." .. axis, values, "list", level)
    if #values == 0 then
        error(("experiment: sweep.%s has no value"):format(axis), level)
    end
    for _, value in ipairs(values) do
        args.value("experiment", "a value of sweep." .. axis, value, value_types, level)
        -- A policy may be a name or three layouts.
        if type(value) ~= type(values[1]) and axis ~= "policy" then
            error(("experiment: sweep.%s mixes a %s with a %s"):format(
                axis, type(values[1]), type(value)), level)
        end
    end
end

local function check_sweep(sweep, level)
    for axis, values in pairs(sweep) do
        args.value("experiment", "an axis of the sweep", axis, "string", level)
        if axis ~= "order" then check_axis(axis, values, level + 1) end
    end
    local order = args.value("experiment", "sweep.order", sweep.order, "list?", level)
    for _, axis in ipairs(order or {}) do
        if not sweep[axis] then
            error(("experiment: sweep.order names %s, which is no axis"):format(args.show(axis)),
                level)
        end
    end
end

local function check_params(params, sweep, level)
    for name, value in pairs(params) do
        args.value("experiment", "the name of a param", name, "string", level)
        args.value("experiment", "params." .. name, value, param_types, level)
        if sweep[name] then
            error(("experiment: %s is both an axis of the sweep and a param"):format(name), level)
        end
    end
end

local function check_report(report, level)
    for i, name in ipairs(report or {}) do
        args.value("experiment", ("report[%d]"):format(i), name, "string", level)
    end
end

local function make(fields, level)
    args.fields("experiment", fields, types, level)
    local self = setmetatable({ sweep = {}, params = {} }, Experiment)
    for name, value in pairs(fields) do self[name] = value end
    check_sweep(self.sweep, level + 1)
    check_params(self.params, self.sweep, level + 1)
    check_report(self.report, level + 1)
    return self
end

--- Makes an experiment.
-- @tparam table fields see above
-- @treturn Experiment
-- @raise an unknown field (with the nearest name), a field of the wrong type, a missing one
function M.new(fields)
    local self = make(fields, 3) -- no tail call: the caller's line must be found
    return self
end

--- Whether a value is an experiment.
function M.is(value)
    return getmetatable(value) == Experiment
end

function Experiment:__tostring()
    return "experiment " .. self.name
end

-- The line of the last `return` at the left margin (or the last line), to point at what a script
-- gives back: a tail call leaves no line of its own.
local function line_of_return(path)
    local line, last, found = 0, 1, nil
    for text in io.lines(path) do
        line = line + 1
        if text:match "^return%f[%W]" then found = line end
        if text:match "%S" then last = line end
    end
    return found or last
end

local function read_chunk(path)
    local file, message = io.open(path, "r")
    if not file then return nil, ("cannot read the script %s"):format(message) end
    local text, problem = file:read "*a"
    file:close()
    if not text then return nil, ("cannot read the script %s: %s"):format(path, problem) end
    if text:sub(1, 1) == "\27" then
        return nil, ("%s: compiled Lua is no experiment script"):format(path)
    end
    return loadstring(text:gsub("^#[^\n]*", "", 1), "@" .. path)
end

-- `return cplab.experiment { ... }` is a tail call, so what experiment() complains about carries
-- the place of whoever ran the script; an error without a place has none at all.
local function located(path, message)
    local place, rest = message:match "^([^\n]-):%d+: (.*)$"
    if place == path or place and not rest:match "^experiment: " then return message end
    return ("%s:%d: %s"):format(path, line_of_return(path), rest or message)
end

--- Loads an experiment script.
-- @tparam string path
-- @treturn ?Experiment
-- @treturn ?string what is wrong, with file and line
function M.load(path)
    local chunk, message = read_chunk(path)
    if not chunk then return nil, message end
    local ok, value = pcall(chunk)
    if not ok then return nil, located(path, tostring(value)) end
    if M.is(value) then return value end
    local what = type(value) == "table" and "a plain table" or
        value == nil and "nothing" or "a " .. type(value)
    return nil, ("%s:%d: the script returns %s, not cplab.experiment { ... }"):format(
        path, line_of_return(path), what)
end

--- Where a function of a script begins: its source as the Lua state names it ("@file"), and a line.
function M.beginning(f)
    local info = debug.getinfo(f, "S")
    return info.source, math.max(info.linedefined, 1)
end

--- Calls a function of a script, for what cplab complains about in it to name a line of the script.
-- `return cplab.model { ... }` is a tail call and leaves no line of its own: what is blamed then is
-- whoever called the function. So it is called from a chunk of the script's name, on the line where
-- the function begins. Nothing is caught.
-- @return the first value that it returns
function M.call(f, ...)
    local source, line = M.beginning(f)
    local text = "local f = ... local value = f(select(2, ...)) return value"
    local value = assert(loadstring(("\n"):rep(line - 1) .. text, source))(f, ...)
    return value
end

return setmetatable(M, {
    __call = function(_, fields)
        local self = make(fields, 3)
        return self
    end,
})
