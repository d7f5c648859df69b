-- The README tells the truth: its example runs as printed, and its folders and commands exist.
local command = require "spec.cli.command"
local environment = require "cplab.environment"
local lfs = require "lfs"

local readme = command.read(command.root .. "/README.md")

local function block_with(text)
    for block in readme:gmatch "```lua\n(.-)```" do
        if block:find(text, 1, true) then return block end
    end
end

describe("README", function()
    it("has an example that runs as printed, and passes", function()
        local folder = command.folder()
        finally(function() command.remove(folder) end)
        local path = command.write(folder .. "/demo.lua", block_with "cplab.experiment")
        local result = command.cplab { "run", path }
        assert.equal(0, result.status, result.err)
        assert.truthy(result.out:find("4 cases: 4 passed, 0 failed, 0 skipped", 1, true))
        assert.equal(0, command.cplab({ "show", path }).status)
    end)

    it("has a snippet of layouts and routes that runs as printed", function()
        local printed = {}
        local function print_words(...)
            printed[#printed + 1] = table.concat({ ... }, " ")
        end
        local f = assert(loadstring(block_with "z:locate"))
        setfenv(f, setmetatable({ cplab = require "cplab", print = print_words }, { __index = _G }))
        f()
        assert.same({ "0 2", "14 5", "37 3", "0 5", "31", "12" }, printed)
    end)

    it("prints commands for mpirun that work as printed", function()
        if not command.cplab({ "doctor" }).out:find(", mpi (", 1, true) then
            return pending "there is no Open MPI here"
        end
        local n = 0
        for line in readme:gmatch "\n([^\n]*mpirun [^\n]* run experiments/[^\n]*)\n" do
            -- Of the sweep one case, so that it takes seconds.
            local result = command.shell(("cd %s && %s --only ratio=1:7 --only policy=mirror "
                .. "--only cp=4"):format(environment.shell_word(command.root), line))
            assert.equal(0, result.status, result.err)
            assert.truthy(result.out:find "\n1 case: 1 passed, 0 failed, 0 skipped\n$")
            n = n + 1
        end
        assert.equal(2, n)
    end)

    it("has no gap that was to be filled in", function()
        assert.is_nil(readme:find "@%u+@")
    end)

    it("maps folders that exist", function()
        local map = readme:match "## Map\n\n```\n(.-)```"
        local n = 0
        for name in map:gmatch "([^\n]+)" do
            local path = name:match "^%S+"
            assert.truthy(lfs.attributes(command.root .. "/" .. path), path)
            n = n + 1
        end
        assert.is_true(n >= 10)
    end)

    it("names commands that there are", function()
        local help = command.cplab({ "--help" }).out
        for _, name in ipairs { "run", "test", "show", "report", "compare", "doctor", "mpirun" } do
            assert.truthy(help:find("\n   " .. name .. "%s"), name)
            assert.truthy(readme:find("%f[%w]" .. name .. "%f[%W]"), name)
        end
    end)
end)
