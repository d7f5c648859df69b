--- Rows of a bench: a tensor where the rows of the ranks are, and `data`, where the host writes and
-- looks at them: the tensor's own memory, or for rows on a device a copy that goes to and fro.
-- @classmod cplab.bench.buffer
local clib = require "clib"
local rows = require "cplab.rows"

local C, ffi = clib.C, clib.ffi

local Buffer = {}
Buffer.__index = Buffer

local M = {}

--- Zeroed rows.
-- @param comm a `cpl_comm *`
-- @tparam string dtype
-- @tparam integer n_rows
-- @tparam integer width
-- @tparam {table,...} runs whose rows it holds: { start, length }
function M.new(comm, dtype, n_rows, width, runs)
    local self = setmetatable({ tensor = rows.new(comm, dtype, n_rows, width), runs = runs },
        Buffer)
    local is_here = ffi.string(C.cpl_tensor_device(self.tensor)) == "cpu"
    self._copy = not is_here and rows.new(nil, dtype, n_rows, width) or nil
    self.data = (self._copy or self.tensor).data
    return self
end

--- Brings the rows, as they are now, to `data`.
function Buffer:load()
    if self._copy then clib.check(C.cpl_tensor_download(self.tensor, self.data)) end
end

--- Makes `data` the rows.
function Buffer:store()
    if self._copy then clib.check(C.cpl_tensor_upload(self.tensor, self.data)) end
end

return M
