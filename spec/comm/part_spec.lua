-- Parts of a group: their collectives are of their members, and what is planned on them is carried
-- by the whole.
local comms = require "cplab.comm"
local counts = require "spec.exchange.counts"
local message = require "spec.support.message"
local ranks = require "spec.support.ranks"

local it4 = ranks.with(4, it)
local sizes = ranks.sizes { 2, 3, 4, 6, 8 }

describe("a part of a comm", function()
    for _, n in ipairs(sizes) do
        it(("has the collectives of its members, even and odd ranks of %d at once"):format(n),
            function()
                local results = ranks.run(n, function(comm)
                    local members, rank = {}, comm:rank()
                    for other = rank % 2, comm:size() - 1, 2 do members[#members + 1] = other end
                    local part = comm:part(members)
                    -- The odd ones do more: the even ones wait for none of it.
                    for _ = 1, rank % 2 * 3 do part:barrier() end
                    part:barrier()
                    local values = {}
                    for i = 1, 5000 do -- more than a sum takes at a time
                        values[i] = math.sin(i * 1.7 + rank * 31) * 10 ^ (rank % 5)
                    end
                    return {
                        rank = part:rank(), size = part:size(), transport = part:transport(),
                        gathered = part:gather { name = ("x"):rep(rank) },
                        sum = part:sum(values), values = values,
                        max = part:max { rank, -rank },
                        yes = part:agree(true), no = part:agree(rank > 1),
                    }
                end)
                for rank = 0, n - 1 do
                    local r, members = results[rank + 1], {}
                    for other = rank % 2, n - 1, 2 do members[#members + 1] = other end
                    assert.equal((rank - rank % 2) / 2, r.rank)
                    assert.equal(#members, r.size)
                    assert.equal(ranks.carrier(), r.transport)
                    local total = {}
                    for i, other in ipairs(members) do
                        assert.same({ name = ("x"):rep(other) }, r.gathered[i])
                        for j, value in ipairs(results[other + 1].values) do
                            total[j] = i == 1 and value or total[j] + value
                        end
                    end
                    assert.same(total, r.sum)
                    assert.same({ members[#members], -members[1] }, r.max)
                    assert.same({ true, false }, { r.yes, r.no })
                end
            end)
    end

    it4("sums tensors of every dtype, broadcasts, and has parts of its own", function()
        ranks.run(4, function(comm)
            local clib, rows = require "clib", require "spec.exchange.rows"
            if comm:rank() == 0 then return true end
            local part = comm:part { 1, 2, 3 }
            local inner = part:rank() > 0 and part:part { 1, 2 }
            for _, dtype in ipairs { "f64", "f32", "i64", "i32" } do
                for _, n in ipairs { 0, 1, 5003 } do
                    local t = rows.tensor(dtype, n, 1):set(function(i)
                        return i % 97 * comm:rank()
                    end)
                    part:sum_tensor(t)
                    for i, value in ipairs(t:values()) do
                        assert(value == (i - 1) % 97 * 6, dtype)
                    end
                end
            end
            local box = clib.ffi.new("int[1]", 10 + comm:rank())
            clib.check(clib.C.cpl_comm_broadcast(part._ptr, box, 4, 2))
            assert(box[0] == 13)
            if inner then
                assert(inner:size() == 2 and inner:sum { comm:rank() }[1] == 5)
            end
            return true
        end)
    end)

    it4("carries exchanges between its members, by every method but the all-to-all", function()
        local methods = counts.methods { "auto", "copy", "direct", "packed" }
        local results = ranks.run(4, function(comm, p)
            local clib, cplab = require "clib", require "cplab"
            local rows = require "spec.exchange.rows"
            local C = clib.C
            local members = comm:rank() % 2 == 0 and { 0, 2 } or { 1, 3 }
            local part = comm:part(members)
            local stream = cplab.stream.thd { lengths = { 8, 16 } }
            local from = cplab.layout.zigzag(stream, { cp = 2 })
            local to = cplab.layout.contiguous(stream, { cp = 2 })
            local route = cplab.route(from, to)
            local rank, sent = part:rank(), {}
            for _, method in ipairs(p) do
                local plan = clib.create("cpl_plan", C.cpl_plan_destroy, 1, C.cpl_plan_create,
                    route._ptr, part._ptr, C.CPL_F64, 1, method)
                local x = rows.tensor("f64", from:n_local(rank), 1)
                local y = rows.tensor("f64", to:n_local(rank), 1)
                local here, there = from:positions(rank), to:positions(rank)
                -- Rows of the other part differ: none may come from there.
                x:set(function(i) return here[i + 1] + 1000 * (comm:rank() % 2) end)
                clib.check(C.cpl_plan_start(plan, x._ptr, y._ptr))
                clib.check(C.cpl_plan_finish(plan))
                for i, value in ipairs(y:values()) do
                    assert(value == there[i] + 1000 * (comm:rank() % 2), method)
                end
                sent[#sent + 1] = tonumber(C.cpl_plan_sent_bytes(plan))
            end
            local ok, text = pcall(clib.create, "cpl_plan", C.cpl_plan_destroy, 1,
                C.cpl_plan_create, route._ptr, part._ptr, C.CPL_F64, 1, "alltoallv")
            return { sent = sent, ok = ok, text = tostring(text) }
        end, methods)
        for _, r in ipairs(results) do
            assert.is_false(r.ok)
            assert.truthy(r.text:find("needs an all-to-all", 1, true), r.text)
            assert.is_true(r.sent[1] > 0)
            for _, bytes in ipairs(r.sent) do assert.equal(r.sent[1], bytes) end
        end
    end)

    it4("names the ranks of the whole where one fails", function()
        local _, failure = ranks.try(4, function(comm)
            local part = comm:part(comm:rank() % 2 == 0 and { 0, 2 } or { 1, 3 })
            if comm:rank() == 3 then error("enough", 0) end
            part:barrier()
            comm:barrier()
        end)
        assert.equal(3, failure.rank)
        assert.truthy(failure.message:find("enough", 1, true))
    end)

    it("keeps nothing where memory ends", function()
        local clib = require "clib"
        local C, ffi = clib.C, clib.ffi
        local list, out = ffi.new("int[1]", 0), ffi.new "cpl_comm *[1]"
        local function live_blocks()
            local stats = ffi.new "cpl_memory_stats"
            C.cpl_memory(stats)
            return tonumber(stats.live_blocks)
        end
        -- The collector would give back what earlier specs left.
        collectgarbage()
        collectgarbage()
        collectgarbage "stop"
        finally(function() collectgarbage "restart" end)
        local failures, before = 0, live_blocks()
        -- Fewer: a letter of the host that was still on its way is gone.
        local function check_blocks()
            local now = live_blocks()
            assert.is_true(now == before or ranks.transport() == "mpi" and now < before)
            before = now
        end
        repeat
            C.cpl_memory_fail_after(failures)
            local status = C.cpl_comm_part(C.cpl_comm_self(), list, 1, out)
            C.cpl_memory_fail_after(-1)
            if status ~= C.CPL_OK then
                assert.equal(C.CPL_MEMORY, tonumber(status))
                assert.is_true(out[0] == nil)
                check_blocks()
                failures = failures + 1
            end
        until status == C.CPL_OK
        assert.is_true(failures >= 4)
        C.cpl_comm_part_destroy(out[0])
        C.cpl_comm_part_destroy(nil)
        check_blocks()
    end)

    it("needs its ranks in order, and this one among them", function()
        local self = comms.self()
        assert.equal("comm: a part needs ranks of 0 .. 0 in increasing order (its number 0 is 1)",
            message(function() self:part { 1 } end))
        assert.equal("comm: a part needs ranks of 0 .. 0 in increasing order (its number 1 is 0)",
            message(function() self:part { 0, 0 } end))
        assert.equal("comm: rank 0 makes a part of 0 ranks without itself",
            message(function() self:part {} end))
        assert.equal(1, self:part { 0 }:size())
        assert.same({ 5 }, self:part { 0 }:sum { 5 })
    end)
end)
