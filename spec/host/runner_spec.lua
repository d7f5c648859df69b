-- The runner of the specs: what a spec does to it must not hide a failure.
local host = io.open("/proc/self/cmdline"):read("*a"):match "^[^%z]+"

-- Runs a spec file with that text in a process of its own: status, all that it prints.
local function run(text, ending, setting)
    local out = os.tmpname()
    local spec = out .. (ending or "_spec.lua")
    local file = assert(io.open(spec, "w"))
    file:write(text)
    file:close()
    local runner = debug.getinfo(1, "S").source:match "^@(.*)host/[^/]*$" .. "run.lua"
    local status = os.execute(("%s '%s' '%s' '%s' >'%s' 2>&1"):format(setting or "", host, runner,
        spec, out))
    local printed = assert(io.open(out)):read "*a"
    os.remove(spec)
    os.remove(out)
    return status / 256, printed
end

describe("a run of the specs", function()
    it("has status 0 where all passed, 1 where not, and ends with the counts", function()
        local status, text = run [[ it("a", function() end) ]]
        assert.equal(0, status)
        assert.matches("\n1 passed, 0 failed, 0 skipped\n$", text)
        status, text = run [[ it("a", function() end) it("b", function() assert.equal(1, 2) end) ]]
        assert.equal(1, status)
        assert.matches("\n1 passed, 1 failed, 0 skipped\n$", text)
    end)

    it("runs a file that is named whatever its name, and fails where there is no spec", function()
        local status, text = run([[ it("a", function() end) ]], "-mine.lua")
        assert.equal(0, status)
        assert.matches("\n1 passed, 0 failed, 0 skipped\n$", text)
        status, text = run "local x = 1"
        assert.equal(1, status)
        assert.matches("there was no spec to run\n\n0 passed, 0 failed, 0 skipped\n$", text)
    end)

    it("has the numbers of ranks that are wanted, and no more than there are", function()
        for setting, sizes in pairs { [""] = "1 2 3 8", ["CPLAB_SIZES=2"] = "1 2",
            ["CPLAB_SIZES=whole"] = "8" } do
            local _, text = run([[ it("a", function()
                error(table.concat(require("spec.support.ranks").sizes { 1, 2, 3, 8, 9 }, " "), 0)
            end) ]], nil, setting)
            assert.matches(": " .. sizes .. "\n", text, 1, true)
        end
    end)

    it("fails where a spec calls os.exit", function()
        local status, text = run [[
            it("a", function() os.exit(0) end)
            it("b", function() end)
        ]]
        assert.equal(1, status)
        assert.matches("os.exit: a spec cannot end the run", text, 1, true)
        assert.matches("\n1 passed, 1 failed, 0 skipped\n$", text)
    end)

    it("fails where a spec file calls os.exit outside its specs", function()
        local status, text = run [[
            it("a", function() end)
            os.exit(0)
        ]]
        assert.equal(1, status)
        assert.matches("\n%d passed, 1 failed, 0 skipped\n$", text)
    end)

    it("fails where a spec catches what os.exit raises", function()
        local status, text = run [[ it("a", function() pcall(os.exit, 0) end) ]]
        assert.equal(1, status)
        assert.matches("\n1 passed, 0 failed, 0 skipped\n", text)
        assert.matches("specs called os.exit 1 times", text, 1, true)
    end)

    it("ends although a rank does not return", function()
        local status, text = run [[
            it("a", function()
                require("spec.support.ranks").try(2, function(comm)
                    if comm:rank() == 1 then while true do end end
                    comm:barrier()
                end, nil, 0.3)
            end)
        ]]
        assert.equal(0, status)
        assert.matches("\n1 passed, 0 failed, 0 skipped\n$", text)
    end)
end)

describe("specs side by side", function()
    local root = require("cplab.environment").root()

    local function lines_of(words)
        local pipe, lines = io.popen(("cd '%s' && %s"):format(root, words)), {}
        for line in pipe:lines() do lines[#lines + 1] = line end
        pipe:close()
        return lines
    end

    -- What spec/share.sh makes of a host that says and does that: its status, its last line.
    local function share(body, files)
        local name = os.tmpname()
        local file = assert(io.open(name, "w"))
        file:write("#!/bin/bash\n" .. body)
        file:close()
        local lines = lines_of(("chmod +x %s && bash spec/share.sh %s %s; echo $?"):format(name,
            name, files or "spec/host/runner_spec.lua"))
        os.remove(name)
        return tonumber(lines[#lines]), lines[#lines - 1]
    end

    it("count together, and show what took long", function()
        assert.same({ 0, "2 passed, 0 failed, 1 skipped" },
            { share 'echo "took 3.0 s: a"; echo "2 passed, 0 failed, 1 skipped"' })
    end)

    it("fail where a host failed, did not count, or ended badly after all had passed", function()
        for body, counts in pairs {
            ['echo "1 passed, 1 failed, 0 skipped"; exit 1'] = "1 passed, 1 failed, 0 skipped",
            ["exit 0"] = "0 passed, 1 failed, 0 skipped",
            ['echo "1 passed, 0 failed, 0 skipped"; exit 1'] = "1 passed, 1 failed, 0 skipped",
        } do
            assert.same({ 1, counts }, { share(body) })
        end
    end)

    it("are all run, each of them once, and the long ones are files", function()
        local record = os.tmpname()
        local _, counts = share(([[shift; printf '%%s\n' "$@" >>%s
            echo "$# passed, 0 failed, 0 skipped"]]):format(record), "spec")
        local files = lines_of "find spec -name '*_spec.lua' | LC_ALL=C sort"
        assert.equal(#files .. " passed, 0 failed, 0 skipped", counts)
        assert.same(files, lines_of("LC_ALL=C sort " .. record))
        os.remove(record)
        for _, file in ipairs(lines_of "grep -v '^#' spec/long.txt") do
            assert.is_true(require("lfs").attributes(root .. "/" .. file) ~= nil, file)
        end
    end)
end)
