-- A whole sweep through the real program: table, files, statuses, errors of single ranks.
local command = require "spec.cli.command"
local json = require "cplab.json"

local folder, script

local text = [[
local cplab = require "cplab"
return cplab.experiment {
    name = "modes", about = "One case of every kind.",
    sweep = { mode = { "good", "bad", "broken", "left out" }, cp = { 1, 3 } },
    params = { depth = 2 },
    skip = function(case) return case.mode == "left out" and "by choice" end,
    run = function(lab)
        if lab.case.mode == "broken" and lab.rank == lab.size - 1 then
            error("rank " .. lab.rank .. " alone")
        end
        lab:check("small", lab.case.mode == "bad" and 0/0 or 0.5, 1)
        lab:check("depth", lab.case.depth, { equals = 2 })
        lab:record { size = lab.size }
    end,
}
]]

local function run(words)
    local all = { "run", script }
    for _, word in ipairs(words or {}) do all[#all + 1] = word end
    return command.cplab(all)
end

local function lines(path)
    local list = {}
    for line in command.read(path):gmatch "([^\n]*)\n" do list[#list + 1] = line end
    return list
end

local function decoded(path)
    local list = {}
    for i, line in ipairs(lines(path)) do list[i] = assert(json.decode(line)) end
    return list
end

describe("cplab run", function()
    before_each(function()
        folder = command.folder()
        script = command.write(folder .. "/modes.lua", text)
    end)
    after_each(function() command.remove(folder) end)

    it("prints one row a case, the reasons, and the counts", function()
        local result = run()
        assert.equal(1, result.status)
        assert.equal(([[
cp  mode      verdict
 1  good      passed
 1  bad       failed
 1  broken    error
 1  left out  skipped
 3  good      passed
 3  bad       failed
 3  broken    error
 3  left out  skipped
failed: cp=1 mode=bad: check small: nan, must be at most 1
error: cp=1 mode=broken: rank 0: FILE:9: rank 0 alone
skipped: cp=1 mode=left out: by choice
failed: cp=3 mode=bad: check small: nan, must be at most 1
error: cp=3 mode=broken: rank 2: FILE:9: rank 2 alone
skipped: cp=3 mode=left out: by choice
8 cases: 2 passed, 2 failed, 2 errors, 2 skipped
]]):gsub("FILE", script), result.out)
    end)

    it("tells on stderr how far it is, and whose traceback it was", function()
        local err = run({ "--only", "mode=broken", "--only", "cp=3" }).err
        assert.truthy(err:find(("^cplab: cp=3 mode=broken: error: rank 2: %s:9: rank 2 alone\n"
            .. "stack traceback:\n"):format(script:gsub("%p", "%%%0"))))
        assert.truthy(err:find(script .. ":9: in function", 1, true))
        assert.truthy(err:find "\ncplab: case 1 of 1, cp=3 mode=broken: error, %d+%.%d s\n$")
    end)

    it("is silent on stderr but for progress, and passes with status 0", function()
        local result = run { "--only", "mode=good" }
        assert.equal(0, result.status)
        assert.truthy(result.err:find("^cplab: case 1 of 2, cp=1 mode=good: passed, %d+%.%d s\n"
            .. "cplab: case 2 of 2, cp=3 mode=good: passed, %d+%.%d s\n$"))
    end)

    it("fails a count that is not equal", function()
        local result = run { "--only", "mode=good", "--only", "cp=1", "--set", "depth=3" }
        assert.equal(1, result.status)
        assert.truthy(result.out:find("check depth: 3, must be 2\n", 1, true))
    end)

    it("writes one object a case", function()
        local path = folder .. "/out.jsonl"
        run { "--json", path }
        local list = decoded(path)
        assert.equal(8, #list)
        local passed, failed, broken, skipped = list[5], list[6], list[7], list[8]
        assert.same({ cp = 3, tp = 1, mode = "good", depth = 2, multiple = 6 }, passed.case)
        assert.same({ "cplab.case/1", "modes", "passed", json.null },
            { passed.schema, passed.experiment, passed.status, passed.reason })
        assert.same({
            { name = "small", passed = true, value = 0.5, bound = 1 },
            { name = "depth", passed = true, value = 2, bound = { equals = 2 } },
        }, passed.checks)
        assert.same({ { size = 3 } }, passed.records)
        assert.equal("0.1.0", passed.env.version)
        assert.same({ "failed", "nan" }, { failed.status, failed.checks[1].value })
        assert.same({ "error", ("rank 2: %s:9: rank 2 alone"):format(script) },
            { broken.status, broken.reason })
        assert.same({ "skipped", "by choice" }, { skipped.status, skipped.reason })
    end)

    it("writes the same cases as comma-separated values", function()
        local path = folder .. "/out.csv"
        run { "--csv", path, "--only", "cp=3" }
        local list = lines(path)
        assert.equal("experiment,cp,mode,tp,status,reason,conversions_fwd",
            list[1]:match "^[^,]*,[^,]*,[^,]*,[^,]*,[^,]*,[^,]*,[^,]*")
        assert.equal("modes,3,good,1,passed,,", list[2]:sub(1, 23))
        assert.equal("modes,3,left out,1,skipped,by choice,", list[5]:sub(1, 37))
    end)

    it("skips what needs more ranks than --ranks", function()
        local result = run { "--only", "mode=good", "--ranks", "2" }
        assert.equal(0, result.status)
        assert.truthy(result.out:find("skipped: cp=3 mode=good: needs 3 ranks, --ranks is 2\n", 1,
            true))
    end)

    it("lists the cases and runs nothing", function()
        for _, option in ipairs { "--list", "--dry-run" } do
            local path = folder .. "/out.jsonl"
            local result = run { option, "--only", "cp=3", "--json", path }
            assert.same({ status = 0, err = "", out = "cp=3 mode=good  3 ranks\n"
                .. "cp=3 mode=bad  3 ranks\ncp=3 mode=broken  3 ranks\n"
                .. "cp=3 mode=left out  skipped: by choice\n" }, result)
            assert.is_nil(command.read(path))
        end
    end)
end)

describe("cplab run without room", function()
    before_each(function()
        folder = command.folder()
        script = command.write(folder .. "/modes.lua", text)
    end)
    after_each(function() command.remove(folder) end)

    -- One run with a limit on the size of files, in blocks of 1,024 bytes.
    local function limited(blocks, words)
        return command.shell(("trap '' XFSZ; ulimit -f %d; %s/cplab run %s --only mode=good %s")
            :format(blocks, command.root, script, words))
    end

    it("prints the table, and says which file is not whole", function()
        local result = run { "--only", "mode=good", "--json", "/dev/full" }
        assert.equal(2, result.status)
        assert.truthy(result.out:find "\n2 cases: 2 passed, 0 failed, 0 skipped\n$")
        local _, n = result.err:gsub("cplab: results: cannot write /dev/full: "
            .. "No space left on device\n", "")
        assert.equal(1, n)
    end)

    it("leaves whole lines behind", function()
        local path = folder .. "/out.jsonl"
        local result = limited(1, "--json " .. path)
        assert.equal(2, result.status)
        assert.truthy(result.out:find "\n2 cases: 2 passed, 0 failed, 0 skipped\n$")
        assert.truthy(result.err:find("cannot write " .. path .. ": File too large\n", 1, true))
        assert.truthy(("\n" .. command.read(path)):find "\n$")
    end)

    it("does not pass where standard output cannot be written", function()
        local full = "cplab: cannot write standard output: No space left on device\n"
        local closed = "cplab: cannot write standard output: Bad file descriptor\n"
        for redirection, sentence in pairs { [">/dev/full"] = full, [">&-"] = closed } do
            local path = folder .. "/out.jsonl"
            local result = command.shell(("%s/cplab run %s --only mode=good --json %s %s"):format(
                command.root, script, path, redirection))
            assert.equal(2, result.status)
            assert.equal(sentence, result.err:match "[^\n]*\n$")
            assert.equal(2, #decoded(path))
        end
    end)
end)

describe("cplab run --resume", function()
    local path, whole

    before_each(function()
        folder = command.folder()
        script = command.write(folder .. "/modes.lua", text)
        path = folder .. "/out.jsonl"
        run { "--json", path }
        whole = lines(path)
    end)
    after_each(function() command.remove(folder) end)

    it("runs only what is missing, after a line that was cut off", function()
        command.write(path, table.concat(whole, "\n", 1, 5) .. "\n" .. whole[6]:sub(1, 100))
        local result = run { "--json", path, "--resume", "--csv", folder .. "/out.csv" }
        assert.equal(1, result.status)
        assert.truthy(result.out:find "\n8 cases: 2 passed, 2 failed, 2 errors, 2 skipped\n$")
        local _, n_run = result.err:gsub("cplab: case ", "")
        assert.equal(3, n_run)
        assert.equal(("cplab: resume: 5 of 8 cases from %s\n"):format(path),
            result.err:match "^[^\n]*\n")
        assert.truthy(result.err:find("cplab: case 3 of 3, ", 1, true))
        assert.same(whole, lines(path))
        assert.equal(9, #lines(folder .. "/out.csv"))
    end)

    it("starts a file that is not there", function()
        os.remove(path)
        run { "--json", path, "--resume" }
        assert.equal(8, #lines(path))
    end)

    it("runs again what was skipped for want of ranks", function()
        run { "--json", path, "--ranks", "1", "--only", "mode=good" }
        local result = run { "--json", path, "--resume", "--only", "mode=good" }
        assert.truthy(result.out:find "\n2 cases: 2 passed, 0 failed, 0 skipped\n$")
        assert.equal(3, #lines(path))
        assert.truthy(command.cplab({ "report", path }).out:find "2 passed, 0 failed, 0 skipped")
    end)

    it("does not take a case of another param for its own", function()
        local result = run { "--json", path, "--resume", "--only", "mode=good", "--set",
            "depth=3" }
        assert.equal(1, result.status)
        assert.equal(10, #lines(path))
    end)
end)

describe("cplab report and compare", function()
    before_each(function()
        folder = command.folder()
        script = command.write(folder .. "/modes.lua", text)
    end)
    after_each(function() command.remove(folder) end)

    it("print what run printed, from its file", function()
        local path = folder .. "/out.jsonl"
        local first = run { "--json", path }
        local again = command.cplab { "report", path }
        assert.same({ status = 1, out = first.out, err = "" }, again)
    end)

    it("compare a file with itself", function()
        local path = folder .. "/out.jsonl"
        run { "--json", path }
        assert.same({ status = 0, err = "",
            out = "8 cases in both, 0 only in A, 0 only in B, 0 values changed\n" },
            command.cplab { "compare", path, path })
    end)

    it("refuse what is no file of results", function()
        for _, words in ipairs { { "report", "/no/such" }, { "compare", "/no/such", script } } do
            assert.same({ status = 2, out = "", err = "cplab: results: cannot read /no/such: "
                .. "No such file or directory\n" }, command.cplab(words))
        end
        assert.same({ status = 2, out = "", err = ("cplab: %s:1: json: no JSON at character 1\n")
            :format(script) }, command.cplab { "report", script })
    end)
end)
