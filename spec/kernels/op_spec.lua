-- The face of ops and tensors: what they give back, and that what they refuse is blamed on the
-- line of the call.
local op = require "cplab.op"
local tensor = require "cplab.tensor"

-- The error of f, which must begin with the line of this file that called.
local function message(f)
    local ok, text = pcall(f)
    assert.is_false(ok)
    local rest = text:match "^%.?/?spec/kernels/op_spec%.lua:%d+: (.*)$"
    if not rest then error("not blamed on the caller: " .. text, 2) end
    return rest
end

describe("a tensor", function()
    it("keeps the numbers and shape that it was given", function()
        for _, dtype in ipairs { "f64", "f32", "bf16", "i64", "i32" } do
            local t = tensor.from({ 1, 2, 3, -4, 5, 6 }, { 3, 2 }, dtype)
            assert.same({ 1, 2, 3, -4, 5, 6 }, t:totable())
            assert.same({ 3, 2 }, t:shape())
            assert.equal(dtype, t:dtype())
            assert.equal("[3, 2] " .. dtype, tostring(t))
        end
        assert.equal("f64", tensor.from({}, { 0, 3 }):dtype())
        assert.same({}, tensor.from({}, { 0, 3 }):totable())
    end)

    it("rounds to its dtype", function()
        assert.equal(1 + 2 ^ -23, tensor.from({ 1 + 2 ^ -23 }, { 1 }, "f32"):totable()[1])
        assert.equal(1, tensor.from({ 1 + 2 ^ -26 }, { 1 }, "f32"):totable()[1])
    end)

    it("starts as zeros, and copies are its own", function()
        local t = tensor.zeros({ 2, 2 }, "f32")
        assert.same({ 0, 0, 0, 0 }, t:totable())
        local copy = t:copy():fill(7)
        assert.same({ 7, 7, 7, 7 }, copy:totable())
        assert.same({ 0, 0, 0, 0 }, t:totable())
        local like = tensor.like(copy)
        assert.same({ 0, 0, 0, 0 }, like:totable())
        assert.equal("f32", like:dtype())
    end)

    it("refuses what does not fit", function()
        assert.equal("tensor.from: 3 numbers for shape [2, 2] f64 of 4",
            message(function() local _ = tensor.from({ 1, 2, 3 }, { 2, 2 }) end))
        assert.equal('tensor.from: entry 2 is "x", not a number',
            message(function() local _ = tensor.from({ 1, "x" }, { 2 }) end))
        assert.equal('tensor.zeros: unknown dtype "f23"; did you mean "f32"?',
            message(function() local _ = tensor.zeros({ 1 }, "f23") end))
        assert.equal("tensor.zeros: shape[2] must be an integer >= 0 (got -1)",
            message(function() local _ = tensor.zeros({ 1, -1 }) end))
        assert.equal("tensor: 7 dimensions, not 1 to 6",
            message(function() local _ = tensor.zeros({ 1, 1, 1, 1, 1, 1, 1 }) end))
        assert.equal("tensor.like: takes a tensor",
            message(function() local _ = tensor.like({}) end))
        assert.equal("tensor.fill: nil is not a number",
            message(function() local _ = tensor.zeros({ 1 }):fill() end))
    end)
end)

