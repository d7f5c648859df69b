-- What depends on where a token stands, on a device against the references: RoPE, the convolution
-- over spans, and the loss.
local clib = require "clib"
local compute = require "spec.support.cuda_compute"
local ffi = clib.ffi

local random = compute.random(29)
local function nothing() return -7 end

local function array(n, values, more)
    local t = { n = n, values = values or random }
    for name, value in pairs(more or {}) do t[name] = value end
    return t
end

local function rope(size, more)
    local n, heads, width, rotary, stride = unpack(size)
    local case = {
        arrays = {
            x = array(n * stride),
            y = array(n * stride, nothing),
            positions = array(n, function(i) return i * 77777 end, { type = "i64" }),
        },
        numbers = { n_rows = n, heads = heads, width = width, rotary_dim = rotary,
            x_stride = stride, y_stride = stride, theta = 1e6 },
        -- Angles of up to 8e5 are rounded to 6e-11, and the same angle it is on a GPU only as far
        -- as its pow gives the same bits.
        bounds = { f64 = 2e-10, f32 = 3e-7, bf16 = 2 ^ -8 },
    }
    for name, value in pairs(more or {}) do case.numbers[name] = value end
    return case
end

-- Spans with rows before, between and after them, an empty one, and one of a single row.
local lengths = { { 3, 5 }, { 8, 0 }, { 8, 1 }, { 10, 87 } }
local n_rows = 100 -- of several tiles, and chunks of sums

local function spans(count)
    return array(4 * count, function(i)
        local span = lengths[math.floor(i / 4) + 1]
        return ({ 0, 0, span[1], span[2] })[i % 4 + 1]
    end, { type = "i64" })
end

local function conv1d(channels, width, options)
    local n = options.n_spans or #lengths
    local stride = channels + (options.more or 0)
    local halo_rows = n * (width - 1)
    local arrays = {
        x = array(n_rows * stride, random, { shift = options.shift }),
        weight = array(channels * width),
        bias = not options.bare and array(channels) or nil,
        halo = not options.bare and array(halo_rows * channels) or nil,
        spans = spans(n),
    }
    local numbers = { n_spans = n, n_rows = n_rows, channels = channels, width = width,
        x_stride = stride, silu = not options.bare }
    if options.backward then
        arrays.dy = array(n_rows * channels)
        arrays.dx = array(n_rows * stride, nothing)
        arrays.dhalo = not options.bare and array(halo_rows * channels, nothing) or nil
        arrays.grad_weight = array(channels * width, random, { type = "wide" })
        arrays.grad_bias = not options.bare and array(channels, random, { type = "wide" }) or nil
        numbers.dx_stride = stride
    else
        arrays.y = array(n_rows * channels, nothing)
    end
    return { arrays = arrays, numbers = numbers }
end

local function cross_entropy(n, vocab, options)
    options = options or {}
    local case = {
        arrays = {
            logits = array(n * vocab, options.values or function() return 8 * random() end),
            labels = array(n, function(i) return i % 3 == 1 and -1 or i % vocab end,
                { type = "i32" }),
            dlogits = array(n * vocab, nothing),
            loss_sum = array(1, nothing, { type = "f64" }),
        },
        numbers = { n_rows = n, vocab = vocab, grad_scale = 0.25 },
    }
    if options.scale then
        case.arrays.scale = array(1, function() return options.scale end, { type = "f64" })
    end
    if options.in_place then case.arrays.dlogits = { same_as = "logits" } end
    if options.no_gradient then case.arrays.dlogits = nil end
    return case
end

-- Of f32 and bf16 the exponentials are those of f32; their sum and the loss are in double.
local loss_bounds = { f64 = { f64 = 1e-13 }, f32 = { f64 = 1e-6, f32 = 1e-6 },
    bf16 = { f64 = 1e-6, bf16 = 2 ^ -8 } }

