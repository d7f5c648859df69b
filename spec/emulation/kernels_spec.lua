-- What the emulator promises to kernels, in every order of threads, and what it reports.
local emulation = require "spec.support.emulation"

local run = emulation.run
local orders = { "forward", "reverse", "random:3", "random:4" }

-- That a trial prints exactly this in every order.
local function always(name, text)
    for _, order in ipairs(orders) do
        assert.equal(text, run(name, { order = order }), name .. ", " .. order)
    end
end

-- That a trial ends with the device's fault in every order, and that its sentence is like this.
local function always_faults(name, code, pattern)
    for _, order in ipairs(orders) do
        local text = run(name, { order = order })
        assert.matches("sync: " .. code .. ": kernel [%w_]+, block %(%d+,%d+,%d+%), thread "
            .. "%(%d+,%d+,%d+%): " .. pattern .. "\n$", text, 1, name .. ", " .. order)
        -- The sentence stands on standard error too, where the program asks for nothing.
        assert.matches("^cuda emulation: kernel ", text, 1, name .. ", " .. order)
    end
end

local function turns(text)
    local list = {}
    for n in text:match "turns: ([%d ]*)\n":gmatch "%d+" do list[#list + 1] = tonumber(n) end
    return list
end

describe("the emulator, to kernels", function()
    local it = emulation.where_built(it, pending)

    it("runs threads and blocks forward, in reverse, and at random", function()
        local forward, reverse = "turns: 0 1 2 3 4 5 6 7 8 9 10 11\n",
            "turns: 11 10 9 8 7 6 5 4 3 2 1 0\n"
        assert.equal(forward, run "order")
        assert.equal(forward, run("order", { order = "forward" }))
        assert.equal(reverse, run("order", { order = "reverse" }))
        local random = run("order", { order = "random:3" })
        assert.equal(random, run("order", { order = "random:3" }))
        assert.not_equal(random, run("order", { order = "random:4" }))
        local sorted = turns(random)
        assert.not_same(turns(forward), sorted)
        table.sort(sorted)
        assert.same(turns(forward), sorted)
    end)

    it("keeps the order behind a barrier", function()
        local after = "order_after_a_barrier"
        assert.equal("turns: 0 1 2 3 4 5 6 7\n", run(after))
        assert.equal("turns: 7 6 5 4 3 2 1 0\n", run(after, { order = "reverse" }))
        assert.not_equal(run(after, { order = "random:3" }), run(after, { order = "random:4" }))
    end)

    it("counts threads and blocks in three dimensions", function()
        always("three_dimensions", "0 of 5040 wrong\n")
    end)

    it("lets a block meet in a barrier; without it the result is wrong", function()
        always("barrier", "right\n")
        always("barrier_forgotten", "wrong\n")
    end)

    it("lets a warp meet in a barrier; without it the result is wrong", function()
        always("warp_barrier", "right\n")
        always("warp_barrier_forgotten", "wrong\n")
    end)

    it("shuffles and votes as CUDA does, also in parts of a warp", function()
        always("warp", "wrong: 0 0 0 0 0 0 0 0\n")
    end)

    it("gives static and dynamic shared memory", function()
        always("dynamic_shared", "0 wrong\n")
        always_faults("dynamic_shared_not_given", "cudaErrorLaunchFailure",
            "it uses dynamic shared memory, but was launched with none")
    end)

    it("adds atomically", function()
        always("atomics", "sum: 3000\nfloats: 500\nleast: 0\n")
    end)

    it("multiplies matrices as tensor cores do, with fragments of ldmatrix or without", function()
        always("tensor_cores", "wrong: 0 0 0\n")
        always_faults("ldmatrix_between_rows", "cudaErrorMisalignedAddress",
            ".*: ldmatrix of a row at .*")
    end)

    it("lands asynchronous copies as late as the wait allows", function()
        always("async_copy", "11111111\n11111111\n")
        always("async_copy_waited_for_too_few", "11111111\ncccccccc\n")
    end)

    it("gives fresh memory that holds garbage", function()
        always("poison", "cbcbcbcb\ncbcbcbcb\ncdcdcdcd\n")
    end)

    it("refuses launches that CUDA refuses", function()
        local refused = ([[
threads: cudaErrorInvalidConfiguration: kernel diverge: a block of 1025 x 1 x 1 threads
no blocks: cudaErrorInvalidConfiguration: kernel diverge: a grid of 0 x 1 x 1 blocks
grid: cudaErrorInvalidConfiguration: kernel diverge: a grid of 1 x 65536 x 1 blocks
shared: cudaErrorInvalidValue: kernel diverge: 49153 bytes of dynamic shared memory, 49152 are @
more than there is: cudaErrorInvalidValue: 233472 bytes of dynamic shared memory, at most 232448
allowed: cudaSuccess
other device: cudaErrorInvalidResourceHandle: kernel diverge: the stream is not one of device 1
last: cudaErrorInvalidResourceHandle: kernel diverge: the stream is not one of device 1
last: cudaSuccess
]]):gsub("@", "allowed")
        assert.equal(refused, run "launches_refused")
    end)

    describe("reports", function()
        it("nothing where all threads meet", function()
            always("convergent", "sync: cudaSuccess\n")
        end)

        it("a thread that ends while its block meets", function()
            local pattern = "thread %d+ .*kernels%.cu:%d+.*"
            always_faults("thread_ends_before_a_barrier", "cudaErrorLaunchFailure", pattern)
            always_faults("thread_ends_beside_a_barrier", "cudaErrorLaunchFailure", pattern)
        end)

        it("two barriers that were taken for one", function()
            always_faults("two_barriers", "cudaErrorLaunchFailure", "thread 3 waits in the "
                .. "barrier at kernels%.cu:%d+, others in the one at kernels%.cu:%d+")
        end)

        it("masks of lanes that do not come", function()
            always_faults("mask_of_an_ended_lane", "cudaErrorLaunchFailure",
                ".*mask 0xffffffff.*")
            always_faults("lane_outside_its_mask", "cudaErrorLaunchFailure", "thread %d+ is not in "
                .. "its own mask 0xfffffffe at kernels%.cu:%d+")
            always_faults("shuffle_from_outside_the_mask", "cudaErrorLaunchFailure", "%S+ a "
                .. "shuffle reads lane 20, which is not in its mask 0x0000ffff")
            always_faults("masks_that_do_not_meet", "cudaErrorLaunchFailure", ".*mask 0x0*7.*")
            always_faults("two_warp_operations", "cudaErrorLaunchFailure", "lane %d+ of warp %d+ "
                .. "is at kernels%.cu:%d+, others of its mask 0xffffffff at kernels%.cu:%d+")
        end)

        it("threads that wait for each other in a ring", function()
            assert.matches("sync: cudaErrorLaunchFailure: kernel wait_for_neighbour: threads wait "
                .. "for what never comes: lanes 0x%x+ of warp 0 at kernels%.cu:%d+ .*\n$",
                run "deadlock")
        end)

        it("an illegal access with the kernel's name, until the device is reset", function()
            local sentence = "kernel touch, block (0,0,0), thread (0,0,0): illegal access to "
                .. "address (nil)\n"
            local illegal = "cudaErrorIllegalAddress: " .. sentence
            assert.equal("cuda emulation: " .. sentence .. "sync: " .. illegal .. "malloc: "
                .. illegal .. "last: " .. illegal .. "last: " .. illegal
                .. "device 1: cudaSuccess\ndevice 0: " .. illegal
                .. "reset: cudaSuccess\nmalloc: cudaSuccess\n", run "null_pointer")
        end)

        it("accesses past the end, past the stack, to freed memory, and misaligned ones", function()
            always_faults("freed_memory", "cudaErrorIllegalAddress",
                "illegal access to address 0x%x+")
            always_faults("misaligned", "cudaErrorMisalignedAddress", "an access of 16 bytes is "
                .. "misaligned, or its address is none at all")
            always_faults("large_stack", "cudaErrorLaunchFailure",
                "the thread needs more stack than the emulator's %d+ bytes")
            local text = run "past_the_end"
            assert.matches("\ninside: cudaSuccess\noutside: cudaErrorIllegalAddress: kernel touch",
                text)
        end)
    end)
end)
