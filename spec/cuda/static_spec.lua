-- The static gate: what nvcc made of every kernel for every architecture, read from the library and
-- held against a table. It cannot show speed; it shows what would make speed impossible: narrow
-- accesses, loads that wait for each other, spills, too many registers.
local lfs = require "lfs"

local cubin = require "spec.support.cubin"
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

-- ---- the table ----------------------------------------------------------------------------------

-- `stores`: the only widths that it may store. `at_once`: so many loads of a width come before the
-- first store. `lists`: so many loads of 32 and 64 bits, all of them of lists and counts; data then
-- is loaded by 128 bits alone. Whatever is not named here: none.
local every_width = { "8", "16", "32", "64", "128" }
local wide_copy = { registers = 64, stores = { "128" }, at_once = { ["128"] = 8 }, lists = 14 }
local wide_sum = { registers = 64, stores = { "128" }, at_once = { ["128"] = 4 }, lists = 16 }
local bars = {
    cpli_copy_aligned = wide_copy,
    cpli_swap_aligned = wide_copy,
    cpli_copy_any = { registers = 64, stores = every_width,
        at_once = { ["128"] = 8, ["64"] = 8, ["32"] = 8, ["16"] = 8, ["8"] = 8 } },
    cpli_swap_any = { registers = 80, stores = every_width,
        at_once = { ["128"] = 8, ["64"] = 8, ["32"] = 8, ["16"] = 8, ["8"] = 8 } },
    cpli_fill = { registers = 40, stores = { "8", "128" }, lists = 14 },
    cpli_add_f64_aligned = wide_sum, cpli_add_f32_aligned = wide_sum,
    cpli_add_i64_aligned = wide_sum, cpli_add_i32_aligned = wide_sum,
    cpli_add_f64_any = { registers = 64, stores = { "64" }, at_once = { ["64"] = 8 } },
    cpli_add_f32_any = { registers = 64, stores = { "32" }, at_once = { ["32"] = 8 } },
    cpli_add_i64_any = { registers = 64, stores = { "64" }, at_once = { ["64"] = 8 } },
    cpli_add_i32_any = { registers = 64, stores = { "32" }, at_once = { ["32"] = 8 } },
    cpli_permute_16 = { registers = 64, stores = { "128" }, at_once = { ["128"] = 4 }, lists = 10 },
    cpli_permute_8 = { registers = 64, stores = { "64" }, at_once = { ["64"] = 4 } },
    cpli_permute_4 = { registers = 64, stores = { "32" }, at_once = { ["32"] = 4 } },
    cpli_permute_2 = { registers = 64, stores = { "16" }, at_once = { ["16"] = 4 } },
    cpli_permute_1 = { registers = 64, stores = { "8" }, at_once = { ["8"] = 4 } },
    cpli_trace_compare = { registers = 40, stores = {}, reductions = 2 },
    cpli_trace_keep = { registers = 40, stores = { "64" } },
    cpli_trace_write = { registers = 40, stores = { "64" } },
    cpli_trace_divide = { registers = 40, stores = { "64" } },
}

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

-- Sentences on what is wrong with a kernel; none where all is well.
local function judge(name, kernel, bar)
    local wrong = {}
    local function complain(format, ...)
        wrong[#wrong + 1] = name .. ": " .. format:format(...)
    end
    if not bar then return { name .. ": has no bar in this table" } end
    local spilt = sum_of(kernel.local_loads) + sum_of(kernel.local_stores)
    if kernel.frame ~= 0 or spilt > 0 then
        complain("%d bytes of local memory, %d accesses", kernel.frame, spilt)
    end
    if kernel.registers > bar.registers then
        complain("%d registers, more than %d", kernel.registers, bar.registers)
    end
    for _, what in ipairs(counted) do
        if (kernel[what] or 0) ~= (bar[what] or 0) then
            complain("%d %s, not %d", kernel[what] or 0, what, bar[what] or 0)
        end
    end
    judge_accesses(kernel, bar, complain)
    return wrong
end

-- ---- what is shipped ----------------------------------------------------------------------------

local function kernels_of(arch, text)
    local all = {}
    for _, image in ipairs(cubin.images(text)) do
        for name, kernel in pairs(image.arch == arch and image.kernels or {}) do
            all[name] = kernel
        end
    end
    return all
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
            local kernels, wrong = kernels_of(arch, read(library)), {}
            for name, kernel in pairs(kernels) do
                for _, sentence in ipairs(judge(name, kernel, bars[name])) do
                    wrong[#wrong + 1] = sentence
                end
            end
            for name in pairs(bars) do
                if not kernels[name] then wrong[#wrong + 1] = name .. ": is not there" end
            end
            table.sort(wrong)
            assert.equal("", table.concat(wrong, "\n"))
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
            local wrong = judge("planted_spill", planted[arch].planted_spill,
                { registers = 64, stores = { "32" } })
            assert.equal(1, #wrong)
            assert.matches("planted_spill: %d+ bytes of local memory, %d+ accesses", wrong[1])
        end)

        it_needs_nvcc(("sm_%d: the table refuses narrow accesses"):format(arch), function()
            local kernel = planted[arch].planted_narrow
            local wrong = judge("planted_narrow", kernel,
                { registers = 64, stores = { "128" }, at_once = { ["128"] = 4 }, lists = 0 })
            local text = table.concat(wrong, "\n")
            assert.matches("planted_narrow: %d+ stores of 8 bits", text)
            assert.matches("0 loads of 128 bits before a store, not 4", text, 1, true)
            assert.matches("%d+ loads of less than 128 bits, more than 0", text)
        end)

        it_needs_nvcc(("sm_%d: the table refuses more registers, and what it does not name")
            :format(arch), function()
            local few = judge("planted_narrow", planted[arch].planted_narrow,
                { registers = 4, stores = { "8" } })
            assert.matches("registers, more than 4", table.concat(few), 1, true)
            assert.same({ "planted_narrow: has no bar in this table" },
                judge("planted_narrow", planted[arch].planted_narrow))
            local text = table.concat(judge("x", planted[arch].planted_instructions,
                { registers = 64, stores = { "32" } }), "\n")
            for _, what in ipairs { "tensor_cores", "async_copies", "barriers", "shuffles" } do
                assert.matches(("x: 1 %s, not 0"):format(what), text, 1, true)
            end
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

    it("the reader refuses what is no cubin", function()
        assert.has_error(function() cubin.kernels "\127ELF\1 32 bits" end,
            "cubin: not an ELF file of 64 bits")
        assert.same({}, cubin.images "no cubin at all")
    end)
end)
