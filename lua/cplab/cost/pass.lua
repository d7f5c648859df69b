--- A pass: one layer's forward or backward, as stretches of work that ranks do side by side and
-- exchanges at which they wait for each other.
-- @classmod cplab.cost.pass
local clusters = require "cplab.cluster"

local Pass = {}
Pass.__index = Pass

local M = {}

local function zeros(n)
    local list = {}
    for i = 1, n do list[i] = 0 end
    return list
end

--- A pass of n CP ranks.
function M.new(cluster, n)
    return setmetatable({
        cluster = cluster, n = n, open = zeros(n), launches = 0, busy = zeros(n), compute = 0,
        comm = 0, pack = 0, host = 0, bytes = zeros(n), messages = zeros(n),
    }, Pass)
end

--- Adds seconds of work to the open stretch: a list by rank, or one number for all.
function Pass:work(seconds)
    local open = self.open
    for i = 1, self.n do
        open[i] = open[i] + (type(seconds) == "table" and seconds[i] or seconds)
    end
end

--- Adds kernels that the host starts; it may be what takes longest.
function Pass:launch(n)
    self.launches = self.launches + n
end

--- Ends the open stretch: all wait for the slowest. Returns its seconds.
function Pass:sync()
    local open, host = self.open, self.launches * self.cluster.host.launch
    local taken = math.max(self.cluster:slowest(open), host)
    for i = 1, self.n do self.busy[i], open[i] = self.busy[i] + open[i], 0 end
    self.launches = 0
    self.compute = self.compute + taken
    return taken
end

--- Adds an exchange behind the open stretch, of which a share may hide.
-- @tparam table x of cplab.cost.exchange
-- @tparam number share 0: all of it is waited for
function Pass:exchange(x, share)
    local window = self:sync()
    self.comm = self.comm + clusters.together(window, x.seconds, share) - window
    self:count(x)
end

--- Counts what an exchange moves, whoever waits for it.
function Pass:count(x)
    for i = 1, self.n do
        self.bytes[i] = self.bytes[i] + x.bytes[i]
        self.messages[i] = self.messages[i] + x.messages[i]
    end
end

--- Seconds of the whole pass.
function Pass:seconds()
    self:sync()
    return self.compute + self.comm + self.pack + self.host
end

-- Sums of a list over passes, and the largest.
local function total(passes, name)
    local sums, most, sum = {}, 0, 0
    for i = 1, passes[1].n do
        sums[i] = 0
        for _, pass in ipairs(passes) do sums[i] = sums[i] + pass[name][i] end
        most, sum = math.max(most, sums[i]), sum + sums[i]
    end
    return most, sum
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
    detail.bytes, detail.messages = (total(passes, "bytes")), (total(passes, "messages"))
    local most, sum = total(passes, "busy")
    detail.imbalance = sum > 0 and most * passes[1].n / sum or 1
    return seconds, detail
end

return M
