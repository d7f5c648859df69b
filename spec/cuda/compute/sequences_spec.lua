-- What looks back along sequences, on a device, by its best kernels: sequences of one token and of
-- none wherever they stand, 70,000 of them, and decays that forget everything.
local compute = require "spec.support.cuda_compute"
local cuda_device = require "spec.support.cuda_device"
local gdn = require "spec.support.gdn_device"

local random = compute.random(53)
local function nothing() return -7 end

local function array(n, values, type)
    return { n = n, values = values or random, type = type }
end

-- ---- lists of sequences -------------------------------------------------------------------------

-- Sequences of these lengths, one behind the other.
local function behind_each_other(lengths)
    local spans, slot = {}, 0
    for i, length in ipairs(lengths) do
        spans[i] = { slot, length }
        slot = slot + length
    end
    return spans, slot
end

-- Sequences of nothing first, last, two together, and alone; of one token alike; over the borders
-- of a chunk and of a tile.
local LISTS = {
    { 0 }, { 1 }, { 0, 0, 1, 1, 0 }, { 0, 3, 0, 1, 65, 0, 0, 1, 2 }, { 1, 33, 0, 31, 1 },
    { 64, 0, 32 },
}

local function span_list(spans)
    return array(4 * #spans, function(i)
        local span = spans[math.floor(i / 4) + 1]
        return ({ 0, 0, span[1], span[2] })[i % 4 + 1]
    end, "i64")
end

