-- The numbers of a step do not depend on how bytes move: those of the ranks here are the bits that
-- threads of another process compute. Without mpirun this compares threads with threads.
local case_run = require "cplab.case_run"
local command = require "spec.cli.command"
local experiment = require "cplab.experiment"
local json = require "cplab.json"
local ranks = require "spec.support.ranks"
local results = require "cplab.results"
local sweep = require "cplab.sweep"

-- The scripts beside this one, the axes that name a case, on how many ranks its cases run, and how
-- many cases there are for each of these.
local SCRIPTS = {
    numbers = { axes = { "stream", "policy", "cp" }, ranks = { 1, 2, 3, 4, 8 }, cases = 10 },
    modes = { axes = { "mode", "policy", "cp" }, ranks = { 1, 2, 3, 4, 8 }, cases = 14 },
    split = { axes = { "method", "policy", "cp", "tp" }, ranks = { 2, 4, 4, 8, 8, 16 }, cases = 6 },
    decode = { axes = { "policy", "cp" }, ranks = { 1, 2, 3, 4 }, cases = 2 },
}

-- What may differ: times, and the memory that each transport takes.
local function is_free(name)
    return name:find "_ms$" ~= nil or name == "peak_bytes"
end

-- One line of a result with what must not differ, by its case.
local function lines(list, axes)
    local by_case, n = {}, 0
    for _, result in ipairs(list) do
        for name in pairs(result.metrics or {}) do
            if is_free(name) then result.metrics[name] = nil end
        end
        local case = sweep.describe(result.case, axes)
        by_case[case] = results.encode { experiment = "lab", status = result.status,
            reason = result.reason ~= json.null and result.reason or nil,
            metrics = result.metrics, checks = result.checks, records = result.records }
        n = n + 1
    end
    return by_case, n
end

local function by_threads(path, max)
    local folder = command.folder()
    local file = folder .. "/out.jsonl"
    local words = { "run", path, "--ranks", tostring(max), "--json", file }
    local run = command.cplab(words)
    local list = assert(results.read(file))
    command.remove(folder)
    assert.equal(0, run.status, run.err)
    return list
end

local function by_these_ranks(path, max)
    local script = assert(experiment.load(path))
    local list = {}
    for _, case in ipairs(assert(sweep.cases(script.sweep, {}))) do
        if sweep.n_ranks(case) <= max and ranks.has(sweep.n_ranks(case)) then
            local result = case_run.run(path, case, { deadline = 60 })
            result.case = case
            list[#list + 1] = result
        end
    end
    return list
end

for name, about in pairs(SCRIPTS) do describe("a lab of " .. name, function()
    local path = command.root .. "/spec/mpi/" .. name .. ".lua"
    local max = math.min(ranks.world(), 8)
    if #ranks.sizes(about.ranks) == 0 then return end -- every case needs more ranks
    local theirs, here

    lazy_setup(function()
        local ran = {}
        for _, result in ipairs(by_threads(path, max)) do
            local is_wanted = ranks.has(sweep.n_ranks(result.case))
            if is_wanted and result.status ~= "skipped" then ran[#ran + 1] = result end
        end
        theirs, here = ran, by_these_ranks(path, max)
    end)

    it("passes parity and token tracing in every case", function()
        for _, result in ipairs(here) do
            assert.equal("passed", result.status, result.reason)
        end
    end)

    it("computes the bits that threads compute", function()
        local a, n = lines(theirs, about.axes)
        local b, m = lines(here, about.axes)
        assert.equal(about.cases * #ranks.sizes(about.ranks), n)
        assert.equal(n, m)
        assert.same(a, b)
    end)
end) end
