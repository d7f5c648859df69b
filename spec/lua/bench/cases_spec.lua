-- The rows of a bench and what they say.
local cases = require "cplab.bench.cases"
local figures = require "cplab.bench.figures"
local layouts = require "cplab.layout"
local options = require "cplab.bench.options"
local streams = require "cplab.stream"
local tables = require "cplab.bench.table"

local function make(given)
    given.max_bytes = given.max_bytes or given.min_bytes
    return cases.make(assert(options.read(given)))
end

describe("cases of a bench", function()
    it("are the product of all lists", function()
        local list = make { min_bytes = "8K", max_bytes = "16K", step_factor = "2",
            row_bytes = 64, from = "zigzag,mirror", method = "copy,direct", dtype = "f32,bf16",
            sequences = "1,2" }
        assert.equal(2 * 2 * 2 * 2 * 2, #list)
        local seen = {}
        for _, case in ipairs(list) do
            assert.is_nil(case.reason)
            local key = table.concat({ case.asked_bytes, case.from, case.method, case.dtype,
                case.sequences }, " ")
            assert.is_nil(seen[key])
            seen[key] = true
        end
    end)

    it("round the rows so that the layouts divide", function()
        local case = make({ min_bytes = "1000", row_bytes = 8, cp = 3, from = "zigzag",
            method = "copy" })[1]
        assert.same({ 124, 992, { 372 } }, { case.rows, case.bytes, case.lengths })
    end)

    it("keep the reason why there is no such row", function()
        local list = make { min_bytes = "1K", row_bytes = 64, sequences = "1,1000",
            from = "zigzag", method = "copy" }
        assert.is_nil(list[1].reason)
        assert.equal("1000 sequences of at least 8 rows need 8000; the shards hold 64",
            list[2].reason)
        assert.equal("1000 sequences of at least 8 rows need 8000; the shards hold 64",
            figures.without_times(list[2], "skipped", list[2].reason).reason)
    end)

    it("are not in place where a rank has more rows in one layout", function()
        local stream = streams.thd { lengths = { 8 } }
        local even = layouts.contiguous(stream, { cp = 2 })
        local uneven = layouts.custom(stream, { ranks = { { { 0, 6 } }, { { 6, 2 } } } })
        assert.is_nil(cases.why_not_in_place(even, even))
        assert.equal("not in place: rank 0 has 4 rows in contiguous and 6 in custom",
            cases.why_not_in_place(even, uneven))
    end)
end)

describe("figures of a bench", function()
    local case = { bytes = 4000, asked_bytes = 4096, cp = 2, tp = 1, pass = "forward", iters = 3,
        method = "auto", in_place = true }
    local measured = { wrong = 0, allocations = 0, written_bytes = 2000, busiest_bytes = 1000,
        times = { 3e-6, 1e-6, 2e-6 }, copy = { 4e-6, 5e-6, 6e-6 }, method = "copy", estimate = 1e-6,
        messages = 2 }

    it("divide what they say that they divide", function()
        local row = figures.row(case, measured)
        assert.same({ "ok", 0, "in", 2 }, { row.status, row.wrong_rows, row.place, row.ranks })
        for name, value in pairs { min_us = 1, median_us = 2, p99_us = 3, copy_us = 5, algbw = 2,
            busbw = 0.5, copy_percent = 100 * (2000 / 2) / (8000 / 5), estimate_us = 1 } do
            assert.is_true(math.abs(row[name] - value) < 1e-9, name)
        end
        assert.is_nil(row.plain_us)
    end)

    it("count both passes of a round trip", function()
        case.pass = "round trip"
        local row = figures.row(case, measured)
        case.pass = "forward"
        assert.is_true(math.abs(row.algbw - 4) < 1e-9)
        assert.is_true(math.abs(row.copy_percent - 100 * (2000 / 2) / (16000 / 5)) < 1e-9)
    end)

    it("compare with a plain exchange where there is one", function()
        measured.plain = { 1e-6, 1e-6, 9e-6 }
        local row = figures.row(case, measured)
        measured.plain = nil
        assert.is_true(math.abs(row.plain_us - 1) < 1e-9)
        assert.is_true(math.abs(row.plain_percent - 50) < 1e-9)
        assert.truthy(tables.head("mpi"):find("%plain", 1, true))
        assert.is_nil(tables.head("local"):find("plain", 1, true))
    end)

    it("give no time where a row is wrong or memory was taken", function()
        measured.wrong = 3
        local wrong = figures.row(case, measured)
        measured.wrong, measured.allocations = 0, 2
        local taken = figures.row(case, measured)
        measured.allocations = 0
        for _, row in ipairs { wrong, taken } do
            for _, name in ipairs { "min_us", "median_us", "p99_us", "algbw", "busbw", "copy_us",
                "copy_percent", "samples" } do
                assert.is_nil(row[name])
            end
        end
        assert.same({ "wrong", 3 }, { wrong.status, wrong.wrong_rows })
        assert.truthy(tables.line(wrong, "local"):find "wrong +wrong +wrong +wrong.* 3")
        assert.equal("2 blocks of memory were taken in 3 executions; there must be none",
            taken.reason)
    end)

    it("say what auto chose and what did not divide", function()
        assert.truthy(tables.line(figures.row(case, measured), "local"):find(
            "0  (by copy)  (96 bytes of 4096 do not divide)", 1, true))
    end)
end)
