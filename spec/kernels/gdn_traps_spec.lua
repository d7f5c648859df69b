-- Bug reports about the delta rule and its convolution (gdn_and_attention.md, sections 7.1 and 7.2)
-- that have a counterpart in a kernel: each with the input that shows it, and beside it the wrong
-- way, which must differ. spec/traps/reports_gdn.lua lists them all.
local numbers = require "spec.kernels.numbers"
local op = require "cplab.op"
local raw = require "spec.kernels.raw"
local tensor = require "cplab.tensor"

local close, far = numbers.close, numbers.far

local NAMES = { "dq", "dk", "dv", "dg", "dbeta", "dh0" }

local function inputs(shape)
    local T, Hk, Hv, K, V = shape.T, shape.Hk or 1, shape.Hv or shape.Hk or 1, shape.K, shape.V
    local S = shape.S or 1
    local function make(j, dims, low, high) return numbers.tensor(11, j, dims, low, high) end
    return {
        q = make(0, { T, Hk, K }), k = make(1, { T, Hk, K }), v = make(2, { T, Hv, V }),
        g = make(3, { T, Hv }, shape.g_low or -0.5, 0), beta = make(4, { T, Hv }, 0, 1),
        h0 = make(5, { S, Hv, K, V }), d_o = make(6, { T, Hv, V }), d_hT = make(7, { S, Hv, K, V }),
    }
end

-- o, hT and all gradients.
local function run(x, options)
    local result = {}
    options.l2norm, options.h0 = true, x.h0
    result.o, result.hT = op.gdn(x.q, x.k, x.v, x.g, x.beta, options)
    local list = { op.gdn_backward(x.q, x.k, x.v, x.g, x.beta, x.d_o, x.d_hT, options) }
    for i, name in ipairs(NAMES) do result[name] = list[i] end
    return result
end

local function same(a, b, bound)
    for name, expected in pairs(b) do close(name, a[name], expected, bound) end
end

