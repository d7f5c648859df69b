-- Dials: what is done after a turn reads the new number, what was asked for before it the old one,
-- wherever the dial lies, and the host waits for nothing.
local on_device = require "spec.support.on_device"
local ranks = require "spec.support.ranks"

local it_there = on_device.it(it, pending)

-- The dial is copied to a list of numbers after each turn; looked at last of all.
local function turn(comm)
    local C = require("clib").C
    local dials, rows = require "cplab.dial", require "cplab.rows"
    local dial, values, kept = dials.new(comm._ptr), { 0, 0.1, 0.1, -3, 1 / 3, 0 }, {}
    C.cpl_counters_reset()
    for i, value in ipairs(values) do
        dial:turn(value)
        kept[i] = rows.new(comm._ptr, "f64", 1, 1)
        C.cpl_tensor_copy(kept[i], dial.tensor)
    end
    local syncs, said = tonumber(C.cpl_counters_here().host_syncs), {}
    for i, tensor in ipairs(kept) do
        rows.look(tensor, "double", function(data) said[i] = data[0] end)
    end
    return { values = values, said = said, syncs = syncs }
end

-- What is sent is what it was then, though the host writes over it at once and the device is slow;
-- also where the tensor is a part of another one.
local function send(comm)
    local C, ffi = require("clib").C, require("clib").ffi
    local rows, n = require "cplab.rows", 1000
    local whole = rows.new(comm._ptr, "f64", 2 * n, 1)
    local part, numbers, wrong = rows.view(whole, n, { n, 1 }), ffi.new("double[?]", n), 0
    for round = 1, 3 do
        for i = 0, n - 1 do numbers[i] = round * i end
        assert(C.cpl_tensor_send(part, numbers) == C.CPL_OK)
        ffi.fill(numbers, 8 * n, 0xff)
        rows.look(whole, "double", function(data)
            for i = 0, n - 1 do
                if data[i] ~= 0 or data[n + i] ~= round * i then wrong = wrong + 1 end
            end
        end)
    end
    return wrong
end

-- A captured copy of the dial, replayed at several turns; and one that turns the dial itself.
local function capture(comm)
    local C = require("clib").C
    local captures, dials = require "cplab.capture", require "cplab.dial"
    local rows = require "cplab.rows"
    local dial, kept = dials.new(comm._ptr), rows.new(comm._ptr, "f64", 1, 1)
    local out = { said = {} }
    local function says()
        local value
        rows.look(kept, "double", function(data) value = data[0] end)
        return value
    end
    local function copy(value)
        dial:turn(value)
        C.cpl_tensor_copy(kept, dial.tensor)
    end
    copy(0.5)
    local graph = captures.of(comm._ptr, function() copy(0.5) end)
    for i, value in ipairs { 0.25, 0.75, 0.75 } do
        dial:turn(value)
        graph:replay()
        out.said[i] = says()
    end
    local _, message = pcall(captures.of, comm._ptr, function() copy(0.5) end)
    out.message = tostring(message)
    copy(0.125) -- the refused turn was none
    out.after = says()
    return out
end

describe("what is sent to a tensor", function()
    setup(function() on_device.set("delay", "200") end)
    teardown(function() on_device.set("delay", "0") end)

    it("is there for what comes next, on the cpu", function()
        assert.same({ 0, 0 }, ranks.run(2, send))
    end)

    for _, transport in ipairs { "direct", "nccl" } do
        it_there("is there for what comes next, by " .. transport, function()
            assert.same({ 0, 0 }, on_device.run(transport, 2, send))
        end)
    end
end)

describe("a dial", function()
    local function check(results)
        for _, r in ipairs(results) do
            assert.same(r.values, r.said)
            assert.equal(0, r.syncs)
        end
    end

    it("is read as it was turned, on the cpu", function() check(ranks.run(2, turn)) end)

    for _, transport in ipairs { "direct", "nccl" } do
        it_there("is read as it was turned, by " .. transport, function()
            check(on_device.run(transport, 2, turn))
        end)

        it_there("is read by replays, and is not turned by them: " .. transport, function()
            for _, r in ipairs(on_device.run(transport, 2, capture)) do
                assert.same({ 0.25, 0.75, 0.75 }, r.said)
                assert.matches("in a capture: replays would read what it is now", r.message, 1,
                    true)
                assert.equal(0.125, r.after)
            end
        end)
    end
end)
