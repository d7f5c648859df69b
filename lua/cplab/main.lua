--- The script that the host program runs for every command but `test`.
-- @module cplab.main
local needed = { argparse = "lua-argparse", lfs = "lua-filesystem" }

for module, package_name in pairs(needed) do
    local ok = pcall(require, module)
    if not ok then
        io.stderr:write(("cplab: the Lua module %s is missing: apt-get install %s\n"):format(
            module, package_name))
        os.exit(3)
    end
end

local status = require("cplab.cli").main { ... }
-- A rank that does not return must not see the program torn down around it.
local clib = package.loaded.clib
if clib and clib.C.cpl_host_has_stuck() then clib.C.cpl_host_exit(status) end
os.exit(status)
