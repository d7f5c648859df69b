-- The static gate: what nvcc made of every kernel for every architecture, read from the library and
-- held against tables (kernel_bars.lua). It cannot show speed; it shows what would make speed
-- impossible: narrow accesses, loads that wait for each other, spills, too many registers, products
-- without tensor cores.
local lfs = require "lfs"

local cubin = require "spec.support.cubin"
local bars = require "spec.support.kernel_bars"
local names = require "spec.support.kernel_names"
local environment = require "cplab.environment"

local root = environment.root()
local build = package.searchpath("cplab_cdef", package.path):match "^(.*)/lua/"
local library = build .. "/bin/libcplab_cuda.so"
local architectures = { 80, 90 }

local missing = not lfs.attributes(library) and "there is no CUDA toolkit (nvcc) on this machine"

local function read(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read "*a"
    file:close()
    return text
end

-- ---- judging ------------------------------------------------------------------------------------

-- Of what only some kernels have, as many as their bar says.
local counted = { "tensor_cores", "async_copies", "matrix_loads", "barriers", "shuffles",
    "atomics", "reductions" }

local function sum_of(by_width)
    local sum = 0
    for _, n in pairs(by_width or {}) do sum = sum + n end
    return sum
end

local function judge_accesses(kernel, bar, complain)
    local allowed = {}
    for _, width in ipairs(bar.stores) do allowed[width] = true end
    for width, n in pairs(kernel.stores or {}) do
        if not allowed[width] then complain("%d stores of %s bits", n, width) end
    end
    for width, least in pairs(bar.at_once or {}) do
        local most = kernel.in_flight[width] or 0
        if most < least then
            complain("%d loads of %s bits before a store, not %d", most, width, least)
        end
    end
    local narrow = sum_of(kernel.loads) - (kernel.loads and kernel.loads["128"] or 0)
    if bar.lists and narrow > bar.lists then
        complain("%d loads of less than 128 bits, more than %d", narrow, bar.lists)
    end
end

-- Calls judge_parts(complain) and returns its sentences; none where all is well.
local function sentences_on(name, judge_parts)
    local wrong = {}
    judge_parts(function(format, ...)
        wrong[#wrong + 1] = name .. ": " .. format:format(...)
    end)
    return wrong
end

-- What holds for all kernels.
local function judge_size(kernel, bar, complain)
    local spilt = sum_of(kernel.local_loads) + sum_of(kernel.local_stores)
    if kernel.frame ~= 0 or spilt > 0 then
        complain("%d bytes of local memory, %d accesses", kernel.frame, spilt)
    end
    if kernel.registers > bar.registers then
        complain("%d registers, more than %d", kernel.registers, bar.registers)
    end
end

-- Of a kernel that moves bytes.
local function judge_moving(name, kernel, bar)
    return sentences_on(name, function(complain)
        if not bar then return complain "has no bar in this table" end
        judge_size(kernel, bar, complain)
        for _, what in ipairs(counted) do
            if (kernel[what] or 0) ~= (bar[what] or 0) then
                complain("%d %s, not %d", kernel[what] or 0, what, bar[what] or 0)
            end
        end
        judge_accesses(kernel, bar, complain)
    end)
end

-- The row of a kernel: its own, or that of all which have its first word.
local function row_of(rows, name)
    return rows[name] or rows[name:match "^%S+"] or {}
end

-- Of a kernel that computes.
local function judge_computing(name, kernel, tables)
    local bar = setmetatable({}, { __index = tables.computing_all })
    for what, bound in pairs(row_of(tables.computing, name)) do bar[what] = bound end
    return sentences_on(name, function(complain)
        judge_size(kernel, bar, complain)
        if kernel.shared > bar.shared then
            complain("%d bytes of shared memory, more than %d", kernel.shared, bar.shared)
        end
        for what, least in pairs(row_of(tables.multiplying, name)) do
            if (kernel[what] or 0) < least then
                complain("%d %s, fewer than %d", kernel[what] or 0, what, least)
            end
        end
    end)
end

-- Rows of tables that no kernel has.
local function judge_rows(kernels, tables)
    local known, wrong = {}, {}
    for name in pairs(kernels) do
        known[name], known[name:match "^%S+"] = true, true
    end
    for _, of in ipairs { "moving", "computing", "multiplying" } do
        for name in pairs(tables[of]) do
            if not known[name] then wrong[#wrong + 1] = name .. ": is not there" end
        end
    end
    return wrong
end

-- ---- what is shipped ----------------------------------------------------------------------------

-- By short name.
local function kernels_of(arch, text)
    local all = {}
    for _, image in ipairs(cubin.images(text)) do
        for symbol, kernel in pairs(image.arch == arch and image.kernels or {}) do
            local name = names.short(symbol)
            assert(not all[name], name .. ": two kernels have this name")
            kernel.moves = name == symbol
            all[name] = kernel
        end
    end
    return all
end

local function judge_all(kernels, tables)
    local wrong = judge_rows(kernels, tables)
    for name, kernel in pairs(kernels) do
        local found = kernel.moves and judge_moving(name, kernel, tables.moving[name])
            or judge_computing(name, kernel, tables)
        for _, sentence in ipairs(found) do wrong[#wrong + 1] = sentence end
    end
    table.sort(wrong)
    return wrong
end

local function it_needs_nvcc(what, f)
    it(what, function()
        if missing then pending(missing) end
        f()
    end)
end

describe("the static gate", function()
    for _, arch in ipairs(architectures) do
        it_needs_nvcc(("sm_%d: every kernel keeps its bar, and every bar has its kernel")
            :format(arch), function()
            assert.equal("", table.concat(judge_all(kernels_of(arch, read(library)), bars), "\n"))
        end)
    end

    it_needs_nvcc("the library also has PTX, for later devices", function()
        assert.truthy(read(library):find(".target sm_90", 1, true))
    end)
end)

-- ---- what it must refuse ------------------------------------------------------------------------

local nvcc = not missing and read(build .. "/cuda/nvcc.txt"):match "^[^\n]+"

-- Compiles the planted kernels: the exit status, what nvcc said, and the object's bytes.
local function compile(flags)
    local out = os.tmpname()
    local pipe = io.popen(("%s -c %s -o %s 2>&1; echo $?"):format(flags,
        environment.shell_word(root .. "/spec/cuda/planted/planted.cu"), out))
    local said, status = pipe:read "*a":match "^(.-)(%d+)\n$"
    pipe:close()
    local object = read(out)
    os.remove(out)
    return tonumber(status), said, object
end

describe("the static gate, on planted kernels", function()
    local planted

    setup(function()
        if missing then return end
        -- As the build has it, but that a spill is let pass.
        local status, said, object = compile((nvcc:gsub("%-Xptxas=%S+", "")))
        assert.equal(0, status, said)
        planted = { [80] = kernels_of(80, object), [90] = kernels_of(90, object) }
    end)

    it_needs_nvcc("the build's own flags refuse a spill", function()
        local status, said = compile(nvcc)
        assert.is_true(status ~= 0)
        assert.matches("spilled to local memory in function 'planted_spill'", said, 1, true)
    end)

    for _, arch in ipairs(architectures) do
        it_needs_nvcc(("sm_%d: the table refuses a spill"):format(arch), function()
            local wrong = judge_moving("planted_spill", planted[arch].planted_spill,
                { registers = 64, stores = { "32" } })
            assert.equal(1, #wrong)
            assert.matches("planted_spill: %d+ bytes of local memory, %d+ accesses", wrong[1])
        end)

        it_needs_nvcc(("sm_%d: the table refuses narrow accesses"):format(arch), function()
            local kernel = planted[arch].planted_narrow
            local wrong = judge_moving("planted_narrow", kernel,
                { registers = 64, stores = { "128" }, at_once = { ["128"] = 4 }, lists = 0 })
            local text = table.concat(wrong, "\n")
            assert.matches("planted_narrow: %d+ stores of 8 bits", text)
            assert.matches("0 loads of 128 bits before a store, not 4", text, 1, true)
            assert.matches("%d+ loads of less than 128 bits, more than 0", text)
        end)

        it_needs_nvcc(("sm_%d: the table refuses more registers, and what it does not name")
            :format(arch), function()
            local few = judge_moving("planted_narrow", planted[arch].planted_narrow,
                { registers = 4, stores = { "8" } })
            assert.matches("registers, more than 4", table.concat(few), 1, true)
            assert.same({ "planted_narrow: has no bar in this table" },
                judge_moving("planted_narrow", planted[arch].planted_narrow))
            local text = table.concat(judge_moving("x", planted[arch].planted_instructions,
                { registers = 64, stores = { "32" } }), "\n")
            for _, what in ipairs { "tensor_cores", "async_copies", "barriers", "shuffles" } do
                assert.matches(("x: 1 %s, not 0"):format(what), text, 1, true)
            end
        end)

        it_needs_nvcc(("sm_%d: of kernels that compute, the tables refuse too much and too little")
            :format(arch), function()
            local kernel = planted[arch].planted_instructions
            local function judged(tables)
                tables.computing_all = bars.computing_all
                tables.computing = tables.computing or {}
                tables.multiplying = tables.multiplying or {}
                return table.concat(judge_computing("x f32", kernel, tables), "\n")
            end
            assert.equal("", judged {})
            assert.equal("", judged { multiplying = { x = { tensor_cores = 1 } } })
            assert.equal("x f32: 1 tensor_cores, fewer than 2",
                judged { multiplying = { x = { tensor_cores = 2 } } })
            assert.equal("", judged { multiplying = { ["x f64"] = { tensor_cores = 2 } } })
            assert.matches("x f32: %d+ registers, more than 4",
                judged { computing = { x = { registers = 4 } } })
            assert.matches("x f32: %d+ bytes of shared memory, more than 8",
                judged { computing = { ["x f32"] = { shared = 8 } } })
            assert.matches("planted_spill: %d+ bytes of local memory", table.concat(
                judge_computing("planted_spill", planted[arch].planted_spill, bars)))
        end)

        it_needs_nvcc(("sm_%d: the reader knows what a kernel is made of"):format(arch), function()
            local kernel = planted[arch].planted_instructions
            assert.equal(1, kernel.async_copies)
            assert.equal(1, kernel.tensor_cores)
            assert.equal(1, kernel.barriers)
            assert.equal(1, kernel.shuffles)
            assert.same({ ["128"] = 1 }, kernel.shared_loads)
            assert.same({ ["32"] = 1 }, kernel.stores)
            assert.equal(1, kernel.atomics)
            assert.equal(1, kernel.reductions)
            assert.equal(0, kernel.frame)
        end)
    end

    it("a row without a kernel is told", function()
        local tables = { moving = { a = {} }, computing = { b = {}, ["c f32"] = {} },
            multiplying = { d = {} } }
        local wrong = judge_rows({ ["c f64"] = {}, ["b f64"] = {} }, tables)
        table.sort(wrong)
        assert.same({ "a: is not there", "c f32: is not there", "d: is not there" }, wrong)
    end)

    it("short names are the function's, with its template arguments", function()
        for symbol, name in pairs {
            cpli_fill = "cpli_fill",
            _ZN4cpli16moe_margin_startEPd = "moe_margin_start",
            _ZN4cpli5axpbyIfEEvPKT_PS1_lNS_6numberIS1_E3sumES7_ = "axpby f32",
            _ZN4cpli5adamwI13__nv_bfloat16Li8EEEv9cpl_adamw = "adamw bf16 8",
            _ZN4cpli12matmul_tiledI13__nv_bfloat16S1_EEvNS_7productIT_T0_EE =
                "matmul_tiled bf16 bf16",
            _ZN4cpli4walkIdLb1ELin2ENS_4tileIfS1_EEEEv = "walk f64 true -2 tile<f32 tile>",
        } do
            assert.equal(name, names.short(symbol))
        end
    end)

    it("the reader refuses what is no cubin", function()
        assert.has_error(function() cubin.kernels "\127ELF\1 32 bits" end,
            "cubin: not an ELF file of 64 bits")
        assert.same({}, cubin.images "no cubin at all")
    end)
end)
