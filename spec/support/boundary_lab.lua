--- Labs of boundaries in specs: on each rank one lab without a stack, and rows that hold their own
-- position, so that a row in a wrong place shows.
local cplab = require "cplab"

local M = {}

local STREAM = { lengths = { 16, 8 }, real = { 13, 8 } }

--- A lab on a comm (cplab.comm) of cp * tp ranks: p { cp, tp, stream, policy }.
function M.lab(comm, p)
    p = p or {}
    local fields = p.stream or STREAM
    local stream = fields.seqlen and cplab.stream.sbhd(fields) or cplab.stream.thd(fields)
    local function model()
        return cplab.model {
            schedule = cplab.schedule.list { "gqa" }, policy = p.policy or "contiguous",
            hidden = 4, vocab = 7, gqa = { heads = 1, kv_heads = 1, head_dim = 4 },
        }
    end
    return require("cplab.lab").new {
        experiment = { stream = function() return stream end,
            model = p.policy ~= false and model or nil },
        case = { cp = p.cp or comm:size(), tp = p.tp }, comm = comm._ptr,
    }
end

--- The layout of a name for a lab.
function M.layout(lab, name)
    return cplab.layout[name](lab.stream, { cp = lab.cp, tp = lab.tp })
end

--- This rank's rows of a layout, [n, width]: row of position p holds p + shift, -p, p ...
function M.rows(lab, name, width, shift)
    local values, layout = {}, type(name) == "string" and M.layout(lab, name) or name
    for _, position in ipairs(layout:positions(lab.rank)) do
        for j = 1, width do
            values[#values + 1] = (j % 2 == 1 and 1 or -1) * position + (shift or 0)
        end
    end
    return cplab.tensor.from(values, { #values / width, width }, "f64")
end

--- Whether a tensor holds those rows.
function M.holds(lab, tensor, name, shift)
    local shape = tensor:shape()
    local wanted = M.rows(lab, name, shape[#shape], shift)
    if shape[1] ~= wanted:shape()[1] then return false end
    local a, b = tensor:totable(), wanted:totable()
    for i = 1, #b do
        if a[i] ~= b[i] then return false end
    end
    return true
end

--- A mask [n, heads, n_keys]: the entry of query q, head h, key k is 100 q + k + h / 8; columns are
-- in the rank order of the key layout, by default that of the queries.
function M.mask(lab, name, heads, keys)
    local layout = M.layout(lab, name)
    keys = keys or layout
    local order, values = {}, {}
    for rank = 0, keys:n_ranks() - 1 do
        for _, position in ipairs(keys:positions(rank)) do order[#order + 1] = position end
    end
    for _, query in ipairs(layout:positions(lab.rank)) do
        for head = 1, heads do
            for _, key in ipairs(order) do values[#values + 1] = 100 * query + key + head / 8 end
        end
    end
    return cplab.tensor.from(values, { layout:n_local(lab.rank), heads, #order }, "f64")
end

--- Whether two tensors are of one shape and hold the same numbers.
function M.same(a, b)
    if a:describe() ~= b:describe() then return false end
    local x, y = a:totable(), b:totable()
    for i = 1, #y do
        if x[i] ~= y[i] then return false end
    end
    return true
end

--- What a call raises, without the place in front; nil where it raises nothing.
function M.refusal(f, ...)
    local ok, text = pcall(f, ...)
    if ok then return nil end
    return (tostring(text):gsub("^[^:]+:%d+: ", ""))
end

return M
