-- Layers that tensor parallelism splits: what the tp slices give adds up to the layer, y, dx and
-- the gradient of every parameter; and a slice touches no other slice's part of a parameter.
local clib = require "clib"
local layers = require "spec.support.layers"
local message = require "spec.support.message"
local rows = require "cplab.rows"
local C, ffi = clib.C, clib.ffi

local STREAM = { lengths = { 12, 8, 0, 4 }, real = { 11, 8, 0, 2 } }

local CASES = {
    { "gqa", {}, { 2, 4 } }, { "gqa", { heads = 6, kv_heads = 6 }, { 2, 3, 6 } },
    { "gqa", { heads = 8, kv_heads = 1 }, { 2, 8 } }, { "gqa", { window = 3 }, { 2 } },
    { "mla", {}, { 2, 4 } }, { "mla", { q_rank = 0, heads = 6 }, { 2, 3 } },
    { "gdn", {}, { 2, 4 } }, { "gdn", { key_heads = 6, value_heads = 6, conv = 1 }, { 3, 6 } },
    { "gdn", { key_heads = 1, value_heads = 8, conv = 5 }, { 8 } },
    { "mlp", { width = 12 }, { 2, 3, 4, 12 } },
    { "moe", { width = 8 }, { 2, 4 } }, { "moe", { width = 6, shared_width = 0 }, { 3 } },
    { "moe", { width = 6, shared_width = 6, renormalise = false }, { 2, 6 } },
}

-- By which fraction of their rows, or of columns, parameters are cut; others are used whole, or
-- what a rank uses is shared.
local CUT_ROWS = { q_proj = true, z_proj = true, b_proj = true, a_proj = true, A_log = true,
    dt_bias = true, gate_proj = true, up_proj = true, kv_up = true, q_up = true,
    shared_gate_proj = true, shared_up_proj = true }
local CUT_COLUMNS = { o_proj = true, out_proj = true, down_proj = true, shared_down_proj = true,
    expert_down_proj = true }

local function values(tensor)
    local list = {}
    for i = 0, tonumber(C.cpl_tensor_n_elements(tensor)) - 1 do
        list[i + 1] = C.cpl_dtype_load(tensor.dtype, tensor.data, i)
    end
    return list
end

-- { name = values } of y, dx and every gradient.
local function results(live)
    layers.forward(live)
    layers.backward(live)
    local all = { y = values(live.y), dx = values(live.dx) }
    for _, entry in ipairs(live.parameters.list) do
        all[entry.name:match "%.(.*)$"] = values(entry.grad)
    end
    return all
end

local function columns_of(live, name)
    for _, entry in ipairs(live.parameters.list) do
        if entry.name:match "%.(.*)$" == name then
            return tonumber(C.cpl_tensor_width(entry.grad))
        end
    end
end

-- Whether a gradient is 0 outside of the slice of t.
local function is_sliced(live, name, list, t, tp)
    local columns = columns_of(live, name)
    local n_rows = #list / columns
    for i, value in ipairs(list) do
        local row, column = math.floor((i - 1) / columns), (i - 1) % columns
        local inside = true
        if CUT_ROWS[name] then inside = math.floor(row * tp / n_rows) == t end
        if CUT_COLUMNS[name] then inside = math.floor(column * tp / columns) == t end
        if not inside and value ~= 0 then return false end
    end
    return true
end

local function worst(a, b)
    local difference, largest = 0, 0
    for i, value in ipairs(a) do
        difference = math.max(difference, math.abs(value - b[i]))
        largest = math.max(largest, math.abs(value))
    end
    return largest > 0 and difference / largest or difference
end

describe("slices of a layer", function()
    for _, case in ipairs(CASES) do
        local kind, changes, tps = unpack(case)
        for _, tp in ipairs(tps) do
            local words = {}
            for name, value in pairs(changes) do
                words[#words + 1] = name .. " " .. tostring(value)
            end
            table.sort(words)
            it(("add up, %s, tp %d, %s"):format(kind, tp, table.concat(words, ", ")), function()
                local whole = results(layers.live(kind, STREAM, changes))
                local sum
                for t = 0, tp - 1 do
                    local live = layers.live(kind, STREAM, changes, nil, { t, tp })
                    local mine = results(live)
                    for name, list in pairs(mine) do
                        if CUT_ROWS[name] or CUT_COLUMNS[name] then
                            assert.is_true(is_sliced(live, name, list, t, tp), name)
                        end
                    end
                    for name, list in pairs(sum and mine or {}) do
                        for i, value in ipairs(list) do sum[name][i] = sum[name][i] + value end
                    end
                    sum = sum or mine
                end
                for name, list in pairs(whole) do
                    local off = worst(list, sum[name])
                    assert.is_true(off <= 1e-13, ("%s: %g"):format(name, off))
                end
            end)
        end
    end

    it("are not the layer: a slice left out, or taken twice, shows in y", function()
        local whole = results(layers.live("gqa", STREAM))
        local first = results(layers.live("gqa", STREAM, nil, nil, { 0, 2 }))
        assert.is_true(worst(whole.y, first.y) > 1e-2)
        for i, value in ipairs(first.y) do first.y[i] = 2 * value end
        assert.is_true(worst(whole.y, first.y) > 1e-2)
    end)

    it("are what the place says: the rank must be one of tp", function()
        local live = layers.live("mlp", STREAM)
        local function split(rank, tp)
            return message(function() clib.check(C.cpl_place_split(live.place, rank, tp)) end)
        end
        assert.equal("place: rank 2 of tp = 2", split(2, 2))
        assert.equal("place: rank -1 of tp = 2", split(-1, 2))
        assert.equal("place: rank 0 of tp = 0", split(0, 0))
    end)

    it("are refused by layers that act on rows alone", function()
        for _, kind in ipairs { "norm", "linear", "embedding" } do
            assert.equal(("%s: %s layers do not split by tensor parallelism (tp = 2)"):format(kind,
                kind), message(layers.live, kind, STREAM, nil, nil, { 0, 2 }))
        end
    end)

    -- What they compute is in spec/stack/decode_spec.lua.
    it("have the states of their own heads", function()
        local live = layers.live("gdn", STREAM)
        local n, kept = #STREAM.lengths, {}
        local function bind(key_heads, value_heads)
            local state = ffi.new "cpl_gdn_state"
            kept[1] = rows.new(live.comm, "f64", n, value_heads * 3 * 5)
            kept[2] = rows.new(live.comm, "f64", n, 3 * (2 * key_heads * 3 + value_heads * 5))
            state.state, state.tail = kept[1], kept[2]
            clib.check(C.cpl_layer_gdn_state(live.layer, state, nil))
        end
        local function prepare() clib.check(C.cpl_layer_prepare(live.layer, "gdn", live.place)) end
        bind(2, 4)
        prepare()
        clib.check(C.cpl_place_split(live.place, 1, 2))
        assert.equal("gdn: the state that comes in must be f64 of 4 sequences x 30, got f64 of 4 x "
            .. "60", message(prepare))
        bind(1, 2)
        prepare()
    end)
end)
