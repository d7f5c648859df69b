--- Runs busted specs inside the host, where rank threads are.
--
--     cplab-host spec/run.lua [PATHS...]
--
-- PATHS are spec files, or folders with files that end in _spec.lua; all of spec/ without any.
-- Exit status 0: all passed, 1: not.
local root = arg[0]:match "^(.*/)" or "./"

-- busted ends a failed run by raising nil, which says nothing outside its own program.
require("busted.compatibility").exit = function(code)
    io.stdout:flush()
    os.exit(code ~= 0 and 1 or 0)
end

-- busted forgets what a spec file loaded. What is loaded before it starts stays: C declarations
-- and classes must exist once, or objects of one file would be strangers in the next.
require "ffi"
require "string.buffer"
require "clib"
if package.searchpath("cplab", package.path) then
    require "cplab"
end

if #arg == 0 then
    arg[1] = root
end
table.insert(arg, 1, "--output=" .. root .. "handler.lua")
table.insert(arg, 2, "--pattern=_spec%.lua$")
arg[0] = "spec"
require "busted.runner" { standalone = false }
