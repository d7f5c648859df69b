-- Ops on a device that is emulated: what goes there and comes back, and what is refused. The
-- kernels have specs of their own beside this one.
local numbers = require "spec.kernels.numbers"
local on_device = require "spec.support.on_device"
local op = require "cplab.op"
local tensor = require "cplab.tensor"

local it_there = on_device.it(it, pending)

-- The error of f, which must begin with the line of this file that called.
local function message(f)
    local ok, text = pcall(f)
    assert.is_false(ok)
    local rest = text:match "^%.?/?spec/cuda/compute/op_spec%.lua:%d+: (.*)$"
    if not rest then error("not blamed on the caller: " .. text, 2) end
    return rest
end

local function there(options)
    options = options or {}
    options.device = "cuda-emulated"
    return options
end

local WAYS = { "best", "naive" }

describe("an op on a device", function()
    it_there("computes what the reference does, in either way and any order", function()
        for _, order in ipairs { "forward", "reverse", "random:5" } do
            on_device.set("order", order)
            for _, way in ipairs(WAYS) do
                for _, n in ipairs { 0, 1, 31, 1000 } do
                    local x = numbers.tensor(1, 1, { n, 3 })
                    local y = numbers.tensor(1, 2, { n, 3 })
                    local sum = op.axpby(x, y, there { alpha = 0.5, beta = -2, way = way })
                    -- One multiplication and addition may be one rounding there and two here.
                    numbers.close("f64", sum,
                        op.axpby(x, y, { alpha = 0.5, beta = -2, device = "ref" }), 1e-15)
                    assert.equal("cpu", sum:device())
                end
            end
        end
        on_device.set("order", "forward")
    end)

    it_there("leaves its inputs as they were", function()
        local x, y = tensor.from({ 1, 2 }, { 2 }, "f32"), tensor.from({ 3, 4 }, { 2 }, "f32")
        assert.same({ 5, 8 }, op.axpby(x, y, there { alpha = 2 }):totable())
        assert.same({ 1, 2 }, x:totable())
        assert.same({ 3, 4 }, y:totable())
    end)

    it_there("has several calls of kernels where its gradient does", function()
        local x, y = numbers.tensor(1, 1, { 5 }), numbers.tensor(1, 2, { 5 })
        local dz = numbers.tensor(1, 3, { 5 })
        local dx, dy = op.axpby_backward(x, y, dz, there { alpha = 3, beta = -1 })
        local dx_ref, dy_ref = op.axpby_backward(x, y, dz, { alpha = 3, beta = -1 })
        assert.same(dx_ref:totable(), dx:totable())
        assert.same(dy_ref:totable(), dy:totable())
    end)

    it_there("stores bf16 and computes in f32: one rounding, of the result", function()
        local x = numbers.tensor(1, 1, { 40 }, -1, 1, "bf16")
        local y = numbers.tensor(1, 2, { 40 }, -1, 1, "bf16")
        local sum = op.axpby(x, y, there { alpha = 0.25, beta = 3 })
        assert.equal("bf16", sum:dtype())
        local exact, given_x, given_y = {}, x:totable(), y:totable()
        for i = 1, 40 do exact[i] = 0.25 * given_x[i] + 3 * given_y[i] end
        -- Half a step of bf16 is at most 2^-8 of a number; rounding to f32 may come before.
        for i, value in ipairs(sum:totable()) do
            assert.is_true(math.abs(value - exact[i]) <= 2 ^ -8 * math.abs(exact[i]) + 1e-7)
        end
    end)

    it_there("keeps WIDE numbers of a call of bf16 in f32", function()
        local x, y = numbers.tensor(1, 1, { 9 }, -1, 1, "f32"),
            numbers.tensor(1, 2, { 9 }, -1, 1, "f32")
        local sum = op.axpby(x, y, there { wide = true, beta = 0.5 })
        assert.equal("f32", sum:dtype())
        assert.same(op.axpby(x, y, { beta = 0.5 }):totable(), sum:totable())
    end)

    it_there("goes on with states, those of a call of bf16 too", function()
        for _, dtype in ipairs { "f64", "f32" } do
            local function drawn(j, ...) return numbers.tensor(2, j, { ... }, -1, 1, dtype) end
            local M, B, h = drawn(1, 2, 2, 5, 5), drawn(2, 2, 2, 5, 3), drawn(3, 3, 2, 5, 3)
            local function carry(options)
                options.states, options.transitions, options.offsets = { 2, -1, 0 }, { 1, 0, -1 },
                    { 0, 0, 1 }
                options.transpose = true
                return op.gdn_carry(M, B, h, options)
            end
            for _, way in ipairs(WAYS) do
                for _, wide in ipairs { false, dtype == "f32" or nil } do
                    local found = carry(there { way = way, wide = wide })
                    assert.equal(dtype, found:dtype())
                    numbers.close(dtype, found, carry {}, dtype == "f64" and 1e-15 or 1e-6)
                end
            end
            local b = tensor.zeros({ 2, 2, 5, 5 }, "bf16")
            assert.equal("op.gdn_carry: M is bf16, but the call is bf16, which goes with an M of "
                .. "f32", message(function() local _ = op.gdn_carry(b, B, h, there()) end))
        end
    end)

    it_there("works in the memory of its rank where that has its rows there", function()
        local results = on_device.run(nil, 2, function(comm)
            local t, o = require "cplab.tensor", require "cplab.op"
            local on_the_device = t.zeros { 2 }
            local ok, said = pcall(o.axpby, on_the_device, on_the_device, { device = "cpu" })
            t.live_in(nil)
            local x = t.from({ comm:rank(), 2 }, { 2 })
            local y = t.from({ 1, 1 }, { 2 })
            local sum = o.axpby(x, y, { device = "cuda-emulated" })
            return { ok = ok, said = said, sum = sum:totable() }
        end)
        for rank = 0, 1 do
            local result = results[rank + 1]
            assert.same({ rank + 1, 3 }, result.sum)
            assert.is_false(result.ok)
            assert.matches("op%.axpby: x lies on cuda%-emulated %d; ops take tensors of the host$",
                result.said)
        end
    end)

    it_there("says what the device says, at the line of the call, and is well again", function()
        local x = tensor.zeros { 100000 }
        on_device.set("memory", "64K")
        local said = message(function() local _ = op.axpby(x, x, there()) end)
        on_device.set("memory", "4G")
        assert.matches("^cuda%-emulated 0: out of memory in taking 800000 bytes: ", said)
        assert.equal(100000, op.axpby(x, x, there()):n_elements())
    end)

    it_there("refuses what is not there, or not of this kind", function()
        local x, b = tensor.zeros { 4 }, tensor.zeros({ 4 }, "bf16")
        assert.equal("op.axpby: x is bf16, not f32 or f64",
            message(function() local _ = op.axpby(b, b) end))
        assert.equal("op.axpby: x is i32, not f32 or f64 or bf16", message(function()
            local i = tensor.zeros({ 4 }, "i32")
            local _ = op.axpby(i, i, there())
        end))
        assert.equal("op.axpby: x is bf16, but the call is bf16, which goes with an x of f32",
            message(function() local _ = op.axpby(b, b, there { wide = true }) end))
        assert.equal("op.axpby: y is f64, but x is bf16",
            message(function() local _ = op.axpby(b, x, there()) end))
        assert.equal("op.axpby: wide numbers are those of bf16, on a device",
            message(function() local _ = op.axpby(x, x, { wide = true }) end))
    end)
end)

describe("a device of an op", function()
    it("is one that there is, in a way that it has", function()
        local x = tensor.zeros { 4 }
        assert.equal('op.axpby: unknown device "tpu"; did you mean "cpu"?',
            message(function() local _ = op.axpby(x, x, { device = "tpu" }) end))
        assert.equal('op.axpby: unknown way "fast"; there are best, naive',
            message(function() local _ = op.axpby(x, x, { device = "cuda", way = "fast" }) end))
        assert.equal("op.axpby: cpu kernels have no ways; those of cuda and cuda-emulated do",
            message(function() local _ = op.axpby(x, x, { way = "naive" }) end))
    end)

    it("is refused with what is missing where there is none", function()
        local clib = require "clib"
        local found = clib.ffi.new "cpl_devices_found"
        local x = tensor.zeros { 4 }
        if clib.C.cpl_host_look("cuda", found) == clib.C.CPL_OK and found.n_devices > 0 then
            assert.equal(4, op.axpby(x, x, { device = "cuda" }):n_elements())
            return
        end
        assert.matches("^device cuda: ",
            message(function() local _ = op.axpby(x, x, { device = "cuda" }) end))
    end)
end)