local function conv1d(lengths, channels, is_back)
    local spans, n = behind_each_other(lengths)
    local arrays = { x = array(n * channels), weight = array(channels * 4),
        spans = span_list(spans) }
    local numbers = { n_spans = #spans, n_rows = n, channels = channels, width = 4,
        x_stride = channels, silu = true }
    if is_back then
        arrays.halo, arrays.dhalo = array(#spans * 3 * channels),
            array(#spans * 3 * channels, nothing)
        arrays.dy, arrays.dx = array(n * channels), array(n * channels, nothing)
        arrays.grad_weight, numbers.dx_stride = array(channels * 4, random, "wide"), channels
    else
        arrays.y = array(n * channels, nothing)
    end
    return { arrays = arrays, numbers = numbers }
end

-- A block a sequence: its queries see its keys.
local function attention(lengths, width, is_back)
    local spans, n = behind_each_other(lengths)
    local inner = is_back and "forward." or ""
    local arrays, numbers = {}, {}
    local function give(name, what) arrays[inner .. name] = what end
    for _, name in ipairs { "q", "k", "v" } do
        give(name, array(n * width))
        numbers[inner .. name .. "_stride"] = width
    end
    give("o", array(n * width, is_back and random or nothing))
    give("lse", array(n, is_back and function() return 2 end or nothing, "wide"))
    give("blocks", array(5 * #spans, function(i)
        local slot, length = unpack(spans[math.floor(i / 5) + 1])
        return ({ slot, length, slot, length, 0 })[i % 5 + 1]
    end, "i64"))
    for name, value in pairs { n_blocks = #spans, n_queries = n, n_keys = n, heads = 1,
        kv_heads = 1, key_dim = width, value_dim = width, scale = 0.3 } do
        numbers[inner .. name] = value
    end
    if is_back then
        arrays.d_o = array(n * width)
        for _, name in ipairs { "dq", "dk", "dv" } do
            arrays[name], numbers[name .. "_stride"] = array(n * width, nothing), width
        end
    end
    -- Of bf16 weights and gradients of scores are rounded, too: attention_spec.lua.
    return { arrays = arrays, numbers = numbers, bounds = { f64 = 1e-12, f32 = 3e-5,
        bf16 = 2 ^ -6 } }
end

-- ---- the delta rule -----------------------------------------------------------------------------

local OPS = { "gdn", "gdn_summary", "gdn_summary_backward", "gdn_backward" }

-- As gdn_spec.lua has them and why, of the largest number of a result.
local BOUNDS = { f64 = 1e-12, f32 = 1e-5, bf16 = 2 ^ -8 }
-- What is smaller than this has forgotten all: of f32 some of it would be no normal number.
local LEAST = 1e-30

local function check_decay(device, case, op, dtype, way)
    local results, expected = gdn.run(device, case, op, dtype, way)
    for name, list in pairs(results) do
        local largest = LEAST
        for _, y in ipairs(expected[name]) do largest = math.max(largest, math.abs(y)) end
        for i, x in ipairs(list) do
            local y = expected[name][i]
            local what = ("%s %s %s %s[%d] is %g, the reference has %g"):format(op, dtype, way,
                name, i, x, y)
            assert.is_true(x - x == 0, what)
            assert.is_true(math.abs(x - y) <= BOUNDS[dtype] * largest, what)
        end
    end
end

-- Gates by token: all that forget everything, one of them in the middle of a chunk, and every other
-- strength side by side.
local DECAYS = {
    ["each token"] = function() return -1e4 end,
    ["one token"] = function(i) return i == 20 and -1e4 or -0.01 end,
    ["every strength"] = function(i)
        return ({ 0, -1e-3, -50, 0, -0.1, -1e4, -200, -90, -1e-8 })[i * i % 9 + 1]
    end,
}

local function decaying(gate)
    local gates = {}
    for i = 0, 78 do gates[i] = gate(i) end
    return { spans = { { 0, 70 }, { 71, 8 } }, K = 8, V = 6, gates = gates }
end

-- ---- specs --------------------------------------------------------------------------------------

local function of_few(device)
    for i, lengths in ipairs(LISTS) do
        local name = ("{ %s }"):format(table.concat(lengths, ", "))
        it("lengths " .. name, function()
            for j, dtype in ipairs { "f32", "bf16" } do
                device:set_order(device.orders[(i + j) % #device.orders + 1])
                for _, is_back in ipairs { false, true } do
                    local back = is_back and "_backward" or ""
                    compute.try(device, "conv1d" .. back, conv1d(lengths, 8, is_back), dtype,
                        "best")
                    compute.try(device, "attention" .. back, attention(lengths, 16, is_back),
                        dtype, "best")
                end
                for _, op in ipairs(OPS) do
                    gdn.check(device, { spans = behind_each_other(lengths), K = 8, V = 6 }, op,
                        dtype, "best", BOUNDS[dtype])
                end
            end
            device:set_order(device.orders[1])
        end)
    end
end

local MANY = 70000

local function ones(n, is_one)
    local lengths = {}
    for i = 1, n do lengths[i] = is_one(i) and 1 or 0 end
    return lengths
end

local function of_many(device)
    local all = ones(MANY, function() return true end)
    for _, is_back in ipairs { false, true } do
        local back = is_back and "_backward" or ""
        it("70,000 of one token: conv1d" .. back, function()
            compute.try(device, "conv1d" .. back, conv1d(all, 1, is_back), "f32", "best")
        end)
        it("70,000 of one token: attention" .. back, function()
            compute.try(device, "attention" .. back, attention(all, 1, is_back), "f32", "best")
        end)
    end

    -- A chunk is a millisecond and more on the emulator, so that there chunks have some of them,
    -- among empty ones; by tokens all.
    local some = device.is_emulated and ones(MANY, function(i)
        return i == 1 or i == MANY or i % 1777 == 0
    end) or all
    for _, op in ipairs(OPS) do
        it("70,000 of one token: " .. op, function()
            gdn.check(device, { spans = behind_each_other(some), K = 1, V = 1 }, op, "f32", "best",
                BOUNDS.f32)
            if op == "gdn_backward" and device.is_emulated then return end -- half a minute
            gdn.check(device, { spans = behind_each_other(all), K = 1, V = 1 }, op, "f32", "naive",
                BOUNDS.f32)
        end)
    end
end

local function of_decays(device)
    for name, gate in pairs(DECAYS) do
        it("forgotten by " .. name, function()
            for _, op in ipairs(OPS) do
                for _, dtype in ipairs { "f32", "bf16" } do
                    check_decay(device, decaying(gate), op, dtype, "best")
                end
                check_decay(device, decaying(gate), op, "f64", "best")
                check_decay(device, decaying(gate), op, "f32", "naive")
            end
        end)
    end
end

for _, kind in ipairs { "plain", "device" } do
    describe(("sequences, %s:"):format(kind), function()
        local device, why = cuda_device.open(kind)
        if not device then
            it("are looked back along", function() pending(why) end)
            return
        end
        of_few(device)
        of_many(device)
        of_decays(device)
    end)
end
