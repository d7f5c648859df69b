-- Layers whose rows are on emulated devices against the same layers in the host's memory: every
-- kind and mode, forward and backward, with padding, an empty sequence and several sequences; and
-- no pass waits for a device. That the layers of the host are right is told by spec/layer and
-- spec/stack.
local device = require "spec.support.on_device"
local ranks = require "spec.support.ranks"

local it_there = device.it(it, pending)

-- Both sides do the same operations in f64; sums of up to a few hundred terms have another order.
local BOUND = 1e-13

local STREAM = { lengths = { 16, 8, 0, 8 }, real = { 13, 8, 0, 3 } }
local STATES = { heads = 4, channels = 2 * 2 * 3 + 4 * 5 }

-- In f32 the same sums have roundings of 6e-8. bf16 keeps 8 bits of what a layer stores on its way,
-- up to ten times one after the other, against f32 on the host, which keeps 24.
local BOUND_F32, BOUND_BF16 = 2e-5, 6e-2

local function case(name, kind, fields)
    local new = { name = name, kind = kind, stream = STREAM, layout = "zigzag" }
    for key, value in pairs(fields or {}) do new[key] = value end
    return new
end

local function attention(kind, mode, config)
    config = config or {}
    config.cp_mode = mode
    return case(("%s %s%s"):format(kind, mode, config.window and ", a window" or ""), kind,
        { config = config })
end

-- Cases by the number of ranks that share the sequences.
local CASES = {
    {
        attention("gqa", "gather"), attention("gqa", "p2p"), attention("mla", "gather"),
        case("gdn", "gdn"), case("gdn, states in and out", "gdn", { states = STATES }),
        case("gdn without a convolution", "gdn", { config = { conv = 1 } }),
        case("mlp", "mlp"), case("moe", "moe"), case("norm", "norm"), case("linear", "linear"),
        case("embedding", "embedding"),
        case("moe without shared expert or balance", "moe",
            { config = { shared_width = 0, aux_coefficient = 0, renormalise = false } }),
    },
    {
        attention("gqa", "gather"), attention("gqa", "p2p"), attention("gqa", "a2a"),
        attention("gqa", "p2p", { window = 3 }), attention("mla", "a2a"),
        case("gdn", "gdn"), case("gdn, contiguous", "gdn", { layout = "contiguous" }),
        case("gdn headwise", "gdn", { config = { cp_mode = "headwise" } }),
        case("gdn, states in and out", "gdn", { states = STATES }),
        case("gdn headwise, states in and out", "gdn",
            { states = STATES, config = { cp_mode = "headwise" } }),
        case("moe", "moe"), case("embedding", "embedding"),
        case("gqa, rows of any order", "gqa", { ranks = { { { 5, 7 }, { 24, 8 } },
            { { 16, 8 }, { 0, 5 }, { 12, 4 } } } }),
        case("gdn, rows of any order", "gdn", { ranks = { { { 5, 7 }, { 24, 8 } },
            { { 16, 8 }, { 0, 5 }, { 12, 4 } } } }),
        case("gqa that is recomputed", "gqa",
            { passes = 2, recompute = true, config = { cp_mode = "p2p" } }),
        case("gdn that is recomputed", "gdn", { passes = 2, recompute = true }),
        case("gqa on poisoned scratch", "gqa",
            { passes = 2, poison = true, config = { cp_mode = "p2p" } }),
        case("gdn on poisoned scratch", "gdn", { passes = 2, poison = true }),
        case("moe on poisoned scratch", "moe", { passes = 2, poison = true }),
    },
    [4] = {
        attention("gqa", "gather"), attention("gqa", "p2p"), attention("gqa", "a2a"),
        attention("gqa", "a2a+p2p", { a2a = 2 }), attention("mla", "p2p"),
        case("gdn", "gdn"),
        case("gdn headwise", "gdn", { config = { cp_mode = "headwise" } }),
    },
}

-- Of every kind and every way to move rows: what travels, and what is WIDE.
local NARROW = {
    attention("gqa", "gather"), attention("gqa", "p2p"), attention("gqa", "a2a"),
    attention("mla", "gather"), case("gdn", "gdn"),
    case("gdn headwise", "gdn", { states = STATES, config = { cp_mode = "headwise" } }),
    case("mlp", "mlp"), case("moe", "moe"), case("norm", "norm"), case("linear", "linear"),
    case("embedding", "embedding"),
}

