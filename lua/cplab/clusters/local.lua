-- Intel(R) Xeon(R) Processor, 2 cores, SkylakeX, as ./cplab project --fit measured it.
local BY = "measured by project --fit on Intel(R) Xeon(R) Processor, 2 cores, SkylakeX: "
local SET = "set by project --fit, not measured: "
return {
    ranks_per_node = { 1024, source = SET .. "all ranks are threads of one process" },
    cores = { 2, source = BY .. "processors that this process may use" },
    flops = {
        bf16 = { 1.295e+11, unit = "FLOP/s", source = SET
            .. "as f32, in which this build computes" },
        f32 = { 1.295e+11, unit = "FLOP/s", source = BY .. "fastest product of matrices" },
        f64 = { 6.024e+10, unit = "FLOP/s", source = BY .. "fastest product of matrices" },
    },
    efficiency = {
        gemm = {
            max = { 0.9988, source = BY .. "slope over rows of projections of f32" },
            half = { 5.442e+06, unit = "FLOP", source = BY .. "what is fixed in one of them" },
        },
        attention_forward = {
            max = { 0.5174, source = BY .. "slope over tokens" },
            half = { 5.463e+06, unit = "FLOP", source = BY .. "what is fixed in a span" },
        },
        attention_backward = {
            max = { 0.6723, source = BY .. "slope over tokens" },
            half = { 9.642e+06, unit = "FLOP", source = BY .. "what is fixed in a span" },
        },
        gdn_forward = {
            max = { 0.496, source = BY .. "mean over tokens" },
            half = { 0, unit = "FLOP", source = SET .. "part of the rate: chunks are full" },
        },
        gdn_backward = {
            max = { 0.5026, source = BY .. "mean over tokens" },
            half = { 0, unit = "FLOP", source = SET .. "part of the rate: chunks are full" },
        },
    },
    memory = {
        bandwidth = { 2.006e+10, unit = "B/s", source = BY .. "slope over sums, copies and norms" },
        pointwise = { 1.05e+10, unit = "B/s", source = BY
            .. "slope over the pointwise kernels of GDN and an MLP" },
        half = { 0, unit = "B", source = BY .. "what is fixed in a call" },
        pack = { 0, source = SET .. "rows go straight from rank to rank" },
    },
    links = {
        inside = {
            alpha = { 0, unit = "s", source = BY .. "waiting in the shortest exchange" },
            message = { 8.794e-06, unit = "s", source = BY .. "CPU time of it beside its bytes" },
            beta = { 1.036e+10, unit = "B/s", source = BY
                .. "slope over conversions, in and out of place" },
            half = { 0, unit = "B", source = SET .. "part of message" },
        },
        between = {
            alpha = { 0, unit = "s", source = SET .. "as inside: there is one machine" },
            message = { 8.794e-06, unit = "s", source = SET .. "as inside" },
            beta = { 1.036e+10, unit = "B/s", source = SET .. "as inside" },
            half = { 0, unit = "B", source = SET .. "as inside" },
        },
        overlap = { 0, source = SET .. "ranks copy with their own threads, so nothing hides" },
    },
    overlap = {
        ring = { 0, source = SET .. "ranks copy with their own threads, so nothing hides" },
        gather = { 0, source = SET .. "ranks copy with their own threads, so nothing hides" },
        convert = { 0, source = SET .. "ranks copy with their own threads, so nothing hides" },
        gradients = { 0, source = SET .. "ranks copy with their own threads, so nothing hides" },
        halo = { 0, source = SET .. "ranks copy with their own threads, so nothing hides" },
    },
    host = {
        sync = { 0, unit = "s", source = SET .. "no device to wait for" },
        launch = { 0, unit = "s", source = SET .. "part of what is fixed in a call" },
        segment = { 2.015e-08, unit = "s", source = BY
            .. "slope over routes of more and more sequences" },
        lazy_syncs = { 0, source = SET .. "no device to wait for" },
        prebuilt_syncs = { 0, source = SET .. "no device to wait for" },
    },
}
