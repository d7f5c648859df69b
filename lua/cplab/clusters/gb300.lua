-- GB300 NVL72: as GB200 with twice the network.
return require "cplab.clusters.gpu" {
    ranks_per_node = { 72, source = "NVL72" },
    flops = {
        bf16 = { 2500e12, unit = "FLOP/s", source = "verda.com: GB300, dense" },
        f32 = { 80e12, unit = "FLOP/s", source = "verda.com: GB300" },
        f64 = { 1.25e12, unit = "FLOP/s", source = "glennklockwood.com: B300 has almost no f64" },
    },
    efficiency = {
        attention_forward = { max = { 0.4, source = "assumed: the GB200's and more, for twice the "
            .. "rate of exponentials (verda.com)" },
            half = { 1.2e9, unit = "FLOP", source = "assumed: as GB200" } },
        attention_backward = { max = { 0.3, source = "assumed: as forward" },
            half = { 3e9, unit = "FLOP", source = "assumed: as GB200" } },
        gdn_forward = { max = { 0.06, source = "assumed: as GB200" } },
        gdn_backward = { max = { 0.08, source = "assumed: as GB200" } },
    },
    memory = { bandwidth = { 8e12, unit = "B/s", source = "verda.com: GB300" } },
    links = {
        inside = { beta = { 720e9, unit = "B/s", source = "assumed: 900 GB/s raw (verda.com) x "
            .. "0.8" } },
        between = { beta = { 92e9, unit = "B/s", source = "assumed: one ConnectX-8 a GPU (4 a "
            .. "tray of 4, docs.nvidia.com), 800 Gb/s x 0.92" } },
    },
}
