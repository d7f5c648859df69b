-- Exchanges that are made in a mould, for one stream after the other: a graph that was captured for
-- one serves the others, as far as there is room.
local device = require "spec.support.on_device"

local it_there = device.it(it, pending)

local function serve(comm, streams)
    local now, out = { mould = require("cplab.mould").new(comm._ptr) }, {}
    for i, lengths in ipairs(streams) do
        collectgarbage()
        out[i] = require "spec.support.mould_rank".serve(comm, now, lengths)
    end
    return out
end

local function refuse(comm)
    local moulds = require "cplab.mould"
    local t = require "spec.support.mould_rank"
    local mould = moulds.new(comm._ptr)
    if not mould then return "none" end
    local made = mould:fill(t.make, comm, { 8 * comm:size() })
    local ok, message = pcall(mould.rehearse, mould, function()
        t.work(made)
        made.legs[1].dst:look()
    end)
    -- It has ended all the same.
    t.fill(made)
    t.work(made)
    return { ok = ok, message = message, wrong = t.wrong(comm, made) }
end

-- Fails the k-th allocation of rank 1 in a new mould, for every k, until a plan can be made in it.
local function run_short(comm)
    local clib = require "clib"
    local exchange, rows = require "cplab.exchange", require "spec.exchange.rows"
    local moulds, route = require "cplab.mould", require "cplab.route"
    local C, stats = clib.C, clib.ffi.new "cpl_memory_stats"
    local stream = rows.stream("thd", comm:size())
    local z = rows.layout("zigzag", stream, comm:size())
    local keys = rows.view("keys", z)
    local function live()
        collectgarbage()
        comm:barrier()
        C.cpl_memory(stats)
        local blocks = tonumber(stats.live_blocks)
        comm:barrier()
        return blocks
    end
    local function try(k)
        local mould, r = moulds.new(comm._ptr), route(z, keys)
        if comm:rank() == 1 then C.cpl_memory_fail_after(k) end
        local ok, message = pcall(mould.fill, mould, exchange.plan, r, comm, "f32", 3)
        C.cpl_memory_fail_after(-1)
        return ok, not ok and message
    end
    try(-1) -- a transport keeps what the first plan made it reserve
    local before = live()
    for k = 0, 600 do
        local ok, message = try(k)
        assert(comm:agree(ok) == ok, "some ranks got a plan, others did not")
        if live() ~= before then error("leaked at " .. k) end
        if ok then return k end
        assert(message:match "memory", message)
    end
    error "it never succeeds"
end

-- Blocks of a mould: whose memory they are, and what is in it.
local function lend(comm)
    local clib = require "clib"
    local moulds, rows = require "cplab.mould", require "spec.exchange.rows"
    local C, stats = clib.C, clib.ffi.new "cpl_memory_stats"
    local function address(tensor) return tostring(tensor._ptr.data) end
    local function is_zero(tensor) return not tensor:contents():find "[^%z]" end
    local function bytes()
        collectgarbage()
        C.cpl_memory(stats)
        return tonumber(stats.live_bytes)
    end
    rows.tensor("f32", 1, 1) -- the device has its list of blocks
    local out, before = {}, bytes()
    local held = { mould = moulds.new(comm._ptr) }
    local function take(n) return held.mould:fill(rows.tensor, "f32", n, 8) end
    held.first = take(100)
    out.first = is_zero(held.first)
    held.first:poison()
    local at = address(held.first)
    held.first = nil
    collectgarbage()
    held.again = take(60)
    out.again, out.is_clean = address(held.again) == at, is_zero(held.again)
    held.again:poison()
    held.beside = take(100) -- while the other is still in use
    out.beside = address(held.beside) ~= at and not is_zero(held.again) and is_zero(held.beside)
    at, held.beside = address(held.beside), nil
    collectgarbage()
    held.larger = take(300)
    out.larger, out.fits = address(held.larger) ~= at, is_zero(held.larger)
    at, held.larger = address(held.larger), nil
    collectgarbage()
    held.last = take(310) -- there was some more than was asked for
    out.room = address(held.last) == at
    held.last:poison()
    held.mould = nil
    collectgarbage()
    out.left = not is_zero(held.last) and not is_zero(held.again)
    held.last, held.again = nil, nil
    out.leaked = bytes() - before
    return out
end

-- All have 48 positions a rank of 4.
local function streams_of(n)
    local function times(list)
        local out = {}
        for i, length in ipairs(list) do out[i] = length * n / 4 end
        return out
    end
    return { times { 192 }, times { 64, 64, 32, 32 }, times { 32, 96, 64 }, times { 128, 64 },
        times { 32, 32, 32, 32, 64 }, times { 192 }, times { 64, 64, 32, 32 } }
end

describe("moulds", function()
    for _, n in ipairs { 1, 2, 4, 10 } do
        it_there(("let a graph of exchanges serve other streams, on %d ranks"):format(n), function()
            local results = device.run("direct", n, serve, streams_of(n % 4 == 0 and n or 4 * n))
            local same = {}
            for rank, rows in ipairs(results) do
                for i, row in ipairs(rows) do
                    same[i] = row.same
                    assert.same({}, row.launched, ("rank %d, stream %d"):format(rank - 1, i))
                    assert.same({}, row.replayed, ("rank %d, stream %d"):format(rank - 1, i))
                    assert.equal(row.bytes, row.rehearsed)
                end
            end
            -- The second stream needs more room than the first. What came once has room ever after.
            assert.same({ false, false }, { same[1], same[2] })
            assert.same({ true, true }, { same[6], same[7] })
        end)
    end

    it_there("lend the same memory again, zeroed, and leave what is in use to its users", function()
        local out = device.run("direct", 1, lend)[1]
        assert.same({ first = true, again = true, is_clean = true, beside = true, larger = true,
            fits = true, room = true, left = true, leaked = 0 }, out)
    end)

    it_there("fail on all ranks and leak nothing where a rank has no memory", function()
        local failures = device.run("direct", 3, run_short)
        assert.is_true(failures[1] > 20)
        assert.same({ failures[1], failures[1] }, { failures[2], failures[3] })
    end)

    it_there("refuse to wait in a rehearsal", function()
        for _, result in ipairs(device.run("direct", 2, refuse)) do
            assert.is_false(result.ok)
            assert.truthy(result.message:find("a download in a capture: nothing there may wait for "
                .. "the device or take its memory", 1, true), result.message)
            assert.same({}, result.wrong)
        end
    end)

    it_there("are not there by NCCL, and not on the cpu", function()
        assert.same({ "none", "none" }, device.run("nccl", 2, refuse))
        assert.same({ "none" }, require "spec.support.ranks".run(1, refuse))
    end)
end)
