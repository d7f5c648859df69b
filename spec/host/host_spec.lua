local clib = require "clib"
local ranks = require "spec.support.ranks"

local C, ffi = clib.C, clib.ffi

-- Runs a script under the host in a process of its own: status, stdout, stderr.
local host = io.open("/proc/self/cmdline"):read("*a"):match "^[^%z]+"

local function run(code, arguments)
    local script, out, err = os.tmpname(), os.tmpname(), os.tmpname()
    local file = assert(io.open(script, "w"))
    file:write(code)
    file:close()
    local status = os.execute(("'%s' '%s' %s >'%s' 2>'%s'"):format(host, script, arguments or "",
        out, err))
    local function content(path)
        local f = assert(io.open(path))
        local text = f:read "*a"
        f:close()
        os.remove(path)
        return text
    end
    os.remove(script)
    return math.floor(status / 256), content(out), content(err)
end

describe("the host", function()
    it("gives a script its arguments", function()
        local status, out = run("io.write(select('#', ...), ' ', arg[1], ' ', arg[2], ' ', ...)",
            "one 'two three'")
        assert.equal(0, status)
        assert.equal("2 one two three onetwo three", out)
    end)

    it("has the status that the script gives to os.exit", function()
        assert.equal(7, (run "os.exit(7)"))
        assert.equal(0, (run "os.exit(0)"))
        assert.equal(0, (run "return 5"))
    end)

    it("tells message and traceback of an error on stderr, and has status 1", function()
        local status, out, err = run "local function f() error('boom') end f()"
        assert.equal(1, status)
        assert.equal("", out)
        assert.matches("^cplab%-host: [^\n]*: boom\nstack traceback:\n", err)
    end)

    it("tells the kind of an error that is no string", function()
        local status, _, err = run "error({})"
        assert.equal(1, status)
        assert.matches("cplab-host: (error object is a table)", err, 1, true)
        local _, failure = ranks.try(2, function() error({}) end)
        assert.equal("(error object is a table)", failure.message)
    end)

    it("tells what an error object says of itself", function()
        local _, _, err = run [[
            error(setmetatable({}, { __tostring = function() return "as I say" end }))
        ]]
        assert.matches("cplab-host: as I say\n", err, 1, true)
    end)

    it("tells what is wrong with a script that is none", function()
        local status, _, err = run "this is no Lua"
        assert.equal(1, status)
        assert.matches("^cplab%-host: [^\n]*:1: '=' expected near 'is'\n$", err)
    end)

    it("finds the modules of this build", function()
        local status, out = run [[
            local clib = require "clib"
            io.write(clib.ffi.string(clib.C.cpl_version()))
        ]]
        assert.equal(0, status)
        assert.matches("^%d+%.%d+%.%d+$", out)
    end)

    it("sends what ranks print to stderr, line by line, with the rank before it", function()
        local status, out, err = run [[
            require("spec.support.ranks").run(2, function(comm)
                for rank = 0, 1 do
                    comm:barrier()
                    if rank == comm:rank() then print("a", nil, 1, "b\nc") end
                end
                return true
            end)
        ]]
        assert.equal(0, status)
        assert.equal("", out)
        assert.equal("[0] a\tnil\t1\tb\n[0] c\n[1] a\tnil\t1\tb\n[1] c\n", err)
    end)

    it("keeps what ranks write to stdout apart from results, line by line", function()
        local status, out, err = run [[
            require("spec.support.ranks").run(2, function(comm)
                if comm:rank() == 0 then
                    io.write("a", 1, "\nb")
                    io.stdout:write(" c\n\nd\n")
                    io.write("e")
                    io.flush()
                end
                comm:barrier()
                return true
            end)
            require("spec.support.ranks").run(1, function()
                io.output():write("plain\n")
                return true
            end)
            io.write("a result\n")
        ]]
        assert.equal(0, status)
        assert.equal("a result\n", out)
        assert.equal("[0] a1\n[0] b c\n[0] \n[0] d\n[0] e\nplain\n", err)
    end)

    it("lets a rank send its output to a file and back", function()
        local path = os.tmpname()
        local status, out, err = run(([[
            require("spec.support.ranks").run(1, function(_, path)
                io.output(path)
                io.write("in ", "a file\n")
                io.close()
                io.output(io.stdout)
                io.write("back\n")
                return true
            end, %q)
        ]]):format(path))
        local file = assert(io.open(path))
        local text = file:read "*a"
        file:close()
        os.remove(path)
        assert.same({ 0, "", "[0] back\n", "in a file\n" }, { status, out, err, text })
    end)

    it("refuses to write what is no text", function()
        local _, failure = ranks.try(1, function() io.write({}) end)
        assert.matches("bad argument #1 to 'write' (string expected, got table)", failure.message,
            1, true)
    end)

    it("knows a terminal from a file", function()
        local status, out = run "io.write(tostring(require('clib').C.cpl_host_is_terminal(1)))"
        assert.equal(0, status)
        assert.equal("false", out)
    end)
end)

