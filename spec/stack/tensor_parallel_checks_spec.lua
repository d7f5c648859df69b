-- Sequence parallelism: what it counts and `show` says, the silent bugs that its checks catch, and
-- what it refuses.
local cplab = require "cplab"
local labs = require "spec.support.labs"
local ranks = require "spec.support.ranks"

local it4, it6, it8 = ranks.with(4, it), ranks.with(6, it), ranks.with(8, it)

local function run(cp, tp, changes, options, lengths)
    local model = labs.model(changes)
    model.mlp = not model.moe and model.mlp or nil
    return labs.parity_step(lengths or { lengths = { 32, 16 }, real = { 30, 13 } }, model, cp,
        options, tp)
end

-- What `show` says of conversions and gathers: { n, rows * bytes, messages }, by name.
local function shown(cp, tp, changes, lengths)
    local fields = labs.model(changes)
    fields.schedule = cplab.schedule.pattern(fields.pattern, #fields.pattern)
    fields.pattern = nil
    local lines = require("cplab.lab").describe({
        stream = function() return cplab.stream.thd(lengths) end,
        model = function() return cplab.model(fields) end,
    }, { cp = cp, tp = tp })
    local said = {}
    for _, line in ipairs(lines) do
        local name, n, rows, bytes, messages = line:match(
            "^(%a+) +(%d+) a forward pass: (%d+) rows of (%d+) bytes change rank %(.-%), (%d+) mes")
        if name then said[name] = { tonumber(n), rows * bytes, tonumber(messages) } end
    end
    return said
end

describe("sequence parallelism counts", function()
    local lengths = { lengths = { 64, 32 }, real = { 61, 32 } }

    for _, group in ipairs { { 1, 2 }, { 2, 2 }, { 4, 2 }, { 2, 4 }, { 3, 2 } } do
        local cp, tp = unpack(group)
        ranks.with(cp * tp, it)(("what show says, and conversions as with tp 1, %d x %d"):format(cp,
            tp), function()
            local list = cp == 3 and { lengths = { 48, 24 } } or lengths
            for _, policy in ipairs { "zigzag", "contiguous", "mirror", "native" } do
                for _, method in ipairs { "auto", "packed", "composed" } do
                    local changes = { policy = policy, exchange = { method = method } }
                    local m = run(cp, tp, changes, nil, list)
                    local said = shown(cp, tp, changes, list)
                    assert.same({ m.conversions_fwd, m.conversion_bytes_fwd,
                        m.conversion_messages_fwd }, said.conversions)
                    assert.same({ m.gathers_fwd, m.gather_bytes_fwd, m.gather_messages_fwd },
                        said.gathers)
                    assert.equal(m.conversions_fwd, m.conversions_bwd)
                    assert.equal(m.conversion_bytes_fwd, m.conversion_bytes_bwd)
                    assert.equal(m.gathers_fwd, m.gathers_bwd)
                    assert.equal(m.gather_bytes_fwd, m.gather_bytes_bwd)
                    local alone = shown(cp, 1, { policy = policy }, list)
                    assert.equal(alone.conversions[1], m.conversions_fwd)
                    assert.is_nil(alone.gathers)
                end
            end
        end)
    end

    it8("a gather moves tp - 1 of tp rows; fused with mirror 3/4 of them, composed all", function()
        local row = 12 * 8 -- hidden 12 in f64
        local function bytes(policy, method)
            local m = run(4, 2, { policy = policy, pattern = "*", exchange = { method = method } },
                nil, { lengths = { 64 } })
            return m.gathers_fwd, m.gather_bytes_fwd, m.conversion_bytes_fwd
        end
        -- The MLP's two gathers; native's mixer has two more.
        assert.same({ 4, 4 * 64 * row, 0 }, { bytes("native", "auto") })
        assert.same({ 2, 2 * 64 * row, 2 * 96 * row }, { bytes("mirror", "auto") })
        -- Two gathers of the mixer, and half of two shards changes rank, for each of two tp ranks.
        assert.same({ 4, 4 * 64 * row, 2 * 2 * 32 * row }, { bytes("mirror", "composed") })
    end)

    it4("each route once: labels, halo, keys, and a way to each layout of layers", function()
        -- Ways to the mixers' layouts and the networks' shards: in zigzag GQA shares the latter.
        assert.equal(3 + 2, run(2, 2, { policy = "zigzag" }).routes_built)
        assert.equal(3 + 1, run(2, 2, { policy = "native" }).routes_built)
        assert.equal(3 + 2, run(2, 2, { policy = "zigzag",
            exchange = { method = "composed" } }).routes_built)
        local m = run(2, 2, { policy = "zigzag", routes = "lazy" })
        assert.equal(2, m.routes_built_in_step)
        assert.is_true(m.parity_grad <= 1e-12)
    end)

    it4("tokens of experts once, not once for each tp rank", function()
        local function choices(cp, tp)
            local m = run(cp, tp, { moe = { experts = 5, top_k = 2, width = 8, shared_width = 4,
                aux_coefficient = 0.5 } })
            assert.is_true(m.parity_grad <= 1e-12)
            return { m.moe_choices, m.expert_tokens, m.moe_imbalance }, m.aux_loss
        end
        local one, aux = choices(1, 1)
        assert.equal(4 * 2 * 43, one[1])
        for _, group in ipairs { { 2, 2 }, { 1, 4 } } do
            local here, aux_here = choices(unpack(group))
            assert.same(one, here)
            assert.is_true(math.abs(aux - aux_here) <= 1e-14 * aux)
        end
    end)

    it4("nothing more with tp 1", function()
        local m = run(4, 1, { policy = "zigzag" })
        assert.is_nil(m.gathers_fwd)
        assert.is_nil(m.gather_bytes_fwd)
    end)
end)

describe("planted faults of sequence parallelism", function()
    local names = { "layers.1.gdn", "layers.2.gqa", "layers.0.mlp" }

    it4("a sum over tp ranks left out, or made twice: parity fails, no row is misplaced", function()
        for _, fault in ipairs { "skip_sum", "sum_twice" } do
            for _, policy in ipairs { "zigzag", "native" } do
                for _, name in ipairs(names) do
                    local m = run(2, 2, { policy = policy },
                        { faults = { [fault] = { name = name, pass = "fwd" } } })
                    assert.is_true(m.parity_fwd > 1e-6, fault .. " " .. name)
                    assert.equal(0, m.wrong_rows)
                    m = run(2, 2, { policy = policy },
                        { faults = { [fault] = { name = name, pass = "bwd" } } })
                    assert.is_true(m.parity_fwd <= 1e-12)
                    assert.is_true(m.parity_grad > 1e-6, fault .. " " .. name)
                end
            end
        end
    end)

    it4("a rank with the slice of another: parity fails", function()
        for rank = 0, 3 do
            local m = run(2, 2, { policy = "zigzag" },
                { faults = { wrong_slice = { rank = rank } } })
            assert.is_true(m.parity_fwd > 1e-6)
            assert.is_true(m.parity_grad > 1e-6)
            assert.equal(0, m.wrong_rows)
        end
    end)

    it4("rows of a window swapped: the trace names the first layer that sees them", function()
        local m, result = run(2, 2, { policy = "zigzag" },
            { faults = { swap_runs = { rank = 2 } } })
        assert.is_true(m.wrong_rows > 0)
        -- At cp 2 CP rank 1 holds 8 .. 23 of the first sequence and 36 .. 43 of the second; its
        -- first window, of 12 rows, is rank 2's.
        assert.equal("trace: layers.0.norm1, rank 2, slot 0: expected position 8, found 14",
            result.checks[1].name)
    end)
end)

describe("sequence parallelism refuses", function()
    local function message_of(cp, tp, changes, lengths)
        local model = labs.model(changes)
        model.mlp = not model.moe and model.mlp or nil
        local result, message = labs.run {
            stream = { lengths = lengths or { 48 } }, cp = cp, tp = tp, model = model,
            calls = { { "step", {} } },
        }
        assert.is_nil(result)
        return (message:gsub("^[^:]+:%d+: ", ""):gsub("^rank %d failed: ", "")) -- whoever was first
    end
    local function gqa(heads, kv_heads)
        return { heads = heads, kv_heads = kv_heads, head_dim = 8 }
    end
    local function gdn(key_heads, value_heads)
        return { key_heads = key_heads, value_heads = value_heads, key_dim = 5, value_dim = 6 }
    end

    it6("sizes that tp does not divide, each in one sentence", function()
        local function says(text, cp, tp, changes)
            assert.equal(text, message_of(cp, tp, changes))
        end
        says("layers.0.gqa: heads = 4 is not a multiple of tp = 3", 1, 3,
            { pattern = "*", gqa = gqa(4, 2) })
        says("layers.0.gqa: kv_heads = 3 is neither a multiple nor a divisor of tp = 2", 2, 2,
            { pattern = "*", gqa = gqa(6, 3) })
        says("layers.0.gdn: value_heads = 4 is not a multiple of tp = 3", 2, 3, { pattern = "G" })
        says("layers.0.gdn: key_heads = 3 is neither a multiple nor a divisor of tp = 2", 1, 2,
            { pattern = "G", gdn = gdn(3, 6) })
        says("layers.0.mlp: width = 21 is not a multiple of tp = 2", 1, 2,
            { pattern = "G", mlp = { width = 21 } })
        says("layers.0.moe: width = 7 is not a multiple of tp = 2", 1, 2,
            { pattern = "G", moe = { experts = 4, top_k = 2, width = 7 } })
        says("layers.0.moe: shared_width = 3 is not a multiple of tp = 2", 1, 2,
            { pattern = "G", moe = { experts = 4, top_k = 2, width = 8, shared_width = 3 } })
        assert.truthy(message_of(2, 2, {}, { 4, 6 }):find("tp", 1, true))
    end)

    it4("T-36: composed where nothing is split", function()
        assert.truthy(message_of(4, 1, { policy = "zigzag", exchange = { method = "composed" } })
            :find("method \"composed\" needs tp > 1", 1, true))
    end)
end)

describe("a stack that tensor parallelism splits", function()
    -- Steps of all ranks together: the counts are of the process.
    it4("allocates nothing in a step after the first", function()
        local counts = ranks.run(4, function(comm, p)
            local lab, clib = require "cplab", require "clib"
            local C, ffi = clib.C, clib.ffi
            local fields = p.model
            fields.schedule = lab.schedule.pattern(fields.pattern, #fields.pattern)
            fields.pattern = nil
            local stack = require("cplab.stack").new {
                model = lab.model(fields), stream = lab.stream.thd(p.stream),
                comm = comm._ptr, cp = 2, tp = 2,
            }
            local function allocations()
                comm:barrier()
                local stats = ffi.new "cpl_memory_stats"
                C.cpl_memory(stats)
                comm:barrier()
                return tonumber(stats.n_allocations)
            end
            stack:step { backward = true }
            local before = allocations()
            stack:step { backward = true }
            return allocations() - before
        end, { model = labs.model { policy = "zigzag" }, stream = { lengths = { 32, 16 } } })
        assert.same({ 0, 0, 0, 0 }, counts)
    end)
end)
