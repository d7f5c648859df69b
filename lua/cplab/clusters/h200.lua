-- HGX H200: the H100 with faster memory.
return require "cplab.clusters.gpu" {
    ranks_per_node = { 8, source = "HGX H200" },
    flops = {
        bf16 = { 989e12, unit = "FLOP/s", source = "as H100: glennklockwood.com" },
        f32 = { 67e12, unit = "FLOP/s", source = "as H100: glennklockwood.com" },
        f64 = { 67e12, unit = "FLOP/s", source = "as H100: glennklockwood.com" },
    },
    efficiency = {
        attention_forward = { max = { 0.5, source = "as H100: MagiAttention's charts" } },
        attention_backward = { max = { 0.4, source = "assumed: 4/5 of forward" } },
        gdn_forward = { max = { 0.08, source = "assumed: as H100" } },
        gdn_backward = { max = { 0.1, source = "assumed: as H100" } },
    },
    memory = { bandwidth = { 4.8e12, unit = "B/s", source = "acecloud" } },
    links = {
        inside = { beta = { 380e9, unit = "B/s", source = "NVLink 4, as H100" } },
        between = { beta = { 46e9, unit = "B/s", source = "400 Gb/s InfiniBand, as H100" } },
    },
}
