-- What the host promises of a run, whatever its ranks are; under mpirun they are processes.
local clib = require "clib"
local labs = require "spec.support.labs"
local ranks = require "spec.support.ranks"

local C, ffi = clib.C, clib.ffi
local world = ranks.world()
local is_mpi = ranks.transport() == "mpi"
local it2 = ranks.with(2, it)
local it_mpi = is_mpi and it or function() end

describe("a run of ranks", function()
    it("takes the first ranks, fewer and more from one run to the next", function()
        for _, n in ipairs(ranks.sizes { 1, 2, world, 1, 3, world, 2 }) do
            local results = ranks.run(n, function(comm)
                return { comm:rank(), comm:size(), comm:sum({ 1 })[1] }
            end)
            assert.equal(n, #results)
            for rank = 0, n - 1 do assert.same({ rank, n, n }, results[rank + 1]) end
        end
    end)

    it("brings bytes there and back, also zeros, none, and many", function()
        for _, text in ipairs { "", "\0", "a\0b\255", ("x"):rep(3000000) } do
            local results = ranks.run(world, function(comm, p) return p .. comm:rank() end, text)
            for rank = 0, world - 1 do
                assert.is_true(results[rank + 1] == text .. rank)
            end
        end
    end)

    it("is done a hundred times over", function()
        for i = 1, 100 do
            local results = ranks.run(world, function(comm, p) return p + comm:rank() end, i)
            assert.equal(i + world - 1, results[world])
        end
    end)

    it("ends for all when one rank fails, whichever, and the next run works", function()
        for rank = 0, world - 1 do
            local results, failure = ranks.try(world, function(comm, p)
                if comm:rank() == p then error("rank " .. p .. " alone", 0) end
                comm:barrier()
            end, rank)
            assert.same({ rank, ("rank %d alone"):format(rank) },
                { failure.rank, failure.message })
            assert.matches("stack traceback:", failure.traceback, 1, true)
            assert.is_nil(results[rank + 1])
            assert.equal(world, ranks.run(world, function(comm) return comm:sum({ 1 })[1] end)[1])
        end
    end)

    it("needs the module that it is told to run", function()
        local out = ffi.new "cpl_host_run *[1]"
        clib.check(C.cpl_host_run_ranks(world, 5, "spec.host.absent", "", 0, out))
        local made = ffi.gc(out[0], C.cpl_host_run_destroy)
        assert.is_true(C.cpl_host_failed_rank(made) >= 0)
        assert.matches("module 'spec.host.absent' not found", ffi.string(C.cpl_host_message(made)),
            1, true)
    end)

    it("has a sentence for what it cannot be", function()
        local function refused(n, deadline)
            local out = ffi.new "cpl_host_run *[1]"
            assert.equal(C.CPL_INVALID, C.cpl_host_run_ranks(n, deadline, "x", "", 0, out))
            return ffi.string(C.cpl_last_error())
        end
        assert.matches("0 ranks", refused(0, 1))
        assert.matches("a deadline of 0 s, not > 0", refused(1, 0), 1, true)
        if is_mpi then
            assert.equal(("host: %d ranks, but mpirun started %d process%s"):format(world + 1,
                world, world == 1 and "" or "es"), refused(world + 1, 1))
        end
    end)

    ranks.with(3, it_mpi)("does not begin where a process does not answer", function()
        ffi.cdef "int getpid(void); int kill(int pid, int signal);"
        local STOP, CONTINUE = 19, 18
        local pids = ranks.run(world, function()
            local lib = require "clib".ffi
            pcall(lib.cdef, "int getpid(void);")
            return lib.C.getpid()
        end)
        ffi.C.kill(pids[3], STOP)
        local _, message = pcall(ranks.run, 3, function() return 1 end, nil, 0.3)
        ffi.C.kill(pids[3], CONTINUE)
        assert.matches("host: 1 of 2 processes do not answer", message, 1, true)
        local done
        repeat -- until those who were told to stay have said so
            done, message = pcall(ranks.run, 3, function(comm) return comm:sum({ 1 })[1] end)
            assert.is_true(done or message:find("of an earlier run still runs", 1, true) ~= nil)
        until done
        assert.same({ 3, 3, 3 }, message)
    end)

    it_mpi("is not for a rank to start", function()
        for rank = 0, world - 1 do
            local _, failure = ranks.try(world, function(comm, p)
                if comm:rank() == p then
                    require("spec.support.ranks").run(1, function() return 1 end)
                end
                comm:barrier()
            end, rank)
            assert.equal(rank, failure.rank)
            assert.matches("host: a rank cannot start ranks", failure.message, 1, true)
        end
    end)

    it("leaves no memory behind", function()
        local function live()
            collectgarbage()
            collectgarbage()
            local stats = ffi.new "cpl_memory_stats"
            C.cpl_memory(stats)
            return tonumber(stats.live_blocks)
        end
        local function run() ranks.try(world, function(comm)
            local t = require("cplab.tensor").zeros { 10, 10 }
            if comm:rank() == comm:size() - 1 then error "boom" end
            comm:barrier()
            return t:totable()
        end) end
        for _ = 1, 3 do run() end -- what is kept for ever is there now
        local before = live()
        for _ = 1, 5 do run() end
        assert.equal(before, live())
    end)

    it_mpi("leaves no file open behind, and no memory of a peer within reach", function()
        local function run(fails) ranks.try(world, function(comm, p)
            local exchange = require "cplab.exchange"
            local rows = require "spec.exchange.rows"
            local n = comm:size()
            local stream, rank = rows.stream("thd", n), comm:rank()
            local a, b = rows.layout("mirror", stream, n), rows.layout("contiguous", stream, n)
            local plan = exchange.plan(require "cplab.route"(a, b), comm, "f32", 3, "copy")
            plan:convert(rows.tensor("f32", a:n_local(rank), 3, comm),
                rows.tensor("f32", b:n_local(rank), 3, comm))
            if p then error "boom" end
            return true
        end, fails) end
        local function count() return ranks.run(world, function()
            local files, windows = 0, 0
            for _ in require "lfs".dir "/proc/self/fd" do files = files + 1 end
            for line in io.lines "/proc/self/maps" do
                if line:find("memfd:cplab", 1, true) then windows = windows + 1 end
            end
            return { files, windows }
        end) end
        local before = count()
        assert.is_true(before[1][2] > 0) -- that of the host
        for i = 1, 4 do run(i % 2 == 0) end
        assert.same(before, count())
    end)
end)

-- Seconds of processor time of a rank that waits a second for another.
describe("waiting", function()
    it2("for another rank burns next to nothing", function()
        local results = ranks.run(2, function(comm)
            local lib = require "clib"
            lib.ffi.cdef "int usleep(unsigned microseconds);"
            comm:barrier()
            if comm:rank() == 0 then lib.ffi.C.usleep(999999) end
            local since = lib.C.cpl_thread_clock()
            comm:barrier()
            return lib.C.cpl_thread_clock() - since
        end)
        assert.is_true(results[2] < 0.4, results[2])
    end)

    it_mpi("for the next job burns next to nothing", function()
        local function clocks() return ranks.run(world, function() return os.clock() end) end
        local before = clocks()
        ffi.cdef "int usleep(unsigned microseconds);"
        ffi.C.usleep(999999)
        local after = clocks()
        for rank = 1, world - 1 do
            local burnt = after[rank + 1] - before[rank + 1]
            assert.is_true(burnt < 0.4, burnt)
        end
    end)
end)

describe("what ranks share", function()
    it("is a store: what rank 0 has under a prefix, all have", function()
        local results = ranks.run(world, function(comm)
            local lib = require "clib"
            local c, size = lib.C, lib.box "size_t"
            local function put(name, text) lib.check(c.cpl_store_put(name, text, #text)) end
            local function get(name)
                local data = c.cpl_store_get(name, size)
                return data ~= nil and lib.ffi.string(data, size[0]) or "none"
            end
            if comm:rank() == 0 then
                put("share/a", "first\0x")
                put("share/b", "")
                put("share/big", ("y"):rep(1000001))
                put("other", "x")
            end
            comm:barrier() -- threads have one store
            if comm:rank() == 1 then put("share/a", "kept") end
            lib.check(c.cpl_store_share(comm._ptr, "share/"))
            local stats = lib.ffi.new "cpl_memory_stats"
            c.cpl_memory_reset_peak()
            lib.check(c.cpl_store_share(comm._ptr, "share/"))
            c.cpl_memory(stats)
            -- What nobody lacks is not sent again.
            assert(stats.peak_bytes - stats.live_bytes < 1000000)
            lib.check(c.cpl_store_share(comm._ptr, "nothing"))
            return { get "share/a", get "share/b", #get "share/big", get "other" }
        end)
        C.cpl_store_clear()
        for rank = 0, world - 1 do
            local has_own = is_mpi and rank == 1
            assert.same({ has_own and "kept" or "first\0x", "", 1000001,
                is_mpi and rank > 0 and "none" or "x" }, results[rank + 1])
        end
    end)

    it2("are references that an earlier, smaller case made", function()
        C.cpl_store_clear()
        local stream = { lengths = { 32, 16 } }
        for _, cp in ipairs(ranks.sizes { 1, 2, 4 }) do
            local m = labs.parity_step(stream, labs.model { policy = "zigzag", seed = 77 }, cp)
            assert.is_true(m.parity_fwd <= 1e-12 and m.parity_grad <= 1e-12)
        end
    end)

    it("is a warning that is said once", function()
        for i = 1, 3 do
            local said = ranks.run(world, function(_, p)
                local log, n = require "cplab.log", 0
                log.line = function() n = n + 1 end
                log.once("spec mpi " .. p, "once")
                log.once("spec mpi " .. p, "once")
                return n
            end, i)
            local sum = 0
            for _, n in ipairs(said) do sum = sum + n end
            assert.equal(1, sum)
        end
    end)

    it("is the memory in which a rank's tensors lie, and nobody else's", function()
        assert.is_true(require("cplab.tensor").zeros({ 1 })._ptr.comm == nil)
        local results = ranks.run(world, function(comm)
            return { require("cplab.tensor").zeros({ 1 })._ptr.comm == comm._ptr }
        end)
        for rank = 0, world - 1 do assert.same({ true }, results[rank + 1]) end
    end)
end)
