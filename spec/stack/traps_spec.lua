-- Traps of other systems that concern a stack as a whole, each with a small input, and with what
-- the wrong rule would give.
local labs = require "spec.support.labs"
local ranks = require "spec.support.ranks"

local BOUND = 1e-12

local MLA = { heads = 4, q_rank = 5, kv_rank = 6, nope_dim = 3, rope_dim = 2, value_dim = 7 }
local it4 = ranks.with(4, it)

-- Runs a stack of the model that p gives on the ranks here: { name = weights of each parameter },
-- or after a step the logits by position.
local function on_ranks(cp, p)
    p.model = labs.model(p.changes)
    p.model.mla = p.model.mla or MLA
    p.model.layers = p.model.layers or { "gdn", "gqa", "gdn" }
    p.model.pattern = nil
    return ranks.run(cp, function(comm, q)
        local cplab, C = require "cplab", require("clib").C
        local fields = q.model
        fields.schedule, fields.layers = cplab.schedule.list(fields.layers), nil
        local stack = require("cplab.stack").new { model = cplab.model(fields), cp = comm:size(),
            tp = 1, stream = cplab.stream.thd(q.stream), comm = comm._ptr }
        local function list_of(tensor)
            local list = {}
            for i = 0, tonumber(C.cpl_tensor_n_elements(tensor)) - 1 do
                list[i + 1] = C.cpl_dtype_load(tensor.dtype, tensor.data, i)
            end
            return list
        end
        local result = {}
        if not q.step then
            for _, entry in ipairs(stack.parameters.list) do
                result[entry.name] = list_of(entry.weight)
            end
            return result
        end
        stack:step {}
        local all = list_of(stack.logits)
        for slot, position in ipairs(stack.exit:positions(comm:rank())) do
            result[position] = { unpack(all, (slot - 1) * 17 + 1, slot * 17) }
        end
        return result
    end, p)
end

local function logits(cp, changes, stream)
    local by_position = {}
    for _, rows in ipairs(on_ranks(cp, { changes = changes, stream = stream, step = true })) do
        for position, row in pairs(rows) do by_position[position] = row end
    end
    return by_position
end

describe("the weights of a stack", function()
    it4("T-49: are drawn by name: no layout, mode or other layer moves a draw", function()
        local function weights(cp, changes)
            return on_ranks(cp, { changes = changes, stream = { lengths = { 16, 8 } } })[cp]
        end
        local first = weights(1, {})
        local n = 0
        for _ in pairs(first) do n = n + 1 end
        local function same(others, from)
            local shared, wrong = 0, nil
            for name, list in pairs(others) do
                if first[name] and (tonumber(name:match "^layers%.(%d+)") or from) >= from then
                    shared = shared + 1
                    for i, value in ipairs(list) do
                        if value ~= first[name][i] then wrong = name end
                    end
                end
            end
            assert.is_nil(wrong)
            return shared
        end
        for _, policy in ipairs { "zigzag", "mirror", "native" } do
            assert.equal(n, same(weights(4, { policy = policy }), 0))
        end
        assert.equal(n, same(weights(2, { layers = { { "gdn", cp_mode = "headwise" },
            { "gqa", cp_mode = "p2p" }, "gdn" } }), 0))
        assert.equal(n, same(weights(1, { mtp = { depth = 2, kind = "gdn" } }), 0))
        assert.equal(n, same(weights(1, { layers = { "gdn", "gqa", "gdn", "gqa" } }), 0))
        -- Another first layer: those behind it keep theirs.
        assert.is_true(same(weights(1, { layers = { "mla", "gqa", "gdn" } }), 1) > n / 2)
        assert.has_error(function() same(weights(1, { seed = 4 }), 0) end)
    end)
end)

