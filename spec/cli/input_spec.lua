-- Every wrong input ends with one clear sentence and status 2, before anything runs and before
-- anything is written.
local command = require "spec.cli.command"

local sweep = command.root .. "/experiments/ratio_sweep.lua"
local folder

-- Checks status and sentence, and that neither output came into being.
local function refuses(words, sentence)
    local json, csv = folder .. "/out.jsonl", folder .. "/out.csv"
    local all = { "run" }
    for _, text in ipairs(words) do all[#all + 1] = text end
    for _, text in ipairs { "--json", json, "--csv", csv } do all[#all + 1] = text end
    local result = command.cplab(all)
    assert.same({ status = 2, out = "", err = "cplab: " .. sentence .. "\n" }, result)
    assert.same({ nil, nil }, { command.read(json), command.read(csv) })
end

local function script(text)
    return command.write(folder .. "/script.lua", "local cplab = require 'cplab'\n" .. text)
end

local demo = [[return cplab.experiment {
    name = "demo", sweep = { cp = { 1, 2 }, policy = { "zigzag" }, ratio = { "1:3" } },
    params = { tokens = 64 }, run = function() end,
]]

describe("cplab run refuses", function()
    before_each(function() folder = command.folder() end)
    after_each(function() command.remove(folder) end)

    local options = {
        { "ratio=1:x", [[schedule.ratio: expected '1:k' (GQA:GDN), got '1:x']] },
        { "policy=zigzga", [[policy: unknown policy "zigzga"; did you mean "zigzag"?]] },
        { "polcy=zigzag", [[--set: unknown axis or param "polcy"; did you mean "policy"?]] },
        { "cp=0", "sweep: cp must be an integer >= 1 (got 0)" },
        { "cp=1.5", "sweep: cp must be an integer >= 1 (got 1.5)" },
        { "cp=two", '--set cp: takes a number, got "two"' },
        { "cp", "--set cp: the form is name=value" },
    }
    for _, row in ipairs(options) do
        it("--set " .. row[1], function()
            refuses({ script(demo .. "}"), "--set", row[1] }, row[2])
        end)
    end

    it("--only that names nothing or leaves nothing", function()
        local path = script(demo .. "}")
        refuses({ path, "--only", "cp=3" }, "--only cp=3: the sweep has no cp 3 (it has 1, 2)")
        refuses({ path, "--only", "pc=1" },
            [[--only: unknown axis or param "pc"; did you mean "cp"?]])
        refuses({ path, "--only", "cp=1", "--only", "cp=2" }, "--only: no case is left")
        refuses({ path, "--only", "cp=2", "--ranks", "1" },
            "nothing to run: the one case is skipped (needs 2 ranks, --ranks is 1)")
    end)

    it("a param that no kernel computes in", function()
        refuses({ sweep, "--set", "dtype=bf16" }, "dtype bf16: the cpu computes in f64 and f32")
    end)

    it("an output that is the script, and leaves it as it was", function()
        local path = script(demo .. "}")
        local before = command.read(path)
        assert.same({ status = 2, out = "",
            err = ("cplab: run: --json %s would overwrite the script\n"):format(path) },
            command.cplab { "run", path, "--json", path })
        assert.equal(before, command.read(path))
    end)

    it("--resume without a file", function()
        assert.same({ status = 2, out = "", err = "cplab: run: --resume needs --json FILE\n" },
            command.cplab { "run", script(demo .. "}"), "--resume" })
    end)

    it("--resume on a file of something else", function()
        local path = command.write(folder .. "/old", "hello\n")
        local result = command.cplab { "run", script(demo .. "}"), "--json", path, "--resume" }
        assert.same({ status = 2, out = "",
            err = ("cplab: %s:1: json: no JSON at character 1\n"):format(path) }, result)
        assert.equal("hello\n", command.read(path))
    end)

    it("a script that is wrong, with file and line", function()
        refuses({ folder .. "/none.lua" },
            ("cannot read the script %s/none.lua: No such file or directory"):format(folder))
        local at = folder .. "/script.lua:"
        refuses({ script "local x = = 1" }, at .. "2: unexpected symbol near '='")
        refuses({ script "\nerror 'no luck'" }, at .. "3: no luck")
        refuses({ script "return 7" },
            at .. "2: the script returns a number, not cplab.experiment { ... }")
        refuses({ script(demo .. "swep = 1 }") },
            at .. [[2: experiment: unknown field "swep"; did you mean "sweep"?]])
        refuses({ script "cplab.stream.thd { lenghts = {} }" },
            at .. [[2: stream.thd: unknown field "lenghts"; did you mean "lengths"?]])
        refuses({ script "cplab.layout.zigzg()" },
            at .. [[2: cplab.layout: unknown layout "zigzg"; did you mean "zigzag"?]])
    end)

    it("a ratio that the number of layers does not allow", function()
        local result = command.cplab { "run", sweep, "--set", "ratio=1:4" }
        assert.equal(2, result.status)
        assert.truthy(result.err:find "^cplab: [^\n]*ratio_sweep.lua:%d+: schedule.ratio: "
            .. "8 layers, not a multiple of 1 %+ 4 for ratio 1:4\n$")
    end)
end)

describe("cplab run refuses what a script builds", function()
    before_each(function() folder = command.folder() end)
    after_each(function() command.remove(folder) end)

    local function refuses_functions(functions, sentence)
        local path = script("\nlocal function broken()\n    error('no place', 0)\nend\n"
            .. demo .. functions .. "}")
        refuses({ path }, path .. sentence)
    end

    it("where stream() returns no stream", function()
        refuses_functions("stream = function() return {} end",
            ":9: stream() must return a cplab.stream (got a table)")
        refuses_functions("stream = function() end",
            ":9: stream() must return a cplab.stream (got nil)")
    end)

    it("where model() returns no model", function()
        refuses_functions("model = function() return 7 end",
            ":9: model() must return a cplab.model (got 7)")
    end)

    it("with the place of the function where the message has none of the script", function()
        refuses_functions("stream = broken", ":3: no place")
        refuses_functions("stream = function() return cplab.stream.thd { lengths = 1 } end",
            ":9: stream.thd: lengths must be a list (got 1)")
        refuses_functions("\nstream = function()\nlocal s = cplab.stream.thd { lengths = 1 }\n"
            .. "return s end", ":11: stream.thd: lengths must be a list (got 1)")
    end)

    it("in show as well", function()
        local path = script(demo .. "stream = function() end }")
        local err = ("cplab: show: the experiment has no model(case)\n")
        assert.same({ status = 2, out = "", err = err }, command.cplab { "show", path })
        path = script(demo .. "stream = function() end, model = function() return 1 end }")
        err = ("cplab: %s:5: model() must return a cplab.model (got 1)\n"):format(path)
        assert.same({ status = 2, out = "", err = err }, command.cplab { "show", path })
    end)

    it("for the first step, which has the number 0", function()
        refuses_functions("stream = function(_, step) return step end",
            ":9: stream() must return a cplab.stream (got 0)")
    end)

    it("at once, however long the period of a ratio is", function()
        local result = command.shell(("timeout 10 %s/cplab run %s --set ratio=1:999999999"):format(
            command.root, sweep))
        assert.equal(2, result.status)
        assert.truthy(result.err:find("8 layers, not a multiple of 1 + 999999999", 1, true))
    end)
end)

describe("cplab run refuses a corpus", function()
    before_each(function() folder = command.folder() end)
    after_each(function() command.remove(folder) end)

    local function refuses_corpus(path, sentence, skipped)
        local result = command.cplab { "run", sweep, "--set", "corpus=" .. path, "--json",
            folder .. ".jsonl" }
        assert.same({ 2, "" }, { result.status, result.out })
        assert.equal(sentence, result.err:match "^.*ratio_sweep.lua:%d+: ([^\n]*)\n$")
        for _, line in ipairs(skipped or {}) do
            assert.truthy(result.err:find("cplab: corpus: skipped " .. line .. "\n", 1, true))
        end
        assert.is_nil(command.read(folder .. ".jsonl"))
    end

    it("that is not there", function()
        refuses_corpus(folder .. "/none",
            ("corpus.load: cannot read %s/none: No such file or directory"):format(folder))
    end)

    it("that is empty", function()
        refuses_corpus(folder, ("corpus.load: %s holds no usable file"):format(folder))
    end)

    it("that holds nothing usable", function()
        command.write(folder .. "/a", "")
        command.write(folder .. "/b", "\0\1")
        refuses_corpus(folder, ("corpus.load: %s holds no usable file (skipped %s/a: empty)")
            :format(folder, folder), { folder .. "/a: empty", folder .. "/b: binary" })
    end)

    it("smaller than the ranks need", function()
        command.write(folder .. "/a", "text")
        local result = command.cplab { "run", sweep, "--set", "corpus=" .. folder, "--set",
            "tokens=16", "--set", "cp=9" }
        assert.equal(2, result.status)
        assert.truthy(result.err:find("a budget of 16 tokens is less than one multiple of 18\n", 1,
            true))
    end)
end)

describe("an output that cannot be written", function()
    before_each(function() folder = command.folder() end)
    after_each(function() command.remove(folder) end)

    for _, option in ipairs { "--json", "--csv" } do
        it("is known before the first case: " .. option, function()
            local kept = command.write(folder .. "/kept", "old")
            local other = option == "--json" and "--csv" or "--json"
            local result = command.cplab { "run", script(demo .. "}"), other, kept, option,
                folder .. "/no/such" }
            assert.same({ status = 2, out = "", err = ("cplab: results: cannot write "
                .. "%s/no/such: No such file or directory\n"):format(folder) }, result)
            assert.equal("old", command.read(kept))
        end)
    end
end)
