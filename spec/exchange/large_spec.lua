-- Shards of more than 2^31 bytes, in little memory: rows that nobody touches are pages that
-- nobody has.
local counts = require "spec.exchange.counts"
local ranks = require "spec.support.ranks"

local function move_far(comm, p)
    local clib = require "clib"
    local cplab = require "cplab"
    local exchange = require "cplab.exchange"
    local C, ffi = clib.C, clib.ffi
    pcall(ffi.cdef, [[
        void *mmap(void *, size_t, int, int, int, int64_t);
        int munmap(void *, size_t);
        int memfd_create(const char *, unsigned);
        int ftruncate(int, int64_t);
        int close(int);
    ]])
    local rank, n_rows, width = comm:rank(), 1040, 2 ^ 19 -- a row is 2 MiB, a shard 2.03 GiB
    local row_bytes = width * 4
    local bytes, far = n_rows * row_bytes, n_rows - 1
    assert(far * row_bytes > 2 ^ 31)
    local maps = {}
    local function map(at, size, flags, fd)
        local memory = ffi.C.mmap(at, size, 3, flags, fd, 0) -- PROT_READ | PROT_WRITE
        assert(ffi.cast("intptr_t", memory) ~= -1, "mmap")
        return ffi.cast("char *", memory)
    end
    local function wrap(memory, rows)
        local shape = ffi.new("int64_t[2]", rows, width)
        return { memory = memory, _ptr = clib.create("cpl_tensor", C.cpl_tensor_destroy, 1,
            C.cpl_tensor_wrap, memory, C.CPL_I32, 2, shape) }
    end
    local function sparse(rows) -- MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
        local memory = map(nil, rows * row_bytes, 0x4022, -1)
        maps[#maps + 1] = { memory, rows * row_bytes }
        return wrap(memory, rows)
    end
    -- All rows are the same memory but the last one, which has its own.
    local function folded()
        local memory = map(nil, bytes, 0x4022, -1)
        maps[#maps + 1] = { memory, bytes }
        local fd = ffi.C.memfd_create("rows", 0)
        assert(fd >= 0 and ffi.C.ftruncate(fd, row_bytes) == 0)
        for row = 0, far - 1 do -- MAP_SHARED | MAP_FIXED | MAP_POPULATE
            map(memory + row * row_bytes, row_bytes, 0x8011, fd)
        end
        ffi.C.close(fd)
        return wrap(memory, n_rows)
    end
    local function row(tensor, slot)
        return ffi.cast("int32_t *", tensor.memory + slot * row_bytes)
    end
    local function set(tensor, slot, value)
        row(tensor, slot)[0], row(tensor, slot)[width - 1] = value, -value
    end
    local function is(tensor, slot, value)
        local at = row(tensor, slot)
        assert(at[0] == value and at[width - 1] == -value,
            ("rank %d, slot %d: %d and %d, not %d"):format(rank, slot, at[0], at[width - 1],
                value))
    end
    local s = cplab.stream.sbhd { seqlen = 2 * n_rows, batch = 1 }
    local c = cplab.layout.contiguous(s, { cp = 2 })
    local function plan_to(target)
        return exchange.plan(cplab.route(c, target), comm, "i32", width, p.method)
    end
    local done = {}

    function done.whole() -- one piece each, of the whole shard
        local turned = cplab.layout.custom(s,
            { ranks = { { { n_rows, n_rows } }, { { 0, n_rows } } } })
        local x, y = folded(), folded()
        set(x, 0, 10 + rank)
        set(x, far, 20 + rank)
        plan_to(turned):convert(x, y)
        is(y, 0, 10 + 1 - rank)
        is(y, far, 20 + 1 - rank)
    end

    function done.halo() -- from far in the source, and gradients to there
        local x, view = sparse(n_rows), cplab.view.halo(c, 2)
        local y = sparse(4)
        local plan = plan_to(view)
        local seen = view:n_local(rank)
        y = { memory = y.memory, _ptr = wrap(y.memory, seen)._ptr }
        set(x, far, 30 + rank)
        plan:convert(x, y)
        if rank == 1 then is(y, 1, 30) end
        plan:adjoint(y, x, true)
        is(x, far, rank == 0 and 60 or 31)
    end

    function done.swap() -- the last rows of both, in place
        local x = sparse(n_rows)
        local swapped = cplab.layout.custom(s, { ranks = {
            { { 0, far }, { 2 * n_rows - 1, 1 } }, { { n_rows, far }, { far, 1 } } } })
        set(x, far, 40 + rank)
        local plan = plan_to(swapped)
        plan:convert(x, x)
        is(x, far, 40 + 1 - rank)
        plan:adjoint(x, x)
        is(x, far, 40 + rank)
    end

    done[p.what]()
    comm:barrier()
    for _, mapped in ipairs(maps) do ffi.C.munmap(mapped[1], mapped[2]) end
    return true
end

describe("shards of more than 2^31 bytes", function()
    for _, n in ipairs(counts.of { 2 }) do
        for _, method in ipairs { "copy", "direct", "packed", "alltoallv" } do
            for _, what in ipairs { "halo", "swap", "whole" } do
                -- The others would take boxes for a whole shard.
                if what ~= "whole" or method == "copy" then
                    it(("are moved by %s: %s"):format(method, what), function()
                        assert.same({ true, true },
                            ranks.run(n, move_far, { method = method, what = what }))
                    end)
                end
            end
        end
    end
end)
