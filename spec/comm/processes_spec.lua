-- Ranks that are processes: spec/c/mpi_driver.c under mpirun, which it starts itself. The driver
-- checks every byte, and the sentences of every way to end; here stands that it got to its end,
-- said nothing else, and which status mpirun gave.
local lfs = require "lfs"

local environment = require "cplab.environment"

local word = environment.shell_word

local bin = lfs.symlinkattributes("/proc/self/exe", "target"):match "^(.*)/"

local function read(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read "*a"
    file:close()
    os.remove(path)
    return text
end

-- As root, with more processes than cores, bound to none of them, and silent about statuses.
local settings = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
    .. "OMPI_MCA_rmaps_base_oversubscribe=1 ASAN_OPTIONS=detect_leaks=0"

-- Runs a scenario on n processes: the exit status, and what it wrote to its two streams.
local function run(n, scenario)
    local out, err = os.tmpname(), os.tmpname()
    local status = os.execute(("env %s mpirun -q --bind-to none --timeout 100 -n %d %s %s "
        .. "</dev/null >%s 2>%s"):format(settings, n, word(bin .. "/mpi_driver"), scenario,
        word(out), word(err)))
    return status / 256, read(out), read(err)
end

-- Nothing to run: no MPI on this machine; or mpirun has started this already.
local missing = os.getenv "OMPI_COMM_WORLD_SIZE" and "mpirun runs these specs"
    or not lfs.attributes(bin .. "/libcplab_mpi.so") and "this build has no MPI transport"
    or os.execute "command -v mpirun >/dev/null 2>&1" ~= 0 and "there is no mpirun"

local function it_runs(what, scenario, sizes, check)
    for _, n in ipairs(sizes) do
        it(("%s, %d processes"):format(what, n), function()
            if missing then pending(missing) end
            check(n, run(n, scenario))
        end)
    end
end

local function passes(_, status, out, err)
    assert.equal("", err)
    assert.matches("^%d+ checks passed\n$", out)
    assert.equal(0, status)
end

describe("ranks that are processes", function()
    it_runs("do all that ranks do", "well", { 1, 2, 3, 4, 8 }, passes)
    it_runs("all hear of the first that fails; the next job is clean", "fails", { 2, 4 }, passes)
    it_runs("do not wait for one that has left", "leaves", { 2, 4 }, passes)
    it_runs("are told apart where they make different calls", "differ", { 2, 3 }, passes)
    it_runs("wait asleep, and no longer than the deadline", "never", { 2, 4 }, passes)
    it_runs("join all or none when memory is short", "memory", { 1, 3 }, passes)

    it_runs("all end when one is killed, without a word", "dies", { 2, 4 },
        function(_, status, out, err)
            assert.equal("", out .. err)
            assert.equal(128 + 9, status)
        end)

    it_runs("all end when one says so, with its status, and what they wrote is kept", "aborts",
        { 1, 2 }, function(n, status, out, err)
            assert.matches(("flushed by process %d\n"):format(n - 1), out, 1, true)
            assert.equal("", err)
            assert.equal(5, status)
        end)
end)
