--- What a rank says to its user: one line on stderr, and each warning once a process.
-- @module cplab.log
local clib = require "clib"
local C = clib.C

local M = {}

--- One line on stderr.
function M.line(text)
    io.stderr:write("cplab: ", text, "\n")
end

--- A warning that is said once in a process, whichever rank says it first.
-- @tparam string name of the warning
function M.once(name, text)
    local key, box = "said:" .. name, clib.box "size_t"
    if C.cpl_store_get(key, box) ~= nil then
        return
    end
    clib.check(C.cpl_store_put(key, "1", 1))
    M.line(text)
end

return M
