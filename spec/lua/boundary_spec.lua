-- The boundary of a module on ranks: containers, masks, key and value states, ways out, errors. A
-- row holds its own position, so every comparison is exact.
local ranks = require "spec.support.ranks"

local ATTENTION = "spec.support.masked_attention"

local function on(n) return ranks.with(n, it) end

-- Runs f(lab's comm, p) on 2 and 4 ranks and wants true of every rank.
local function holds(sizes, f, payload)
    for _, n in ipairs(ranks.sizes(sizes)) do
        local answers = ranks.run(n, f, payload)
        for rank = 0, n - 1 do
            assert.is_true(answers[rank + 1] == true, ("%d ranks, rank %d: %s"):format(n, rank,
                tostring(answers[rank + 1])))
        end
    end
end

describe("boundary.enter", function()
    it("brings rows to the target, and what comes out back to the caller", function()
        holds({ 1, 2, 4 }, function(comm)
            local support, boundary = require "spec.support.boundary_lab", require "cplab".boundary
            local lab = support.lab(comm)
            for _, target in ipairs { "zigzag", "mirror", "snake", "striped", "contiguous" } do
                local inside, exit = boundary.enter(lab, support.rows(lab, "contiguous", 3), target)
                if not support.holds(lab, inside, target) then return target .. " inside" end
                local out = exit(support.rows(lab, target, 5, 100))
                if not support.holds(lab, out, "contiguous", 100) then return target .. " out" end
            end
            return true
        end)
    end)

    it("[T-22] keeps containers, absent values and what is no tensor", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local object, x = setmetatable({ 7 }, {}), support.rows(lab, "contiguous", 2)
            local y = support.rows(lab, "contiguous", 1)
            local given = { x, nil, { object, "name", false, deep = { y, again = x } }, n = 3 }
            given[5] = print
            local inside, exit = cplab.boundary.enter(lab, given, "zigzag")
            local is_kept = inside ~= given and inside[2] == nil and inside.n == 3
                and inside[3][1] == object and inside[3][2] == "name" and inside[3][3] == false
                and inside[5] == print and inside[3].deep.again == inside[1]
            local is_right = support.holds(lab, inside[1], "zigzag")
                and support.holds(lab, inside[3].deep[1], "zigzag")
            local back = exit(inside)
            return is_kept and is_right and support.holds(lab, back[3].deep[1], "contiguous")
                and given[1] == x and support.holds(lab, x, "contiguous")
                and exit(nil) == nil and exit "x" == "x"
        end)
    end)

    it("[T-36] returns the very values where nothing needs converting, in any group", function()
        holds({ 1, 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local given, mask = { support.rows(lab, "contiguous", 2) }, support.mask(lab,
                "contiguous", 1)
            local target = lab.size == 1 and "zigzag" or "contiguous"
            local inside, exit, side = cplab.boundary.enter(lab, given, target,
                { masks = mask, strict = true })
            return rawequal(inside, given) and rawequal(exit(given), given)
                and rawequal(side.masks, mask) and lab.plans.plans_built == 0
        end)
    end)

    it("[T-22] takes ranks without a row", function()
        holds({ 2, 4 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm, { stream = { lengths = { 8 } } })
            local runs = { { { 0, 8 } } }
            for rank = 2, comm:size() do runs[rank] = {} end
            local all_on_one = cplab.layout.custom(lab.stream, { cp = lab.cp, ranks = runs })
            local inside, exit = cplab.boundary.enter(lab, support.rows(lab, all_on_one, 2),
                "zigzag", { from = all_on_one })
            return support.holds(lab, inside, "zigzag")
                and support.holds(lab, exit(inside), all_on_one)
        end)
    end)

    it("[T-32] takes a batch of an unpacked stream as it takes packed sequences", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm, { stream = { seqlen = 8, batch = 3 } })
            local function batch(name)
                local flat = support.rows(lab, name, 6)
                return cplab.tensor.from(flat:totable(), { flat:shape()[1], 3, 2 }, "f64")
            end
            local inside, exit = cplab.boundary.enter(lab, batch "contiguous", "zigzag")
            return support.same(inside, batch "zigzag")
                and support.same(exit(inside), batch "contiguous")
        end)
    end)

    it("[T-35] brings padding along: as many rows come out as went in", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm, { stream = { lengths = { 4, 8 }, real = { 1, 0 } } })
            local x = support.rows(lab, "contiguous", 2)
            local inside, exit = cplab.boundary.enter(lab, x, "zigzag")
            return support.holds(lab, inside, "zigzag") and support.same(exit(inside), x)
        end)
    end)

    it("builds the routes and plans of a pair of layouts once", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local function cross(target)
                local x = support.rows(lab, "contiguous", 2)
                local inside, exit = cplab.boundary.enter(lab, x, target)
                exit(inside)
            end
            cross "zigzag"
            local routes, made = lab.plans.routes_built, lab.plans.plans_built
            for _ = 1, 3 do
                cross "zigzag"
                cross(support.layout(lab, "zigzag")) -- another object with the same rows
            end
            local is_same = routes == 2 and made == 2 and lab.plans.routes_built == 2
                and lab.plans.plans_built == 2
            cross "mirror"
            return is_same and lab.plans.routes_built == 4
        end)
    end)

    it("makes a plan for each dtype, width and method of a pair", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local function plans_with(dtype, width, method)
                local n = support.layout(lab, "contiguous"):n_local(lab.rank)
                lab:convert(cplab.tensor.zeros({ n, width }, dtype), "contiguous", "zigzag",
                    { method = method })
                return lab.plans.plans_built
            end
            local made = { plans_with("f64", 2), plans_with("f32", 2), plans_with("f32", 3),
                plans_with("f32", 3, "packed"), plans_with("f32", 3, "auto"), plans_with("f64", 2) }
            local text = table.concat(made, " ")
            return text == "1 2 3 4 4 4" and lab.plans.routes_built == 1 or text
        end)
    end)

    it("keeps so many plans, and makes those that it needs again", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local most = 0
            for i = 1, 140 do -- of 70 widths
                local inside, exit = cplab.boundary.enter(lab, support.rows(lab, "contiguous",
                    (i - 1) % 70 + 1), "zigzag")
                if not support.holds(lab, exit(inside), "contiguous") then return i end
                local n = 0
                for _ in pairs(lab.plans.plans) do n = n + 1 end
                most = math.max(most, n)
            end
            return most == 64 and lab.plans.plans_built == 280 and lab.plans.routes_built == 10
                or ("%d %d %d"):format(most, lab.plans.plans_built, lab.plans.routes_built)
        end)
    end)

    it("knows balanced layouts by name, as models do", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local inside = cplab.boundary.enter(lab, support.rows(lab, "contiguous", 1),
                "balanced@0.1")
            local balanced = cplab.layout.balanced(lab.stream, { cp = 2, block = 8,
                tolerance = 0.1, near = support.layout(lab, "contiguous") })
            -- Of a model that lives in zigzag they stay near that.
            local other = support.lab(comm, { policy = { "zigzag", "balanced", "contiguous" } })
            local near = cplab.boundary.enter(other, support.rows(other, "contiguous", 1),
                "balanced@0.5", { from = "contiguous" })
            return support.holds(lab, inside, balanced) and not support.holds(lab, inside, "zigzag")
                and support.holds(other, near, "zigzag")
        end)
    end)

    it("with tensor parallelism takes the windows of sequence parallelism", function()
        holds({ 4 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm, { cp = 2, tp = 2 })
            local inside, exit = cplab.boundary.enter(lab, support.rows(lab, "contiguous", 2),
                "zigzag")
            local shard = cplab.layout.contiguous(lab.stream, { cp = 2 })
            local text = support.refusal(cplab.boundary.enter, lab,
                cplab.tensor.zeros({ shard:n_local(0), 2 }), "zigzag")
            return support.holds(lab, inside, "zigzag")
                and support.holds(lab, exit(inside), "contiguous")
                and (text:find("has 12 rows, but rank %d has 6 in contiguous.*, whose rows are "
                    .. "windows of tp = 2") and true or text)
        end)
    end)
