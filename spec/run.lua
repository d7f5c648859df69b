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
for file in require("lfs").dir(root .. "../lua/cplab") do
    local name = file:match "^(.*)%.lua$"
    if name and name ~= "init" and name ~= "main" then -- main is a script: loading it runs it
        require("cplab." .. name)
    end
end
require "cplab"

local words = { [0] = "spec", "--output=" .. root .. "handler.lua", "--pattern=_spec%.lua$" }
for _, path in ipairs(#arg > 0 and arg or { root }) do
    words[#words + 1] = path
end
_G.arg = words
require "busted.runner" { standalone = false }
