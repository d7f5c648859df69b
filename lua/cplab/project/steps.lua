--- The steps that `project --validate` predicts and measures: schedules, policies, group sizes and
-- streams of other sizes than those that `--fit` measures. They are compute-bound, as the aim for
-- the error says.
-- @module cplab.project.steps
local models = require "cplab.model"
local schedules = require "cplab.schedule"
local streams = require "cplab.stream"

local M = {}

local ONE, PACK = { 1 }, { 0.5, 0.0625, 0.1875, 0.125, 0.125 }

--- The held-out steps: pattern of layers, policy, cp, tokens, hidden, parts of the stream.
M.cases = {
    { pattern = "GGG*", policy = "contiguous", cp = 1, tokens = 512, hidden = 320, parts = ONE },
    { pattern = "G*", policy = "contiguous", cp = 1, tokens = 896, hidden = 192, parts = ONE },
    { pattern = "GGG*", policy = "zigzag", cp = 2, tokens = 640, hidden = 320, parts = ONE },
    { pattern = "GGG*", policy = "contiguous", cp = 2, tokens = 896, hidden = 192, parts = ONE },
    { pattern = "GGG*", policy = "native", cp = 2, tokens = 640, hidden = 320, parts = PACK },
    { pattern = "**", policy = "mirror", cp = 2, tokens = 896, hidden = 320, parts = ONE },
    { pattern = "GG", policy = "contiguous", cp = 2, tokens = 1024, hidden = 320, parts = ONE },
    { pattern = "GGG*", policy = "zigzag", cp = 4, tokens = 896, hidden = 320, parts = ONE },
    { pattern = "GGG*", policy = "mirror", cp = 4, tokens = 1024, hidden = 320, parts = ONE },
    { pattern = "GGG*", policy = "balanced", cp = 4, tokens = 1024, hidden = 320, parts = PACK },
    { pattern = "G*G*", policy = "contiguous", cp = 4, tokens = 896, hidden = 192, parts = PACK },
    { pattern = "GGG*", policy = "native", cp = 4, tokens = 896, hidden = 320, parts = ONE },
}

--- A case in words, "GGG* zigzag cp 2, 1280 tokens of 320".
function M.describe(case)
    return ("%s %s cp %d, %d tokens of %d%s"):format(case.pattern, case.policy, case.cp,
        case.tokens, case.hidden, #case.parts > 1 and (" in %d"):format(#case.parts) or "")
end

--- The model of a case: heads of 64, as many as fit; an MLP three times as wide.
function M.model(case)
    local heads = case.hidden / 64
    return models {
        schedule = schedules.pattern(case.pattern, #case.pattern), policy = case.policy,
        hidden = case.hidden, vocab = 256, dtype = "f32",
        gqa = case.pattern:find("*", 1, true)
            and { heads = heads, kv_heads = 1, head_dim = 64 } or nil,
        gdn = case.pattern:find("G", 1, true)
            and { key_heads = heads, value_heads = heads, key_dim = 64, value_dim = 64 } or nil,
        mlp = { width = 3 * case.hidden },
    }
end

--- Its stream: sequences that take these parts of the tokens.
function M.stream(case)
    local lengths = {}
    for i, part in ipairs(case.parts) do lengths[i] = part * case.tokens end
    return streams.thd { lengths = lengths }
end

return M
