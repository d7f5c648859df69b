--- From what was measured of kernels, layers and steps to what a row says. Times are the CPU time
-- of the threads in milliseconds, or what a device took by its own clock; rates 10^9 operations a
-- second, and a ratio is one of medians that were measured in the same iterations.
-- @module cplab.bench.compute_figures
local statistics = require "cplab.bench.statistics"

local M = {}

--- How much more memory twice the tokens may take: twice as much, and what rounding adds.
M.LINEAR = 2.1

--- What is wrong with an error, if anything is; NaN is.
-- @treturn ?string
function M.complaint(where, error, bound)
    if error <= bound then return nil end
    return ("%s: error %.2g, bound %g"):format(where, error, bound)
end

--- Milliseconds of a list of seconds.
function M.milliseconds(list)
    local result = {}
    for i, value in ipairs(list) do result[i] = value * 1e3 end
    return result
end

--- Adds min, median and p99 of a list of seconds under a name, and the list to the samples.
function M.add_times(row, name, seconds)
    local samples = M.milliseconds(seconds)
    local times = statistics.summary(samples)
    row[name .. "_min_ms"], row[name .. "_ms"], row[name .. "_p99_ms"] = times.min, times.median,
        times.p99
    row.samples = row.samples or {}
    row.samples[name .. "_ms"] = samples
end

--- Adds the rate of a product of matrices, measured beside the row.
function M.add_gemm(row, seconds, flops)
    M.add_times(row, "gemm", seconds)
    row.gemm_gflops = flops / row.gemm_ms / 1e6
end

local function add_rate(row, name, flops)
    row[name .. "_gflop"] = flops / 1e9
    row[name .. "_gflops"] = flops / row[name .. "_ms"] / 1e6
    row[name .. "_percent"] = 100 * row[name .. "_gflops"] / row.gemm_gflops
end

-- Of a device: how fast it copies, and how long the host took to ask for each of these.
local function add_device(row, measured, names)
    row.copy_gbs = measured.copy_bytes / statistics.quantile(measured.busy.copy, 0.5) / 1e9
    for _, name in ipairs(names) do
        row[name .. "_host_ms"] = statistics.quantile(M.milliseconds(measured.asking[name]), 0.5)
    end
end

--- The figures of a core.
function M.add_core(row, measured, forward, backward)
    M.add_gemm(row, measured.busy.gemm, measured.gemm_flops)
    M.add_times(row, "forward", measured.busy.forward)
    M.add_times(row, "both", measured.busy.both)
    if measured.asking then
        add_device(row, measured, { "forward", "both" })
    else
        row.forward_wall_ms = statistics.quantile(M.milliseconds(measured.wall.forward), 0.5)
        row.both_wall_ms = statistics.quantile(M.milliseconds(measured.wall.both), 0.5)
    end
    add_rate(row, "forward", forward)
    add_rate(row, "both", forward + backward)
end

--- The figures of a layer on many ranks beside the same on one.
function M.add_layer(row, measured)
    M.add_gemm(row, measured.busy.gemm, measured.gemm_flops)
    M.add_times(row, "one", measured.busy.one)
    M.add_times(row, "busy", measured.busy.all)
    row.wall_ms = statistics.quantile(M.milliseconds(measured.wall.all), 0.5)
    row.busy_ratio = row.busy_ms / row.one_ms
end

--- The figures of a step; its times are milliseconds of the clock on the wall, but for busy.
function M.add_step(row, measured)
    M.add_gemm(row, measured.busy.gemm, measured.gemm_flops)
    M.add_times(row, "one", measured.busy.one)
    M.add_times(row, "busy", measured.busy.all)
    local steps, copies = statistics.summary(measured.step_ms), measured.busy.copy
    row.samples.step_ms = measured.step_ms
    row.step_min_ms, row.step_p99_ms = steps.min, steps.p99
    for _, name in ipairs { "step_ms", "compute_ms", "convert_ms", "comm_ms" } do
        row[name] = measured.times[name]
    end
    row.busy_ratio = row.busy_ms / row.one_ms
    row.copy_gbs = measured.copy_bytes / statistics.quantile(copies, 0.5) / 1e9
end

--- The figures of a step on devices: launched one by one, and replayed from a graph if it can be.
function M.add_device_step(row, measured)
    M.add_gemm(row, measured.busy.gemm, measured.gemm_flops)
    M.add_times(row, "step", measured.busy.step)
    add_device(row, measured, { "step" })
    row.graph_reason = measured.graph_reason
    if measured.busy.graph then
        M.add_times(row, "graph", measured.busy.graph)
        add_device(row, measured, { "graph" })
    end
end

--- The status of a row by what was measured, and its figures only where it is "ok".
-- @tparam table row
-- @tparam table measured wrong (a sentence, or nil), allocations, host_syncs, peak_bytes
-- @tparam function add adds the figures
-- @tparam ?number peak_before peak bytes with half the tokens
function M.settle(row, measured, add, peak_before)
    row.allocations, row.peak_bytes = measured.allocations, measured.peak_bytes
    row.peak_ratio = peak_before and measured.peak_bytes and measured.peak_bytes / peak_before
    if measured.wrong then
        row.status, row.reason = "wrong", measured.wrong
    elseif measured.allocations > 0 then
        row.status = "error"
        row.reason = ("%d blocks of memory were taken in %d iterations; there must be none")
            :format(measured.allocations, row.iters)
    elseif (measured.host_syncs or 0) > 0 then
        row.status = "error"
        row.reason = ("hosts waited for their devices %d times in %d iterations; they must not")
            :format(measured.host_syncs, row.iters)
    elseif row.peak_ratio and row.peak_ratio > M.LINEAR then
        row.status = "error"
        row.reason = ("twice the tokens take %.2f times the memory; at most %g is linear"):format(
            row.peak_ratio, M.LINEAR)
    else
        row.status = "ok"
        add(row)
    end
    return row
end

return M
