--- Curves "when does it pay": step times of several policies over a growing size, who is best at
-- each, and where one begins to pay against another.
--
-- Between two measured sizes the ratio of two times is taken as linear in the logarithm of the
-- size; a crossing is where that line says that they are equal.
-- @module cplab.project.curves
local M = {}

-- Times that differ by less than a thousandth are the same: no model of costs tells them apart.
local SAME = 1e-3

local SUFFIX = { [""] = 1, k = 2 ^ 10, m = 2 ^ 20 }
local MAX_POINTS = 64

--- A size such as 512, 8k, 1m; k and m are binary.
-- @treturn ?number
function M.size(text)
    local digits, suffix = text:match "^(%d+)([kmKM]?)$"
    local n = digits and tonumber(digits) * SUFFIX[suffix:lower()]
    return n and n >= 1 and n < 2 ^ 53 and n or nil
end

--- A size as a reader wants it: three digits, k and m binary.
function M.show(n)
    if n >= 2 ^ 20 then return ("%.3gm"):format(n / 2 ^ 20) end
    if n >= 2 ^ 10 then return ("%.4gk"):format(math.floor(n / 2 ^ 10 * 10 + 0.5) / 10) end
    return ("%.3g"):format(n)
end

local function doubled(low, high)
    local list = {}
    while low <= high and #list < MAX_POINTS do
        list[#list + 1], low = low, 2 * low
    end
    return list
end

local function listed(values)
    local list = {}
    for word in (values .. ","):gmatch "([^,]*)," do
        list[#list + 1] = M.size(word)
        if #list == 0 or not M.size(word) then return nil end
        if list[#list - 1] and list[#list - 1] >= list[#list] then return nil end
    end
    return list
end

--- What `--sweep` asks for: "tokens=8k..1m" (each twice the one before) or "cp=4,8,12".
-- @tparam string text
-- @tparam table axes names that may be swept
-- @treturn ?table axis, values (increasing)
-- @treturn ?string the sentence
function M.read(text, axes)
    local axis, values = text:match "^([^=]+)=(.+)$"
    local known = false
    for _, name in ipairs(axes) do known = known or name == axis end
    if not known then
        return nil, ("--sweep takes tokens=8k..1m, cp=4..64 or nodes=1,2,4, got '%s'"):format(text)
    end
    local low, high = values:match "^(%w+)%.%.(%w+)$"
    local list
    if low then
        low, high = M.size(low), M.size(high)
        list = low and high and low <= high and doubled(low, high)
    else
        list = listed(values)
    end
    if not list then
        return nil, ("--sweep %s: takes a range such as 8k..1m or increasing sizes such as 4,8,12 "
            .. "(got '%s')"):format(axis, values)
    end
    return { axis = axis, values = list }
end

-- ---- crossings --------------------------------------------------------------------

-- How far b is ahead of a at a point: log of the ratio of times, 0 where they are the same.
local function ahead(point, a, b)
    local ta, tb = point.seconds[a], point.seconds[b]
    if not (ta and tb) then return nil end
    local d = math.log(ta / tb)
    return math.abs(d) < SAME and 0 or d
end

local function between(x1, d1, x2, d2)
    local share = d1 / (d1 - d2)
    return x1 * (x2 / x1) ^ share
end

--- Where b pays against a: from which sizes to which.
-- @tparam table points { x =, seconds = by policy }, x increasing; a policy may be missing
-- @tparam string a
-- @tparam string b
-- @treturn table list of { from =, to = }: from is nil where it pays from the first size on, to
-- where it pays up to the last; `always` where it is one range without ends
function M.ranges(points, a, b)
    local list, range, last = {}, nil, nil
    for _, point in ipairs(points) do
        local d = ahead(point, a, b)
        if d then
            if d > 0 and not range then
                range = { from = last and between(last.x, last.d, point.x, d) }
                list[#list + 1] = range
            elseif d <= 0 and range then
                range.to, range = between(last.x, last.d, point.x, d), nil
            end
            last = { x = point.x, d = d }
        end
    end
    list.always = #list == 1 and not list[1].from and not list[1].to
    return list
end

--- The fastest policies of a point: names in the order of `policies`, those of the same time too.
function M.best(point, policies)
    local least, names = math.huge, {}
    for _, name in ipairs(policies) do least = math.min(least, point.seconds[name] or math.huge) end
    for _, name in ipairs(policies) do
        local seconds = point.seconds[name]
        if seconds and seconds <= least * (1 + SAME) then names[#names + 1] = name end
    end
    return names
end

local function range_words(range, say)
    if range.from and range.to then
        return ("from %s to %s"):format(say(range.from), say(range.to))
    elseif range.from then
        return ("from %s on"):format(say(range.from))
    elseif range.to then
        return ("up to %s"):format(say(range.to))
    end
end

local function sentence(a, b, ranges, say)
    local words = {}
    for i, range in ipairs(ranges) do words[i] = range_words(range, say) end
    return ("%s pays against %s %s"):format(b, a, table.concat(words, " and "))
end

--- A sentence for every pair of policies whose curves cross. Of a pair the one that is ahead at the
-- largest size is said to pay; if they are the same there, the one that is ahead before.
-- @tparam table points
-- @tparam table policies names
-- @tparam function say shows a size with its unit
-- @treturn {string,...}
function M.sentences(points, policies, say)
    local list = {}
    for i, a in ipairs(policies) do
        for j = i + 1, #policies do
            local b = policies[j]
            local first, second = M.ranges(points, a, b), M.ranges(points, b, a)
            local last = second[#second]
            if last and not last.to then a, b, first = b, a, second end
            if #first == 0 and #second > 0 then a, b, first = b, a, second end
            if #first > 0 and not first.always then
                list[#list + 1] = sentence(a, b, first, say)
            end
            a = policies[i]
        end
    end
    return list
end

return M
