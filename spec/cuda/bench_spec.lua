-- ./cplab bench convert with rows on emulated devices. What it says of times cannot be judged here;
-- what it says of rows, of cards and of what a device cannot do is.
local command = require "spec.cli.command"
local device = require "spec.support.on_device"

local it_there = device.it(it, pending)

local SMALL = "-b 8K -e 8K --row-bytes 64 -n 3 -w 1 --cp 4 "

local function bench(text, settings)
    local words = { "bench", "convert", "--device", "cuda-emulated" }
    for word in (SMALL .. text):gmatch "%S+" do words[#words + 1] = word end
    return command.cplab(words, settings)
end

-- The rows of a bench that ends well.
local function rows_of(text, settings)
    local result = bench(text .. " --json", settings)
    assert.same({ 0, "" }, { result.status, result.err })
    return command.objects(result)
end

local function assert_right(row)
    assert.same({ "ok", 0, 0, 0, true }, { row.status, row.wrong_rows, row.allocations,
        row.host_syncs, row.env.is_emulated })
    assert.equal(3, #row.samples.us)
    assert.is_true(row.host_us > 0)
    assert.equal(4, #row.by_rank)
    for _, rank in ipairs(row.by_rank) do assert.is_true(rank.us > 0 and rank.copy_us > 0) end
end

describe("./cplab bench convert on devices", function()
    it_there("times each rank, and together those that share a card", function()
        local rows = rows_of("--from zigzag,mirror --method copy", "CPLAB_CUDA_DEVICES=2")
        assert.equal(4, #rows)
        for i, row in ipairs(rows) do
            assert_right(row)
            assert.equal(({ "eager", "graph" })[(i - 1) % 2 + 1], row.launch)
            assert.same({ { 0, 1 }, { 2, 3 } }, { row.cards[1].ranks, row.cards[2].ranks })
            assert.same({ "cuda-emulated 0", "cuda-emulated 1" },
                { row.cards[1].device, row.cards[2].device })
            -- In each iteration a card takes no less than its ranks, the group than its cards.
            for _, card in ipairs(row.cards) do
                assert.is_true(row.median_us >= card.us)
                for _, rank in ipairs(card.ranks) do
                    assert.is_true(card.us >= row.by_rank[rank + 1].us)
                end
            end
        end
    end)

    it_there("takes NCCL, with a card for each rank", function()
        local rows = rows_of "--from zigzag --method packed,alltoallv --transport nccl"
        assert.equal(4, #rows)
        for _, row in ipairs(rows) do
            assert_right(row)
            assert.same({ "nccl", 4 }, { row.transport, #row.cards })
        end
    end)

    for _, words in ipairs { "", "--in-place", "--adjoint", "--round-trip", "--adjoint --in-place",
        "--round-trip --in-place" } do
        it_there("is right, or says why not, by every method and launch " .. words, function()
            local n = { ok = 0, skipped = 0 }
            for _, row in ipairs(rows_of("--from mirror " .. words)) do
                n[row.status] = n[row.status] + 1
                if row.status == "ok" then
                    assert_right(row)
                else
                    assert.matches("^graph: ", row.method == "composed" and "graph: " or row.reason)
                end
            end
            -- copy, direct, packed, alltoallv; from a graph copy alone. composed is for tp > 1.
            assert.same({ ok = 5, skipped = 5 }, n)
        end)
    end

    it_there("says what cannot be replayed from a graph", function()
        local rows = rows_of "--from zigzag --method copy --in-place"
        assert.same({ "ok", "skipped" }, { rows[1].status, rows[2].status })
        assert.matches("graph: in place it only swaps rows between pairs of ranks", rows[2].reason,
            1, true)
    end)

    it_there("says that times of the emulator mean nothing, and who shares a card", function()
        local result = bench("--from zigzag --method copy", "CPLAB_CUDA_DEVICES=1")
        assert.same({ 0, "" }, { result.status, result.err })
        assert.matches("# cuda%-emulated 0, [^\n]+: ranks 0, 1, 2, 3\n", result.out)
        assert.matches("# emulated on the CPU: the rows are checked, the times mean nothing\n",
            result.out, 1, true)
        assert.matches("# copies from device to device of 8192 bytes: one rank alone", result.out,
            1, true)
    end)

    for fault, wrong in pairs { check = 1, loop = 1, trace = 2 } do
        it_there("ends with status 1 where a row is wrong: a fault planted in " .. fault, function()
            local result = bench("--from zigzag --method copy --json --fault " .. fault)
            assert.equal(1, result.status)
            for _, row in ipairs(command.objects(result)) do
                assert.same({ "wrong", wrong }, { row.status, row.wrong_rows })
                assert.is_nil(row.median_us or row.samples or row.cards)
            end
        end)
    end

    it_there("does not take an iteration in which a host waited for its device", function()
        local result = bench "--from zigzag --method copy --fault wait"
        assert.equal(1, result.status)
        assert.matches("error: hosts waited for their devices 12 times in 3 executions; they must "
            .. "not", result.out, 1, true)
    end)

    local refused = {
        { "CPLAB_CUDA_DRIVER=0", "", "device cuda%-emulated: there is no NVIDIA driver here" },
        { "CPLAB_CUDA_DEVICES=2", "--transport nccl", "nccl: ranks 0 and 2 are both on device 0" },
        { "CPLAB_CUDA_PEERS=0", "", "does not reach the memory of device" },
    }
    for _, case in ipairs(refused) do
        it_there("is refused in one sentence with status 3: " .. case[1], function()
            local result = bench("--from zigzag " .. case[2], case[1])
            assert.same({ 3, "" }, { result.status, result.out })
            assert.matches(case[3], result.err)
            assert.equal(1, select(2, result.err:gsub("\n", "\n")))
        end)
    end
end)
