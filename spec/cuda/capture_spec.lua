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

-- A captured step whose rows carry positions: what is wrong in a replay is told after it, as often
-- as it is, whatever lists of runs have come and gone since.
local function trace(comm)
    local clib = require "clib"
    local C, ffi = clib.C, clib.ffi
    local cplab = require "cplab"
    local capture = require "cplab.capture"
    local t = require "spec.support.capture_rank"(comm)
    local rank, first, out = t.rank, ffi.new "cpl_first_wrong", {}
    local function check(tensor, layout, who)
        clib.check(C.cpl_trace_check(tensor._ptr, layout._ptr, rank, who))
    end
    local function work()
        t.work()
        check(t.y, t.c, "there")
        check(t.back, t.z, "back")
    end
    local function forget_lists()
        for n = 1, 300 do
            local s = cplab.stream.thd { lengths = { n } }
            local rows = require "spec.exchange.rows".tensor("f32", n, 1)
            rows:mark(cplab.layout.contiguous(s, { cp = 1 }), 0, true)
        end
    end
    t.x:mark(t.z, rank, true)
    work()
    local graph = capture.of(comm._ptr, work)
    forget_lists()
    for i, planted in ipairs { false, true, true, false } do
        t.x:mark(t.z, rank, true)
        if planted and rank == 1 then
            local positions = t.x:trace()
            positions[1], positions[2] = positions[2], positions[1]
            clib.check(C.cpl_tensor_set_trace(t.x._ptr, positions))
        end
        clib.check(C.cpl_trace_settle(comm._ptr))
        C.cpl_counters_reset()
        graph:replay()
        local counters = C.cpl_counters_here()
        local syncs = tonumber(counters.host_syncs)
        clib.check(C.cpl_trace_settle(comm._ptr))
        C.cpl_trace_first_wrong(first)
        out[i] = { syncs, tonumber(counters.trace_checks),
            comm:sum { tonumber(counters.wrong_rows) }[1],
            ffi.string(first.sentence):match "^[^,]*" }
    end
    return out
end

-- What the collector takes while a capture is made is given back after it.
local function collect(comm)
    local clib, capture = require "clib", require "cplab.capture"
    local rows = require "spec.exchange.rows"
    local C, memory = clib.C, clib.ffi.new "cpl_memory_stats"
    local t = require "spec.support.capture_rank"(comm)
    local z = t.z:positions(t.rank)
    t.x:fill_positions(z)
    t.work()
    local garbage = { rows.tensor("f32", 5, 8), rows.tensor("f32", 6, 8) }
    local function bytes()
        comm:barrier()
        C.cpl_memory(memory)
        comm:barrier()
        return tonumber(memory.live_bytes)
    end
    collectgarbage()
    local before, inside = bytes(), nil
    local graph = capture.of(comm._ptr, function()
        garbage = nil
        collectgarbage()
        inside = bytes()
        t.work()
    end)
    t.back:poison()
    graph:replay()
    local works = not t.back:first_wrong(z)
    local after = bytes()
    return { works = works, given = before - after, late = inside - after, garbage = garbage }
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

        it_there("tells what was wrong in a replay: " .. transport, function()
            for rank, result in ipairs(device.run(transport, 2, trace)) do
                local right = { 0, 2, 0, "" }
                assert.same({ right, right }, { result[1], result[4] })
                for i = 2, 3 do
                    assert.same({ 0, 2, 4 }, { unpack(result[i], 1, 3) })
                    assert.equal(rank == 2 and "back" or "there", result[i][4])
                end
            end
        end)

        it_there("keeps what is collected while it is made to its end: " .. transport, function()
            for _, result in ipairs(device.run(transport, 2, collect)) do
                assert.is_true(result.works)
                local rows = 2 * 11 * 8 * 4 -- of both ranks
                assert.is_true(result.given >= rows, result.given)
                assert.is_true(result.late >= rows, result.late)
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
