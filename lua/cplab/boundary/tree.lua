--- Tensors in tables: walking what a module takes and gives.
-- A plain table (without a metatable) is a container; everything else that is no tensor is a leaf
-- of no interest.
-- @module cplab.boundary.tree
local args = require "cplab.check_args"
local ffi = require("clib").ffi
local tensors = require "cplab.tensor"

local M = {}

local raw = ffi.typeof "cpl_tensor *"

local function is_container(value)
    return type(value) == "table" and getmetatable(value) == nil
end

-- A tensor of the layers, without its face, would pass through unseen.
local function refuse_raw(value, path)
    if type(value) == "cdata" and (ffi.istype(raw, value) or ffi.istype("cpl_tensor", value)) then
        error(("boundary: %s is a raw tensor of the core, not a cplab.tensor"):format(path), 0)
    end
end

local function name_of(key)
    return type(key) == "string" and "." .. key or ("[%s]"):format(args.show(key))
end

local function sorted(t)
    local names = {}
    for key in pairs(t) do names[#names + 1] = key end
    table.sort(names, function(a, b)
        if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then
            return a < b
        end
        return type(a) .. tostring(a) < type(b) .. tostring(b)
    end)
    return names
end

local function collect(value, path, seen, list)
    refuse_raw(value, path)
    if seen[value] then return list end
    if tensors.is_tensor(value) then
        seen[value] = true
        list[#list + 1] = { path = path, tensor = value }
    elseif is_container(value) then
        seen[value] = true
        for _, key in ipairs(sorted(value)) do
            collect(value[key], path .. name_of(key), seen, list)
        end
    end
    return list
end

--- The tensors in a value, each once, with the path to it, in an order that is the same on all
-- ranks where keys are numbers and strings.
-- @treturn table a list of { path =, tensor = }
function M.leaves(value, path)
    if value == nil then return {} end
    return collect(value, path, {}, {})
end

local function copy(value, move, moved)
    if value == nil then return nil end
    if moved[value] ~= nil then return moved[value] end
    if tensors.is_tensor(value) then
        moved[value] = move(value)
    elseif is_container(value) then
        local new = {}
        moved[value] = new
        for _, key in ipairs(sorted(value)) do new[key] = copy(value[key], move, moved) end
    else
        return value
    end
    return moved[value]
end

--- A copy of a value in which every tensor is `move(tensor)`; the same tensor or table stays the
-- same one. Without `move` the value itself.
function M.map(value, move)
    if not move then return value end
    return copy(value, move, {})
end

return M
