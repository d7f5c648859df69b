-- A batch of columns through the whole stack: it is the same as packed sequences, in every policy
-- and mode, and counts what one column counts, with the bytes of all.
local cplab = require "cplab"
local labs = require "spec.support.labs"
local outline = require "cplab.outline"
local ranks = require "spec.support.ranks"

local BOUND = 1e-12
local SEQLEN, BATCH, VOCAB = 24, 3, 17

-- The same tokens position by position, and sequence by sequence.
local function streams(seqlen, batch)
    local sbhd, thd, lengths = {}, {}, {}
    for column = 0, batch - 1 do
        lengths[column + 1] = seqlen
        for position = 0, seqlen - 1 do
            local token = (7 * position + 5 * column + position * position) % VOCAB
            sbhd[position * batch + column + 1] = token
            thd[column * seqlen + position + 1] = token
        end
    end
    return { seqlen = seqlen, batch = batch, tokens = sbhd }, { lengths = lengths, tokens = thd }
end

local SBHD, THD = streams(SEQLEN, BATCH)

local function with_modes(changes)
    local model = labs.model { pattern = "G*" }
    for kind, fields in pairs(changes) do
        for name, value in pairs(fields) do model[kind][name] = value end
    end
    return model
end

local function step(stream, model, cp, options)
    local m, result = labs.parity_step(stream, model, cp, options)
    return m, result
end

-- Loss and norm of all gradients; parity covers the gradients one by one.
local function numbers(m) return { m.loss, m.grad_norm } end

local function assert_near(expected, actual, where)
    for i, x in ipairs(expected) do
        assert.is_true(math.abs(x - actual[i]) <= BOUND * math.abs(x), where)
    end
end

local function assert_parity(m, where)
    assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND, where)
    assert.equal(0, m.wrong_rows, where)
end

local MODES = {
    { gqa = { cp_mode = "gather" }, gdn = { cp_mode = "chunkwise" } },
    { gqa = { cp_mode = "p2p" }, gdn = { cp_mode = "headwise" } },
    { gqa = { cp_mode = "a2a" }, gdn = { cp_mode = "chunkwise" } },
    { gqa = { cp_mode = "gather", window = 5 }, gdn = { cp_mode = "headwise" } },
    { gqa = { cp_mode = "a2a+p2p", a2a = 2 }, gdn = { cp_mode = "chunkwise" } },
}
-- Heads do not divide by 3, nor one or three ranks into pairs.
local function runs_at(changes, cp)
    local by_heads = changes.gqa.cp_mode == "a2a" or changes.gdn.cp_mode == "headwise"
    return not (by_heads and cp == 3) and cp % (changes.gqa.a2a or 1) == 0
end

local POLICIES = { "zigzag", "contiguous", "mirror", "balanced", "native" }