-- Slices of layers: tp_rank and tp.
local SLICES = {}
for t = 0, 1 do
    for kind, config in pairs { gqa = {}, mla = {}, gdn = {}, mlp = { width = 12 },
        moe = { width = 8 } } do
        SLICES[#SLICES + 1] = case(("%s, slice %d of 2"):format(kind, t), kind,
            { config = config, split = { t, 2 } })
    end
end

-- What is planted, and where the host shows it.
local FAULTS = {
    case("rope_shift", "gqa", { fault = { "rope_shift", 4, 1 } }),
    case("drop_handoff", "gdn", { fault = { "drop_handoff", 1 } }),
    case("cross_columns", "gdn", { fault = { "cross_columns", 1 } }),
    case("drop_merge", "gqa", { config = { cp_mode = "p2p" }, fault = { "drop_merge", 1 } }),
    case("reverse_ring", "gqa", { config = { cp_mode = "p2p" }, fault = { "reverse_ring", 1 } }),
    case("kv_head_shift", "gqa", { config = { cp_mode = "a2a" }, fault = { "kv_head_shift", 1 } }),
    case("tile_heads", "gdn", { config = { cp_mode = "headwise" }, fault = { "tile_heads", 1 } }),
    case("first_slice", "gdn", { config = { cp_mode = "headwise" }, fault = { "first_slice", 1 } }),
    case("route_padding", "moe", { fault = { "route_padding", 1 } }),
}

local function largest_difference(a, b)
    local difference, largest = 0, 0
    if #a ~= #b then return math.huge end
    for i, value in ipairs(a) do
        local off = math.abs(value - b[i])
        -- Infinite margins, and what a fault made of a gradient, too.
        if value == b[i] or (value ~= value and b[i] ~= b[i]) then off = 0 end
        if off ~= off then return math.huge end
        difference = math.max(difference, off)
        if math.abs(value) < math.huge then largest = math.max(largest, math.abs(value)) end
    end
    return largest > 0 and difference / largest or difference
end

-- The worst difference of all that a case gives, over ranks, and where it is.
local function compare(here, there, i)
    local worst, where = 0, "nothing"
    for rank = 1, #here do
        local a, b = here[rank][i], there[rank][i]
        assert(not a.failure and not b.failure, a.failure or b.failure)
        for name, list in pairs(a.values) do
            local off = largest_difference(list, b.values[name])
            if off > worst then worst, where = off, ("%s of rank %d"):format(name, rank - 1) end
        end
    end
    return worst, where
end

local function in_dtype(cases, dtype)
    local list = {}
    for i, one in ipairs(cases) do
        list[i] = { dtype = dtype }
        for key, value in pairs(one) do list[i][key] = value end
    end
    return list
end

-- Streams of 64 positions, 16 on each of four ranks, whatever the layout. Three that come twice,
-- and one that is seen for the first time when there is room for all that it needs.
local UNSEEN = {
    { lengths = { 64 }, real = { 61 } },
    { lengths = { 8, 24, 32 }, real = { 8, 21, 0 } },
    { lengths = { 40, 8, 16 } },
    { lengths = { 64 }, real = { 61 } },
    { lengths = { 8, 24, 32 }, real = { 8, 21, 0 } },
    { lengths = { 40, 8, 16 } },
    { lengths = { 16, 48 }, real = { 16, 45 } },
}

-- A layer that is made in a mould for one stream after the other.
local function check_unseen(one)
    it_there("launches the same for streams that there is room for: " .. one.name, function()
        local cases = {}
        for i, stream in ipairs(UNSEEN) do
            cases[i] = { stream = stream, dtype = "f64" }
            for key, value in pairs(one) do cases[i][key] = cases[i][key] or value end
        end
        local here = ranks.run(4, "spec.support.layer_rank", { cases = cases }, 100)
        local there = device.run("direct", 4, "spec.support.layer_rank",
            { cases = cases, mould = true })
        for i in ipairs(UNSEEN) do
            local worst, where = compare(here, there, i)
            assert.is_true(worst <= BOUND, ("stream %d, %s: off by %g"):format(i, where, worst))
        end
        for rank = 1, 4 do
            for i = 4, #UNSEEN do
                assert.equal(there[rank][i].digest, there[rank][i - 1].digest,
                    ("rank %d, stream %d"):format(rank - 1, i))
            end
        end
    end)
