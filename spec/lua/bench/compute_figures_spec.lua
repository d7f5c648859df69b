-- What rows of the compute benches say, from made-up measurements.
local figures = require "cplab.bench.compute_figures"
local tables = require "cplab.bench.compute_table"

local function settle(measured, before)
    local added = false
    local row = figures.settle({ iters = 3 }, measured, function() added = true end, before)
    return row, added
end

describe("figures of the compute benches", function()
    it("complain of what is beyond the bound, and of NaN", function()
        assert.is_nil(figures.complaint("o", 1e-5, 1e-4))
        assert.is_nil(figures.complaint("o", 1e-4, 1e-4))
        assert.equal("o: error 0.00011, bound 0.0001", figures.complaint("o", 1.1e-4, 1e-4))
        assert.truthy(figures.complaint("o", 0 / 0, 1e-4):find "^o: error %-?nan, bound 0.0001$")
    end)

    it("are there only where a row is right, takes no memory, and grows as it should", function()
        local row, added = settle({ allocations = 0, peak_bytes = 205 }, 100)
        assert.same({ "ok", true, 2.05 }, { row.status, added, row.peak_ratio })
        row, added = settle({ allocations = 0, peak_bytes = 211 }, 100)
        assert.same({ "error", false, "twice the tokens take 2.11 times the memory; at most 2.1 is "
            .. "linear" }, { row.status, added, row.reason })
        row, added = settle({ allocations = 2, peak_bytes = 100 }, 100)
        assert.same({ "error", false, "2 blocks of memory were taken in 3 iterations; there must "
            .. "be none" }, { row.status, added, row.reason })
        row, added = settle({ allocations = 0, host_syncs = 1, peak_bytes = 100 }, 100)
        assert.same({ "error", false, "hosts waited for their devices 1 times in 3 iterations; "
            .. "they must not" }, { row.status, added, row.reason })
        row, added = settle({ wrong = "o: wrong", peak_bytes = 300 }, 100)
        assert.same({ "wrong", false, "o: wrong" }, { row.status, added, row.reason })
    end)

    it("are rates by the median, over that of the product beside", function()
        local row = { iters = 3 }
        figures.add_core(row, { gemm_flops = 8e9,
            busy = { gemm = { 0.2, 0.1, 0.4 }, forward = { 1, 3, 2 }, both = { 6, 4, 5 } },
            wall = { forward = { 2, 2, 2 }, both = { 7, 7, 9 } } }, 20e9, 55e9)
        assert.same({ 200, 40, 1000, 2000, 3000 }, { row.gemm_ms, row.gemm_gflops,
            row.forward_min_ms, row.forward_ms, row.forward_p99_ms })
        assert.same({ 10, 25, 15, 37.5 }, { row.forward_gflops, row.forward_percent,
            row.both_gflops, row.both_percent })
        assert.same({ 2000, 7000 }, { row.forward_wall_ms, row.both_wall_ms })
        assert.same({ 6000, 4000, 5000 }, row.samples.both_ms)
    end)

    it("are of devices beside their copies, and what it took to ask", function()
        local measured = { gemm_flops = 8e9, copy_bytes = 3e9,
            busy = { gemm = { 1 }, copy = { 1.5 }, step = { 3, 1, 2 }, graph = { 1, 1, 1 } },
            asking = { step = { 4, 5, 6 }, graph = { 7, 7, 7 } } }
        local row = { iters = 3 }
        figures.add_device_step(row, measured)
        assert.same({ 8, 2, 2000, 5000, 1000, 7000 }, { row.gemm_gflops, row.copy_gbs, row.step_ms,
            row.step_host_ms, row.graph_ms, row.graph_host_ms })
        row, measured.busy.graph, measured.graph_reason = { iters = 3 }, nil, "why"
        figures.add_device_step(row, measured)
        assert.same({ "why", 2000 }, { row.graph_reason, row.step_ms })
        assert.is_nil(row.graph_ms or row.graph_host_ms)
    end)

    it("compare a layer's work with that on one rank", function()
        local row = { iters = 3 }
        figures.add_layer(row, { gemm_flops = 1e9, busy = { gemm = { 1 }, one = { 2, 4, 6 },
            all = { 5, 5, 1 } }, wall = { all = { 1, 2, 3 } } })
        assert.same({ 4000, 5000, 1.25, 2000 }, { row.one_ms, row.busy_ms, row.busy_ratio,
            row.wall_ms })
    end)

    it("stand in lines as wide as their head; what all rows share stands before them", function()
        local rows = { { tokens = 8, dtype = "f32", heads = 4, kv_heads = 2, head_dim = 3,
            window = 0 }, { tokens = 16, dtype = "f32", heads = 4, kv_heads = 1, head_dim = 3,
            window = 0 } }
        local shown = tables.new("gqa", rows)
        assert.same({ "# sizes: f32, 4 heads, head_dim 3, no window" }, shown:preface { "sizes" })
        assert.truthy(shown:head():find "^tokens  kv   fwd min .* peak MiB$")
        assert.truthy(tables.new("gqa", rows, true):head():find "  x half$")
        assert.equal(#shown:head(), #tables.line(shown, rows[1]))
        rows[2].status, rows[2].reason = "wrong", "o: wrong"
        assert.equal("    16   1  wrong: o: wrong", tables.line(shown, rows[2]))
    end)

    it("stand for a layer beside its mode", function()
        local rows = { { tokens = 8, dtype = "f64", key_heads = 1, value_heads = 2, key_dim = 3,
            value_dim = 4, chunk = 64, cp = 2, cp_mode = "headwise", layout = "mirror",
            hidden = 5 } }
        local shown = tables.new("gdn", rows)
        assert.same({ "# sizes: f64, 1 key heads, 2 value heads, key_dim 3, value_dim 4, chunk 64, "
            .. "cp 2, mirror, rows of 5" }, shown:preface { "sizes" })
        assert.truthy(shown:head():find "^tokens  cp_mode   cp 1 min ")
    end)
end)
