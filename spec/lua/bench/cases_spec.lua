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
        assert.truthy(tables.new({ row }, "mpi"):head():find("%plain", 1, true))
        assert.is_nil(tables.new({ row }, "local"):head():find("plain", 1, true))
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
        assert.truthy(tables.new({ wrong }, "local"):line(wrong)
            :find "wrong +wrong +wrong +wrong.* 3")
        assert.equal("2 blocks of memory were taken in 3 executions; there must be none",
            taken.reason)
    end)

    it("say what auto chose and what did not divide", function()
        local row = figures.row(case, measured)
        assert.truthy(tables.new({ row }, "local"):line(row):find(
            "0  (by copy)  (96 bytes left out)", 1, true))
    end)
end)

describe("the table of a bench", function()
    -- What the longest plausible figures look like.
    local FIGURES = { min_us = 1234567.8, median_us = 2345678.9, p99_us = 3456789.1,
        algbw = 123.45, busbw = 123.45, copy_us = 99999.94, copy_percent = 1234.5,
        plain_us = 99999.95, plain_percent = 1234.5, wrong_rows = 0 }

    local function table_of(given, transport)
        local rows = {}
        for i, case in ipairs(make(given)) do
            rows[i] = figures.without_times(case)
            rows[i].status, rows[i].method_used = "ok", rows[i].method
            for name, value in pairs(FIGURES) do rows[i][name] = value end
        end
        return tables.new(rows, transport), rows
    end

    it("says once what is the same in all rows, and gives columns to the rest", function()
        local one = table_of({ min_bytes = "1M", from = "zigzag", method = "copy" }, "local")
        assert.same({ "# data: 1 sequence, f32, rows of 4096 bytes",
            "# exchange: from zigzag, to contiguous, by copy, forward, out of place" },
            one:preface())
        assert.equal("  bytes   min us  median us   p99 us   algbw   busbw  copy us   %copy  "
            .. "#wrong", one:head())
        local many = table_of({ min_bytes = "1M", max_bytes = "16M", sequences = "1,100",
            dtype = "f32,bf16", width = 512, in_place = true, method = "auto,alltoallv",
            from = "zigzag,mirror", to = "contiguous,mirror", round_trip = true }, "local")
        assert.same({ "# exchange: round trip, in place" }, many:preface())
        assert.truthy(many:head():find("^ +bytes  seqs  from    to          method     dtype  "
            .. "row B +min us"))
        local packs = table_of({ min_bytes = "1M", pack = "one,two" }, "local")
        assert.truthy(packs:head():find "^  bytes  pack  seqs  from +method")
    end)

    it("writes no times to who has none, but the name and the reason", function()
        local shown, rows = table_of({ min_bytes = "1M", sequences = "1,300000" }, "local")
        local last = rows[#rows]
        last.status, last.reason = "skipped", "a reason"
        assert.truthy(shown:line(last):find "^1048576  300000  balanced  %S+ +skipped: a reason$")
    end)

    for _, transport in ipairs { "local", "mpi" } do
        it("fits a terminal of 120 columns, its figures stand under their heads: " .. transport,
            function()
                for _, given in ipairs { {}, { min_bytes = "1M", max_bytes = "1G" },
                    { in_place = true, method = "all" }, { pack = "log-normal 16k" },
                    { round_trip = true, dtype = "all", method = "auto" },
                    { sequences = "1,4,16", from = "zigzag" } } do
                    given.min_bytes = given.min_bytes or "64M"
                    local shown, rows = table_of(given, transport)
                    local width = #shown:head()
                    assert.is_true(width <= 120, shown:head())
                    for _, line in ipairs(shown:preface()) do assert.is_true(#line <= 120, line) end
                    for _, row in ipairs(rows) do
                        row.asked_bytes = row.size_bytes
                        assert.equal(width, #shown:line(row), shown:line(row))
                    end
                end
            end)
    end
end)
