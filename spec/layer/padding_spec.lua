-- Published failures with tails of padding: lengths rounded down per chunk lost real keys and
-- left real rows at 0; rows of padding, also beyond the last sequence, were not 0.
local ranks = require "spec.support.ranks"

-- Runs a mixer forward and backward on one layout; rows of y and dx by position.
local function run_layer(comm, p)
    local clib = require "clib"
    local cplab = require "cplab"
    local layers = require "spec.support.layers"
    local parameters = require "cplab.parameters"
    local rows = require "cplab.rows"
    local C, ffi = clib.C, clib.ffi
    local layout = cplab.layout[p.layout](cplab.stream.thd(p.stream), { cp = comm:size() })
    local layer = layers.create(p.kind)
    local place = clib.create("cpl_place", C.cpl_place_destroy, 1, C.cpl_place_create, comm._ptr,
        layout._ptr)
    local weights = parameters.new(comm._ptr, "f64", { { name = p.kind, ptr = layer } })
    layers.fill(weights.weights, "weights")
    clib.check(C.cpl_layer_prepare(layer, p.kind, place))
    local n = layout:n_local(comm:rank())
    local t = {}
    for _, name in ipairs { "x", "dx", "y", "dy" } do
        t[name] = rows.new(comm._ptr, "f64", n, 6)
    end
    -- What stands in the rows of padding is as wild as in the others.
    for slot, position in ipairs(layout:positions(comm:rank())) do
        for j = 0, 5 do
            local key = position * 6 + j
            ffi.cast("double *", t.x.data)[(slot - 1) * 6 + j] = math.sin(1 + key)
            ffi.cast("double *", t.dy.data)[(slot - 1) * 6 + j] = math.cos(2 + key)
        end
    end
    clib.check(C.cpl_layer_forward(layer, t.x, t.y))
    weights:zero_gradients()
    clib.check(C.cpl_layer_backward(layer, t.dy, t.dx))
    local list = {}
    for slot, position in ipairs(layout:positions(comm:rank())) do
        list[slot] = { position = position, y = layers.row(t.y, slot - 1),
            dx = layers.row(t.dx, slot - 1) }
    end
    comm:barrier()
    return list
end

local function by_position(n, p)
    local list = {}
    for _, rank in ipairs(ranks.run(n, run_layer, p)) do
        for _, row in ipairs(rank) do list[row.position] = row end
    end
    return list
end

-- The positions whose rows of `what` are 0 in every column.
local function zeros(list, n, what)
    local positions = {}
    for position = 0, n - 1 do
        local is_zero = true
        for _, value in ipairs(list[position][what]) do
            is_zero = is_zero and value == 0
        end
        if is_zero then positions[#positions + 1] = position end
    end
    return positions
end

local function worst(list, reference, n, what)
    local most = 0
    for position = 0, n - 1 do
        for j, value in ipairs(list[position][what]) do
            most = math.max(most, math.abs(value - reference[position][what][j]))
        end
    end
    return most
end

-- Golden: real boundaries 0, 3, 8 in padded ones 0, 4, 12 of a buffer of 16.
local golden = { cu_seqlens = { 0, 4, 12, 16 }, cu_seqlens_real = { 0, 3, 8, 8 } }
local golden_pads = { 3, 9, 10, 11, 12, 13, 14, 15 }

describe("padding", function()
    for _, kind in ipairs { "gqa", "gdn" } do
        for _, layout in ipairs { "contiguous", "zigzag", "mirror" } do
            for _, n in ipairs { 1, 2 } do
                it(("is 0 in outputs and gradients, real rows are not: %s, %s, %d ranks"):format(
                    kind, layout, n), function()
                    local list = by_position(n, { kind = kind, layout = layout, stream = golden })
                    assert.same(golden_pads, zeros(list, 16, "y"))
                    assert.same(golden_pads, zeros(list, 16, "dx"))
                end)
            end

            it(("costs no real key where lengths do not divide: %s, %s, 4 ranks"):format(kind,
                layout), function()
                -- 11 and 13 in 16: 8 chunks of 2, the last ones half or wholly padding.
                local p = { kind = kind, layout = layout,
                    stream = { lengths = { 16, 16 }, real = { 11, 13 } } }
                local pads = { 11, 12, 13, 14, 15, 29, 30, 31 }
                local list, reference = by_position(4, p), by_position(1, p)
                assert.same(pads, zeros(list, 32, "y"))
                assert.same(pads, zeros(list, 32, "dx"))
                assert.is_true(worst(list, reference, 32, "y") <= 1e-12)
                assert.is_true(worst(list, reference, 32, "dx") <= 1e-12)
            end)
        end
    end

    it("(control) a real length rounded down to chunks loses keys", function()
        local function stream(real)
            return { kind = "gqa", layout = "zigzag",
                stream = { lengths = { 16 }, real = { real } } }
        end
        local rounded, right = by_position(4, stream(8)), by_position(4, stream(11))
        assert.same({ 8, 9, 10, 11, 12, 13, 14, 15 }, zeros(rounded, 16, "y"))
        assert.same({ 11, 12, 13, 14, 15 }, zeros(right, 16, "y"))
    end)
end)
