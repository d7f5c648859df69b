local counts = require "spec.exchange.counts"
local ranks = require "spec.support.ranks"

local on = counts.on(it)

describe("a plan from plain segments", function()
    on(4)("moves what its segments say, among the ranks that have some", function()
        local results = ranks.run(4, function(comm)
            local clib = require "clib"
            local C, ffi = clib.C, clib.ffi
            local rows = require "spec.exchange.rows"
            ffi.cdef [[
                cpl_status cpli_plan_from_parts(const cpl_route_part *part, cpl_comm *comm,
                    cpl_dtype dtype, int64_t width, cpl_plan **out);
            ]]
            local rank = comm:rank()
            if rank == 3 then return { "no part" } end
            -- Ranks 0, 1, 2 hand rows 1 and 2 on in a ring, to rows 0 and 1.
            local send = ffi.new("cpl_segment[1]", { { (rank + 1) % 3, 0, 1, 0, 2 } })
            local receive = ffi.new("cpl_segment[1]", { { (rank + 2) % 3, 0, 0, 1, 2 } })
            local part = ffi.new("cpl_route_part", { sends = send, receives = receive,
                n_sends = 1, n_receives = 1, n_source_rows = 3, n_target_rows = 4 })
            local plan = clib.create("cpl_plan", C.cpl_plan_destroy, 1, C.cpli_plan_from_parts,
                part, comm._ptr, C.CPL_F64, 1)
            send[0].slot, receive[0].slot = 99, 99 -- they were copied
            local x = rows.tensor("f64", 3, 1):set(function(i) return rank * 10 + i end)
            local y = rows.tensor("f64", 4, 1):set(function() return -1 end)
            clib.check(C.cpl_plan_start(plan, x._ptr, y._ptr))
            clib.check(C.cpl_plan_finish(plan))
            local forward = y:values()
            clib.check(C.cpl_plan_start_adjoint(plan, y._ptr, x._ptr, true))
            clib.check(C.cpl_plan_finish(plan))
            return { forward, x:values(), tonumber(C.cpl_plan_sent_bytes(plan)),
                C.cpl_plan_in_place(plan) }
        end)
        -- What comes back is what was sent, so the adjoint doubles rows 1 and 2.
        assert.same({ { 21, 22, -1, -1 }, { 0, 2, 4 }, 16, false }, results[1])
        assert.same({ { 1, 2, -1, -1 }, { 10, 22, 24 }, 16, false }, results[2])
        assert.same({ { 11, 12, -1, -1 }, { 20, 42, 44 }, 16, false }, results[3])
        assert.same({ "no part" }, results[4])
    end)

    on(1)("refuses segments that do not fit", function()
        local results = ranks.run(1, function(comm)
            local clib = require "clib"
            local C, ffi = clib.C, clib.ffi
            ffi.cdef [[
                cpl_status cpli_plan_from_parts(const cpl_route_part *part, cpl_comm *comm,
                    cpl_dtype dtype, int64_t width, cpl_plan **out);
            ]]
            local function try(segment)
                local sends = ffi.new("cpl_segment[1]", { segment })
                local part = ffi.new("cpl_route_part", { sends = sends, n_sends = 1,
                    n_source_rows = 3, n_target_rows = 3 })
                local out = ffi.new "cpl_plan *[1]"
                local status = C.cpli_plan_from_parts(part, comm._ptr, C.CPL_F64, 1, out)
                assert(status == C.CPL_INVALID and out[0] == nil)
                return ffi.string(C.cpl_last_error())
            end
            return {
                try { 1, 0, 0, 0, 1 }, try { -1, 0, 0, 0, 1 }, try { 0, 0, 3, 0, 1 },
                try { 0, 0, 0, 0, 0 }, try { 0, 0, -1, 0, 1 }, try { 0, 0, 2, 0, 2 },
            }
        end)
        assert.equal(6, #results[1])
        for _, message in ipairs(results[1]) do
            assert.matches("exchange: segment 0 .* does not fit 1 ranks and 3 rows", message)
        end
    end)
end)

describe("a plan from plain segments", function()
    on(2)("refuses segments that are not in the order of peers", function()
        local results = ranks.run(2, function(comm)
            local clib = require "clib"
            local C, ffi = clib.C, clib.ffi
            ffi.cdef [[
                cpl_status cpli_plan_from_parts(const cpl_route_part *part, cpl_comm *comm,
                    cpl_dtype dtype, int64_t width, cpl_plan **out);
            ]]
            local sends = ffi.new("cpl_segment[2]", { { 1, 0, 0, 0, 1 }, { 0, 0, 1, 1, 1 } })
            local part = ffi.new("cpl_route_part", { sends = sends, n_sends = 2,
                n_source_rows = 2, n_target_rows = 2 })
            local out = ffi.new "cpl_plan *[1]"
            local status = C.cpli_plan_from_parts(part, comm._ptr, C.CPL_F64, 1, out)
            assert(status == C.CPL_INVALID and out[0] == nil)
            return ffi.string(C.cpl_last_error())
        end)
        for _, message in ipairs(results) do
            assert.matches("segment 1 .* does not fit 2 ranks and 2 rows in peer order", message)
        end
    end)
end)

describe("exchanges in flight", function()
    on(2)("are at most 16 transfers at a time", function()
        local _, failure = ranks.try(2, function(comm)
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local stream, rank = rows.stream("thd", 2), comm:rank()
            local a, b = rows.layout("zigzag", stream, 2), rows.layout("contiguous", stream, 2)
            local n, started = a:n_local(rank), {}
            for i = 1, 16 do
                started[i] = exchange.plan(route(a, b), comm, "f32", 1)
                started[i]:start(rows.tensor("f32", n, 1), rows.tensor("f32", n, 1))
            end
            local last = exchange.plan(route(a, b), comm, "f32", 1)
            local x, y = rows.tensor("f32", n, 1), rows.tensor("f32", n, 1)
            local ok, message = pcall(last.start, last, x, y)
            assert(not ok and message:match "more than 16 transfers in flight", message)
            for i = 16, 1, -1 do
                started[i]:finish()
            end
            last:convert(x, y)
            return true
        end)
        assert.is_nil(failure and failure.message)
    end)
end)
