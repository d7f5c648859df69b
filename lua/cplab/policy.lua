--- A policy: three layouts, and how a schedule becomes steps under them.
-- The three say where the model lives (residual stream, norms, MLP, loss), where GQA runs
-- and where GDN runs. A mixer that runs elsewhere is wrapped in two conversions,
-- x = x + back(mixer(to(norm(x)))); fixed policies never coalesce them.
-- @module cplab.policy
local args = require "cplab.check_args"
local layout = require "cplab.layout"

local M = {}

--- Names and triples: where the model lives, where GQA runs, where GDN runs.
M.triples = {
    zigzag = { "zigzag", "zigzag", "contiguous" },
    contiguous = { "contiguous", "zigzag", "contiguous" },
    mirror = { "contiguous", "mirror", "contiguous" },
    native = { "zigzag", "zigzag", "zigzag" },
}
M.names = { "zigzag", "contiguous", "mirror", "native" }

-- The layouts that a triple may name: those that need no more than cp and tp.
local LAYOUTS = { "contiguous", "zigzag", "mirror" }

--- The policy of a name or of a triple of layout names.
-- @treturn table { name =, live =, gqa =, gdn = }, layout names
-- @raise an unknown policy or layout, with the nearest name
function M.resolve(policy, level)
    level = (level or 1) + 1
    local triple = policy
    if type(policy) == "string" then
        triple = M.triples[policy]
        if not triple then
            args.unknown("policy", "policy", policy, M.names, level)
        end
    elseif type(policy) ~= "table" or #policy ~= 3 then
        error("policy: expected a name or three layouts { model, gqa, gdn }", level)
    end
    for _, name in ipairs(triple) do
        args.one_of("policy", "layout", name, LAYOUTS, level)
    end
    return {
        name = type(policy) == "string" and policy or table.concat(triple, "/"),
        live = triple[1],
        gqa = triple[2],
        gdn = triple[3],
    }
end

--- The layouts of a resolved policy on a stream; equal names share one object.
-- @tparam table policy of M.resolve
-- @tparam table stream
-- @tparam table group { cp =, tp = }
-- @treturn table { live =, gqa =, gdn = }
function M.layouts(policy, stream, group)
    local made = {}
    local function get(name)
        made[name] = made[name] or layout[name](stream, group)
        return made[name]
    end
    return { live = get(policy.live), gqa = get(policy.gqa), gdn = get(policy.gdn) }
end

--- The steps of a forward pass, in order: { op = "convert" | "mixer" | "mlp", layer =, ... }.
-- A convert step names the layouts that it goes between. At cp 1 there is nothing to convert.
-- @tparam table policy of M.resolve
-- @tparam table schedule
-- @tparam number cp
-- @tparam boolean has_mlp
function M.steps(policy, schedule, cp, has_mlp)
    local steps = {}
    local function add(step)
        steps[#steps + 1] = step
    end
    for i, layer in ipairs(schedule.layers) do
        local there = policy[layer.kind]
        local converts = cp > 1 and there ~= policy.live
        if converts then
            add { op = "convert", layer = i - 1, from = policy.live, to = there }
        end
        add { op = "mixer", layer = i - 1, kind = layer.kind, layout = there }
        if converts then
            add { op = "convert", layer = i - 1, from = there, to = policy.live, back = true }
        end
        if has_mlp then
            add { op = "mlp", layer = i - 1, layout = policy.live }
        end
    end
    return steps
end

--- How many convert steps a list of steps has.
function M.count_conversions(steps)
    local n = 0
    for _, step in ipairs(steps) do
        if step.op == "convert" then
            n = n + 1
        end
    end
    return n
end

return M
