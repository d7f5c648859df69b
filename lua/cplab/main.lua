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

os.exit(require("cplab.cli").main { ... })
