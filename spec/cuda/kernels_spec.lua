-- The kernels of exchanges, emulated in several orders of threads and blocks, or on a GPU, against
-- loops over bytes: all bits must be equal.
local clib = require "clib"
local ffi = require "ffi"

local cuda_device = require "spec.support.cuda_device"
local pieces = require "spec.support.cuda_pieces"

local C = clib.C
local peers = 3

ffi.cdef "void cpli_add_elements(int dtype, void *dst, const void *src, int64_t n);"

-- Memories of peers and one's own, on the host and on the device.
local function memories(device, random, bytes, askew)
    local all = { host = {}, device = {} }
    for i = 0, peers do
        all.host[i] = pieces.bytes(random, bytes)
        all.device[i] = device:alloc(bytes + 16) + i % 2 * (askew or 0)
        device:write(all.device[i], all.host[i], bytes)
    end
    return all
end

local function set_bases(bases, all, shift)
    for i = 0, peers - 1 do bases.few[i] = all.device[i] - (shift or 0) end
end

local function in_table(device, bases)
    bases.table = ffi.cast("void *const *", device:upload(bases.few, peers * 8))
    ffi.fill(bases.few, ffi.sizeof(bases.few))
end

-- A launch of pieces; `mine` is the memory behind those of the peers.
local function move_of(device, all, tables, options)
    local move = ffi.new "cpl_cuda_move"
    set_bases(move.theirs, all, options.shift)
    if options.is_table then in_table(device, move.theirs) end
    move.mine = all.device[peers] - (options.shift or 0)
    for _, field in ipairs { "pieces", "tile_ends", "n_pieces" } do
        move[field] = ffi.cast("void *", tables[field])
    end
    move.max_tiles = tables.max_tiles
    move.way, move.unit = options.way or C.CPL_CUDA_PULL, options.unit
    return move
end

-- Where the two ends of a piece lie on the host.
local function ends_of(all, piece, way)
    local theirs, mine = all.host[piece.peer], all.host[peers]
    if way == C.CPL_CUDA_PUT then return theirs + piece.to, mine + piece.from end
    return mine + piece.to, theirs + piece.from
end

local carry_out = {
    copy = function(to, from, bytes) ffi.copy(to, from, bytes) end,
    swap = function(to, from, bytes)
        for i = 0, bytes - 1 do to[i], from[i] = from[i], to[i] end
    end,
}

local function naive(all, list, way, op)
    for _, piece in ipairs(list) do
        local to, from = ends_of(all, piece, way)
        carry_out[op](to, from, piece.bytes)
    end
end

local function expect_equal(device, all, bytes)
    for i = 0, peers do
        local got = device:download(all.device[i], bytes)
        assert.is_nil(pieces.difference(all.host[i], got, bytes))
    end
end

-- The whole life of one launch of pieces.
local function try_pieces(device, seed, op, options)
    local random = pieces.random(seed)
    local list, bytes = options.list, options.bytes
    if not list then
        list, bytes = pieces.make(random, { n = options.n, unit = options.unit, peers = peers })
    end
    local all = memories(device, random, bytes, options.askew)
    local tables = pieces.on_device(device, list, nil, options.shift)
    device:check(device.lib["cpl_cuda_" .. op](move_of(device, all, tables, options), nil))
    naive(all, list, options.way, op)
    expect_equal(device, all, bytes)
    device:free_all()
end

local units = { 1, 2, 4, 8, 16 }

-- Pieces that are equally far from a multiple of 16 at both ends, whatever the distance.
local function askew(by)
    local list, at = {}, 0
    for i, bytes in ipairs { 1, 14, 16, 31, 100, 4095, 4096, 4113, 9000 } do
        list[i] = { peer = i % peers, bytes = bytes, from = at + by, to = at + (i % 2 * 16) + by }
        at = at + math.ceil(bytes / 16) * 16 + 48
    end
    return list, at + 64
end

