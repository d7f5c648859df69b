--- The model and the stream of `bench step`, made alike by the controller and by every rank.
-- @module cplab.bench.step_model
local models = require "cplab.model"
local streams = require "cplab.stream"

local M = {}

-- Words that stand instead of the preset's fields, by part.
local PARTS = {
    gqa = { heads = "heads", kv_heads = "kv_heads", head_dim = "head_dim", gqa_mode = "cp_mode",
        a2a = "a2a" },
    gdn = { key_heads = "key_heads", value_heads = "value_heads", key_dim = "key_dim",
        value_dim = "value_dim", gdn_mode = "cp_mode" },
}

-- A head of another width: the preset's rotated part may be wider.
local function rotary(fields, case)
    if case.head_dim then fields.gqa.rotary_dim = math.floor(case.head_dim / 8) * 2 end
end

--- The model of a case.
-- @tparam table case preset, scale, layers, policy, dtype, and what stands instead of its sizes
-- @raise what cannot go together
function M.model(case)
    local fields = { scale = case.scale, layers = case.layers, policy = case.policy,
        dtype = case.dtype, hidden = case.hidden, vocab = case.vocab }
    for part, words in pairs(PARTS) do
        local changes = {}
        for word, field in pairs(words) do changes[field] = case[word] end
        fields[part] = next(changes) and changes or nil
    end
    rotary(fields, case)
    if case.mlp_width then fields.mlp, fields.moe = { width = case.mlp_width }, false end
    return models[case.preset](fields)
end

--- Its stream: one sequence.
function M.stream(case)
    return streams.thd { lengths = { case.tokens } }
end

return M
