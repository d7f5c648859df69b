--- A policy: which layouts the layers of a schedule run in.
-- As a rule three: where the model lives (residual stream, norms, MLP, loss), where GQA runs and
-- where GDN runs. A mixer that runs elsewhere is wrapped in two conversions,
-- x = x + back(mixer(to(norm(x)))); fixed policies never coalesce them. Or an assignment
-- (cplab.assignment), which says it for each layer. "auto" is an assignment that the planner makes
-- for the stream at hand.
-- @module cplab.policy
local args = require "cplab.check_args"
local assignments = require "cplab.assignment"
local named = require "cplab.named_layouts"

local M = {}

--- Names and triples: where the model lives, where GQA runs, where GDN runs.
M.triples = {
    zigzag = { "zigzag", "zigzag", "contiguous" },
    contiguous = { "contiguous", "zigzag", "contiguous" },
    mirror = { "contiguous", "mirror", "contiguous" },
    balanced = { "contiguous", "balanced", "contiguous" },
    native = { "zigzag", "zigzag", "zigzag" },
}
M.names = { "zigzag", "contiguous", "mirror", "balanced", "native", "auto" }

--- The layouts that a policy may name; "balanced@0.1" is balanced with a tolerance of its own.
M.layout_names = named.names

--- The policy of a name, of a triple of layout names, or of an assignment.
-- @tparam string|table policy
-- @tparam ?number level
-- @treturn table { name =, live =, gqa =, gdn = }, layout names; or an assignment, see
-- cplab.assignment.new; or { name = "auto", is_auto = true }
-- @raise an unknown policy or layout, with the nearest name
function M.resolve(policy, level)
    level = (level or 1) + 1
    if assignments.is(policy) then return (assignments.new(policy, level)) end
    local triple, names = policy, {}
    if type(policy) == "string" then
        args.one_of("policy", "policy", policy, M.names, level)
        triple = M.triples[policy]
        if not triple then return { name = policy, is_auto = true } end
    elseif not args.is_list(policy) or #policy ~= 3 then
        error("policy: expected a name, three layouts { model, gqa, gdn } or an assignment", level)
    end
    for i, name in ipairs(triple) do names[i] = named.check("policy", name, level) end
    return {
        name = type(policy) == "string" and policy or table.concat(names, "/"),
        live = names[1],
        gqa = names[2],
        gdn = names[3],
    }
end

return M
