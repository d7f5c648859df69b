--- The columns of masks and biases: all keys, rank by rank, in a key layout.
-- @module cplab.boundary.keys
local clib = require "clib"
local rows = require "cplab.rows"
local tensors = require "cplab.tensor"
local C, ffi = clib.C, clib.ffi

local M = {}

--- What is wrong with the columns of masks, in words; nil where nothing is.
-- @tparam table leaves of cplab.boundary.tree
-- @tparam Layout layout of the keys
function M.complaint(leaves, layout)
    local n = layout:stream():n_positions()
    for _, leaf in ipairs(leaves) do
        local shape = leaf.tensor:shape()
        if #shape < 2 or shape[#shape] ~= n then
            return ("%s is %s: its last axis must be all %d keys of %s"):format(leaf.path,
                leaf.tensor:describe(), n, tostring(layout))
        end
    end
    return nil
end

-- Column of each position, from 0, where shards lie one behind the other in rank order.
local function columns_of(layout)
    local column, next_column = {}, 0
    for rank = 0, layout:n_ranks() - 1 do
        for _, run in ipairs(layout:runs(rank)) do
            for position = run[1], run[1] + run[2] - 1 do
                column[position] = next_column
                next_column = next_column + 1
            end
        end
    end
    return column
end

local function find(from, to)
    local source, target = columns_of(from), columns_of(to)
    local at = {} -- source column of each target column
    for position, column in pairs(target) do at[column] = source[position] end
    local list = {}
    for column = 0, from:stream():n_positions() - 1 do
        local last = list[#list]
        if last and last.source + last.length == at[column] then
            last.length = last.length + 1
        else
            list[#list + 1] = { source = at[column], target = column, length = 1 }
        end
    end
    return list
end

--- Which stretches of columns go where between two key layouts; kept with the plans of a lab.
-- @tparam table own cplab.plans
-- @treturn table a list of { source =, target =, length = }, columns from 0
function M.segments(own, from, to)
    own.columns = own.columns or {}
    local key = ("%s %s"):format(tostring(C.cpl_layout_digest(from._ptr)),
        tostring(C.cpl_layout_digest(to._ptr)))
    own.columns[key] = own.columns[key] or find(from, to)
    return own.columns[key]
end

--- A new tensor with the columns (the last axis) in their new places; rows keep their mark.
function M.permute(tensor, segments)
    local result = tensors.like(tensor)
    local shape = tensor:shape()
    local bytes = tonumber(C.cpl_dtype_bytes(tensor._ptr.dtype))
    local row = shape[#shape] * bytes
    local function copy(to, from)
        for i = 0, tensor:n_elements() / math.max(shape[#shape], 1) - 1 do
            for _, segment in ipairs(segments) do
                ffi.copy(to + i * row + segment.target * bytes,
                    from + i * row + segment.source * bytes, segment.length * bytes)
            end
        end
    end
    rows.edit(result._ptr, "char", function(to)
        rows.look(tensor._ptr, "char", function(from) copy(to, from) end)
    end)
    clib.check(C.cpl_tensor_mark_like(result._ptr, tensor._ptr))
    return result
end

return M
