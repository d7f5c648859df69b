-- Whole runs under mpirun: what is printed, once; statuses; how everything ends when one rank does.
local command = require "spec.cli.command"
local json = require "cplab.json"
local lfs = require "lfs"
local on_device = require "spec.support.on_device"

local folder, script

local text = [[
local cplab = require "cplab"
local clib = require "clib"
return cplab.experiment {
    name = "ends", about = "Every way in which a rank can end.",
    sweep = { mode = { "good", "bad", "raise", "loop", "kill", "crash" }, cp = { 1, 3, 5 } },
    params = { rank = 2 },
    run = function(lab)
        local mode, is_it = lab.case.mode, lab.rank == lab.case.rank
        local ffi = clib.ffi
        if is_it and mode == "raise" then error("rank " .. lab.rank .. " alone", 0) end
        if is_it and mode == "loop" then while true do end end
        if is_it and mode == "kill" then
            ffi.cdef "int raise(int signal);"
            ffi.C.raise(9)
        end
        if is_it and mode == "crash" then ffi.cast("int *", 8)[0] = 1 end
        print("I am", lab.rank)
        clib.check(clib.C.cpl_comm_barrier(lab.comm))
        lab:check("small", mode == "bad" and 2 or 0.5, 1)
        lab:record { transport = ffi.string(clib.C.cpl_comm_transport(lab.comm)) }
    end,
}
]]

