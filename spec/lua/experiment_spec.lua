-- What an experiment script may hold, and what is said about one that is wrong.
local experiment = require "cplab.experiment"

local function script(text)
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(text)
    file:close()
    finally(function() os.remove(path) end)
    return path
end

local head = "local experiment = require 'cplab.experiment'\n"

describe("experiment.load", function()
    it("gives the experiment that a script returns", function()
        local e = experiment.load(script(head .. "return experiment { name = 'a', run = print }"))
        assert.is_true(experiment.is(e))
        assert.equal("a", e.name)
        assert.same({ {}, {} }, { e.sweep, e.params })
    end)

    it("takes a first line for the shell", function()
        local path = script("#!/bin/cplab\n" .. head .. "return experiment {name='a',run=print}")
        assert.is_true(experiment.is(experiment.load(path)))
    end)

    local bad = {
        { "a syntax error", "local x = = 1\n", ":1: unexpected symbol near '='" },
        { "a runtime error", "\nerror('no luck')\n", ":2: no luck" },
        { "a runtime error without a place", "\nerror('no luck', 0)\nreturn 1\n", ":3: no luck" },
        { "a number", "\n\nreturn 7\n", ":3: the script returns a number, not cplab.experiment" },
        { "nothing", "local x = 1\nx = 2\n\n", ":2: the script returns nothing, not" },
        { "a plain table", "return {\n}\n", ":1: the script returns a plain table, not" },
        { "compiled Lua", "\27LJ", ": compiled Lua is no experiment script" },
        { "an unknown field", head .. "return experiment {\n name = 'a', run = print, swep = {} }",
            ':2: experiment: unknown field "swep"; did you mean "sweep"?' },
        { "a missing field", head .. "return experiment { name = 'a' }",
            ':2: experiment: field "run" is missing' },
        { "a field of the wrong type", head .. "local e = experiment { name = 1, run = print }",
            ":2: experiment: name must be a string (got 1)" },
        { "an axis that is no list", head .. "return experiment { name = 'a', run = print,"
            .. " sweep = { cp = 4 } }", ":2: experiment: sweep.cp must be a list (got 4)" },
        { "an empty axis", head .. "return experiment { name = 'a', run = print,"
            .. " sweep = { cp = {} } }", ":2: experiment: sweep.cp has no value" },
        { "an axis of two types", head .. "return experiment { name = 'a', run = print,"
            .. " sweep = { cp = { 1, '2' } } }", ":2: experiment: sweep.cp mixes a number with" },
        { "an axis of functions", head .. "return experiment { name = 'a', run = print,"
            .. " sweep = { f = { print } } }", ":2: experiment: a value of sweep.f must be a "
            .. "string or a number or a boolean or a table (got a function)" },
        { "a column that is no name", head .. "return experiment { name = 'a', run = print,"
            .. " report = { 3 } }", ":2: experiment: report[1] must be a string (got 3)" },
        { "an axis that is also a param", head .. "return experiment { name = 'a', run = print,"
            .. " sweep = { cp = { 1 } }, params = { cp = 1 } }",
            ":2: experiment: cp is both an axis of the sweep and a param" },
    }
    for _, row in ipairs(bad) do
        it("names file and line of " .. row[1], function()
            local path = script(row[2])
            local e, message = experiment.load(path)
            assert.is_nil(e)
            assert.equal(path .. row[3], message:sub(1, #path + #row[3]))
        end)
    end

    it("names a file that is not there", function()
        local e, message = experiment.load "no/such.lua"
        assert.is_nil(e)
        assert.equal("cannot read the script no/such.lua: No such file or directory", message)
    end)

    it("names a folder", function()
        local e, message = experiment.load "spec"
        assert.is_nil(e)
        assert.equal("cannot read the script spec: Is a directory", message)
    end)
end)
