--- The kernels of the delta rule on a device against the reference on the host: the same numbers,
-- rounded to the device's dtype, through both. Rows have guards between them, and what a kernel
-- writes starts as NaN.
-- @module spec.support.gdn_device
local bit = require "bit"
local clib = require "clib"
local numbers = require "spec.kernels.numbers"
local C, ffi = clib.C, clib.ffi

for _, op in ipairs { "gdn", "gdn_backward", "gdn_summary", "gdn_summary_backward" } do
    ffi.cdef((([[
        int cpl_cuda_OP(const cpl_OP *p, int32_t dtype, int32_t way, cpl_cuda_stream stream);
        size_t cpl_cuda_OP_workspace(const cpl_OP *p, int32_t dtype);
    ]]):gsub("OP", op)))
end
ffi.cdef "const char *cpl_cuda_gdn_refusal(const cpl_gdn *p, int32_t dtype);"

local M = {}

local ways = { best = 0, naive = 1 }
local GUARD = 2 ^ 100 -- a number of every dtype

-- ---- numbers of every dtype ---------------------------------------------------------------------

local word = ffi.new "union { float x; uint32_t bits; }"

local function to_bf16(x)
    word.x = x
    if word.x ~= word.x then return 0x7fc0 end
    local odd = bit.band(bit.rshift(word.bits, 16), 1)
    return bit.rshift(ffi.cast("uint32_t", word.bits + 0x7fff + odd), 16)
end

local function from_bf16(bits)
    word.bits = bit.lshift(bits, 16)
    return word.x
end

local function same(x) return x end

local dtypes = {
    f64 = { ctype = "double[?]", size = 8, put = same, get = same },
    f32 = { ctype = "float[?]", size = 4, put = same, get = same },
    bf16 = { ctype = "uint16_t[?]", size = 2, put = to_bf16, get = from_bf16, wide = "f32" },
}

-- ---- arrays ----------------------------------------------------------------------------------

-- n rows of `width` numbers and, behind each, `pad` guards, in a dtype and in double.
local function array(dtype, rows, width, pad)
    local stride = width + pad
    local n = rows * stride
    local self = { rows = rows, width = width, stride = stride, n = n, dtype = dtypes[dtype] }
    self.data = ffi.new(self.dtype.ctype, math.max(n, 1))
    self.exact = ffi.new("double[?]", math.max(n, 1))
    return self
end

local function set(a, i, x)
    a.data[i] = a.dtype.put(x)
    a.exact[i] = a.dtype.get(a.data[i])
end

local function is_inside(a, i) return i % a.stride < a.width end

local function input(case, j, dtype, rows, width, pad, low, high)
    local a = array(dtype, rows, width, pad)
    numbers.each(case.seed or 7, j, a.n, low, high, function(i, x)
        set(a, i - 1, is_inside(a, i - 1) and x or 0 / 0)
    end)
    return a
end

local function output(dtype, rows, width, pad)
    local a = array(dtype, rows, width, pad)
    for i = 0, a.n - 1 do set(a, i, is_inside(a, i) and 0 / 0 or GUARD) end
    return a
end

