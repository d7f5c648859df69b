-- Layers on one rank: gradients against finite differences, what padding and documents may not
-- do, and what is refused. Parity over ranks is in spec/stack.
local clib = require "clib"
local layers = require "spec.support.layers"
local C, ffi = clib.C, clib.ffi

local STREAM = { lengths = { 9, 0, 1, 6 }, real = { 7, 0, 1, 6 } }

-- Central differences with a step h err by about h^2 of the third derivative (1e-12 here) and by
-- 1e-16 / h of rounding (1e-10): 1e-7 of the largest gradient is far above both.
local STEP, TOLERANCE = 1e-6, 1e-7

local function largest(tensor)
    local most = 0
    for i = 0, tonumber(C.cpl_tensor_n_elements(tensor)) - 1 do
        most = math.max(most, math.abs(C.cpl_dtype_load(tensor.dtype, tensor.data, i)))
    end
    return most
end

local function check_gradient(live, what, value, gradient)
    local data, n = ffi.cast("double *", value.data), tonumber(C.cpl_tensor_n_elements(value))
    local bound = TOLERANCE * math.max(largest(gradient), 1e-3)
    for i = 0, n - 1, math.max(1, math.floor(n / 23)) do
        local kept = data[i]
        data[i] = kept + STEP
        local up = layers.loss(live)
        data[i] = kept - STEP
        local down = layers.loss(live)
        data[i] = kept
        local expected = (up - down) / (2 * STEP)
        local got = C.cpl_dtype_load(gradient.dtype, gradient.data, i)
        assert.is_true(math.abs(expected - got) <= bound,
            ("%s[%d]: differences %.10g, backward %.10g"):format(what, i, expected, got))
    end
end

local function copy_gradients(live)
    local list = {}
    for i, entry in ipairs(live.parameters.list) do
        list[i] = ffi.new("double[?]", tonumber(C.cpl_tensor_n_elements(entry.grad)))
        ffi.copy(list[i], entry.grad.data, ffi.sizeof(list[i]))
    end
    return list
end

describe("a layer", function()
    for _, kind in ipairs(layers.kinds) do
        it(("%s: backward equals finite differences"):format(kind), function()
            local live = layers.live(kind, STREAM)
            layers.forward(live)
            layers.backward(live)
            if live.dx then
                check_gradient(live, "x", live.x, live.dx)
            end
            for _, entry in ipairs(live.parameters.list) do
                check_gradient(live, entry.name, entry.weight, entry.grad)
            end
        end)

        it(("%s: gradients of parameters are added to, the same bits each time"):format(kind),
            function()
                local live = layers.live(kind, STREAM)
                layers.forward(live)
                layers.backward(live)
                local once = copy_gradients(live)
                clib.check(C.cpl_layer_backward(live.layer, live.dy, live.dx))
                for i, entry in ipairs(live.parameters.list) do
                    local twice = ffi.cast("double *", entry.grad.data)
                    for j = 0, tonumber(C.cpl_tensor_n_elements(entry.grad)) - 1 do
                        local bound = 1e-14 * math.abs(once[i][j]) + 1e-14 * largest(entry.grad)
                        assert.is_true(math.abs(twice[j] - 2 * once[i][j]) <= bound)
                    end
                end
            end)
    end

    for _, kind in ipairs { "gqa", "gdn" } do
        it(("%s: padding gives and gets exactly 0"):format(kind), function()
            local live = layers.live(kind, STREAM)
            layers.forward(live)
            layers.backward(live)
            for _, slot in ipairs { 7, 8 } do
                for j = 1, 6 do
                    assert.equal(0, layers.row(live.y, slot)[j])
                    assert.equal(0, layers.row(live.dx, slot)[j])
                end
            end
            assert.not_equal(0, layers.row(live.y, 6)[1])
        end)

        it(("%s: a document does not see another one, its own it does"):format(kind), function()
            local live = layers.live(kind, STREAM)
            layers.forward(live)
            local first, last = layers.row(live.y, 6), layers.row(live.y, 15)
            local x = ffi.cast("double *", live.x.data)
            x[0] = x[0] + 0.5
            layers.forward(live)
            assert.same(last, layers.row(live.y, 15))
            assert.not_same(first, layers.row(live.y, 6))
        end)

        it(("%s: a later token does not change an earlier output"):format(kind), function()
            local live = layers.live(kind, STREAM)
            layers.forward(live)
            local before, own = layers.row(live.y, 4), layers.row(live.y, 5)
            local x = ffi.cast("double *", live.x.data)
            x[5 * 6] = x[5 * 6] + 0.5
            layers.forward(live)
            assert.same(before, layers.row(live.y, 4))
            assert.not_same(own, layers.row(live.y, 5))
        end)
    end

    it("gdn: with a slow decay the first token reaches the last, 600 tokens on", function()
        local live = layers.live("gdn", { lengths = { 600 } }, { conv = 1 })
        for _, entry in ipairs(live.parameters.list) do
            if entry.name == "gdn.A_log" then C.cpl_tensor_fill(entry.weight, -12) end
        end
        layers.forward(live)
        local before = layers.row(live.y, 599)
        ffi.cast("double *", live.x.data)[0] = 3
        layers.forward(live)
        assert.not_same(before, layers.row(live.y, 599))
    end)

    it("draws parameters by name and element: decays in [log 1e-3, log 16], norms at 0", function()
        local live = layers.live("gdn", STREAM)
        live.parameters:draw(3)
        local by_name = {}
        for _, entry in ipairs(live.parameters.list) do by_name[entry.name] = entry.weight end
        for i = 0, 3 do
            local a_log = layers.row(by_name["gdn.A_log"], i)[1]
            assert.is_true(a_log >= math.log(1e-3) and a_log <= math.log(16))
            assert.equal(1, layers.row(by_name["gdn.dt_bias"], i)[1])
        end
        local first = layers.row(by_name["gdn.out_proj"], 0)
        live.parameters:draw(3)
        assert.same(first, layers.row(by_name["gdn.out_proj"], 0))
        live.parameters:draw(4)
        assert.not_same(first, layers.row(by_name["gdn.out_proj"], 0))
    end)
end)

