-- Devices, memory, copies, streams, events and graphs of the emulator: what they promise, and that
-- they answer as CUDA does where something is wrong.
local emulation = require "spec.support.emulation"

local run = emulation.run
local delays = { delay = 2000 } -- microseconds, before each operation of a stream

describe("the emulator, to hosts", function()
    local it = emulation.where_built(it, pending)

    it("has as many devices as are set", function()
        assert.equal([[
count: cudaSuccess
2 devices, driver 13000
set: cudaErrorInvalidDevice: cudaSetDevice: device 2 of 2
malloc: cudaSuccess
stream: cudaSuccess
]], (run("devices", { devices = 2 }):gsub("driver %d+", "driver 13000")))
        local none = run("devices", { devices = 0 })
        assert.matches("count: cudaErrorNoDevice: there is no device\n0 devices", none)
        assert.matches("malloc: cudaErrorNoDevice", none)
        -- A caller that did not set the count would read it.
        local no_driver = run("devices", { driver = 0 })
        assert.matches("count: cudaErrorInsufficientDriver: .*\n%-7 devices, driver 0\n", no_driver)
        assert.matches("malloc: cudaErrorInsufficientDriver", no_driver)
    end)

    it("says what in its settings it does not understand", function()
        assert.matches("CPLAB_CUDA_ORDER=sideways is not understood",
            run("counts", { order = "sideways" }))
    end)

    it("opens and closes the way between devices", function()
        local open = "can: 1\nenable: cudaSuccess\n"
            .. "again: cudaErrorPeerAccessAlreadyEnabled: device 0 reaches device 1 already\n"
            .. "itself: cudaErrorInvalidDevice: .*\nnone: cudaErrorInvalidDevice: .*\n"
            .. "disable: cudaSuccess\n"
            .. "again: cudaErrorPeerAccessNotEnabled: device 0 does not reach device 1\n$"
        assert.matches(open, run "peers")
        assert.matches("can: 0\nenable: cudaErrorPeerAccessUnsupported: device 0 cannot reach "
            .. "device 1\n", run("peers", { peers = 0 }))
    end)

    it("runs out of memory, each device for itself", function()
        local refused = "cudaErrorMemoryAllocation: cudaMalloc: 614400 bytes, but device 0 has "
            .. "1048576 bytes of which 614400 are used\n"
        assert.equal("first: cudaSuccess\nsecond: " .. refused .. "434176 of 1048576 left\nlast: "
            .. refused .. "after free: cudaSuccess\ndevice 1: cudaSuccess\n",
            run("out_of_memory", { memory = "1M" }))
        assert.matches("second: cudaSuccess\n", run("out_of_memory", { memory = "2M" }))
    end)

    it("frees what was allocated, once", function()
        local text = run "frees"
        for word, answer in pairs {
            inside = "cudaErrorInvalidValue", pinned = "cudaErrorInvalidValue",
            ["host of device"] = "cudaErrorInvalidValue", host = "cudaSuccess",
            free = "cudaSuccess", again = "cudaErrorInvalidValue", null = "cudaSuccess",
        } do
            assert.matches("\n" .. word .. ": " .. answer, "\n" .. text)
        end
    end)

    it("refuses copies whose kind does not fit, or that run past the end", function()
        -- Nothing stands before "wrong": all 16 pairs of kind and sides answered as they must.
        assert.matches("^wrong: cudaErrorInvalidValue: a copy from host to device, but it goes "
            .. "from device to host\ndefault: cudaSuccess\n"
            .. "kind 7: cudaErrorInvalidMemcpyDirection: a copy of kind 7\n"
            .. "past the end: cudaErrorInvalidValue: a copy's source has 24 bytes left in its "
            .. "allocation of 64, not 32\n"
            .. "set past the end: cudaErrorInvalidValue: a copy's target has 24 bytes left .*\n"
            .. "set host: cudaErrorInvalidValue: .*\n$", run "copy_kinds")
    end)

    it("copies rows, and nothing beside them", function()
        assert.matches("^rows:" .. (" 9 9 1 1 1 9 9 9"):rep(4) .. "\npast the end: "
            .. "cudaErrorInvalidValue: .* 26 bytes left .* not 27\n$", run "copy_rows")
    end)

    it("fills fresh memory with garbage, and knows whose a pointer is", function()
        assert.equal("cdcdcdcd\n", run "poison_of_memory")
        assert.equal("1 of device 1\n1\n1\n1\n", run "pointers")
    end)

    it("runs streams apart", function()
        assert.equal("met: 1\n", run "streams_run_apart")
    end)

    it("shows an event that was forgotten, where operations are delayed", function()
        assert.equal("never stale\n", run("event_waited_for", delays))
        assert.equal("stale\n", run("event_forgotten", delays))
    end)

    it("binds a wait to the record before it", function()
        assert.equal("met: 1\n", run "wait_binds_to_the_record_before")
    end)

    it("orders the default stream with blocking streams only", function()
        assert.equal("seen: 16843009 0\n", run "default_stream")
    end)

    it("tells times and states by events", function()
        local answers = ([[
never recorded: cudaSuccess
query: cudaErrorNotReady: there is work left
too early: cudaErrorNotReady: there is work left
query: cudaSuccess
elapsed: cudaSuccess
long enough: 1
untimed: cudaErrorInvalidResourceHandle: cudaEventElapsedTime: the second event has no timing
fresh: cudaErrorInvalidResourceHandle: cudaEventElapsedTime: the second event was never recorded
destroyed: cudaErrorInvalidResourceHandle: cudaEventRecord: no such event
other device: cudaErrorInvalidResourceHandle: @: an event of device 0, a stream of device 1
wait of another device: cudaSuccess
]]):gsub("@", "cudaEventRecord")
        assert.equal(answers, run "events")
    end)

    it("knows the handles that live, and forbids CUDA in host functions", function()
        assert.equal([[
in a host function: cudaErrorNotPermitted
destroyed: cudaErrorInvalidResourceHandle: cudaStreamSynchronize: no such stream
again: cudaErrorInvalidResourceHandle: cudaStreamDestroy: no such stream
default: cudaErrorInvalidResourceHandle: cudaStreamDestroy: no such stream
copy: cudaErrorInvalidResourceHandle: a memset on no stream
]], run "handles")
    end)

    it("counts how often the host waits, and takes settings while it runs", function()
        assert.equal("0\n1\n2 1\n1\n0 -1 -1\n", run "counts")
    end)
end)