-- What lies inside of an array's rows; fails where a guard is gone.
local function inside(name, a, data, get)
    local list = {}
    for i = 0, a.n - 1 do
        local x = get(data[i])
        if is_inside(a, i) then
            list[#list + 1] = x
        elseif x ~= GUARD then
            error(("%s: the guard at %d was overwritten"):format(name, i))
        end
    end
    return list
end

-- ---- a case ------------------------------------------------------------------------------------

local function end_of(spans)
    local rows = 0
    for _, span in ipairs(spans) do rows = math.max(rows, span[1] + span[2]) end
    return rows
end

local function fill(case)
    case.Hk, case.Hv = case.Hk or 1, case.Hv or case.Hk or 1
    case.T, case.S = case.T or end_of(case.spans), #case.spans
    case.chunk, case.pad = case.chunk or 64, case.pad or 0
    case.g_low, case.g_high = case.g_low or -0.5, case.g_high or 0
    return case
end

--- All arrays that the four ops may read, by name; `exact` of each is what it holds.
function M.inputs(case, dtype)
    fill(case)
    local wide, T, pad = dtypes[dtype].wide or dtype, case.T, case.pad
    local keys, values = case.Hk * case.K, case.Hv * case.V
    local size, norm = case.Hv * case.K * case.V, (3 / case.K) ^ 0.5
    local x = {
        q = input(case, 0, dtype, T, keys, pad, -norm, norm),
        k = input(case, 1, dtype, T, keys, pad, -norm, norm),
        v = input(case, 2, dtype, T, values, pad, -1, 1),
        g = input(case, 3, wide, T, case.Hv, 0, case.g_low, case.g_high),
        beta = input(case, 4, wide, T, case.Hv, 0, 0, 1),
        state_in = input(case, 5, wide, case.S, size, 0, -1, 1),
        d_o = input(case, 6, dtype, T, values, 0, -1, 1),
        d_state_out = input(case, 7, wide, case.S, size, 0, -1, 1),
    }
    if case.without_states then x.state_in, x.d_state_out = nil, nil end
    for i, g in pairs(case.gates or {}) do set(x.g, i, g) end
    return x
end

local function outputs(case, op, dtype)
    local wide, T, pad = dtypes[dtype].wide or dtype, case.T, case.pad
    local keys, values = case.Hk * case.K, case.Hv * case.V
    local function state(width)
        return output(wide, case.S, case.Hv * case.K * width, 0)
    end
    if op == "gdn" then
        return { o = output(dtype, T, values, 0), state_out = state(case.V) }
    elseif op == "gdn_summary" then
        return { transition = state(case.K), offset = state(case.V) }
    elseif op == "gdn_summary_backward" then
        return { offset = state(case.V) }
    end
    return {
        dq = output(dtype, T, keys, pad), dk = output(dtype, T, keys, pad),
        dv = output(dtype, T, values, pad), dg = output(wide, T, case.Hv, 0),
        dbeta = output(wide, T, case.Hv, 0), d_state_in = state(case.V),
    }
end

local inner = { gdn_backward = "forward", gdn_summary = "gdn", gdn_summary_backward = "gdn" }
local own = {
    gdn = {}, gdn_summary = {}, gdn_backward = { d_o = true, d_state_out = true },
    gdn_summary_backward = { d_o = true, d_state_out = true },
}

-- The struct of an op; at(array) is where its memory lies, spans where the spans are.
local function struct(case, op, x, y, at, spans)
    local p = ffi.new("cpl_" .. op)
    local gdn = inner[op] and p[inner[op]] or p
    for name, a in pairs(x) do
        if name:sub(1, 2) ~= "d_" then
            gdn[name] = ffi.cast("void *", at(a))
        elseif own[op][name] then
            p[name] = ffi.cast("void *", at(a))
        end
    end
    for name, a in pairs(y) do
        p[name] = ffi.cast("void *", at(a))
        local stride = ({ dq = true, dk = true, dv = true })[name] and name .. "_stride"
        if stride then p[stride] = a.stride end
    end
    gdn.spans, gdn.n_spans, gdn.n_rows = ffi.cast("void *", spans), case.S, case.T
    gdn.key_heads, gdn.value_heads, gdn.key_dim, gdn.value_dim = case.Hk, case.Hv, case.K, case.V
    gdn.q_stride, gdn.k_stride, gdn.v_stride = x.q.stride, x.k.stride, x.v.stride
    gdn.chunk, gdn.scale = case.chunk, case.K ^ -0.5
    return p
end

local function spans_of(case)
    local spans = ffi.new("cpl_span[?]", math.max(case.S, 1))
    for i, span in ipairs(case.spans) do
        spans[i - 1].slot, spans[i - 1].length = span[1], span[2]
    end
    return spans
end

-- What the reference makes of a case, by name.
local function reference(case, op, x, y)
    local spans = spans_of(case)
    local p = struct(case, op, x, y, function(a) return a.exact end, spans)
    local table_ = C.cpl_kernels_for("ref", C.CPL_F64)
    local workspace = ffi.new("double[?]", tonumber(table_[op .. "_workspace"](p)) / 8 + 1)
    p.workspace = workspace
    table_[op](p)
    local results = {}
    for name, a in pairs(y) do results[name] = inside(name, a, a.exact, same) end
    return results
end

local function upload_spans(device, case)
    return device:upload(spans_of(case), math.max(case.S, 1) * ffi.sizeof "cpl_span")
end

-- A case on a device: launch(stream) enqueues the op, read() returns what it wrote, by name.
local function prepare(device, case, op, dtype, way)
    local x, y = M.inputs(case, dtype), outputs(case, op, dtype)
    local memory = {}
    local function at(a)
        memory[a] = memory[a] or device:upload(a.data, a.n * a.dtype.size)
        return memory[a]
    end
    local lib, code = device.lib, clib.dtypes[dtype]
    local spans = upload_spans(device, case)
    local p = struct(case, op, x, y, at, spans)
    p.workspace = device:alloc(tonumber(lib["cpl_cuda_" .. op .. "_workspace"](p, code)))
    local function launch(stream)
        device:check(lib["cpl_cuda_" .. op](p, code, ways[way], stream), 2)
    end
    local function read()
        local results = {}
        for name, a in pairs(y) do
            local data = device:download(memory[a], a.n * a.dtype.size, a.dtype.ctype)
            results[name] = inside(name, a, data, a.dtype.get)
        end
        return results
    end
    return { launch = launch, read = read, spans = spans,
        expected = function(of) return reference(of, op, x, y) end }
end

--- Runs an op on a device and returns what it wrote, by name, beside what the reference says.
-- @tparam table device of spec.support.cuda_device
-- @tparam table case spans = { { slot, length }, .. }, K, V; Hk, Hv, T, chunk, pad, seed, g_low,
--   g_high, gates = { [index] = g }, without_states
function M.run(device, case, op, dtype, way)
    local prepared = prepare(device, case, op, dtype, way)
    prepared.launch(nil)
    local results = prepared.read()
    device:free_all()
    return results, prepared.expected(case)
end

--- The same where the op is captured with the spans of a case and replayed with those of `other`,
-- by chunks.
function M.replay(device, case, other, op, dtype)
    local prepared = prepare(device, case, op, dtype, "best")
    local graph = device:capture(prepared.launch)
    graph.replay()
    prepared.read()
    fill(other)
    device:write(prepared.spans, spans_of(other), other.S * ffi.sizeof "cpl_span")
    graph.replay()
    local results = prepared.read()
    graph.close()
    device:free_all()
    return results, prepared.expected(other)
end

--- Carries out an op over a span that ends beyond the rows, and returns what the emulator says.
function M.fault(device, case, op, dtype, way)
    local prepared = prepare(device, case, op, dtype, way)
    local spans = spans_of(case)
    spans[0].length = spans[0].length + 1
    device:write(prepared.spans, spans, case.S * ffi.sizeof "cpl_span")
    local why = device:fault_of(function() prepared.launch(nil) end)
    device:free_all()
    return why
end

--- Holds what a device makes of a case against the reference.
-- @tparam number bound of the largest difference over the largest number of each result
function M.check(device, case, op, dtype, way, bound)
    local results, expected = M.run(device, case, op, dtype, way)
    local wrong = {}
    for name, list in pairs(results) do
        local distance = numbers.error(list, expected[name])
        if distance > bound then
            wrong[#wrong + 1] = ("%s %s %s %s: off by %g"):format(op, dtype, way, name, distance)
        end
    end
    table.sort(wrong)
    if #wrong > 0 then error(table.concat(wrong, "\n"), 2) end
end

--- What the launcher says that it does not take, or nil.
function M.refusal(device, case, dtype)
    local p = ffi.new "cpl_gdn"
    p.key_dim, p.value_dim, p.key_heads, p.value_heads, p.chunk = case.K, case.V, 1, 1, case.chunk
    local why = device.lib.cpl_cuda_gdn_refusal(p, clib.dtypes[dtype])
    return why ~= nil and ffi.string(why) or nil
end

return M
