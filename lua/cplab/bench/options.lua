--- What `bench convert` is asked for: words of the command line made into numbers and lists, and
-- everything that can be known to be wrong before the first row.
-- @module cplab.bench.options
local clib = require "clib"
local exchange = require "cplab.exchange"
local layouts = require "cplab.layout"
local packs = require "cplab.packs"
local words_of = require "cplab.bench.words"

local counts, names, refuse = words_of.counts, words_of.names, words_of.refuse

local M = {}

local DTYPES = { "f64", "f32", "bf16", "i64", "i32" }
local SCALE = { [""] = 1, K = 2 ^ 10, M = 2 ^ 20, G = 2 ^ 30 }

local THREADS, MAX_SIZES = 4, 1000

--- What stands where nothing is said. `cp` follows from the ranks at hand.
M.defaults = {
    min_bytes = "1M", max_bytes = "64M", step_factor = "4", iters = 20, warmup = 5, tp = 1,
    from = "zigzag,mirror,balanced", to = "contiguous", method = "all", dtype = "f32",
    row_bytes = 4096, sequences = "1", seed = 0, deadline = 60,
}

--- Bytes of "16M", "64K", "1G", "1024".
-- @treturn ?number nil where it is no size
function M.bytes(text)
    local digits, suffix = text:match "^(%d+)([KMGkmg]?)$"
    local bytes = digits and tonumber(digits) * SCALE[suffix:upper()]
    return bytes and bytes > 0 and bytes < 2 ^ 53 and bytes or nil
end

local function size(text, option)
    return M.bytes(text)
        or refuse("%s takes bytes such as 1024, 64K, 16M or 2G, got '%s'", option, text)
end

--- The sizes from the least to the largest, each `factor` times the one before; one more than
-- MAX_SIZES where there are so many.
function M.sizes(least, largest, factor)
    local list, bytes = {}, least
    while bytes <= largest and #list <= MAX_SIZES do
        list[#list + 1] = bytes
        bytes = math.max(bytes + 1, math.floor(bytes * factor))
    end
    return list
end

local function read_sizes(words)
    local least, largest = size(words.min_bytes, "-b"), size(words.max_bytes, "-e")
    local factor = tonumber(words.step_factor)
    if not (factor and factor > 1 and factor < math.huge) then
        refuse("-f takes a factor > 1, got '%s'", words.step_factor)
    end
    if least > largest then
        refuse("-b %s is more than -e %s", words.min_bytes, words.max_bytes)
    end
    local list = M.sizes(least, largest, factor)
    if #list > MAX_SIZES then
        refuse("-f %s makes more than %d sizes of -b %s to -e %s", words.step_factor, MAX_SIZES,
            words.min_bytes, words.max_bytes)
    end
    return list
end

--- Layouts that need nothing but their name.
function M.kinds()
    local list = {}
    for name in clib.ffi.string(clib.C.cpl_layout_kinds()):gmatch "%S+" do
        if name ~= "custom" and layouts[name] then list[#list + 1] = name end
    end
    return list
end

-- "all" leaves auto out, which is one of the others.
local function read_methods(text)
    local every, known = {}, { "auto" }
    for _, name in ipairs(exchange.methods()) do
        if name ~= "auto" then
            every[#every + 1], known[#known + 1] = name, name
        end
    end
    return names(text, "--method", known, every)
end

-- Bytes of a row by dtype, from its elements or its bytes.
local function row_bytes(words, dtypes)
    local list = {}
    for _, dtype in ipairs(dtypes) do
        local element = tonumber(clib.C.cpl_dtype_bytes(clib.dtypes[dtype]))
        list[dtype] = words.width and words.width * element or words.row_bytes
        if list[dtype] % element ~= 0 then
            refuse("--row-bytes %d is no multiple of %d, the bytes of one %s", list[dtype], element,
                dtype)
        end
    end
    return list
end

local function check_rows(sizes, by_dtype)
    for dtype, bytes in pairs(by_dtype) do
        if sizes[1] < bytes then
            refuse("-b: %d bytes hold no row of %d bytes (%s)", sizes[1], bytes, dtype)
        end
    end
end

-- The ways to cut the rows into sequences.
local function read_sequences(words)
    if words.lengths then return { { lengths = counts(words.lengths, "--lengths") } } end
    local list = {}
    if words.pack then
        for i, name in ipairs(names(words.pack, "--pack", packs.names)) do
            list[i] = { pack = name }
        end
        return list
    end
    for i, n in ipairs(counts(words.sequences, "--sequences")) do list[i] = { sequences = n } end
    return list
end

-- As many ranks as mpirun started, or four threads.
local function read_group(words, processes)
    local cp = words.cp or math.max(1, math.floor((processes or THREADS) / words.tp))
    words_of.check_group(cp, words.tp, processes)
    return cp
end

local function exclusive(words, list)
    local first
    for _, name in ipairs(list) do
        if words[name] then
            local option = "--" .. name:gsub("_", "-")
            if first then refuse("%s and %s exclude each other", first, option) end
            first = option
        end
    end
end

local function read(given, processes)
    exclusive(given, { "width", "row_bytes" })
    exclusive(given, { "sequences", "lengths", "pack" })
    exclusive(given, { "adjoint", "round_trip" })
    local words = words_of.with_defaults(given, M.defaults)
    local known = M.kinds()
    local options = {
        sizes = read_sizes(words), from = names(words.from, "--from", known),
        to = names(words.to, "--to", known), methods = read_methods(words.method),
        dtypes = names(words.dtype, "--dtype", DTYPES), sequences = read_sequences(words),
        in_place = words.in_place or false, on_device = (words.device or "cpu") ~= "cpu",
        pass = words.adjoint and "adjoint" or words.round_trip and "round trip" or "forward",
    }
    if words.transport and not options.on_device then
        refuse("--transport %s is for rows on a device: it takes --device cuda or cuda-emulated",
            words.transport)
    end
    -- A graph is another way to ask a device for the same.
    options.launches = options.on_device and { "eager", "graph" } or { "eager" }
    options.row_bytes = row_bytes(words, options.dtypes)
    check_rows(options.sizes, options.row_bytes)
    options.cp = read_group(words, processes)
    options.all_methods = words.method == "all"
    for _, name in ipairs { "iters", "warmup", "tp", "seed", "deadline", "fault" } do
        options[name] = words[name]
    end
    return options
end

--- Reads the words of a command line.
-- @tparam table given words by option; what is missing has its default
-- @tparam ?number processes how many mpirun started; nil: ranks are threads
-- @treturn ?table sizes, from, to, methods, dtypes, sequences, launches (lists); row_bytes by
-- dtype; pass, in_place, all_methods, on_device, iters, warmup, cp, tp, seed, deadline, fault
-- @treturn ?string what is wrong, one sentence
function M.read(given, processes)
    return words_of.reading("bench convert", read, given, processes)
end

return M
