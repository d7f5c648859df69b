-- The machine that these numbers were taken on: 2 cores of a Xeon, ranks as threads of one process,
-- rows copied once from memory to memory. ./cplab project --fit measures yours.
local ROUGH = "a rough look with ./cplab bench, on a machine that did other things"

return {
    ranks_per_node = { 1024, source = "all ranks are threads of one process" },
    cores = { 2, source = "nproc" },
    flops = {
        bf16 = { 140e9, unit = "FLOP/s", source = "assumed: as f32; cplab moves bf16 and does not "
            .. "compute with it" },
        f32 = { 140e9, unit = "FLOP/s", source = ROUGH .. ": gemm of 2048^3, one thread" },
        f64 = { 70e9, unit = "FLOP/s", source = "assumed: half of f32" },
    },
    efficiency = {
        gemm = { max = { 0.95, source = ROUGH },
            half = { 1e6, unit = "FLOP", source = "assumed: a product of 80^3" } },
        attention_forward = { max = { 0.7, source = ROUGH .. ": bench gqa, 2 kv heads" },
            half = { 1e5, unit = "FLOP", source = "assumed" } },
        attention_backward = { max = { 0.75, source = ROUGH .. ": bench gqa, 2 kv heads" },
            half = { 2e5, unit = "FLOP", source = "assumed" } },
        gdn_forward = { max = { 0.57, source = ROUGH .. ": bench gdn" },
            half = { 1e5, unit = "FLOP", source = "assumed" } },
        gdn_backward = { max = { 0.55, source = ROUGH .. ": bench gdn" },
            half = { 2e5, unit = "FLOP", source = "assumed" } },
    },
    memory = {
        bandwidth = { 8e9, unit = "B/s", source = ROUGH .. ": bench convert, read and written" },
        half = { 4e3, unit = "B", source = "assumed" },
        pack = { 0, source = "rows are copied straight to where they go" },
    },
    links = {
        inside = {
            alpha = { 20e-6, unit = "s", source = "assumed: threads that wait for each other" },
            message = { 1.5e-6, unit = "s", source = "core/exchange/costs.c, local" },
            beta = { 4e9, unit = "B/s", source = ROUGH .. ": bench convert, copy" },
            half = { 0, unit = "B", source = "assumed: what alpha does not tell is small" },
        },
        between = {
            alpha = { 20e-6, unit = "s", source = "assumed: never used" },
            message = { 1.5e-6, unit = "s", source = "assumed: never used" },
            beta = { 4e9, unit = "B/s", source = "assumed: never used" },
            half = { 0, unit = "B", source = "assumed: never used" },
        },
        overlap = { 0, source = "a thread does one thing at a time" },
    },
    overlap = {
        ring = { 0, source = "a thread does one thing at a time" },
        gather = { 0, source = "a thread does one thing at a time" },
        convert = { 0, source = "a thread does one thing at a time" },
        halo = { 0, source = "a thread does one thing at a time" },
        gradients = { 0, source = "a thread does one thing at a time" },
    },
    host = {
        sync = { 0, unit = "s", source = "there is no device to wait for" },
        launch = { 0, unit = "s", source = "kernels are calls" },
        lazy_syncs = { 3, source = "as the reference; free here" },
        segment = { 50e-9, unit = "s", source = "assumed: ./cplab bench route" },
        prebuilt_syncs = { 0, source = "routes are built before the step" },
    },
}
