--- The cases of an experiment: the cartesian product of its axes, as the command line changes it.
--
-- The first axis varies slowest. The order of the axes is `sweep.order` where the script gives one,
-- else ratio, policy, cp, tp, then the others by name. A case holds one value of every axis, the
-- params, `cp` and `tp` (1 where they are no axis), and `multiple`: the least common multiple of
-- 2 * cp * tp over the whole sweep, the one multiple to which every case may pad its sequences.
-- What goes wrong here is wrong usage, so functions return nil and one sentence.
-- @module cplab.sweep
local args = require "cplab.check_args"

local M = {}

local first_axes = { "ratio", "policy", "cp", "tp" }

--- Axes in their order.
-- @tparam table sweep lists by name, may have `order`
-- @treturn table list of names
function M.axes(sweep)
    local axes, seen, rest = {}, { order = true }, {}
    -- A case of a file of results may have a field of this name.
    local order = type(sweep.order) == "table" and sweep.order or {}
    for _, list in ipairs { order, first_axes } do
        for _, axis in ipairs(list) do
            if sweep[axis] and not seen[axis] then
                axes[#axes + 1], seen[axis] = axis, true
            end
        end
    end
    for axis in pairs(sweep) do
        if not seen[axis] then rest[#rest + 1] = axis end
    end
    table.sort(rest)
    for _, axis in ipairs(rest) do axes[#axes + 1] = axis end
    return axes
end

--- A value of an axis as a user reads and types it; a policy of three layouts is joined by "/", an
-- assignment of layers goes by its name.
function M.label(value)
    if type(value) ~= "table" then return tostring(value) end
    if value.layers then return value.name or "assignment" end
    local parts = {}
    for i, part in ipairs(value) do parts[i] = tostring(part) end
    return table.concat(parts, "/")
end

--- A text as one line of a table shows it: control characters are blanks.
function M.one_line(text)
    return (text:gsub("%c+", " "))
end

--- "ratio=1:3 policy=zigzag cp=4"
function M.describe(case, axes)
    local parts = {}
    for i, axis in ipairs(axes) do parts[i] = axis .. "=" .. M.label(case[axis]) end
    return #parts > 0 and M.one_line(table.concat(parts, " ")) or "the only case"
end

-- ---- what the command line gives --------------------------------------------

local function split(text)
    local values = {}
    for value in (text .. ","):gmatch "([^,]*)," do values[#values + 1] = value end
    return values
end

local function pair(option, text)
    local name, values = text:match "^([^=]+)=(.*)$"
    if not name then
        return nil, ("%s %s: the form is name=value"):format(option, text)
    end
    return name, split(values), values
end

local readers = {
    number = function(text)
        local value = tonumber(text)
        return value and math.abs(value) < math.huge and value or nil
    end,
    boolean = function(text)
        if text == "true" then return true end
        if text == "false" then return false end
        return nil
    end,
    string = function(text) return text ~= "" and text or nil end,
    table = function(text) return text ~= "" and text or nil end,
}

local function read_values(option, name, texts, like)
    local values = {}
    for i, text in ipairs(texts) do
        values[i] = readers[type(like)](text)
        if values[i] == nil then
            local kind = type(like) == "table" and "string" or type(like)
            return nil, ("%s %s: takes a %s, got %q"):format(option, name, kind, text)
        end
    end
    return values
end

local function known_names(experiment)
    local names = M.axes(experiment.sweep)
    local params = {}
    for name in pairs(experiment.params) do params[#params + 1] = name end
    table.sort(params)
    for _, name in ipairs(params) do names[#names + 1] = name end
    return names
end

local function unknown(option, name, names)
    return ("%s: unknown axis or param %s%s"):format(option, args.show(name),
        args.suggestion(name, names))
end

-- A whole copy, so that the experiment's own lists stay as the script wrote them.
local function copy_sweep(sweep)
    local copy = {}
    for axis, values in pairs(sweep) do
        copy[axis] = {}
        for i, value in ipairs(values) do copy[axis][i] = value end
    end
    return copy
end

local function set_one(experiment, sweep, params, text)
    local name, texts, whole = pair("--set", text)
    if not name then return nil, texts end
    local axis, param = sweep[name], experiment.params[name]
    if name == "order" or axis == nil and param == nil then
        return nil, unknown("--set", name, known_names(experiment))
    end
    local values, message = read_values("--set", name, axis and texts or { whole },
        axis and axis[1] or param)
    if not values then return nil, message end
    if axis then sweep[name] = values else params[name] = values[1] end
    return true
end

--- Applies `--set name=value[,value]` to the axes and params of an experiment.
-- @tparam Experiment experiment stays as it is
-- @tparam table sets list of "name=value" texts
-- @treturn ?table the sweep
-- @treturn table|string the params, or the sentence
function M.set(experiment, sets)
    local sweep, params = copy_sweep(experiment.sweep), {}
    for name, value in pairs(experiment.params) do params[name] = value end
    for _, text in ipairs(sets) do
        local ok, message = set_one(experiment, sweep, params, text)
        if not ok then return nil, message end
    end
    return sweep, params
end

-- ---- the product ----------------------------------------------------------------

local function check_groups(sweep)
    for _, axis in ipairs { "cp", "tp" } do
        for _, value in ipairs(sweep[axis] or {}) do
            if not (args.is_integer(value) and value >= 1) then
                return nil, ("sweep: %s must be an integer >= 1 (got %s)"):format(
                    axis, args.show(value))
            end
        end
    end
    return true
end

local function gcd(a, b)
    while b > 0 do a, b = b, a % b end
    return a
end

local function common_multiple(sweep)
    local multiple = 2
    for _, cp in ipairs(sweep.cp or { 1 }) do
        for _, tp in ipairs(sweep.tp or { 1 }) do
            local n = 2 * cp * tp
            multiple = multiple / gcd(multiple, n) * n
        end
    end
    return multiple
end

local function product(sweep, axes, base)
    local cases = { base }
    for _, axis in ipairs(axes) do
        local longer = {}
        for _, case in ipairs(cases) do
            for _, value in ipairs(sweep[axis]) do
                local next_case = {}
                for key, old in pairs(case) do next_case[key] = old end
                next_case[axis] = value
                longer[#longer + 1] = next_case
            end
        end
        cases = longer
    end
    return cases
end

--- All cases of a sweep.
-- @treturn ?table list of cases
-- @treturn ?string the sentence
function M.cases(sweep, params)
    local ok, message = check_groups(sweep)
    if not ok then return nil, message end
    local base = { cp = 1, tp = 1, multiple = common_multiple(sweep) }
    for name, value in pairs(params) do base[name] = value end
    return product(sweep, M.axes(sweep), base)
end

local function read_filter(sweep, text)
    local name, texts = pair("--only", text)
    if not name then return nil, texts end
    local axes = M.axes(sweep)
    if name == "order" or not sweep[name] then return nil, unknown("--only", name, axes) end
    local wanted, has = {}, {}
    for _, value in ipairs(sweep[name]) do has[M.label(value)] = true end
    for _, value in ipairs(texts) do
        if not has[value] then
            local labels = {}
            for i, known in ipairs(sweep[name]) do labels[i] = M.label(known) end
            return nil, ("--only %s: the sweep has no %s %s (it has %s)"):format(
                text, name, value, table.concat(labels, ", "))
        end
        wanted[value] = true
    end
    return { axis = name, wanted = wanted }
end

--- Keeps the cases that every `--only name=value[,value]` lets through.
-- @treturn ?table list of cases, never empty
-- @treturn ?string the sentence
function M.only(cases, sweep, filters)
    for _, text in ipairs(filters) do
        local filter, message = read_filter(sweep, text)
        if not filter then return nil, message end
        local kept = {}
        for _, case in ipairs(cases) do
            if filter.wanted[M.label(case[filter.axis])] then kept[#kept + 1] = case end
        end
        cases = kept
    end
    if #cases == 0 then return nil, "--only: no case is left" end
    return cases
end

--- Ranks that a case needs.
function M.n_ranks(case)
    return case.cp * case.tp
end

local function reason_to_skip(experiment, case, ranks, processes)
    local n = M.n_ranks(case)
    if ranks and n > ranks then
        return ("needs %d ranks, --ranks is %d"):format(n, ranks)
    elseif processes and n > processes then
        return ("needs %d ranks, mpirun started %d"):format(n, processes)
    end
    local skip = experiment.skip and experiment.skip(case)
    if type(skip) == "string" then return skip end
    return skip and "the experiment skips it" or nil
end

--- Divides cases into those that run and those that do not.
-- @tparam ?number ranks what `--ranks` gives; nil: as many as the largest case needs
-- @tparam ?number processes what mpirun started
-- @treturn ?table reasons by case: a string where the case is skipped
-- @treturn string|number the sentence, or how many cases run
function M.reasons(experiment, cases, ranks, processes)
    local reasons, n = {}, 0
    for _, case in ipairs(cases) do
        local ok, reason = pcall(reason_to_skip, experiment, case, ranks, processes)
        if not ok then return nil, tostring(reason) end
        reasons[case] = reason
        if not reason then n = n + 1 end
    end
    if n == 0 then
        return nil, ("nothing to run: %s skipped (%s)"):format(
            #cases == 1 and "the one case is" or ("all %d cases are"):format(#cases),
            reasons[cases[1]])
    end
    return reasons, n
end

return M
