-- Attention of sequences that come in parts equals attention to the whole, whatever layout and mode
-- each part has: what is left is the order of sums. Padding holds numbers that would show.
local clib = require "clib"
local gqa_modes = require "spec.support.gqa_modes"
local kv = require "spec.support.kv_rank"
local message = require "spec.support.message"
local ranks = require "spec.support.ranks"
local C, ffi = clib.C, clib.ffi

local BOUND = 1e-12

-- New tokens of each sequence, part by part: a long prompt, one of one token, none; single tokens;
-- a sequence that begins late, one that ends early, chunks of three.
local PARTS = {
    { 13, 1, 0, 6 }, { 1, 1, 0, 1 }, { 1, 0, 2, 1 }, { 3, 3, 3, 0 }, { 1, 1, 0, 0 },
}

-- A layout and a mode for each part; the ranks divide 4 heads in a2a.
local PLACES = {
    { "zigzag", "gather" }, { "contiguous", "p2p" }, { "mirror", "a2a" }, { "custom", "gather" },
    { "striped", "a2a+p2p" },
}

local function total()
    local sum = { 0, 0, 0, 0 }
    for _, real in ipairs(PARTS) do
        for i, n in ipairs(real) do sum[i] = sum[i] + n end
    end
    return sum
end

local function whole(fields)
    local case = { parts = { { real = total() } }, no_cache = true }
    for name, value in pairs(fields) do case[name] = value end
    return kv.run(C.cpl_comm_self(), case)
end