local function describe_pieces(device)
    for _, op in ipairs { "copy", "swap" } do
        for _, unit in ipairs(units) do
            for _, order in ipairs(device.orders) do
                it(("%s: pieces of all sizes in units of %d bytes, %s"):format(op, unit, order),
                    function()
                        device:set_order(order)
                        try_pieces(device, 11 * unit, op, { n = 60, unit = unit })
                        try_pieces(device, 13 * unit, op, { n = 60, unit = unit,
                            way = C.CPL_CUDA_PUT, is_table = true })
                    end)
            end
        end

        it(op .. ": both ends equally far from a multiple of 16", function()
            for by = 1, 15 do
                local list, bytes = askew(by)
                try_pieces(device, by, op, { unit = 1, list = list, bytes = bytes })
            end
        end)

        it(op .. ": a base that is no multiple of 16, whatever the unit", function()
            try_pieces(device, 7, op, { n = 30, unit = 16, askew = 4 })
        end)

        it(op .. ": no pieces, and none but empty ones", function()
            try_pieces(device, 3, op, { unit = 16, list = {}, bytes = 64 })
            local empty = { peer = 0, from = 16, to = 32, bytes = 0 }
            try_pieces(device, 4, op, { unit = 16, list = { empty, empty }, bytes = 64 })
        end)

        it(op .. ": offsets beyond 4 GiB", function()
            for _, unit in ipairs { 1, 16 } do
                try_pieces(device, 5, op, { n = 9, unit = unit, shift = 3 * 2 ^ 32 })
            end
        end)
    end

    it("copy: 70,000 pieces", function()
        local list = {}
        for i = 0, 69999 do
            list[i + 1] = { peer = i % peers, bytes = 16, from = i * 16, to = (69999 - i) * 16 }
        end
        try_pieces(device, 6, "copy", { unit = 16, list = list, bytes = 70000 * 16 })
    end)

    it("copy: a captured graph takes the pieces of its replay, and as many", function()
        local random = pieces.random(17)
        local first, bytes = pieces.make(random, { n = 5, unit = 4, peers = peers })
        local second, more = pieces.make(random, { n = 40, unit = 4, peers = peers })
        bytes = math.max(bytes, more)
        local all = memories(device, random, bytes)
        local tables = pieces.on_device(device, first, 40)
        local move = move_of(device, all, tables, { unit = 4 })
        local graph = device:capture(function(stream)
            device:check(device.lib.cpl_cuda_copy(move, stream))
        end)
        expect_equal(device, all, bytes)
        for _, list in ipairs { first, second, {}, first } do
            pieces.put(device, tables, list)
            graph.replay()
            naive(all, list, C.CPL_CUDA_PULL, "copy")
            expect_equal(device, all, bytes)
        end
        graph.close()
        device:free_all()
    end)

    it("refuses a unit that is none", function()
        local move = ffi.new "cpl_cuda_move"
        for _, unit in ipairs { 0, 3, 32 } do
            move.unit = unit
            assert.is_true(device.lib.cpl_cuda_copy(move, nil) ~= 0)
            assert.is_true(device.lib.cpl_cuda_swap(move, nil) ~= 0)
            assert.is_true(device.lib.cpl_cuda_fill(move, 0, nil) ~= 0)
        end
    end)
end

-- ---- fill -------------------------------------------------------------------------------------

local function describe_fill(device)
    for _, order in ipairs(device.orders) do
        it("fill: a pattern from each piece's first byte on, " .. order, function()
            device:set_order(order)
            local random = pieces.random(23)
            local list, bytes = pieces.make(random, { n = 40, unit = 1, peers = peers })
            local pattern = ffi.new("uint8_t[8]", { 1, 20, 3, 40, 5, 60, 7, 80 })
            for _, way in ipairs { C.CPL_CUDA_PULL, C.CPL_CUDA_PUT } do
                local all = memories(device, random, bytes)
                local tables = pieces.on_device(device, list)
                device:check(device.lib.cpl_cuda_fill(
                    move_of(device, all, tables, { unit = 1, way = way }),
                    ffi.cast("uint64_t *", pattern)[0], nil))
                for _, piece in ipairs(list) do
                    local to = ends_of(all, piece, way)
                    for i = 0, piece.bytes - 1 do to[i] = pattern[i % 8] end
                end
                expect_equal(device, all, bytes)
            end
            device:free_all()
        end)
    end
end

-- ---- sums -------------------------------------------------------------------------------------

local dtypes = {
    { name = "f64", ctype = "double", dtype = C.CPL_F64 },
    { name = "f32", ctype = "float", dtype = C.CPL_F32 },
    { name = "bf16", ctype = "uint16_t", dtype = C.CPL_BF16 },
    { name = "i64", ctype = "int64_t", dtype = C.CPL_I64 },
    { name = "i32", ctype = "int32_t", dtype = C.CPL_I32 },
}

-- Numbers of very different sizes, so that the order of a sum shows in its bits.
local function numbers(random, dtype, memory, bytes)
    local size = ffi.sizeof(dtype.ctype)
    local values = ffi.cast(dtype.ctype .. " *", memory)
    for i = 0, bytes / size - 1 do
        if dtype.name:sub(1, 1) ~= "i" then
            C.cpl_dtype_store(dtype.dtype, memory, i,
                (random(2000001) - 1000000) * 10 ^ (random(13) - 6))
        else
            values[i] = random(2147483647) * (random(3) - 1) * 2
        end
    end