describe("a batch of columns", function()
    local expected

    setup(function()
        expected = {}
        for i, changes in ipairs(MODES) do
            expected[i] = numbers(step(THD, with_modes(changes), changes.gqa.a2a or 1))
        end
    end)

    for cp = 1, 4 do
        it(("T-61: equals packed sequences on one rank in every policy and mode, cp %d"):format(cp),
            function()
                for i, changes in ipairs(MODES) do
                    for _, policy in ipairs(POLICIES) do
                        if runs_at(changes, cp) then
                            local model = with_modes(changes)
                            model.policy = policy
                            local where = ("%s, modes %d"):format(policy, i)
                            local m = step(SBHD, model, cp)
                            assert_parity(m, where)
                            assert_near(expected[i], numbers(m), where)
                        end
                    end
                end
            end)
    end

    local function gradients(stream, policy, cp)
        local result, problem = labs.run { stream = stream, model = labs.model { policy = policy },
            cp = cp, calls = { { "gradients" } } }
        assert(result, problem)
        return result.answers[1]
    end

    it("has each gradient of packed sequences, in every policy", function()
        local packed = gradients(THD, "contiguous", 1)
        assert.is_true(#packed > 20)
        for _, policy in ipairs(POLICIES) do
            for cp = 1, 4 do
                for i, list in ipairs(gradients(SBHD, policy, cp)) do
                    local error2, norm2 = 0, 0
                    assert.equal(packed[i][1], list[1])
                    for j = 2, #list do
                        error2 = error2 + (list[j] - packed[i][j]) ^ 2
                        norm2 = norm2 + packed[i][j] ^ 2
                    end
                    assert.is_true(norm2 > 0 and error2 <= BOUND ^ 2 * norm2, list[1])
                end
            end
        end
    end)

    it("has the bits of packed sequences where a rank holds them in the same order", function()
        for _, policy in ipairs { "native", { "mirror", "zigzag", "mirror" } } do
            for cp = 1, 4 do
                assert.same(gradients(THD, policy, cp), gradients(SBHD, policy, cp))
            end
        end
    end)

    it("goes through experts, a tied head and latent attention, and with recomputation", function()
        local model = labs.model {
            pattern = "GL", policy = "mirror", tied = true,
            moe = { experts = 6, top_k = 2, width = 8 },
            mla = { heads = 4, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2, value_dim = 7 },
        }
        model.mlp = nil
        local m = step(SBHD, model, 4)
        assert_parity(m)
        assert_near(numbers(step(THD, model, 1)), numbers(m))
        assert.equal(SEQLEN * BATCH * 2 * 2, m.moe_choices)
        local result, problem = labs.run { stream = SBHD, model = model, cp = 4, calls = {
            { "step", { backward = true, reference = true, trace = true, recompute = "layer" } } } }
        assert(result, problem)
        assert_parity(result.answers[1])
        assert.same(numbers(m), numbers(result.answers[1]))
    end)

    it("trains as packed sequences do", function()
        local training = { iters = 4, optimizer = "adamw", lr = 0.01, clip = 1 }
        local losses = {}
        for i, stream in ipairs { SBHD, THD } do
            local result, problem = labs.run { stream = stream, model = labs.model(), cp = 4 - i,
                calls = { { "step", training } } }
            assert(result, problem)
            losses[i] = result.answers[1].losses
        end
        assert_near(losses[2], losses[1])
        assert.is_true(losses[1][4] < losses[1][1])
    end)

    it("draws other tokens in each column, in one stream the same everywhere", function()
        local function loss(stream, policy, cp)
            return step(stream, labs.model { policy = policy }, cp).loss
        end
        local drawn = { seqlen = 16, batch = 2 }
        local first = loss(drawn, "zigzag", 1)
        for _, policy in ipairs { "zigzag", "mirror" } do
            assert.is_true(math.abs(loss(drawn, policy, 4) - first) <= BOUND * first)
        end
        assert.is_true(math.abs(loss({ seqlen = 16 }, "zigzag", 1) - first) > 1e-6)
    end)
end)

describe("counts of a batch", function()
    -- Who holds a position in a layout of one column, asked one position at a time.
    local function moved(from, to)
        local rows, pairs_of_ranks, messages = 0, {}, 0
        for p = 0, from:stream():n_positions() - 1 do
            local a, b = (from:locate(p)), (to:locate(p))
            if a ~= b then
                rows = rows + 1
                if not pairs_of_ranks[a * 64 + b] then messages = messages + 1 end
                pairs_of_ranks[a * 64 + b] = true
            end
        end
        return rows, messages
    end

    for _, policy in ipairs { "zigzag", "contiguous", "mirror" } do
        it("are, under " .. policy .. ", messages of one column and bytes of all", function()
            local triple = require("cplab.policy").triples[policy]
            local m = step(SBHD, labs.model { policy = policy, pattern = "GGG*" }, 4)
            local one = step({ seqlen = SEQLEN }, labs.model { policy = policy,
                pattern = "GGG*" }, 4)
            local stream = cplab.stream.sbhd { seqlen = SEQLEN, batch = BATCH }
            local there = triple[1] == triple[2] and triple[3] or triple[2]
            local rows, messages = moved(cplab.layout[triple[1]](stream, { cp = 4 }),
                cplab.layout[there](stream, { cp = 4 }))
            local bytes = rows * BATCH * 12 * 8
            assert.equal(bytes * m.conversions_fwd, m.conversion_bytes_fwd)
            assert.equal(bytes * m.conversions_bwd, m.conversion_bytes_bwd)
            assert.equal(messages * m.conversions_fwd, m.conversion_messages_fwd)
            for _, name in ipairs { "conversions_fwd", "conversions_bwd", "routes_built",
                "routes_built_in_step", "conversion_messages_fwd", "attention_imbalance" } do
                assert.equal(one[name], m[name], name)
            end
            assert.is_true(m.state_bytes > 0)
            assert.equal(BATCH * one.state_bytes, m.state_bytes)
        end)
    end
end)

describe("a batch", function()
    it("is shown with its conversions: rows of positions, bytes of all columns", function()
        local model = cplab.model { schedule = cplab.schedule.pattern("GGG*", 4), vocab = 17,
            policy = "mirror", hidden = 12, dtype = "f64", gqa = labs.model().gqa,
            gdn = labs.model().gdn }
        local stream = cplab.stream.sbhd { seqlen = 64, batch = 3 }
        local text = table.concat(outline.lines(stream, model, 4), "\n")
        assert.matches("^stream       sbhd of 64 positions, batch 3\n", text)
        -- Half of the rows, there and back.
        assert.matches("\nconversions  2 a forward pass: 64 rows of 288 bytes change rank "
            .. "%(0.02 MiB%), 8 messages", text)
    end)

    it("runs a preset", function()
        assert_parity(labs.run_preset("qwen35_35b", { scale = "tiny", dtype = "f64",
            policy = "mirror" }, { seqlen = 32, batch = 2 }, 2))
    end)

    it("is converted in place by mirror, in one message to one partner", function()
        local swaps = ranks.run(4, function(comm)
            local cplab, clib = require "cplab", require "clib" -- luacheck: ignore 431
            local stream = cplab.stream.sbhd { seqlen = 32, batch = 3 }
            local from = cplab.layout.contiguous(stream, { cp = 4 }):columns()
            local to = cplab.layout.mirror(stream, { cp = 4 }):columns()
            local route = cplab.route(from, to)
            local plan = clib.create("cpl_plan", clib.C.cpl_plan_destroy, 1, clib.C.cpl_plan_create,
                route._ptr, comm._ptr, clib.C.CPL_F64, 5, nil)
            return { clib.C.cpl_plan_swaps(plan), tonumber(clib.C.cpl_plan_sent_messages(plan)),
                tonumber(clib.C.cpl_plan_sent_bytes(plan)) }
        end)
        -- Half of the eight rows of each of three columns.
        for rank = 1, 4 do assert.same({ true, 1, 4 * 3 * 5 * 8 }, swaps[rank]) end
    end)
end)

describe("planted faults of a batch", function()
    it("a column that reads the state of the next one: parity fails, no row is misplaced",
        function()
            for _, policy in ipairs { "native", "contiguous" } do
                local m = step(SBHD, labs.model { policy = policy }, 4,
                    { faults = { cross_columns = { rank = 2 } } })
                assert.equal(0, m.wrong_rows)
                assert.is_true(m.parity_fwd > 1e-6, policy)
            end
            -- One column has no next one.
            local m = step({ seqlen = SEQLEN }, labs.model { policy = "contiguous" }, 4,
                { faults = { cross_columns = { rank = 2 } } })
            assert_parity(m)
        end)

    it("rows of one column where another's belong: the trace says which", function()
        local m, result = step({ seqlen = SEQLEN, batch = 2 }, labs.model(), 4,
            { faults = { swap_runs = { rank = 1 } } })
        assert.is_true(m.wrong_rows > 0)
        assert.equal("trace: layers.0.norm1, rank 1, slot 0: expected position 6, found 30",
            result.checks[1].name)
    end)
end)

describe("rows of a batch", function()
    -- [position, column] rows go there and back in the layouts of positions.
    local function convert(stream, model, from, to)
        local result, problem = labs.run { stream = stream, model = model, cp = 4, calls = {
            { "convert_and_gather_batch", from, to, stream.batch } } }
        assert(result, problem)
        return result.answers[1]
    end

    it("convert and gather position by position, or column by column if told so", function()
        for _, way in ipairs { { "contiguous", "zigzag" }, { "mirror", "contiguous" } } do
            local answer = convert({ seqlen = 16, batch = 2 }, labs.model(), unpack(way))
            local positions, columns = {}, {}
            for p = 0, 15 do
                for c = 0, 1 do
                    positions[4 * p + 2 * c + 1], positions[4 * p + 2 * c + 2] = p, c
                    columns[2 * (c * 16 + p) + 1], columns[2 * (c * 16 + p) + 2] = p, c
                end
            end
            assert.same(positions, answer.positions)
            assert.same(positions, answer.live)
            assert.same(columns, answer.columns)
        end
    end)

    it("of one column only are refused: their number does not fit", function()
        local result, problem = labs.run { stream = { seqlen = 16, batch = 2 },
            model = labs.model(), cp = 4,
            calls = { { "gather_columns_as_positions" } } }
        assert.is_nil(result)
        assert.matches("lab:gather: 8 rows, but rank %d has 4 in contiguous, cp 4, sbhd of 16 "
            .. "positions, batch 2", problem)
    end)
end)

describe("a stream that no stack takes", function()
    it("has a token beyond the vocabulary, named with its column", function()
        local stream = streams(8, 2)
        stream.tokens[12] = VOCAB
        local result, problem = labs.run { stream = stream, cp = 2, model = labs.model(),
            calls = { { "step", {} } } }
        assert.is_nil(result)
        assert.truthy(problem:find("stack: token 17 at position 5 of column 1, vocabulary of 17", 1,
            true), problem)
    end)
end)
