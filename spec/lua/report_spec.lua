-- The table of a sweep, and the comparison of two files of results.
local compare = require "cplab.compare"
local report = require "cplab.report"

local function result(policy, cp, metrics, status, reason)
    return {
        experiment = "x", case = { policy = policy, cp = cp, tp = 1 }, status = status or "passed",
        metrics = metrics, reason = reason, checks = {}, samples = {},
    }
end

local list = {
    result("zigzag", 1, { conversions_fwd = 0, conversions_bwd = 0, conversion_bytes_fwd = 0,
        conversion_bytes_bwd = 0, step_ms = 12.345, parity_fwd = 0 }),
    result("mirror", 16, { conversions_fwd = 8, conversions_bwd = 8,
        conversion_bytes_fwd = 2 ^ 20, conversion_bytes_bwd = 2 ^ 19, step_ms = 1.5,
        parity_fwd = 3.14e-15 }, "failed", "check x: 1, must be at most 0"),
    result("native", 2, nil, "error", "rank 1: boom"),
}
local names = { "conversions", "moved_mib", "step_ms", "parity_fwd", "verdict" }

describe("report.table", function()
    it("aligns columns and says why a case did not pass", function()
        assert.same({
            "policy  cp  conversions f+b  moved MiB  step ms  parity fwd  verdict",
            "zigzag   1              0+0      0.000    12.35     0.0e+00  passed",
            "mirror  16              8+8      1.500     1.50     3.1e-15  failed",
            "native   2                -          -        -           -  error",
            "failed: policy=mirror cp=16: check x: 1, must be at most 0",
            "error: policy=native cp=2: rank 1: boom",
            "3 cases: 1 passed, 1 failed, 1 error, 0 skipped",
        }, report.table(list, { axes = { "policy", "cp" }, columns = names }))
    end)

    it("shows a metric that only the script knows under its own name", function()
        local lines = report.table({ result("native", 1, { kappa = 1 / 3 }) },
            { axes = {}, columns = { "kappa", "verdict" } })
        assert.same({ "   kappa  verdict", "0.333333  passed" }, { lines[1], lines[2] })
    end)

    it("shows a field of the last record that has it, where no metric has the name", function()
        local one = result("zigzag", 1, { step_ms = 2 })
        one.records = { { rows = 7, step_ms = 3 }, { rows = 9 }, { other = 1 } }
        local lines = report.table({ one }, { axes = {}, columns = { "rows", "step_ms", "none" } })
        assert.same({ "rows  step ms  none", "   9     2.00     -" }, { lines[1], lines[2] })
    end)

    it("keeps a case on one line, and counts one as one", function()
        local one = result("zig\nzag", 1, {}, "error", "no\r\nluck\27[0m")
        assert.same({ "policy   verdict", "zig zag  error",
            "error: policy=zig zag: no luck [0m",
            "1 case: 0 passed, 0 failed, 1 error, 0 skipped" },
            report.table({ one }, { axes = { "policy" }, columns = { "verdict" } }))
    end)

    it("has colour only where it is asked for", function()
        local plain = table.concat(report.table(list, { axes = { "cp" } }))
        local coloured = report.table(list, { axes = { "cp" }, colour = true })
        assert.is_nil(plain:find("\27", 1, true))
        assert.equal("\27[31m", coloured[3]:sub(1, 5))
        local bare = table.concat(coloured):gsub("\27%[%d*m", "")
        assert.equal(plain, bare)
    end)

    it("never hides a number that went wrong", function()
        local lines = report.table({ result("native", 1, { parity_fwd = 0 / 0 }) },
            { axes = {}, columns = { "parity_fwd" } })
        assert.truthy(lines[2]:find "nan")
    end)
end)

describe("report.varying", function()
    it("names the fields that differ, in the order of axes", function()
        assert.same({ "policy", "cp" }, report.varying(list))
        assert.same({}, report.varying { list[1] })
        assert.same({}, report.varying {})
        assert.same({}, report.varying { { case = { order = 1 } }, { case = { order = 2 } } })
    end)
end)

describe("compare.lines", function()
    local function timed(cp, samples, bytes)
        local r = result("zigzag", cp, { step_ms = 99, conversion_bytes_fwd = bytes })
        r.samples = { step_ms = samples }
        return r
    end

    it("prints medians and ratios of what changed", function()
        local a = { timed(1, { 4, 1, 2 }, 64), timed(2, { 3 }, 64), timed(3, { 3 }, 64) }
        local b = { timed(1, { 1, 2 }, 64), timed(2, { 3 }, 32) }
        assert.same({
            "case  metric                 A    B   B/A",
            "cp=1  step_ms                2  1.5  0.750",
            "cp=2  conversion_bytes_fwd  64   32  0.500",
            "2 cases in both, 1 only in A, 0 only in B, 2 values changed",
        }, (function(lines)
            lines[1] = lines[1]:gsub(" +B/A$", "   B/A")
            return lines
        end)(compare.lines(a, b)))
    end)

    it("matches single cases whatever their fixed fields", function()
        local lines = compare.lines({ result("zigzag", 4, { loss = 1 }) },
            { result("mirror", 4, { loss = 1 }, "failed") })
        assert.equal("1 case in both, 0 only in A, 0 only in B, 1 value changed", lines[#lines])
        assert.truthy(lines[2]:find "status%s+passed%s+failed")
    end)

    it("says so where nothing matches", function()
        local a = { timed(1, { 1 }), timed(2, { 1 }) }
        local b = { timed(3, { 1 }), timed(4, { 1 }) }
        assert.same({ nil, "compare: no case is in both files" }, { compare.lines(a, b) })
    end)
end)