describe("what a layer refuses", function()
    local function refused(message, f, ...)
        local arguments = { ... }
        assert.has_error(function() f(unpack(arguments)) end, message)
    end

    it("sizes that break a rule, with the numbers", function()
        refused("gqa: 5 heads, not a multiple of kv_heads = 2", layers.create, "gqa",
            { heads = 5 })
        refused("gqa: rotary_dim 3 must be even and at most head_dim = 8", layers.create, "gqa",
            { rotary_dim = 3 })
        refused("gqa: rotary_dim 10 must be even and at most head_dim = 8", layers.create, "gqa",
            { rotary_dim = 10 })
        refused("gdn: 3 value_heads, not a multiple of key_heads = 2", layers.create, "gdn",
            { value_heads = 3 })
        refused("gdn: chunk 65 is not in 1 to 64", layers.create, "gdn", { chunk = 65 })
        refused("mlp: hidden and width must be positive (got 6, 0)", layers.create, "mlp",
            { width = 0 })
    end)

    it("rows of the wrong number or width, and backward before forward", function()
        local live = layers.live("mlp", STREAM)
        local other = layers.live("mlp", { lengths = { 4 } })
        assert.equal(C.CPL_MISMATCH, C.cpl_layer_forward(live.layer, other.x, live.y))
        assert.equal("mlp: x is f64 of 4 x 6, expected f64 of 16 x 6",
            ffi.string(C.cpl_last_error()))
        assert.equal(C.CPL_INVALID, C.cpl_layer_backward(live.layer, live.dy, live.dx))
        assert.equal("mlp: backward before forward", ffi.string(C.cpl_last_error()))
    end)

    it("a token beyond the vocabulary, and nothing is written", function()
        local live = layers.live("embedding", STREAM)
        ffi.cast("int32_t *", live.x.data)[3] = 11
        C.cpl_tensor_fill(live.y, 5)
        assert.equal(C.CPL_INVALID, C.cpl_layer_forward(live.layer, live.x, live.y))
        assert.equal("embedding: token 11 in slot 3, vocabulary of 11",
            ffi.string(C.cpl_last_error()))
        assert.equal(5, layers.row(live.y, 0)[1])
    end)

    it("memory that runs out while it is prepared: nothing leaks, and it can be tried again",
        function()
            for _, kind in ipairs(layers.kinds) do
                local live = layers.live(kind, STREAM)
                local stats, after = ffi.new "cpl_memory_stats", ffi.new "cpl_memory_stats"
                local failures = 0
                collectgarbage() -- and no more of it while blocks are counted
                collectgarbage "stop"
                finally(function() collectgarbage "restart" end)
                for n = 0, 500 do
                    -- Released to the empty state by a first failure, so both counts compare.
                    C.cpl_memory_fail_after(0)
                    C.cpl_layer_prepare(live.layer, kind, live.place)
                    C.cpl_memory_fail_after(-1)
                    C.cpl_memory(stats)
                    C.cpl_memory_fail_after(n)
                    local status = C.cpl_layer_prepare(live.layer, kind, live.place)
                    C.cpl_memory_fail_after(-1)
                    if status == C.CPL_OK then break end
                    failures = failures + 1
                    assert.equal(C.CPL_MEMORY, status)
                    C.cpl_memory(after)
                    assert.equal(tonumber(stats.live_blocks), tonumber(after.live_blocks))
                end
                assert.is_true(failures > 0)
                layers.forward(live)
            end
        end)
end)
