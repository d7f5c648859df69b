--- Whose line an error names. A level that is counted by hand goes wrong when a check moves into a
-- helper, and a file of ours says nothing to who wrote a script: from the level that the code
-- counts the search goes on, outwards, to a line that is not ours.
-- @module blame
-- @usage error("layout: unknown name", blame(2))
local root = debug.getinfo(1, "S").source:match "^(.*)bindings/blame%.lua$"
local ours = { root .. "lua/", root .. "bindings/" }

local function is_ours(source)
    for _, folder in ipairs(ours) do
        if source:sub(1, #folder) == folder then return true end
    end
    return false
end

--- The level for error() of the innermost Lua function outside of cplab; where all are ours, the
-- level that was given.
-- @tparam ?number level where to begin, as in error() of the function that calls this; default 1
-- @treturn number
return function(level)
    local at = level or 1
    while true do
        local info = debug.getinfo(at + 1, "S")
        if not info then return level or 1 end
        if info.source:sub(1, 1) == "@" and not is_ours(info.source) then return at end
        at = at + 1
    end
end
