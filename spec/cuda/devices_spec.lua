-- Which specs run on emulated devices (spec/devices.txt), and that the stage in which every access
-- is checked finds what it is there for.
local lfs = require "lfs"

local device = require "spec.support.on_device"
local environment = require "cplab.environment"

local root, word = environment.root(), environment.shell_word
local folders = { "spec/comm", "spec/exchange", "spec/tensor" }
local stages = { direct = true, nccl = true, checked = true, shuffled = true }

-- { path, stages or nil, reason or nil } of every line but comments.
local function listed(text)
    local list = {}
    for line in text:gmatch "[^\n]+" do
        if not line:find "^#" then
            local path, rest = line:match "^(%S+): (.+)$"
            local reason = rest and rest:match "^none: (.+)$"
            list[#list + 1] = { path = path or line, stages = not reason and rest, reason = reason }
        end
    end
    return list
end

-- What is wrong with a list, against the paths of the folders.
local function wrong(list, paths)
    local seen, out = {}, {}
    for _, entry in ipairs(list) do
        if not (paths[entry.path] or lfs.attributes(root .. "/" .. entry.path)) then
            out[#out + 1] = entry.path .. " is not there"
        end
        if seen[entry.path] then out[#out + 1] = entry.path .. " stands twice" end
        if not (entry.stages or entry.reason) then out[#out + 1] = entry.path .. " says nothing" end
        for stage in (entry.stages or ""):gmatch "%S+" do
            if not stages[stage] then out[#out + 1] = entry.path .. " names " .. stage end
        end
        seen[entry.path] = true
    end
    for path in pairs(paths) do
        if not seen[path] then out[#out + 1] = path .. " is missing" end
    end
    table.sort(out)
    return out
end

local function paths_of()
    local paths = {}
    for _, folder in ipairs(folders) do
        for name in lfs.dir(root .. "/" .. folder) do
            if name:find "_spec%.lua$" then paths[folder .. "/" .. name] = true end
        end
    end
    return paths
end

describe("the list of specs on devices", function()
    it("names every spec of ranks, rows and tensors: a stage, or a reason why not", function()
        local file = assert(io.open(root .. "/spec/devices.txt"))
        local text = file:read "*a"
        file:close()
        assert.same({}, wrong(listed(text), paths_of()))
    end)

    it("(control) is told of what is missing, twice, unknown, or without a word", function()
        local paths = { ["spec/a_spec.lua"] = true, ["spec/b_spec.lua"] = true }
        assert.same({}, wrong(listed "# a\nspec/a_spec.lua: none: why\nspec/b_spec.lua: nccl\n",
            paths))
        assert.same({ "spec/a_spec.lua names mpi", "spec/a_spec.lua stands twice",
            "spec/b_spec.lua is missing", "spec/c_spec.lua is not there",
            "spec/c_spec.lua says nothing" },
            wrong(listed "spec/a_spec.lua: mpi\nspec/a_spec.lua: nccl\nspec/c_spec.lua\n", paths))
    end)
end)

-- Rows of 3 f32 are exchanged by 2 ranks; `shift` bytes before the first row a rank says that they
-- begin, and the kernels believe it.
local SPEC = [[
local ranks = require "spec.support.ranks"
it("moves rows", function()
    ranks.run(2, function(comm, shift)
        local exchange = require "cplab.exchange"
        local rows = require "spec.exchange.rows"
        local rank = comm:rank()
        local stream = rows.stream("thd", 2)
        local a = rows.layout("zigzag", stream, 2)
        local b = rows.layout("contiguous", stream, 2)
        local plan = exchange.plan(require "cplab.route"(a, b), comm, "f32", 3, "copy")
        local x = rows.tensor("f32", a:n_local(rank), 3):fill_positions(a:positions(rank))
        local y = rows.tensor("f32", b:n_local(rank), 3)
        local data = require("ffi").cast("char *", x._ptr.data)
        x._ptr.data = data - shift
        plan:convert(x, y)
        local found = y:first_wrong(b:positions(rank))
        x._ptr.data = data
        assert(shift > 0 or not found)
        return true
    end, %d)
end)
]]

-- Runs it as the stage does: its status, and all that it says.
local function run(shift, settings)
    local build = package.searchpath("cplab_cdef", package.path):match "^(.*)/lua/"
    local path = os.tmpname()
    local spec = path .. "_spec.lua"
    local file = assert(io.open(spec, "w"))
    file:write(SPEC:format(shift))
    file:close()
    local pipe = io.popen(("cd %s && CPLAB_TRANSPORT=cuda-emulated %s bash spec/share.sh %s %s "
        .. "2>&1; echo status $?"):format(word(root), settings, word(build .. "/bin/cplab-host"),
        word(spec)))
    local text = pipe:read "*a"
    pipe:close()
    os.remove(spec)
    os.remove(path)
    local said, status = text:match "^(.*)status (%d+)\n$"
    return tonumber(status), said
end

describe("specs under the checker", function()
    local it_there = device.it(it, pending)

    for _, order in ipairs { "forward", "random:1" } do
        local settings = "CPLAB_CUDA_CHECK=1 CPLAB_CUDA_ORDER=" .. order

        it_there("pass in silence, " .. order, function()
            local status, said = run(0, settings)
            assert.equal(0, status, said)
            assert.equal(".\n\n1 passed, 0 failed, 0 skipped\n", said)
        end)

        it_there("fail with its sentence where a kernel reads what is not its own, " .. order,
            function()
                local status, said = run(8, settings)
                assert.equal(1, status, said)
                assert.matches("cuda%-emulated [01]: kernel cpl_cuda_copy: an illegal memory "
                    .. "access was encountered: out of bounds: kernel cpli_copy_%w+, block %d, "
                    .. "thread %d+ reads %d+ bytes? at move%.cu:%d+, from %d bytes? before the "
                    .. "start of device memory", said)
                assert.matches("\n0 passed, 1 failed, 0 skipped\n$", said)
            end)
    end

    it_there("(control) pass with that bug where nobody checks", function()
        local status, said = run(8, "")
        assert.equal(0, status, said)
    end)
end)
