-- What clusters of NVIDIA GPUs have in common, to be completed by those that are named; a number
-- here stands until one of them says another.
local common = {
    efficiency = {
        gemm = { max = { 0.75, source = "Calculon: 0.6 to 0.95 by size" },
            half = { 2e9, unit = "FLOP", source = "assumed: half of the rate for a product of "
                .. "1024 x 1024 x 1024" } },
        attention_forward = {
            half = { 5e8, unit = "FLOP", source = "assumed: a tile of 128 x 128 in 32 heads of "
                .. "256, which a shorter span of queries does not fill" } },
        attention_backward = {
            half = { 1.2e9, unit = "FLOP", source = "assumed: a tile, as forward" } },
        gdn_forward = {
            half = { 2e7, unit = "FLOP", source = "assumed: most of a chunk of 64 tokens in 2 "
                .. "heads" } },
        gdn_backward = {
            half = { 5e7, unit = "FLOP", source = "assumed: a chunk, as forward" } },
    },
    memory = {
        half = { 2e6, unit = "B", source = "Calculon: x 0.75 at 10 MB, x 0.9 at 100 MB" },
        pack = { 4, source = "the reference's THD path: index_select and index_copy read and "
            .. "write a shard each" },
    },
    links = {
        inside = {
            alpha = { 10e-6, unit = "s", source = "Calculon: 10 us for NVLink 4; ASTRA-sim has "
                .. "0.9 us, without the library" },
            message = { 1e-6, unit = "s", source = "assumed: ASTRA-sim's HGX-H100 has 936 ns a "
                .. "message" },
            half = { 0, unit = "B", source = "assumed: what alpha does not tell is small" },
        },
        between = {
            alpha = { 30e-6, unit = "s", source = "DeepEP#3: 30 us, 2 x DGX-H100" },
            message = { 2e-6, unit = "s", source = "assumed: the gap between messages of a port" },
            half = { 0, unit = "B", source = "assumed: what alpha does not tell is small" },
        },
        overlap = { 1, source = "assumed: NVLink and the network run side by side" },
    },
    overlap = {
        ring = { 1, source = "assumed: a hop hides behind the attention of its step" },
        gather = { 0, source = "the model of facts on balanced, section 7: keys come first" },
        convert = { 0, source = "conversions stand between dependent kernels" },
        halo = { 1, source = "cplab starts halos before the projections that need none" },
        gradients = { 1, source = "assumed: buckets are summed while backward goes on" },
    },
    host = {
        sync = { 20e-6, unit = "s", source = "assumed: the wait alone; Relax#254 has 3.1 s in "
            .. "34,148 of them, 91 us with what was waited for" },
        launch = { 3e-6, unit = "s", source = "assumed: of a kernel, where the host is behind" },
        lazy_syncs = { 3, source = "the reference's first conversions copy their row index and "
            .. "both split lists to the host, each a blocking copy" },
        segment = { 50e-9, unit = "s", source = "assumed: cplab builds 20 million a second and "
            .. "core" },
        prebuilt_syncs = { 0, source = "routes are built from the host's copy of cu_seqlens" },
    },
}

local function is_number(t)
    return t.source ~= nil
end

local function merge(base, own)
    local t = {}
    for name, value in pairs(base) do t[name] = value end
    for name, value in pairs(own) do
        local both = type(value) == "table" and not is_number(value) and t[name]
        t[name] = both and merge(t[name], value) or value
    end
    return t
end

return function(own) return merge(common, own) end