end

-- Both runs of a list of cases, made when the first spec asks.
local function runs_of(n, cases, options)
    local made
    return function()
        if not made then
            local here, there = in_dtype(cases, options.here), in_dtype(cases, options.there)
            made = { ranks.run(n, "spec.support.layer_rank", { cases = here }, 100),
                device.run(options.transport or "direct", n, "spec.support.layer_rank",
                    { cases = there }) }
        end
        return made[1], made[2]
    end
end

-- options: transport, here and there (dtypes, f64), bound.
local function check_cases(title, n, cases, options)
    options = options or {}
    local runs = runs_of(n, cases, options)
    describe(title, function()
        for i, one in ipairs(cases) do
            it_there(("give what they give in the host's memory: %s"):format(one.name), function()
                local here, there = runs()
                local worst, where = compare(here, there, i)
                assert.is_true(worst <= (options.bound or BOUND),
                    ("%s: off by %g"):format(where, worst))
                for rank = 1, n do
                    assert.equal("cpu", here[rank][i].device)
                    assert.matches("^cuda%-emulated %d$", there[rank][i].device)
                    if not one.fault then assert.equal(0, there[rank][i].syncs) end
                end
            end)
        end
    end)
end

check_cases("layers on a device", 1, CASES[1])
check_cases("layers of two ranks on devices", 2, CASES[2])
check_cases("layers of four ranks on devices", 4, CASES[4])
check_cases("layers over nccl", 2, { CASES[2][1], CASES[2][6], CASES[2][8] },
    { transport = "nccl" })
check_cases("layers in f32 on devices", 2, { NARROW[1], NARROW[5], NARROW[8] },
    { here = "f32", there = "f32", bound = BOUND_F32 })
check_cases("layers in bf16 on devices", 2, NARROW, { here = "f32", there = "bf16",
    bound = BOUND_BF16 })
check_cases("slices of layers on a device", 1, SLICES)
check_cases("faults on devices", 4, FAULTS)

describe("a layer in a mould", function()
    for _, layout in ipairs { "contiguous", "zigzag", "striped" } do
        check_unseen(case("gdn, " .. layout, "gdn", { layout = layout }))
    end
    check_unseen(case("gdn headwise", "gdn", { config = { cp_mode = "headwise" } }))
    check_unseen(attention("gqa", "gather"))
    check_unseen(attention("gqa", "p2p"))
    check_unseen(attention("gqa", "p2p", { window = 3 }))
    check_unseen(attention("gqa", "a2a"))
    check_unseen(attention("gqa", "a2a+p2p", { a2a = 2 }))
    check_unseen(attention("mla", "gather"))
    check_unseen(case("moe", "moe"))
end)

