-- Every mode of attention in every layout equals one rank, forward and every gradient, in f64 at
-- 1e-12: what is left is the order of sums, some 100 terms of 1e-16 each.
local modes = require "spec.support.gqa_modes"

local BOUND = 1e-12

local references = {}

-- Kept: many cases share theirs.
local function reference_of(case)
    local key = table.concat({ case.config.heads, case.config.kv_heads, case.config.window or 0,
        table.concat(case.stream.lengths, ","), table.concat(case.stream.real, ",") }, " ")
    references[key] = references[key] or modes.alone(case)
    return references[key]
end

local function check(cp, cases)
    for i, result in ipairs(modes.run(cp, cases)) do
        local case = cases[i]
        local worst, where = modes.worst(result, reference_of(case), case.config.window)
        assert.is_true(worst <= BOUND, ("%g at %s, lengths %s, window %s"):format(worst, where,
            table.concat(case.stream.real, ","), tostring(case.config.window)))
        assert.equal(0, result.wrong_rows)
        assert.equal(0, result.forward.state_bytes + result.backward.state_bytes)
    end
end

local function with_window(config, window)
    local copy = { window = window }
    for name, value in pairs(config) do copy[name] = value end
    return copy
end

describe("attention over ranks equals one rank:", function()
    for _, cp in ipairs { 2, 3, 4, 5, 8 } do
        for _, config in ipairs(modes.configs(cp)) do
            for _, layout in ipairs(modes.LAYOUTS) do
                it(("%s at cp %d in %s"):format(modes.name(config), cp, layout), function()
                    local cases = {}
                    for i, real in ipairs(modes.LISTS) do
                        -- No window, and in turn one of 3, of 1, and longer than a sequence.
                        cases[#cases + 1] = modes.case(layout, real, cp, config, { trace = true })
                        cases[#cases + 1] = modes.case(layout, real, cp,
                            with_window(config, ({ 3, 1, 100 })[i % 3 + 1]))
                    end
                    check(cp, cases)
                end)
            end
        end
    end
end)
