--- A pass: one layer's forward or backward, as stretches of work that ranks do side by side and
-- exchanges at which they wait for each other.
-- @classmod cplab.cost.pass
local clib = require "clib"
local clusters = require "cplab.cluster"
local ffi = clib.ffi

local Pass = {}
Pass.__index = Pass

local M = {}

--- A pass of n CP ranks: compute, comm, pack and host are seconds that add up to it; busy (seconds
-- of work), bytes and messages are C arrays by rank, from 0; total_bytes and total_messages are
-- what all ranks send, state_bytes what of it chains hand over.
function M.new(cluster, n)
    local function zeros() return ffi.new("double[?]", n) end
    return setmetatable({
        cluster = cluster, n = n, open = zeros(), launches = 0, busy = zeros(), compute = 0,
        comm = 0, pack = 0, host = 0, bytes = zeros(), messages = zeros(), total_bytes = 0,
        total_messages = 0, state_bytes = 0,
    }, Pass)
end

--- Adds seconds of work to the open stretch.
-- @tparam table list by rank, from 1
function Pass:work(list)
    for i = 0, self.n - 1 do self.open[i] = self.open[i] + list[i + 1] end
end

--- Adds as many seconds on every rank.
function Pass:work_of_all(seconds)
    for i = 0, self.n - 1 do self.open[i] = self.open[i] + seconds end
end

--- Adds kernels that the host starts; it may be what takes longest.
function Pass:launch(n)
    self.launches = self.launches + n
end

--- Ends the open stretch: all wait for the slowest. Returns its seconds.
function Pass:sync()
    local taken = math.max(self.cluster:slowest(self.open, self.n),
        self.launches * self.cluster.host.launch)
    for i = 0, self.n - 1 do
        self.busy[i], self.open[i] = self.busy[i] + self.open[i], 0
    end
    self.launches = 0
    self.compute = self.compute + taken
    return taken
end

--- Counts what an exchange moves, whoever waits for it.
function Pass:count(x)
    for i = 0, self.n - 1 do
        self.bytes[i] = self.bytes[i] + x.bytes[i]
        self.messages[i] = self.messages[i] + x.messages[i]
    end
    self.total_bytes = self.total_bytes + x.total_bytes
    self.total_messages = self.total_messages + x.total_messages
end

--- Adds an exchange beside the open stretch, of which a share may hide there.
-- @tparam table x of cplab.cost.exchange
-- @tparam number share 0: all of it is waited for
function Pass:exchange(x, share)
    local window = self:sync()
    self.comm = self.comm + clusters.together(window, x.seconds, share) - window
    self:count(x)
end

--- Adds all of another pass, which is closed, behind the open stretch.
function Pass:include(other)
    self:sync()
    for _, name in ipairs { "compute", "comm", "pack", "host", "state_bytes" } do
        self[name] = self[name] + other[name]
    end
    self:count(other)
    for i = 0, self.n - 1 do self.busy[i] = self.busy[i] + other.busy[i] end
end

--- Seconds of the whole pass.
function Pass:seconds()
    self:sync()
    return self.compute + self.comm + self.pack + self.host
end

-- The largest sum over passes, and the sum of all.
local function total(passes, name)
    local most, all = 0, 0
    for i = 0, passes[1].n - 1 do
        local sum = 0
        for _, pass in ipairs(passes) do sum = sum + pass[name][i] end
        most, all = math.max(most, sum), all + sum
    end
    return most, all
end

--- Passes as a price.
-- @tparam {table,...} passes the forward one, then those of the backward pass
-- @tparam ?string variant
-- @treturn number seconds
-- @treturn table detail: see cplab.cost; and the passes
function M.price(passes, variant)
    local detail = { variant = variant, passes = passes, compute = 0, comm = 0, host = 0,
        pack = 0 }
    local seconds = 0
    for _, pass in ipairs(passes) do
        seconds = seconds + pass:seconds()
        for _, name in ipairs { "compute", "comm", "host", "pack" } do
            detail[name] = detail[name] + pass[name]
        end
    end
    detail.bytes = total(passes, "bytes")
    detail.messages = total(passes, "messages")
    local most, sum = total(passes, "busy")
    detail.imbalance = sum > 0 and most * passes[1].n / sum or 1
    return seconds, detail
end

return M