end)

describe("where rows are", function()
    it("[T-24] is what the tensor says, not what the model's policy says", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab, boundary = support.lab(comm, { policy = "contiguous" }), cplab.boundary
            -- An outer owner has converted already: an entry from contiguous would permute again.
            local outer = boundary.enter(lab, support.rows(lab, "contiguous", 2), "zigzag")
            local inside, exit = boundary.enter(lab, outer, "zigzag")
            local is_kept = rawequal(inside, outer) and rawequal(exit(inside), outer)
            local mirrored, back = boundary.enter(lab, outer, "mirror")
            -- Without a mark `from` counts, and without that the model.
            local said = boundary.enter(lab, support.rows(lab, "snake", 2), "zigzag",
                { from = "snake" })
            return is_kept and support.holds(lab, mirrored, "mirror")
                and support.holds(lab, back(mirrored), "zigzag")
                and support.holds(lab, said, "zigzag")
        end)
    end)

    it("[T-24] is refused where `from` or another tensor says otherwise", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab, boundary = support.lab(comm), cplab.boundary
            local zigzag = boundary.enter(lab, support.rows(lab, "contiguous", 2), "zigzag")
            local mirror = boundary.enter(lab, support.rows(lab, "contiguous", 2), "mirror")
            local function refused(wanted, ...)
                local text = support.refusal(boundary.enter, lab, ...)
                return text and text:find(wanted) and true or error(tostring(text), 0)
            end
            local _, exit = boundary.enter(lab, support.rows(lab, "contiguous", 2), "snake")
            return refused("boundary.enter: tensors holds rows of zigzag, cp 2.*, not of "
                    .. "contiguous, cp 2", zigzag, "mirror", { from = "contiguous" })
                and refused("tensors holds rows of zigzag.*, not of contiguous", zigzag,
                    "contiguous", { from = "contiguous" })
                and refused("tensors%.b holds rows of mirror.*, not of zigzag",
                    { a = zigzag, b = mirror }, "snake")
                and support.refusal(exit, { zigzag }):find(
                    "boundary: exit: tensors[1] holds rows of zigzag", 1, true) ~= nil
        end)
    end)

    it("[T-24] is refused where the mark is of a layout that the lab never had", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab, other = support.lab(comm), support.lab(comm)
            local x = cplab.boundary.enter(other, support.rows(other, "contiguous", 2), "snake")
            local text = support.refusal(cplab.boundary.enter, lab, x, "zigzag")
            return text:find("tensors holds rows of another layout, not of contiguous", 1, true)
                ~= nil or text
        end)
    end)

    it("needs a mark, a `from` or a model", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm, { policy = false })
            return support.refusal(cplab.boundary.enter, lab, support.rows(lab, "contiguous", 1),
                "zigzag") == "boundary.enter: say in which layout the rows are: the tensors carry "
                    .. "no mark, there is no from, and the lab has no model"
        end)
    end)
