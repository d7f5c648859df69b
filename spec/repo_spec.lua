-- The rules of the house that a program can hold: what lies where, who includes whom, and sizes.
local lfs = require "lfs"

local environment = require "cplab.environment"

local root = environment.root()

-- The folders that hold our own text, and what may lie beside them.
local top = {
    ["README.md"] = true, LICENSE = true, ["CMakeLists.txt"] = true, cplab = true, core = true,
    kernels = true, bindings = true, lua = true, experiments = true, spec = true, [".ci"] = true,
    [".clang-format"] = true, [".gitignore"] = true,
    [".luacheckrc"] = true,
}
local folders = { "core", "kernels", "bindings", "lua", "experiments", "spec" }

-- A file may include its own folder and lower levels only.
local levels = {
    base = 0, kernels = 1, layout = 2, comm = 2, trace = 2, tensor = 3, exchange = 4, layer = 5,
    bindings = 6, spec = 7,
}

local c_family = "%.[ch][uhp]*$" -- c, h, cu, cuh, cpp

local function walk(folder, list)
    for name in lfs.dir(root .. "/" .. folder) do
        if name:sub(1, 1) ~= "." then
            local path = folder .. "/" .. name
            local mode = lfs.attributes(root .. "/" .. path, "mode")
            if mode == "directory" then walk(path, list) else list[#list + 1] = path end
        end
    end
    return list
end

local function files(pattern)
    local list = {}
    for _, folder in ipairs(folders) do
        for _, path in ipairs(walk(folder, {})) do
            if path:find(pattern) then list[#list + 1] = path end
        end
    end
    table.sort(list)
    return list
end

local function read(path)
    local file = assert(io.open(root .. "/" .. path, "rb"))
    local text = file:read "*a"
    file:close()
    return text
end

local function lines_of(path)
    local list = {}
    for line in (read(path) .. "\n"):gmatch "(.-)\n" do list[#list + 1] = line end
    if list[#list] == "" then list[#list] = nil end
    return list
end

local function none(wrong)
    assert.equal("", table.concat(wrong, "\n"))
end

-- ---- what wrong means, as functions of texts, so that each has a negative control --------

local function home(path)
    return path:match "^core/([^/]+)/" or path:match "^([^/]+)/"
end

-- The folder of an included file, or nil for a system header.
local function target(path, included)
    local folder = included:match "^([^/]+)/"
    if folder and lfs.attributes(root .. "/kernels/" .. folder) then return "kernels" end
    if folder then return folder end
    if included == "cplab.h" then return "base" end
    if lfs.attributes(root .. "/" .. path:match "^(.*)/" .. "/" .. included) then
        return home(path)
    end
    for _, candidate in ipairs { "base", "kernels", "bindings" } do
        local at = candidate == "base" and "core/base" or candidate
        if lfs.attributes(("%s/%s/%s"):format(root, at, included)) then return candidate end
    end
    return "nowhere"
end

local function points_down(path, included)
    local own, other = home(path), target(path, included)
    if own == other then return true end
    return levels[own] ~= nil and levels[other] ~= nil and levels[other] < levels[own]
end

local function too_long(path, lines)
    local limit = path:find "%.lua$" and 100 or path:find(c_family) and 80
    for i, line in ipairs(lines) do
        -- A character of UTF-8 is one column.
        local _, columns = line:gsub("[^\128-\191]", "")
        if limit and columns > limit then return ("%s:%d"):format(path, i) end
    end
    return nil
end

-- The first function whose body is longer than `limit` lines.
local function long_function(path, lines, limit)
    local is_c, start = path:find(c_family), nil
    for i, line in ipairs(lines) do
        if is_c and line == "{" or not is_c and line:find "^l?o?c?a?l? ?function " then
            start = i
        elseif start and line:find(is_c and "^}" or "^end") then
            if i - start > limit then return ("%s:%d"):format(path, start) end
            start = nil
        end
    end
    return nil
end

local open_ends = { "TO" .. "DO", "FIX" .. "ME", "X" .. "XX" }

local function open_end(path, lines)
    for i, line in ipairs(lines) do
        for _, word in ipairs(open_ends) do
            if line:find("%f[%w]" .. word .. "%f[%W]") then return ("%s:%d"):format(path, i) end
        end
    end
    return nil
end

-- Headers of vendors, and the files (or the beginnings of their paths) that may have them. Our own
-- cuda.h and cuda_on_host.h are none.
local vendor_homes = {
    ["mpi%.h"] = { "core/comm/mpi.c" },
    ["nccl%.h"] = { "core/comm/nccl.c", "kernels/emulation/", "spec/emulation/" },
    ["cublas_[%w_]*%.h"] = { "core/comm/cublas.c", "kernels/emulation/" },
    ["cuda_[%w_]*%.h"] = { "core/comm/cuda", "core/comm/nccl.c", "core/comm/cublas.c",
        "core/tensor/cuda", "kernels/device.cuh", "kernels/emulation/", "spec/emulation/" },
}
local own_headers = { ["cuda_on_host.h"] = true }

-- Whether it is one that the file may not have.
local function vendor_header(path, included)
    for pattern, homes in pairs(vendor_homes) do
        if included:find("^" .. pattern .. "$") and not own_headers[included] then
            for _, home_of_it in ipairs(homes) do
                if path:sub(1, #home_of_it) == home_of_it then return false end
            end
            return true
        end
    end
    return false
end

-- ---- the rules ------------------------------------------------------------------------------

describe("the repository", function()
    it("holds at its top only what was agreed", function()
        local wrong = {}
        local pipe = io.popen("git -C " .. environment.shell_word(root) .. " ls-files 2>&1")
        for path in pipe:lines() do
            local name = path:match "^[^/]+"
            if not path:find "^fatal" and not top[name] then wrong[#wrong + 1] = path end
        end
        pipe:close()
        none(wrong)
    end)

    it("includes downwards only", function()
        local wrong = {}
        for _, path in ipairs(files "%.[ch]$") do
            for included in read(path):gmatch '#include "([^"]+)"' do
                if not points_down(path, included) then
                    wrong[#wrong + 1] = ("%s includes %s"):format(path, included)
                end
            end
        end
        none(wrong)
    end)

    it("knows an include that points up, aside or nowhere", function()
        assert.is_true(points_down("core/layer/gqa.c", "comm/comm.h"))
        assert.is_true(points_down("core/comm/self.c", "base.h"))
        assert.is_false(points_down("core/comm/self.c", "tensor/tensor.h"))
        assert.is_false(points_down("core/comm/self.c", "layout/layout.h"))
        assert.is_false(points_down("core/base/clock.c", "comm/comm.h"))
        assert.is_false(points_down("core/base/clock.c", "no_such.h"))
    end)

    it("keeps a vendor header in its one file", function()
        local wrong = {}
        for _, path in ipairs(files(c_family)) do
            for included in read(path):gmatch '#include [<"]([^>"]+)[>"]' do
                if vendor_header(path, included) then
                    wrong[#wrong + 1] = path .. ": " .. included
                end
            end
        end
        none(wrong)
        assert.is_true(vendor_header("core/comm/group.c", "mpi.h"))
        assert.is_true(vendor_header("core/comm/mpi.c", "cuda_runtime.h"))
        assert.is_false(vendor_header("core/comm/mpi.c", "mpi.h"))
        assert.is_false(vendor_header("core/comm/mpi.c", "comm.h"))
        assert.is_true(vendor_header("kernels/exchange/move.cu", "cuda_runtime.h"))
        assert.is_true(vendor_header("core/comm/cuda.c", "nccl.h"))
        assert.is_true(vendor_header("core/comm/nccl.c", "cublas_v2.h"))
        assert.is_false(vendor_header("core/comm/cublas.c", "cublas_v2.h"))
        assert.is_false(vendor_header("kernels/device.cuh", "cuda_runtime.h"))
        assert.is_false(vendor_header("core/comm/cuda.c", "cuda.h"))
        assert.is_false(vendor_header("kernels/emulation/emulator.h", "cuda_runtime_api.h"))
        assert.is_true(vendor_header("kernels/emulation/emulator.h", "mpi.h"))
    end)

    it("has no file over 600 lines", function()
        local wrong = {}
        for _, path in ipairs(files(c_family)) do
            if #lines_of(path) > 600 and path ~= "core/cplab.h" then wrong[#wrong + 1] = path end
        end
        for _, path in ipairs(files "%.lua$") do
            if #lines_of(path) > 600 then wrong[#wrong + 1] = path end
        end
        none(wrong)
    end)

    it("has no line over 80 columns in C, 100 in Lua", function()
        local wrong = {}
        for _, path in ipairs(files "%.%a+$") do
            wrong[#wrong + 1] = too_long(path, lines_of(path))
        end
        none(wrong)
        assert.equal("a.c:2", too_long("a.c", { "", ("x"):rep(81) }))
        assert.is_nil(too_long("a.c", { ("é"):rep(80) }))
        assert.equal("a.lua:1", too_long("a.lua", { ("x"):rep(101) }))
    end)

    it("has no function over 60 lines, 100 in a kernel", function()
        local wrong = {}
        for _, path in ipairs(files "%.[chl][uahp]*$") do
            local limit = path:find "^kernels/" and 100 or 60
            if not path:find "^spec/" then
                wrong[#wrong + 1] = long_function(path, lines_of(path), limit)
            end
        end
        none(wrong)
        assert.equal("a.c:1", long_function("a.c", { "{", "", "", "}" }, 2))
        assert.is_nil(long_function("a.c", { "{", "", "}" }, 2))
        assert.equal("a.lua:1", long_function("a.lua", { "local function f()", "", "", "end" }, 2))
        assert.equal("a.lua:1", long_function("a.lua", { "function M.f()", "", "", "end" }, 2))
    end)

    it("leaves nothing open in its text", function()
        local wrong = {}
        for _, path in ipairs(files "%.[chl][uahp]*$") do
            wrong[#wrong + 1] = open_end(path, lines_of(path))
        end
        none(wrong)
        assert.equal("a.c:1", open_end("a.c", { "/* " .. open_ends[1] .. ": later */" }))
    end)

    it("begins every file with what it is", function()
        local wrong = {}
        for _, path in ipairs(files "%.lua$") do
            -- A spec says what it is by the file that it mirrors.
            local is_spec = path:find "_spec%.lua$"
            if not is_spec and not read(path):find "^%-%-" then wrong[#wrong + 1] = path end
        end
        for _, path in ipairs(files(c_family)) do
            if not read(path):find "^/%*" then wrong[#wrong + 1] = path end
        end
        none(wrong)
    end)
end)
