local assignment = require "cplab.assignment"
local cplab = require "cplab"
local named = require "cplab.named_layouts"
local outline = require "cplab.outline"
local policy = require "cplab.policy"

local function lives(...)
    local layers = {}
    for i, live in ipairs { ... } do layers[i] = { live = live } end
    return layers
end

local function between(entry, exit, layers)
    return { entry = entry, exit = exit, layers = layers }
end

local function fields(of, pattern, changes)
    local t = {
        schedule = cplab.schedule.pattern(pattern, #pattern), policy = of, hidden = 8, vocab = 16,
        gqa = { heads = 2, kv_heads = 1, head_dim = 8 },
        gdn = { key_heads = 1, value_heads = 2, key_dim = 4, value_dim = 4 },
    }
    for name, value in pairs(changes or {}) do t[name] = value end
    return t
end

local function fit(of, pattern, changes)
    return cplab.model(fields(of, pattern, changes)).policy
end

local function words(list)
    local out = {}
    for i, step in ipairs(list) do
        out[i] = step.op == "convert" and ("%s%s>%s"):format(step.residual and "x:" or "",
            step.from, step.to) or step.op
    end
    return table.concat(out, " ")
end

local function steps(of, pattern, cp, split)
    return words(assignment.steps(fit(of, pattern), cp, function() end, split))
end

local STREAM = cplab.stream.thd { lengths = { 16, 32 } }

describe("an assignment", function()
    it("says for each layer where it lives, where its mixer runs and in which mode", function()
        local a = fit(between("contiguous", "zigzag", {
            { live = "contiguous" }, { live = "zigzag", mixer = "mirror", cp_mode = "p2p" },
        }), "G*")
        assert.same({ "assignment", "contiguous", "zigzag", "contiguous" },
            { a.name, a.entry, a.exit, a.near })
        assert.same({ live = "contiguous", mixer = "contiguous", cp_mode = "chunkwise",
            layer = { kind = "gdn", cp_mode = "chunkwise" } }, a.layers[1])
        assert.same({ live = "zigzag", mixer = "mirror", cp_mode = "p2p",
            layer = { kind = "gqa", cp_mode = "p2p" } }, a.layers[2])
        assert.is_nil(a.is_triple)
    end)

    it("converts the residual stream only where homes differ", function()
        local z, c = "zigzag", "contiguous"
        local layers = lives(z, z, c, c, z)
        assert.equal("x:contiguous>zigzag mixer mixer x:zigzag>contiguous mixer mixer "
            .. "x:contiguous>zigzag mixer x:zigzag>contiguous",
            steps(between(c, c, layers), "**GG*", 2))
        assert.equal("mixer mixer x:zigzag>contiguous mixer mixer x:contiguous>zigzag mixer",
            steps(between(z, z, layers), "**GG*", 2))
        assert.equal("mixer mixer mixer mixer mixer", steps(between(c, c, layers), "**GG*", 1))
    end)

    it("converts around a mixer that runs away from home", function()
        local layers = { { live = "zigzag", mixer = "contiguous" }, { live = "mirror" } }
        assert.equal("zigzag>contiguous mixer contiguous>zigzag x:zigzag>mirror mixer "
            .. "x:mirror>zigzag", steps(between("zigzag", "zigzag", layers), "G*", 2))
    end)

    it("goes by the entries of pipeline stages, where they differ", function()
        local placed = require("cplab.pipeline").place(fit(between("contiguous", "contiguous",
            { { live = "contiguous" }, { live = "zigzag" } }), "G*"),
            cplab.pipeline.cut(2, { pp = 2, entries = { "mirror" } }))
        assert.equal("mixer x:contiguous>mirror x:mirror>zigzag mixer x:zigzag>contiguous",
            words(assignment.steps(placed, 2, function() end)))
        assert.equal("mixer mixer", words(assignment.steps(placed, 1, function() end)))
    end)

    it("takes the ranks that spread heads from a layer that moves rows alone", function()
        local list = cplab.schedule.list { { "gqa", cp_mode = "a2a+p2p", a2a = 2 },
            { "gqa", cp_mode = "a2a+p2p", a2a = 2 } }
        local of = between("zigzag", "zigzag", { { live = "zigzag", cp_mode = "p2p" },
            { live = "zigzag" } })
        local layers = fit(of, "**", { schedule = list }).layers
        assert.same({ "p2p", nil, "a2a+p2p", 2 }, { layers[1].layer.cp_mode, layers[1].layer.a2a,
            layers[2].layer.cp_mode, layers[2].layer.a2a })
        assert.equal(2, list.layers[1].a2a) -- the schedule is as it was
    end)

    it("gathers under tensor parallelism, but not for the residual stream", function()
        local layers = { { live = "zigzag", mixer = "contiguous" }, { live = "mirror" } }
        local of = between("zigzag", "mirror", layers)
        assert.equal("zigzag>contiguous mixer contiguous>zigzag x:zigzag>mirror gather mixer "
            .. "gather", steps(of, "G*", 2, { tp = 2 }))
        assert.equal("gather zigzag>contiguous mixer contiguous>zigzag gather x:zigzag>mirror "
            .. "gather mixer gather", steps(of, "G*", 2, { tp = 2, composed = true }))
    end)

    it("of a policy is what the policy means", function()
        for _, name in ipairs(policy.names) do
            local model = cplab.model(fields(name, "G*"))
            local a, triple = model:assignment(STREAM, { cp = 2 }), policy.triples[name]
            if triple then
                assert.same({ name, triple[1], triple[1], triple[3], triple[2] },
                    { a.name, a.entry, a.exit, a.layers[1].mixer, a.layers[2].mixer })
                assert.is_true(a.is_triple)
            end
        end
        local a2a = fields("contiguous", "G*", { gqa = { heads = 2, kv_heads = 1, head_dim = 8,
            cp_mode = "a2a" } })
        local a = cplab.model(a2a):assignment(STREAM, { cp = 2 })
        assert.equal("contiguous", a.layers[2].mixer) -- nothing is planned around it
    end)

    it("may be given where it came from: a policy's, as one of the user's", function()
        local model = cplab.model(fields("balanced", "G*"))
        local a = model:assignment(STREAM, { cp = 2 })
        local again = model:with({ policy = a }):assignment(STREAM, { cp = 2 })
        a.is_triple = nil
        assert.same(a, again)
    end)

    it("has layouts by name, each one object; balanced with tolerances of their own", function()
        local of = between("contiguous", "zigzag", { { live = "contiguous", mixer = "balanced@0" },
            { live = "zigzag", mixer = "balanced@1" } })
        local model = cplab.model(fields(of, "**"))
        local layouts = model:layouts(model.policy, STREAM, { cp = 2, tp = 2 })
        local c = cplab.layout.contiguous(STREAM, { cp = 2 })
        assert.is_true(layouts.shard["balanced@1"]:equals(c))
        assert.is_true(layouts.shard["balanced@0"]:equals(cplab.layout.balanced(STREAM, { cp = 2,
            near = c, tolerance = 0, block = 16 })))
        assert.is_false(layouts.shard["balanced@0"]:equals(c))
        assert.same({ 4, 4 }, { layouts.live.contiguous:n_ranks(), layouts.live.zigzag:n_ranks() })
        assert.is_nil(layouts.live["balanced@0"])
        layouts = model:layouts(model.policy, STREAM, { cp = 2 })
        assert.is_true(rawequal(layouts.live.zigzag, layouts.shard.zigzag))
    end)

    it("balances near contiguous, or near what it names", function()
        local of = between("zigzag", "zigzag", { { live = "zigzag", mixer = "balanced" } })
        local model = cplab.model(fields(of, "*"))
        local function balanced()
            return model:layouts(model.policy, STREAM, { cp = 2 }).shard.balanced
        end
        local zigzag = cplab.layout.zigzag(STREAM, { cp = 2 })
        assert.is_false(balanced():equals(zigzag))
        of.near = "zigzag"
        model = cplab.model(fields(of, "*"))
        assert.is_true(balanced():equals(zigzag)) -- which is as balanced as can be
    end)

    it("lets the model check layers as they run: modes, sizes, layouts", function()
        local of = between("zigzag", "zigzag", { { live = "zigzag", cp_mode = "a2a+p2p" } })
        assert.has_error(function() fit(of, "*") end)
        local gqa = { heads = 2, kv_heads = 2, head_dim = 8, a2a = 2 }
        assert.equal(2, #fit(between("zigzag", "zigzag", { { live = "zigzag",
            cp_mode = "a2a+p2p" }, { live = "zigzag" } }), "*G", { gqa = gqa }).layers)
        gqa = { heads = 2, kv_heads = 2, head_dim = 8, layouts = { "zigzag", "balanced" } }
        of = between("contiguous", "contiguous", { { live = "contiguous",
            mixer = "balanced@0.1" } })
        assert.equal("balanced@0.1", fit(of, "*", { gqa = gqa }).layers[1].mixer)
        of.layers[1].mixer = "mirror"
        assert.error_matches(function() fit(of, "*", { gqa = gqa }) end,
            "model.gqa: runs in mirror, which is not among its layouts (zigzag, balanced)", 1, true)
    end)

    it("may give each layer what it wants, and the others what is there", function()
        local list = cplab.schedule.list { { "gdn", cp_mode = "headwise" }, "gdn", "gqa",
            { "gqa", cp_mode = "a2a" }, "gdn" }
        local c, z = "contiguous", "zigzag"
        local a = assignment.coalesced(cplab.pipeline.preferences(list), z)
        assert.same({ z, z }, { a.entry, a.exit })
        local homes = {}
        for i, entry in ipairs(a.layers) do homes[i] = entry.live end
        assert.same({ z, c, z, z, c }, homes)
        a = assignment.coalesced({ z, z, c, c, z }, c)
        assert.equal("x:contiguous>zigzag mixer mixer x:zigzag>contiguous mixer mixer "
            .. "x:contiguous>zigzag mixer x:zigzag>contiguous", steps(a, "**GG*", 2))
        assert.has_error(function() assignment.coalesced({ z }, "zigzak") end,
            'policy: unknown layout "zigzak"; did you mean "zigzag"?')
    end)

    it("gives what each layer wants from a list of layouts, and nothing else", function()
        local a = assignment.coalesced({ "mirror", false }, "zigzag", "contiguous")
        assert.same({ "zigzag", "contiguous" }, { a.entry, a.exit })
        assert.equal("zigzag", assignment.coalesced({ "mirror" }, "zigzag").exit)
        assert.has_error(function() assignment.coalesced(nil, "zigzag") end,
            "assignment.coalesced: preferences must be a list (got nil)")
        assert.has_error(function() assignment.coalesced("zigzag", "zigzag") end,
            'assignment.coalesced: preferences must be a list (got "zigzag")')
    end)

    it("comes from the planner where the policy is auto", function()
        local kept, had = package.loaded["cplab.planner"], #policy.names
        local asked
        package.loaded["cplab.planner"] = { assign = function(...)
            asked = { ... }
            return between("zigzag", "zigzag", lives "zigzag")
        end }
        table.insert(policy.names, "auto")
        local model = cplab.model(fields("auto", "*"))
        local group = { cp = 2, tp = 1 }
        local a = model:assignment(STREAM, group)
        package.loaded["cplab.planner"] = kept
        policy.names[had + 1] = nil
        assert.same({ model, STREAM, group }, asked)
        assert.equal("zigzag", a.layers[1].live)
        assert.equal("gqa", a.layers[1].layer.kind)
    end)
