local counts = require "spec.exchange.counts"
local ranks = require "spec.support.ranks"

local on = counts.on(it)

-- Offers tensors that do not fit to a plan from zigzag to contiguous, rows of 3 f32 on 2 ranks,
-- and tells what it said; nothing may be written.
local function offer(comm, p)
    local exchange = require "cplab.exchange"
    local route = require "cplab.route"
    local rows = require "spec.exchange.rows"
    local stream, rank = rows.stream("thd", 2), comm:rank()
    local a, b = rows.layout("zigzag", stream, 2), rows.layout("contiguous", stream, 2)
    local plan = exchange.plan(route(a, b), comm, "f32", 3)
    local n = a:n_local(rank)
    local function tensor(t)
        t = t or {}
        local made = rows.tensor(t.dtype or "f32", n + (t.more or 0), t.width or 3):poison()
        if t.layout then
            made:mark(rows.layout(t.layout, rows.stream(t.stream or "thd", 2), 2), rank, false)
        end
        return made
    end
    local src, dst = tensor(p.src), tensor(p.dst)
    local before = dst:values()
    local method = p.adjoint and plan.adjoint or plan.convert
    local ok, message = pcall(method, plan, src, dst, p.accumulate)
    local is_same = true
    for i, value in ipairs(dst:values()) do
        is_same = is_same and value == before[i]
    end
    return { ok = ok, message = not ok and message, is_same = is_same }
end

describe("an exchange refuses, and writes nothing, when", function()
    local cases = {
        { "src has a row too many", { src = { more = 1 } },
            "exchange: src has %d+ rows of 3 f32, but rank %d of zigzag.* %-> contiguous.* needs "
            .. "%d+ rows of 3 f32" },
        { "src is too narrow", { src = { width = 2 } }, "src has %d+ rows of 2 f32, but rank" },
        { "src has another dtype", { src = { dtype = "i32" } }, "src has %d+ rows of 3 i32" },
        { "dst has a row too few", { dst = { more = -1 } }, "dst has %d+ rows of 3 f32" },
        { "dst has another dtype", { dst = { dtype = "f64" } }, "dst has %d+ rows of 3 f64" },
        { "src holds rows of another layout", { src = { layout = "contiguous" } },
            "exchange: src holds rows of layout %x+, but zigzag.* %-> contiguous.* takes rows of "
            .. "layout %x+" },
        { "src holds rows of another stream", { src = { layout = "zigzag", stream = "sbhd" } },
            "src holds rows of layout" },
        { "gradients are of the source's layout", { adjoint = true, src = { layout = "zigzag" } },
            "d_dst holds rows of layout" },
        { "it is to add to rows of another layout",
            { adjoint = true, accumulate = true, dst = { layout = "contiguous" } },
            "d_src holds rows of layout" },
    }
    for _, case in ipairs(cases) do
        on(2)(case[1], function()
            for _, result in ipairs(ranks.run(2, offer, case[2])) do
                assert.is_false(result.ok)
                assert.matches(case[3], result.message)
                assert.is_true(result.is_same)
            end
        end)
    end

    on(2)("(control) not when everything fits", function()
        for _, result in ipairs(ranks.run(2, offer, { src = { layout = "zigzag" } })) do
            assert.is_true(result.ok)
            assert.is_true(result.is_same) -- poison is moved onto poison
        end
    end)

    on(2)("it is started twice, or finished without a start", function()
        local results = ranks.run(2, function(comm)
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local layout = rows.layout("zigzag", rows.stream("thd", 2), 2)
            local n = layout:n_local(comm:rank())
            local plan = exchange.plan(route(layout, layout), comm, "f32", 3)
            local x, y = rows.tensor("f32", n, 3), rows.tensor("f32", n, 3)
            local _, early = pcall(plan.finish, plan)
            plan:start(x, y)
            local _, twice = pcall(plan.start, plan, x, y)
            plan:finish()
            return { early = early, twice = twice }
        end)
        for _, result in ipairs(results) do
            assert.matches("before its start", result.early)
            assert.matches("before the last finish", result.twice)
        end
    end)

    on(2)("src is dst where rows repeat or are added, or they overlap in part", function()
        local results = ranks.run(2, function(comm)
            local clib = require "clib"
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local layout = rows.layout("zigzag", rows.stream("thd", 2), 2)
            local view, rank = rows.view("shift", layout), comm:rank()
            local n = layout:n_local(rank)
            local x = rows.tensor("f32", 2 * n, 1)
            local function window(first)
                local shape = clib.ffi.new("int64_t[1]", n)
                local ptr = clib.create("cpl_tensor", clib.C.cpl_tensor_destroy, 1,
                    clib.C.cpl_tensor_wrap, clib.ffi.cast("float *", x._ptr.data) + first,
                    clib.C.CPL_F32, 1, shape)
                ptr.comm = rows.device_memory() -- a window of where x is
                return { _ptr = ptr }
            end
            local to_view = exchange.plan(route(layout, view), comm, "f32", 1)
            local to_self = exchange.plan(route(layout, layout), comm, "f32", 1)
            local _, repeats = pcall(to_view.convert, to_view, window(0), window(0))
            local _, overlap = pcall(to_self.convert, to_self, window(0), window(1))
            local _, sum = pcall(to_self.adjoint, to_self, window(0), window(0), true)
            local ok = pcall(to_self.convert, to_self, window(0), window(0))
                and pcall(to_self.convert, to_self, window(0), window(n))
                and pcall(to_self.convert, to_self, window(n), window(0))
            return { repeats = repeats, overlap = overlap, sum = sum, ok = ok }
        end)
        for _, result in ipairs(results) do
            assert.matches("src is dst, but rank", result.repeats)
            assert.matches("src and dst overlap in part", result.overlap)
            assert.matches("an adjoint in place cannot accumulate", result.sum)
            assert.is_true(result.ok)
        end
    end)
end)

