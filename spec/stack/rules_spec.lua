-- cplab's own rules say exactly what the layers say: what they refuse does not run, and what they
-- take does. Much of that the reference refuses: here it runs, and equals one rank.
local cplab = require "cplab"
local labs = require "spec.support.labs"

local function gqa(heads, kv_heads, cp_mode)
    return { heads = heads, kv_heads = kv_heads, head_dim = 8, rotary_dim = 4, cp_mode = cp_mode }
end

local function gdn(key_heads, value_heads, cp_mode)
    return { key_heads = key_heads, value_heads = value_heads, key_dim = 3, value_dim = 4,
        chunk = 4, cp_mode = cp_mode }
end

-- Sizes, cp, tp, and whether they go together.
local CASES = {
    { { gqa = gqa(4, 2) }, 2, 2, true },
    { { gqa = gqa(3, 1) }, 1, 2, false },
    { { gqa = gqa(6, 3) }, 1, 2, false },
    { { gqa = gqa(4, 1) }, 1, 4, true },
    { { gqa = gqa(4, 2, "a2a") }, 4, 1, true },
    { { gqa = gqa(6, 2, "a2a") }, 4, 1, false },
    { { gqa = gqa(4, 2, "a2a") }, 2, 2, true },
    { { gdn = gdn(2, 4) }, 1, 4, true },
    { { gdn = gdn(3, 6) }, 1, 2, false },
    { { gdn = gdn(1, 4, "headwise") }, 4, 1, true },
    { { gdn = gdn(2, 2, "headwise") }, 4, 1, false },
    { { gdn = gdn(3, 6, "headwise") }, 2, 1, false },
    { { gdn = gdn(2, 4, "headwise") }, 2, 2, true },
}

describe("cplab's own rules", function()
    for i, case in ipairs(CASES) do
        local changes, cp, tp, fits = unpack(case)
        it(("agree with the layers at cp %d, tp %d (case %d: %s)"):format(cp, tp, i,
            fits and "runs" or "refused"), function()
            local fields = labs.model(changes)
            fields.pattern = changes.gqa and "*" or "G"
            local result, text = labs.run { stream = { lengths = { 16 } }, cp = cp, tp = tp,
                model = fields, calls = { { "step", {} } } }
            assert.equal(fits, result ~= nil, text)
            fields.schedule, fields.pattern = cplab.schedule.pattern(fields.pattern, 1), nil
            local broken = cplab.rules.check(cplab.rules.config(cplab.model(fields),
                { cp = cp, tp = tp }))
            assert.equal(fits, #broken == 0, broken[1] and broken[1].message)
        end)
    end
end)

describe("what the reference refuses", function()
    local MLA = { heads = 4, q_rank = 5, kv_rank = 4, nope_dim = 3, rope_dim = 2, value_dim = 7 }
    local BATCH = { seqlen = 16, batch = 2 }
    for _, case in ipairs {
        { "V1", "mirror", { policy = "mirror" } },
        { "V1", "three layouts", { policy = { "contiguous", "contiguous", "contiguous" } } },
        { "V2", "contiguous unpacked", {}, BATCH },
        { "V3", "MTP in contiguous with sequence parallelism", { mtp = { kind = "gqa" } }, nil, 2 },
        { "V4", "MLA in contiguous", { pattern = "GL", mla = MLA } },
        { "V5", "contiguous attention alone", { pattern = "*" } },
        { "V6", "headwise GDN in contiguous [T-29]", { gdn = gdn(2, 4, "headwise") } },
    } do
        local rule, what, changes, stream, tp = unpack(case, 1, 5)
        it(("by %s runs here and equals one rank: %s"):format(rule, what), function()
            changes.pattern = changes.pattern or "G*"
            local fields = labs.model(changes)
            stream = stream or { lengths = { 16, 8 }, real = { 13, 8 } }
            local m = labs.parity_step(stream, fields, 2, nil, tp)
            assert.is_true(m.parity_fwd <= 1e-12 and m.parity_grad <= 1e-12)
            assert.equal(0, m.wrong_rows)
            fields.schedule, fields.pattern = cplab.schedule.pattern(fields.pattern,
                #fields.pattern), nil
            local model = cplab.model(fields)
            local config = cplab.rules.config(model, { cp = 2, tp = tp,
                stream = stream.seqlen and cplab.stream.sbhd(stream) or cplab.stream.thd(stream) })
            local list = cplab.rules.check(config, "megatron")
            assert.same({ 1, rule }, { #list, list[1].rule })
            assert.same({}, cplab.rules.check(config))
        end)
    end
end)
