--- Clusters: the numbers of machines that a step can be projected to, each with its source.
-- A cluster is a file that returns a table of the shape of `M.shape`; each number in it is
-- `{ value, source = "text" }`, with `unit` where it has one. `cplab.cluster.load "h100"` checks
-- all of them and gives the bare numbers.
--
-- Times follow from three forms, each of which is a fixed part and a rate:
--
--     work      (flop + pieces * half) / (flops * max)     efficiency max * n / (n + half) a piece
--     memory    (bytes + calls * half) / bandwidth, or / pointwise where numbers are computed
--     exchange  alpha + messages * message + (bytes + half) / beta      of each level of links
--
-- A rank's two levels of links run side by side as far as links.overlap says (1: the longer of the
-- two counts, 0: their sum). Ranks that share fewer cores than they are (only "local") work in
-- turns: the more of them are busy, the slower each is.
-- @module cplab.cluster
-- @usage local h100 = cplab.cluster.load "h100"
--   local slow = h100:with { links = { between = { beta = 23e9 } } }
local args = require "cplab.check_args"

local Cluster = {}
Cluster.__index = Cluster

local M = {}

local CURVE = { max = "fraction", half = "number" }
local LINK = { alpha = "number", message = "number", beta = "positive", half = "number" }

--- What a cluster file holds; leaves say what the number may be: "positive", "number" (0 or more),
-- "fraction" (0 to 1, but for rates not 0), "share" (0 to 1), "count" (an integer from 1), "whole"
-- (an integer from 0). A "?" at the end: may be left out.
--   ranks_per_node   ranks that reach each other over links.inside
--   cores            processors that all ranks share; left out: each rank has its own
--   flops            peak FLOP/s of a rank, by the dtype of its products
--   efficiency       per kind of kernel: the share of the peak that large pieces reach, and the
--                    FLOP of a piece that reaches half of that; a piece is a product (gemm), a span
--                    of queries (attention), a chunk of all heads (gdn)
--   memory           bytes/s that a rank reads and writes; pointwise: the same in kernels that
--                    compute exponentials on the way (left out: as bandwidth); bytes of a call that
--                    reaches half of bandwidth;
--                    pack: times that a row which changes rank is read or written beside the link
--   links            inside and between nodes, of one rank and direction: seconds of an exchange
--                    (alpha), of each message (message), bytes/s (beta), bytes that reach half;
--                    overlap: how far the two run side by side
--   overlap          the share of an exchange that can hide behind the work beside it: ring (a hop
--                    and the attention of a step), gather (keys and attention), convert, halo,
--                    gradients (their sum over the group, and the backward pass)
--   host             seconds of a blocking wait for the device (sync), of starting a kernel
--                    (launch), of building a route per segment; waits of a conversion with lazy and
--                    prebuilt routes
M.shape = {
    ranks_per_node = "count",
    cores = "count?",
    flops = { bf16 = "positive", f32 = "positive", f64 = "positive" },
    efficiency = { gemm = CURVE, attention_forward = CURVE, attention_backward = CURVE,
        gdn_forward = CURVE, gdn_backward = CURVE },
    memory = { bandwidth = "positive", pointwise = "positive?", half = "number", pack = "number" },
    links = { inside = LINK, between = LINK, overlap = "share" },
    overlap = { ring = "share", gather = "share", convert = "share", halo = "share",
        gradients = "share" },
    host = { sync = "number", launch = "number", segment = "number", lazy_syncs = "whole",
        prebuilt_syncs = "whole" },
}

--- The clusters that come with cplab.
M.names = { "local", "a100", "h100", "h200", "gb200", "gb300" }

local RULES = {
    positive = { "a number > 0", function(x) return x > 0 end },
    number = { "a number >= 0", function(x) return x >= 0 end },
    fraction = { "a number in (0, 1]", function(x) return x > 0 and x <= 1 end },
    share = { "a number in [0, 1]", function(x) return x >= 0 and x <= 1 end },
    count = { "an integer >= 1", function(x) return x >= 1 and args.is_integer(x) end },
    whole = { "an integer >= 0", function(x) return x >= 0 and args.is_integer(x) end },
}