describe("ranks that disagree", function()
    on(3)("about the row get no plan, all of them", function()
        local _, failure = ranks.try(3, function(comm)
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local layout = rows.layout("zigzag", rows.stream("thd", 3), 3)
            local ok, message = pcall(exchange.plan, route(layout, layout), comm, "f32",
                comm:rank() == 1 and 4 or 3)
            local all = comm:gather { ok = ok, message = message }
            for _, said in ipairs(all) do
                assert(not said.ok, "a rank got a plan")
                assert(said.message:match "the ranks plan different exchanges", said.message)
            end
            return true
        end)
        assert.is_nil(failure)
    end)

    on(2)("about dtype, method, or the layout on either side get no plan, all of them", function()
        for _, what in ipairs { "dtype", "method", "source", "target" } do
            local messages = ranks.run(2, function(comm, odd)
                local exchange = require "cplab.exchange"
                local route = require "cplab.route"
                local rows = require "spec.exchange.rows"
                local stream = rows.stream("thd", 2)
                local differs = comm:rank() == 1 and odd
                local from = rows.layout(differs == "source" and "mirror" or "zigzag", stream, 2)
                local to = rows.layout(differs == "target" and "mirror" or "contiguous", stream, 2)
                local ok, message = pcall(exchange.plan, route(from, to), comm,
                    differs == "dtype" and "i32" or "f32", 3,
                    differs == "method" and "packed" or "direct")
                return ok and "a plan" or message
            end, what)
            for rank = 1, 2 do
                assert.matches("the ranks plan different exchanges", messages[rank])
            end
        end
    end)

    on(2)("about in place are told", function()
        local _, failure = ranks.try(2, function(comm)
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local stream, rank = rows.stream("sbhd", 2), comm:rank()
            local a, b = rows.layout("contiguous", stream, 2), rows.layout("mirror", stream, 2)
            local plan = exchange.plan(route(a, b), comm, "f32", 1, "copy")
            local n = a:n_local(rank)
            local x, y = rows.tensor("f32", n, 1), rows.tensor("f32", n, 1)
            plan:convert(x, rank == 0 and x or y)
            return true
        end)
        assert.matches("expects other pieces in transfer", failure.message)
    end)

    on(3)("with the route about the number of ranks get no plan", function()
        local results = ranks.run(3, function(comm)
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local layout = rows.layout("zigzag", rows.stream("thd", 2), 2)
            local _, message = pcall(exchange.plan, route(layout, layout), comm, "f32", 3)
            return message
        end)
        for _, message in ipairs(results) do
            assert.matches("has 2 ranks, the group has 3", message)
        end
    end)

    on(1)("with what plans and exchanges take are told so: what is no tensor has no pointer",
        function()
        local results = ranks.run(1, function(comm)
            local exchange = require "cplab.exchange"
            local rows = require "spec.exchange.rows"
            local layout = rows.layout("zigzag", rows.stream("thd", 1), 1)
            local route = require "cplab.route" (layout, layout)
            local plan, list = exchange.plan(route, comm, "f32", 3), {}
            for i, call in ipairs { { exchange.plan, "route", comm, "f32", 3 },
                { exchange.plan, route, {}, "f32", 3 }, { exchange.plan, route, comm, "f32", "3" },
                { plan.convert, plan, "x", "y" }, { plan.start, plan, {}, {} },
                { plan.adjoint, plan, { _ptr = 3 }, {} } } do
                local _, text = pcall(unpack(call))
                list[i] = text:gsub("^[^:]+:%d+: ", "")
            end
            return list
        end)
        assert.same({ "exchange.plan: route must be a cplab.route",
            "exchange.plan: comm must be a cplab.comm",
            'exchange.plan: width must be an integer (got "3")',
            'exchange.convert: src must be a tensor (got "x")',
            "exchange.start: src must be a tensor (got a table)",
            "exchange.adjoint: d_dst must be a tensor (got a table)" }, results[1])
    end)

    on(1)("with the table of methods are told the names", function()
        local results = ranks.run(1, function(comm)
            local exchange = require "cplab.exchange"
            local route = require "cplab.route"
            local rows = require "spec.exchange.rows"
            local layout = rows.layout("zigzag", rows.stream("thd", 1), 1)
            local _, unknown = pcall(exchange.plan, route(layout, layout), comm, "f32", 3, "mail")
            local _, narrow = pcall(exchange.plan, route(layout, layout), comm, "f32", 0)
            local plan = exchange.plan(route(layout, layout), comm, "f32", 3, "copy")
            return { unknown = unknown, narrow = narrow, text = plan:describe(),
                names = exchange.methods() }
        end)
        assert.matches('no method "mail"; there are: copy direct packed alltoallv composed auto',
            results[1].unknown, 1, true)
        assert.matches("a row of 0 elements, not >= 1", results[1].narrow, 1, true)
        assert.matches("rows of 3 f32, by copy: rank 0 sends 0 bytes in 0 messages",
            results[1].text, 1, true)
        assert.same({ "copy", "direct", "packed", "alltoallv", "composed" }, results[1].names)
    end)
end)