describe("graphs of the emulator", function()
    local it = emulation.where_built(it, pending)

    it("keep the arguments of the capture and read memory at the replay", function()
        assert.equal("captured: 0\nreplayed: 100\nreplayed: 201\nreplayed: 303\n"
            .. "destroyed: cudaErrorInvalidValue: cudaGraphLaunch: no such executable graph\n"
            .. "3 launches\n", run "replay")
    end)

    it("order branches by events alone", function()
        for _, order in ipairs { "forward", "reverse", "random:1", "random:2" } do
            assert.equal("01010101\n", run("branches", { order = order }))
        end
        assert.equal("cdcdcdcd\n", run("branches_without_an_event", { order = "reverse" }))
    end)

    it("want every branch joined", function()
        assert.matches("^end: cudaErrorStreamCaptureUnjoined: .*\n1\nb captures: 0\n$",
            run "branch_not_joined")
    end)

    it("refuse in a capture what CUDA refuses", function()
        local expected = {
            { "not begun", "cudaErrorIllegalState" }, { "begun", "cudaErrorIllegalState" },
            { "malloc", "cudaErrorStreamCaptureUnsupported" },
            { "end", "cudaErrorStreamCaptureInvalidated" },
            { "synchronize", "cudaErrorStreamCaptureUnsupported" },
            { "end", "cudaErrorStreamCaptureInvalidated" },
            { "event from outside", "cudaErrorStreamCaptureIsolation" },
            { "end", "cudaErrorStreamCaptureInvalidated" },
            { "merge", "cudaErrorStreamCaptureMerge" },
            { "end", "cudaErrorStreamCaptureInvalidated" },
            { "end", "cudaErrorStreamCaptureInvalidated" },
            { "captured event", "cudaErrorCapturedEvent" },
            { "default stream", "cudaErrorStreamCaptureUnsupported" },
            { "relaxed", "cudaSuccess" }, { "end", "cudaSuccess" },
        }
        local seen = {}
        for word, answer in run "capture_refuses":gmatch "([%w ]+): (%w+)[^\n]*\n" do
            seen[#seen + 1] = { word, answer }
        end
        assert.same(expected, seen)
    end)

    it("are disturbed by other threads only where they are captured globally", function()
        assert.equal("another thread: cudaErrorStreamCaptureUnsupported: cudaMalloc: another "
            .. "thread captures a graph\nend: cudaErrorStreamCaptureInvalidated: "
            .. "cudaStreamEndCapture: an error before ended the capture\n",
            run "threads_and_global_capture")
        assert.equal("another thread: cudaSuccess\nend: cudaSuccess\n",
            run "threads_and_local_capture")
    end)
end)
