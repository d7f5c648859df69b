-- Boundaries: what a table may hold; ranks, streams and groups that are not what they should be.
local ranks = require "spec.support.ranks"

-- Runs f(lab's comm) on so many ranks and wants true of every rank.
local function holds(sizes, f)
    for _, n in ipairs(ranks.sizes(sizes)) do
        for i, answer in ipairs(ranks.run(n, f)) do
            assert.is_true(answer == true, ("%d ranks, rank %d: %s"):format(n, i - 1,
                tostring(answer)))
        end
    end
end

describe("what crosses", function()
    it("may hold itself, and tensors with a mark beside those without", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local marked = cplab.boundary.enter(lab, support.rows(lab, "contiguous", 2), "snake")
            local all = { fresh = support.rows(lab, "snake", 1), marked = marked, [1] = 7 }
            all.all = all
            local inside, exit = cplab.boundary.enter(lab, all, "zigzag")
            return rawequal(inside.all, inside) and support.holds(lab, inside.fresh, "zigzag")
                and support.holds(lab, exit(inside).marked, "snake")
        end)
    end)

    it("has marks inside, masks too, so that nothing crosses twice", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local _, _, side = cplab.boundary.enter(lab, nil, "zigzag", { from = "contiguous",
                masks = support.mask(lab, "contiguous", 1) })
            local text = support.refusal(cplab.boundary.enter, lab, nil, "mirror",
                { from = "contiguous", masks = side.masks })
            return text:find("masks holds rows of zigzag", 1, true) ~= nil or text
        end)
    end)

    it("goes by the layouts of the lab's stream at that time", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            for _, lengths in ipairs { { 16, 8 }, { 8, 24 }, { 16, 8 } } do
                lab.stream = cplab.stream.thd { lengths = lengths }
                local inside = cplab.boundary.enter(lab, support.rows(lab, "contiguous", 2),
                    "zigzag", { from = "contiguous" })
                if not support.holds(lab, inside, "zigzag") then return table.concat(lengths) end
            end
            return true
        end)
    end)
end)

describe("ranks that bring different things", function()
    it("say so, and neither wait for each other nor mix them", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab, boundary = support.lab(comm), cplab.boundary
            local is_first = lab.rank == 0
            local function x() return support.rows(lab, "contiguous", 24) end
            local _, exit = boundary.enter(lab, x(), "zigzag")
            local function inside() return support.rows(lab, "zigzag", 2) end
            local calls = {
                count = { boundary.enter, lab, is_first and { x(), x() } or { x() }, "zigzag" },
                name = { boundary.enter, lab, { [is_first and "a" or "b"] = x() }, "zigzag" },
                side = { boundary.enter, lab, nil, "zigzag",
                    { [is_first and "masks" or "bias"] = x() } },
                columns = { boundary.enter, lab, nil, "zigzag",
                    { masks = x(), columns = is_first and "ranks" or "positions" } },
                target = { boundary.enter, lab, x(), is_first and "zigzag" or "mirror" },
                outputs = { exit, is_first and { inside(), inside() } or inside() },
            }
            for _, what in ipairs { "count", "name", "side", "columns", "target", "outputs" } do
                local text = tostring(support.refusal(unpack(calls[what], 1, 5)))
                if not text:find(": the ranks bring different things; rank " .. lab.rank, 1, true)
                then
                    return what .. ": " .. text
                end
            end
            return support.holds(lab, exit(inside()), "contiguous")
        end)
    end)

    it("is one rank alone that brings nothing", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local text = support.refusal(cplab.boundary.enter, lab,
                { lab.rank == 1 and support.rows(lab, "contiguous", 2) or nil }, "zigzag")
            return text:find("rank 0: nothing from contiguous", 1, true) ~= nil
                or text:find("rank 1: tensors[1] [rows, 2] f64 from contiguous", 1, true) ~= nil
                or text
        end)
    end)
end)

describe("layouts of a boundary", function()
    it("are of one stream, and of the lab's group", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local other = cplab.stream.thd { lengths = { 8, 16 } }
            local function refused(wanted, target, options)
                local x = not options and support.rows(lab, "contiguous", 2) or nil
                local text = support.refusal(cplab.boundary.enter, lab, x, target, options)
                return text and text:find(wanted, 1, true) and true or error(tostring(text), 0)
            end
            local layout = cplab.layout
            local a, b = layout.contiguous(other, { cp = 2 }), layout.zigzag(other, { cp = 2 })
            return refused("thd of 2 sequences, 24 positions, a layout of another stream", b)
                and refused("but the lab has cp 2, tp 1",
                    layout.mirror(lab.stream, { cp = 4 }))
                and refused("but the lab has cp 2, tp 1",
                    layout.mirror(lab.stream, { cp = 2, tp = 2 }))
                and refused("keys would go from contiguous", "zigzag",
                    { keys = { support.layout(lab, "contiguous"), b } })
                and refused("but the lab has cp 2, tp 1", "zigzag",
                    { keys = { layout.contiguous(other, { cp = 4 }), layout.zigzag(other,
                        { cp = 4 }) } })
                and cplab.boundary.enter(lab, nil, "zigzag", { keys = { a, b } }) == nil
        end)
    end)

    it("have no name in a lab without a stream", function()
        holds({ 1 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local x = support.rows(lab, "contiguous", 2)
            lab.stream = nil
            return support.refusal(lab.convert, lab, x, "zigzag", "contiguous") == "lab:convert: "
                    .. 'the lab has no stream to make the layout "zigzag" of'
                and support.refusal(cplab.boundary.enter, nil, x, "zigzag") == "boundary.enter: "
                    .. "the first argument must be a lab (got nil)"
        end)
    end)
end)

describe("misuse of a boundary", function()
    it("is refused with the nearest name", function()
        holds({ 1 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local x = support.rows(lab, "contiguous", 2)
            local function refused(wanted, f, ...)
                local text = support.refusal(f, lab, ...)
                if text ~= wanted then error(tostring(text), 0) end
                return true
            end
            local enter, run = cplab.boundary.enter, cplab.boundary.run
            return refused('boundary.enter: unknown field "mask"; did you mean "masks"?', enter, x,
                    "zigzag", { mask = x })
                and refused('cplab.layout: unknown layout "zigzak"; did you mean "zigzag"?', enter,
                    x, "zigzak")
                and refused("boundary.enter: expected a layout or its name (got nil)", enter, x)
                and refused('boundary.enter: unknown columns "rank"; did you mean "ranks"?', enter,
                    x, "zigzag", { columns = "rank" })
                and refused("boundary.enter: keys must be { from, to }, two layouts (got 1)", enter,
                    x, "zigzag", { keys = { "zigzag" } })
                and refused("boundary.run: body must be a function (got nil)", run, x, "zigzag")
                and refused("boundary.enter: tensors has 3 rows, but rank 0 has 24 in contiguous, "
                    .. "cp 1, thd of 2 sequences, 24 positions, 21 real", enter,
                    cplab.tensor.zeros { 3, 2 }, "contiguous")
                and refused("boundary.enter: tensors.a is [24, 2, 0] f64: its rows are empty",
                    enter, { a = cplab.tensor.zeros { 24, 2, 0 } }, "zigzag")
                and refused("boundary: tensors[1] is a raw tensor of the core, not a cplab.tensor",
                    enter, { x._ptr }, "zigzag")
        end)
    end)
end)
