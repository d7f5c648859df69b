--- Runs trials of the emulator of CUDA: programs in spec/emulation/trials that print what they saw.
-- @module spec.support.emulation
local word = require "cplab.environment".shell_word

local M = {}

local build = package.searchpath("cplab_cdef", package.path):match "^(.*)/lua/"
local program = build .. "/bin/emulation_trial"

--- nil, or why there are no trials in this build.
M.missing = not require("lfs").attributes(program)
    and "the emulator of CUDA is not built: it needs CUDA's headers, an x86-64, and no sanitizer"
    or nil

--- The lines that a trial prints, standard error among them.
-- @tparam string name of the trial
-- @tparam ?table settings by name, such as { order = "reverse" }
-- @treturn string
function M.run(name, settings)
    local words = { "env" }
    for key, value in pairs(settings or {}) do
        words[#words + 1] = word(("CPLAB_CUDA_%s=%s"):format(key:upper(), value))
    end
    words[#words + 1] = ("timeout 60 %s %s 2>&1; echo status $?"):format(word(program), word(name))
    local pipe = io.popen(table.concat(words, " "))
    local text = pipe:read "*a"
    pipe:close()
    local lines, status = text:match "^(.*)status (%d+)\n$"
    if tonumber(status) ~= 0 then
        error(("trial %s ended with status %s: %s"):format(name, status, lines), 2)
    end
    return lines
end

--- busted's `it` where there are trials; else specs that are skipped, with the reason.
-- @tparam function pending busted's, of the block around: inside of a spec it is another one
function M.where_built(it, pending)
    local why = M.missing
    return why and function(name) pending(name .. ": " .. why) end or it
end

return M
