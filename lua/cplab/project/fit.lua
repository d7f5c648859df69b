--- `project --fit`: this machine as a cluster file. Short calls of every kernel, exchanges and
-- routes are measured (cplab.project.fit_rank); lines through their times give rates and what is
-- fixed in a call (cplab.project.line).
-- @module cplab.project.fit
local clusters = require "cplab.cluster"
local environment = require "cplab.environment"
local files = require "cplab.project.files"
local line = require "cplab.project.line"
local ranks = require "cplab.ranks"

local M = {}

local MAX_RANKS = 1024 -- of one machine: all of them reach each other alike
local DEADLINE = 60

--- What is measured: rows are `width` numbers of f32; `gemm` rows of products;
-- `attention` and `delta` tokens of the kernels with the heads of `gqa` and `gdn`
-- (`spans`: the most tokens once more, as so many sequences); `memory`,
-- `pointwise` and `exchange` rows a rank; `routes` sequences.
M.sizes = {
    width = 256, gemm = { f32 = { 96, 384, 1024 }, f64 = { 384 } },
    gqa = { heads = 4, kv_heads = 2, head_dim = 64, window = 0 }, attention = { 128, 384, 1024 },
    spans = 16,
    gdn = { key_heads = 4, value_heads = 8, key_dim = 64, value_dim = 64, chunk = 64 },
    delta = { 128, 384, 1024 }, memory = { 128, 512, 2048 }, pointwise = { 64, 256, 1024 },
    exchange = { 16, 256, 2048 },
    routes = { 16, 256, 4096 },
}
M.rounds = 9

-- ---- numbers ----------------------------------------------------------------------------