end)

describe("what stands beside the rows", function()
    it("[T-26] masks and biases cross: rows by the query layout, columns by the keys'", function()
        holds({ 1, 2, 4 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            for _, target in ipairs { "zigzag", "mirror", "striped" } do
                local mask = support.mask(lab, "contiguous", 2)
                local _, exit, side = cplab.boundary.enter(lab, {}, target, { from = "contiguous",
                    masks = { mask }, bias = support.mask(lab, "contiguous", 1) })
                local _, back = exit(nil, side)
                if not (support.same(side.masks[1], support.mask(lab, target, 2))
                    and support.same(side.bias, support.mask(lab, target, 1))
                    and support.same(back.masks[1], mask)) then
                    return target
                end
            end
            return true
        end)
    end)

    it("[T-26] columns in global order stay where they are", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            -- At one rank's worth of keys rank order is global order: that of contiguous.
            local natural = support.layout(lab, "contiguous")
            local _, _, side = cplab.boundary.enter(lab, nil, "zigzag", { columns = "positions",
                from = "contiguous", masks = support.mask(lab, "contiguous", 1) })
            return support.same(side.masks, support.mask(lab, "zigzag", 1, natural))
                and not support.same(side.masks, support.mask(lab, "zigzag", 1))
        end)
    end)

    it("[T-26] key and value states cross along the keys' own layouts", function()
        holds({ 2, 4 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local encoder = cplab.stream.thd { lengths = { 8, 24 } }
            local a = cplab.layout.contiguous(encoder, { cp = lab.cp })
            local b = cplab.layout.zigzag(encoder, { cp = lab.cp })
            local inside, exit, side = cplab.boundary.enter(lab, support.rows(lab, "contiguous", 2),
                "mirror", { keys = { a, b }, masks = support.mask(lab, "contiguous", 2, a),
                    key_value_states = { k = support.rows(lab, a, 3),
                        v = support.rows(lab, a, 1) } })
            local _, back = exit(nil, { key_value_states = side.key_value_states })
            return support.holds(lab, inside, "mirror")
                and support.holds(lab, side.key_value_states.k, b)
                and support.holds(lab, side.key_value_states.v, b)
                and support.same(side.masks, support.mask(lab, "mirror", 2, b))
                and support.holds(lab, back.key_value_states.k, a)
        end)
    end)

    it("[T-26] keys may cross where queries stay; states that do not fit are refused", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local encoder = cplab.stream.thd { lengths = { 8, 24 } }
            local a = cplab.layout.contiguous(encoder, { cp = lab.cp })
            local b = cplab.layout.zigzag(encoder, { cp = lab.cp })
            local function enter(states)
                return cplab.boundary.enter(lab, support.rows(lab, "contiguous", 2), "contiguous",
                    { keys = { a, b }, key_value_states = states })
            end
            local inside, exit, side = enter(support.rows(lab, a, 3))
            local out, back = exit(inside, side)
            local n = b:n_local(lab.rank)
            local text = support.refusal(enter, cplab.tensor.zeros { n + 1, 3 })
            return support.holds(lab, inside, "contiguous") and support.holds(lab, out,
                "contiguous") and support.holds(lab, side.key_value_states, b)
                and support.holds(lab, back.key_value_states, a)
                and text:find(("key_value_states has %d rows, but rank %d has %d in"):format(n + 1,
                    lab.rank, n), 1, true) ~= nil or text
        end)
    end)

    on(4)("[T-26] attention with a dense mask and a bias equals that of one rank", function()
        for _, target in ipairs { "zigzag", "mirror" } do
            for _, worst in ipairs(ranks.run(4, ATTENTION, { target = target })) do
                assert.is_true(worst <= 1e-12, worst)
            end
        end
        -- With columns left as they were the keys meet the entries of others.
        for _, worst in ipairs(ranks.run(4, ATTENTION, { target = "zigzag",
            columns = "positions" })) do
            assert.is_true(worst > 1e-3, worst)
        end
    end)

    it("[T-26] strict refuses it as the reference does, before anything is changed", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local x = support.rows(lab, "contiguous", 2)
            local mask = support.mask(lab, "contiguous", 2)
            for _, case in ipairs {
                { { masks = mask, bias = mask, key_value_states = x },
                    "an explicit mask (masks, [12, 2, 24] f64)" },
                { { bias = { nil, mask }, key_value_states = x },
                    "a bias (bias[2], [12, 2, 24] f64)" },
                { { key_value_states = { k = x } },
                    "key and value states of cross-attention (key_value_states.k, [12, 2] f64)" },
            } do
                case[1].strict = true
                local text = support.refusal(cplab.boundary.enter, lab, x, "zigzag", case[1])
                local wanted = ("boundary.enter: strict: %s does not cross from %s to %s"):format(
                    case[2], tostring(support.layout(lab, "contiguous")),
                    tostring(support.layout(lab, "zigzag")))
                if text ~= wanted then return tostring(text) end
            end
            local is_untouched = support.holds(lab, x, "contiguous") and lab.plans.plans_built == 0
            -- What does not cross anything is nobody's business, and rows alone may cross.
            cplab.boundary.enter(lab, x, "contiguous", { masks = mask, strict = true })
            cplab.boundary.enter(lab, x, "zigzag", { strict = true, masks = { "causal", 3 } })
            return is_untouched and lab.plans.plans_built == 1
        end)
    end)

    it("[T-26, T-89] a mask that does not fit is refused before anything is changed", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local x = support.rows(lab, "contiguous", 2)
            local function refusal(options)
                return support.refusal(cplab.boundary.enter, lab, x, "zigzag", options)
            end
            local short = refusal { masks = cplab.tensor.zeros { 12, 12 } }
            local flat = refusal { bias = cplab.tensor.zeros { 12 } }
            local sentinel = refusal { masks = cplab.tensor.zeros { 1 } }
            local rows = refusal { masks = { heads = cplab.tensor.zeros { 24, 24 } } }
            return short:find "masks is %[12, 12%] f64: its last axis must be all 24 keys of contig"
                and flat:find "bias is %[12%] f64: its last axis must be all 24 keys"
                and sentinel:find "masks has 1 rows, but rank %d has 12 in contiguous"
                and rows:find "masks%.heads has 24 rows, but rank %d has 12 in contiguous"
                and lab.plans.plans_built == 0 and support.holds(lab, x, "contiguous") or short
        end)
    end)
