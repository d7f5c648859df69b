-- ./cplab bench convert, as a user calls it. No spec here depends on how long something takes.
local command = require "spec.cli.command"
local json = require "cplab.json"

local function bench(text)
    local words = { "bench", "convert" }
    for word in text:gmatch "%S+" do words[#words + 1] = word end
    return command.cplab(words)
end

local rows_of = command.objects

local SMALL = "-b 8K -e 8K --row-bytes 64 -n 2 -w 1 "

local function near(a, b)
    return math.abs(a - b) <= 1e-9 * math.abs(b)
end

describe("./cplab bench convert", function()
    it("prints the machine and what all rows share, then a row for each size", function()
        local result = bench("-b 4K -e 16K -f 2 --row-bytes 64 -n 3 --from zigzag --method copy")
        assert.same({ 0, "" }, { result.status, result.err })
        local lines = {}
        for line in result.out:gmatch "[^\n]+" do lines[#lines + 1] = line end
        assert.equal(3 + 2 + 1 + 3, #lines)
        assert.truthy(lines[1]:find "^# cplab %d[^,]*%w, .*, %d+ cores?$")
        assert.equal("# transport local, 4 ranks (cp 4, tp 1), 3 iterations after 5", lines[2])
        assert.truthy(lines[3]:find("^# memcpy of 16384 bytes: one rank alone [%d.]+ GB/s, all "
            .. "ranks at once [%d.]+ GB/s together$"))
        assert.same({ "# data: 1 sequence, f32, rows of 64 bytes",
            "# exchange: from zigzag, to contiguous, by copy, forward, out of place" },
            { lines[4], lines[5] })
        assert.truthy(lines[6]:find "^bytes +min us +median us +p99 us .* #wrong$")
        for i, bytes in ipairs { 4096, 8192, 16384 } do
            assert.truthy(lines[6 + i]:find(("^ *%d  [%%d. ]+ 0$"):format(bytes)), lines[6 + i])
            assert.equal(#lines[6], #lines[6 + i])
        end
    end)

    it("gives JSON whose figures follow from its samples and bytes", function()
        local rows = rows_of(bench(SMALL .. "--from zigzag,mirror --method copy,auto --json -n 5"))
        assert.equal(4, #rows)
        for _, row in ipairs(rows) do
            assert.same({ "cplab.bench.convert/1", "ok", 0, 0 },
                { row.schema, row.status, row.wrong_rows, row.allocations })
            assert.same({ 8192, 8192, 128, 4, 1 }, { row.asked_bytes, row.size_bytes, row.rows,
                row.ranks, row.sequences })
            -- Of one sequence zigzag moves whole shards at CP 4, mirror halves of them.
            assert.equal(row.from == "zigzag" and 8192 or 4096, row.busiest_bytes)
            assert.equal(4 * 8192, row.written_bytes)
            assert.equal(row.from == "zigzag" and 6 or 4, row.messages)
            assert.same({ 5, 5 }, { #row.samples.us, #row.samples.copy_us })
            table.sort(row.samples.us)
            table.sort(row.samples.copy_us)
            assert.same({ row.samples.us[1], row.samples.us[3], row.samples.us[5] },
                { row.min_us, row.median_us, row.p99_us })
            assert.equal(row.samples.copy_us[3], row.copy_us)
            assert.is_true(near(row.algbw, 8192 / row.median_us / 1e3))
            assert.is_true(near(row.busbw, row.busiest_bytes / row.median_us / 1e3))
            assert.is_true(near(row.copy_percent, 100 * row.copy_us / row.median_us))
            assert.truthy(row.method_used ~= "auto" and row.env.copy_all_ranks > 0)
        end
    end)

    it("counts in place only the rows that leave their slot", function()
        local rows = rows_of(bench(SMALL .. "--from zigzag,mirror --method copy --json --in-place"))
        assert.equal(4 * 8192 / 2, rows[2].written_bytes)
        assert.same({ "in", "in" }, { rows[1].place, rows[2].place })
        for _, row in ipairs(rows) do
            assert.is_true(near(row.copy_percent, 100 * (row.written_bytes / row.median_us)
                / (4 * 8192 / row.copy_us)))
        end
    end)

    for _, words in ipairs { "", "--in-place", "--adjoint", "--adjoint --in-place", "--round-trip",
        "--round-trip --in-place" } do
        it("moves every row to its place, whatever the method, layout and dtype: " .. words,
            function()
                local result = bench("-b 2K -e 2K --width 3 -n 1 -w 0 --cp 3 --sequences 2 --json "
                    .. "--from all --to contiguous,mirror --dtype bf16,f64 " .. words)
                assert.same({ 0, "" }, { result.status, result.err })
                local n = 0
                for _, row in ipairs(rows_of(result)) do
                    if row.status ~= "skipped" then
                        assert.same({ "ok", 0, 0 }, { row.status, row.wrong_rows,
                            row.allocations }, json.encode(row))
                        n = n + 1
                    end
                end
                assert.is_true(n >= 6 * 2 * 2)
            end)
    end

    it("checks rows that are too narrow to be told apart at once", function()
        local rows = rows_of(bench("-b 64K -e 64K --row-bytes 2 --dtype bf16 --from zigzag "
            .. "--method copy -n 1 -w 0 --json"))
        assert.same({ 32768, 0, "ok" }, { rows[1].rows, rows[1].wrong_rows, rows[1].status })
    end)

    for _, fault in ipairs { "check", "source", "loop" } do
        it("says that a row is wrong, and no time: a fault planted in the " .. fault, function()
            for _, words in ipairs { "", "--in-place ", "--round-trip ", "--adjoint " } do
                local all = SMALL .. "--from zigzag --method copy --fault " .. fault .. " " .. words
                local result = bench(all)
                assert.equal(1, result.status)
                assert.truthy(result.out:find((" +wrong"):rep(7) .. " +1\n$"))
                assert.equal("cplab: bench convert: rows of the table: 1 wrong, 0 ended with an "
                    .. "error\n", result.err)
                result = bench(all .. "--json")
                local row = rows_of(result)[1]
                assert.same({ 1, "wrong", 1 }, { result.status, row.status, row.wrong_rows })
                assert.is_nil(row.median_us or row.algbw or row.samples or row.copy_us)
            end
        end)
    end

    it("says that rows are wrong where nothing moves, there and back too", function()
        for _, words in ipairs { "", "--in-place", "--round-trip", "--round-trip --in-place",
            "--adjoint --in-place" } do
            local result = bench(SMALL .. "--from zigzag --method copy --json --fault still "
                .. words)
            local row = rows_of(result)[1]
            assert.same({ 1, "wrong" }, { result.status, row.status }, words)
            assert.is_true(row.wrong_rows > 100, words)
        end
    end)

    it("says that an execution took memory", function()
        local result = bench(SMALL .. "--from zigzag --method copy --fault allocation")
        assert.equal(1, result.status)
        assert.truthy(result.out:find("error: %d+ blocks of memory were taken in 2 executions; "
            .. "there must be none\n"))
    end)

    it("goes on after a rank that fails, and names it", function()
        local result = bench(SMALL .. "--from zigzag,mirror --method copy --fault rank")
        assert.equal(1, result.status)
        local _, n = result.out:gsub("error: rank 3: a planted fault\n", "")
        assert.equal(2, n)
        assert.truthy(result.err:find("rows of the table: 0 wrong, 2 ended with an error\n", 1,
            true))
    end)

    it("waits for a rank no longer than the deadline", function()
        local result = bench(SMALL .. "--from zigzag --method copy --fault late --deadline 0.3")
        assert.equal(1, result.status)
        assert.truthy(result.out:find("error: rank %d: local: rank %d waited 0.3 s for rank 3 in "
            .. "gather 1; rank 3 does not wait\n"))
    end)

    it("stops where a rank does not return", function()
        local result = bench(SMALL .. "--from zigzag,mirror --to contiguous,striped --method copy "
            .. "--fault stuck --deadline 0.3")
        assert.equal(1, result.status)
        assert.truthy(result.out:find("; rank 3 does not return, 2%.%d s after the others were "
            .. "stopped\n$"))
        assert.truthy(result.err:find("rows of the table: 0 wrong, 1 ended with an error; 3 more "
            .. "were not run, since a rank does not return\n", 1, true))
    end)

    it("skips what cannot be, and says why", function()
        local result = bench(SMALL .. "--from zigzag --method copy,composed --sequences 1,1000")
        assert.same({ 0, "" }, { result.status, result.err })
        assert.truthy(result.out:find('skipped: exchange: method "composed" needs tp > 1', 1, true))
        assert.truthy(result.out:find("skipped: 1000 sequences of at least 8 rows need 8000; the "
            .. "shards hold 512\n", 1, true))
    end)

    it("names a method that nobody asked for only once where it cannot be", function()
        local out = bench(SMALL .. "--from zigzag,mirror").out
        assert.is_nil(out:find("skipped", 1, true))
        assert.truthy(out:find("\n# left out: 2 rows by composed, the first since exchange: "
            .. 'method "composed" needs tp > 1[^\n]*\n$'))
    end)

    for words, message in pairs {
        ["-b 2M -e 1M"] = "bench convert: -b 2M is more than -e 1M",
        ["-f 0.5"] = "bench convert: -f takes a factor > 1, got '0.5'",
        ["--from zigzak"] = 'bench convert: --from: there is no zigzak; did you mean "zigzag"?',
        ["-b 1K -e 1K"] = "bench convert: -b: 1024 bytes hold no row of 4096 bytes (f32)",
        ["--sequences 9999 -e 1M"] = "bench convert: nothing is left to run: 9999 sequences of at "
            .. "least 64 rows need 639936; the shards hold 1024",
        ["--iters 0"] = "--iters takes a whole number >= 1, got '0' (see ./cplab --help)",
        ["--methud copy"] =
            "unknown option '--methud'; did you mean '--method'? (see ./cplab --help)",
    } do
        it("refuses " .. words, function()
            assert.same({ status = 2, out = "", err = "cplab: " .. message .. "\n" }, bench(words))
        end)
    end

    it("stops where nothing can be written", function()
        local result = command.shell(command.root .. "/cplab bench convert " .. SMALL
            .. "--from zigzag --method copy >/dev/full")
        assert.equal(2, result.status)
        assert.equal("cplab: cannot write standard output: No space left on device\n", result.err)
    end)

    it("explains its columns", function()
        local result = bench "--help"
        assert.same({ 0, "" }, { result.status, result.err })
        for _, name in ipairs { "algbw", "busbw", "%copy", "%plain", "#wrong", "nearest rank" } do
            assert.truthy(result.out:find(name, 1, true), name)
        end
        assert.is_nil(result.out:find("--fault", 1, true))
    end)
end)
