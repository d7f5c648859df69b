-- Gather and conversion in one exchange, and its adjoint: the sum over tensor parallelism,
-- scattered to the windows; by every method, on the transport that runs the specs.
local counts = require "spec.exchange.counts"
local ranks = require "spec.support.ranks"

local METHODS = counts.methods { "auto", "copy", "direct", "packed", "alltoallv" }
local GROUPS = { { 1, 2 }, { 2, 2 }, { 1, 4 }, { 3, 2 }, { 4, 2 }, { 2, 4 } }

local function there_and_back(comm, p)
    local C = require("clib").C
    local cplab = require "cplab"
    local exchange = require "cplab.exchange"
    local rows = require "spec.exchange.rows"
    local cp, tp, rank, wrong = p.cp, p.tp, comm:rank(), {}
    local function expect(ok, what)
        if not ok then wrong[#wrong + 1] = p.method .. ": " .. what end
    end
    local m = 2 * cp * tp
    local s = cplab.stream.thd { lengths = { 3 * m, m, 0, m },
        real = { 3 * m - 1, m, 0, 1 } }
    local order
    if p.reversed then
        order = {}
        for i = 1, cp * tp do order[i] = cp * tp - i end
    end
    for _, names in ipairs { { "contiguous", "contiguous" }, { "zigzag", "contiguous" },
        { "contiguous", "mirror" }, { "zigzag", "zigzag" } } do
        local what = table.concat(names, " -> ")
        local from = cplab.layout[names[1]](s, { cp = cp, tp = tp, group_order = order })
        local to = cplab.layout[names[2]](s, { cp = cp })
        local cp_rank = math.floor((order and cp * tp - 1 - rank or rank) / tp)
        local here, there = from:positions(rank), to:positions(cp_rank)
        local plan = exchange.plan(cplab.route(from, cplab.view.shard(from, to)), comm, "f64", 3,
            p.method)
        local x = rows.tensor("f64", #here, 3):fill_positions(here):mark(from, rank, true)
        local y = rows.tensor("f64", #there, 3):poison()
        for _ = 1, 2 do
            plan:convert(x, y)
            expect(not y:first_wrong(there), what)
            expect(not y:first_untraced(there), what .. ", trace")
            -- What arrives are rows of the target: a layer of the CP ranks takes it as its own.
            expect(y._ptr.layout == C.cpl_layout_digest(to._ptr), what .. ", mark")
        end

        -- A partial sum is a number that only its position and rank have; rank 0 first.
        local function part(r, position, column)
            return tonumber(C.cpl_random_bits(r + 1, 3 * position + column) % 2 ^ 20)
        end
        y:set(function(i) return part(rank, there[math.floor(i / 3) + 1], i % 3) end)
        for _, accumulate in ipairs { false, true, false } do
            local dx = rows.tensor("f64", #here, 3)
            dx:set(function() return accumulate and 0.5 or -7 end)
            plan:adjoint(y, dx, accumulate)
            for i, value in ipairs(dx:values()) do
                local sum = accumulate and 0.5 or 0
                for r = 0, comm:size() - 1 do
                    local other = math.floor((order and cp * tp - 1 - r or r) / tp)
                    local holder = to:locate(here[math.ceil(i / 3)])
                    if other == holder then
                        sum = sum + part(r, here[math.ceil(i / 3)], (i - 1) % 3)
                    end
                end
                if value ~= sum then
                    expect(false, ("%s, sum %g of element %d, not %g"):format(what, value, i, sum))
                    break
                end
            end
            expect((dx._ptr.trace == nil) == accumulate, what .. ", trace of a sum")
            if not accumulate then
                expect(not dx:first_untraced(here), what .. ", trace home")
            end
        end

        -- A row that one tp rank took for another: the positions do not add up.
        if tp > 1 and #there > 1 and rank == 0 then
            local trace = y:trace()
            trace[0] = trace[0] + 1
            C.cpl_tensor_set_trace(y._ptr, trace)
        end
        local dx, bad = rows.tensor("f64", #here, 3), 0
        plan:adjoint(y, dx, false)
        local found = dx:trace()
        for slot, position in ipairs(here) do
            if found[slot - 1] ~= position then
                bad = bad + 1
                expect(found[slot - 1] == -1, what .. ", a wrong row is none")
            end
        end
        expect(comm:sum { bad }[1] == 1, what .. ", one wrong row")
    end
    return wrong
end

describe("gather and conversion in one exchange", function()
    for _, group in ipairs(GROUPS) do
        local cp, tp = unpack(group)
        local it_n = ranks.with(cp * tp, it)
        for _, method in ipairs(METHODS) do
            it_n(("and its adjoint, cp %d, tp %d, %s"):format(cp, tp, method), function()
                for _, reversed in ipairs { false, true } do
                    local results = ranks.run(cp * tp, there_and_back,
                        { cp = cp, tp = tp, method = method, reversed = reversed })
                    for _, wrong in ipairs(results) do assert.same({}, wrong) end
                end
            end)
        end
    end

    ranks.with(4, it)("is no partition: composed refuses it", function()
        local results = ranks.run(4, function(comm)
            local cplab, exchange = require "cplab", require "cplab.exchange"
            local s = cplab.stream.thd { lengths = { 16 } }
            local from = cplab.layout.zigzag(s, { cp = 2, tp = 2 })
            local r = cplab.route(from, cplab.view.shard(from, cplab.layout.zigzag(s, { cp = 2 })))
            local ok, text = pcall(exchange.plan, r, comm, "f64", 1, "composed")
            return { ok = ok, text = tostring(text) }
        end)
        for _, r in ipairs(results) do
            assert.is_false(r.ok)
            assert.truthy(r.text:find("composed", 1, true), r.text)
        end
    end)
end)
