local comms = require "cplab.comm"
local ranks = require "spec.support.ranks"

local sizes = ranks.sizes { 1, 2, 3, 5, 8 }
local transport = ranks.carrier()
local it3 = ranks.with(3, it)

describe("a comm", function()
    for _, n in ipairs(sizes) do
        it(("knows who is who, %d ranks"):format(n), function()
            local results = ranks.run(n, function(comm)
                comm:barrier()
                return { comm:rank(), comm:size(), comm:transport(), tostring(comm) }
            end)
            for rank = 0, n - 1 do
                assert.same({ rank, n, transport,
                    ("comm: rank %d of %d, %s"):format(rank, n, transport) }, results[rank + 1])
            end
        end)

        it(("gathers values of different sizes, %d ranks"):format(n), function()
            local results = ranks.run(n, function(comm)
                return comm:gather { name = ("x"):rep(comm:rank() * 7), zero = "a\0b" }
            end)
            for _, list in ipairs(results) do
                assert.equal(n, #list)
                for i, value in ipairs(list) do
                    assert.same({ name = ("x"):rep((i - 1) * 7), zero = "a\0b" }, value)
                end
            end
        end)

        it(("sums in rank order, to the same bits everywhere, %d ranks"):format(n), function()
            local function values(rank)
                local list = {}
                for i = 1, 1001 do
                    list[i] = math.sin(i * 1.7 + rank * 31) * 10 ^ (rank % 5)
                end
                return list
            end
            local results = ranks.run(n, function(comm, p)
                return comm:sum(p[comm:rank() + 1])
            end, (function()
                local all = {}
                for rank = 0, n - 1 do
                    all[rank + 1] = values(rank)
                end
                return all
            end)())
            local expected = values(0)
            for rank = 1, n - 1 do
                for i, value in ipairs(values(rank)) do
                    expected[i] = expected[i] + value
                end
            end
            for _, result in ipairs(results) do
                assert.same(expected, result)
            end
        end)

        it(("takes maxima, where NaN wins, %d ranks"):format(n), function()
            local results = ranks.run(n, function(comm)
                local rank, size = comm:rank(), comm:size()
                local m = comm:max { rank, -rank, rank == size - 1 and 0 / 0 or 1, -1 / 0 }
                local long = {}
                for i = 1, 5000 do
                    long[i] = i % size == rank and i or -i
                end
                long = comm:max(long)
                for i = 1, 5000 do
                    assert(long[i] == i)
                end
                return { m[1], m[2], m[3] ~= m[3], m[4], #comm:max {} }
            end)
            for _, result in ipairs(results) do
                assert.same({ n - 1, 0, true, -1 / 0, 0 }, result)
            end
        end)

        it(("agrees only if all say yes, %d ranks"):format(n), function()
            local results = ranks.run(n, function(comm)
                return { comm:agree(true), comm:agree(comm:rank() ~= comm:size() - 1) }
            end)
            for _, result in ipairs(results) do
                assert.same({ true, false }, result)
            end
        end)
    end

    it3("tells all ranks whose status was the worst, and why", function()
        local results = ranks.run(3, function(comm)
            local clib = require "clib"
            local mine = clib.C.CPL_OK
            if comm:rank() == 1 then
                mine = clib.C.cpl_world_create(0, 1, clib.box "cpl_world *")
            end
            local status = clib.C.cpl_comm_agree(comm._ptr, mine)
            return { tonumber(status), clib.ffi.string(clib.C.cpl_last_error()) }
        end)
        local own = "world: 0 ranks, not 1 to 1024"
        assert.same({ 1, "rank 1 failed: " .. own }, results[1])
        assert.same({ 1, own }, results[2])
        assert.same({ 1, "rank 1 failed: " .. own }, results[3])
    end)

    it3("sums tensors of every dtype", function()
        ranks.run(3, function(comm)
            local rows = require "spec.exchange.rows"
            for _, dtype in ipairs { "f64", "f32", "i64", "i32", "bf16" } do
                -- bf16 holds all integers up to 256.
                for _, n in ipairs { 0, 1, 2, 3, dtype == "bf16" and 43 or 1031 } do
                    local t = rows.tensor(dtype, n, 1):set(function(i)
                        return i * (comm:rank() + 1)
                    end)
                    comm:sum_tensor(t)
                    for i, value in ipairs(t:values()) do
                        assert(value == (i - 1) * 6, dtype)
                    end
                end
            end
            return true
        end)
    end)

    it("has a sentence for memory that the machine has not, and goes on", function()
        local function ask(comm)
            local clib = require "clib"
            local tensors = require "cplab.tensor"
            local stats = clib.ffi.new "cpl_memory_stats"
            local function live()
                clib.C.cpl_memory(stats)
                return tonumber(stats.live_blocks)
            end
            local can_give = tonumber(clib.C.cpl_memory_available())
            tensors.zeros { 1 } -- a device lists its blocks, from the first one on
            local before = live()
            local ok, message = pcall(tensors.zeros, { 2 ^ 45 }, "f64") -- more than mmap has
            local after = live()
            local n = comm and comm:sum({ tensors.zeros({ 2 }):totable()[1] + 1 })[1] or 1
            return { ok, message, can_give > 0 and can_give < 2 ^ 45, after - before, n }
        end
        local results = ranks.run(1, ask) -- others would count in the same process
        results[2] = ask()
        for i, result in ipairs(results) do
            assert.matches(i == 1 and ranks.device() ~= "cpu"
                and "out of memory in taking 2814749767%d+ bytes: %d+ of %d+ bytes are left$"
                or "memory: no 2814749767%d+ bytes left: the machine can give %d+$", result[2])
            assert.same({ false, true, 0, 1 }, { result[1], result[3], result[4], result[5] })
        end
    end)

    it("of one rank needs no world", function()
        local comm = comms.self()
        comm:barrier()
        assert.same({ 0, 1, "self" }, { comm:rank(), comm:size(), comm:transport() })
        assert.same({ 1.5, -2 }, comm:sum { 1.5, -2 })
        assert.same({ 3 }, comm:max { 3 })
        assert.same({ { k = "v" } }, comm:gather { k = "v" })
        assert.is_true(comm:agree(true))
        assert.is_false(comm:agree(false))
    end)
end)
