-- DGX/HGX H100: 8 GPUs a node on NVLink 4, one 400 Gb/s InfiniBand port a GPU.
return require "cplab.clusters.gpu" {
    ranks_per_node = { 8, source = "HGX H100" },
    flops = {
        bf16 = { 989e12, unit = "FLOP/s", source = "glennklockwood.com: H100 SXM5, dense; "
            .. "Calculon has 1000" },
        f32 = { 67e12, unit = "FLOP/s", source = "glennklockwood.com: H100 SXM5, vector" },
        f64 = { 67e12, unit = "FLOP/s", source = "glennklockwood.com: H100 SXM5, matrix" },
    },
    efficiency = {
        attention_forward = { max = { 0.5, source = "MagiAttention's charts: 459 of 989 TFLOP/s "
            .. "a GPU at 8 GPUs, with FlashAttention-3; balanced.md takes 500" } },
        attention_backward = { max = { 0.4, source = "assumed: 4/5 of forward" } },
        gdn_forward = { max = { 0.08, source = "fla#691, H800: 4.808 ms for 32K tokens in 64 "
            .. "heads of 128, at 1.82e5 FLOP a token and head 79 TFLOP/s" } },
        gdn_backward = { max = { 0.1, source = "fla#691: 15.560 - 4.808 ms at 5.08e5 FLOP, 99 "
            .. "TFLOP/s" } },
    },
    memory = { bandwidth = { 3.35e12, unit = "B/s", source = "acecloud; H100 SXM5" } },
    links = {
        inside = { beta = { 380e9, unit = "B/s", source = "450 GB/s raw; ASTRA-sim 400, SimAI "
            .. "360" } },
        between = { beta = { 46e9, unit = "B/s", source = "DeepEP#3, of 50 GB/s raw; SimAI 48.5, "
            .. "Calculon 45" } },
    },
}
