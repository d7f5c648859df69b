-- Words of the command line of bench convert.
local exchange = require "cplab.exchange"
local options = require "cplab.bench.options"

describe("options of bench convert", function()
    it("reads sizes with binary suffixes", function()
        for text, bytes in pairs { ["1024"] = 1024, ["64K"] = 65536, ["16m"] = 2 ^ 24,
            ["3G"] = 3 * 2 ^ 30 } do
            assert.equal(bytes, options.bytes(text))
        end
        for _, text in ipairs { "", "0", "-1", "1.5M", "M", "1T", "1MB", "9999999999G" } do
            assert.is_nil(options.bytes(text), text)
        end
    end)

    it("goes from size to size by a factor", function()
        assert.same({ 1, 4, 16, 64 }, options.sizes(1, 64, 4))
        assert.same({ 5 }, options.sizes(5, 9, 2))
        assert.same({ 2, 3, 4, 6 }, options.sizes(2, 8, 1.5))
        assert.same({ 1, 2, 3 }, options.sizes(1, 3, 1.0001))
        assert.equal(1000, #options.sizes(1, 1000, 1.0001))
        assert.equal(1001, #options.sizes(1, 2 ^ 52, 1.0001))
    end)

    it("has defaults for everything", function()
        local read = assert(options.read {})
        assert.same({ 2 ^ 20, 2 ^ 22, 2 ^ 24, 2 ^ 26 }, read.sizes)
        assert.same({ "zigzag", "mirror", "balanced" }, read.from)
        assert.same({ "contiguous" }, read.to)
        assert.same(exchange.methods(), read.methods)
        assert.same({ f32 = 4096 }, read.row_bytes)
        assert.same({ 4, 1, "forward", false }, { read.cp, read.tp, read.pass, read.in_place })
        assert.is_true(read.all_methods)
    end)

    it("makes bytes of a row from its elements, by dtype", function()
        local read = options.read { width = 10, dtype = "bf16,f64" }
        assert.same({ bf16 = 20, f64 = 80 }, read.row_bytes)
    end)

    it("knows all, and auto beside it", function()
        local read = options.read { method = "all,auto", dtype = "all", pack = "all" }
        assert.equal(#exchange.methods() + 1, #read.methods)
        assert.equal("auto", read.methods[#read.methods])
        assert.equal(5, #read.dtypes)
        assert.same({ pack = "one" }, read.sequences[1])
    end)

    it("takes the ranks that mpirun started", function()
        assert.equal(6, options.read({}, 6).cp)
        assert.equal(3, options.read({ tp = 2 }, 6).cp)
        assert.equal(2, options.read({ cp = 2 }, 6).cp)
        assert.equal(2, options.read({ tp = 2 }).cp)
    end)

    local wrong = {
        { { min_bytes = "x" }, "-b takes bytes such as 1024, 64K, 16M or 2G, got 'x'" },
        { { max_bytes = "0" }, "-e takes bytes such as 1024, 64K, 16M or 2G, got '0'" },
        { { min_bytes = "2M", max_bytes = "1M" }, "-b 2M is more than -e 1M" },
        { { step_factor = "1" }, "-f takes a factor > 1, got '1'" },
        { { step_factor = "nan" }, "-f takes a factor > 1, got 'nan'" },
        { { step_factor = "inf" }, "-f takes a factor > 1, got 'inf'" },
        { { step_factor = "1.001", min_bytes = "4K" }, "-f 1.001 makes more than 1000 sizes of "
            .. "-b 4K to -e 64M" },
        { { from = "zigzak" }, '--from: there is no zigzak; did you mean "zigzag"?' },
        { { to = "custom" }, "--to: there is no custom; there are contiguous, zigzag, mirror, "
            .. "snake, striped, balanced" },
        { { method = "directt" }, '--method: there is no directt; did you mean "direct"?' },
        { { dtype = "f23" }, '--dtype: there is no f23; did you mean "f32"?' },
        { { dtype = "," }, "--dtype: there are no names" },
        { { row_bytes = 6, dtype = "bf16,f32" },
            "--row-bytes 6 is no multiple of 4, the bytes of one f32" },
        { { width = 1024, row_bytes = 4096 }, "--width and --row-bytes exclude each other" },
        { { sequences = "3", pack = "one" }, "--sequences and --pack exclude each other" },
        { { adjoint = true, round_trip = true }, "--adjoint and --round-trip exclude each other" },
        { { transport = "nccl" }, "--transport nccl is for rows on a device: it takes --device "
            .. "cuda or cuda-emulated" },
        { { sequences = "1,0" }, "--sequences takes whole numbers >= 1, got '0'" },
        { { lengths = "16,x" }, "--lengths takes whole numbers >= 1, got 'x'" },
        { { lengths = "" }, "--lengths: there are no numbers" },
        { { pack = "threee" }, "--pack: there is no threee; there are one, two, long+short, "
            .. "log-normal 16k, log-normal 1k, pareto" },
        { { cp = 400, tp = 3 }, "cp 400 and tp 3 are more than 1024 ranks" },
        { { min_bytes = "1K" }, "-b: 1024 bytes hold no row of 4096 bytes (f32)" },
    }
    for _, case in ipairs(wrong) do
        it("refuses: " .. case[2], function()
            assert.same({ nil, "bench convert: " .. case[2] }, { options.read(case[1]) })
        end)
    end

    it("refuses more ranks than mpirun started", function()
        assert.same({ nil, "bench convert: cp 4 and tp 2 need 8 ranks, but mpirun started 6 "
            .. "processes" }, { options.read({ cp = 4, tp = 2 }, 6) })
    end)
end)
