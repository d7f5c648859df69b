-- Lists with room (core/layer/lists.h) on a device: behind their end stand sequences and blocks of
-- nothing, and keys that nobody names. Kernels that are told of all of them make the same bits of
-- what there is, and zeros, or a state that passes, of what there is not.
local compute = require "spec.support.cuda_compute"
local gdn = require "spec.support.gdn_device"

local function nothing() return -7 end

-- The same numbers whatever is behind them.
local seed = 0
local function array(n, type)
    seed = seed + 1
    return { n = n, values = compute.random(seed), type = type }
end

local function output(n, type)
    return { n = n, values = nothing, type = type }
end

local function list_of(rows, width)
    return { n = width * #rows, type = "i64", values = function(i)
        return rows[math.floor(i / width) + 1][i % width + 1]
    end }
end

-- Sequences of these lengths, one behind the other, rows of none, and `beyond` of nothing.
local function spans_of(lengths, beyond)
    local spans, slot = {}, 0
    for i, length in ipairs(lengths) do
        spans[i] = { slot, length }
        slot = slot + length
    end
    local n = slot + 3
    for _ = 1, beyond do spans[#spans + 1] = { n, 0 } end
    return spans, n
end

local function span_list(spans)
    local rows = {}
    for i, span in ipairs(spans) do rows[i] = { 0, 0, span[1], span[2] } end
    return list_of(rows, 4)
end

-- ---- cases, of a list with `beyond` entries behind its end --------------------------------------

local LENGTHS = { 70, 1, 0, 130, 90 }
local BEYOND = { 1, 67 } -- as far as into the next groups of blocks

local function conv1d(is_back, beyond)
    local channels, spans, n = 8, spans_of(LENGTHS, beyond)
    local halo = #spans * 3 * channels
    local case = { arrays = { x = array(n * channels), weight = array(channels * 4),
        halo = array(halo), spans = span_list(spans) }, numbers = { n_spans = #spans, n_rows = n,
        channels = channels, width = 4, x_stride = channels, silu = true } }
    if not is_back then
        case.arrays.y = output(n * channels)
        return case
    end
    case.arrays.dy, case.arrays.dx = array(n * channels), output(n * channels)
    case.arrays.dhalo, case.arrays.grad_weight = output(halo), array(channels * 4, "wide")
    case.numbers.dx_stride = channels
    return case
end

local function moe_route(_, beyond)
    local experts, top_k, spans, n = 9, 2, spans_of(LENGTHS, beyond)
    return { arrays = { logits = array(n * experts), probs = output(n * experts, "wide"),
        weights = output(n * top_k, "wide"), chosen = output(n * top_k, "i32"),
        margin = output(1, "f64"), spans = span_list(spans) }, numbers = { n_spans = #spans,
        n_rows = n, experts = experts, top_k = top_k, renormalise = true } }
end

-- A block a sequence, and keys behind those that blocks name. `shared`: values lie in the rows of
-- the keys.
local function attention(sizes, is_back, beyond)
    local spans, n = spans_of(sizes.lengths or LENGTHS, 0)
    local inner = is_back and "forward." or ""
    local case = { arrays = {}, numbers = {}, bounds = { f64 = 1e-12, f32 = 3e-5, bf16 = 2 ^ -5 } }
    local arrays, numbers, width, values = case.arrays, case.numbers, sizes.keys, sizes.values
    local blocks = {}
    for i, span in ipairs(spans) do blocks[i] = { span[1], span[2], span[1], span[2], 0 } end
    for _ = 1, beyond do blocks[#blocks + 1] = { 0, 0, 0, 0, 0 } end
    local n_keys = n + 5 * beyond
    arrays[inner .. "q"] = array(n * width)
    arrays[inner .. "k"] = array(n_keys * width)
    arrays[inner .. "v"] = sizes.shared and { same_as = inner .. "k" } or array(n_keys * values)
    arrays[inner .. "o"] = is_back and array(n * values) or output(n * values)
    arrays[inner .. "lse"] = is_back and { n = n, values = function() return 2 end, type = "wide" }
        or output(n, "wide")
    arrays[inner .. "blocks"] = list_of(blocks, 5)
    for name, value in pairs { n_blocks = #blocks, n_queries = n, n_keys = n_keys, heads = 1,
        kv_heads = 1, key_dim = width, value_dim = values, scale = width ^ -0.5, q_stride = width,
        k_stride = width, v_stride = sizes.shared and width or values } do
        numbers[inner .. name] = value
    end
    if is_back then
        arrays.d_o, arrays.dq = array(n * values), output(n * width)
        arrays.dk = output(n_keys * width)
        arrays.dv = sizes.shared and { same_as = "dk" } or output(n_keys * values)
        numbers.dq_stride, numbers.dk_stride = width, width
        numbers.dv_stride = sizes.shared and width or values
    end
    return case
end

-- Nothing but blocks of nothing, behind what other steps left.
local function nothing_more(sizes, is_back)
    local case = attention(sizes, is_back, 3)
    local inner = is_back and "forward." or ""
    for _, name in ipairs(is_back and { "dq", "dk", "dv" } or { "o", "lse" }) do
        local at = case.arrays[name]
        if not at.same_as then case.arrays[name] = array(at.n, at.type) end
    end
    case.arrays[inner .. "blocks"] = list_of({ { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 } }, 5)
    case.numbers[inner .. "n_blocks"], case.numbers[inner .. "accumulate"] = 2, true
    case.bounds = { f64 = 0, f32 = 0, bf16 = 0 }
    return case
end

-- ---- specs --------------------------------------------------------------------------------------

local PLAIN = { keys = 16, values = 16 }
-- Which kernels take a call may hang on how many rows blocks have on the average.
local LATENT = { keys = 576, values = 512, shared = true, lengths = { 20, 1, 0, 40 },
    beyond = { 11 } }

-- What both make of a list and of the same one with room, as bytes: of the longer, the beginning.
local function try_both(device, op, make, dtype, way, all_beyond)
    local first = seed
    local alone = compute.try(device, op, make(0), dtype, way)
    for _, beyond in ipairs(all_beyond or BEYOND) do
        seed = first
        local together = compute.try(device, op, make(beyond), dtype, way)
        for name, bytes in pairs(alone) do
            if together[name]:sub(1, #bytes) ~= bytes then
                error(("%s %s %s: %d entries behind the end of the list change %s"):format(op,
                    dtype, way, beyond, name), 0)
            end
        end
    end
end

local function of_lists(device, each)
    for op, make in pairs { conv1d = conv1d, moe_route = moe_route } do
        each(op, function(dtype, way)
            try_both(device, op, function(n) return make(false, n) end, dtype, way)
        end)
    end
    each("conv1d_backward", function(dtype, way)
        try_both(device, "conv1d_backward", function(n) return conv1d(true, n) end, dtype, way)
    end)
    for _, is_back in ipairs { false, true } do
        local op = "attention" .. (is_back and "_backward" or "")
        each(op, function(dtype, way)
            try_both(device, op, function(n) return attention(PLAIN, is_back, n) end, dtype, way)
        end)
        each(op .. " to no more keys leaves what there is", function(dtype, way)
            compute.try(device, op, nothing_more(PLAIN, is_back), dtype, way)
            if dtype == "bf16" then
                compute.try(device, op, nothing_more(LATENT, is_back), dtype, way)
            end
        end)
    end
end

local function of_latents(device)
    for _, is_back in ipairs { false, true } do
        local op = "attention" .. (is_back and "_backward" or "")
        it("latent " .. op, function()
            try_both(device, op, function(n) return attention(LATENT, is_back, n) end, "bf16",
                "best", LATENT.beyond)
        end)
    end
end

-- Behind the end of the list states pass as they came.
local function check_rule(device, op, dtype, way)
    local function case(beyond)
        local spans, n = spans_of({ 70, 1, 0, 40 }, beyond)
        return { spans = spans, T = n, K = 8, V = 6 }
    end
    local alone = gdn.run(device, case(0), op, dtype, way)
    for _, beyond in ipairs(BEYOND) do
        local together, expected = gdn.run(device, case(beyond), op, dtype, way)
        for name, list in pairs(together) do
            for i, x in ipairs(list) do
                local y = alone[name][i] or expected[name][i]
                if x ~= y then
                    error(("%s %s %s: with %d entries behind the end of the list %s[%d] is %.17g, "
                        .. "not %.17g"):format(op, dtype, way, beyond, name, i, x, y), 0)
                end
            end
        end
    end
end

compute.describe({ describe, it, pending }, "lists with room", function(device, each)
    of_lists(device, each)
    of_latents(device)
    for _, op in ipairs { "gdn", "gdn_summary", "gdn_summary_backward", "gdn_backward" } do
        each(op, function(dtype, way) check_rule(device, op, dtype, way) end)
    end
end)
