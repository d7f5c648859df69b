local counts = require "spec.exchange.counts"
local ranks = require "spec.support.ranks"

local on = counts.on(it)

local methods = counts.methods { "copy", "direct", "packed", "alltoallv" }

-- For each view (and each partition) of a layout: what comes back is, bit by bit, the sum of what
-- every rank saw of a row, in rank order and then in the order of the segments.
local function send_back(comm, p)
    local clib = require "clib"
    local C = clib.C
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local stream, rank, width = rows.stream("thd", comm:size()), comm:rank(), 3
    local wrong, repeats = {}, 0
    local key = C.cpl_random_key(7, p.dtype)
    local is_integer = p.dtype:sub(1, 1) == "i"
    local one = clib.ffi.new "uint64_t[1]"
    local function rounded(x) -- as the dtype does
        C.cpl_dtype_store(clib.dtypes[p.dtype], one, 0, x)
        return C.cpl_dtype_load(clib.dtypes[p.dtype], one, 0)
    end
    -- What rank `r` sends back for column c of its row `slot`.
    local function gradient(r, slot, c)
        local index = (r * 4096 + slot) * width + c
        return is_integer and tonumber(C.cpl_random_bits(key, index) % 1000) - 500
            or rounded(C.cpl_random_normal(key, index))
    end
    -- The sums of the positions that are here.
    local function expected(r, here, start)
        local sums, seen, is_here = {}, {}, {}
        for _, position in ipairs(here) do is_here[position] = true end
        for viewer = 0, comm:size() - 1 do
            for _, segment in ipairs(r:receives(viewer)) do
                for i = 0, segment.length - 1 do
                    local position = segment.position + i
                    seen[position] = (seen[position] or 0) + 1
                    for c = 0, is_here[position] and width - 1 or -1 do
                        local k = position * width + c
                        sums[k] = rounded((sums[k] or start)
                            + gradient(viewer, segment.slot + i, c))
                    end
                end
            end
        end
        for _, n in pairs(seen) do
            repeats = repeats + (n > 1 and 1 or 0)
        end
        return sums
    end
    local function check(layout, target, what)
        local here, there = layout:positions(rank), rows.positions(target, rank)
        local r = route(layout, target)
        local plan = exchange.plan(r, comm, p.dtype, width, p.method)
        local y = rows.tensor(p.dtype, #there, width):set(function(i)
            return gradient(rank, math.floor(i / width), i % width)
        end)
        local sums_of = {}
        for _, start in ipairs { 0, 0.5, 0 } do
            local accumulate = start ~= 0
            local begin = is_integer and start * 2 or start
            local dx = rows.tensor(p.dtype, #here, width)
            if accumulate then dx:set(function() return begin end) else dx:poison() end
            plan:adjoint(y, dx, accumulate)
            sums_of[begin] = sums_of[begin] or expected(r, here, begin)
            local sums = sums_of[begin]
            for i, value in ipairs(dx:values()) do
                local k = here[math.ceil(i / width)] * width + (i - 1) % width
                if value ~= (sums[k] or begin) then
                    wrong[#wrong + 1] = ("rank %d, %s, start %g, element %d: %.17g, not %.17g")
                        :format(rank, what, begin, i, value, sums[k] or begin)
                    break
                end
            end
        end
    end
    for _, name in ipairs(rows.names) do
        local layout = rows.layout(name, stream, comm:size())
        for _, view in ipairs(rows.view_names) do
            check(layout, rows.view(view, layout), name .. ", " .. view)
        end
        check(layout, rows.layout("other random", stream, comm:size()), name .. ", random")
    end
    return { wrong = wrong, repeats = repeats }
end

-- The rows that a view shows: each is the row of its position, fill rows are 0, traces tell.
local function look(comm, method)
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local stream, rank = rows.stream("thd", comm:size()), comm:rank()
    local wrong, fills = {}, 0
    for _, name in ipairs(rows.names) do
        local layout = rows.layout(name, stream, comm:size())
        local here = layout:positions(rank)
        local x = rows.tensor("bf16", #here, 3):fill_positions(here):mark(layout, rank, true)
        for _, view_name in ipairs(rows.view_names) do
            local view = rows.view(view_name, layout)
            local there = rows.positions(view, rank)
            local plan = exchange.plan(route(layout, view), comm, "bf16", 3, method)
            local y = rows.tensor("bf16", #there, 3):poison()
            plan:convert(x, y)
            -- Only the whole stream on one rank holds each row once.
            local may_move_in_place = view_name == "whole" and comm:size() == 1
            if y:first_wrong(there) or y:first_untraced(there)
                or plan:in_place() ~= may_move_in_place then
                wrong[#wrong + 1] = name .. ", " .. view_name
            end
            for _, position in ipairs(there) do
                fills = fills + (position < 0 and 1 or 0)
            end
        end
    end
    return { wrong = wrong, fills = fills }
end

local function pad_and_restore(comm)
    local exchange = require "cplab.exchange"
    local layouts = require "cplab.layout"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local streams = require "cplab.stream"
    local views = require "cplab.view"
    local cp, rank, wrong = comm:size(), comm:rank(), {}
    local c = layouts.contiguous(streams.thd { cu_seqlens = { 0, 2 * cp - 1, 4 * cp } },
        { cp = cp })
    local to = views.padded_zigzag(c)
    local back = views.onto(to:target(), c)
    local here, there = c:positions(rank), rows.view_positions(to, rank)
    local forward, reverse = route(c, to), route(to:target(), back)
    for _, dtype in ipairs { "f64", "bf16", "i32" } do
        local function tensor(n) return rows.tensor(dtype, n, 2) end
        local x, padded = tensor(#here):fill_positions(here), tensor(#there):poison()
        exchange.plan(forward, comm, dtype, 2):convert(x, padded)
        if padded:first_wrong(there) then wrong[#wrong + 1] = dtype .. ": forward" end
        -- What stands in the pads does not come back.
        local row = padded:look()
        for slot, position in ipairs(there) do
            for column = 0, position < 0 and 1 or -1 do
                row[(slot - 1) * 2 + column] = 12345
            end
        end
        padded:show()
        local restored = tensor(#here):poison()
        exchange.plan(reverse, comm, dtype, 2):convert(padded, restored)
        if restored:first_wrong(here) then wrong[#wrong + 1] = dtype .. ": reverse" end
    end
    local ones, sums = rows.tensor("f64", #there, 2), rows.tensor("f64", #here, 2):poison()
    exchange.plan(forward, comm, "f64", 2):adjoint(ones:set(function() return 1 end), sums)
    for _, value in ipairs(sums:values()) do
        if value ~= 1 then wrong[#wrong + 1] = "gradient " .. value end
    end
    local n_fills = 0
    for _, position in ipairs(there) do n_fills = n_fills + (position < 0 and 1 or 0) end
    return { wrong = wrong, n_fills = comm:sum({ n_fills })[1] }
end

-- Both sides of the identity for every kind of layout and view.
local function dots_of_views(comm, method)
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local n, rank = comm:size(), comm:rank()
    local stream, dots = rows.stream("thd", n), {}
    local kinds = { "fair" }
    for i, name in ipairs(rows.kinds) do kinds[i + 1] = name end
    for _, name in ipairs(kinds) do
        local layout = rows.layout(name, stream, n)
        for _, view_name in ipairs(rows.view_names) do
            local view = rows.view(view_name, layout)
            local plan = exchange.plan(route(layout, view), comm, "i64", 2, method)
            local x = rows.draw(rank, layout:n_local(rank), 1)
            local y = rows.draw(rank, view:n_local(rank), 2)
            local ax = rows.draw(rank, view:n_local(rank), 3)
            local aty = rows.draw(rank, layout:n_local(rank), 4)
            plan:convert(x, ax)
            plan:adjoint(y, aty)
            dots[#dots + 1] = { rows.dot(comm, ax, y), rows.dot(comm, x, aty) }
        end
    end
    return dots
end

describe("a view", function()
    for _, method in ipairs(methods) do
        for _, cp in ipairs(counts.of(method == methods[1] and { 1, 2, 3, 4, 5, 6, 7, 8 }
            or { 1, 2, 3, 4, 8 })) do
            it(("shows each rank its rows by %s, %d ranks"):format(method, cp), function()
                local fills = 0
                for _, result in ipairs(ranks.run(cp, look, method)) do
                    assert.same({}, result.wrong)
                    fills = fills + result.fills
                end
                assert.is_true(fills > 0)
            end)
            it(("gets its gradients summed in rank order by %s, %d ranks"):format(method, cp),
                function()
                    for _, dtype in ipairs { "i64", "i32", "f64", "f32", "bf16" } do
                        for _, result in ipairs(ranks.run(cp, send_back,
                            { dtype = dtype, method = method })) do
                            assert.same({}, result.wrong)
                            assert.is_true(result.repeats > 0)
                        end
                    end
                end)
        end
    end

    for _, method in ipairs(methods) do
        for _, n in ipairs(counts.of { 1, 3, 8 }) do
            it(("is adjoint by %s, %d ranks: <Ax, y> = <x, A'y> exactly in integers"):format(
                method, n), function()
                local results = ranks.run(n, dots_of_views, method)
                assert.equal(48, #results[1])
                for _, two in ipairs(results[1]) do
                    assert.equal(two[1], two[2])
                end
            end)
        end
    end

    on(3)("has an adjoint that adds rows, not traces, and counts what goes back", function()
        local results = ranks.run(3, function(comm)
            local C = require("clib").C
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local rank = comm:rank()
            local layout = rows.layout("zigzag", rows.stream("thd", 3), 3)
            local view = rows.view("keys", layout)
            local r = route(layout, view)
            local plan = exchange.plan(r, comm, "f64", 2)
            local function moved(segments) -- bytes and messages of other ranks
                local sum, last = { 0, 0 }, rank
                for _, segment in ipairs(segments) do
                    if segment.peer ~= rank then
                        sum[1] = sum[1] + segment.length * 16
                        sum[2] = sum[2] + (segment.peer ~= last and 1 or 0)
                        last = segment.peer
                    end
                end
                return sum
            end
            local function sent(f, ...)
                C.cpl_counters_reset()
                f(plan, ...)
                local counters = C.cpl_counters_here()
                return { tonumber(counters.sent_bytes), tonumber(counters.sent_messages) }
            end
            local x = rows.tensor("f64", layout:n_local(rank), 2):mark(layout, rank, true)
            local y = rows.tensor("f64", view:n_local(rank), 2)
            local out = sent(plan.convert, x, y)
            local added = sent(plan.adjoint, y, x, true)
            local kept = x:first_untraced(layout:positions(rank)) == nil
            local back = sent(plan.adjoint, y, x)
            return { kept = kept, lost = x._ptr.trace == nil, y_traced = y._ptr.trace ~= nil,
                out = out, added = added, back = back,
                sends = moved(r:sends(rank)), receives = moved(r:receives(rank)) }
        end)
        local differ = false
        for _, result in ipairs(results) do
            assert.is_true(result.y_traced and result.kept and result.lost)
            assert.same(result.sends, result.out)
            assert.same(result.receives, result.added)
            assert.same(result.receives, result.back)
            differ = differ or result.sends[1] ~= result.receives[1]
        end
        assert.is_true(differ)
    end)

    -- Published: cu [0, 2*cp - 1, 4*cp]: pads are 0, the reverse restores, and the gradient of the
    -- pads is dropped: of a sum over all padded rows each source row gets 1.
    for cp = 1, 5 do
        local name = "of padded zigzag fills with 0, drops what is in pads, restores, %d ranks"
        on(cp)(name:format(cp), function()
            for _, result in ipairs(ranks.run(cp, pad_and_restore)) do
                assert.same({}, result.wrong)
                assert.is_true(result.n_fills > 0)
            end
        end)
    end
end)
