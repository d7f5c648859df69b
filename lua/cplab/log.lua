--- What a rank says to its user: one line on stderr, and each warning once.
-- @module cplab.log
local clib = require "clib"
local C, ffi = clib.C, clib.ffi

local M = {}

--- One line on stderr.
function M.line(text)
    io.stderr:write("cplab: ", text, "\n")
end

local said = {} -- by this rank

--- A warning that is said once: by the first rank that comes to it, or, where ranks are processes,
-- by rank 0. So it is for what all ranks come to.
-- @tparam string name of the warning
function M.once(name, text)
    if said[name] or C.cpl_host_process() > 0 then
        return
    end
    said[name] = true
    -- The store keeps the first value that it is given, so the rank whose own it is was first; a
    -- table of this Lua state, and the time, are like no other.
    local mine = ("%s %.9f"):format(tostring(said), C.cpl_clock())
    local key, box = "said:" .. name, clib.box "size_t"
    clib.check(C.cpl_store_put(key, mine, #mine))
    local first = C.cpl_store_get(key, box)
    if ffi.string(first, box[0]) == mine then
        M.line(text)
    end
end

return M
