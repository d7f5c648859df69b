-- Layers on one rank: gradients against finite differences, what padding and documents may not
-- do, and what is refused. Parity over ranks is in spec/stack.
local clib = require "clib"
local layers = require "spec.support.layers"
local ranks = require "spec.support.ranks"
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

local function check_gradients(kind, changes)
    local live = layers.live(kind, STREAM, changes)
    layers.forward(live)
    layers.backward(live)
    if live.dx then
        check_gradient(live, "x", live.x, live.dx)
    end
    for _, entry in ipairs(live.parameters.list) do
        check_gradient(live, entry.name, entry.weight, entry.grad)
    end
end

local function entry_of(parameters, name)
    for _, entry in ipairs(parameters.list) do
        if entry.name == name then return entry end
    end
    error("no parameter " .. name)
end

describe("a layer", function()
    -- FLA#871: the gradient of the convolution's output is that of q, k and v side by side in a
    -- row, each with a stride that is not its width.
    it("[report 26] gdn: gradients pass from q, k and v through their one convolution", function()
        local changes = { key_dim = 2, value_dim = 5, key_heads = 1, value_heads = 3 }
        check_gradients("gdn", changes)
        -- Parts of other widths have other gradients: one read with another's stride is seen.
        local live = layers.live("gdn", STREAM, changes)
        layers.forward(live)
        layers.backward(live)
        local grad = ffi.cast("double *", entry_of(live.parameters, "gdn.conv").grad.data)
        local q, k, v = math.abs(grad[0]), math.abs(grad[2 * 4]), math.abs(grad[4 * 4])
        assert.is_true(math.abs(q - k) > 1e-3 * (q + k))
        assert.is_true(math.abs(k - v) > 1e-3 * (k + v))
    end)

    -- transformers#47831: decays drawn in bf16 from 0 to 16 are 0 in 1 of 256 heads, of which the
    -- logarithm is -inf.
    it("[report 15] gdn: decays begin finite, above a floor", function()
        local n = 4096
        for _, dtype in ipairs { "f32", "f64" } do
            local layer = require("cplab.layers").create("gdn", { hidden = 2, key_heads = 1,
                value_heads = n, key_dim = 1, value_dim = 1, conv = 1, chunk = 4, eps = 1e-6 },
                dtype)
            local own = require("cplab.parameters").new(C.cpl_comm_self(), dtype,
                { { name = "gdn", ptr = layer } })
            own:draw(1)
            local weight = entry_of(own, "gdn.A_log").weight
            for i = 0, n - 1 do
                local a_log = C.cpl_dtype_load(weight.dtype, weight.data, i)
                assert.is_true(a_log >= math.log(1e-3) - 1e-6 and a_log <= math.log(16))
            end
        end
        local n_infinite, key = 0, C.cpl_random_key(1, "bf16")
        for i = 0, n - 1 do
            local drawn = math.floor(C.cpl_random_uniform(key, i) * 256) / 16
            n_infinite = n_infinite + (math.log(drawn) == -math.huge and 1 or 0)
        end
        assert.is_true(n_infinite > 0)
    end)

    it("mla: backward equals finite differences without q_rank and rotation", function()
        check_gradients("mla", { q_rank = 0 })
        check_gradients("mla", { q_rank = 0, rope_theta = 0 })
    end)

    for _, kind in ipairs(layers.kinds) do
        it(("%s: backward equals finite differences"):format(kind), function()
            check_gradients(kind)
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

    for _, kind in ipairs { "gqa", "mla", "gdn", "moe" } do
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
    end

    for _, kind in ipairs { "gqa", "gdn" } do
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

    it("draws zero-centred norms at 0, plain ones at 1, projections with deviation 0.02", function()
        local expected = { ["gqa.q_norm"] = 0, ["gqa.k_norm"] = 0, ["norm.weight"] = 0,
            ["gdn.norm"] = 1, ["gdn.dt_bias"] = 1 }
        local n_fixed, largest_conv = 0, 0
        for _, kind in ipairs { "gqa", "gdn", "norm" } do
            local live = layers.live(kind, STREAM)
            live.parameters:draw(3)
            for _, entry in ipairs(live.parameters.list) do
                local n, squares = tonumber(C.cpl_tensor_n_elements(entry.weight)), 0
                for i = 0, n - 1 do
                    local value = C.cpl_dtype_load(C.CPL_F64, entry.weight.data, i)
                    squares = squares + value * value
                    if expected[entry.name] then
                        assert.equal(expected[entry.name], value)
                        n_fixed = n_fixed + 1
                    end
                end
                if entry.name == "gdn.conv" then
                    largest_conv = largest(entry.weight)
                elseif entry.name:match "_proj$" then
                    -- The deviation of n draws is known to about 1 / sqrt(2n), here under 15%.
                    assert.is_true(math.abs(math.sqrt(squares / n) / 0.02 - 1) < 0.5)
                end
            end
        end
        assert.equal(8 + 8 + 6 + 5 + 4, n_fixed)
        assert.is_true(largest_conv <= 0.5 and largest_conv > 0.45) -- 1 / sqrt(conv)
    end)
end)

describe("the trace of rows", function()
    -- Two runs, the later one first: the halo of the first span is not where its rows are.
    local RUNS = { { 4, 4 }, { 0, 4 } }

    local function mark(live, tensor)
        clib.check(C.cpl_tensor_mark(tensor, live.layout._ptr, 0, true))
    end

    local function swap(tensor, i, j)
        local trace = tensor.trace
        trace[i], trace[j] = trace[j], trace[i]
    end

    local function wrong_rows(f, live)
        C.cpl_counters_reset()
        f(live)
        return tonumber(C.cpl_counters_here().wrong_rows)
    end

    -- Positions 2 and 3 are two of the three before the run at 4, and two of all keys.
    local WRONG = { gqa = 4, mla = 4, gdn = 4, mlp = 2, moe = 2, norm = 2, linear = 2,
        embedding = 2 }
    for _, kind in ipairs(layers.kinds) do
        it(("%s: is compared in x, and in what a view brought"):format(kind), function()
            local live = layers.live(kind, { lengths = { 8 } }, nil, RUNS)
            mark(live, live.x)
            assert.equal(0, wrong_rows(layers.forward, live))
            swap(live.x, 6, 7)
            assert.equal(WRONG[kind], wrong_rows(layers.forward, live))
            local first = ffi.new "cpl_first_wrong"
            C.cpl_trace_first_wrong(first)
            assert.equal(kind .. ", rank 0, slot 6: expected position 2, found 3",
                ffi.string(first.sentence))
        end)

        it(("%s: is compared in dy, and goes on to y and dx"):format(kind), function()
            local live = layers.live(kind, { lengths = { 8 } }, nil, RUNS)
            mark(live, live.x)
            layers.forward(live)
            mark(live, live.dy)
            assert.equal(0, wrong_rows(layers.backward, live))
            for _, tensor in ipairs { live.y, live.dx } do
                assert.is_true(tensor.layout == live.x.layout)
                for slot = 0, 7 do
                    assert.equal(live.x.trace[slot], tensor.trace[slot])
                end
            end
            swap(live.dy, 0, 3)
            assert.equal(2, wrong_rows(layers.backward, live))
        end)
    end

    -- A layer goes by the mark of the rows that come, not by what somebody set up elsewhere; no
    -- kind of layer lacks the guard, the modes of attention and GDN among them.
    it("T-24, T-30, T-87: is not needed to refuse rows of another layout, in any layer", function()
        local cases = { { "gdn", { cp_mode = "headwise" } } }
        for _, mode in ipairs { "p2p", "a2a" } do
            cases[#cases + 1] = { "gqa", { cp_mode = mode } }
            cases[#cases + 1] = { "mla", { cp_mode = mode } }
        end
        for _, kind in ipairs(layers.kinds) do cases[#cases + 1] = { kind } end
        for _, case in ipairs(cases) do
            local kind, changes = unpack(case)
            local live = layers.live(kind, { lengths = { 8 } }, changes, RUNS)
            local other = layers.live(kind, { lengths = { 8 } }, changes)
            clib.check(C.cpl_tensor_mark(live.x, other.layout._ptr, 0, false))
            C.cpl_tensor_fill(live.y, 5)
            assert.equal(C.CPL_MISMATCH, C.cpl_layer_forward(live.layer, live.x, live.y))
            assert.matches("^" .. kind .. ": expected rows of custom.*, got rows of "
                .. "contiguous$", ffi.string(C.cpl_last_error()))
            assert.equal(5, layers.row(live.y, 0)[1])
            clib.check(C.cpl_tensor_mark(live.x, live.layout._ptr, 0, false))
            layers.forward(live)
        end
    end)
end)

describe("a place that demands marks", function()
    local runs = { { 4, 4 }, { 0, 4 } }

    for _, kind in ipairs(layers.kinds) do
        it(("[T-25] %s: rows of another layout, or of none, never reach the layer"):format(kind),
            function()
                local live = layers.live(kind, { lengths = { 8 } }, nil, runs)
                local other = layers.live(kind, { lengths = { 8 } })
                C.cpl_place_demand_marks(live.place)
                local function refused(f, tensor, wanted)
                    C.cpl_tensor_fill(live.y, 7)
                    assert.equal(C.CPL_MISMATCH, f())
                    assert.matches(kind .. ": expected rows of custom.*, got rows " .. wanted,
                        ffi.string(C.cpl_last_error()))
                    assert.equal(7, layers.row(live.y, 0)[1])
                    clib.check(C.cpl_tensor_mark(tensor, live.layout._ptr, 0, false))
                end
                local function forward()
                    return C.cpl_layer_forward(live.layer, live.x, live.y)
                end
                local function backward()
                    return C.cpl_layer_backward(live.layer, live.dy, live.dx)
                end
                refused(forward, live.x, "that nothing brought there")
                clib.check(C.cpl_tensor_mark(live.x, other.layout._ptr, 0, false))
                refused(forward, live.x, "of contiguous")
                assert.equal(C.CPL_OK, forward())
                -- What it gives is marked by it, so the next layer takes it.
                assert.is_true(live.y.layout == live.x.layout)
                refused(backward, live.dy, "that nothing brought there")
                assert.equal(C.CPL_OK, backward())
            end)
    end
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
        refused("gdn: hidden, key_heads, value_heads, key_dim, value_dim and conv must be "
            .. "positive (got 6, 2, 4, 3, 5, 0)", layers.create, "gdn", { conv = 0 })
        refused("mlp: hidden and width must be positive (got 6, 0)", layers.create, "mlp",
            { width = 0 })
    end)

    it("parameters or gradients of another shape", function()
        local live = layers.live("mlp", STREAM)
        local list = live.parameters.list
        local weights, reversed = ffi.new "cpl_tensor *[3]", ffi.new "cpl_tensor *[3]"
        for i = 1, 3 do
            weights[i - 1], reversed[i - 1] = list[i].weight, list[4 - i].weight
        end
        for what, given in pairs { ["parameter"] = { reversed, weights },
            ["the gradient of"] = { weights, reversed } } do
            assert.equal(C.CPL_MISMATCH, C.cpl_layer_bind(live.layer, given[1], given[2]))
            assert.equal(("mlp: %s gate_proj is f64 of 9 x 6, not what was given"):format(what),
                ffi.string(C.cpl_last_error()))
        end
        assert.equal(C.CPL_OK, C.cpl_layer_bind(live.layer, weights, weights))
    end)

    it("more than four widths of halo in one place, whose routes it shares", function()
        local live = layers.live("gdn", STREAM)
        local function routes_with(conv)
            local other = layers.create("gdn", { conv = conv })
            assert.equal(C.CPL_OK, C.cpl_layer_prepare(other, "other", live.place))
            return tonumber(C.cpl_place_routes_built(live.place))
        end
        assert.equal(1, routes_with(4)) -- that of live.layer
        assert.equal(2, routes_with(7))
        assert.equal(2, routes_with(4))
        assert.equal(4, (routes_with(2) and routes_with(3)))
        local fifth = layers.create("gdn", { conv = 5 })
        assert.equal(C.CPL_UNSUPPORTED, C.cpl_layer_prepare(fifth, "fifth", live.place))
        assert.equal("place: more than 4 widths of halo in one layout",
            ffi.string(C.cpl_last_error()))
    end)

    it("on one rank it refuses on all", function()
        local statuses = ranks.run(3, function(comm)
            local clib = require "clib" -- luacheck: ignore 431
            local cplab = require "cplab"
            local C, ffi = clib.C, clib.ffi -- luacheck: ignore 431
            local layout = cplab.layout.contiguous(cplab.stream.thd { lengths = { 12 } },
                { cp = 3 })
            local place = clib.create("cpl_place", C.cpl_place_destroy, 1, C.cpl_place_create,
                comm._ptr, layout._ptr)
            local layer = clib.create("cpl_layer", C.cpl_layer_destroy, 1, C.cpl_layer_mlp,
                ffi.new("cpl_mlp_config", { hidden = 6, width = 9 }), C.CPL_F64)
            if comm:rank() == 1 then C.cpl_memory_fail_after(0) end
            local first = tonumber(C.cpl_layer_prepare(layer, "mlp", place))
            C.cpl_memory_fail_after(-1)
            return { first, tonumber(C.cpl_layer_prepare(layer, "mlp", place)) }
        end)
        for _, of_rank in ipairs(statuses) do
            assert.not_equal(tonumber(C.CPL_OK), of_rank[1])
            assert.equal(tonumber(C.CPL_OK), of_rank[2])
        end
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
