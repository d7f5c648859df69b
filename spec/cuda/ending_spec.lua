-- Ranks on devices of which one does not come: what the others enqueued waits on their devices,
-- where nobody tells them. All end with the sentence of the first that failed, and the next run
-- works.
local clib = require "clib"
local device = require "spec.support.on_device"

local it_there = device.it(it, pending)

-- Exchanges, each of which is looked at: then the rank has waited for its device. In the middle of
-- them rank 0 raises, comes no more, or ends the network, as p.last says.
local function exchange_until(comm, p)
    local C = require("clib").C
    local exchange = require "cplab.exchange"
    local rows = require "spec.exchange.rows"
    local stream, rank = rows.stream("thd", comm:size()), comm:rank()
    local a = rows.layout("zigzag", stream, comm:size())
    local b = rows.layout("contiguous", stream, comm:size())
    local plan = exchange.plan(require "cplab.route"(a, b), comm, "f32", 4, "packed")
    local x, y = rows.tensor("f32", a:n_local(rank), 4), rows.tensor("f32", b:n_local(rank), 4)
    for i = 1, 6 do
        if p.last == "network" then comm:barrier() end -- all have come out of the last exchange
        if i == 4 and rank == 0 then
            if p.last == "raise" then error("boom", 0) end
            if p.last == "network" then require("spec.support.on_device").set("network", "0") end
            local since = C.cpl_clock()
            while p.last == "busy" and C.cpl_clock() - since < p.busy do end
            if p.last == "busy" then error("too late", 0) end
        end
        if p.last == "network" then comm:barrier() end
        local ok, message = pcall(function()
            plan:convert(x, y)
            y:look()
        end)
        if not ok then return { i = i, message = message, again = select(2, pcall(function()
            plan:convert(x, y)
        end)) } end
    end
    return {}
end

local function timed(transport, payload, deadline)
    local since = clib.C.cpl_clock()
    local results, failure = device.try(transport, 4, exchange_until, payload, deadline)
    return results, failure, clib.C.cpl_clock() - since
end

describe("ranks on devices", function()
    -- Where nothing lets them go, the double of NCCL does after 8 s, with another sentence.
    before_each(function() device.set("patience", "8") end)
    after_each(function()
        device.set("patience", "20")
        device.set("network", "1")
        if device.missing() then return end
        local results = device.run("nccl", 3, function(comm) return comm:sum({ 1 })[1] end)
        assert.same({ 3, 3, 3 }, results)
    end)

    for _, transport in ipairs { "direct", "nccl" } do
        it_there("all end with the sentence of one that raises in the middle of exchanges, "
            .. transport, function()
                local results, failure, seconds = timed(transport, { last = "raise" }, 100)
                assert.same({ 0, "boom" }, { failure.rank, failure.message })
                for rank = 1, 3 do
                    local r = results[rank + 1]
                    assert.is_true(r.i >= 4)
                    assert.matches("rank 0 failed: boom", r.message, 1, true)
                    assert.matches("rank 0 failed: boom", r.again, 1, true)
                end
                assert.is_true(seconds < 5)
            end)
    end

    it_there("wait for one that never comes no longer than the deadline, nccl", function()
        local results, failure, seconds = timed("nccl", { last = "busy", busy = 2 }, 0.5)
        assert.matches("^local: rank [123] waited 0%.%d s for others in a download$",
            failure.message)
        for rank = 1, 3 do assert.equal(4, results[rank + 1].i) end
        assert.is_true(seconds < 7)
    end)

    it_there("end where NCCL says that others are lost, nccl", function()
        local results, failure, seconds = timed("nccl", { last = "network" }, 100)
        assert.is_nil(failure)
        for rank = 0, 3 do
            local r = results[rank + 1]
            assert.equal(4, r.i)
            assert.matches(("nccl: rank %d: remote process exited or there was a network error in "
                .. "a download"):format(rank), r.message, 1, true)
            assert.matches(("nccl: rank %d: a wait for others was given up before"):format(rank),
                r.again, 1, true)
        end
        assert.is_true(seconds < 5)
    end)
end)
