--- Runs busted specs inside the host, where rank threads are.
--
--     cplab-host spec/run.lua [PATHS...]
--
-- PATHS are files, or folders with files that end in _spec.lua; all of spec/ without any.
-- Exit status 0: all passed, 1: not.
local root = arg[0]:match "^(.*/)" or "./"

local exit = os.exit

local function leave(status)
    io.stdout:flush()
    local clib = package.loaded.clib
    -- A rank thread that does not return must not see the process torn down around it.
    if clib and clib.C.cpl_host_has_stuck() then clib.C.cpl_host_exit(status) end
    exit(status)
end

-- busted ends a failed run by raising nil, which says nothing outside its own program.
local compatibility = require "busted.compatibility"
compatibility.exit = function(code)
    leave(code ~= 0 and 1 or 0)
end

-- A spec that ended the process would hide all that failed, with the status that it likes. One
-- that swallows the error is found at the end.
local n_exits = 0
os.exit = function() -- luacheck: ignore
    n_exits = n_exits + 1
    error("os.exit: a spec cannot end the run", 2)
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
    -- A file that is named is run whatever its name.
    if require("lfs").attributes(path, "mode") == "file" then
        words[#words + 1] = "--pattern=" .. path:match("[^/]+$"):gsub("%W", "%%%0") .. "$"
    end
end
_G.arg = words
require "busted.runner" { standalone = false }
if n_exits > 0 then
    io.stderr:write(("spec/run.lua: specs called os.exit %d times and caught the error\n"):format(
        n_exits))
    leave(1)
end
if compatibility.has_run_nothing then leave(1) end -- the handler found that out
