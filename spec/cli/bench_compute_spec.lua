-- ./cplab bench gqa, gdn and step, as a user calls them. No spec here depends on how long something
-- takes.
local command = require "spec.cli.command"
local json = require "cplab.json"

local function bench(text)
    local words = { "bench" }
    for word in text:gmatch "%S+" do words[#words + 1] = word end
    return command.cplab(words)
end

local rows_of = command.objects

local GQA = "gqa --tokens 200 --heads 4 --kv-heads 2 --head-dim 8 --gemm 32 -n 3 -w 1 "
local GDN = "gdn --tokens 200 --key-heads 2 --value-heads 4 --key-dim 8 --value-dim 8 --gemm 32 "
    .. "-n 3 -w 1 "
local STEP = "step --tokens 64 --gemm 32 -n 3 -w 1 --dtype f64 "

local function near(a, b)
    return math.abs(a - b) <= 1e-9 * math.abs(b)
end

-- A row's least, median and p99 are those of its three samples.
local function has_times(row, name)
    local samples = row.samples[name .. "_ms"]
    assert.equal(3, #samples)
    table.sort(samples)
    assert.same(samples, { row[name .. "_min_ms"], row[name .. "_ms"], row[name .. "_p99_ms"] })
end

local function is_right(row)
    assert.same({ "ok", 0 }, { row.status, row.allocations }, json.encode(row))
    local n = 0
    for _, error in pairs(row.errors) do
        assert.is_true(error >= 0 and error <= row.bound)
        n = n + 1
    end
    assert.is_true(n >= 2)
end

local function has_no_times(row)
    assert.is_nil(row.samples or row.forward_ms or row.busy_ms or row.step_ms or row.gemm_ms)
end

for name, words in pairs { gqa = GQA, gdn = GDN } do
    describe("./cplab bench " .. name, function()
        it("prints the machine, then a row for each size", function()
            local result = bench(words .. "--dtype f32,f64")
            assert.same({ 0, "" }, { result.status, result.err })
            local lines = {}
            for line in result.out:gmatch "[^\n]+" do lines[#lines + 1] = line end
            assert.equal(3 + 1 + 2, #lines)
            assert.truthy(lines[1]:find "^# cplab %d[^,]*%w, .*, %d+ cores?, load [%d.]+$")
            assert.truthy(lines[2]:find("^# transport local, BLAS %S+ on one thread a rank, gemm "
                .. "of 32%^3, 3 iterations after 1$"))
            assert.truthy(lines[3]:find(name == "gqa"
                and "^# sizes: 4 heads, 2 kv heads, head_dim 8, no window$"
                or "^# sizes: 2 key heads, 4 value heads, key_dim 8, value_dim 8, chunk 64$"))
            assert.truthy(lines[4]:find "^tokens  dtype .* %%fwd +%%both +error +peak MiB$")
            for i, dtype in ipairs { "f32", "f64" } do
                assert.truthy(lines[4 + i]:find(("^ +200  %s +[%%d. ]+%%de%%-%%d+ +[%%d.]+$")
                    :format(dtype)), lines[4 + i])
                assert.equal(#lines[4], #lines[4 + i])
            end
        end)

        it("gives JSON whose figures hold together", function()
            local row = rows_of(bench(words .. "--json"))[1]
            is_right(row)
            assert.same({ ("cplab.bench.%s/1"):format(name), "core", 1e-4 }, { row.schema, row.part,
                row.bound })
            for _, time in ipairs { "gemm", "forward", "both" } do has_times(row, time) end
            assert.is_true(near(row.gemm_gflops, 2 * 32 ^ 3 / row.gemm_ms / 1e6))
            for _, pass in ipairs { "forward", "both" } do
                assert.is_true(near(row[pass .. "_gflops"],
                    row[pass .. "_gflop"] / row[pass .. "_ms"] * 1e3))
                assert.is_true(near(row[pass .. "_percent"],
                    100 * row[pass .. "_gflops"] / row.gemm_gflops))
            end
            assert.is_true(row.env.load >= 0 and row.peak_bytes > row.workspace_bytes)
        end)

        it("says that a kernel is wrong, and no time", function()
            for fault, where in pairs { scale = "small", backward = "small", handoff = "large",
                loop = "timed" } do
                local result = bench(words .. "--dtype f64 --fault " .. fault)
                assert.equal(1, result.status)
                assert.truthy(result.out:find(("wrong: [%%a_]+, %s case: error %%S+, bound "
                    .. "1e%%-12\n$"):format(where)), result.out)
                assert.equal(("cplab: bench %s: rows of the table: 1 wrong, 0 ended with an "
                    .. "error\n"):format(name), result.err)
                local row = rows_of(bench(words .. "--dtype f64 --json --fault " .. fault))[1]
                assert.equal("wrong", row.status)
                has_no_times(row)
            end
        end)

        it("says that an iteration took memory", function()
            local result = bench(words .. "--fault allocation")
            assert.equal(1, result.status)
            assert.truthy(result.out:find("error: %d+ blocks of memory were taken in 3 iterations; "
                .. "there must be none\n$"))
        end)

        it("says that there is no memory for a row, and goes on", function()
            local result = bench(words:gsub("%-%-tokens 200", "--tokens 9000000000000,50"))
            assert.equal(1, result.status)
            assert.truthy(result.out:find "\n9000000000000  error: [^\n]+\n +50 ")
            assert.truthy(result.err:find("0 wrong, 1 ended with an error\n$"))
        end)

        it("sees memory that grows faster than the tokens", function()
            local scan = words:gsub("%-%-tokens 200", "--tokens 2048") .. "--scan --json "
            local result = bench(scan)
            assert.same({ 0, "" }, { result.status, result.err })
            local rows = rows_of(result)
            assert.same({ 512, 1024, 2048 }, { rows[1].tokens, rows[2].tokens, rows[3].tokens })
            for i = 2, 3 do
                assert.is_true(near(rows[i].peak_ratio,
                    rows[i].peak_bytes / rows[i - 1].peak_bytes))
                assert.is_true(rows[i].peak_ratio > 1 and rows[i].peak_ratio <= 2.1)
            end
            result = bench(scan .. "--fault memory")
            rows = rows_of(result)
            assert.same({ 1, "ok", "error" }, { result.status, rows[1].status, rows[3].status })
            assert.truthy(rows[3].reason:find "^twice the tokens take [23]%.%d+ times the memory; ")
            has_no_times(rows[3])
        end)
    end)

    describe("./cplab bench " .. name .. " --cp", function()
        it("runs the layer in every mode, and compares it with one rank", function()
            local modes = require("cplab.schedule").cp_modes(name)
            local rows = rows_of(bench(words .. "--cp 2 --dtype f64 --json"))
            assert.equal(#modes, #rows)
            for i, row in ipairs(rows) do
                is_right(row)
                assert.same({ "layer", modes[i], 2, 1e-12 }, { row.part, row.cp_mode, row.cp,
                    row.bound })
                for _, time in ipairs { "gemm", "one", "busy" } do has_times(row, time) end
                assert.is_true(near(row.busy_ratio, row.busy_ms / row.one_ms))
                assert.is_true(row.errors["before timing"] and row.errors["after timing"]
                    and row.errors.parameters and row.wall_ms > 0)
            end
        end)

        it("leaves out a mode in which heads do not go over the ranks, unless it is named",
            function()
                local result = bench(words .. "--cp 5 --dtype f64")
                assert.same({ 0, "" }, { result.status, result.err })
                local reason = "[^\n]*heads, not a multiple of [^\n]*5 ranks[^\n]*\n"
                assert.truthy(result.out:find("skipped: " .. reason), result.out)
                local mode = name == "gqa" and "a2a" or "headwise"
                result = bench(words .. "--cp 5 --cp-mode " .. mode)
                assert.equal(1, result.status)
                assert.truthy(result.out:find("error: " .. reason), result.out)
            end)

        it("says that a rank is wrong, and no time", function()
            for fault, when in pairs { rank = "before", loop = "after" } do
                local result = bench(words .. "--cp 2 --json --fault " .. fault)
                assert.equal(1, result.status)
                for _, row in ipairs(rows_of(result)) do
                    assert.same({ "wrong" }, { row.status })
                    assert.truthy(row.reason:find(("^y, %s timing: error "):format(when)))
                    has_no_times(row)
                end
            end
        end)

        it("says that an iteration took memory, or that it grows too fast", function()
            local result = bench(words .. "--cp 2 --fault allocation")
            assert.equal(1, result.status)
            assert.truthy(result.out:find "error: %d+ blocks of memory were taken in 3 iterations")
            local scan = words:gsub("%-%-tokens 200", "--tokens 4096") .. "--scan --cp 2 "
            assert.equal(0, bench(scan).status)
            result = bench(scan .. "--fault memory")
            assert.equal(1, result.status)
            assert.truthy(result.out:find "error: twice the tokens take [23]%.%d+ times the memory")
        end)
    end)
end

describe("./cplab bench step", function()
    it("gives each policy and number of ranks, and where the time goes", function()
        local rows = rows_of(bench(STEP .. "--cp 1,2 --json"))
        assert.equal(12, #rows)
        local conversions = { zigzag = 12, contiguous = 4, mirror = 4, balanced = 4, native = 0 }
        for _, row in ipairs(rows) do
            is_right(row)
            assert.same({ "cplab.bench.step/1", 1e-12 }, { row.schema, row.bound })
            for _, time in ipairs { "gemm", "one", "busy" } do has_times(row, time) end
            table.sort(row.samples.step_ms)
            assert.same(row.samples.step_ms, { row.step_min_ms, row.step_ms, row.step_p99_ms })
            assert.is_true(near(row.compute_ms + row.convert_ms + row.comm_ms, row.step_ms))
            assert.is_true(near(row.busy_ratio, row.busy_ms / row.one_ms) and row.copy_gbs > 0)
            if row.policy ~= "auto" then -- which plans as it likes
                assert.equal(row.cp == 1 and 0 or conversions[row.policy], row.conversions)
            end
            assert.equal(row.conversions > 0, row.conversion_bytes > 0)
        end
    end)

    it("takes sizes and modes instead of the preset's", function()
        local result = bench(STEP .. "--cp 2 --policy mirror --heads 2 --kv-heads 1 --head-dim 16 "
            .. "--key-heads 2 --value-heads 2 --mlp-width 16 --gqa-mode p2p --gdn-mode headwise "
            .. "--json")
        local row = rows_of(result)[1]
        is_right(row)
        assert.same({ 2, 16, "p2p", "headwise" }, { row.heads, row.mlp_width, row.gqa_mode,
            row.gdn_mode })
        assert.is_nil(row.moe_choices)
    end)

    it("says that a step is wrong, and no time", function()
        for fault, when in pairs { handoff = "before", rank = "before", loop = "after" } do
            local result = bench(STEP .. "--cp 2 --policy mirror --json --fault " .. fault)
            local row = rows_of(result)[1]
            assert.same({ 1, "wrong" }, { result.status, row.status })
            assert.truthy(row.reason:find((", %s timing: error "):format(when)), row.reason)
            has_no_times(row)
        end
    end)

    it("says that a step took memory", function()
        local result = bench(STEP .. "--cp 2 --policy native --fault allocation")
        assert.equal(1, result.status)
        assert.truthy(result.out:find "error: %d+ blocks of memory were taken in 3 iterations")
    end)
end)

describe("the compute benches", function()
    it("measure over processes as over threads", function()
        for _, words in ipairs { GQA .. "--cp 2 --cp-mode p2p --dtype f64 --json",
            STEP .. "--cp 2 --policy native --json", GDN .. "--json" } do
            local all = { "mpirun", "-n", "2", "bench" }
            for word in words:gmatch "%S+" do all[#all + 1] = word end
            local result = command.cplab(all)
            assert.same({ 0, "" }, { result.status, result.err })
            local rows = rows_of(result)
            assert.equal(1, #rows)
            is_right(rows[1])
            assert.equal("mpi", rows[1].env.transport)
        end
    end)

    for words, message in pairs {
        ["gqa --heads 3"] = "bench gqa: 3 heads are no multiple of 16 kv heads",
        ["gqa --cp 3 --tokens 100"] = "bench gqa: layout.zigzag: sequence 0 has 100 tokens, not a "
            .. "multiple of 2*cp = 6",
        ["gqa --cp 4 --cp-mode p2"] = 'bench gqa: --cp-mode: there is no p2; did you mean "p2p"?',
        ["gdn --chunk 65"] = "bench gdn: --chunk takes 1 to 64, got 65",
        ["gdn --iters 0"] = "--iters takes a whole number >= 1, got '0' (see ./cplab --help)",
        ["step --preset olmo_hybri"] =
            'bench step: --preset: there is no olmo_hybri; did you mean "olmo_hybrid"?',
        ["step --policy mirrow"] =
            'bench step: --policy: there is no mirrow; did you mean "mirror"?',
    } do
        it("refuse " .. words, function()
            assert.same({ status = 2, out = "", err = "cplab: " .. message .. "\n" }, bench(words))
        end)
    end

    it("stop where nothing can be written", function()
        local result = command.shell(command.root .. "/cplab bench " .. GQA .. ">/dev/full")
        assert.equal(2, result.status)
        assert.equal("cplab: cannot write standard output: No space left on device\n", result.err)
    end)

    it("explain their columns, and name what they aim at", function()
        for name, texts in pairs { gqa = { "70 %", "60 %", "1.15 for p2p", "4 D forward and 8 D" },
            gdn = { "60 %", "40 %", "1.15 for headwise", "at chunk 64" },
            step = { "compute + convert + comm = step", "memcpy" } } do
            local result = bench(name .. " --help")
            assert.same({ 0, "" }, { result.status, result.err })
            for _, text in ipairs(texts) do
                assert.truthy((result.out:gsub("%s+", " ")):find(text, 1, true), text)
            end
            assert.is_nil(result.out:find("--fault", 1, true))
        end
    end)
end)