local function sorted_keys(t)
    local keys = {}
    for key in pairs(t) do keys[#keys + 1] = key end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    return keys
end

-- Infinite numbers are refused with NaN and negative ones.
local function check_value(who, path, value, rule, level)
    local words, holds = unpack(RULES[(rule:gsub("%?$", ""))])
    if type(value) ~= "number" or not (value < math.huge and holds(value)) then
        error(("%s: %s must be %s (got %s)"):format(who, path, words, args.show(value)), level + 1)
    end
    return value
end

local ENTRY = { [1] = true, source = true, unit = true }

local function check_entry(who, path, entry, rule, level)
    if type(entry) ~= "table" then
        error(("%s: %s must be { value, source = \"...\" } (got %s)"):format(who, path,
            args.show(entry)), level + 1)
    end
    for _, key in ipairs(sorted_keys(entry)) do
        if not ENTRY[key] then
            args.unknown(who, "field of " .. path, key, { "source", "unit" }, level + 1)
        end
    end
    if type(entry.source) ~= "string" or entry.source == "" then
        error(("%s: %s has no source"):format(who, path), level + 1)
    elseif entry.unit ~= nil and type(entry.unit) ~= "string" then
        error(("%s: the unit of %s must be a text (got %s)"):format(who, path,
            args.show(entry.unit)), level + 1)
    end
    return (check_value(who, path, entry[1], rule, level + 1))
end

-- Checks a table against a shape: visits leaves by name, and refuses what is missing or unknown.
local function walk(who, path, t, shape, leaf, level)
    if type(t) ~= "table" then
        error(("%s: %s must be a table (got %s)"):format(who, path == "" and "the file" or path,
            args.show(t)), level + 1)
    end
    local names, out = sorted_keys(shape), {}
    for _, key in ipairs(sorted_keys(t)) do
        if shape[key] == nil then
            args.unknown(who, path == "" and "field" or "field of " .. path, key, names, level + 1)
        end
    end
    for _, name in ipairs(names) do
        local rule, here = shape[name], path == "" and name or path .. "." .. name
        if t[name] == nil then
            if type(rule) == "table" or rule:sub(-1) ~= "?" then
                error(("%s: %s is missing"):format(who, here), level + 1)
            end
        elseif type(rule) == "table" then
            out[name] = walk(who, here, t[name], rule, leaf, level + 1)
        else
            out[name] = leaf(who, here, t[name], rule, level + 1)
        end
    end
    return out
end

-- The sources of a checked file, by path: "links.inside.alpha".
local function list_sources(t, shape, path, out)
    for name, rule in pairs(shape) do
        local here = path == "" and name or path .. "." .. name
        if type(rule) == "table" then
            list_sources(t[name], rule, here, out)
        elseif t[name] ~= nil then
            out[here] = t[name].source
        end
    end
    return out
end

--- Checks what a cluster file returned.
-- @tparam string name what messages call it
-- @tparam table file
-- @tparam ?number level whom errors blame
-- @treturn table a cluster: bare numbers under the names of `shape`; `name`; `sources` by path
-- @raise `cluster h100: links.inside.alpha must be a number >= 0 (got -1)`: a missing, negative,
-- infinite or unknown number, one without a source
function M.check(name, file, level)
    level = (level or 1) + 1
    local who = "cluster " .. name
    local cluster = walk(who, "", file, M.shape, check_entry, level)
    cluster.name = name
    cluster.sources = list_sources(file, M.shape, "", {})
    return setmetatable(cluster, Cluster)
end

-- What a cluster file may call: the clusters that come with cplab, to be completed.
local function globals()
    local shipped = {}
    for _, name in ipairs(M.names) do shipped[#shipped + 1] = "cplab.clusters." .. name end
    shipped[#shipped + 1] = "cplab.clusters.gpu"
    return { require = function(name)
        return require((args.one_of("require", "cluster file", name, shipped, 2)))
    end }
end

local function read(name, level)
    if not name:find "[/.]" then
        args.one_of("cluster", "cluster", name, M.names, level + 1)
        return require("cplab.clusters." .. name)
    end
    local chunk, message = loadfile(name, "t", globals())
    if not chunk then error("cluster: " .. message, level + 1) end
    local ok, file = pcall(chunk)
    if not ok then error(("cluster: %s"):format(tostring(file)), level + 1) end
    return file
end

--- Loads a cluster: one of `names`, or a file (anything with a "/" or a "." in it).
-- @tparam string name
-- @tparam ?number level whom errors blame
-- @treturn table as `check`
-- @raise an unknown name, with the nearest; a file that cannot be read; what `check` raises
function M.load(name, level)
    level = (level or 1) + 1
    args.value("cluster.load", "name", name, "string", level)
    return (M.check(name, read(name, level), level))
end

--- Whether a value is a cluster.
function M.is(value)
    return getmetatable(value) == Cluster
end

-- A copy of t in which the numbers of `changes` stand instead.
local function changed(who, path, t, changes, shape, level)
    local out, names = {}, sorted_keys(shape)
    for key, value in pairs(t) do out[key] = value end
    if type(changes) ~= "table" then
        error(("%s: %s must be a table (got %s)"):format(who, path == "" and "the changes" or path,
            args.show(changes)), level + 1)
    end
    for _, key in ipairs(sorted_keys(changes)) do
        local here, rule = path == "" and tostring(key) or path .. "." .. tostring(key), shape[key]
        if rule == nil then
            args.unknown(who, path == "" and "field" or "field of " .. path, key, names, level + 1)
        elseif type(rule) == "table" then
            out[key] = changed(who, here, t[key], changes[key], rule, level + 1)
        else
            out[key] = check_value(who, here, changes[key], rule, level + 1)
        end
    end
    return out
end

--- The same cluster with other numbers: bare ones, under the names of `shape`.
-- @usage h100:with { ranks_per_node = 4, links = { between = { beta = 92e9 } } }
-- @raise unknown names and values out of range, as in a file
function Cluster:with(changes)
    local out = changed("cluster.with", "", self, changes, M.shape, 2)
    return setmetatable(out, Cluster)
end

-- ---- seconds --------------------------------------------------------------------

--- Seconds of work: `flop` floating point operations of one kind, in so many pieces.
-- @tparam string kind of `shape.efficiency`
-- @tparam string dtype of `shape.flops`
function Cluster:work(kind, dtype, flop, pieces)
    local curve = self.efficiency[kind]
    return (flop + pieces * curve.half) / (self.flops[dtype] * curve.max)
end

--- Seconds of `calls` kernels that move `bytes` through memory, reads and writes together.
function Cluster:move(bytes, calls)
    return (bytes + calls * self.memory.half) / self.memory.bandwidth
end

--- Seconds of `calls` kernels that compute on what they move, row by row.
function Cluster:pointwise(bytes, calls)
    if bytes == 0 then return 0 end
    local memory = self.memory
    return calls * (memory.half / memory.bandwidth + self.host.launch)
        + bytes / (memory.pointwise or memory.bandwidth)
end

local function over(link, bytes, messages)
    if messages == 0 then return 0 end
    return link.alpha + messages * link.message + (bytes + link.half) / link.beta
end

--- Seconds of two things of which a share of the shorter one hides behind the other.
function M.together(a, b, share)
    return a + b - share * math.min(a, b)
end

--- Seconds of one rank and direction of an exchange: bytes and messages over each level of links.
function Cluster:exchange(inside_bytes, inside_messages, between_bytes, between_messages)
    local links = self.links
    return M.together(over(links.inside, inside_bytes, inside_messages),
        over(links.between, between_bytes, between_messages), links.overlap)
end

-- Ranks that share cores are threads that the system gives equal turns: while k of them work on c
-- cores, each advances at c / k. So the last one is done after more than the mean of all work where
-- it is alone at the end.
local function in_turns(seconds, cores)
    table.sort(seconds)
    local n, elapsed, done = #seconds, 0, 0
    for i, work in ipairs(seconds) do
        elapsed = elapsed + (work - done) * math.max((n - i + 1) / cores, 1)
        done = work
    end
    return elapsed
end

--- Seconds until all ranks are done: the slowest one alone, or where ranks share cores in turns.
-- @param seconds by rank: a list from 1, or with n a C array from 0
-- @tparam ?number n
function Cluster:slowest(seconds, n)
    local most, list = 0, {}
    for i = n and 0 or 1, n and n - 1 or #seconds do
        most, list[#list + 1] = math.max(most, seconds[i]), seconds[i]
    end
    return self.cores and in_turns(list, self.cores) or most
end

return M