end

-- Pieces of rows that meet in the same few rows of the target.
local function adding(random, row, n)
    local list = {}
    for i = 1, n do
        local rows = random(7)
        list[i] = { peer = random(peers), bytes = rows * row, from = random(40) * row,
            to = random(30) * row }
    end
    return list, 50 * row
end

local function add_of(device, all, sums, dtype, unit)
    local add = ffi.new "cpl_cuda_add"
    set_bases(add.theirs, all)
    add.mine = all.device[peers]
    local n = tonumber(sums.n_sums)
    local function put(field, array, bytes)
        add[field] = ffi.cast("void *", device:upload(array, bytes))
    end
    put("sums", sums.sums, n * ffi.sizeof "cpl_cuda_sum")
    put("sources", sums.sources, tonumber(sums.n_sources) * ffi.sizeof "cpl_cuda_source")
    put("tile_ends", sums.tile_ends, n * 8)
    put("n_sums", ffi.new("int64_t[1]", n), 8)
    add.max_tiles = n > 0 and sums.tile_ends[n - 1] or 0
    add.dtype, add.unit = dtype.dtype, unit
    return add
end

local function try_adding(device, seed, dtype, row, n)
    local random = pieces.random(seed)
    local list, bytes = adding(random, row, n)
    local all = memories(device, random, bytes)
    for i = 0, peers do
        numbers(random, dtype, all.host[i], bytes)
        device:write(all.device[i], all.host[i], bytes)
    end
    local sums, unit = ffi.new "cpli_sums", row % 16 == 0 and 16 or ffi.sizeof(dtype.ctype)
    clib.check(device.lib.cpli_sums_create(pieces.array(list), #list, sums))
    device:check(device.lib.cpl_cuda_add_up(add_of(device, all, sums, dtype, unit), nil))
    device.lib.cpli_sums_destroy(sums)
    for _, piece in ipairs(list) do
        local to, from = ends_of(all, piece)
        C.cpli_add_elements(dtype.dtype, to, from, piece.bytes / ffi.sizeof(dtype.ctype))
    end
    expect_equal(device, all, bytes)
    device:free_all()
end

local function describe_sums(device)
    for _, dtype in ipairs(dtypes) do
        for _, order in ipairs(device.orders) do
            it(("add: %s, the CPU's bits, %s"):format(dtype.name, order), function()
                device:set_order(order)
                local size = ffi.sizeof(dtype.ctype)
                for i, row in ipairs { size, 3 * size, 16, 48, 2064, 4096 + size } do
                    try_adding(device, 31 * i, dtype, row, 40)
                end
                try_adding(device, 37, dtype, 16, 0)
            end)
        end
    end

    it("add: refuses what is no dtype, and units smaller than an element", function()
        local add = ffi.new "cpl_cuda_add"
        add.dtype, add.unit = C.CPL_N_DTYPES, 16
        assert.is_true(device.lib.cpl_cuda_add_up(add, nil) ~= 0)
        add.dtype, add.unit = C.CPL_F64, 4
        assert.is_true(device.lib.cpl_cuda_add_up(add, nil) ~= 0)
    end)

    it("sums: cut where pieces begin and end, sources in the order of the list", function()
        local list = {
            { peer = 0, from = 100, to = 8, bytes = 16 },
            { peer = 1, from = 200, to = 0, bytes = 16 },
            { peer = 2, from = 300, to = 40, bytes = 8 },
            { peer = 0, from = 400, to = 8, bytes = 0 },
            { peer = 1, from = 500, to = 8, bytes = 8 },
        }
        local sums, text = ffi.new "cpli_sums", {}
        clib.check(device.lib.cpli_sums_create(pieces.array(list), #list, sums))
        for i = 0, tonumber(sums.n_sums) - 1 do
            local sum = sums.sums[i]
            local words = { ("%d+%d:"):format(tonumber(sum.to), tonumber(sum.bytes)) }
            for j = tonumber(sum.first), tonumber(sum.first + sum.n) - 1 do
                local source = sums.sources[j]
                words[#words + 1] = ("%d@%d"):format(source.peer, tonumber(source.from))
            end
            text[i + 1] = table.concat(words, " ")
        end
        device.lib.cpli_sums_destroy(sums)
        assert.same({ "0+8: 1@200", "8+8: 0@100 1@208 1@500", "16+8: 0@108", "40+8: 2@300" }, text)
    end)
end

-- ---- rows -------------------------------------------------------------------------------------

local function shuffled(random, n)
    local list = ffi.new("int64_t[?]", math.max(n, 1))
    for i = 0, n - 1 do list[i] = i end
    for i = n - 1, 1, -1 do
        local j = random(i + 1)
        list[i], list[j] = list[j], list[i]
    end
    return list
end

local function try_rows(device, seed, n, row_bytes, has_from, has_to, max_rows)
    local random = pieces.random(seed)
    local bytes = n * row_bytes
    local src, dst = pieces.bytes(random, bytes), pieces.bytes(random, bytes)
    local from, to = shuffled(random, n), shuffled(random, n)
    local rows = ffi.new "cpl_cuda_rows"
    rows.src, rows.dst = device:upload(src, bytes), device:upload(dst, bytes)
    if has_from then rows.from = ffi.cast("void *", device:upload(from, n * 8)) end
    if has_to then rows.to = ffi.cast("void *", device:upload(to, n * 8)) end
    rows.n = ffi.cast("void *", device:upload(ffi.new("int64_t[1]", n), 8))
    rows.max_rows, rows.row_bytes = max_rows or n, row_bytes
    device:check(device.lib.cpl_cuda_permute(rows, nil))
    for i = 0, n - 1 do
        local source = has_from and tonumber(from[i]) or i
        local target = has_to and tonumber(to[i]) or i
        ffi.copy(dst + target * row_bytes, src + source * row_bytes, row_bytes)
    end
    local got = device:download(ffi.cast("uint8_t *", rows.dst), bytes)
    assert.is_nil(pieces.difference(dst, got, bytes))
    device:free_all()
end

local function describe_rows(device)
    for _, order in ipairs(device.orders) do
        it("permute: rows of any size by lists of indices, " .. order, function()
            device:set_order(order)
            for i, row_bytes in ipairs { 1, 2, 6, 8, 12, 16, 48, 500, 2048, 2064, 12288 } do
                try_rows(device, i, 37, row_bytes, true, false)
                try_rows(device, i, 37, row_bytes, false, true)
                try_rows(device, i, 37, row_bytes, true, true)
            end
            try_rows(device, 41, 5000, 2, true, true)
            try_rows(device, 43, 0, 16, true, true)
            try_rows(device, 47, 1, 32, false, false)
            try_rows(device, 53, 500, 48, true, true, 1) -- more than the grid was made for
        end)
    end
end

-- ---- positions --------------------------------------------------------------------------------

-- { start, length }; a thread has several rows of the long one.
local runs = { { 40, 5 }, { -1, 2 }, { 0, 9 }, { 100, 1 }, { 1000, 600 } }

local function positions()
    local list = {}
    for _, run in ipairs(runs) do
        for i = 0, run[2] - 1 do list[#list + 1] = run[1] < 0 and -1 or run[1] + i end
    end
    return list
end

local function check_of(device, wrong, list, number)
    local n = #list
    local starts, ends = ffi.new("cpl_run[?]", #runs), ffi.new("int64_t[?]", #runs)
    for i, run in ipairs(runs) do
        starts[i - 1].start, starts[i - 1].length = run[1], run[2]
        ends[i - 1] = run[2] + (i > 1 and ends[i - 2] or 0)
    end
    local check = ffi.new "cpl_cuda_check"
    local trace = device:upload(ffi.new("int64_t[?]", math.max(n, 1), list), n * 8)
    check.trace, check.n_rows = ffi.cast("void *", trace), n
    check.runs = ffi.cast("void *", device:upload(starts, #runs * ffi.sizeof "cpl_run"))
    check.run_ends = ffi.cast("void *", device:upload(ends, #runs * 8))
    check.n_runs, check.check, check.wrong = #runs, number, ffi.cast("void *", wrong)
    return check
end

local function none_wrong()
    local wrong = ffi.new "cpl_cuda_wrong[1]"
    wrong[0].check, wrong[0].lowest = -1, 0x7fffffffffffffffLL
    return wrong
end

-- What is found after some checks of lists of positions.
local function found(device, lists)
    local size = ffi.sizeof "cpl_cuda_wrong"
    local wrong = device:upload(none_wrong(), size)
    for i, list in ipairs(lists) do
        device:check(device.lib.cpl_cuda_trace_check(check_of(device, wrong, list, i), nil))
    end
    local got = device:download(wrong, size, "cpl_cuda_wrong[?]")[0]
    device:free_all()
    local out = {}
    for _, field in ipairs { "rows", "check", "slot", "expected", "found" } do
        out[field] = tonumber(got[field])
    end
    return out
end

local function with(changes)
    local list = positions()
    for slot, position in pairs(changes) do list[slot + 1] = position end
    return list
end

local function describe_positions(device)
    for _, order in ipairs(device.orders) do
        it("trace: counts wrong rows and keeps the first, " .. order, function()
            device:set_order(order)
            assert.same({ rows = 0, check = -1, slot = 0, expected = 0, found = 0 },
                found(device, { positions(), positions() }))
            assert.same({ rows = 4, check = 2, slot = 3, expected = 43, found = 44 },
                found(device, { positions(), with { [12] = 9, [3] = 44, [5] = 0 },
                    with { [0] = 1 } }))
            assert.same({ rows = 2, check = 1, slot = 100, expected = 1083, found = 7 },
                found(device, { with { [100] = 7, [100 + 256] = 8 } }))
        end)
    end

    it("trace: looks at as many rows as there are, and at none behind the runs", function()
        local short, long = positions(), positions()
        short[#short] = nil
        long[#long + 1] = 5
        assert.equal(0, found(device, { short, long, {} }).rows)
    end)

    it("trace: positions of runs are written, and none behind them", function()
        local n, list = #positions() + 2, positions()
        list[n - 1], list[n] = -1, -1
        local check = check_of(device, none_wrong(), {}, 1)
        local trace = device:upload(ffi.new("int64_t[?]", n, 7), n * 8)
        local write = ffi.new("cpl_cuda_positions", { trace = ffi.cast("void *", trace),
            n_rows = n, runs = check.runs, run_ends = check.run_ends, n_runs = check.n_runs })
        device:check(device.lib.cpl_cuda_trace_write(write, nil))
        local got, out = device:download(trace, n * 8, "int64_t[?]"), {}
        for i = 1, n do out[i] = tonumber(got[i - 1]) end
        device:free_all()
        assert.same(list, out)
    end)

    it("trace: a sum of positions is divided, or becomes -1", function()
        local list = { 0, 3, 6, 7, -3, 299 }
        local trace = device:upload(ffi.new("int64_t[?]", #list, list), #list * 8)
        device:check(device.lib.cpl_cuda_trace_divide(ffi.cast("void *", trace), #list, 3, nil))
        local got = device:download(trace, #list * 8, "int64_t[?]")
        local out = {}
        for i = 1, #list do out[i] = tonumber(got[i - 1]) end
        device:free_all()
        assert.same({ 0, 1, 2, -1, -1, -1 }, out)
    end)
end

-- ---- what the checker must see, or its silence would mean nothing ------------------------------

local function fault_of(device, list, options)
    local all = memories(device, pieces.random(61), 4096)
    if options.is_fresh then all.device[0] = device:alloc(4096) end
    local tables = pieces.on_device(device, list)
    local move = move_of(device, all, tables, options)
    local why = device:fault_of(function()
        device:check(device.lib.cpl_cuda_copy(move, nil))
    end)
    device:free_all()
    return why
end

local function describe_misuse(device)
    local one = { peer = 0, from = 0, to = 64, bytes = 100 }

    it("is told of a piece beyond the end of its memory", function()
        local list = { { peer = 1, from = 0, to = 4090, bytes = 40 } }
        local why = fault_of(device, list, { unit = 1 })
        assert.matches("out of bounds", why, 1, true)
        assert.matches("cpli_copy_any", why, 1, true)
    end)

    it("is told of two pieces that write one byte", function()
        local why = fault_of(device, { one, { peer = 1, from = 0, to = 160, bytes = 10 } },
            { unit = 1 })
        assert.matches("missing block barrier", why, 1, true)
    end)

    it("is told of a promised unit that is not kept", function()
        local why = fault_of(device, { { peer = 0, from = 8, to = 0, bytes = 32 } }, { unit = 16 })
        assert.matches("16 bytes is misaligned", why, 1, true)
        assert.matches("cpli_copy_aligned", why, 1, true)
    end)

    it("is told of bytes that nobody has written", function()
        assert.matches("uninitialised read",
            fault_of(device, { one }, { unit = 1, is_fresh = true }), 1, true)
    end)
end

for _, name in ipairs { "plain", "checked", "device" } do
    describe(("the kernels of exchanges, %s,"):format(name), function()
        local device, why = cuda_device.open(name)
        if not device then
            it("keep their contracts", function() pending(why) end)
            return
        end
        describe_pieces(device)
        describe_fill(device)
        describe_sums(device)
        describe_rows(device)
        describe_positions(device)
        if name == "checked" then describe_misuse(device) end
    end)
end