compute.describe({ describe, it, pending }, "tokens", function(device, each)
    each("turned by their positions and back", function(dtype, way)
        for _, size in ipairs { { 0, 2, 8, 8, 16 }, { 1, 1, 2, 2, 2 }, { 11, 3, 32, 16, 104 },
            { 4, 2, 9, 6, 18 }, { 3, 2, 8, 0, 16 }, { 2, 1, 24, 16, 24 } } do
            compute.try(device, "rope", rope(size), dtype, way)
            compute.try(device, "rope", rope(size, { inverse = true }), dtype, way)
            local in_place = rope(size)
            in_place.arrays.y = { same_as = "x" }
            compute.try(device, "rope", in_place, dtype, way)
        end
    end)

    for _, width in ipairs { 1, 3, 4 } do
        each(("convolved by %d taps"):format(width), function(dtype, way)
            for _, case in ipairs { { 16, { more = 8 } }, { 5, { shift = 1 } },
                { 8, { bare = true } }, { 3, { n_spans = 0 } } } do
                local channels, options = unpack(case)
                options.backward = false
                compute.try(device, "conv1d", conv1d(channels, width, options), dtype, way)
                options.backward = true
                compute.try(device, "conv1d_backward", conv1d(channels, width, options), dtype, way)
            end
        end)
    end

    each("convolved in 70,000 sequences of one token", function(dtype, way)
        if dtype ~= "f32" then return end
        local n = 70000
        compute.try(device, "conv1d", {
            arrays = {
                x = array(n), weight = array(4), y = array(n, nothing),
                spans = array(4 * n, function(i)
                    return ({ 0, 0, math.floor(i / 4), 1 })[i % 4 + 1]
                end, { type = "i64" }),
            },
            numbers = { n_spans = n, n_rows = n, channels = 1, width = 4, x_stride = 1,
                silu = true },
        }, dtype, way)
    end)

    each("judged by their labels", function(dtype, way)
        for _, size in ipairs { { 0, 5 }, { 1, 1 }, { 7, 3 }, { 5, 40 }, { 4, 1037 } } do
            for _, options in ipairs { {}, { in_place = true }, { no_gradient = true },
                { scale = -3 }, { scale = -3, in_place = true } } do
                local case = cross_entropy(size[1], size[2], options)
                case.bounds = loss_bounds[dtype]
                compute.try(device, "cross_entropy", case, dtype, way)
            end
        end
    end)

    -- Callers whose results have a place of their own bring none: layers and the loss of a stack.
    each("in need of a workspace only where a result takes the place of an input",
        function(dtype)
            local code = clib.dtypes[dtype]
            local function bytes(op, fields, is_beside)
                local p = ffi.new("cpl_" .. op, fields)
                local at, other = ffi.cast("void *", 4096), ffi.cast("void *", 8192)
                if op == "cross_entropy" then
                    p.logits, p.dlogits = at, is_beside and other or at
                else
                    p.dy, p.dx, p.grad_weight = at, is_beside and other or at, other
                end
                return tonumber(device.lib[("cpl_cuda_%s_workspace"):format(op)](p, code))
            end
            for _, width in ipairs { 1, 3, 300 } do
                local loss, norm = { n_rows = 700, vocab = width }, { n_rows = 700, width = width,
                    x_stride = width, dy_stride = width, dx_stride = width }
                assert.equal(0, bytes("cross_entropy", loss, true))
                assert.equal(0, bytes("rms_norm_backward", norm, true))
                assert.equal(700 * 8, bytes("cross_entropy", loss, false))
                assert.is_true(bytes("rms_norm_backward", norm, false) >= 21 * width * 4)
            end
        end)

    for name, bad in pairs { NaN = 0 / 0, inf = 1 / 0, ["-inf"] = -1 / 0 } do
        each(("judged where a logit is %s"):format(name), function(dtype, way)
            local function values(i) return i == 5 and bad or 1 end
            local case = cross_entropy(3, 24, { values = values })
            case.bounds = loss_bounds[dtype]
            compute.try(device, "cross_entropy", case, dtype, way)
        end)
    end
end)
