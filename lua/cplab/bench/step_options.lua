--- What `bench step` is asked for, as the rows of its table.
-- @module cplab.bench.step_options
local models = require "cplab.model"
local options = require "cplab.bench.compute_options"
local policies = require "cplab.policy"
local step_model = require "cplab.bench.step_model"
local words_of = require "cplab.bench.words"

local M = {}

--- What stands where nothing is said.
M.defaults = { tokens = "1024", dtype = "f32", preset = "qwen35_397b_proxy", scale = "tiny",
    policy = "all", cp = "1,2,4", iters = 5, warmup = 1, gemm = 2048, deadline = 300 }

-- What stands instead on a device.
local ON_DEVICE = {
    cuda = { tokens = "8192", dtype = "bf16", cp = "1", iters = 20, warmup = 5, gemm = 8192 },
    ["cuda-emulated"] = { tokens = "16", policy = "zigzag", cp = "2", gemm = 32, iters = 1,
        warmup = 0 },
}

--- How far outputs and gradients may be from those of one rank, by dtype. In f32 gradients of
-- decays cancel, and the rounding of layers adds up.
-- bf16 is compared with f32, whose parameters are not rounded: some twenty roundings of 2^-9 lie
-- between a token and a gradient, which is 4 % if they all go one way, and what gradients of decays
-- are sums of nearly cancels.
M.bounds = { f64 = 1e-12, f32 = 1e-3, bf16 = 0.1 }

-- What rows are made of beside policy, cp, dtype and tokens.
local ROW = { "preset", "scale", "layers", "hidden", "vocab", "heads", "kv_heads", "head_dim",
    "key_heads", "value_heads", "key_dim", "value_dim", "mlp_width", "gqa_mode", "gdn_mode", "a2a",
    "iters", "warmup", "gemm", "fault", "device" }

-- The model and the layouts know what goes together.
local function try(case)
    options.try(function()
        local model = step_model.model(case)
        local stream, group = step_model.stream(case), { cp = case.cp, tp = 1 }
        model:layouts(model:assignment(stream, group), stream, group)
    end)
end

local function add_cases(list, words, policy, cp, dtype, tokens)
    for i, n in ipairs(tokens) do
        local case = { policy = policy, cp = cp, dtype = dtype, tokens = n,
            bound = M.bounds[dtype], follows = words.scan and i > 1 or nil }
        for _, name in ipairs(ROW) do case[name] = words[name] end
        try(case)
        list[#list + 1] = case
    end
end

local function read(given, processes)
    local words, list = options.with_defaults(given, M.defaults, ON_DEVICE), {}
    words.device = options.read_device(words)
    words_of.names(words.preset, "--preset", models.presets)
    local tokens, dtypes = options.read_tokens(words), options.read_dtypes(words)
    local counts = words_of.counts(words.cp, "--cp")
    for _, cp in ipairs(counts) do words_of.check_group(cp, 1, processes) end
    for _, policy in ipairs(words_of.names(words.policy, "--policy", policies.names)) do
        for _, cp in ipairs(counts) do
            for _, dtype in ipairs(dtypes) do add_cases(list, words, policy, cp, dtype, tokens) end
        end
    end
    return { cases = list, deadline = words.deadline, iters = words.iters, warmup = words.warmup,
        gemm = words.gemm, scan = words.scan, device = words.device,
        transport = words.transport }
end

--- Reads the words of a command line.
-- @tparam table given words by option; what is missing has its default
-- @tparam ?number processes how many mpirun started; nil: ranks are threads
-- @treturn ?table cases (the rows in order), deadline, iters, warmup, gemm, scan, device (nil:
-- the host), transport
-- @treturn ?string what is wrong, one sentence
function M.read(given, processes)
    return words_of.reading("bench step", read, given, processes)
end

return M
