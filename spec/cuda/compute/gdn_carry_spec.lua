-- States that go on by summaries, on a device against the reference: of less than a tile and of
-- more, by M and by M', with entries that do nothing and such as go on from nothing.
local compute = require "spec.support.cuda_compute"

local random = compute.random(37)
local function nothing() return -7 end

local STATES, SUMMARIES = 5, 3

local function wide(n, values) return { n = n, values = values or random, type = "wide" } end

-- A list of n entries; -1 at every `none`-th place from the second on.
local function entries(n, below, none)
    return { n = n, type = "i64", values = function(i)
        return none and i % none == 1 and -1 or (n - i) % below
    end }
end

-- `n` entries, at most as many as there are states.
local function case(n, heads, key, value, options)
    local state, size = heads * key * value, heads * key * key
    return {
        arrays = {
            transition = wide(SUMMARIES * size), offset = wide(SUMMARIES * state),
            ["in"] = wide(STATES * state, options.values), out = wide(STATES * state, nothing),
            span = entries(n, STATES, options.idle),
            transition_of = entries(n, SUMMARIES, options.begun),
            offset_of = entries(n, SUMMARIES),
        },
        numbers = { n = n, heads = heads, key_dim = key, value_dim = value,
            transpose = options.transpose or false },
    }
end

local SHAPES = { { 1, 1, 1 }, { 2, 8, 6 }, { 3, 5, 17 }, { 1, 64, 64 }, { 1, 70, 66 } }

compute.describe({ describe, it, pending }, "states that go on", function(device, each)
    each("as the reference has them", function(dtype, way)
        for _, shape in ipairs(SHAPES) do
            local heads, key, value = unpack(shape)
            for _, options in ipairs { {}, { transpose = true }, { idle = 2 },
                { begun = 3, transpose = true } } do
                for _, n in ipairs { 0, 1, STATES } do
                    if not device.is_checked or key < 64 or n == 1 then
                        compute.try(device, "gdn_carry", case(n, heads, key, value, options), dtype,
                            way)
                    end
                end
            end
        end
    end)

    -- State 4 is the second entry's, which goes on from nothing.
    each("and one that is not read may be anything", function(dtype, way)
        local spoilt = case(STATES, 2, 8, 6, { begun = 3, values = function(i)
            return i >= 4 * 2 * 8 * 6 and 0 / 0 or random()
        end })
        compute.try(device, "gdn_carry", spoilt, dtype, way)
    end)
end)
