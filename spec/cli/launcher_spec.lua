-- The launcher on machines that lack something: copies of it in empty checkouts, with a PATH that
-- holds only what the case allows.
local command = require "spec.cli.command"

local lfs = require "lfs"

local folder, programs

-- What the launcher may lean on: the programs of every Debian.
local essential = {
    "bash", "cat", "chmod", "dirname", "env", "find", "flock", "grep", "id", "mkdir", "mv",
    "nproc", "readlink", "rm", "setpriv", "setsid", "sleep", "tail", "timeout", "touch",
}

local function link(name)
    local path = command.shell("command -v " .. name).out:match "%S+"
    assert(lfs.link(assert(path, name), programs .. "/" .. name, true))
end

-- A program of the case. One of that name may be linked already; to write through the link would
-- be to overwrite the machine's own.
local function program(name, text)
    os.remove(programs .. "/" .. name)
    command.write(programs .. "/" .. name, "#!/bin/bash\n" .. text .. "\n")
    command.shell("chmod +x " .. programs .. "/" .. name)
end

-- A checkout that holds the launcher alone, run with the programs of the case alone.
local function run(words)
    return command.shell(("cd %s/checkout && env -i PATH=%s ./cplab %s"):format(
        folder, programs, words))
end

local function set_up()
    folder = command.folder()
    programs = folder .. "/programs"
    lfs.mkdir(programs)
    lfs.mkdir(folder .. "/checkout")
    command.shell(("cp %s/cplab %s/checkout/cplab"):format(command.root, folder))
    for _, name in ipairs(essential) do link(name) end
end

local lacking = "gcc libc6-dev make cmake pkg-config libluajit-5.1-dev libopenblas-pthread-dev"
local install = "apt-get install -y --no-install-recommends " .. lacking

describe("the launcher on a machine without packages", function()
    before_each(set_up)
    after_each(function() command.remove(folder) end)

    it("prints the exact command to who is not root", function()
        program("id", "echo 1000")
        program("apt-get", "echo must not run >&2; exit 9")
        assert.same({ status = 3, out = "", err = ("cplab: missing: %s; as root, run:\n"
            .. "  apt-get update && %s\n"):format(lacking, install) }, run "doctor")
    end)

    it("names the packages of the specs as well, and writes nothing before", function()
        local path = folder .. "/checkout/cplab"
        command.write(path, (command.read(path):gsub('test_packages="', "%0gone "))) -- never there
        command.write(folder .. "/checkout/.build", "no folder")
        program("id", "echo 1000")
        program("apt-get", "exit 9")
        assert.same({ status = 3, out = "", err = ("cplab: missing: %s gone; as root, run:\n"
            .. "  apt-get update && %s gone\n"):format(lacking, install) }, run "doctor")
    end)

    it("installs them for root, and says so where they do not come", function()
        program("id", "echo 0")
        program("apt-get", ("echo $DEBIAN_FRONTEND \"$@\" >>%s/calls"):format(folder))
        assert.same({ status = 3, out = "", err = ("cplab: installing packages: %s\n"
            .. "cplab: still missing after the installation: %s\n"):format(lacking, lacking) },
            run "doctor")
        assert.equal(("noninteractive update\nnoninteractive %s -o DPkg::Lock::Timeout=600\n")
            :format(install:match " (.*)"), command.read(folder .. "/calls"))
    end)

    local failures = {
        { "E: Failed to fetch some/where  Temporary failure resolving 'some'",
            "the network or the package server cannot be reached" },
        { "E: Unable to locate package cmake", "this system does not offer them" },
        { "dpkg was interrupted", "apt-get failed" },
    }
    for _, row in ipairs(failures) do
        it("says why an installation failed: " .. row[2], function()
            program("id", "echo 0")
            program("apt-get", ("[ $1 = update ] || { echo %q; exit 100; }"):format(row[1]))
            assert.same({ status = 3, out = "", err = ("cplab: installing packages: %s\n"
                .. "cplab: cannot install %s: %s, see .build/install.log\n"):format(lacking,
                    lacking, row[2]) }, run "doctor")
            assert.equal(row[1] .. "\n", command.read(folder .. "/checkout/.build/install.log"))
        end)
    end

    it("says what to install where there is no apt-get", function()
        assert.same({ status = 3, out = "",
            err = ("cplab: missing: %s; install them (there is no apt-get here)\n"):format(
                lacking) }, run "doctor")
    end)

    it("wants MPI only where it is asked for, and says so once", function()
        program("id", "echo 1000")
        program("apt-get", "exit 9")
        local mpi = lacking .. " libopenmpi-dev openmpi-bin"
        local sentence = ("cplab: missing: %s; as root, run:\n  apt-get update && %s "
            .. "libopenmpi-dev openmpi-bin\n"):format(mpi, install)
        assert.same({ status = 3, out = "", err = sentence }, run "mpirun -n 2 doctor")
        for rank, err in pairs { [0] = sentence:gsub(" libopenmpi%-dev openmpi%-bin", ""), "" } do
            assert.same({ status = 3, out = "", err = err }, command.shell(("cd %s/checkout && "
                .. "env -i PATH=%s OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=%d "
                .. "./cplab doctor"):format(folder, programs, rank)))
        end
    end)

    it("is run with fakes that leave the machine's own programs alone", function()
        local own = command.write(folder .. "/own", "the machine's own")
        assert(lfs.link(own, programs .. "/known", true))
        program("known", "echo fake")
        assert.equal("fake\n", command.shell(programs .. "/known").out)
        assert.equal("the machine's own", command.read(own))
    end)

    it("needs nothing to explain test", function()
        assert.equal(0, run("test --help").status)
    end)
end)