-- The kernels of the table, by the header.
local function kernel_names()
    local file = assert(io.open "kernels/kernels.h")
    local text = file:read("*a"):match "typedef struct cpl_kernels (%b{})"
    file:close()
    local names = {}
    for name in text:gmatch "void %(%*([%w_]+)%)" do names[#names + 1] = name end
    return names
end

-- Kernels that users know by another name.
local PUBLIC = { attention = "gqa", attention_backward = "gqa_backward" }
-- What has no gradient to speak of: an optimizer's step, a sort, a move, whose gradient moves the
-- other way, a state that goes on, whose gradient goes on by M', and a load and its loss, which has
-- its gradient beside it.
local NO_GRADIENT = {
    adamw = true, sgd = true, step_factors = true, moe_group = true, move_rows = true,
    gdn_carry = true, moe_load = true, moe_balance = true,
}

describe("the list of ops", function()
    it("has every kernel of the table, and each with its gradient", function()
        local names = kernel_names()
        assert.is_true(#names > 25)
        for _, name in ipairs(names) do
            name = PUBLIC[name] or name
            assert.is_function(op[name], name)
            local backward = name:find "_backward$" and name or name .. "_backward"
            if not NO_GRADIENT[name] then
                assert.is_function(op[backward], backward)
            end
        end
    end)

    it("is documented: a comment with what it takes stands above each", function()
        for name in pairs(op) do
            local found = false
            for _, part in ipairs { "norm", "pointwise", "conv1d", "gdn", "gqa", "dense",
                "moe", "optimizer" } do
                local file = io.open("lua/cplab/op/" .. part .. ".lua")
                local text = file and file:read "*a" or ""
                if file then file:close() end
                found = found or text:find("%-%-[^\n]*\nfunction M%." .. name .. "%(") ~= nil
            end
            assert.is_true(found, name)
        end
    end)
end)

describe("an op", function()
    local q = tensor.zeros({ 6, 2, 4 })
    local v = tensor.zeros({ 6, 4, 3 })
    local g = tensor.zeros({ 6, 4 })

    it("refuses unknown options and devices, with the nearest name", function()
        assert.equal('op.gdn: unknown field "cu_seqlen"; did you mean "cu_seqlens"?',
            message(function() local _ = op.gdn(q, q, v, g, g, { cu_seqlen = { 0, 6 } }) end))
        assert.equal('op.rms_norm: unknown field "epsilon"; did you mean "eps"?',
            message(function() local _ = op.rms_norm(g, g, { epsilon = 1 }) end))
        assert.equal('op.gqa: unknown device "tpu"; did you mean "cpu"?',
            message(function() local _ = op.gqa(q, q, v, { device = "tpu" }) end))
    end)

    it("refuses shapes that do not fit, and says whose", function()
        assert.equal("op.gdn: k has T = 5, but q has 6",
            message(function() local _ = op.gdn(q, tensor.zeros { 5, 2, 4 }, v, g, g) end))
        assert.equal("op.gdn: v must be [T, Hv, V] (got [6, 4] f64)",
            message(function() local _ = op.gdn(q, q, g, g, g) end))
        assert.equal("op.gdn: Hv = 3 is not a positive multiple of Hk = 2", message(function()
            local g_3 = tensor.zeros { 6, 3 }
            local _ = op.gdn(q, q, tensor.zeros { 6, 3, 3 }, g_3, g_3)
        end))
        assert.equal("op.gdn: h0 has S = 2, but cu_seqlens has 1", message(function()
            local _ = op.gdn(q, q, v, g, g, { h0 = tensor.zeros { 2, 4, 4, 3 } })
        end))
        assert.equal("op.gqa: k must be a tensor (got nil)",
            message(function() local _ = op.gqa(q) end))
        assert.equal("op.swiglu: up is f32, but gate is f64",
            message(function() local _ = op.swiglu(g, tensor.zeros({ 6, 4 }, "f32")) end))
        assert.equal("op.l2norm: x is i32, not f32 or f64",
            message(function() local _ = op.l2norm(tensor.zeros({ 2, 2 }, "i32")) end))
        assert.equal("op.conv1d: init has H = 2, but w, less one, has 3", message(function()
            local _ = op.conv1d(g, tensor.zeros { 4, 4 }, { init = tensor.zeros { 1, 2, 4 } })
        end))
    end)

    it("refuses boundaries, tokens, chunks and angles that break a rule", function()
        local function gdn(options)
            return function() local _ = op.gdn(q, q, v, g, g, options) end
        end
        assert.equal("op.gdn: cu_seqlens goes from 0 to 5, not from 0 to T = 6",
            message(gdn { cu_seqlens = { 0, 5 } }))
        assert.equal("op.gdn: cu_seqlens[3] = 2 comes after 4",
            message(gdn { cu_seqlens = { 0, 4, 2, 6 } }))
        assert.equal("op.gdn: cu_seqlens[2] must be an integer >= 0 (got 2.5)",
            message(gdn { cu_seqlens = { 0, 2.5, 6 } }))
        assert.equal("op.gdn: chunk = 65 is not in 1 .. 64", message(gdn { chunk = 65 }))
        assert.equal("op.embedding: tokens[2] = 6 is not below the vocabulary of 6",
            message(function() local _ = op.embedding(g, { 0, 6 }) end))
        assert.equal("op.rope: rotary_dim = 3 is not even and in 0 .. D = 4",
            message(function() local _ = op.rope(q, { 0, 1, 2, 3, 4, 5 }, { rotary_dim = 3 }) end))
        assert.equal("op.rope: positions has T = 1, but x has 6",
            message(function() local _ = op.rope(q, { 0 }) end))
    end)

    it("has a reference in f64 only", function()
        local x = tensor.zeros({ 2, 2 }, "f32")
        assert.equal("kernels: no table for device 'ref' and dtype f32 (there are cpu f64, "
            .. "cpu f32, ref f64)",
            message(function() local _ = op.l2norm(x, { device = "ref" }) end))
    end)

    it("takes no tokens at all", function()
        for _, device in ipairs { "ref", "cpu" } do
            local empty, none = tensor.zeros { 0, 2, 4 }, tensor.zeros { 0, 4 }
            local o, hT = op.gdn(empty, empty, tensor.zeros { 0, 4, 3 }, none, none,
                { device = device, cu_seqlens = { 0 } })
            assert.same({ 0, 4, 3 }, o:shape())
            assert.same({ 0, 4, 4, 3 }, hT:shape())
            local o_2, lse = op.gqa(empty, empty, empty, { device = device })
            assert.same({ 0, 2, 4 }, o_2:shape())
            assert.same({ 0, 2 }, lse:shape())
            assert.same({}, op.rms_norm(none, tensor.zeros { 4 }, { device = device }):totable())
            assert.equal(0, op.cross_entropy(none, {}, { device = device }))
        end
    end)

    it("leaves its inputs as they were", function()
        local x = tensor.from({ 1, 2, 3, 4 }, { 2, 2 })
        local y = tensor.from({ 5, 6, 7, 8 }, { 2, 2 })
        assert.same({ 7, 10, 13, 16 }, op.axpby(x, y, { alpha = 2 }):totable())
        assert.same({ 1, 2, 3, 4 }, x:totable())
        assert.same({ 5, 6, 7, 8 }, y:totable())
    end)
end)
