-- Every call of the layout core with its n-th allocation failing, for n = 0, 1, 2, ... until it
-- succeeds: it says so, leaves its outputs alone, and keeps no block.
local ffi = require "ffi"
local clib = require "clib"

local C = clib.C

local function live_blocks()
    local stats = ffi.new "cpl_memory_stats"
    C.cpl_memory(stats)
    return tonumber(stats.live_blocks)
end

-- Calls f, which returns a status, until it is OK; `untouched` tells whether the outputs are as
-- before. Returns how many times it failed.
local function sweep(f, untouched)
    for n = 0, 200 do
        local before = live_blocks()
        C.cpl_memory_fail_after(n)
        local status = f()
        C.cpl_memory_fail_after(-1)
        if status == C.CPL_OK then return n end
        assert.equal(C.CPL_MEMORY, tonumber(status))
        assert.truthy(ffi.string(C.cpl_last_error()):find("^memory: no %d+ bytes left$"))
        assert.equal(before, live_blocks())
        assert.is_true(untouched())
    end
    error "it never succeeded"
end

local function create(ctype, destroy, f, ...)
    local box = ffi.new(ctype .. " *[1]")
    local call = { ... }
    call[#call + 1] = box
    local failures = sweep(function() return f(unpack(call)) end,
        function() return box[0] == nil end)
    return ffi.gc(box[0], destroy), failures
end

local function thd()
    local cu = ffi.new("int64_t[4]", { 0, 16, 16, 48 })
    local real = ffi.new("int64_t[4]", { 0, 13, 13, 45 })
    return (create("cpl_stream", C.cpl_stream_destroy, C.cpl_stream_thd, cu, real, 3))
end

local function layout(stream, kind)
    local options = ffi.new "cpl_layout_options"
    options.cp = 4
    local runs = ffi.new("cpl_run[5]", { { 40, 8 }, { 0, 12 }, { 12, 12 }, { 24, 12 }, { 36, 4 } })
    local n_runs = ffi.new("int64_t[4]", { 2, 1, 1, 1 })
    if kind == "custom" then options.runs, options.n_runs = runs, n_runs end
    if kind == "balanced" then options.block = 4 end
    return create("cpl_layout", C.cpl_layout_destroy, C.cpl_layout_create, kind, stream, options)
end

-- Objects of other specs must not be collected between two counts.
local function still()
    collectgarbage()
    collectgarbage()
    collectgarbage "stop"
end

local function moving() collectgarbage "restart" end

describe("a failing allocation", function()
    before_each(still)
    after_each(moving)

    it("leaks nothing in streams and layouts", function()
        local before = live_blocks()
        local stream = thd()
        for kind in ffi.string(C.cpl_layout_kinds()):gmatch "%S+" do
            local z, failures = layout(stream, kind)
            assert.is_true(failures >= 4)
            C.cpl_layout_destroy(ffi.gc(z, nil))
        end
        local s = create("cpl_stream", C.cpl_stream_destroy, C.cpl_stream_sbhd, 8, 2)
        local c = create("cpl_stream", C.cpl_stream_destroy, C.cpl_stream_columns, s)
        local z = layout(s, "zigzag")
        local columns, failures = create("cpl_layout", C.cpl_layout_destroy, C.cpl_layout_columns,
            z, c)
        assert.equal(5, failures)
        C.cpl_layout_destroy(ffi.gc(columns, nil))
        C.cpl_layout_destroy(ffi.gc(z, nil))
        C.cpl_stream_destroy(ffi.gc(c, nil))
        C.cpl_stream_destroy(ffi.gc(s, nil))
        C.cpl_stream_destroy(ffi.gc(stream, nil))
        assert.equal(before, live_blocks())
    end)

    it("leaks nothing in the lower bound of a layout", function()
        local before = live_blocks()
        local stream = thd()
        local z = layout(stream, "contiguous")
        local bound = ffi.new("double[1]", -7)
        assert.is_true(sweep(function() return C.cpl_layout_moved_bound(z, 0.03, bound) end,
            function() return bound[0] == -7 end) >= 10)
        C.cpl_layout_destroy(ffi.gc(z, nil))
        C.cpl_stream_destroy(ffi.gc(stream, nil))
        assert.equal(before, live_blocks())
    end)

    it("leaks nothing in orders, given or found", function()
        local before = live_blocks()
        local stream = thd()
        local near, options = layout(stream, "contiguous"), ffi.new "cpl_layout_options"
        options.cp, options.near, options.node_size = 4, near, 2
        local z, failures = create("cpl_layout", C.cpl_layout_destroy, C.cpl_layout_create,
            "zigzag", stream, options)
        assert.is_true(failures >= 20)
        C.cpl_layout_destroy(ffi.gc(z, nil))
        local cost, out = ffi.new("int64_t[4]", { 3, 1, 1, 3 }), ffi.new("int[2]", -7)
        assert.is_true(sweep(function() return C.cpl_assign(2, cost, out) end,
            function() return out[0] == -7 and out[1] == -7 end) >= 10)
        assert.same({ 1, 0 }, { out[0], out[1] })
        -- Refusals after memory was taken give it back too.
        local box = ffi.new "cpl_layout *[1]"
        options.order = ffi.new("int[4]", { 0, 1, 2, 3 })
        assert.equal(C.CPL_INVALID, tonumber(C.cpl_layout_create("zigzag", stream, options, box)))
        assert.equal("layout.zigzag: an order is either given or found near another layout",
            ffi.string(C.cpl_last_error()))
        options.near, options.order = nil, ffi.new("int[4]", { 0, 1, 1, 3 })
        assert.equal(C.CPL_INVALID, tonumber(C.cpl_layout_create("zigzag", stream, options, box)))
        C.cpl_layout_destroy(ffi.gc(near, nil))
        C.cpl_stream_destroy(ffi.gc(stream, nil))
        assert.equal(before, live_blocks())
    end)

    it("leaks nothing in spans, work and chains", function()
        local before = live_blocks()
        local stream = thd()
        for _, kind in ipairs { "zigzag", "mirror", "custom" } do
            local z = layout(stream, kind)
            local n = ffi.new("int64_t[1]", -7)
            local function same() return n[0] == -7 end
            local spans, links = ffi.new "cpl_span *[1]", ffi.new "cpl_link *[1]"
            assert.is_true(sweep(function()
                return C.cpl_layout_spans(z, 1, true, spans, n)
            end, same) >= 1)
            n[0] = -7
            assert.is_true(sweep(function()
                return C.cpl_layout_chain(z, 1, links, n)
            end, same) >= 3)
            local work = ffi.new("int64_t[4]", -7)
            assert.is_true(sweep(function() return C.cpl_layout_work(z, 0, work) end,
                function() return work[0] == -7 and work[3] == -7 end) >= 5)
            C.cpl_free(spans[0])
            C.cpl_free(links[0])
            C.cpl_layout_destroy(ffi.gc(z, nil))
        end
        C.cpl_stream_destroy(ffi.gc(stream, nil))
        assert.equal(before, live_blocks())
    end)

    local function check_route(route)
        local part, stats = ffi.new "cpl_route_part", ffi.new "cpl_route_stats"
        stats.messages, part.n_sends = -7, -7
        assert.is_true(sweep(function() return C.cpl_route_measure(route, stats) end,
            function() return stats.messages == -7 end) >= 5)
        assert.is_true(sweep(function() return C.cpl_route_rank(route, 2, part) end,
            function() return part.n_sends == -7 end) >= 3)
    end

    it("leaks nothing in views and routes", function()
        local before = live_blocks()
        local stream = thd()
        local z, c = layout(stream, "mirror"), layout(stream, "custom")
        local made = {
            { create("cpl_view", C.cpl_view_destroy, C.cpl_view_halo, z, 3, true) },
            { create("cpl_view", C.cpl_view_destroy, C.cpl_view_shift, z, 1) },
            { create("cpl_view", C.cpl_view_destroy, C.cpl_view_keys, z, 0) },
            { create("cpl_view", C.cpl_view_destroy, C.cpl_view_keys, z, 5) },
            { create("cpl_view", C.cpl_view_destroy, C.cpl_view_onto, z, c) },
            { create("cpl_view", C.cpl_view_destroy, C.cpl_view_shard, z, c) },
        }
        made[#made].least = 1 -- its list alone
        local n, runs = ffi.new("int64_t[1]", -7), ffi.new "cpl_run[64]"
        for _, v in ipairs(made) do
            local least = v.least or 2
            local function same() return n[0] == -7 end
            n[0] = -7
            local failures = sweep(function() return C.cpl_view_n_local(v[1], 1, n) end, same)
            assert.is_true(failures >= least)
            n[0] = -7
            failures = sweep(function() return C.cpl_view_n_runs(v[1], 1, n) end, same)
            assert.is_true(failures >= least)
            runs[0].length = -7
            assert.is_true(sweep(function() return C.cpl_view_runs(v[1], 1, runs) end,
                function() return runs[0].length == -7 end) >= least)
            local route = create("cpl_route", C.cpl_route_destroy, C.cpl_route_to_view, v[1])
            check_route(route)
            C.cpl_route_destroy(ffi.gc(route, nil))
            C.cpl_view_destroy(ffi.gc(v[1], nil))
        end
        local route = create("cpl_route", C.cpl_route_destroy, C.cpl_route_create, z, c)
        local back = create("cpl_route", C.cpl_route_destroy, C.cpl_route_inverse, route)
        check_route(route)
        for _, r in ipairs { route, back } do C.cpl_route_destroy(ffi.gc(r, nil)) end
        for _, l in ipairs { z, c } do C.cpl_layout_destroy(ffi.gc(l, nil)) end
        C.cpl_stream_destroy(ffi.gc(stream, nil))
        assert.equal(before, live_blocks())
    end)
end)

-- A collector destroys in any order. The sanitized build is what sees a touch of freed memory.
describe("destroying", function()
    before_each(still)
    after_each(moving)

    it("touches nothing that was borrowed and is gone", function()
        local before = live_blocks()
        local stream = thd()
        local z, c = layout(stream, "zigzag"), layout(stream, "custom")
        local view = create("cpl_view", C.cpl_view_destroy, C.cpl_view_keys, z, 0)
        local routes = {
            create("cpl_route", C.cpl_route_destroy, C.cpl_route_create, z, c),
            (create("cpl_route", C.cpl_route_destroy, C.cpl_route_to_view, view)),
        }
        for _, r in ipairs(routes) do
            C.cpl_route_rank(r, 1, ffi.new "cpl_route_part")
        end
        C.cpl_stream_destroy(ffi.gc(stream, nil))
        for _, l in ipairs { z, c } do C.cpl_layout_destroy(ffi.gc(l, nil)) end
        C.cpl_view_destroy(ffi.gc(view, nil))
        for _, r in ipairs(routes) do C.cpl_route_destroy(ffi.gc(r, nil)) end
        assert.equal(before, live_blocks())
    end)

    it("accepts nothing", function()
        local before = live_blocks()
        C.cpl_stream_destroy(nil)
        C.cpl_layout_destroy(nil)
        C.cpl_view_destroy(nil)
        C.cpl_route_destroy(nil)
        C.cpl_free(nil)
        assert.equal(before, live_blocks())
    end)
end)

describe("refused input", function()
    before_each(still)
    after_each(moving)

    it("leaves no block and no output", function()
        local before = live_blocks()
        local stream = thd()
        local box = ffi.new "cpl_layout *[1]"
        local options = ffi.new "cpl_layout_options"
        options.cp = 3
        for _, kind in ipairs { "zigzag", "mirror", "custom", "foo" } do
            assert.equal(C.CPL_INVALID, tonumber(C.cpl_layout_create(kind, stream, options, box)))
            assert.is_true(box[0] == nil)
        end
        options.cp, options.tp = 2, 5
        assert.equal(C.CPL_INVALID,
            tonumber(C.cpl_layout_create("contiguous", stream, options, box)))
        C.cpl_stream_destroy(ffi.gc(stream, nil))
        assert.equal(before, live_blocks())
    end)

    it("is found in C too, where no Lua has looked before", function()
        local stream = thd()
        local z = layout(stream, "zigzag")
        local n, options = ffi.new "int64_t[1]", ffi.new "cpl_layout_options"
        local box, view = ffi.new "cpl_layout *[1]", ffi.new "cpl_view *[1]"
        local function said(status, text)
            assert.equal(C.CPL_INVALID, tonumber(status))
            assert.equal(text, ffi.string(C.cpl_last_error()))
        end
        said(C.cpl_layout_n_local(z, 4, n), "layout.n_local: rank 4 is not in 0 .. 3")
        said(C.cpl_layout_n_runs(z, -1, n), "layout.n_runs: rank -1 is not in 0 .. 3")
        options.cp = -2
        said(C.cpl_layout_create("zigzag", stream, options, box),
            "layout.zigzag: cp and tp must be >= 1 and cp*tp <= 1048576 (got cp = -2, tp = 1)")
        options.cp = 2
        said(C.cpl_layout_create("custom", stream, options, box), "layout.custom: no runs given")
        said(C.cpl_layout_create("foo", stream, options, box),
            'layout: unknown kind "foo"; the kinds are: ' .. ffi.string(C.cpl_layout_kinds()))
        said(C.cpl_view_halo(z, 0, false, view), "view.halo: width must be in 1 .. 2^53 (got 0)")
        said(C.cpl_stream_thd(ffi.new "int64_t[1]", nil, -1, ffi.new "cpl_stream *[1]"),
            "stream.thd: the number of sequences must be >= 0 (got -1)")
    end)
end)
