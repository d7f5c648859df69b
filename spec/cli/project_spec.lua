-- `./cplab project`: tables, curves, files and what is refused. Nothing is run or measured here but
-- --fit of this machine.
local command = require "spec.cli.command"
local json = require "cplab.json"

local SCRIPT = [[
local cplab = require "cplab"
return cplab.experiment {
    name = "small", sweep = { policy = { "contiguous", "mirror" }, cp = { 2, 16 } },
    stream = function(case)
        return cplab.stream.thd { lengths = { 8 * case.multiple, 2 * case.multiple } }
    end,
    model = function(case)
        return cplab.model {
            schedule = cplab.schedule.pattern("G*", 2), policy = case.policy, hidden = 64,
            vocab = 32, gqa = { heads = 4, kv_heads = 2, head_dim = 16 },
            gdn = { key_heads = 2, value_heads = 2, key_dim = 16, value_dim = 16 },
            mlp = { width = 128 },
        }
    end,
    run = function() error "projections run nothing" end,
}
]]

describe("project", function()
    local folder, script

    setup(function()
        folder = command.folder()
        script = command.write(folder .. "/small.lua", SCRIPT)
        command.write(folder .. "/raises.lua", "error 'no'")
    end)
    teardown(function() command.remove(folder) end)

    local function project(...)
        return command.cplab { "project", ... }
    end

    it("prints a row for each case and runs nothing", function()
        local result = project(script, "--cluster", "h100")
        assert.same({ 0, "" }, { result.status, result.err })
        assert.truthy(result.out:find "^# projected on h100, bf16, forward and backward\npolicy")
        local _, n = result.out:gsub("\n", "")
        assert.equal(6, n)
        assert.truthy(result.out:find "\nmirror +16 +%d+%.%d%d%d ")
    end)

    it("skips what the nodes have no ranks for", function()
        local result = project(script, "--cluster", "h100", "--nodes", "1")
        assert.equal(0, result.status)
        assert.truthy(result.out:find("skipped: policy=mirror cp=16: needs 16 ranks, 1 node of "
            .. "h100 have 8", 1, true))
        result = project(script, "--cluster", "h100", "--nodes", "1", "--only", "cp=16")
        assert.equal(2, result.status)
        assert.truthy(result.err:find("nothing to project: all 2 cases are skipped", 1, true))
    end)

    it("has parts that add up, of each case one line of JSON", function()
        local path = folder .. "/out.json"
        local result = project(script, "--cluster", "h100", "--json", path)
        assert.equal(0, result.status)
        local n = 0
        for line in io.lines(path) do
            local row = assert(json.decode(line))
            n = n + 1
            assert.equal(2, row.conversions)
            assert.equal("cplab.projection/1", row.schema)
            assert.equal("projected", row.status)
            assert.near(row.step_ms, row.compute_ms + row.comm_ms + row.convert_ms + row.host_ms,
                1e-9 * row.step_ms)
            local sum = 0
            for _, item in ipairs(row.items) do sum = sum + item.ms end
            assert.near(row.step_ms, sum, 1e-9 * row.step_ms)
        end
        assert.equal(4, n)
    end)

    it("writes a timeline in which every rank's events fill the step", function()
        local path = folder .. "/out.trace"
        local result = project(script, "--cluster", "h100", "--only", "cp=16", "--trace", path,
            "--json", folder .. "/trace.json")
        assert.equal(0, result.status)
        local steps = {}
        for line in io.lines(folder .. "/trace.json") do
            steps[#steps + 1] = json.decode(line).step_ms
        end
        local ends = {}
        for _, e in ipairs(assert(json.decode(command.read(path))).traceEvents) do
            if e.ph == "X" then
                assert.near(ends[e.pid] or 0, e.ts, 1e-3) -- a nanosecond
                ends[e.pid] = e.ts + e.dur
            end
        end
        for pid = 0, 31 do
            assert.near(steps[pid < 16 and 1 or 2] * 1e3, ends[pid], 1e-3)
        end
        assert.is_nil(ends[32])
    end)

    it("sweeps sizes, says who is best and where curves cross", function()
        local path = folder .. "/sweep.json"
        local result = project(script, "--cluster", "h100", "--sweep", "tokens=1k..16k", "--only",
            "cp=2", "--json", path)
        assert.same({ 0, "" }, { result.status, result.err })
        local n = 0
        for line in io.lines(path) do
            local row = json.decode(line)
            n = n + 1
            local size = 2 ^ (10 + math.floor((n - 1) / 2))
            assert.same({ axis = "tokens", value = size }, row.sweep)
            assert.near(size, row.tokens, size / 8)
            assert.truthy(result.out:find((" %.3f"):format(row.step_ms), 1, true))
        end
        assert.equal(10, n)
        local lines = {}
        for line in result.out:gmatch "[^\n]+" do lines[#lines + 1] = line end
        assert.truthy(lines[1]:find("; cp=2; step ms", 1, true))
        assert.truthy(lines[2]:find "^tokens +a rank +contiguous +mirror +best$")
        assert.truthy(lines[3]:find "^ +1k +512 ")
        assert.truthy(lines[7]:find "^ +16k +8k ")
        assert.truthy(lines[8]:find "pays against" or lines[8] == "no curves cross")
        result = project(script, "--cluster", "h100", "--sweep", "nodes=1,2")
        assert.equal(0, result.status)
        assert.truthy(result.out:find "\n +2 +16 ")
    end)

    it("has prices of the cluster file that is named", function()
        local path = folder .. "/mine.lua"
        local result = project("--fit", "--out", path)
        assert.same({ 0, "", "" }, { result.status, result.out, result.err })
        result = project(script, "--cluster", path, "--only", "cp=2")
        assert.equal(0, result.status)
        assert.truthy(result.out:find("# projected on " .. path, 1, true))
        local broken = command.read(path):gsub("cores = { %d+", "cores = { -2", 1)
        command.write(folder .. "/broken.lua", broken)
        result = project(script, "--cluster", folder .. "/broken.lua")
        assert.equal(2, result.status)
        assert.truthy(result.err:find("cores must be an integer >= 1 (got -2)", 1, true))
    end)

    it("opens all files or none", function()
        local path = folder .. "/whole.json"
        local result = project(script, "--json", path, "--trace", "/nowhere/x")
        assert.same({ 2, "" }, { result.status, result.out })
        assert.is_nil(command.read(path))
        result = project(script, "--json", path, "--trace", path)
        assert.truthy(result.err:find("--json and --trace name the same file", 1, true))
        result = project(script, "--json", script)
        assert.truthy(result.err:find("would overwrite the script", 1, true))
    end)

    it("recomputes published results", function()
        local path = folder .. "/claims.json"
        local result = project("--claims", "--json", path)
        assert.same({ 0, "" }, { result.status, result.err })
        assert.truthy(result.out:find "conversions at 1:3 +MLM#6387 +zigzag base +6 +6 +reproduced")
        assert.truthy(result.out:find " 0 off, ")
        local first = assert(json.decode(assert(command.read(path)):match "[^\n]+"))
        assert.same({ "6", "2", "67" }, first.published)
    end)

    it("is an error of the case where its model cannot be", function()
        local bad = SCRIPT:gsub("hidden = 64", "hidden = case.cp == 2 and 64 or -1")
        command.write(folder .. "/bad.lua", bad)
        local result = project(folder .. "/bad.lua", "--cluster", "h100")
        assert.equal(1, result.status)
        assert.truthy(result.out:find "error: policy=mirror cp=16: .*hidden must be")
    end)

    local wrong = {
        { {}, "project: takes an experiment, or --fit, --validate or --claims" },
        { { "--fit", "--claims" }, "project: --claims and --fit are two commands" },
        { { "--claims", "--cluster", "h100" }, "project: --cluster does not go with --claims" },
        { { "--validate", "--out", "x" }, "project: --out does not go with --validate" },
        { { "SCRIPT", "--out", "x" }, "project: --out does not go with an experiment" },
        { { "SCRIPT", "--claims" }, "project: --claims takes no experiment (got SCRIPT)" },
        { { "SCRIPT", "--cluster", "h10" },
            'cluster: unknown cluster "h10"; did you mean "h100"?' },
        { { "SCRIPT", "--sweep", "layers=1..8" },
            "--sweep takes tokens=8k..1m, cp=4..64 or nodes=1,2,4, got 'layers=1..8'" },
        { { "SCRIPT", "--sweep", "cp=2,4", "--trace", "x" },
            "project: --trace is of single cases, not of a --sweep" },
        { { "--claims", "--only", "cp=2" }, "project: --only does not go with --claims" },
        { { "--fit", "--set", "cp=2" }, "project: --set does not go with --fit" },
        { { "SCRIPT", "--forward", "--recompute" },
            "project: --recompute says how backward runs, and --forward has none" },
        { { "SCRIPT", "--cluster", "BROKEN" },
            "cluster: BROKEN:1: attempt to call global 'error' (a nil value)" },
        { { "SCRIPT", "--set", "tokns=3" }, "--set: unknown axis or param" },
        { { "SCRIPT", "--json", "/nowhere/x" }, "project: cannot write /nowhere/x" },
        { { "SCRIPT", "--nodes", "0" }, "--nodes takes a whole number >= 1, got '0'" },
    }
    for _, row in ipairs(wrong) do
        it("refuses: " .. table.concat(row[1], " "), function()
            local words = {}
            local files = { SCRIPT = script, BROKEN = folder .. "/raises.lua" }
            for i, word in ipairs(row[1]) do words[i] = files[word] or word end
            local result = project(unpack(words))
            assert.same({ 2, "" }, { result.status, result.out })
            local sentence = row[2]:gsub("%u%u+", files)
            assert.truthy(result.err:find(sentence, 1, true), result.err)
        end)
    end
end)
