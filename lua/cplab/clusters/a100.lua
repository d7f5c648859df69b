-- DGX/HGX A100 80 GB: 8 GPUs a node on NVLink 3, one 200 Gb/s InfiniBand port a GPU.
return require "cplab.clusters.gpu" {
    ranks_per_node = { 8, source = "HGX A100" },
    flops = {
        bf16 = { 312e12, unit = "FLOP/s", source = "glennklockwood.com: A100 SXM4, dense" },
        f32 = { 19.5e12, unit = "FLOP/s", source = "glennklockwood.com: A100 SXM4, vector" },
        f64 = { 19.5e12, unit = "FLOP/s", source = "glennklockwood.com: A100 SXM4, matrix" },
    },
    efficiency = {
        attention_forward = { max = { 0.6, source = "assumed: FlashAttention-2 is nearer to this "
            .. "machine's peak than to the H100's" },
            half = { 1.6e8, unit = "FLOP", source = "assumed: the tile of the H100, a third of "
                .. "the rate" } },
        attention_backward = { max = { 0.48, source = "assumed: 4/5 of forward" },
            half = { 4e8, unit = "FLOP", source = "assumed: a tile, as forward" } },
        gdn_forward = { max = { 0.12, source = "assumed: half of the H100's rate, as memory has "
            .. "it" } },
        gdn_backward = { max = { 0.15, source = "assumed: as forward" } },
    },
    memory = { bandwidth = { 2.0e12, unit = "B/s", source = "acecloud; 80 GB" } },
    links = {
        inside = { beta = { 240e9, unit = "B/s", source = "300 GB/s raw; alayanew 230 to 250 in "
            .. "all-reduces" } },
        between = { beta = { 23e9, unit = "B/s", source = "assumed: 25 GB/s raw x 0.92, as the "
            .. "H100's port" } },
    },
}