describe("boundaries", function()
    local KINDS = { "gdn", { "gdn", cp_mode = "headwise" }, "gqa", { "gqa", cp_mode = "p2p" },
        { "gqa", cp_mode = "a2a" }, { "gqa", cp_mode = "p2p", window = 20 }, "mla",
        { "mla", cp_mode = "p2p" } }

    it("T-77: reach every layer that minds order, in every mode", function()
        local before, after = {}, {}
        for i = 1, 32 do
            before[i] = 5 * i % 17
            after[i] = i <= 16 and (5 * i + 1) % 17 or before[i]
        end
        for i, kind in ipairs(KINDS) do
            -- The second document does not see the first; one of all tokens does.
            for lengths, differs in pairs { [{ 16, 16 }] = false, [{ 32 }] = true } do
                local changes = { layers = { kind }, policy = "zigzag" }
                local a = logits(2, changes, { lengths = lengths, tokens = before })
                local b = logits(2, changes, { lengths = lengths, tokens = after })
                local seen = 0
                for position = 16, 31 do
                    for c = 1, 17 do
                        if a[position][c] ~= b[position][c] then seen = seen + 1 end
                    end
                end
                assert.equal(differs, seen > 0, ("layer %d of %d"):format(i, #KINDS))
            end
        end
    end)
end)

describe("a batch", function()
    -- The same tokens column by column, as packed sequences, and as a single one.
    it("T-32: is no packed stream [report 60]: columns are not joined to one sequence", function()
        local n, batch, columns, packed = 16, 3, {}, {}
        for i = 0, n * batch - 1 do
            packed[i + 1] = (7 * i + i * i) % 17
            columns[i % n * batch + math.floor(i / n) + 1] = packed[i + 1]
        end
        for _, kind in ipairs { "gqa", "mla" } do
            for _, mode in ipairs { "gather", "p2p", "a2a" } do
                local model = labs.model { mla = MLA, policy = "zigzag",
                    list = { { kind, cp_mode = mode }, { kind, cp_mode = mode } } }
                local function loss(stream)
                    local m = labs.parity_step(stream, model, 2)
                    assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND)
                    return m.loss
                end
                local dense = loss { seqlen = n, batch = batch, tokens = columns }
                local sequences = loss { lengths = { n, n, n }, tokens = packed }
                local joined = loss { lengths = { n * batch }, tokens = packed }
                assert.is_true(math.abs(dense - sequences) <= BOUND * dense)
                assert.is_true(math.abs(dense - joined) > 1e-6)
            end
        end
    end)
end)

describe("multi-token prediction under sequence parallelism", function()
    local REAL = { 7, 2, 8 }
    local MOE = { experts = 6, top_k = 2, width = 10, shared_width = 8, aux_coefficient = 0.1 }

    local function step(cp, tp, faults)
        local model = labs.model { pattern = "G*", moe = MOE, seed = 41,
            policy = { "contiguous", "contiguous", "contiguous" },
            gqa = { heads = 4, kv_heads = 2, head_dim = 8, cp_mode = "p2p" },
            mtp = { depth = 2, kind = "gqa", loss_scale = 0.3 } }
        model.mlp = nil
        return labs.parity_step(labs.padded(REAL, 8), model, cp, { faults = faults }, tp)
    end

    it4("T-44: cuts the mask of padding as it cuts the tokens, contiguous included", function()
        -- Two layers of 17 tokens, a depth of 14, one of 11, two experts each.
        local choices = 2 * (2 * 17 + 14 + 11)
        local m = step(2, 2)
        assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND)
        assert.equal(choices, m.moe_choices)
        for roll, wrong in pairs { [0] = 2 * 4 * 17, [2] = 2 * (2 * 17 + 11 + 7) } do
            m = step(2, 2, { mask_roll = roll })
            assert.equal(wrong, m.moe_choices)
            assert.is_true(m.parity_grad > 1e-6)
        end
    end)

    it4("T-68, T-71: rolls and sums in the group that runs, whose ranks are not those of all",
        function()
            -- The ranks that roll together are 0 and 2, 1 and 3 of the four.
            local one = step(1, 1)
            for _, group in ipairs { { 2, 1 }, { 4, 1 }, { 1, 2 }, { 2, 2 } } do
                local m = step(unpack(group))
                assert.is_true(m.parity_fwd <= BOUND and m.parity_grad <= BOUND)
                for d = 1, 2 do
                    assert.is_true(math.abs(m.mtp_losses[d] - one.mtp_losses[d]) <= 1e-11)
                end
            end
            local m = step(2, 2, { roll = "across" })
            assert.is_true(math.abs(m.mtp_losses[1] - one.mtp_losses[1]) > 1e-3)
        end)
end)
