--- What `bench gqa` and `bench gdn` are asked for, as the rows of their tables.
-- @module cplab.bench.compute_options
local layers = require "cplab.layers"
local layouts = require "cplab.layout"
local options = require "cplab.bench.options"
local schedules = require "cplab.schedule"
local streams = require "cplab.stream"
local words_of = require "cplab.bench.words"

local refuse = words_of.refuse

local M = {}

local DTYPES = { cpu = { "f64", "f32" }, device = { "f64", "f32", "bf16" } }

--- How far a row may be from what it must be, by dtype. bf16 keeps 8 bits: results, and what the
-- gradients of attention are made of, are rounded by up to 2^-9 each, so that rows are off by twice
-- that (measured: 0.36 %, at 24 tokens as at 1024).
M.bounds = { f64 = 1e-12, f32 = 1e-4, bf16 = 2 ^ -7 }

local COMMON = { tokens = "4096", dtype = "f32", iters = 5, warmup = 1, gemm = 2048, small = 200,
    deadline = 300 }

--- What stands where nothing is said, by kind.
M.defaults = {
    gqa = words_of.with_defaults({ heads = 16, kv_heads = "16,2", head_dim = 128, window = 0,
        layout = "zigzag" }, COMMON),
    gdn = words_of.with_defaults({ key_heads = 16, value_heads = 32, key_dim = 128,
        value_dim = 128, chunk = 64, layout = "contiguous" }, COMMON),
}

-- What stands instead on a device: as much as keeps it busy, or as little as its emulator bears.
local ON_DEVICE = {
    cuda = { tokens = "32768", dtype = "bf16", iters = 20, warmup = 5, gemm = 8192 },
    ["cuda-emulated"] = { tokens = "96", small = 40, gemm = 32, iters = 3, heads = 2,
        kv_heads = "2,1", head_dim = 16, key_heads = 1, value_heads = 2, key_dim = 16,
        value_dim = 16 },
}

--- The given words over what stands where nothing is said.
-- @tparam table given device among them
-- @tparam table defaults of the host
-- @tparam table on_device by device, what stands there instead
function M.with_defaults(given, defaults, on_device)
    local there = {}
    for name, value in pairs(on_device[given.device] or {}) do
        if defaults[name] ~= nil then there[name] = value end
    end
    return words_of.with_defaults(given, words_of.with_defaults(there, defaults))
end

--- The device that is asked for; nil: the host.
function M.read_device(words)
    local device = words.device ~= "cpu" and words.device or nil
    if words.transport and not device then
        refuse("--transport %s is for rows on a device: it takes --device cuda or cuda-emulated",
            words.transport)
    end
    return device
end

local MAX_CHUNK = 64

local function check_multiple(what, many, few_what, few)
    if many % few ~= 0 then
        refuse("%d %s are no multiple of %d %s", many, what, few, few_what)
    end
end

-- The sizes of each row of a kind: the product of what is a list.
local sizes = {}

function sizes.gqa(words)
    local list = {}
    if words.window == 1 then
        refuse("--window: of one key the gradients are 0, with which none compare")
    end
    for i, kv_heads in ipairs(words_of.counts(words.kv_heads, "--kv-heads")) do
        check_multiple("heads", words.heads, "kv heads", kv_heads)
        list[i] = { heads = words.heads, kv_heads = kv_heads, head_dim = words.head_dim,
            window = words.window }
    end
    return list
end

function sizes.gdn(words)
    check_multiple("value heads", words.value_heads, "key heads", words.key_heads)
    if words.chunk > MAX_CHUNK then
        refuse("--chunk takes 1 to %d, got %d", MAX_CHUNK, words.chunk)
    end
    return { { key_heads = words.key_heads, value_heads = words.value_heads,
        key_dim = words.key_dim, value_dim = words.value_dim, chunk = words.chunk } }
end

-- What stands for the layer of a model: its fields, and the width of its rows.
local layer_fields = {}

function layer_fields.gqa(case)
    return { hidden = case.hidden or case.heads * case.head_dim, eps = 1e-6, gqa = {
        heads = case.heads, kv_heads = case.kv_heads, head_dim = case.head_dim,
        rotary_dim = math.floor(case.head_dim / 8) * 2, rope_theta = 1e7, window = case.window } }
end

function layer_fields.gdn(case)
    return { hidden = case.hidden or case.key_heads * case.key_dim, eps = 1e-6, gdn = {
        key_heads = case.key_heads, value_heads = case.value_heads, key_dim = case.key_dim,
        value_dim = case.value_dim, conv = 4, chunk = case.chunk } }
