-- The double of NCCL, for ranks that are threads.
local emulation = require "spec.support.emulation"

local run = emulation.run
local delays = { delay = 500 }

-- A trial with and without delays.
local function always(name, text)
    assert.equal(text, run(name))
    assert.equal(text, run(name, delays))
end

describe("the double of NCCL", function()
    local it = emulation.where_built(it, pending)

    it("exchanges what four ranks send, each count with its own", function()
        always("nccl_exchange", "0 wrong\n")
    end)

    it("is captured and replayed", function()
        always("nccl_exchange_in_a_graph", "0 wrong\n")
    end)

    it("gathers, and sends from all to all", function()
        always("nccl_collectives", "0 wrong\n")
    end)

    it("serves several ranks of one thread", function()
        always("nccl_one_thread", "01010101\n")
    end)

    it("ends where counts differ, and names both ranks and counts", function()
        for _, settings in ipairs { {}, delays } do
            local text = run("nccl_counts_differ", settings)
            assert.matches("cuda emulation: NCCL: rank 2 sends 3 elements of type 2, rank 1 "
                .. "receives 2 of type 2\n", text)
            assert.matches("rank 1: cudaErrorLaunchFailure, remote process", text)
            assert.matches("rank 2: cudaErrorLaunchFailure, remote process", text)
        end
    end)

    it("waits for a peer only so long", function()
        local text = run("nccl_peer_never_comes", { patience = 0.2 })
        assert.matches("cuda emulation: NCCL: rank 0 waits for rank 1 to send 4 elements, which "
            .. "never comes\n", text)
        assert.matches("rank 0: cudaErrorLaunchFailure\n", text)
        assert.matches("rank 1: cudaSuccess\n", text)
    end)

    it("lets go of a device whose communicator is aborted", function()
        local text = run "nccl_abort"
        assert.matches("rank 0: cudaSuccess\n", text)
        assert.matches("rank 1: cudaSuccess\n", text)
        assert.not_matches("cuda emulation", text)
    end)

    it("lets nobody else go then", function()
        local text = run("nccl_abort_alone", { patience = 0.2 })
        assert.matches("cuda emulation: NCCL: rank 0 waits for rank 1 to send 4 elements, which "
            .. "never comes\n", text)
        assert.matches("rank 1: cudaSuccess\n", text)
    end)

    it("refuses two ranks on one device, on all ranks", function()
        local text = run "nccl_one_device"
        for rank = 0, 1 do
            assert.matches(("init %d: invalid usage: Duplicate GPU detected: rank %d is on device "
                .. "0, as another rank is\n"):format(rank, rank), text)
        end
        assert.matches("init all 3: invalid usage: a device stands twice", text)
        assert.matches("init all 2: no error\n", text)
    end)

    it("refuses wrong peers, ranks, buffers, streams and groups", function()
        local expected = {
            { "rank", "invalid argument" }, { "peer", "invalid argument" },
            { "host", "invalid argument" }, { "long", "invalid argument" },
            { "group", "invalid usage" }, { "end", "invalid argument" },
            { "stream", "unhandled cuda error" }, { "memory", "invalid argument" },
        }
        local text, seen = run "nccl_refuses", {}
        for word, answer in text:gmatch "(%l+) %d: ([%l ]+):[^\n]*\n" do
            seen[#seen + 1] = { word, answer }
        end
        assert.same(expected, seen)
        assert.matches("^header: 1\n", text)
        assert.matches("\nsync: cudaSuccess\n$", text)
    end)

    it("can say another version than its header's", function()
        assert.matches("^header: 0\n", run("nccl_refuses", { nccl = 22000 }))
    end)

    it("needs a driver to begin, as the real one does only then", function()
        assert.equal("id 0: no error\ninit 0: unhandled cuda error: CUDA driver version is "
            .. "insufficient for CUDA runtime version\n",
            run("nccl_without_a_driver", { driver = 0 }))
    end)
end)