describe("a rank", function()
    it("cannot end the process", function()
        local _, failure = ranks.try(2, function() os.exit(3) end)
        assert.matches("os.exit: a rank cannot end the process", failure.message, 1, true)
    end)

    it("must return a string to the host", function()
        local out = ffi.new "cpl_host_run *[1]"
        package.loaded["spec.host.no_string"] = nil
        clib.check(C.cpl_host_run_ranks(2, 5, "spec.host.no_string", "", 0, out))
        local made = ffi.gc(out[0], C.cpl_host_run_destroy)
        assert.is_true(C.cpl_host_failed_rank(made) >= 0)
        assert.equal("spec.host.no_string: a rank must return a string, not a number",
            ffi.string(C.cpl_host_message(made)))
    end)

    it("gets and returns bytes, also zeros and none", function()
        for _, text in ipairs { "", "\0", "a\0b\255", ("x"):rep(100000) } do
            local out, size = ffi.new "cpl_host_run *[1]", ffi.new "size_t[1]"
            clib.check(C.cpl_host_run_ranks(2, 5, "spec.host.echo", text, #text, out))
            local made = ffi.gc(out[0], C.cpl_host_run_destroy)
            assert.equal(-1, C.cpl_host_failed_rank(made))
            assert.equal("", ffi.string(C.cpl_host_message(made)))
            for rank = 0, 1 do
                local result = C.cpl_host_result(made, rank, size)
                assert.equal(text, ffi.string(result, size[0]))
            end
            assert.is_true(C.cpl_host_result(made, 2, size) == nil)
            assert.is_true(C.cpl_host_result(made, -1, size) == nil)
        end
    end)

    it("fails with the name of a module that is not there", function()
        local out = ffi.new "cpl_host_run *[1]"
        clib.check(C.cpl_host_run_ranks(1, 5, "spec.host.absent", "", 0, out))
        local made = ffi.gc(out[0], C.cpl_host_run_destroy)
        assert.equal(0, C.cpl_host_failed_rank(made))
        assert.matches("module 'spec.host.absent' not found", ffi.string(C.cpl_host_message(made)),
            1, true)
    end)

    it("has the memory that the run needs, or the run says so and leaks nothing", function()
        local out, stats = ffi.new "cpl_host_run *[1]", ffi.new "cpl_memory_stats"
        collectgarbage()
        collectgarbage()
        C.cpl_memory(stats)
        local before, failures = stats.live_blocks, 0
        for k = 0, 50 do
            C.cpl_memory_fail_after(k)
            local status = C.cpl_host_run_ranks(2, 5, "spec.host.echo", "x", 1, out)
            C.cpl_memory_fail_after(-1)
            if status == C.CPL_OK then break end
            assert.equal(C.CPL_MEMORY, status)
            C.cpl_memory(stats)
            assert.equal(before, stats.live_blocks)
            failures = failures + 1
        end
        C.cpl_host_run_destroy(out[0])
        C.cpl_memory(stats)
        assert.equal(before, stats.live_blocks)
        assert.equal(10, failures)
    end)
end)

-- A rank that does not return stays until the process ends, so each has a process of its own.
describe("a rank that does not return", function()
    local function try(n, body)
        return run(([[
            local clib = require "clib"
            local C, ffi = clib.C, clib.ffi
            local job = require("string.buffer").encode {
                code = string.dump(function(comm) %s end),
            }
            local out, before = ffi.new "cpl_host_run *[1]", C.cpl_clock()
            assert(not C.cpl_host_has_stuck())
            clib.check(C.cpl_host_run_ranks(%d, 0.5, "spec.support.rank", job, #job, out))
            local seconds = C.cpl_clock() - before
            print(C.cpl_host_is_stuck(out[0]), C.cpl_host_has_stuck(),
                C.cpl_host_failed_rank(out[0]), seconds < 8)
            print(ffi.string(C.cpl_host_message(out[0])))
            local size = ffi.new "size_t[1]"
            print(C.cpl_host_result(out[0], 1, size) == nil)
            C.cpl_host_run_destroy(out[0])
        ]]):format(body, n))
    end

    it("is given up a while after the others were stopped", function()
        local status, out, err = try(3, [[
            if comm:rank() == 1 then while true do end end
            comm:barrier()
        ]])
        assert.equal("", err)
        assert.equal(0, status)
        assert.matches("^true\ttrue\t[02]\ttrue\n[^\n]*local: rank [02] waited 0%.5 s for rank 1 "
            .. "in barrier 1; rank 1 does not wait; rank 1 does not return, 2%.%d s after the "
            .. "others were stopped\ntrue\n$", out)
    end)

    it("may swallow every abort: the first failure stays the reason", function()
        local status, out = try(4, [[
            if comm:rank() == 0 then error("boom", 0) end
            if comm:rank() == 3 then return pcall(comm.barrier, comm) end
            while true do pcall(comm.barrier, comm) end
        ]])
        assert.equal(0, status)
        assert.matches("^true\ttrue\t0\ttrue\nboom; rank 1 and 1 more do not return, 2%.%d s "
            .. "after the others were stopped\n", out)
    end)

    it("has as long as it takes while nobody failed", function()
        local _, out = try(2, [[
            if comm:rank() == 1 then
                local C = require("clib").C
                local start = C.cpl_clock()
                while C.cpl_clock() - start < 1.2 do end
            end
            return true
        ]])
        assert.equal("false\tfalse\t-1\ttrue\n\nfalse\n", out)
    end)
end)

describe("the store", function()
    before_each(function() C.cpl_store_clear() end)
    after_each(function() C.cpl_store_clear() end)

    local function get(name)
        local size = ffi.new "size_t[1]"
        local data = C.cpl_store_get(name, size)
        return data ~= nil and ffi.string(data, size[0]) or nil
    end

    it("keeps the first value of a name", function()
        assert.is_nil(get "a")
        clib.check(C.cpl_store_put("a", "one\0x", 5))
        clib.check(C.cpl_store_put("a", "two", 3))
        clib.check(C.cpl_store_put("b", "", 0))
        assert.equal("one\0x", get "a")
        assert.equal("", get "b")
        C.cpl_store_clear()
        assert.is_nil(get "a")
    end)

    it("gives all ranks the same value, who ever was first", function()
        local results = ranks.run(8, function(comm)
            local lib = require "clib"
            local mine = tostring(comm:rank())
            comm:barrier()
            for i = 1, 50 do
                lib.check(lib.C.cpl_store_put("k" .. i, mine, #mine))
            end
            local size, list = lib.ffi.new "size_t[1]", {}
            for i = 1, 50 do
                list[i] = lib.ffi.string(lib.C.cpl_store_get("k" .. i, size), size[0])
            end
            return list
        end)
        for _, result in ipairs(results) do
            assert.same(results[1], result)
        end
    end)

    it("keeps nothing of a value for which there is no memory", function()
        local stats = ffi.new "cpl_memory_stats"
        C.cpl_memory(stats)
        local before = stats.live_blocks
        for k = 0, 2 do
            C.cpl_memory_fail_after(k)
            local status = C.cpl_store_put("a", "x", 1)
            C.cpl_memory_fail_after(-1)
            assert.equal(C.CPL_MEMORY, status)
            assert.is_nil(get "a")
            C.cpl_memory(stats)
            assert.equal(before, stats.live_blocks)
        end
    end)
end)

describe("a warning that is said once", function()
    it("is said by one rank alone, though all say it at the same time", function()
        for i = 1, 20 do
            local said = ranks.run(8, function(comm, p)
                local log, n = require "cplab.log", 0
                log.line = function() n = n + 1 end
                comm:barrier()
                log.once("spec " .. p.i, "once")
                log.once("spec " .. p.i, "once")
                return n
            end, { i = i })
            local sum = 0
            for _, n in ipairs(said) do sum = sum + n end
            assert.equal(1, sum)
        end
    end)
end)

-- Compiled once a process; each rank has a state of its own that loads it.
describe("a module of this checkout", function()
    local build = package.searchpath("cplab_cdef", package.path):match "^(.*)/lua/"
    local name = "module_of_host_spec"
    local path = ("%s/lua/%s.lua"):format(build, name)

    local function write(text)
        local file = assert(io.open(path, "w"))
        file:write(text)
        file:close()
    end

    local function load_it()
        return ranks.try(2, function(comm, p)
            local ok, value = pcall(require, p)
            return ok and value .. comm:rank() or tostring(value)
        end, name)
    end

    teardown(function() os.remove(path) end)

    it("is what its file says, also when that has changed", function()
        write "return 'first '"
        assert.same({ "first 0", "first 1" }, load_it())
        assert.same({ "first 0", "first 1" }, load_it())
        write "return 'second '"
        assert.same({ "second 0", "second 1" }, load_it())
    end)

    it("says its path and line where it is wrong", function()
        write "local a = 1\nerror 'no'\n"
        for _ = 1, 2 do
            for _, text in ipairs(load_it()) do
                assert.matches(name .. ".lua:2: no", text, 1, true)
            end
        end
        write "local a = \n"
        for _, text in ipairs(load_it()) do
            assert.matches(name .. ".lua:2: unexpected symbol near '<eof>'", text, 1, true)
        end
        os.remove(path)
        for _, text in ipairs(load_it()) do
            assert.matches(("module '%s' not found"):format(name), text, 1, true)
        end
    end)
end)