end

--- Models, layers and layouts know what goes together; what they say is about the command line.
function M.try(f)
    local ok, message = pcall(f)
    if not ok then refuse("%s", (tostring(message):gsub("^[^\n]-:%d+: ", ""))) end
end

-- Where nothing is said, as few ranks as can spread heads together.
local function group_of(case)
    if case.cp_mode ~= "a2a+p2p" then return nil end
    local group = case.a2a or 2
    while not case.a2a and case.cp % group ~= 0 and group < case.cp do group = group + 1 end
    return group
end

local function make_layer(case)
    case.model, case.a2a = layer_fields[case.kind](case), group_of(case)
    case.hidden = case.model.hidden
    M.try(function()
        layers.create(case.kind, layers.mixer_config(case.model, case.kind, case), case.dtype)
        layouts.create(case.layout, streams.thd { lengths = { case.tokens } }, { cp = case.cp })
    end)
end

-- What rows are made of beside sizes, tokens and dtype.
local ROW = { "iters", "warmup", "gemm", "small", "fault", "cp", "layout", "hidden",
    "a2a", "device" }

local function add_case(list, kind, words, row_sizes, more)
    local case = { kind = kind, bound = M.bounds[more.dtype] }
    for _, name in ipairs(ROW) do case[name] = words[name] end
    for name, value in pairs(row_sizes) do case[name] = value end
    for name, value in pairs(more) do case[name] = value end
    if case.cp then make_layer(case) else case.layout, case.hidden = nil, nil end
    list[#list + 1] = case
end

--- Numbers of tokens; a scan goes from a quarter of them to all.
function M.read_tokens(words)
    local list = words_of.counts(words.tokens, "--tokens")
    for _, n in ipairs(list) do
        if n == 1 then refuse("--tokens: one alone has gradients of 0, with which none compare") end
    end
    if not words.scan then return list end
    if #list > 1 or list[1] % 4 ~= 0 or list[1] < 8 then
        refuse("--scan takes one number of tokens, a multiple of 4 from 8 on, got '%s'",
            words.tokens)
    end
    return { list[1] / 4, list[1] / 2, list[1] }
end

--- Storage types that kernels compute with.
function M.read_dtypes(words)
    return words_of.names(words.dtype, "--dtype",
        words.device and DTYPES.device or DTYPES.cpu)
end

local function check_layer_words(kind, words, processes)
    if words.cp then
        if words.device then
            refuse("--cp compares a layer with one rank of the cpu; on a device bench step "
                .. "measures layers on ranks")
        end
        words_of.check_group(words.cp, 1, processes)
        words_of.names(words.layout, "--layout", options.kinds())
        return words_of.names(words.cp_mode or "all", "--cp-mode", schedules.cp_modes(kind))
    end
    for _, name in ipairs { "cp_mode", "hidden", "a2a" } do
        if words[name] then
            refuse("--%s is of the whole layer, and needs --cp", (name:gsub("_", "-")))
        end
    end
    return { false }
end

local function read(kind, given, processes)
    local words = M.with_defaults(given, M.defaults[kind], ON_DEVICE)
    words.device = M.read_device(words)
    local modes, list = check_layer_words(kind, words, processes), {}
    local dtypes = M.read_dtypes(words)
    local tokens = M.read_tokens(words)
    for _, row_sizes in ipairs(sizes[kind](words)) do
        for _, dtype in ipairs(dtypes) do
            for _, mode in ipairs(modes) do
                for i, n in ipairs(tokens) do
                    add_case(list, kind, words, row_sizes, { dtype = dtype, tokens = n,
                        cp_mode = mode or nil, is_named = words.cp_mode ~= nil,
                        follows = words.scan and i > 1 or nil })
                end
            end
        end
    end
    return { cases = list, deadline = words.deadline, cp = words.cp, iters = words.iters,
        warmup = words.warmup, gemm = words.gemm, scan = words.scan, device = words.device,
        transport = words.transport }
end

--- Reads the words of a command line.
-- @tparam string kind "gqa" or "gdn"
-- @tparam table given words by option; what is missing has its default
-- @tparam ?number processes how many mpirun started; nil: ranks are threads
-- @treturn ?table cases (the rows in order; `follows`: it has twice the tokens of the one before),
-- deadline, cp (nil: cores, not layers), iters, warmup, gemm, scan, device (nil: the host),
-- transport
-- @treturn ?string what is wrong, one sentence
function M.read(kind, given, processes)
    return words_of.reading("bench " .. kind, read, kind, given, processes)
end

return M