local function mpirun(words, n, settings)
    local all = { "mpirun", "-n", tostring(n or 3) }
    for _, word in ipairs(words) do all[#all + 1] = word end
    return command.cplab(all, settings)
end

local function run(words, settings)
    local all = { "run", script }
    for _, word in ipairs(words) do all[#all + 1] = word end
    return mpirun(all, 3, settings)
end

local function only(mode)
    return { "--only", "mode=" .. mode, "--only", "cp=3", "--deadline", "1" }
end

local function has_mpi()
    return command.cplab({ "doctor" }).out:find(", mpi (", 1, true)
end

local it_mpi = has_mpi() and it or function(name)
    it(name, function() pending "there is no Open MPI here" end)
end

describe("cplab mpirun", function()
    before_each(function()
        folder = command.folder()
        script = command.write(folder .. "/ends.lua", text)
    end)
    after_each(function() command.remove(folder) end)

    it_mpi("prints results once, skips what needs more ranks, and passes with status 0", function()
        local path = folder .. "/out.jsonl"
        local result = run { "--only", "mode=good", "--json", path }
        assert.same({ 0, [[
cp  mode  verdict
 1  good  passed
 3  good  passed
 5  good  skipped
skipped: cp=5 mode=good: needs 5 ranks, mpirun started 3
3 cases: 2 passed, 0 failed, 1 skipped
]] }, { result.status, (result.out:gsub("\r", "")) })
        assert.equal(result.out, (result.out:gsub("\r", "")))
        local _, n = result.err:gsub("%[%d%] I am\t%d\n", "")
        assert.equal(4, n)
        local cases = {}
        for line in command.read(path):gmatch "[^\n]+" do
            cases[#cases + 1] = assert(json.decode(line))
        end
        assert.equal(3, #cases)
        assert.same({ "mpi", 3 }, { cases[2].env.transport, cases[2].env.processes })
        assert.same({ { transport = "mpi" } }, cases[2].records)
    end)

    it_mpi("has the status of a check that failed", function()
        local result = run(only "bad")
        assert.equal(1, result.status)
        assert.truthy(result.out:find("\n1 case: 0 passed, 1 failed, 0 skipped\n", 1, true))
        assert.is_nil(result.err:find("mpi", 1, true))
    end)

    it_mpi("tells an error of one rank with its traceback, without noise, and goes on", function()
        local result = run { "--only", "mode=raise,good", "--only", "cp=3" }
        assert.equal(1, result.status)
        assert.equal([[
cp  mode   verdict
 3  good   passed
 3  raise  error
error: cp=3 mode=raise: rank 2: rank 2 alone
2 cases: 1 passed, 0 failed, 1 error, 0 skipped
]], result.out)
        for line in result.err:gmatch "[^\n]+" do
            assert.truthy(line:find "^cplab: " or line:find "^%[%d%] I am" or line:find "^\t"
                or line == "stack traceback:", line)
        end
    end)

    for rank = 0, 2 do
        it_mpi(("ends although rank %d loops, and the file is whole"):format(rank), function()
            local path = folder .. "/out.jsonl"
            local result = run { "--only", "mode=good,loop", "--only", "cp=3", "--deadline", "1",
                "--set", "rank=" .. rank, "--json", path }
            assert.equal(1, result.status)
            local list = {}
            for line in command.read(path):gmatch "([^\n]*)\n" do
                list[#list + 1] = assert(json.decode(line))
            end
            assert.same({ "passed", "error" }, { list[1].status, list[2].status })
            assert.matches((": mpi: rank %%d waited [%%d.]+ s for rank %d in barrier 1; rank %d "
                .. "does not return, 2%%.%%d s after the others were stopped$"):format(rank, rank),
                list[2].reason)
            assert.truthy(result.out:find("\n2 cases: 1 passed, 0 failed, 1 error, 0 skipped\n", 1,
                true))
        end)
    end

    for mode, signal in pairs { kill = "9 (Killed)", crash = "11 (Segmentation fault)" } do
        it_mpi("names the rank and the signal that ends it: " .. mode, function()
            for _, rank in ipairs { 0, 2 } do
                local path = folder .. "/out.jsonl"
                -- An address sanitizer would make a report and a status of the signal.
                local result = run({ "--only", "mode=good," .. mode, "--only", "cp=3", "--set",
                    "rank=" .. rank, "--json", path }, "ASAN_OPTIONS=$ASAN_OPTIONS:handle_segv=0")
                assert.equal(128 + tonumber(signal:match "%d+"), result.status)
                assert.equal("", result.out)
                local rest = result.err:gsub("%[%d%] I am\t%d\n", "")
                    :gsub("cplab: case 1 [^\n]*\n", "")
                assert.equal(("cplab: rank %d was killed by signal %s\n"):format(rank, signal),
                    rest)
                local _, n = command.read(path):gsub("\n", "")
                assert.equal(1, n) -- the case before it
                assert.truthy(json.decode((command.read(path):gsub("\n", ""))))
            end
        end)
    end

    -- A file of specs under mpirun, in which ranks do not return.
    local function passes(body)
        local path = command.write(folder .. "/stuck_spec.lua",
            'local ranks = require "spec.support.ranks"\n' .. body)
        local result = mpirun { "test", path }
        assert.same({ 0, "" }, { result.status, result.err }, result.out)
        assert.matches("1 passed, 0 failed, 0 skipped\n$", result.out)
    end

    for rank = 0, 2, 2 do
        it_mpi(("needs rank %d back before another run has it, and ends without it"):format(rank),
            function()
                passes(([[
it("leaves a rank behind", function()
    local _, failure = ranks.try(3, function(comm, p)
        if comm:rank() == p then while true do end end
        comm:barrier()
    end, RANK, 0.3)
    assert.matches("rank RANK does not return", failure.message, 1, true)
    local _, message = pcall(ranks.run, 3, function() return 1 end, nil, 0.3)
    assert.matches("host: rank RANK of an earlier run still runs", message, 1, true)
    if RANK > 0 then
        assert.same({ 1, 1 }, ranks.run(RANK, function() return 1 end))
    end
end)
]]):gsub("RANK", tostring(rank)))
            end)
    end

    it_mpi("has a rank again that comes back late, and takes its news for no other run's",
        function()
            passes [[
it("waits", function()
    local function busy(comm, p)
        local C = require("clib").C
        local since = C.cpl_clock()
        while comm:rank() == p.rank and C.cpl_clock() - since < p.seconds do end
        if p.meets then comm:barrier() end
        return comm:rank()
    end
    local _, failure = ranks.try(3, busy, { rank = 2, seconds = 3.5, meets = true }, 0.3)
    assert.matches("rank 2 does not return", failure.message, 1, true)
    assert.same({ 0, 1 }, ranks.run(2, busy, { rank = 1, seconds = 3 }))
    assert.same({ 0, 1, 2 }, ranks.run(3, busy, { rank = 0, seconds = 0, meets = true }))
end)
]]
        end)

    it_mpi("hears of a failure from rank 0 where no other rank can tell", function()
        passes [[
it("fails", function()
    local _, failure = ranks.try(2, function(comm)
        if comm:rank() == 0 then error("rank 0 alone", 0) end
        while true do end
    end, nil, 0.3)
    assert.equal(0, failure.rank)
    assert.matches("^rank 0 alone; rank 1 does not return", failure.message)
end)
]]
    end)

    it_mpi("says what is wrong with the words once, and has status 2", function()
        for sentence, words in pairs {
            ["run: --ranks is 4, but mpirun started 3 processes"] = { "run", script, "--ranks",
                "4" },
            ["cannot read the script /no/such: No such file or directory"] = { "run", "/no/such" },
            ["test: there is no /no/such"] = { "test", "/no/such" },
            ["test: --all starts mpirun by itself"] = { "test", "--all" },
        } do
            assert.same({ status = 2, out = "", err = "cplab: " .. sentence .. "\n" },
                mpirun(words))
        end
    end)

    it("wants a number of processes, and a command", function()
        local function refused(words)
            local result = command.cplab(words)
            assert.same({ 2, "" }, { result.status, result.out })
            return result.err
        end
        local see = " (see ./cplab mpirun --help)\n"
        for _, n in ipairs { "", "0", "x", "-1", "1.5", "010", "10000", ("9"):rep(30) } do
            assert.equal(("cplab: mpirun: -n takes a whole number from 1 to 9999, got '%s'%s")
                :format(n, see), refused { "mpirun", "-n", n, "run", "x" })
        end
        local meant = "'; did you mean 'run'?"
        for word, words in pairs {
            ["rnu" .. meant] = { "rnu", "x" }, ["rn" .. meant] = { "-n", "2", "rn" },
            ["runn" .. meant] = { "-n", "2", "-q", "runn", "x", "y", "z" },
            ["rum" .. meant] = { "-n", "2", "--bind-to", "core", "rum" },
            ["tset'; did you mean 'test'?"] = { "-n", "2", "tset" },
            ["mpirun'"] = { "-n", "2", "mpirun", "-n", "2", "run", "x" },
            ["c'"] = { "-n", "2", "--mca", "a", "b", "c", "run", "x" },
        } do
            assert.equal(("cplab: mpirun: unknown command '%s%s"):format(word, see),
                refused { "mpirun", unpack(words) })
        end
        local missing = "cplab: mpirun: a command is missing: one of run, show, route, project, "
            .. "bench, report, compare, doctor, test" .. see
        assert.equal(missing, refused { "mpirun", "-n", "2" })
        assert.equal(missing, refused { "mpirun", "-n", "2", "--host", "bank" })
    end)

    it("knows the commands that there are", function()
        local list = command.cplab({ "--help" }).out:match "Commands:\n(.-)\n\n"
        local names = {}
        for line in list:gmatch "[^\n]+" do names[#names + 1] = line:match "^   (%l+)" end
        assert.equal("mpirun", table.remove(names))
        assert.equal(table.concat(names, " "),
            command.read(command.root .. "/cplab"):match '\ncommands="([^"]*)"')
    end)

    it("is not started by mpirun itself", function()
        assert.same({ status = 2, out = "", err = "cplab: mpirun: mpirun started this already (see "
            .. "./cplab mpirun --help)\n" }, command.shell(("OMPI_COMM_WORLD_SIZE=2 %s/cplab "
            .. "mpirun -n 2 doctor"):format(command.root)))
    end)

    it_mpi("binds no process to a core", function()
        local path = command.write(folder .. "/cores_spec.lua", [[
local ranks = require "spec.support.ranks"
it("may use all cores", function()
    local function cores()
        return io.open("/proc/self/status"):read("*a"):match "Cpus_allowed_list:%s*(%S+)"
    end
    assert.same({ CORES, CORES }, ranks.run(2, cores))
end)
]])
        local cores = command.shell("cat /proc/self/status").out
            :match "Cpus_allowed_list:%s*(%S+)"
        command.write(path, (command.read(path):gsub("CORES", ("%q"):format(cores))))
        local result = mpirun({ "test", path }, 2)
        assert.same({ 0, "" }, { result.status, result.err }, result.out)
    end)

    it_mpi("hands other options to mpirun, and standard input to the command", function()
        local result = command.shell(("echo 16,24 | %s/cplab mpirun -n 2 --tag-output route --cp 2 "
            .. "--lengths -"):format(command.root))
        assert.equal(0, result.status, result.err)
        assert.truthy(result.out:find "^%[1,0%]<stdout>:")
    end)

    local function shell(words, rest)
        return command.shell(("%s/cplab mpirun -n 2 %s %s"):format(command.root, words, rest or ""))
    end

    it_mpi("prints the help of a command once", function()
        for _, words in ipairs { "run --help", "test --help" } do
            local result = shell(words)
            assert.same({ 0, "" }, { result.status, result.err })
            local _, n = result.out:gsub("Usage: ", "")
            assert.equal(1, n)
        end
    end)

    it_mpi("tells what of standard output is lost", function()
        local route = "route --cp 2 --lengths 16,24"
        for rest, why in pairs {
            [">/dev/full"] = "No space left on device", [">&-"] = "Bad file descriptor",
        } do
            assert.same({ status = 2, out = "", err = "cplab: cannot write standard output: " .. why
                .. "\n" }, shell(route, rest))
        end
        assert.equal(2, shell(route, "<&- >&- 2>&-").status)
    end)

    it_mpi("ends in silence when nobody reads any more", function()
        local line = "bash -c 'set -o pipefail; %s/cplab mpirun -n 2 doctor | true'"
        assert.same({ status = 141, out = "", err = "" }, command.shell(line:format(command.root)))
    end)

    on_device.it(it_mpi, pending)("does not emulate the devices of processes", function()
        local words = only "good"
        words[#words + 1] = "--device=cuda-emulated"
        local result = run(words)
        assert.equal(1, result.status)
        assert.matches("device cuda%-emulated: it is for ranks that are threads, not for 3 "
            .. "processes\n", result.out)
    end)

    it_mpi("says why mpirun cannot start", function()
        local result = shell("--hostfile /no/such doctor")
        assert.truthy(result.status ~= 0)
        assert.truthy(result.err:find("/no/such", 1, true))
    end)

    it_mpi("ends with who ends it", function()
        for _, signal in ipairs { "INT", "TERM", "HUP", "KILL --foreground" } do
            local result = command.shell(("timeout -s %s 2 %s/cplab mpirun -n 3 run %s --only "
                .. "mode=loop --only cp=3 --deadline 30"):format(signal, command.root, script))
            assert.truthy(result.status ~= 0)
            assert.is_nil(result.err:find("was killed", 1, true))
            -- mpirun may be gone a moment before the others notice.
            local left = command.shell(("for i in $(seq 100); do ps -eo args | grep -F %s "
                .. "| grep -v grep || exit 0; sleep 0.1; done; echo left"):format(script)).out
            assert.is_nil(left:find "\nleft\n$")
        end
    end)

    it_mpi("runs from any folder, as the plain mpirun does", function()
        lfs.mkdir(folder .. "/deep")
        local plain = command.shell(("cd %s/deep && mpirun --allow-run-as-root --oversubscribe -q "
            .. "-n 3 %s/cplab run ../ends.lua --only mode=bad"):format(folder, command.root))
        assert.equal(1, plain.status)
        assert.truthy(plain.out:find "\n3 cases: 0 passed, 2 failed, 1 skipped\n")
        assert.is_nil(plain.err:find("mpirun", 1, true))
    end)
end)

describe("a program that mpirun started", function()
    -- Of the build that runs these specs.
    local function bin()
        return ("%s/.build/%s/bin"):format(command.root, os.getenv "CPLAB_VARIANT" or "release")
    end

    it("says once that its build has no MPI, with status 3", function()
        local host = bin()
        folder = command.folder()
        finally(function() command.remove(folder) end)
        command.shell(("cp %s/cplab-host %s/libcplab.so %s"):format(host, host, folder))
        local environments = { "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0", "PMIX_RANK=0" }
        for _, environment in ipairs(environments) do
            assert.same({ status = 3, out = "", err = "cplab: mpirun started this, but the build "
                .. "has no MPI: install libopenmpi-dev and openmpi-bin\n" },
                command.shell(("%s %s/cplab-host %s/lua/cplab/main.lua --version"):format(
                    environment, folder, command.root)))
        end
        assert.same({ status = 3, out = "", err = "" }, command.shell(("OMPI_COMM_WORLD_SIZE=2 "
            .. "OMPI_COMM_WORLD_RANK=1 %s/cplab-host %s/lua/cplab/main.lua --version"):format(
                folder, command.root)))
    end)

    it("says that its plug-in is none, or of another version", function()
        local host = bin()
        folder = command.folder()
        finally(function() command.remove(folder) end)
        command.shell(("cp %s/cplab-host %s/libcplab.so %s"):format(host, host, folder))
        local function version()
            return command.shell(("OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 %s/cplab-host "
                .. "%s/lua/cplab/main.lua --version"):format(folder, command.root))
        end
        command.write(folder .. "/libcplab_mpi.so", "no library")
        local broken = version()
        assert.same({ 3, "" }, { broken.status, broken.out })
        assert.matches("^cplab: cannot open the MPI plug%-in: [^\n]*\n$", broken.err)
        command.write(folder .. "/other.c", "const void *cpli_mpi_processes(void) "
            .. "{ static const int version = 99; return &version; }")
        command.shell(("cc -shared -fPIC -o %s/libcplab_mpi.so %s/other.c"):format(folder, folder))
        assert.same({ status = 3, out = "", err = "cplab: the MPI plug-in has version 99, this "
            .. "program wants 1: build both again\n" }, version())
    end)
end)
