-- One GDN layer, cut in every way, equals itself on one rank: outputs, the gradient of its input
-- and of every parameter, in f64 at 1e-12. What is left is the order of sums of some 100 terms.
local ranks = require "spec.support.ranks"

local BOUND = 1e-12
local SIZES = { 2, 3, 4, 5, 8 }

-- The short lists of gdn_and_attention.md sections 8.c, 3.3 and 7.2: over all ranks, off a rank's
-- edge, ones, empty ones anywhere, equal ones.
local LISTS = {
    { 24 }, { 7, 9, 8 }, { 5, 6, 8, 5 }, { 6, 6, 6, 6 }, { 1, 1, 1, 21 }, { 23, 1 },
    { 3, 3, 2, 2, 3, 3 }, { 17, 0, 7 }, { 5, 7 }, { 7, 0, 17 }, { 3, 21 },
    { 0, 0, 5, 0, 4, 0 }, { 2, 1, 0, 1 },
}
local KINDS = { "contiguous", "zigzag", "mirror", "snake", "striped" }

local function padded(list, multiple)
    local lengths = {}
    for i, n in ipairs(list) do lengths[i] = math.ceil(n / multiple) * multiple end
    return lengths
end

-- Runs of 3, 1, 5, 2 rows dealt out so that counts differ and the last rank has none.
local function unequal(n, cp)
    local list, at, lengths = {}, 0, { 3, 1, 5, 2 }
    for r = 1, cp do list[r] = {} end
    for i = 0, n do
        local length = math.min(lengths[i % 4 + 1], n - at)
        if length == 0 then break end
        local runs = list[i * i % math.max(cp - 1, 1) + 1]
        runs[#runs + 1] = { at, length }
        at = at + length
    end
    return list
end

-- Runs of one row, the later the position the earlier its slot.
local function single(n, cp)
    local list = {}
    for r = 1, cp do list[r] = {} end
    for position = n - 1, 0, -1 do
        local runs = list[(position * position + position) / 2 % cp + 1]
        runs[#runs + 1] = { position, 1 }
    end
    return list
end

local function sum(list)
    local total = 0
    for _, n in ipairs(list) do total = total + n end
    return total
end

-- Every layout of a list: the named ones of the padded lengths, and partitions that no rule makes.
local function layouts_of(list, cp)
    local cases = {}
    for _, kind in ipairs(KINDS) do
        cases[#cases + 1] = { kind = kind, lengths = padded(list, 2 * cp), real = list }
    end
    for name, make in pairs { unequal = unequal, single = single } do
        cases[#cases + 1] = { kind = "custom", lengths = list, what = name,
            ranks = make(sum(list), cp) }
    end
    if sum(list) % (2 * cp) == 0 then -- the zigzag of flash-linear-attention
        cases[#cases + 1] = { kind = "snake", lengths = list, what = "snake, not padded" }
    end
    return cases
end

local function cases_of(cp, cp_mode, config, changes)
    local cases = {}
    for _, list in ipairs(LISTS) do
        for _, case in ipairs(layouts_of(list, cp)) do
            case.cp_mode, case.config, case.traced = cp_mode, config, true
            case.reference_key = table.concat(list, ",")
            case.name = ("%s {%s} %s"):format(cp_mode, case.reference_key, case.what or case.kind)
            for name, value in pairs(changes or {}) do case[name] = value end
            cases[#cases + 1] = case
        end
    end
    return cases
end

local function check(cp, cases, bound)
    for _, wrong in ipairs(ranks.run(cp, "spec.support.gdn_cases",
        { cases = cases, bound = bound or BOUND }, 120)) do
        assert.same({}, wrong)
    end
end

describe("a GDN layer in every layout", function()
    for _, cp in ipairs(SIZES) do
        for _, cp_mode in ipairs { "chunkwise", "headwise" } do
            it(("%s on %d ranks equals one rank"):format(cp_mode, cp), function()
                check(cp, cases_of(cp, cp_mode, { key_heads = cp, value_heads = 2 * cp }))
            end)
        end

        it(("headwise on %d ranks, two key heads for four: copies"):format(cp), function()
            local key_heads = cp % 2 == 0 and cp / 2 or 1
            check(cp, cases_of(cp, "headwise", { key_heads = key_heads, value_heads = 2 * cp }))
        end)
    end

    it("with any width of the convolution, also over more ranks than one", function()
        for _, cp_mode in ipairs { "chunkwise", "headwise" } do
            for _, conv in ipairs { 1, 2, 3, 9 } do
                check(4, cases_of(4, cp_mode, { key_heads = 2, value_heads = 4, conv = conv }))
            end
        end
    end)

    it("with any chunk", function()
        for _, chunk in ipairs { 1, 3, 64 } do
            check(3, cases_of(3, "chunkwise", { chunk = chunk }))
        end
    end)

    it("with scratch full of NaN before each pass", function()
        for _, cp_mode in ipairs { "chunkwise", "headwise" } do
            check(4, cases_of(4, cp_mode, nil, { poison = true }))
        end
    end)

    -- Nearly all is forgotten: g is about -1e4, exponents underflow, nothing may overflow. dA_log
    -- and da are then products of 0.
    it("where each token forgets all", function()
        for _, cp_mode in ipairs { "chunkwise", "headwise" } do
            check(4, cases_of(4, cp_mode, nil, { a_log = 9.2 }))
        end
    end)

    -- Decay of e^-1e-5 a token: what is dropped anywhere is seen at the last token.
    it("where nothing is forgotten", function()
        for _, cp_mode in ipairs { "chunkwise", "headwise" } do
            check(4, cases_of(4, cp_mode, nil, { a_log = -12 }))
        end
    end)
end)
