-- GB200 NVL72: 72 GPUs reach each other over NVLink 5; one 400 Gb/s InfiniBand port a GPU.
return require "cplab.clusters.gpu" {
    ranks_per_node = { 72, source = "NVL72" },
    flops = {
        bf16 = { 2500e12, unit = "FLOP/s", source = "glennklockwood.com: GB200 at 1,200 W, "
            .. "dense; verda.com has 2250" },
        f32 = { 90e12, unit = "FLOP/s", source = "glennklockwood.com: GB200, vector" },
        f64 = { 45e12, unit = "FLOP/s", source = "glennklockwood.com: GB200" },
    },
    efficiency = {
        attention_forward = { max = { 0.33, source = "assumed: 5/4 of backward" },
            half = { 1.2e9, unit = "FLOP", source = "assumed: the tile of the H100, 2.5 times "
                .. "the rate" } },
        attention_backward = { max = { 0.26, source = "MagiAttention's charts of B200: 646 of "
            .. "2500 TFLOP/s a GPU at 8 GPUs" },
            half = { 3e9, unit = "FLOP", source = "assumed: a tile, as forward" } },
        gdn_forward = { max = { 0.06, source = "assumed: 2 times the H100's rate, as memory has "
            .. "it" } },
        gdn_backward = { max = { 0.08, source = "assumed: as forward" } },
    },
    memory = { bandwidth = { 8e12, unit = "B/s", source = "acecloud: B200; verda.com has 7.7" } },
    links = {
        inside = { beta = { 720e9, unit = "B/s", source = "assumed: 900 GB/s raw (verda.com) x "
            .. "0.8" } },
        between = { beta = { 46e9, unit = "B/s", source = "assumed: 400 Gb/s, as the H100" } },
    },
}