end)

describe("an assignment is refused", function()
    local function refused(message, of, pattern, changes)
        local ok, text = pcall(fit, of, pattern or "G", changes)
        assert.is_false(ok)
        assert.equal(message, (text:gsub("^[^:]+:%d+: ", "")))
    end

    it("without entry or exit, with unknown fields", function()
        refused('policy: field "entry" is missing', { exit = "zigzag", layers = lives "zigzag" })
        refused('policy: field "exit" is missing', { entry = "zigzag", layers = lives "zigzag" })
        refused('policy: unknown field "entri"; did you mean "entry"?', { entri = "zigzag",
            layers = lives "zigzag" })
        refused('policy.layers[1]: field "live" is missing',
            between("zigzag", "zigzag", { { mixer = "zigzag" } }))
        refused('policy.layers[1]: unknown field "mode"; there are cp_mode, layer, live, mixer',
            between("zigzag", "zigzag", { { live = "zigzag", mode = "p2p" } }))
    end)

    it("with an unknown layout, mode or tolerance", function()
        refused('policy.layers[2]: unknown layout "zigzak"; did you mean "zigzag"?',
            between("zigzag", "zigzag", lives("zigzag", "zigzak")), "GG")
        refused('policy: unknown layout "mirrow"; did you mean "mirror"?',
            between("mirrow", "zigzag", lives "zigzag"))
        refused('policy: the tolerance of "balanced@x" must be a number from 0 on',
            between("zigzag", "balanced@x", lives "zigzag"))
        refused('policy: the tolerance of "balanced@-1" must be a number from 0 on',
            between("balanced@-1", "zigzag", lives "zigzag"))
        refused('policy: unknown cp_mode of a gdn layer "headwize"; did you mean "headwise"?',
            between("zigzag", "zigzag", { { live = "zigzag", cp_mode = "headwize" } }))
    end)

    it("with another number of layers than the model", function()
        refused("policy: 2 layers are assigned, the model has 3 (3 of the schedule, 0 of MTP)",
            between("zigzag", "zigzag", lives("zigzag", "zigzag")), "GG*")
        refused("policy: 3 layers are assigned, the model has 5 (3 of the schedule, 2 of MTP)",
            between("zigzag", "zigzag", lives("zigzag", "zigzag", "zigzag")), "GG*",
            { mtp = { depth = 2, kind = "gqa" } })
        local model = cplab.model(fields("zigzag", "GG*"))
        assert.has_error(function()
            model:with { policy = between("zigzag", "zigzag", lives "zigzag") }
        end, "policy: 1 layers are assigned, the model has 3 (3 of the schedule, 0 of MTP)")
    end)

    it("where it was made for layers of another kind", function()
        local a = fit(between("zigzag", "zigzag", { { live = "zigzag" }, { live = "zigzag" } }),
            "G*")
        assert.equal(2, #fit(a, "G*").layers)
        a.layers[1].cp_mode, a.layers[2].cp_mode = nil, nil
        assert.error_matches(function() fit(a, "*G") end,
            'policy: layer 0 is a gqa layer in the model, and "gdn" in the assignment', 1, true)
    end)

    it("with a mixer away from home that takes any layout", function()
        refused("policy: layer 1 (gdn headwise) takes any layout, so it runs where it lives: mixer "
            .. "is contiguous, live is zigzag", between("zigzag", "zigzag", { { live = "zigzag" },
            { live = "zigzag", mixer = "contiguous", cp_mode = "headwise" } }), "*G")
    end)

    it("with a depth of MTP that does not live in the exit layout", function()
        refused("policy: layer 1 is of MTP, which lives in the exit layout zigzag, not in mirror",
            between("contiguous", "zigzag", lives("contiguous", "mirror")), "G",
            { mtp = { kind = "gqa" } })
    end)
end)

describe("an assignment is shown", function()
    it("with a line for each run of layers", function()
        local layers = lives("contiguous", "contiguous", "contiguous", "contiguous", "zigzag",
            "zigzag")
        layers[4] = { live = "contiguous", mixer = "mirror", cp_mode = "gather" }
        layers[6].cp_mode = "p2p"
        local model = cplab.model(fields(between("contiguous", "zigzag", layers), "GGG*G*"))
        assert.same({
            "tokens and embedding live contiguous",
            "layers 0-3 live contiguous: GDN chunkwise in contiguous; GQA gather in mirror, "
                .. "converted around",
            "layers 4-5 live zigzag: GDN chunkwise in zigzag; GQA p2p in zigzag",
            "head, labels and loss live zigzag",
        }, assignment.describe(model.policy))
        local text = table.concat(outline.lines(STREAM, model, 2), "\n")
        assert.truthy(text:find("\nlayouts      tokens and embedding live contiguous\n"
            .. "             layers 0-3 live contiguous: GDN", 1, true), text)
        assert.truthy(text:find("\nconversions  3 a forward pass", 1, true), text)
    end)

    it("with another line where a kind changes its mode or layout, and one for a layer", function()
        local layers = lives("zigzag", "zigzag", "zigzag")
        layers[2].mixer = "contiguous"
        assert.same({ "layer 0 lives zigzag: GDN chunkwise in zigzag",
            "layer 1 lives zigzag: GDN chunkwise in contiguous, converted around",
            "layer 2 lives zigzag: GDN chunkwise in zigzag" },
            { unpack(assignment.describe(fit(between("zigzag", "zigzag", layers), "GGG")), 2, 4) })
    end)
end)

describe("names of layouts", function()
    it("carry a tolerance, written in one way", function()
        assert.equal("balanced@0.1", named.check("x", "balanced@0.10"))
        assert.equal("balanced@0.1", named.check("x", "balanced@1e-1"))
        assert.same({ "balanced", 0.1 }, { named.parse "balanced@0.1" })
        assert.same({ "balanced" }, { named.parse "balanced" })
        assert.equal("zigzag", named.check("x", "zigzag"))
    end)

    it("of tolerances go into triples too", function()
        local of = policy.resolve { "contiguous", "balanced@0.10", "contiguous" }
        assert.equal("balanced@0.1", of.gqa)
        assert.equal("contiguous/balanced@0.1/contiguous", of.name)
    end)
end)