-- The parts on cp ranks, the layouts from `shift` on.
local function in_parts(cp, fields, shift)
    local case = { parts = {} }
    for k, real in ipairs(PARTS) do
        local place = PLACES[(k + shift - 1) % #PLACES + 1]
        local part = gqa_modes.padded(real, 2 * cp)
        part.layout, part.cp_mode = place[1], place[2]
        if place[1] == "custom" then part.ranks = gqa_modes.dealt(part, cp, k) end
        if place[2]:match "^a2a" and 4 % cp ~= 0 then part.cp_mode = "gather" end
        part.a2a = part.cp_mode == "a2a+p2p" and (cp % 2 == 0 and 2 or 1) or nil
        case.parts[k] = part
    end
    for name, value in pairs(fields) do case[name] = value end
    return case
end

-- The largest difference over the largest number, of all rows that the whole has.
local function worst(results, i, expected)
    local off, largest = 0, 0
    for key, row in pairs(expected.y) do
        local found
        for _, of_rank in ipairs(results) do found = found or of_rank[i].y[key] end
        for c, value in ipairs(row) do
            local difference = math.abs(value - found[c])
            off = math.max(off, difference == difference and difference or math.huge)
            largest = math.max(largest, math.abs(value))
        end
    end
    return off / largest
end

local CONFIGS = {
    { kind = "gqa" }, { kind = "gqa", config = { window = 4 } }, { kind = "mla" },
    { kind = "mla", config = { window = 1 } },
}

describe("a cache of keys", function()
    for _, cp in ipairs(ranks.sizes { 1, 2, 3, 4 }) do
        it(("makes parts equal the whole, in mixed layouts and modes, cp %d"):format(cp), function()
            local cases, expected = {}, {}
            for i, fields in ipairs(CONFIGS) do
                for shift = 0, #PLACES - 1 do
                    cases[#cases + 1] = in_parts(cp, fields, shift)
                    cases[#cases].trace = shift % 2 == 0
                    cases[#cases].poison = true
                    expected[#cases] = expected[(i - 1) * #PLACES + 1] or whole(fields)
                end
            end
            local results = ranks.run(cp, "spec.support.kv_rank", cases)
            for i, case in ipairs(cases) do
                assert.is_true(worst(results, i, expected[i]) <= BOUND)
                local bytes, checks = 0, 0
                for _, of_rank in ipairs(results) do
                    assert.equal(0, of_rank[i].wrong_rows)
                    assert.same(total(), of_rank[i].seen)
                    bytes = bytes + of_rank[i].bytes
                    checks = checks + of_rank[i].trace_checks
                end
                -- 38 tokens; two kv heads of 4 + 4 numbers, or a latent of 4 and 2 rotated.
                assert.equal(38 * 8 * (case.kind == "gqa" and 16 or 6), bytes)
                assert.equal(case.trace or false, checks > 0)
            end
        end)
    end

    -- Each rank sees where the others' queries should stand, and where what it gets back should.
    it("is traced: two rows that change places on one rank are seen on all", function()
        local case = { trace = true, swap = 0, parts = { { real = { 4 } }, { real = { 4 } } } }
        local of_ranks = ranks.run(2, "spec.support.kv_rank", { case })
        assert.equal(2 + 2 + 2 * 2, of_ranks[1][1].wrong_rows) -- x, queries, two parts at home
        assert.equal(2, of_ranks[2][1].wrong_rows) -- queries
    end)

    it("takes no memory in a step", function()
        local case = in_parts(2, { again = 2 }, 0)
        for _, of_rank in ipairs(ranks.run(2, "spec.support.kv_rank", { case })) do
            assert.equal(0, of_rank[1].allocations)
        end
    end)

    -- What goes over the ranks are the new tokens' queries and results, not keys: it does not grow
    -- with the past.
    it("stays where it is: a step sends as much after a long past as after a short one", function()
        local function sent(past)
            local case = { parts = { { real = { past } }, { lengths = { 4 }, real = { 1 } } } }
            local bytes = 0
            for _, of_rank in ipairs(ranks.run(2, "spec.support.kv_rank", { case })) do
                bytes = bytes + of_rank[1].sent
            end
            return bytes
        end
        assert.equal(sent(4), sent(64))
        -- One query of 4 heads of 4 goes to the other rank, and a result with its lse comes back.
        assert.equal(8 * (16 + 16 + 4), sent(64))
    end)

    -- Negative controls: each is what the cache must not do.
    local function with_fault(name, fault)
        fault.name, fault.value = name, 1
        local cp = 2
        local case = in_parts(cp, { fault = fault, capacity = { 40, 40, 40, 40 } }, 0)
        return worst(ranks.run(cp, "spec.support.kv_rank", { case }), 1, whole {})
    end

    it("is not the whole with rotary positions that begin again, a row of padding, or a part of "
        .. "the keys left out", function()
        for _, name in ipairs { "forget_offset", "cache_padding", "drop_partial" } do
            assert.is_true(with_fault(name, {}) > 1e-4, name)
        end
        assert.is_true(with_fault("rope_shift", { rank = 7 }) <= BOUND) -- on no rank
    end)

    it("leaves all ranks alike where memory runs out on one", function()
        local of_ranks = ranks.run(3, "spec.support.kv_rank", { ask = "prepare_without_memory",
            capacity = { 12, 12 }, parts = { { real = { 9, 3 } }, { real = { 1, 2 } } } })
        assert.is_true(#of_ranks[1] > 20)
        for rank = 2, 3 do assert.same(of_ranks[1], of_ranks[rank]) end
    end)
end)

describe("a cache of keys is refused", function()
    local self = C.cpl_comm_self()

    local function prepared(cache, part, name, case)
        local live = kv.part(self, case or {}, part)
        clib.check(C.cpl_layer_kv_cache(live.layer, cache))
        clib.check(C.cpl_layer_prepare(live.layer, name or "layers.1", live.place))
        return live
    end
    local function forward(live) clib.check(C.cpl_layer_forward(live.layer, live.x, live.y)) end

    it("by another layer, another number of sequences, other rows", function()
        local cache, part = kv.cache { 8, 8 }, { real = { 3, 2 } }
        prepared(cache, part)
        assert.equal("layers.2: the cache is that of layers.1",
            message(prepared, cache, part, "layers.2"))
        assert.equal("layers.1: the cache is for 2 sequences, the stream has 3",
            message(prepared, cache, { real = { 3, 2, 1 } }))
        assert.equal("layers.1: the cache holds rows of 16 x f64, the layer makes rows of 6 x f64",
            message(prepared, cache, part, nil, { kind = "mla" }))
        assert.equal("layers.1: the cache holds rows of 16 x f64, the layer makes rows of 16 x f32",
            message(prepared, cache, part, nil, { dtype = "f32" }))
    end)

    it("by a layer of another group", function()
        local answers = ranks.run(2, function(comm)
            local spec, C_ = require "spec.support.kv_rank", require("clib").C
            local cache = spec.cache { 8 }
            local alone = spec.part(C_.cpl_comm_self(), {}, { real = { 4 } })
            C_.cpl_layer_kv_cache(alone.layer, cache)
            local first = C_.cpl_layer_prepare(alone.layer, "layers.1", alone.place)
            local live = spec.part(comm._ptr, {}, { real = { 4 } })
            C_.cpl_layer_kv_cache(live.layer, cache)
            local second = C_.cpl_layer_prepare(live.layer, "layers.1", live.place)
            return { tonumber(first), tonumber(second),
                require("ffi").string(C_.cpl_last_error()) }
        end)
        for rank = 1, 2 do
            assert.same({ tonumber(C.CPL_OK), tonumber(C.CPL_MISMATCH) },
                { answers[rank][1], answers[rank][2] })
            assert.truthy(answers[rank][3]:find("layers.1: the cache is that of rank 0 of a group "
                .. "of 1, not of rank 0 of this group of 2", 1, true))
        end
    end)

    it("where rows do not fit, and then nothing has changed", function()
        local cache = kv.cache { 4, 1 }
        forward(prepared(cache, { real = { 3, 1 } }))
        local live = prepared(cache, { real = { 1, 1 } })
        local text = "layers.1: the cache of rank 0 holds 1 of 1 rows of sequence 1, and 1 more "
            .. "come"
        assert.equal(text, message(forward, live))
        assert.equal(3, tonumber(C.cpl_kv_cache_seen(cache, 0)))
        assert.equal(4 * 16 * 8, tonumber(C.cpl_kv_cache_bytes(cache)))
        C.cpl_kv_cache_clear(cache)
        assert.equal(0, tonumber(C.cpl_kv_cache_bytes(cache)))
        forward(live)
    end)

    it("by a layer that was prepared for sequences that begin", function()
        local cache = kv.cache { 8 }
        local live = prepared(cache, { real = { 2 } })
        forward(live)
        assert.equal("layers.1: its cache has a past, but it was prepared while there was none",
            message(forward, live))
        -- The other way round it has both ways.
        live = prepared(cache, { real = { 2 } })
        forward(live)
        C.cpl_kv_cache_clear(cache)
        forward(live)
    end)

    it("on the way back, by layers without keys, with a negative capacity", function()
        local live = prepared(kv.cache { 8 }, { real = { 2 } })
        forward(live)
        assert.equal(C.CPL_UNSUPPORTED, C.cpl_layer_backward(live.layer, live.y, live.x))
        assert.equal("layers.1: there is no backward through a cache of keys",
            ffi.string(C.cpl_last_error()))
        local mlp = require("spec.support.layers").live("mlp", { lengths = { 5 } })
        assert.equal(C.CPL_INVALID, C.cpl_layer_kv_cache(mlp.layer, nil))
        assert.equal("mlp: only gqa and mla layers have keys", ffi.string(C.cpl_last_error()))
        assert.equal("kv_cache: sequence 1 has a capacity of -1", message(kv.cache, { 4, -1 }))
    end)
end)
