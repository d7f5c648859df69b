-- ./cplab bench gqa, gdn and step on emulated devices. What it says of times cannot be judged here;
-- that the numbers are looked at where they are, and that nobody waits for them, can.
local command = require "spec.cli.command"
local device = require "spec.support.on_device"

local it_there = device.it(it, pending)

local GQA = "gqa --tokens 40 --small 24 --heads 2 --kv-heads 1 --head-dim 8 --gemm 8 -n 2 -w 0 "
local GDN = "gdn --tokens 24 --small 12 --key-heads 1 --value-heads 1 --key-dim 4 --value-dim 4 "
    .. "--chunk 8 --gemm 8 -n 2 -w 0 "
local STEP = "step --tokens 8 --cp 2 --layers 1 --hidden 8 --vocab 11 --mlp-width 8 "
    .. "--key-heads 1 --value-heads 2 --key-dim 4 --value-dim 4 --gemm 8 -n 1 -w 0 "
local CORES = { gqa = GQA, gdn = GDN }

local function bench(text, settings)
    local words = { "bench" }
    for word in text:gmatch "%S+" do words[#words + 1] = word end
    return command.cplab(words, settings)
end

local function there(text, settings)
    return bench(text .. " --device cuda-emulated", settings)
end

-- The rows of a bench that ends well.
local function rows_of(text)
    local result = there(text .. " --json")
    assert.same({ 0, "" }, { result.status, result.err })
    return command.objects(result)
end

local function assert_right(row, times)
    assert.same({ "ok", 0, true, "cplab's own kernel" }, { row.status, row.allocations,
        row.env.is_emulated, row.env.product })
    for _, error in pairs(row.errors) do assert.is_true(error >= 0 and error <= row.bound) end
    for _, name in ipairs(times) do assert.is_true(row[name] > 0, name) end
end

local function assert_fault(text, status, reason)
    local result = there(text .. " --json")
    local row = command.objects(result)[1]
    assert.same({ 1, status }, { result.status, row.status })
    assert.matches(reason, row.reason)
    assert.is_nil(row.samples or row.forward_ms or row.step_ms or row.gemm_ms)
end

for name, words in pairs(CORES) do
    describe(("./cplab bench %s on a device"):format(name), function()
        it_there("is right in every dtype, beside the device's product and copy", function()
            local rows = rows_of(words .. "--dtype f64,f32,bf16")
            assert.same({ "f64", "f32", "bf16" }, { rows[1].dtype, rows[2].dtype, rows[3].dtype })
            for _, row in ipairs(rows) do
                assert_right(row, { "gemm_gflops", "copy_gbs", "forward_ms", "forward_host_ms",
                    "both_ms", "both_host_ms", "forward_percent", "both_percent" })
                assert.equal(2, #row.samples.both_ms)
                -- The bound of bf16 is needed, and no other arithmetic stood in for it.
                assert.equal(row.dtype == "bf16", row.errors.large > 1e-3)
            end
        end)

        for fault, where in pairs { scale = "small", backward = "small", handoff = "large",
            loop = "timed" } do
            it_there("finds a fault planted there: " .. fault, function()
                assert_fault(words .. "--dtype f32 --fault " .. fault, "wrong",
                    ("^[%%a_]+, %s case: error "):format(where))
            end)
        end

        it_there("takes no iteration in which the host took memory or waited", function()
            assert_fault(words .. "--fault allocation", "error",
                "^%d+ blocks of memory were taken in 2 iterations; there must be none$")
            assert_fault(words .. "--fault wait", "error",
                "^hosts waited for their devices 2 times in 2 iterations; they must not$")
        end)
    end)
end

describe("the compute benches on devices", function()
    it_there("see memory that grows faster than the tokens", function()
        local rows = rows_of((GQA:gsub("%-%-tokens 40", "--tokens 32")) .. "--scan")
        assert.is_true(rows[3].peak_ratio > 1.5 and rows[3].peak_ratio <= 2.1)
        local result = there((GQA:gsub("%-%-tokens 40", "--tokens 256")) .. "--scan --fault memory")
        assert.equal(1, result.status)
        assert.matches("error: twice the tokens take [23]%.%d+ times the memory", result.out)
    end)

    it_there("say that times of the emulator mean nothing, and what they stand beside", function()
        local result = there(GQA)
        assert.same({ 0, "" }, { result.status, result.err })
        for _, line in ipairs { "# transport cuda-emulated, products of matrices by cplab's own "
            .. "kernel, gemm of 8^3, 2 iterations after 0\n",
            "# emulated on the CPU: the rows are checked, the times mean nothing\n",
            "\n# cuda-emulated 0, ", "# copies from device to device of ",
            "  host ms  copy GB/s " } do
            assert.truthy(result.out:find(line, 1, true), line)
        end
    end)

    it_there("say what a kernel takes", function()
        local result = there((GDN:gsub("key%-dim 4", "key-dim 257")))
        assert.equal(1, result.status)
        assert.matches("error: gdn: a device takes key_dim and value_dim from 1 to 256, not 257 "
            .. "and 4\n$", result.out)
        assert.equal("cplab: bench gdn: rows of the table: 0 wrong, 1 ended with an error\n",
            result.err)
    end)

    for words, message in pairs {
        ["gqa --device cuda-emulated --cp 2"] = "bench gqa: --cp compares a layer with one rank of "
            .. "the cpu; on a device bench step measures layers on ranks",
        ["gdn --transport nccl"] = "bench gdn: --transport nccl is for rows on a device: it takes "
            .. "--device cuda or cuda-emulated",
        ["gqa --dtype bf16"] = "bench gqa: --dtype: there is no bf16; there are f64, f32",
        ["step --device cuda-emulated --dtype fp8"] =
            "bench step: --dtype: there is no fp8; there are f64, f32, bf16",
    } do
        it("refuse " .. words, function()
            assert.same({ status = 2, out = "", err = "cplab: " .. message .. "\n" }, bench(words))
        end)
    end

    for _, case in ipairs {
        { "CPLAB_CUDA_DRIVER=0", GQA, "device cuda%-emulated: there is no NVIDIA driver here" },
        { "CPLAB_CUDA_DEVICES=1", STEP .. "--transport nccl ",
            "nccl: ranks 0 and 1 are both on device 0" },
    } do
        it_there("are refused in one sentence with status 3: " .. case[1], function()
            local result = there(case[2], case[1])
            assert.same({ 3, "" }, { result.status, result.out })
            assert.matches(case[3], result.err)
            assert.equal(1, select(2, result.err:gsub("\n", "\n")))
        end)
    end
end)

describe("./cplab bench step on devices", function()
    it_there("is right one by one and from a graph, and no host waits", function()
        local rows = rows_of(STEP .. "--dtype f64,bf16 --policy zigzag")
        for _, row in ipairs(rows) do
            assert_right(row, { "gemm_gflops", "copy_gbs", "step_ms", "step_host_ms", "graph_ms",
                "graph_host_ms", "conversion_bytes" })
            assert.same({ 4, 0 }, { row.conversions, row.host_syncs_in_step })
            assert.truthy(row.errors.replayed)
            assert.is_nil(row.compute_ms or row.busy_ms or row.graph_reason)
        end
        assert.same({ { 0 }, { 1 } }, { rows[1].env.cards[1].ranks, rows[1].env.cards[2].ranks })
    end)

    for fault, reason in pairs { handoff = ", before timing: error ",
        rank = ", before timing: error ", loop = ", after timing: error " } do
        it_there("finds a fault planted there: " .. fault, function()
            assert_fault(STEP .. "--policy contiguous --fault " .. fault, "wrong", reason)
        end)
    end

    it_there("goes on where a step cannot be captured, and says why", function()
        local result = there(STEP .. "--policy contiguous --fault capture")
        assert.same({ 0, "" }, { result.status, result.err })
        assert.matches("  no graph: cuda%-emulated %d: a download in a capture: [^\n]+\n$",
            result.out)
    end)

    it_there("takes no iteration in which a host waited", function()
        assert_fault(STEP .. "--policy contiguous --fault wait", "error",
            "^hosts waited for their devices 2 times in 1 iterations; they must not$")
    end)
end)
