-- Modules load in any order: what one needs it requires itself. Elsewhere a type was there only
-- where another import came before.
local lfs = require "lfs"

local clib = require "clib"
local C, ffi = clib.C, clib.ffi

-- Every module below a folder but the script that runs commands.
local function modules_of(folder, prefix, list)
    for entry in lfs.dir(folder) do
        local path, name = folder .. "/" .. entry, entry:match "^(.+)%.lua$"
        if name and name ~= "main" then
            list[#list + 1] = name == "init" and prefix or prefix .. "." .. name
        elseif not entry:find("^%.") and lfs.attributes(path, "mode") == "directory" then
            modules_of(path, prefix .. "." .. entry, list)
        end
    end
    table.sort(list)
    return list
end

-- Loads modules in a Lua state that has loaded nothing; nil, or why that failed.
local function load_alone(...)
    local names = table.concat({ ... }, "\n")
    local run = clib.create("cpl_host_run", C.cpl_host_run_destroy, 1, C.cpl_host_run_ranks, 1,
        20, "spec.support.first_module", names, #names)
    return C.cpl_host_failed_rank(run) >= 0 and ffi.string(C.cpl_host_message(run)) or nil
end

local PARTS = { "stream", "layout", "view", "route", "tensor", "op", "model", "schedule", "policy",
    "assignment", "pipeline", "rules", "exchange", "experiment", "corpus", "packs", "lab",
    "boundary", "contract", "cluster", "cost", "planner" }

describe("the parts of cplab", function()
    it("[T-38] are there by name, and a wrong name says which one was meant", function()
        local cplab = require "cplab"
        for _, part in ipairs(PARTS) do
            assert.equal(require("cplab." .. part), cplab[part])
        end
        assert.has_error(function() return cplab.boundry end,
            'cplab: unknown name "boundry"; did you mean "boundary"?')
    end)
end)

describe("every module", function()
    it("T-50: can be the first that is loaded", function()
        local modules = modules_of("lua/cplab", "cplab", {})
        assert.is_true(#modules > 80)
        for _, name in ipairs(modules) do
            assert.is_nil(load_alone(name))
        end
    end)

    it("(control) one that counts on another is caught, and goes behind it", function()
        local needs = "spec.support.counts_on_stream"
        assert.truthy(load_alone(needs):find("nobody has loaded cplab.stream", 1, true))
        assert.is_nil(load_alone("cplab.stream", needs))
    end)
end)
