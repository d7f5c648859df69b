--- Runs ./cplab, or any other command, and brings back what it did.
local environment = require "cplab.environment"
local json = require "cplab.json"
local lfs = require "lfs"

local M = {}

local word = environment.shell_word

M.root = environment.root()

--- The text of a file, or nil.
function M.read(path)
    local file = io.open(path, "rb")
    if not file then return nil end
    local text = file:read "*a"
    file:close()
    return text
end

--- Writes a file.
function M.write(path, text)
    local file = assert(io.open(path, "wb"))
    file:write(text)
    file:close()
    return path
end

--- A new empty folder; call `remove` when done.
function M.folder()
    local path = os.tmpname()
    os.remove(path)
    assert(lfs.mkdir(path))
    return path
end

--- Removes a folder and what it holds.
function M.remove(path)
    os.execute("rm -rf " .. word(path))
end

-- What mpirun told the process that runs the specs is no news for what that one starts.
local forget = [[unset $(env | sed -n 's/^\(\(OMPI\|PMIX\)_[A-Za-z0-9_]*\)=.*/\1/p'); ]]

--- Runs a shell command, which does not know of an mpirun.
-- @treturn table status, out, err
function M.shell(command)
    local folder = M.folder()
    os.execute(forget .. ("( %s ) >%s/out 2>%s/err </dev/null; echo $? >%s/status"):format(
        command, folder, folder, folder))
    local result = {
        status = tonumber(M.read(folder .. "/status")), out = M.read(folder .. "/out"),
        err = M.read(folder .. "/err"),
    }
    M.remove(folder)
    return result
end

--- Runs ./cplab with words, from another folder than its own.
-- @tparam {string,...} words
-- @tparam ?string settings of the environment, as the shell reads them
function M.cplab(words, settings)
    local parts = { settings or "", word(M.root .. "/cplab") }
    for _, text in ipairs(words) do parts[#parts + 1] = word(text) end
    return M.shell("cd / && " .. table.concat(parts, " "))
end

--- The objects that a command printed as JSON, one a line.
function M.objects(result)
    local list = {}
    for line in result.out:gmatch "[^\n]+" do list[#list + 1] = assert(json.decode(line)) end
    return list
end

return M
