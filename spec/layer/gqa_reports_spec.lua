-- Bug reports about attention over ranks, each with its own numbers where they were given, and with
-- what the wrong rule would give.
local cplab = require "cplab"
local message = require "spec.support.message"
local modes = require "spec.support.gqa_modes"

local BOUND = 1e-12

-- The modes on cp ranks, with as few kv heads as they take.
local function configs(cp)
    local list = {}
    for _, mode in ipairs { "gather", "p2p", "a2a", "a2a+p2p" } do
        list[#list + 1] = { cp_mode = mode, a2a = mode == "a2a+p2p" and 2 or nil, heads = 2 * cp,
            kv_heads = 2 }
    end
    return list
end

local function case_of(stream, layout, config, changes)
    local case = { stream = stream, layout = layout, config = config }
    for name, value in pairs(changes or {}) do case[name] = value end
    return case
end

local function where(case)
    return ("%s in %s"):format(modes.name(case.config), case.layout)
end

-- Which rows, from 0, are 0 throughout.
local function zeros(rows)
    local list = {}
    for position = 0, #rows - 1 do
        local is_zero = true
        for _, value in ipairs(rows[position + 1]) do is_zero = is_zero and value == 0 end
        if is_zero then list[#list + 1] = position end
    end
    return list
end

local function interval(list, first, last)
    for position = first, last do list[#list + 1] = position end
    return list
end

local function right(cp, cases)
    local results = modes.run(cp, cases)
    for i, result in ipairs(results) do
        local worst, what = modes.worst(result, modes.alone(cases[i]))
        assert.is_true(worst <= BOUND, ("%g of %s, %s"):format(worst, what, where(cases[i])))
    end
    return results
end

describe("real lengths in padded ones", function()
    it("[report 64] 7 of 10 tokens on 2 ranks are 7: in 12, or in what 10 divides by", function()
        assert.equal("layout.zigzag: sequence 0 has 10 tokens, not a multiple of 2*cp = 4",
            message(cplab.layout.zigzag, cplab.stream.thd { lengths = { 10 }, real = { 7 } },
                { cp = 2 }))
        for layout, n in pairs { zigzag = 12, contiguous = 10, striped = 10 } do
            local cases, six = {}, {}
            for i, config in ipairs(configs(2)) do
                cases[i] = case_of({ lengths = { n }, real = { 7 } }, layout, config)
                six[i] = case_of({ lengths = { n }, real = { 6 } }, layout, config)
            end
            for _, result in ipairs(right(2, cases)) do
                assert.same(interval({}, 7, n - 1), zeros(result.y))
                assert.same(interval({}, 7, n - 1), zeros(result.dx))
            end
            -- Rounded down to the ranks, the last token is lost.
            assert.same(interval({}, 6, n - 1), zeros(modes.run(2, six)[1].y))
        end
    end)

    it("[report 65] halves of a rank that are all padding give nothing",
        function()
            local stream = { lengths = { 12, 8, 8, 12, 8, 12 }, real = { 9, 8, 8, 3, 8, 12 } }
            local pads = interval(interval({}, 9, 11), 31, 39)
            local cases, wild = {}, {}
            for i, config in ipairs(configs(2)) do
                cases[i] = case_of(stream, "zigzag", config)
                wild[i] = case_of(stream, "zigzag", config, { change = { 39, 1e300 } })
            end
            local clean = right(2, cases)
            for i, result in ipairs(modes.run(2, wild)) do
                for _, name in ipairs { "y", "dx" } do
                    assert.same(pads, zeros(result[name]))
                    assert.same(clean[i][name], result[name])
                end
                assert.same(clean[i].grads, result.grads)
            end
        end)

    it("T-83: padding is where real and padded lengths differ, nowhere else", function()
        local lengths = { 4, 8, 4 }
        local cases, taken = {}, {}
        for i, config in ipairs(configs(2)) do
            cases[i] = case_of({ lengths = lengths, real = { 3, 5, 4 } }, "zigzag", config)
            taken[i] = case_of({ lengths = lengths }, "zigzag", config)
        end
        local results, wrong = right(2, cases), right(2, taken)
        for i, result in ipairs(results) do
            assert.same({ 3, 9, 10, 11 }, zeros(result.y))
            assert.same({}, zeros(wrong[i].y))
            -- The padded lengths taken for the real ones, padding asks real keys for gradients.
            assert.is_true(modes.parity(wrong[i].dx, result.dx) > 1e-3)
            for position = 12, 15 do -- a sequence without padding has the same bits
                assert.same(result.dx[position + 1], wrong[i].dx[position + 1])
            end
        end
    end)
end)

describe("angles", function()
    it("[reports 69, 71] are of the token, in any layout: shifted on any one rank, it is seen",
        function()
            local stream, config = { lengths = { 32, 16 }, real = { 30, 13 } }, configs(4)[1]
            local cases = {}
            for i, layout in ipairs(modes.LAYOUTS) do
                cases[i] = case_of(stream, layout, config)
                if layout == "custom" then cases[i].ranks = modes.dealt(stream, 4) end
                if layout == "balanced" then cases[i].options = { block = 2 } end
            end
            right(4, cases)
            for _, case in ipairs(cases) do
                local reference = modes.alone(case)
                for rank = 0, 3 do
                    case.fault = { rank = rank, name = "rope_shift", value = 4 }
                    local worst = modes.worst(modes.run(4, { case })[1], reference)
                    assert.is_true(worst > 1e-3, ("rank %d, %s"):format(rank, where(case)))
                end
            end
        end)
end)

describe("heads over ranks", function()
    it("[report 74] 28 with 7 kv heads on 2: as they are, or both padded to 32 and 8", function()
        local stream = { lengths = { 16, 8 }, real = { 13, 8 } }
        local function config(mode, heads, kv_heads)
            return { cp_mode = mode, heads = heads, kv_heads = kv_heads }
        end
        right(2, { case_of(stream, "zigzag", config("gather", 28, 7)),
            case_of(stream, "zigzag", config("p2p", 28, 7)),
            case_of(stream, "zigzag", config("a2a", 32, 8)) })
        for kv_heads, words in pairs {
            [7] = "gqa: 7 kv_heads and 2 ranks that they are spread over: neither is a multiple of",
            [8] = "gqa: 28 heads, not a multiple of kv_heads = 8", -- kv heads alone padded
        } do
            local ok, text = pcall(modes.run, 2,
                { case_of(stream, "zigzag", config("a2a", 28, kv_heads)) })
            assert.is_false(ok)
            assert.truthy(text:find(words, 1, true), text)
        end
    end)
end)
