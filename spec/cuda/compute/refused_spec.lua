-- What a device's kernels do not take: sizes and dtypes, in a sentence before anything is launched,
-- and by the launch itself.
local cases = require("spec.support.edge_cases").cases
local clib = require "clib"
local compute = require "spec.support.cuda_compute"
local cuda_device = require "spec.support.cuda_device"
local numbers = require "spec.kernels.numbers"
local on_device = require "spec.support.on_device"
local op = require "cplab.op"

local C, ffi = clib.C, clib.ffi
local it_there = on_device.it(it, pending)

ffi.cdef [[
const char *cpl_cuda_gdn_refusal(const cpl_gdn *p, int32_t dtype);
const char *cpl_cuda_attention_refusal(const cpl_attention *p, int32_t dtype);
]]

-- Ops by the sentence of kernels.h that is asked of them.
local ASKED = {
    gdn = { gdn = "", gdn_backward = "forward", gdn_summary = "gdn",
        gdn_summary_backward = "gdn" },
    attention = { attention = "", attention_backward = "forward" },
}

-- Their structs, with sizes that they take.
local function sizes(of)
    local p = ffi.new("cpl_" .. of)
    if of == "gdn" then
        p.key_dim, p.value_dim, p.key_heads, p.value_heads, p.chunk = 64, 64, 2, 4, 64
    else
        p.key_dim, p.value_dim, p.heads, p.kv_heads = 64, 64, 4, 2
    end
    return p
end

-- What is changed, and what is said.
local SIZES = {
    { "gdn", { key_dim = 257 },
        "gdn: a device takes key_dim and value_dim from 1 to 256, not 257 and 64" },
    { "gdn", { value_dim = 257 },
        "gdn: a device takes key_dim and value_dim from 1 to 256, not 64 and 257" },
    { "gdn", { value_dim = 0 },
        "gdn: a device takes key_dim and value_dim from 1 to 256, not 64 and 0" },
    { "gdn", { chunk = 65 }, "gdn: a device takes chunks of 1 to 64 rows, not 65" },
    { "gdn", { chunk = 0 }, "gdn: a device takes chunks of 1 to 64 rows, not 0" },
    { "gdn", { value_heads = 65536 },
        "gdn: a device takes 1 to 65535 value heads, a multiple of the key heads, not 65536 and "
        .. "2" },
    { "gdn", { value_heads = 3 },
        "gdn: a device takes 1 to 65535 value heads, a multiple of the key heads, not 3 and 2" },
    { "attention", { key_dim = 0 },
        "attention on a device takes heads of any width from 1 on, as many as a multiple of "
        .. "kv_heads; here are 4 heads, 2 kv_heads, widths 0 and 64" },
    { "attention", { kv_heads = 3 },
        "attention on a device takes heads of any width from 1 on, as many as a multiple of "
        .. "kv_heads; here are 4 heads, 3 kv_heads, widths 64 and 64" },
}

local DTYPES = {
    gdn = "gdn: a device takes f64, f32 and bf16, not the dtype of number %d",
    attention = "attention on a device takes f64, f32 and bf16, not the dtype of number %d",
}

local function refusal(device, of, p, code)
    local why = device.lib[("cpl_cuda_%s_refusal"):format(of)](p, code)
    return why ~= nil and ffi.string(why) or nil
end

-- A struct of an op whose sizes, in `inner`, are `p`.
local function struct_of(name, inner, p)
    local s = ffi.new("cpl_" .. name)
    if inner == "" then return p end
    s[inner] = p
    return s
end

local function describe_sizes(device)
    it("is said of sizes, and no op launches them", function()
        for _, row in ipairs(SIZES) do
            local of, change, said = unpack(row)
            local p = sizes(of)
            assert.is_nil(refusal(device, of, p, C.CPL_BF16))
            for name, value in pairs(change) do p[name] = value end
            assert.equal(said, refusal(device, of, p, C.CPL_BF16))
            if of == "gdn" then -- attention needs no such sizes: it has a thread for each of any
                for name, inner in pairs(ASKED.gdn) do
                    local launch = device.lib["cpl_cuda_" .. name]
                    for way = 0, 1 do
                        assert.equal(1, launch(struct_of(name, inner, p), C.CPL_F32, way, nil))
                    end
                end
            end
        end
    end)

    it("is said of dtypes", function()
        for of, said in pairs(DTYPES) do
            for _, dtype in ipairs { "i32", "i64" } do
                local code = clib.dtypes[dtype]
                assert.equal(said:format(tonumber(code)), refusal(device, of, sizes(of), code))
            end
        end
    end)
end

local without_numbers = { moe_group = true, moe_balance = true, step_factors = true }

local function describe_dtypes(device)
    for _, name in ipairs(compute.ops) do
        if cases[name] and not without_numbers[name] then
            it("of i32 is an error of the launch and touches nothing: " .. name, function()
                for _, case in ipairs(cases[name]) do
                    for _, way in ipairs { "best", "naive" } do
                        assert.equal(1, compute.misled(device, name, case, "i32", way))
                    end
                end
            end)
        end
    end
end

for _, kind in ipairs { "plain", "device" } do
    describe(("what kernels do not take, %s,"):format(kind), function()
        local device, why = cuda_device.open(kind)
        if not device then
            it("is refused", function() pending(why) end)
            return
        end
        describe_sizes(device)
        describe_dtypes(device)
    end)
end

describe("an op on a device", function()
    it("has all sentences of kernels.h in this spec", function()
        local file = assert(io.open(require("cplab.environment").root() .. "/kernels/kernels.h"))
        local text, n = file:read "*a", 0
        file:close()
        for name in text:gmatch "%(%*([%w_]+)_refusal%)" do
            assert.is_table(ASKED[name], name)
            n = n + 1
        end
        assert.equal(2, n)
    end)

    it_there("says them before it launches anything, and what it is", function()
        local function t(...) return numbers.tensor(1, 1, { ... }, 0, 1, "f32") end
        local q, v, g = t(2, 1, 257), t(2, 1, 3), t(2, 1)
        local there = { device = "cuda-emulated" }
        local calls = {
            gdn = { q, q, v, g, g, there }, gdn_summary = { q, v, g, g, there },
            gdn_backward = { q, q, v, g, g, v, t(1, 1, 257, 3), there },
            gdn_summary_backward = { q, q, v, g, g, v, there },
        }
        for name, arguments in pairs(calls) do
            local ok, said = pcall(op[name], unpack(arguments))
            assert.is_false(ok)
            assert.matches("op." .. name .. ": gdn: a device takes key_dim and value_dim from 1 to "
                .. "256, not 257 and 3", said, 1, true)
        end
    end)
end)