describe("the delta rule", function()
    -- FLA#792, FLA#1143: rows beyond the end of a partial last chunk were evaluated.
    for _, T in ipairs { 1, 15, 63, 64, 65, 75, 127, 129 } do
        it(("[reports 1, 8] with a last chunk that is not full: %d tokens, strong decay"):format(T),
            function()
                local x = inputs { T = T, Hk = 2, Hv = 4, K = 7, V = 9, g_low = -70 }
                local result = run(x, { chunk = 64 })
                same(result, run(x, { device = "ref" }), 1e-13)
                -- A mask that is multiplied after the exponential gives NaN: between the first
                -- and the last of these tokens the upper triangle overflows.
                local g, sum = x.g:totable(), 0
                for i = 5, #g, 4 do sum = sum + g[i] end
                assert.equal(T > 30, 0 * math.exp(-sum) ~= 0)
                -- A chunk cut short loses the last token.
                local cut = {}
                for name, t in pairs(x) do
                    cut[name] = t:shape()[1] == T and T > 1 and numbers.rows(t, 0, T - 1) or t
                end
                if T > 1 then far("without the last token", run(cut, {}).hT, result.hT, 1e-3) end
            end)
    end

    -- FLA#463: half of the decays forced to 0, the others strong: masking, not clamping.
    it("[report 4] with half of the decays 0", function()
        local x = inputs { T = 130, Hk = 1, Hv = 2, K = 7, V = 9, g_low = -200 }
        local g, strong = x.g:totable(), run(x, {})
        for i = 1, #g, 2 do g[i] = 0 end
        x.g = tensor.from(g, x.g:shape())
        local result = run(x, {})
        same(result, run(x, { device = "ref" }), 1e-13)
        far("a decay of 0 clamped to a strong one", strong.o, result.o, 1e-3)
    end)

    -- fla debug.md: a hard-coded block filled a part of V; the initial state must be kept for the
    -- backward pass.
    for _, V in ipairs { 64, 96, 128, 192, 256 } do
        it(("[report 30] with %d values a head, from a state that is not 0"):format(V), function()
            local x = inputs { T = 70, K = 6, V = V }
            local result = run(x, {})
            same(result, run(x, { device = "ref" }), 1e-12)
            local h0 = x.h0
            x.h0 = h0:copy():fill(0)
            far("dq without the state", run(x, {}).dq, result.dq, 1e-3)
        end)
    end

    -- FLA#1077, FLA#1097: more sequences than a grid has blocks.
    it("[report 13] of 70,000 sequences of one token", function()
        local n, cu = 70000, {}
        local x = inputs { T = n, K = 1, V = 1, S = n }
        for i = 0, n do cu[i + 1] = i end
        local result = run(x, { cu_seqlens = cu })
        same(result, run(x, { cu_seqlens = cu, device = "ref" }), 1e-13)
        -- The last of them is there, and has begun with its own state.
        local o, h0 = result.o:totable()[n], x.h0:totable()[n]
        x.h0 = nil
        local without = op.gdn(x.q, x.k, x.v, x.g, x.beta, { cu_seqlens = cu, l2norm = true })
        assert.is_true(math.abs(without:totable()[n] - o) > 1e-3 * math.abs(h0))
    end)

    -- slime#1686, transformers#46859: boundaries must reach the rule and the convolution.
    it("[report 31] and the convolution: a second document equals its run alone", function()
        local x = inputs { T = 30, Hk = 2, Hv = 4, K = 5, V = 3, S = 2 }
        local cu, second = { cu_seqlens = { 0, 13, 30 } }, {}
        local both = run(x, cu)
        for name, t in pairs(x) do
            second[name] = t:shape()[1] == 30 and numbers.rows(t, 13, 17) or numbers.rows(t, 1, 1)
        end
        local alone = run(second, {})
        close("o", alone.o, numbers.rows(both.o, 13, 17), 0)
        close("dk", alone.dk, numbers.rows(both.dk, 13, 17), 0)
        x.h0, x.d_hT = numbers.rows(x.h0, 0, 1), numbers.rows(x.d_hT, 0, 1)
        far("the rule without boundaries", numbers.rows(run(x, {}).o, 13, 17), alone.o, 1e-3)
        local rows, w = numbers.tensor(3, 0, { 30, 8 }), numbers.tensor(3, 1, { 8, 4 })
        local y = op.conv1d(rows, w, { cu_seqlens = { 0, 13, 30 } })
        close("y", op.conv1d(numbers.rows(rows, 13, 17), w), numbers.rows(y, 13, 17), 0)
        far("without boundaries", op.conv1d(rows, w), y, 1e-3)
    end)

    -- FLA#537: the inverse of a unit triangular matrix explodes for keys that are not normalised;
    -- with unit keys and beta <= 1 the solve is right even where all keys are equal.
    it("[report 5] with equal keys and beta 1", function()
        local x = inputs { T = 64, K = 8, V = 3, g_low = 0 }
        local k = x.k:totable()
        for i = 9, #k do k[i] = k[(i - 1) % 8 + 1] end
        x.k = tensor.from(k, x.k:shape())
        x.beta:fill(1)
        same(run(x, {}), run(x, { device = "ref" }), 1e-12)
        -- The other way: the largest number of the inverse of I + L, L_ij = k_i.k_j below the
        -- diagonal, where keys are as long as they come; and where they are of length 1.
        local function largest_inverse(keys)
            local n, A, most = 64, {}, 0
            local list = keys:totable()
            for i = 1, n do
                A[i] = {}
                for j = 1, i do
                    local sum = i == j and 1 or 0
                    for l = j, i - 1 do
                        local product = 0
                        for d = 1, 64 do
                            product = product + list[(i - 1) * 64 + d] * list[(l - 1) * 64 + d]
                        end
                        sum = sum - product * A[l][j]
                    end
                    A[i][j], most = sum, math.max(most, math.abs(sum))
                end
            end
            return most
        end
        local keys = numbers.tensor(4, 0, { 64, 1, 64 }, -1.7, 1.7)
        assert.is_true(largest_inverse(keys) > 1e10)
        assert.is_true(largest_inverse(op.l2norm(keys)) < 10)
    end)

    -- FLA#862: a path of its own for rules without a gate lost a part of dbeta. Here there is one
    -- path, and g = 0 is that rule: by hand without any gate, with gradients by differences.
    it("[report 6] with g = 0 is the rule without a gate, its gradients whole", function()
        local T, K, V = 7, 3, 2
        local x = inputs { T = T, K = K, V = V }
        x.g:fill(0)
        local k = op.l2norm(x.k)
        local function loss(keys, betas)
            local q, v, S = op.l2norm(x.q):totable(), x.v:totable(), x.h0:totable()
            local d_o, d_hT, sum = x.d_o:totable(), x.d_hT:totable(), 0
            for t = 0, T - 1 do
                for j = 1, V do
                    local error, out = v[t * V + j], 0
                    for i = 1, K do error = error - keys[t * K + i] * S[(i - 1) * V + j] end
                    for i = 1, K do
                        local at = (i - 1) * V + j
                        S[at] = S[at] + keys[t * K + i] * betas[t + 1] * error
                        out = out + q[t * K + i] * S[at]
                    end
                    sum = sum + d_o[t * V + j] * out * K ^ -0.5
                end
            end
            for i = 1, K * V do sum = sum + d_hT[i] * S[i] end
            return sum
        end
        local function differences(name)
            local lists, result = { k = k:totable(), beta = x.beta:totable() }, {}
            local list = lists[name]
            for i, value in ipairs(list) do
                list[i] = value + 1e-5
                local above = loss(lists.k, lists.beta)
                list[i] = value - 1e-5
                result[i] = (above - loss(lists.k, lists.beta)) / 2e-5
                list[i] = value
            end
            return result
        end
        local function gradients()
            local options = { h0 = x.h0 }
            local _, dk, _, _, dbeta = op.gdn_backward(op.l2norm(x.q), k, x.v, x.g, x.beta, x.d_o,
                x.d_hT, options)
            return dk, dbeta
        end
        local dk, dbeta = gradients()
        close("dk", dk, differences "k", 1e-8)
        close("dbeta", dbeta, differences "beta", 1e-8)
        x.g:fill(-0.1) -- a gate is seen
        dk, dbeta = gradients()
        far("dk", dk, differences "k", 1e-3)
        far("dbeta", dbeta, differences "beta", 1e-3)
    end)

    -- FLA#1070: the upper triangle of k k' was read without ever being written. Results and
    -- workspaces are NaN before each call here.
    it("[report 7] reads nothing that it has not written", function()
        for _, T in ipairs { 1, 63, 75, 130 } do
            local x = inputs { T = T, Hk = 2, Hv = 4, K = 7, V = 9, S = 1 }
            for name, t in pairs(run(x, { chunk = 64 })) do numbers.finite(name, t) end
            -- A NaN that is read does show, wherever it enters.
            for _, name in ipairs { "k", "v", "g", "beta", "h0" } do
                local list, kept = x[name]:totable(), x[name]
                list[1] = 0 / 0
                x[name] = tensor.from(list, kept:shape())
                assert.has_error(function() numbers.finite("hT", run(x, {}).hT) end)
                x[name] = kept
            end
        end
    end)

    -- FLA#624: twice as many value heads as key heads, in both passes.
    it("[report 10] with two value heads a key head is that with each key twice", function()
        local x = inputs { T = 65, Hk = 2, Hv = 4, K = 5, V = 3 }
        local grouped = run(x, {})
        local function with(map)
            local y = {}
            for name, t in pairs(x) do y[name] = t end
            for _, name in ipairs { "q", "k" } do
                local list, wide = x[name]:totable(), {}
                for t = 0, 64 do
                    for h = 0, 3 do
                        for i = 1, 5 do wide[#wide + 1] = list[(t * 2 + map(h)) * 5 + i] end
                    end
                end
                y[name] = tensor.from(wide, { 65, 4, 5 })
            end
            local result = run(y, {})
            for _, name in ipairs { "dq", "dk" } do -- the gradient of a copy goes to its source
                local list, sum = result[name]:totable(), {}
                for i = 1, 65 * 2 * 5 do sum[i] = 0 end
                for t = 0, 64 do
                    for h = 0, 3 do
                        for i = 1, 5 do
                            local at = (t * 2 + map(h)) * 5 + i
                            sum[at] = sum[at] + list[(t * 4 + h) * 5 + i]
                        end
                    end
                end
                result[name] = tensor.from(sum, { 65, 2, 5 })
            end
            return result
        end
        for name, t in pairs(grouped) do numbers.finite(name, t) end
        same(with(function(h) return math.floor(h / 2) end), grouped, 1e-13)
        local tiled = with(function(h) return h % 2 end)
        for _, name in ipairs { "o", "dq", "dk", "dbeta" } do
            far(name, tiled[name], grouped[name], 0.01)
        end
    end)

    -- ollama#15865: a state kept in 16 bits between tokens.
    it("[report 17] keeps its state in full between tokens", function()
        local T = 300
        local x = inputs { T = T, K = 6, V = 4, g_low = -0.01 }
        local whole = run(x, {})
        local function token_by_token(dtype, kept)
            local function cast(t, to) return tensor.from(t:totable(), t:shape(), to) end
            local state, o = cast(x.h0, dtype), {}
            for t = 0, T - 1 do
                local rows = {}
                for _, name in ipairs { "q", "k", "v", "g", "beta" } do
                    rows[name] = cast(numbers.rows(x[name], t, 1), dtype)
                end
                local out
                out, state = op.gdn(rows.q, rows.k, rows.v, rows.g, rows.beta,
                    { h0 = state, l2norm = true })
                state = cast(cast(state, kept), dtype)
                for _, value in ipairs(out:totable()) do o[#o + 1] = value end
            end
            return o
        end
        close("f64", token_by_token("f64", "f64"), whole.o, 1e-13)
        close("f32", token_by_token("f32", "f32"), whole.o, 1e-5)
        far("a state of bf16", token_by_token("f32", "bf16"), whole.o, 1e-3)
    end)

    -- MEG#5396: packed and dense differed in the last bit.
    for _, dtype in ipairs { "f64", "f32" } do
        it("[report 19] gives a packed document the bits of its dense run: " .. dtype, function()
            local x = inputs { T = 40, Hk = 2, Hv = 4, K = 5, V = 3, S = 2 }
            for name, t in pairs(x) do x[name] = tensor.from(t:totable(), t:shape(), dtype) end
            local packed = run(x, { cu_seqlens = { 0, 17, 40 } })
            local dense = {}
            for name, t in pairs(x) do
                dense[name] = t:shape()[1] == 40 and numbers.rows(t, 0, 17) or numbers.rows(t, 0, 1)
            end
            dense = run(dense, {})
            for _, name in ipairs { "o", "dq", "dk", "dv", "dg", "dbeta" } do
                close(name, numbers.rows(packed[name], 0, 17), dense[name], 0)
            end
            local nudged = numbers.rows(packed.o, 0, 17):totable() -- one bit is seen
            nudged[1] = nudged[1] * (1 + (dtype == "f64" and 2 ^ -52 or 2 ^ -23))
            far("one bit", nudged, dense.o, 0)
        end)
    end

    -- FLA#733: a crash at a million tokens. K = V = 1 is a recurrence of one number.
    it("[report 29] runs 2^20 tokens", function()
        local T = 2 ^ 20
        local x = inputs { T = T, K = 1, V = 1, g_low = -1e-4 }
        x.k:fill(0.1)
        local o, hT = op.gdn(x.q, x.k, x.v, x.g, x.beta, { h0 = x.h0, chunk = 16 })
        local q, v, g, beta = x.q:totable(), x.v:totable(), x.g:totable(), x.beta:totable()
        local function by_hand(steps)
            local S = x.h0:totable()[1]
            for t = 1, steps do
                S = math.exp(g[t]) * S
                S = S + 0.1 * beta[t] * (v[t] - 0.1 * S)
            end
            return S
        end
        local state = by_hand(T)
        assert.is_true(math.abs(hT:totable()[1] - state) <= 1e-12 * math.abs(state))
        assert.is_true(math.abs(o:totable()[T] - q[T] * state) <= 1e-12)
        assert.is_true(math.abs(by_hand(T - 1) - state) > 1e-9) -- the last token counts
    end)
end)

-- How far a chain of summaries is from the rule, when what is handed on is kept in fewer bits.
describe("a chain over ranks", function()
    local K, V, PART = 4, 3, 8

    -- x rounded to `bits` bits of mantissa, the first one included.
    local function rounded(list, bits)
        local result = {}
        for i, x in ipairs(list) do
            local _, exponent = math.frexp(x)
            local unit = 2 ^ (exponent - bits)
            result[i] = math.floor(x / unit + 0.5) * unit
        end
        return result
    end

    -- The last state by the summaries of W ranks: S = M S + B, then what `keep` leaves of M and S.
    local function chain(W, dtype, keep)
        local x = inputs { T = W * PART, K = K, V = V, g_low = -0.01 }
        x.beta:fill(0.1)
        local _, hT = op.gdn(x.q, x.k, x.v, x.g, x.beta, { h0 = x.h0, l2norm = true })
        local S = x.h0:totable()
        for r = 0, W - 1 do
            local function part(t)
                t = numbers.rows(t, r * PART, PART)
                return tensor.from(t:totable(), t:shape(), dtype)
            end
            local M, B = op.gdn_summary(part(x.k), part(x.v), part(x.g), part(x.beta),
                { l2norm = true })
            M, B = keep(M:totable(), "M"), B:totable()
            local state = {}
            for i = 0, K - 1 do
                for j = 1, V do
                    local sum = B[i * V + j]
                    for l = 0, K - 1 do sum = sum + M[i * K + l + 1] * S[l * V + j] end
                    state[i * V + j] = sum
                end
            end
            S = keep(state, "S")
        end
        return numbers.error(S, hT:totable())
    end

    local function all(list) return list end
    local function f32(list) return rounded(list, 24) end

    -- FLA#740: transitions of bf16.
    it("[report 41] keeps transitions in full", function()
        for _, W in ipairs { 2, 4, 8 } do
            assert.is_true(chain(W, "f64", all) <= 1e-14)
            assert.is_true(chain(W, "f32", f32) <= 1e-6)
            local bf16 = chain(W, "f32", function(list, what)
                return what == "M" and rounded(list, 8) or list
            end)
            assert.is_true(bf16 > 1e-3)
        end
    end)

    -- FLA#1179: states rounded to 11 bits at each hop.
    it("[report 42] does not round at a hop: an error of tf32 would grow with the ranks", function()
        local function tf32(list) return rounded(list, 11) end
        assert.is_true(chain(64, "f32", f32) <= 1e-6)
        assert.is_true(chain(64, "f32", tf32) > 100 * chain(64, "f32", f32))
        assert.is_true(chain(64, "f32", tf32) > chain(1, "f32", tf32))
    end)
end)

-- FLA#803, FLA#783: offsets that do not fit into 32 bits. Rows 2^30 numbers apart, as in a far
-- wider tensor: of 16 GiB of addresses only the pages that are used become memory.
it("[report 12] the rule reads rows that lie more than 2^31 numbers apart", function()
    local clib = require "clib"
    local C, ffi = clib.C, clib.ffi
    local T, K, V, STRIDE = 4, 3, 2, 2 ^ 30
    if not pcall(function() return ffi.C.mmap end) then
        ffi.cdef "void *mmap(void *, size_t, int, int, int, long); int munmap(void *, size_t);"
    end
    local bytes = 4 * (T * STRIDE)
    -- Readable and writable; private, anonymous, without a reserve (Linux).
    local block = ffi.C.mmap(nil, bytes, 3, 0x4022, -1, 0)
    assert.is_true(ffi.cast("intptr_t", block) ~= -1, "no 16 GiB of addresses")
    local x = inputs { T = T, K = K, V = V }
    local function rule(stride, base, change)
        local rows = ffi.cast("float *", base)
        for _, field in ipairs { { x.q, 0, K }, { x.k, 3, K }, { x.v, 6, V } } do
            for i, value in ipairs(field[1]:totable()) do
                local row, column = math.floor((i - 1) / field[3]), (i - 1) % field[3]
                rows[row * stride + field[2] + column] = value
            end
        end
        rows[(T - 1) * stride + 6] = rows[(T - 1) * stride + 6] + (change or 0)
        local function list(t) return ffi.new("float[?]", #t:totable(), t:totable()) end
        local g, beta, o = list(x.g), list(x.beta), ffi.new("float[?]", T * V)
        local spans = ffi.new("cpl_span[1]", { { length = T } })
        local p = ffi.new("cpl_gdn", { q = rows, k = rows + 3, v = rows + 6, g = g, beta = beta,
            o = o, spans = spans, n_spans = 1, n_rows = T, key_heads = 1, value_heads = 1,
            key_dim = K, value_dim = V, q_stride = stride, k_stride = stride, v_stride = stride,
            chunk = 64, scale = 1 })
        local kernels = C.cpl_kernels_for("cpu", C.CPL_F32)
        local workspace = ffi.new("double[?]", tonumber(kernels.gdn_workspace(p)) / 8 + 16)
        local at = math.ceil(tonumber(ffi.cast("uintptr_t", workspace)) / 64) * 64
        p.workspace = ffi.cast("void *", at)
        kernels.gdn(p)
        local result = {}
        for i = 1, T * V do result[i] = o[i - 1] end
        return result, workspace
    end
    local dense = rule(8, ffi.new("float[32]"))
    assert.is_true((T - 1) * STRIDE > 2 ^ 31)
    close("o", rule(STRIDE, block), dense, 0)
    far("another last row", rule(STRIDE, block, 1), dense, 1e-3)
    ffi.C.munmap(block, bytes)
end)

describe("the summary that starts somewhere", function()
    for _, device in ipairs { "ref", "cpu" } do
        it(("on %s ends where the rule ends, forward and back"):format(device), function()
            local x = inputs { T = 70, Hk = 2, Hv = 4, K = 5, V = 3, S = 3, g_low = -0.1 }
            local options = { cu_seqlens = { 0, 30, 30, 70 }, device = device, l2norm = true,
                h0 = x.h0 }
            local result = run(x, { cu_seqlens = options.cu_seqlens, device = device })
            local _, hT = op.gdn_summary(x.k, x.v, x.g, x.beta, options)
            close("hT", hT, result.hT, 1e-13)
            options.h0, options.d_hT = nil, x.d_hT
            local dh0 = op.gdn_summary_backward(x.q, x.k, x.v, x.g, x.beta, x.d_o, options)
            close("dh0", dh0, result.dh0, 1e-13)
            options.d_hT = nil
            far("without d_hT", op.gdn_summary_backward(x.q, x.k, x.v, x.g, x.beta, x.d_o, options),
                result.dh0, 1e-3)
        end)
    end
end)

describe("the convolution", function()
    -- FLA#1140, FLA#1141, FLA#714: sequences shorter than the kernel, whose init is in part still
    -- what comes out; the gradient of the init with and without bias.
    for _, T in ipairs { 1, 2, 3, 4, 9 } do
        it(("[report 27] of %d rows after an init equals a run over both"):format(T), function()
            local init, x = numbers.tensor(5, 0, { 1, 3, 6 }), numbers.tensor(5, 1, { T, 6 })
            local w, dy = numbers.tensor(5, 2, { 6, 4 }), numbers.tensor(5, 3, { T, 6 })
            local list = init:totable()
            for _, value in ipairs(x:totable()) do list[#list + 1] = value end
            local joined = tensor.from(list, { T + 3, 6 })
            local zeros = {}
            for i = 1, 18 do zeros[i] = 0 end
            for _, value in ipairs(dy:totable()) do zeros[#zeros + 1] = value end
            local y, last = op.conv1d(x, w, { init = init })
            close("y", y, numbers.rows(op.conv1d(joined, w), 3, T), 1e-15)
            close("last rows", tensor.from(last:totable(), { 3, 6 }), numbers.rows(joined, T, 3), 0)
            local dx, dw, _, dinit = op.conv1d_backward(x, w, dy, { init = init })
            local dx_both, dw_both = op.conv1d_backward(joined, w, tensor.from(zeros, { T + 3, 6 }))
            close("dx", dx, numbers.rows(dx_both, 3, T), 1e-15)
            dinit = tensor.from(dinit:totable(), { 3, 6 })
            close("dinit", dinit, numbers.rows(dx_both, 0, 3), 1e-15)
            close("dw", dw, dw_both, 1e-14)
            far("without the init", (op.conv1d(x, w)), y, 1e-3)
            local off = dinit:totable() -- the gradient one slot on
            table.insert(off, 1, table.remove(off))
            far("dinit, one on", off, numbers.rows(dx_both, 0, 3), 1e-3)
        end)
    end

    -- FLA#955: the weight's gradient of a batch and of packed sequences at once.
    it("[report 22] of two packed sequences has the sum of their weights' gradients", function()
        local x, w = numbers.tensor(6, 0, { 24, 5 }), numbers.tensor(6, 1, { 5, 4 })
        local dy = numbers.tensor(6, 2, { 24, 5 })
        local function dw(first, n, cu)
            return (select(2, op.conv1d_backward(numbers.rows(x, first, n), w,
                numbers.rows(dy, first, n), { cu_seqlens = cu })))
        end
        local packed = dw(0, 24, { 0, 12, 24 })
        close("dw", packed, op.axpby(dw(0, 12), dw(12, 12)), 1e-14)
        far("dw of one sequence", dw(0, 24), packed, 1e-3)
        far("dw, counted twice", op.axpby(packed, packed), packed, 0.5)
    end)

    -- FLA#615: fewer rows than a block, channels that are no multiple of one. What lies around the
    -- rows is NaN, and guards stand beside those that are written.
    it("[report 28] touches nothing beside its rows", function()
        for _, n in ipairs { 1, 2, 3, 5 } do
            for _, channels in ipairs { 1, 5, 13, 17 } do
                local call = { op = "conv1d", spans = { { 1, n } },
                    scalars = { n_rows = n + 2, channels = channels, width = 4 },
                    arrays = { x = { rows = n + 2, width = channels, stride = channels + 3 },
                        weight = { rows = channels, width = 4 } },
                    outputs = { y = { rows = n + 2, width = channels } } }
                raw.compare(call, 1e-13, 2e-6)
                local right = raw.run(call, "cpu", "f64")
                call.scalars.x_stride = channels + 2 -- what lies beside the rows is seen
                far("y", raw.run(call, "cpu", "f64").y, right.y, 1)
            end
        end
    end)

    -- MEG#4226: no boundaries at all.
    it("[report 53] without boundaries takes all rows as one sequence", function()
        local x, w = numbers.tensor(8, 0, { 9, 5 }), numbers.tensor(8, 1, { 5, 4 })
        local dy = numbers.tensor(8, 2, { 9, 5 })
        local function run_conv(options)
            return (op.conv1d(x, w, options)), (op.conv1d_backward(x, w, dy, options))
        end
        local y, dx = run_conv(nil)
        local y_one, dx_one = run_conv { cu_seqlens = { 0, 9 } }
        close("y", y, y_one, 0)
        close("dx", dx, dx_one, 0)
        local y_two, dx_two = run_conv { cu_seqlens = { 0, 4, 9 } }
        far("y of two", y_two, y, 1e-3)
        far("dx of two", dx_two, dx, 1e-3)
    end)
end)

-- maxtext#5295: the norm's gradient at a row of zeros is that of x / sqrt(eps), not 0 / 0.
it("[report 16] l2norm of a row of zeros is 0, with a finite gradient", function()
    local x = tensor.from({ 0, 0, 0, 0.3, -0.4, 0 }, { 2, 1, 3 })
    local dy = tensor.from({ 1, -2, 3, 1, 1, 1 }, { 2, 1, 3 })
    for _, device in ipairs { "ref", "cpu" } do
        local y = op.l2norm(x, { device = device }):totable()
        assert.same({ 0, 0, 0 }, { y[1], y[2], y[3] })
        local dx = op.l2norm_backward(x, dy, { device = device })
        numbers.finite("dx", dx)
        local list = dx:totable()
        close("dx of zeros", { list[1], list[2], list[3] }, { 1000, -2000, 3000 }, 1e-12)
    end
    -- The other way, max(|x|, eps) outside of the root: x / |x| has no gradient there.
    local norm = 0
    assert.is_true(0 / norm ~= 0 / norm)
end)
