--- Progress on stderr: one line that is written over on a terminal, else one line a case.
-- @module cplab.progress
local M = {}

local Progress = {}
Progress.__index = Progress

--- @tparam number total cases
-- @tparam boolean terminal whether stderr is one
function M.new(total, terminal)
    return setmetatable({ _total = total, _terminal = terminal, _done = 0 }, Progress)
end

local function label(self, n, text)
    return ("cplab: case %d of %d, %s"):format(n, self._total, text)
end

--- A case begins; only a terminal shows it.
function Progress:begin(text)
    if self._terminal then
        io.stderr:write("\r\27[K", label(self, self._done + 1, text), " ...")
    end
end

--- A case is finished.
-- @tparam string text which one
-- @tparam string status
-- @tparam number seconds that it took
function Progress:finish(text, status, seconds)
    self._done = self._done + 1
    if self._terminal then return end
    io.stderr:write(label(self, self._done, text), (": %s, %.1f s\n"):format(status, seconds))
end

--- Takes the line away, so that something else can be written.
function Progress:clear()
    if self._terminal then io.stderr:write "\r\27[K" end
end

return M
