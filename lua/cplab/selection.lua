--- What a command works on: a script, and the cases of it that the options choose.
-- @module cplab.selection
local args = require "cplab.check_args"
local experiment = require "cplab.experiment"
local model = require "cplab.model"
local policy = require "cplab.policy"
local schedule = require "cplab.schedule"
local stream = require "cplab.stream"
local sweep = require "cplab.sweep"

local M = {}

-- What models may compute in, on the host and on a device.
local dtypes = { f64 = true, f32 = true }
local dtypes_of_devices = { f64 = true, f32 = true, bf16 = true }

-- --dtype is a param where the script declares one, so that its functions see it in the case.
local function sets_of(script, arguments)
    local sets = {}
    for i, text in ipairs(arguments.set or {}) do sets[i] = text end
    if arguments.dtype and script.params.dtype ~= nil then
        sets[#sets + 1] = "dtype=" .. arguments.dtype
    end
    return sets
end

-- The place in our own files says nothing to who typed the name.
local function without_place(message)
    return (tostring(message):gsub("^[^\n]-%.lua:%d+: ", ""))
end

-- Only the form can be wrong here: no number of layers goes with a ratio yet.
local function check_ratio(ratio)
    if type(ratio) == "string" and ratio:find "^1:%d+$" then return end
    schedule.ratio(ratio, 1)
end

-- A policy or ratio that nobody knows is wrong before anything runs.
local function check_axes(chosen)
    for axis, check in pairs { policy = policy.resolve, ratio = check_ratio } do
        for _, value in ipairs(chosen[axis] or {}) do
            local ok, message = pcall(check, value)
            if not ok then return nil, without_place(message) end
        end
    end
    return true
end

local function choose_cases(self, arguments)
    local cases, message = sweep.cases(self.sweep, self.params)
    if not cases then return nil, message end
    cases, message = sweep.only(cases, self.sweep, arguments.only or {})
    if not cases then return nil, message end
    local reasons, n = sweep.reasons(self.script, cases, arguments.ranks,
        arguments.processes)
    if not reasons then return nil, n end
    self.cases, self.reasons, self.n_runs = cases, reasons, n
    return self
end

local function check_dtype(self, dtype)
    local known = self.on_device and dtypes_of_devices or dtypes
    if dtype == nil or known[dtype] then return true end
    return nil, self.on_device
        and ("dtype %s: devices compute in f64, f32 and bf16"):format(tostring(dtype))
        or ("dtype %s: the cpu computes in f64 and f32"):format(tostring(dtype))
end

--- Loads a script and chooses cases.
-- @tparam table arguments file, set, only, ranks, processes, dtype, device
-- @treturn ?table file, script, sweep, params, dtype, axes, cases, reasons (by case), n_runs
-- @treturn ?string the sentence
function M.new(arguments)
    local script, message = experiment.load(arguments.file)
    if not script then return nil, message end
    local self = { file = arguments.file, script = script }
    self.sweep, self.params = sweep.set(script, sets_of(script, arguments))
    if not self.sweep then return nil, self.params end
    self.dtype = self.params.dtype or arguments.dtype
    self.on_device = (arguments.device or "cpu") ~= "cpu"
    local ok, problem = check_dtype(self, self.dtype)
    if not ok then return nil, problem end
    self.axes = sweep.axes(self.sweep)
    ok, problem = check_axes(self.sweep)
    if not ok then return nil, problem end
    return choose_cases(self, arguments)
end

-- Where a function of the script begins.
local function place_of(f)
    local source, line = experiment.beginning(f)
    return ("%s:%d"):format(source:gsub("^@", ""), line)
end

-- Calls a function of the script. What it raises may have no place of its own.
local function call(self, name, is, case, ...)
    local f = self.script[name]
    if not f then return true end
    local ok, value = pcall(experiment.call, f, case, ...)
    if ok and name == "model" and is(value) then
        local fits, problem = check_dtype(self, self.dtype or value.dtype)
        if not fits then return nil, ("%s: %s"):format(place_of(f), problem) end
    end
    if not ok then
        local message = tostring(value)
        local has_place = message:find "^[^\n]-%.%a+:%d+: "
        return nil, has_place and message or ("%s: %s"):format(place_of(f), message)
    end
    if is(value) then return true end
    return nil, ("%s: %s() must return a cplab.%s (got %s)"):format(place_of(f), name, name,
        args.show(value))
end

--- Builds model and stream of a case, and forgets them.
-- @treturn ?boolean
-- @treturn ?string the sentence, with a place in the script
function M.build(self, case)
    local ok, message = call(self, "model", model.is, case)
    if not ok then return nil, message end
    return call(self, "stream", stream.is, case, 0)
end

--- Builds model and stream of every case that runs, and forgets them. What is wrong with some
-- cases is theirs to report; what is wrong with all of them is wrong input.
-- @treturn ?boolean
-- @treturn ?string the sentence
function M.check_input(self)
    local first, n = nil, 0
    for _, case in ipairs(self.cases) do
        if not self.reasons[case] then
            local ok, message = M.build(self, case)
            if ok then return true end
            first, n = first or message, n + 1
        end
    end
    if n == 0 then return true end
    return nil, first
end

return M
