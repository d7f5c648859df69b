-- What becomes of a case when its ranks do not say the same, or not what can be sent.
local host = io.open("/proc/self/cmdline"):read("*a"):match "^[^%z]+"

local frame = [[
return require "cplab".experiment {
    name = "case", about = "One case.", sweep = { cp = { 3 } },
    run = function(lab) %s end,
}
]]

-- A temporary file with that text.
local function write(text)
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(text)
    file:close()
    return path
end

local function try(body)
    local path = write(frame:format(body))
    local result = require("cplab.case_run").run(path, { cp = 3, tp = 1 }, { deadline = 20 })
    os.remove(path)
    return result
end

describe("the checks of a case", function()
    it("are there once where all ranks agree, also on NaN", function()
        local result = try [[
            lab:check("a", 1, 2)
            lab:check("b", 3, { equals = 3 })
            lab:check("c", 0/0, 1)
        ]]
        assert.equal("failed", result.status)
        assert.equal("check c: nan, must be at most 1", (result.reason:gsub("%-nan", "nan")))
        assert.equal(3, #result.checks)
    end)

    it("fail with that of another rank than 0, which is named", function()
        local result = try [[ lab:check("a", lab.rank == 2 and 5 or 1, 2) ]]
        assert.equal("failed", result.status)
        assert.equal("check a (rank 2): 5, must be at most 2", result.reason)
        assert.same({ { name = "a", passed = true, value = 1, bound = 2 },
            { name = "a (rank 2)", passed = false, value = 5, bound = 2 } }, result.checks)
    end)

    it("pass with other values on other ranks, and keep them", function()
        local result = try [[ lab:check("a", lab.rank, 2) ]]
        assert.equal("passed", result.status)
        local names = {}
        for i, check in ipairs(result.checks) do names[i] = check.name end
        assert.same({ "a", "a (rank 1)", "a (rank 2)" }, names)
    end)

    it("are an error where ranks made different ones", function()
        local result = try [[ lab:check(lab.rank == 1 and "x" or "y", 1, 1) ]]
        assert.equal("error", result.status)
        assert.equal('ranks made different checks: rank 1 has "x", rank 0 has "y"', result.reason)
        result = try [[
            lab:check("y", 1, 1)
            if lab.rank == 2 then lab:check("z", 1, 1) end
        ]]
        assert.equal('ranks made different checks: rank 2 has "z", rank 0 has none', result.reason)
        result = try [[
            lab:check("y", 1, 1)
            if lab.rank < 2 then lab:check("z", 1, 1) end
        ]]
        assert.equal('ranks made different checks: rank 2 has none, rank 0 has "z"', result.reason)
    end)

    it("may be left to rank 0 alone", function()
        local result = try [[ if lab.rank == 0 then lab:check("y", 1, 1) end ]]
        assert.equal("passed", result.status)
        assert.equal(1, #result.checks)
    end)
end)

describe("the records of a case", function()
    it("are there once where all ranks made them, and with the rank where they differ", function()
        local result = try [[
            lab:record { size = lab.size, deep = { 1, { lab.size } } }
            lab:record { mine = lab.rank }
        ]]
        assert.equal("passed", result.status)
        assert.same({ { size = 3, deep = { 1, { 3 } } }, { mine = 0 }, { mine = 1, rank = 1 },
            { mine = 2, rank = 2 } }, result.records)
    end)
end)

describe("what a rank cannot send", function()
    it("is named with the method that took it, and the rank", function()
        for body, pattern in pairs {
            ["lab.records[1] = { f = print }"] = "lab:record: cannot serialize 'function'",
            ["lab.records[1] = { f = lab.comm }"] = "lab:record: cannot serialize 'cdata'",
            ["local t = {} t.t = t lab.records[1] = t"] = "lab:record: too deep to serialize",
            ["lab.checks[1] = { name = 'a', passed = false, value = print, bound = 1 }"] =
                "lab:check: cannot serialize 'function'",
        } do
            local result = try("if lab.rank == 1 then " .. body .. " end")
            assert.equal("error", result.status)
            assert.matches("rank 1: the result cannot be sent: " .. pattern, result.reason, 1, true)
        end
    end)
end)

describe("a case with a rank that does not return", function()
    it("is an error, and the process can still end", function()
        local script = write(frame:format [[
            if lab.rank == 1 then while true do end end
            require("clib").check(require("clib").C.cpl_comm_barrier(lab.comm))
        ]])
        local main = write(([[
            local case_run = require "cplab.case_run"
            assert(not case_run.is_stuck)
            local result = case_run.run(%q, { cp = 3, tp = 1 }, { deadline = 0.5 })
            print(result.status, result.stuck, case_run.is_stuck)
            print(result.reason)
            require("clib").C.cpl_host_exit(5)
        ]]):format(script))
        local out = os.tmpname()
        local status = os.execute(("'%s' '%s' >'%s' 2>&1"):format(host, main, out))
        local text = assert(io.open(out)):read "*a"
        for _, path in ipairs { script, main, out } do os.remove(path) end
        assert.matches("^error\ttrue\ttrue\nrank [02]: .*; rank 1 does not return, 2%.%d s after "
            .. "the others were stopped\n$", text)
        assert.equal(5 * 256, status)
    end)
end)
