-- The command line itself: help, version, and wrong words.
local command = require "spec.cli.command"

local environment = require "cplab.environment"

describe("cplab", function()
    it("prints its version", function()
        assert.same({ status = 0, out = "cplab 0.1.0\n", err = "" }, command.cplab { "--version" })
    end)

    for _, words in ipairs { {}, { "run" }, { "show" }, { "report" }, { "compare" }, { "doctor" },
        { "test" }, { "route" }, { "project" }, { "bench" }, { "mpirun" } } do
        local name = table.concat(words)
        it(("explains itself: %s --help"):format(name), function()
            words[#words + 1] = "--help"
            local result = command.cplab(words)
            assert.same({ 0, "" }, { result.status, result.err })
            assert.truthy(result.out:find("Usage: .*cplab " .. name))
        end)
    end

    it("lists the commands that there are, and no others", function()
        local list = command.cplab({ "--help" }).out:match "Commands:\n(.-)\n\n"
        local names = {}
        for line in list:gmatch "[^\n]+" do names[#names + 1] = line:match "^   (%l+)" end
        assert.same({ "run", "show", "route", "project", "bench", "report", "compare", "doctor",
            "test", "mpirun" }, names)
    end)

    it("says how values are given and that options repeat", function()
        local help = command.cplab({ "run", "--help" }).out:gsub("%s+", " ")
        for _, option in ipairs { "set", "only" } do
            assert.truthy(help:find("--" .. option .. " NAME=VALUE[,VALUE]", 1, true))
        end
        local _, n = help:gsub("commas separate them", "")
        assert.equal(2, n)
        _, n = help:gsub("May be repeated", "")
        assert.equal(2, n)
    end)

    it("says which sequences a graph serves", function()
        local help = command.cplab({ "run", "--help" }).out:gsub("%s+", " ")
        assert.truthy(help:find("of the last N kinds of sequences; with the transport direct one "
            .. "graph also serves sequences that it has not seen", 1, true))
    end)

    it("wants a command", function()
        local result = command.cplab {}
        assert.same({ 2, "" }, { result.status, result.out })
        assert.truthy(result.err:find("Usage: cplab", 1, true))
    end)

    local wrong = {
        { { "rnu" }, "unknown command 'rnu'; did you mean 'run'?" },
        { { "run" }, "missing argument 'file'" },
        { { "run", "--jsn", "x", "f" }, "unknown option '--jsn'; did you mean '--json'?" },
        { { "run", "f", "--ranks", "0" }, "--ranks takes a whole number >= 1, got '0'" },
        { { "run", "f", "--iters", "1.5" }, "--iters takes a whole number >= 1, got '1.5'" },
        { { "run", "f", "--warmup=-1" }, "--warmup takes a whole number >= 0, got '-1'" },
        { { "run", "f", "--seed", "x" }, "--seed takes a whole number >= 0, got 'x'" },
        { { "run", "f", "--deadline", "0" }, "--deadline takes seconds > 0, got '0'" },
        { { "run", "f", "--dtype", "f23" },
            "argument for option '--dtype' must be one of 'f64', 'f32', 'bf16'" },
        { { "run", "f", "--device", "tpu" }, "argument for option '--device' must be one of "
            .. "'cpu', 'cuda', 'cuda-emulated'" },
        { { "route", "--cp", "4" }, "missing option '--lengths'" },
    }
    for _, row in ipairs(wrong) do
        it("refuses " .. table.concat(row[1], " "), function()
            assert.same({ status = 2, out = "",
                err = ("cplab: %s (see ./cplab --help)\n"):format(row[2]) }, command.cplab(row[1]))
        end)
    end

    -- Where there is a GPU the device is there, and the file is not.
    it("says in one sentence that a device is not there", function()
        local result = command.cplab { "run", "f.lua", "--device", "cuda" }
        local there = result.status == 2
        assert.same({ there and 2 or 3, "" }, { result.status, result.out })
        assert.matches(there and "^cplab: [^\n]+\n$" or "^cplab: device cuda: [^\n]+\n$",
            result.err)
    end)

    it("knows this machine", function()
        local result = command.cplab { "doctor" }
        assert.same({ 0, "" }, { result.status, result.err })
        for _, name in ipairs { "cplab", "commit", "luajit", "machine", "matrices", "devices",
            "cuda" } do
            assert.truthy(("\n" .. result.out):find("\n" .. name .. " +%S"), name)
        end
        -- With the plug-in it also says which libraries that would open, or why it could not.
        if result.out:find("plug-in for CUDA", 1, true) then
            assert.matches("NCCL %d+%.%d", (result.out:gsub("cannot open NCCL", "NCCL 0.0")))
            assert.matches("cuBLAS %d+%.%d", (result.out:gsub("cannot open cuBLAS", "cuBLAS 0.0")))
        end
    end)
end)

describe("the commit of a checkout", function()
    it("is found where another user owns it", function()
        local commit = environment.commit()
        if not commit then return end -- an unpacked archive has none
        local result = command.shell("GIT_TEST_ASSUME_DIFFERENT_OWNER=1 " .. command.root
            .. "/cplab doctor")
        assert.equal(commit, result.out:match "\ncommit +([^\n]*)")
    end)

    it("is unknown for the reason that git gives", function()
        local folder = command.folder()
        finally(function() command.remove(folder) end)
        local commit, reason = environment.commit(folder)
        assert.is_nil(commit)
        assert.truthy(reason:find "^not a git repository")
    end)
end)

describe("cplab test", function()
    it("refuses what it does not know", function()
        assert.same({ status = 2, out = "",
            err = "cplab: test: unknown option --al (see ./cplab test --help)\n" },
            command.cplab { "test", "--al" })
        assert.same({ status = 2, out = "", err = "cplab: test: there is no no/such\n" },
            command.cplab { "test", "no/such" })
        assert.same({ status = 2, out = "", err = "cplab: test: --all takes no paths\n" },
            command.cplab { "test", "--all", "spec" })
    end)

    it("runs a spec from anywhere and counts it", function()
        local folder = command.folder()
        finally(function() command.remove(folder) end)
        command.write(folder .. "/one_spec.lua", [[
describe("numbers", function()
    it("add", function() assert.equal(2, 1 + 1) end)
    it("do not lie", function() assert.equal(3, 1 + 1) end)
end)
]])
        local result = command.cplab { "test", folder }
        assert.equal(1, result.status)
        assert.truthy(result.out:find "\n1 passed, 1 failed, 0 skipped\n$")
        result = command.cplab { "test", folder .. "/one_spec.lua" }
        assert.truthy(result.out:find "\n1 passed, 1 failed, 0 skipped\n$")
    end)
end)