end)

describe("ways out", function()
    it("[T-23] all lead back: whichever way a module leaves, rows are the caller's", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local function attention(x, early)
                return cplab.boundary.run(lab, x, "zigzag", nil, function(inside)
                    if early then return inside end -- decoding leaves here
                    return inside, nil, { inside }
                end)
            end
            local x = support.rows(lab, "contiguous", 2)
            local main, nothing, list = attention(x)
            local early = attention(x, true)
            -- The bug: the second way out hands on what is inside.
            local bug = cplab.boundary.enter(lab, x, "zigzag")
            return support.holds(lab, main, "contiguous") and nothing == nil
                and support.holds(lab, list[1], "contiguous")
                and support.holds(lab, early, "contiguous")
                and not support.holds(lab, bug, "contiguous")
        end)
    end)

    it("[T-27] belong to the call: interleaved microbatches leave in any order", function()
        holds({ 2, 4 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab, boundary = support.lab(comm), cplab.boundary
            -- A module in two stages that keeps nothing: the stage gives the way out along.
            local function core(x, from)
                local inside, exit = boundary.enter(lab, x, "zigzag", { from = from })
                return { inside, exit }
            end
            local function projection(stage) return stage[2](stage[1]) end
            for _, order in ipairs { { 1, 2 }, { 2, 1 } } do
                local stages = { core(support.rows(lab, "contiguous", 2), "contiguous"),
                    core(support.rows(lab, "zigzag", 2, 500), "zigzag") }
                local out = {}
                for _, i in ipairs(order) do out[i] = projection(stages[i]) end
                if not (support.holds(lab, out[1], "contiguous")
                    and support.holds(lab, out[2], "zigzag", 500)) then
                    return "order " .. order[1]
                end
                -- The bug: one converter on the module, that of the last call.
                if support.holds(lab, stages[2][2](stages[1][1]), "contiguous") then
                    return "the control"
                end
            end
            return true
        end)
    end)

    it("[T-27] an error leaves the caller's tensors as they were, and comes as it was", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab, boundary = support.lab(comm), cplab.boundary
            local x, problem = support.rows(lab, "contiguous", 2), { "an object" }
            local ok, got = pcall(boundary.run, lab, x, "zigzag", {}, function(inside)
                inside:fill(-1)
                error(problem)
            end)
            local _, text = pcall(boundary.run, lab, x, "zigzag", {}, function()
                error("the module broke", 0)
            end)
            local again = boundary.enter(lab, x, "zigzag")
            return ok == false and rawequal(got, problem) and text == "the module broke"
                and support.holds(lab, x, "contiguous") and support.holds(lab, again, "zigzag")
        end)
    end)

    it("[T-28] what run set is as before on every way out, errors included", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab, boundary = support.lab(comm), cplab.boundary
            local fresh = cplab.tensor.from
            -- What a boundary takes the rows of an unmarked tensor for.
            local function taken_for()
                for _, name in ipairs { "contiguous", "zigzag", "mirror" } do
                    local x = support.rows(lab, name, 1)
                    x = fresh(x:totable(), x:shape())
                    local inside = boundary.enter(lab, x, "snake")
                    if support.holds(lab, inside, "snake") then return name end
                end
            end
            local seen = { taken_for() }
            local x = support.rows(lab, "contiguous", 1)
            boundary.run(lab, x, "zigzag", nil, function(inside)
                seen[2] = taken_for()
                pcall(boundary.run, lab, inside, "mirror", nil, function()
                    seen[3] = taken_for()
                    error "inside"
                end)
                seen[4] = taken_for()
            end)
            seen[5] = taken_for()
            return table.concat(seen, " ") == "contiguous zigzag mirror zigzag contiguous"
                or table.concat(seen, " ")
        end)
    end)

    it("[T-27] coroutines inside of run do not see each other's layout", function()
        holds({ 2 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab, boundary = support.lab(comm), cplab.boundary
            local function microbatch(target)
                return coroutine.wrap(function()
                    return boundary.run(lab, support.rows(lab, "contiguous", 1), target, nil,
                        function()
                            coroutine.yield()
                            -- Fresh rows of the target, without a mark.
                            local rows = support.rows(lab, target, 1)
                            local inner = boundary.enter(lab, rows, "snake")
                            return rows, support.holds(lab, inner, "snake")
                        end)
                end)
            end
            local a, b = microbatch "zigzag", microbatch "mirror"
            a()
            b()
            local x, is_x = a()
            local y, is_y = b()
            return is_x and is_y and support.holds(lab, x, "contiguous")
                and support.holds(lab, y, "contiguous")
        end)
    end)

    it("a complaint of one rank is raised on all, and nothing hangs", function()
        holds({ 4 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local x = support.rows(lab, "contiguous", 2)
            if lab.rank == 2 then x = cplab.tensor.zeros { 5, 2 } end
            local text = support.refusal(cplab.boundary.enter, lab, x, "zigzag")
            local wanted = "tensors has 5 rows, but rank 2 has 6 in contiguous"
            local found = text:find((lab.rank == 2 and "boundary.enter: "
                or "boundary.enter: rank 2: ") .. wanted, 1, true)
            local inside = cplab.boundary.enter(lab, support.rows(lab, "contiguous", 2), "zigzag")
            return found ~= nil and support.holds(lab, inside, "zigzag")
        end)
    end)
end)

describe("what the inside looks at", function()
    it("[T-45] positions are the target's: rotary ones are asked for, they do not cross", function()
        holds({ 2, 4 }, function(comm)
            local support, cplab = require "spec.support.boundary_lab", require "cplab"
            local lab = support.lab(comm)
            local function rotated(x, name)
                local positions = support.layout(lab, name):positions(lab.rank)
                for i, p in ipairs(positions) do -- from 0 within each sequence
                    positions[i] = p - lab.stream:sequence(lab.stream:sequence_of(p)).start
                end
                local shape = x:shape()
                local heads = cplab.tensor.from(x:totable(), { shape[1], 1, shape[2] })
                return cplab.tensor.from(cplab.op.rope(heads, positions):totable(), shape)
            end
            local x = support.rows(lab, "contiguous", 4)
            local right = cplab.boundary.run(lab, x, "zigzag", nil, function(inside)
                return rotated(inside, "zigzag")
            end)
            -- The bug: rotary positions of the caller's rows.
            local wrong = cplab.boundary.run(lab, x, "zigzag", nil, function(inside)
                return rotated(inside, "contiguous")
            end)
            local expected = rotated(x, "contiguous")
            return support.same(right, expected) and not support.same(wrong, expected)
        end)
    end)
end)