describe("the launcher on a machine with all packages", function()
    -- Fakes of the tools: what they did stands in `calls`.
    before_each(function()
        set_up()
        program("cc", "exit 0")
        program("make", "exit 0")
        program("pkg-config", "exit 0")
        program("cmake", ([[
echo "$@" >>%s/calls
[ ! -e %s/checkout/broken ] || { echo "core/a.c:3:1: error: no such thing"; exit 1; }
sleep 0.2
if [ "$1" = --build ]; then
    mkdir -p "$2/bin"
    printf '#!/bin/bash\necho "ran $(basename "$1") $2"\n' >"$2/bin/cplab-host"
    chmod +x "$2/bin/cplab-host"
fi]]):format(folder, folder))
        link "basename"
        for _, name in ipairs { "core", "kernels", "bindings", "spec" } do
            lfs.mkdir(folder .. "/checkout/" .. name)
        end
        lfs.mkdir(folder .. "/checkout/spec/c")
        command.write(folder .. "/checkout/CMakeLists.txt", "")
    end)
    after_each(function() command.remove(folder) end)

    local function n_builds()
        local _, n = (command.read(folder .. "/calls") or ""):gsub("%-%-build", "")
        return n
    end

    it("builds once, then runs at once", function()
        assert.same({ status = 0, out = "ran main.lua doctor\n",
            err = "cplab: building release ...\n" }, run "doctor")
        assert.same({ status = 0, out = "ran main.lua doctor\n", err = "" }, run "doctor")
        assert.equal(1, n_builds())
    end)

    it("builds again when a source changes, comes or goes", function()
        run "doctor"
        local source = folder .. "/checkout/core/a.c"
        for _, change in ipairs { "echo 1 >", "echo 2 >", "rm " } do
            command.shell(change .. source)
            assert.equal("cplab: building release ...\n", run("doctor").err)
            assert.equal("", run("doctor").err)
        end
        assert.equal(4, n_builds())
    end)

    it("builds again when MPI has come", function()
        run "doctor"
        program("mpicc", "exit 0")
        assert.equal("cplab: building release ...\n", run("doctor").err)
        assert.equal("", run("doctor").err)
        assert.equal(2, n_builds())
    end)

    it("builds no more than the words want", function()
        local source = folder .. "/checkout/spec/c/a.c"
        local function built(words)
            os.remove(folder .. "/calls")
            run(words)
            return (command.read(folder .. "/calls") or ""):match " %-%-target ([%l ]+)"
        end
        assert.equal("all", built "run a")
        command.write(source, "") -- a program of the specs is nothing to a run
        assert.is_nil(built "run a")
        assert.equal("all devices", built "run a --device=cuda")
        assert.is_nil(built "run a --device cuda-emulated")
        assert.is_nil(built "run a --device cpu")
        assert.is_nil(built "doctor")
        assert.equal("all devices specs", built "test")
        assert.is_nil(built "test")
        command.shell("sleep 0.01; echo 1 >" .. source)
        assert.equal("all devices specs", built "test")
        assert.is_nil(built "doctor")
    end)

    it("gives mpirun what a user would have to say, unless the user says it", function()
        program("mpicc", "echo Open MPI")
        program("mpirun", [[
[ "$1" != --version ] || { echo "mpirun (Open MPI) 4.1.4"; exit; }
echo "with $@"
env | grep ^OMPI_ | LC_ALL=C sort]])
        link "sort"
        local result = run "mpirun -n 3 --tag-output run 'a b'"
        assert.equal(([[
with -n 3 --tag-output %s/checkout/cplab run a b
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_hwloc_base_binding_policy=none
OMPI_MCA_orte_execute_quiet=1
OMPI_MCA_rmaps_base_oversubscribe=1
]]):format(folder), result.out)
        result = command.shell(("cd %s/checkout && env -i PATH=%s OMPI_MCA_orte_execute_quiet=0 "
            .. "./cplab mpirun -n 3 run a"):format(folder, programs))
        assert.truthy(result.out:find("OMPI_MCA_orte_execute_quiet=0\n", 1, true))
    end)

    it("builds from nothing in a checkout that was moved", function()
        run "doctor"
        command.write(folder .. "/checkout/.build/release/stale", "")
        command.shell(("mv %s/checkout %s/moved && mkdir %s/checkout && "
            .. "mv %s/moved/* %s/moved/.build %s/checkout && mv %s/checkout %s/other && "
            .. "ln -s other %s/checkout"):format(folder, folder, folder, folder, folder, folder,
                folder, folder, folder))
        assert.equal("cplab: building release ...\n", run("doctor").err)
        assert.is_nil(command.read(folder .. "/other/.build/release/stale"))
    end)

    it("names the first error of a build, and tries again", function()
        command.write(folder .. "/checkout/broken", "")
        local result = run "doctor"
        assert.same({ status = 3, out = "", err = "cplab: building release ...\n"
            .. "cplab: cannot configure (core/a.c:3:1: error: no such thing), "
            .. "see .build/release.log\n" }, result)
        os.remove(folder .. "/checkout/broken")
        assert.equal(0, run("doctor").status)
    end)

    it("builds once where two first calls meet", function()
        local both = command.shell(("cd %s/checkout && export PATH=%s && "
            .. "{ ./cplab a & ./cplab b & wait; }"):format(folder, programs))
        assert.same({ 0, 1 }, { both.status, n_builds() })
        assert.truthy(both.out:find "ran main.lua a\n")
        assert.truthy(both.out:find "ran main.lua b\n")
    end)

    it("says what to do where it cannot write", function()
        command.write(folder .. "/checkout/.build", "no folder")
        assert.same({ status = 3, out = "", err = "cplab: cannot write the folder .build; clone "
            .. "cplab to a folder that you can write\n" }, run "doctor")
    end)

    it("wants the count of the specs, not their status alone", function()
        for _, name in ipairs { "sort", "uname" } do link(name) end
        for _, name in ipairs { "luacheck", "clang-format", "cppcheck" } do
            program(name, "exit 0")
        end
        program("mpicc", "echo Open MPI")
        program("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
        program("clang", "echo " .. folder)
        command.shell(("touch %s/libclang_rt.fuzzer-$(uname -m).a && cp %s/spec/all.sh "
            .. "%s/checkout/spec"):format(folder, command.root, folder))
        local result = run "test --all"
        assert.equal(1, result.status)
        assert.truthy(result.out:find "luacheck +ok")
        assert.truthy(result.out:find("\nspecs (no CUDA toolkit: spec/emulation and spec/cuda are "
            .. "skipped) FAILED", 1, true))
        for _, row in ipairs { { "bin/emulation_trial", "specs %(no nvcc: .-are skipped%) FAILED" },
            { "cuda/nvcc.txt", "specs +FAILED" } } do
            command.shell(("cd %s/checkout/.build/check && mkdir -p cuda && touch %s"):format(
                folder, row[1]))
            assert.truthy(run("test --all").out:find("\n" .. row[2]))
        end
        assert.truthy(result.out:find "specs, address%+undefined +FAILED")
        assert.truthy(result.out:find "specs, mpirun 4 +FAILED")
    end)

    it("knows only the builds that there are", function()
        local result = command.shell(("cd %s/checkout && env -i PATH=%s CPLAB_VARIANT=fast "
            .. "./cplab doctor"):format(folder, programs))
        assert.same({ status = 3, out = "",
            err = "cplab: CPLAB_VARIANT is release, check or address, not fast\n" }, result)
    end)
end)

describe("the build", function()
    it("gives the shell no path inside its text, where a blank would cut it", function()
        local text = command.read(command.root .. "/CMakeLists.txt")
        local script = text:match 'COMMAND sh %-c (".-[^\\]")'
        assert.truthy(script:find('\\"$0\\" -E', 1, true))
        assert.is_nil(script:find("${", 1, true))
    end)
end)

describe("the launcher of this checkout", function()
    it("starts in under a second when nothing changed", function()
        command.cplab { "--version" }
        local seconds = tonumber(command.shell("bash -c 'TIMEFORMAT=%R; time " .. command.root
            .. "/cplab --version >/dev/null'").err)
        assert.is_true(seconds < 1)
    end)

    it("is called by CI", function()
        assert.truthy(command.read(command.root .. "/.ci/run"):find("\nexec ./cplab test --all\n",
            1, true))
    end)
end)
