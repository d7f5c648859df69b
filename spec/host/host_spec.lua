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
        assert.matches("cplab-host: (error object is a table value)", err, 1, true)
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
        assert.equal(7, failures)
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
