--- Prices that nobody measured: drawn at random, for specs of the planner. They have the face of
-- cplab.cost: a model, candidates, and what mixers, rests, conversions and ends cost.
local M = {}

local MODES = { gqa = { "p2p", "gather", "a2a" }, gdn = { "chunkwise", "headwise" } }

--- A reproducible source of numbers in 0 .. n - 1.
function M.source(seed)
    local state = seed * 2654435761 % 2 ^ 31 + 1
    return function(n)
        for _ = 1, 3 do state = (state * 48271) % 2147483647 end
        return state % n
    end
end

--- Seconds by style: "real" any, "ties" few values, exact, "holes" the same with some missing.
local function draw(style, random)
    if style == "real" then return (random(1e6) + random(1e6) * 1e-6) * 1e-9 end
    if style == "holes" and random(4) == 0 then return nil end
    return random(3) * 1e-3
end

-- A table that is filled when it is asked, in the order in which it is asked.
local function drawn(style, random, least)
    local known = {}
    return function(...)
        local key = table.concat({ ... }, " ")
        if known[key] == nil then
            local seconds = draw(style, random)
            known[key] = seconds and seconds + least or false
        end
        return known[key] or nil
    end
end

local function model_of(pattern, depths, alike)
    local layers, n = {}, #pattern
    for i = 1, n + depths do
        local at = math.min(i, n)
        layers[i] = { kind = pattern:sub(at, at) == "*" and "gqa" or "gdn",
            window = not alike and i or nil }
    end
    return {
        schedule = { count = function() return n end },
        layers = function() return layers end,
        ffn = function() return "mlp" end,
    }
end

local function key_of(model, i)
    local layer = model:layers()[i]
    return layer.kind .. tostring(layer.window)
end

--- Prices for a pattern of layers.
-- @tparam table t pattern ("GG*"), names (candidates), seed, style; alike (layers of a kind have
-- the same prices), depths (of MTP, like the last layer), modes (by kind)
function M.new(t)
    local random = M.source(t.seed)
    local model = model_of(t.pattern, t.depths or 0, t.alike)
    local mixer, rest = drawn(t.style, random, 0), drawn(t.style, random, 0)
    local convert = drawn(t.style, random, 0)
    local ends = drawn(t.style == "holes" and "ties" or t.style, random, 0)
    return {
        model = model, layouts = t.names,
        modes = function(_, i) return (t.modes or MODES)[model:layers()[i].kind] end,
        mixer = function(_, i, layout, mode)
            local seconds = mixer(key_of(model, i), layout, mode)
            return seconds, not seconds and "drawn so" or nil
        end,
        rest = function(_, i, layout) return rest(key_of(model, i), layout) end,
        convert = function(_, from, to) return convert(from, to) end,
        ends = function(_, entry, exit) return ends(entry, exit) end,
    }
end

--- All patterns of n layers of GDN (G) and GQA (*).
function M.patterns(n)
    local list = {}
    for k = 0, 2 ^ n - 1 do
        local symbols = {}
        for i = 1, n do
            symbols[i] = math.floor(k / 2 ^ (i - 1)) % 2 == 1 and "*" or "G"
        end
        list[k + 1] = table.concat(symbols)
    end
    return list
end

return M