local function of_kind(points, kind)
    local list = {}
    for _, point in ipairs(points) do
        if point.kind == kind then list[#list + 1] = point end
    end
    return list
end

local function fastest(points)
    local rate = 0
    for _, point in ipairs(points) do rate = math.max(rate, point.x / point.seconds) end
    return rate
end

local function kernels(points)
    local out = { efficiency = {}, flops = {} }
    local lines = { gemm = line.fit(of_kind(points, "gemm_f32")) }
    for _, pass in ipairs { "forward", "backward" } do
        lines["attention_" .. pass] = line.fit(of_kind(points, "attention_" .. pass))
        -- A call of the delta rule is a chunk there, and more tokens are more chunks.
        lines["gdn_" .. pass] = line.fit(of_kind(points, "gdn_" .. pass), true)
    end
    -- The peak is what anything reached, so that no efficiency is above 1.
    local peak = fastest(of_kind(points, "gemm_f32"))
    for _, fitted in pairs(lines) do peak = math.max(peak, 1 / fitted.slope) end
    for kind, fitted in pairs(lines) do
        out.efficiency[kind] = { max = 1 / fitted.slope / peak,
            half = fitted.fixed / fitted.slope }
    end
    out.flops.f32, out.flops.bf16 = peak, peak
    out.flops.f64 = fastest(of_kind(points, "gemm_f64"))
    return out
end

-- Least x of a list of points.
local function shortest(points)
    local least = points[1]
    for _, point in ipairs(points) do
        if point.x < least.x then least = point end
    end
    return least
end

-- Seconds of exchanges without the rows that stay and are copied from one place to another. What
-- remains is no less than half.
local function crossing(points, bandwidth)
    local list = {}
    for i, point in ipairs(points) do
        local own = point.seconds - 2 * (point.kept or 0) / bandwidth
        list[i] = { x = point.x, n_messages = point.n_messages, wall = point.wall,
            seconds = math.max(own, point.seconds / 2) }
    end
    return list
end

-- A rank copies with its own thread: that is what a byte and a message cost. The rest of the wall
-- clock's time of the shortest exchange is waiting.
local function link(points, bandwidth)
    local exchanges = crossing(of_kind(points, "exchange"), bandwidth)
    local fitted, least = line.fit(exchanges), shortest(exchanges)
    local own = math.max(0, least.seconds - least.x * fitted.slope)
    return { alpha = math.max(0, least.wall - least.seconds), message = own / least.n_messages,
        beta = 1 / fitted.slope, half = 0 }
end

--- The numbers of a cluster, from what was measured.
-- @tparam table points of cplab.project.fit_rank
-- @tparam number cores
-- @treturn table under the names of cplab.cluster.shape
function M.numbers(points, cores)
    local out, memory = kernels(points), line.fit(of_kind(points, "memory"))
    local inside = link(points, 1 / memory.slope)
    out.ranks_per_node, out.cores = MAX_RANKS, cores
    out.memory = { bandwidth = 1 / memory.slope, half = memory.fixed / memory.slope, pack = 0,
        pointwise = 1 / line.fit(of_kind(points, "pointwise")).slope }
    out.links = { inside = inside, between = inside, overlap = 0 }
    out.overlap = { ring = 0, gather = 0, convert = 0, gradients = 0, halo = 0 }
    out.host = { sync = 0, launch = 0, lazy_syncs = 0, prebuilt_syncs = 0,
        segment = line.fit(of_kind(points, "route")).slope }
    return out
end

-- ---- text -------------------------------------------------------------------------------

local THREADS = "ranks copy with their own threads, so nothing hides"
local FULL = "part of the rate: chunks are full"
local NO_DEVICE = "no device to wait for"

-- Names in order, and how each number came to be: { path, unit, how, is_set = it is not measured }.
local ENTRIES = {
    { "ranks_per_node", nil, "all ranks are threads of one process", is_set = true },
    { "cores", nil, "processors that this process may use" },
    { "flops.bf16", "FLOP/s", "as f32, in which this build computes", is_set = true },
    { "flops.f32", "FLOP/s", "fastest product of matrices" },
    { "flops.f64", "FLOP/s", "fastest product of matrices" },
    { "efficiency.gemm.max", nil, "slope over rows of projections of f32" },
    { "efficiency.gemm.half", "FLOP", "what is fixed in one of them" },
    { "efficiency.attention_forward.max", nil, "slope over tokens" },
    { "efficiency.attention_forward.half", "FLOP", "what is fixed in a span" },
    { "efficiency.attention_backward.max", nil, "slope over tokens" },
    { "efficiency.attention_backward.half", "FLOP", "what is fixed in a span" },
    { "efficiency.gdn_forward.max", nil, "mean over tokens" },
    { "efficiency.gdn_forward.half", "FLOP", FULL, is_set = true },
    { "efficiency.gdn_backward.max", nil, "mean over tokens" },
    { "efficiency.gdn_backward.half", "FLOP", FULL, is_set = true },
    { "memory.bandwidth", "B/s", "slope over sums, copies and norms" },
    { "memory.pointwise", "B/s", "slope over the pointwise kernels of GDN and an MLP" },
    { "memory.half", "B", "what is fixed in a call" },
    { "memory.pack", nil, "rows go straight from rank to rank", is_set = true },
    { "links.inside.alpha", "s", "waiting in the shortest exchange" },
    { "links.inside.message", "s", "CPU time of it beside its bytes" },
    { "links.inside.beta", "B/s", "slope over conversions, in and out of place" },
    { "links.inside.half", "B", "part of message", is_set = true },
    { "links.between.alpha", "s", "as inside: there is one machine", is_set = true },
    { "links.between.message", "s", "as inside", is_set = true },
    { "links.between.beta", "B/s", "as inside", is_set = true },
    { "links.between.half", "B", "as inside", is_set = true },
    { "links.overlap", nil, THREADS, is_set = true },
    { "overlap.ring", nil, THREADS, is_set = true },
    { "overlap.gather", nil, THREADS, is_set = true },
    { "overlap.convert", nil, THREADS, is_set = true },
    { "overlap.gradients", nil, THREADS, is_set = true },
    { "overlap.halo", nil, THREADS, is_set = true },
    { "host.sync", "s", NO_DEVICE, is_set = true },
    { "host.launch", "s", "part of what is fixed in a call", is_set = true },
    { "host.segment", "s", "slope over routes of more and more sequences" },
    { "host.lazy_syncs", nil, NO_DEVICE, is_set = true },
    { "host.prebuilt_syncs", nil, NO_DEVICE, is_set = true },
}

local function at(numbers, path)
    local value = numbers
    for name in path:gmatch "[^.]+" do value = value[name] end
    return value
end

local function words(path)
    local list = {}
    for name in path:gmatch "[^.]+" do list[#list + 1] = name end
    return list
end

-- A writer of nested tables: opens and closes what the next path needs.
local function enter(lines, open, names)
    local same = 0
    while same < #names - 1 and open[same + 1] == names[same + 1] do same = same + 1 end
    for depth = #open, same + 1, -1 do
        lines[#lines + 1] = ("    "):rep(depth) .. "},"
        open[depth] = nil
    end
    for depth = same + 1, #names - 1 do
        lines[#lines + 1] = ("    "):rep(depth) .. names[depth] .. " = {"
        open[depth] = names[depth]
    end
end

-- One number, on two lines where one is too long.
local function add_entry(lines, names, value, source, how)
    local indent = ("    "):rep(#names)
    local first = ("%s%s = { %.4g, %s"):format(indent, names[#names], value, source)
    if #first + 1 + #how <= 100 then
        lines[#lines + 1] = first .. " " .. how
    else
        lines[#lines + 1], lines[#lines + 2] = first, indent .. "    " .. how
    end
end

--- A cluster file. Equal numbers and machines give equal texts.
-- @tparam table numbers of `numbers`
-- @tparam string machine in words
-- @treturn string Lua
function M.text(numbers, machine)
    local lines, open = {
        ("-- %s, as ./cplab project --fit measured it."):format(machine),
        ("local BY = %q"):format(("measured by project --fit on %s: "):format(machine)),
        'local SET = "set by project --fit, not measured: "',
        "return {",
    }, {}
    for _, entry in ipairs(ENTRIES) do
        local path, unit, how = unpack(entry, 1, 3)
        local names = words(path)
        enter(lines, open, names)
        add_entry(lines, names, at(numbers, path),
            ("%ssource = %s"):format(unit and ("unit = %q, "):format(unit) or "",
                entry.is_set and "SET" or "BY"), (".. %q },"):format(how))
    end
    enter(lines, open, { "" })
    lines[#lines + 1] = "}"
    return table.concat(lines, "\n") .. "\n"
end

--- This machine in words: processor, cores, library of products. No date, no name.
function M.machine()
    local env = environment.describe { device = "cpu" }
    return ("%s, %d core%s, %s"):format(env.cpu, env.cores, env.cores == 1 and "" or "s", env.blas),
        env.cores
end

-- ---- the command ------------------------------------------------------------------------

--- Why nothing can be measured here: under mpirun ranks are processes of a number that is given.
-- @treturn ?string
function M.refusal()
    local transport = environment.transport()
    if transport == "local" then return nil end
    return "project: --fit and --validate measure ranks that are threads, not under mpirun"
end

--- Measures this machine.
-- @tparam ?table sizes as `M.sizes`
-- @tparam ?number rounds
-- @treturn ?table points
-- @treturn ?string why there are none
function M.measure(sizes, rounds)
    local _, cores = environment.machine()
    local results, failure = ranks.run(math.min(math.max(cores, 2), 8), DEADLINE,
        "cplab.project.fit_rank", { sizes = sizes or M.sizes, rounds = rounds or M.rounds,
            kernels = true })
    if not results then return nil, failure.reason end
    return results[1]
end

--- The cluster of a text.
-- @treturn table of cplab.cluster.check
function M.cluster(text)
    return clusters.check("fitted", setfenv(assert(loadstring(text)), {})())
end

--- Carries `project --fit` out.
-- @tparam table arguments out
-- @treturn number exit status
-- @treturn ?string
function M.run(arguments)
    local refusal = M.refusal()
    if refusal then return 2, refusal end
    local outputs, wrong = files.open { out = arguments.out }
    if not outputs then return 2, wrong end
    local points, problem = M.measure()
    if not points then return 1, "project: " .. problem end
    local machine, cores = M.machine()
    local ok, numbers = pcall(M.numbers, points, cores)
    if not ok then return 1, "project: " .. tostring(numbers):gsub("^[^\n]-%.lua:%d+: ", "") end
    local text = M.text(numbers, machine)
    M.cluster(text)
    if outputs.out then outputs.out:put(text) else io.stdout:write(text) end
    local unwritten = files.close(outputs)
    if unwritten then return 2, unwritten end
    return 0
end

return M
