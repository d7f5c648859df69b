--- A rank's handle on its group: who am I, and what do all of us say.
-- All methods but the getters are collective: every rank calls them in the same order. Ranks
-- count from 0, Lua lists from 1.
-- @classmod cplab.comm
-- @usage local comm = require("cplab.comm").wrap(ptr)
--   local total = comm:sum { comm:rank() }[1]
local buffer = require "string.buffer"

local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local Comm = {}
Comm.__index = Comm

local M = {}

--- The comm that the host gives to a rank.
-- @param ptr a `cpl_comm *`, which must outlive the result
-- @treturn Comm
function M.wrap(ptr)
    return setmetatable({ _ptr = ptr }, Comm)
end

--- A group of one rank.
-- @treturn Comm
function M.self()
    return M.wrap(C.cpl_comm_self())
end

--- Whether a value is a comm.
function M.is(value)
    return getmetatable(value) == Comm
end

--- This rank, from 0.
function Comm:rank()
    return C.cpl_comm_rank(self._ptr)
end

--- How many ranks there are.
function Comm:size()
    return C.cpl_comm_size(self._ptr)
end

--- The name of the transport: "local", "mpi", "self"; of ranks whose rows are on devices "cuda",
-- "cuda-emulated", "nccl".
function Comm:transport()
    return ffi.string(C.cpl_comm_transport(self._ptr))
end

--- Local. Some of the ranks as a group of their own, this one among them.
-- @tparam {number,...} ranks increasing
-- @treturn Comm whose ranks count from 0 in that order
function Comm:part(ranks)
    local list = ffi.new("int[?]", #ranks, ranks)
    local part = M.wrap(clib.create("cpl_comm", C.cpl_comm_part_destroy, 2, C.cpl_comm_part,
        self._ptr, list, #ranks))
    part._whole = self
    return part
end

--- Collective. Returns when all ranks have come.
-- @raise another rank failed, or a deadline passed
function Comm:barrier()
    clib.check(C.cpl_comm_barrier(self._ptr), 2)
end

local function to_doubles(list)
    return ffi.new("double[?]", #list, list)
end

local function to_list(doubles, n)
    local list = {}
    for i = 1, n do
        list[i] = doubles[i - 1]
    end
    return list
end

--- Collective. Sums lists of numbers in rank order: the same bits on every rank.
-- @tparam {number,...} list as long on every rank
-- @treturn {number,...}
function Comm:sum(list)
    local data = to_doubles(list)
    clib.check(C.cpl_comm_sum(self._ptr, data, #list, C.CPL_F64), 2)
    return to_list(data, #list)
end

--- Collective. Sums a tensor over all ranks, in place.
-- @tparam Tensor tensor of f64, f32, i64 or i32, of one size on every rank
function Comm:sum_tensor(tensor)
    local t, n = tensor._ptr, C.cpl_tensor_n_elements(tensor._ptr)
    if ffi.string(C.cpl_tensor_device(t)) == "cpu" then
        clib.check(C.cpl_comm_sum(self._ptr, t.data, n, t.dtype), 2)
        return tensor
    end
    local data = ffi.new("char[?]", C.cpl_tensor_bytes(t))
    clib.check(C.cpl_tensor_download(t, data), 2)
    clib.check(C.cpl_comm_sum(self._ptr, data, n, t.dtype), 2)
    clib.check(C.cpl_tensor_upload(t, data), 2)
    return tensor
end

--- Collective. The largest of each number over all ranks; NaN wins.
-- @tparam {number,...} list as long on every rank
-- @treturn {number,...}
function Comm:max(list)
    local data = to_doubles(list)
    clib.check(C.cpl_comm_max(self._ptr, data, #list), 2)
    return to_list(data, #list)
end

local function gather_bytes(self, data, bytes)
    local all = ffi.new("char[?]", bytes * self:size())
    clib.check(C.cpl_comm_gather(self._ptr, data, bytes, all), 3)
    return all
end

--- Collective. What every rank says, in rank order (the first is rank 0's).
-- @param value anything that string.buffer encodes; sizes may differ
-- @treturn {any,...}
function Comm:gather(value)
    local text = buffer.encode(value)
    local longest = self:max({ #text })[1]
    local padded = ffi.new("char[?]", longest)
    ffi.copy(padded, text, #text)
    local all = gather_bytes(self, padded, longest)
    local list = {}
    for rank = 0, self:size() - 1 do
        -- The padding is behind the first value, and is not decoded.
        local bytes = buffer.new():set(all + rank * longest, longest)
        list[rank + 1] = bytes:decode()
    end
    return list
end

--- Collective. Whether all ranks say yes.
-- @tparam boolean yes
-- @treturn boolean
function Comm:agree(yes)
    return self:max({ yes and 0 or 1 })[1] == 0
end

--- Collective. Whether all ranks say the same text.
-- @tparam string text
-- @treturn boolean
function Comm:same(text)
    -- 52 bits are exact in a double; the maximum and the minimum are equal if all are.
    local hash = tonumber(C.cpl_hash(0, text, #text) % 2 ^ 52)
    local votes = self:max { hash, -hash }
    return votes[1] == -votes[2]
end

function Comm:__tostring()
    return ("comm: rank %d of %d, %s"):format(self:rank(), self:size(), self:transport())
end

return M
