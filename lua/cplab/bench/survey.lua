--- What a bench says before its table of where rows are: which card each rank is on, how fast rows
-- are copied there, and by what matrices are multiplied.
-- @module cplab.bench.survey
local clib = require "clib"
local environment = require "cplab.environment"
local ranks = require "cplab.ranks"
local statistics = require "cplab.bench.statistics"

local C, ffi = clib.C, clib.ffi

local M = {}

-- What the cards are called, by the number that stands behind their device.
local function name_cards(cards, found)
    for _, card in ipairs(cards) do
        local number = tonumber(card.device:match "%d+$")
        card.name = number < C.CPL_MAX_DEVICES and ffi.string(found.names[number]) or nil
    end
end

local function look(env, device)
    local found = ffi.new "cpl_devices_found"
    if not env.cards or C.cpl_host_look(device, found) ~= C.CPL_OK then return end
    name_cards(env.cards, found)
    env.product = environment.cublas(found) or "cplab's own kernel"
    -- Of the emulator rows are worth something, and times are not.
    env.is_emulated = device == "cuda-emulated" or nil
end

--- Runs ranks that copy a shard. Where rows are was said before.
-- @tparam table t n_ranks, deadline, device, bytes
-- @treturn ?table env of all rows: transport, cards (device, name, ranks), product, is_emulated,
-- copy_bytes, copy_one_rank, copy_all_ranks (GB/s)
-- @treturn ?string why there is none
function M.run(t)
    local results, failure = ranks.run(t.n_ranks, t.deadline, "cplab.bench.rank",
        { job = "survey", case = { bytes = t.bytes, iters = 9 } })
    if not results then return nil, failure.reason end
    local measured = results[1]
    local function rate(seconds, n)
        return n * t.bytes / statistics.quantile(seconds, 0.5) / 1e9
    end
    local env = environment.describe { device = t.device }
    env.cards, env.transport, env.copy_bytes = measured.cards, measured.transport, t.bytes
    env.copy_one_rank = rate(measured.alone, 1)
    env.copy_all_ranks = rate(measured.all, t.n_ranks)
    look(env, t.device)
    return env
end

--- Who is on which card.
function M.print_cards(env)
    for _, card in ipairs(env.cards or {}) do
        print(("# %s, %s: rank%s %s"):format(card.device, card.name or "unknown",
            #card.ranks == 1 and "" or "s", table.concat(card.ranks, ", ")))
    end
    if env.is_emulated then
        print("# emulated on the CPU: the rows are checked, the times mean nothing")
    end
end

--- How fast rows are copied.
function M.print_copies(env)
    print(("# %s of %d bytes: one rank alone %.2f GB/s, all ranks at once %.2f GB/s together")
        :format(env.cards and "copies from device to device" or "memcpy", env.copy_bytes,
            env.copy_one_rank, env.copy_all_ranks))
end

return M
