-- DGX/HGX H100: 8 GPUs a node on NVLink 4, one 400 Gb/s InfiniBand port a GPU.
return {
    ranks_per_node = { 8, source = "HGX H100 has 8 GPUs" },
    flops = {
        bf16 = { 989e12, unit = "FLOP/s", source = "H100 SXM data sheet, dense; Calculon's "
            .. "h100_80g_nvl8.json rounds it to 1000e12" },
        f32 = { 67e12, unit = "FLOP/s", source = "H100 SXM data sheet, without tensor cores" },
        f64 = { 67e12, unit = "FLOP/s", source = "H100 SXM data sheet, tensor cores" },
    },
    efficiency = {
        gemm = { max = { 0.75, source = "Calculon: 0.6 to 0.95 by size" },
            half = { 2e9, unit = "FLOP", source = "assumed: half of the rate for a product of "
                .. "1024 x 1024 x 1024" } },
        attention_forward = { max = { 0.5, source = "MagiAttention's H100 charts: 459 of 989 "
            .. "TFLOP/s a GPU at 8 GPUs, FlashAttention-3 inside" },
            half = { 5e8, unit = "FLOP", source = "assumed: a tile of 128 x 128 in 32 heads of "
                .. "256, which a shorter block of queries does not fill" } },
        attention_backward = { max = { 0.4, source = "assumed: 4/5 of the forward, as in the "
            .. "charts of FlashAttention-3" },
            half = { 1.2e9, unit = "FLOP", source = "assumed: a tile, as forward" } },
        gdn_forward = { max = { 0.075, source = "fla#691 on H800, 32K tokens in 64 heads of 128: "
            .. "4.808 ms for 1.82e5 FLOP a token and head, 79 TFLOP/s" },
            half = { 2e7, unit = "FLOP", source = "assumed: a chunk of 64 tokens in 16 heads" } },
        gdn_backward = { max = { 0.1, source = "fla#691: 15.560 - 4.808 ms for 5.08e5 FLOP a token "
            .. "and head, 99 TFLOP/s" },
            half = { 5e7, unit = "FLOP", source = "assumed: a chunk, as forward" } },
    },
    memory = {
        bandwidth = { 3.0e12, unit = "B/s", source = "3.35 TB/s x 0.9 at 100 MB (Calculon)" },
        half = { 2e6, unit = "B", source = "Calculon: x 0.75 at 10 MB, x 0.9 at 100 MB" },
        pack = { 4, source = "the reference's THD path: index_select and index_copy read and write "
            .. "a shard each" },
    },
    links = {
        inside = {
            alpha = { 10e-6, unit = "s", source = "Calculon: 10 us for NVLink 4" },
            message = { 1e-6, unit = "s", source = "assumed: ASTRA-sim's HGX-H100 has 936 ns a "
                .. "message" },
            beta = { 380e9, unit = "B/s", source = "450 GB/s raw; ASTRA-sim 400, SimAI 360" },
            half = { 0, unit = "B", source = "assumed: what alpha does not tell is small" },
        },
        between = {
            alpha = { 30e-6, unit = "s", source = "DeepEP#3: 30 us, 2 x DGX-H100" },
            message = { 2e-6, unit = "s", source = "assumed: the gap between messages of a port" },
            beta = { 46e9, unit = "B/s", source = "DeepEP#3: 46 GB/s of 50 GB/s raw" },
            half = { 0, unit = "B", source = "assumed: what alpha does not tell is small" },
        },
        overlap = { 1, source = "assumed: NVLink and the network run side by side" },
    },
    overlap = {
        ring = { 1, source = "assumed: a step hides behind the attention of the one before" },
        gather = { 0, source = "balanced.md: keys are fetched before attention begins" },
        convert = { 0, source = "conversions stand between dependent kernels" },
        gradients = { 1, source = "assumed: buckets are summed while backward goes on" },
        halo = { 1, source = "cplab starts halos before the projections that need none" },
    },
    host = {
        sync = { 20e-6, unit = "s", source = "Relax#254: 3.1 s in 34,148 waits is 91 us with what "
            .. "waited; assumed 20 us for the wait alone" },
        launch = { 3e-6, unit = "s", source = "assumed: of a kernel in a stream that is not full" },
        lazy_syncs = { 3, source = "the reference's conversion copies its row index and both split "
            .. "lists to the host, each a blocking copy" },
        segment = { 50e-9, unit = "s", source = "assumed: of building a route, per segment" },
        prebuilt_syncs = { 0, source = "routes are built from the host's copy of cu_seqlens" },
    },
}
