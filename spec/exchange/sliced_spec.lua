-- The whole stream with a slice of the row on each rank: what a headwise layer exchanges.
local counts = require "spec.exchange.counts"
local ranks = require "spec.support.ranks"

local on = counts.on(it)

local function to_slices_and_back(comm, method)
    local cplab = require "cplab"
    local exchange = require "cplab.exchange"
    local n, rank, width, wrong = comm:size(), comm:rank(), 3, {}
    local stream = cplab.stream.thd {
        lengths = { 4 * n, 0, 2 * n }, real = { 4 * n - 1, 0, 2 * n },
    }
    for _, kind in ipairs { "contiguous", "zigzag", "mirror", "striped" } do
        local layout = cplab.layout.create(kind, stream, { cp = n })
        local here = layout:positions(rank)
        -- Column c of position p holds 100 p + c; slice t has the columns t * width and on.
        local packed = {}
        for t = 0, n - 1 do
            for _, position in ipairs(here) do
                for c = 0, width - 1 do
                    packed[#packed + 1] = 100 * position + t * width + c
                end
            end
        end
        local view = cplab.view.whole(layout, { sliced = true })
        local plan = exchange.plan(cplab.route(layout, view), comm, "f64", width, method)
        local src = cplab.tensor.from(packed, { n * #here, width }, "f64")
        local dst = cplab.tensor.zeros({ 6 * n, width }, "f64"):fill(-1)
        plan:convert(src, dst)
        local got, back = dst:totable(), cplab.tensor.zeros({ n * #here, width }, "f64"):fill(-1)
        for position = 0, 6 * n - 1 do
            for c = 0, width - 1 do
                if got[position * width + c + 1] ~= 100 * position + rank * width + c then
                    wrong[#wrong + 1] = kind .. ": forward"
                end
            end
        end
        plan:adjoint(dst, back)
        for i, value in ipairs(back:totable()) do
            if value ~= packed[i] then wrong[#wrong + 1] = kind .. ": adjoint" end
        end
        -- A rank sends each other rank its slice of the local rows, no more.
        if plan:sent_bytes() ~= (n - 1) * #here * width * 8 then
            wrong[#wrong + 1] = kind .. ": bytes"
        end
    end
    return wrong
end

describe("the whole stream in slices", function()
    for _, method in ipairs(counts.methods { "copy", "direct", "packed", "alltoallv" }) do
        for _, n in ipairs(counts.of { 1, 2, 3, 5, 8 }) do
            it(("is exact on %d ranks by %s, forward, back and in bytes"):format(n, method),
                function()
                    for _, wrong in ipairs(ranks.run(n, to_slices_and_back, method)) do
                        assert.same({}, wrong)
                    end
                end)
        end
    end

    on(2)("does not take rows that are not packed", function()
        local failure = select(2, ranks.try(2, function(comm)
            local cplab = require "cplab"
            local layout = cplab.layout.zigzag(cplab.stream.thd { lengths = { 8 } }, { cp = 2 })
            local view = cplab.view.whole(layout, { sliced = true })
            local plan = require "cplab.exchange".plan(cplab.route(layout, view), comm, "f64", 2)
            plan:convert(cplab.tensor.zeros({ 4, 2 }, "f64"), cplab.tensor.zeros({ 8, 2 }, "f64"))
        end))
        assert.truthy(failure.message:find("4 rows", 1, true), failure.message)
    end)

    it("says so, and is another view than the whole rows", function()
        local cplab = require "cplab"
        local layout = cplab.layout.zigzag(cplab.stream.thd { lengths = { 8 } }, { cp = 2 })
        local whole, sliced = cplab.view.whole(layout), cplab.view.whole(layout, { sliced = true })
        assert.equal("whole of zigzag, cp 2, thd of 1 sequence, 8 positions, sliced",
            sliced:describe())
        assert.not_equal(whole:describe(), sliced:describe())
        assert.has_error(function() cplab.view.whole(layout, { slices = true }) end)
    end)
end)