describe("traces on devices", function()
    local function checks_of(fields)
        local there = device.run("direct", 2, "spec.support.layer_rank", { cases = fields })
        local list = {}
        for i = 1, #fields do
            local one = { wrong = 0, checks = 0 }
            for rank = 1, 2 do
                local r = there[rank][i]
                assert(not r.failure, r.failure)
                one.wrong, one.checks = one.wrong + r.wrong, one.checks + r.checks
            end
            list[i] = one
        end
        return list
    end

    it_there("go with the rows of every mode, and show rows that stand elsewhere", function()
        local cases, plain = {}, {}
        for _, mode in ipairs { "gather", "p2p", "a2a" } do
            plain[#plain + 1] = attention("gqa", mode)
        end
        plain[#plain + 1] = case("gdn", "gdn")
        plain[#plain + 1] = case("gdn headwise", "gdn", { config = { cp_mode = "headwise" } })
        for i, one in ipairs(plain) do
            for j, swap in ipairs { false, true } do
                local copy = { trace = true, swap = swap }
                for key, value in pairs(one) do copy[key] = value end
                cases[2 * i + j - 2] = copy
            end
        end
        local found = checks_of(cases)
        for i, one in ipairs(plain) do
            local right, swapped = found[2 * i - 1], found[2 * i]
            assert.is_true(right.checks > 0, one.name)
            assert.equal(0, right.wrong, one.name)
            -- Two rows when they come in, and again where a mode brought them: of a halo they are
            -- no part.
            assert.is_true(swapped.wrong >= (one.config and 4 or 2), one.name)
        end
    end)
end)

-- On the host; the specs before this say that a device gives the same.
describe("these faults", function()
    it("show", function()
        local cases = {}
        for i, one in ipairs(FAULTS) do
            cases[2 * i - 1] = one
            cases[2 * i] = case(one.name, one.kind, { config = one.config })
        end
        local here = ranks.run(4, "spec.support.layer_rank", { cases = cases })
        for i, one in ipairs(FAULTS) do
            local shows = false
            for rank = 1, 4 do
                local a, b = here[rank][2 * i - 1], here[rank][2 * i]
                for name, list in pairs(a.values) do
                    shows = shows or largest_difference(list, b.values[name]) > 1e-6
                end
            end
            assert.is_true(shows, one.name)
        end
    end)
end)

describe("a device refuses", function()
    local function failure(fields)
        local there = device.run("direct", 1, "spec.support.layer_rank", { cases = { fields } })
        return there[1][1].failure
    end

    it_there("nothing that it has kernels for", function()
        for _, dtype in ipairs { "f64", "f32", "bf16" } do
            assert.is_nil(failure(case("norm", "norm", { dtype = dtype })), dtype)
        end
    end)

    it_there("what its kernels refuse, in their words", function()
        for kind, op in pairs { gqa = "attention", mla = "attention", gdn = "gdn" } do
            local refusal = { op, "heads of 7 are not for us" }
            local said = failure(case(kind, kind, { refusal = refusal }))
            assert.matches(kind .. ": heads of 7 are not for us", said)
        end
        assert.is_nil(failure(case("mlp", "mlp", { refusal = { "gdn", "no" } })))
    end)

    it_there("sizes that the delta rule has no kernels for, whoever has its heads", function()
        for _, cp_mode in ipairs { "chunkwise", "headwise" } do
            local function said(config)
                config.cp_mode = cp_mode
                return failure(case("gdn", "gdn", { config = config }))
            end
            local rule = "gdn: .*a device takes key_dim and value_dim from 1 to 256, not "
            assert.matches(rule .. "257 and 5", said { key_dim = 257 })
            assert.matches(rule .. "3 and 257", said { value_dim = 257 })
        end
    end)

    -- Nobody can look at tokens there while a step runs, so nothing is read, and all that hangs on
    -- such a token is NaN.
    it_there("no token, but gives NaN for one that is not in the vocabulary", function()
        local fields = case("embedding", "embedding", { vocabulary = 13 })
        local payload = { cases = { fields } }
        local there = device.run("direct", 1, "spec.support.layer_rank", payload)[1][1]
        local here = ranks.run(1, "spec.support.layer_rank", payload)[1][1]
        assert.matches("embedding: token 1[12] in slot %d+, vocabulary of 11", here.failure)
        local n_nan, n_rows = 0, #there.positions
        for slot = 0, n_rows - 1 do
            local token = (7 * there.positions[slot + 1]) % 13
            local beyond = slot % 5 ~= 4 and token >= 11
            if beyond then n_nan = n_nan + 1 end
            for j = 1, 6 do
                local value = there.values.y[slot * 6 + j]
                assert.equal(beyond, value ~= value)
            end
        end
        assert.is_true(n_nan > 0 and n_nan < n_rows)
        for _, value in ipairs(there.values.weight) do assert.is_true(value == value) end
    end)

    it_there("dtypes that nobody computes in, and the host bf16", function()
        for _, kind in ipairs { "gqa", "mla", "gdn", "mlp", "moe", "norm", "linear",
            "embedding" } do
            assert.matches("layers compute in f64, f32 or bf16, not in i32",
                failure(case(kind, kind, { dtype = "i32" })))
        end
        local here = ranks.run(1, "spec.support.layer_rank",
            { cases = { case("norm", "norm", { dtype = "bf16" }) } })
        assert.matches("no table for device 'cpu' and dtype bf16", here[1][1].failure)
    end)
end)
