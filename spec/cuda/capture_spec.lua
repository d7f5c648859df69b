-- Work of all ranks as one graph: rows go to another layout and back, summed, in every replay with
-- what the tensors hold then.
local device = require "spec.support.on_device"

local it_there = device.it(it, pending)

local function replay(comm)
    local C = require("clib").C
    local capture = require "cplab.capture"
    local t, wrong = require "spec.support.capture_rank"(comm), {}
    local z = t.z:positions(t.rank)
    t.x:fill_positions(z)
    t.work()
    local before = tonumber(C.cpl_counters_here().sent_bytes)
    t.y:poison()
    t.back:poison()
    local graph = capture.of(comm._ptr, t.work)
    local captured = tonumber(C.cpl_counters_here().sent_bytes) - before
    -- The control: a capture does nothing.
    if not t.back:first_wrong(z) then wrong[#wrong + 1] = "done while captured" end
    local syncs, counted = 0, 0
    for round = 1, 3 do
        t.x:fill_positions(z)
        t.y:poison()
        t.back:poison()
        local was = C.cpl_counters_here()
        local waits, bytes = tonumber(was.host_syncs), tonumber(was.sent_bytes)
        graph:replay()
        local now = C.cpl_counters_here()
        syncs = syncs + tonumber(now.host_syncs) - waits
        counted = counted + tonumber(now.sent_bytes) - bytes
        if t.y:first_wrong(t.c:positions(t.rank)) then wrong[#wrong + 1] = "y in " .. round end
        if t.back:first_wrong(z) then wrong[#wrong + 1] = "back in " .. round end
        -- What ranks do before a replay is done before it, what they do after it is done after it.
        t.saved:fill_positions(z)
        t.back:poison()
        for _ = 1, 10 * t.rank do C.cpl_tensor_copy(t.x._ptr, t.back._ptr) end
        C.cpl_tensor_copy(t.x._ptr, t.saved._ptr)
        graph:replay()
        t.plan:convert(t.back, t.y)
        if t.back:first_wrong(z) then wrong[#wrong + 1] = "before " .. round end
        if t.y:first_wrong(t.c:positions(t.rank)) then wrong[#wrong + 1] = "after " .. round end
    end
    return { wrong = wrong, syncs = syncs, captured = captured, counted = counted }
end

local function refuse(comm)
    local capture = require "cplab.capture"
    local t = require "spec.support.capture_rank"(comm)
    local z = t.z:positions(t.rank)
    t.x:fill_positions(z)
    t.work()
    local out = {}
    local function try(name, f)
        local ok, message = pcall(capture.of, comm._ptr, f)
        out[name] = not ok and tostring(message):gsub("^[^\n]-%.lua:%d+: ", "") or "captured"
    end
    try("look", function() t.work() t.y:look() end)
    try("twice", function() capture.of(comm._ptr, t.work) end)
    try("raise", function() t.work() error("mine", 0) end)
    t.back:poison()
    capture.of(comm._ptr, t.work):replay()
    out.works = not t.back:first_wrong(z)
    return out
end

-- There are 8 emulated devices: of 10 ranks that reach each other's memory some share one.
local kinds = { direct = { 1, 2, 4, 10 }, nccl = { 1, 2, 4 } }

setup(function() device.set("delay", "200") end)
teardown(function() device.set("delay", "0") end)

describe("a capture of all ranks", function()
    for transport, sizes in pairs(kinds) do
        it_there("is done by each replay and by nothing else: " .. transport, function()
            for _, n in ipairs(sizes) do
                for rank, result in ipairs(device.run(transport, n, replay)) do
                    assert.same({}, result.wrong, ("%d ranks, rank %d"):format(n, rank))
                    assert.equal(0, result.syncs)
                    assert.equal(3 * result.captured, result.counted)
                    assert.equal(n > 1, result.captured > 0)
                end
            end
        end)

        it_there("refuses what a graph cannot hold, and goes on: " .. transport, function()
            for _, result in ipairs(device.run(transport, 2, refuse)) do
                assert.matches("^cuda%-emulated %d: a download in a capture: nothing there may "
                    .. "wait for the device or take its memory$", result.look)
                assert.matches("cuda%-emulated %d: a capture in a capture: ", result.twice)
                assert.equal("mine", result.raise)
                assert.is_true(result.works)
            end
        end)
    end
end)

it("a capture needs rows on a device", function()
    local ranks = require "spec.support.ranks"
    local result = ranks.run(1, function(comm)
        return select(2, pcall(require("cplab.capture").of, comm._ptr, function() end))
    end)
    assert.matches("capture: there is nothing to capture on the cpu$", result[1])
end)
