-- A case on a cluster: sizes of a sweep, streams that are scaled, rows. Prices are a stand-in that
-- says what it was asked for.
local cases = require "cplab.project.case"
local clusters = require "cplab.cluster"
local cplab = require "cplab"

local H100 = clusters.load "h100"

local function model(case)
    return cplab.model {
        schedule = cplab.schedule.pattern("GG*", 3), policy = case.policy, auto = case.auto,
        hidden = 32, vocab = 16,
        gqa = { heads = 4, kv_heads = 2, head_dim = 8 },
        gdn = { key_heads = 2, value_heads = 4, key_dim = 8, value_dim = 8 },
    }
end

local function stream()
    return cplab.stream.thd { lengths = { 64, 16, 16 } }
end

local function script(fields)
    local t = { name = "s", sweep = { policy = { "mirror" } }, run = function() end, model = model,
        stream = stream }
    for name, value in pairs(fields or {}) do t[name] = value end
    return cplab.experiment(t)
end

-- A job whose prices keep what they were asked for in `asked`.
local function job(fields, experiment)
    local t = { script = experiment or script(), cluster = H100 }
    for name, value in pairs(fields or {}) do t[name] = value end
    t.prices = t.prices == nil and function(_, m, s, case)
        t.asked = { model = m, stream = s, case = case }
        return { step = function(_, assignment)
            t.assignment = assignment
            return { seconds = 2, compute = 1, comm = 0.5, convert = 0.5, host = 0, bytes = 8,
                messages = 2, conversions = 2, ranks = {}, items = {
                    { kind = "mixer", detail = { imbalance = 1.5 } },
                    { kind = "rest", detail = { imbalance = 9 } } } }
        end }
    end or t.prices
    return t
end

local CASE = { policy = "mirror", cp = 4, tp = 1, multiple = 8 }

describe("a projected case", function()
    it("has the times in ms, and the imbalance of its worst mixer", function()
        local row, step = cases.row(job(), CASE)
        assert.same({ "projected", 2000, 1000, 500, 500, 0, 1.5, 96, "mirror", "bf16" },
            { row.status, row.step_ms, row.compute_ms, row.comm_ms, row.convert_ms, row.host_ms,
                row.imbalance, row.tokens, row.policy, row.dtype })
        assert.equal(2, step.seconds)
    end)

    it("is the assignment of its policy", function()
        local j = job()
        cases.row(j, CASE)
        assert.equal("contiguous", j.assignment.entry)
        assert.equal("contiguous", j.assignment.exit)
        local mixers = {}
        for i, layer in ipairs(j.assignment.layers) do
            assert.equal("contiguous", layer.live)
            mixers[i] = layer.mixer
        end
        assert.same({ "contiguous", "contiguous", "mirror" }, mixers)
    end)

    it("is planned by the prices of the cluster where the policy is auto", function()
        local function planned(auto)
            local j = job({ prices = false }, script { model = function(case)
                return model { policy = "auto", cp = case.cp, auto = auto }
            end })
            local row, step = cases.row(j, CASE)
            assert.same({ "projected", "auto" }, { row.status, row.policy }, row.reason)
            local names = {}
            for _, item in ipairs(step.items) do
                if item.kind == "convert" then names[item.name] = true end
            end
            return row, names
        end
        -- Whatever the model's own cluster is, and with the ends and candidates that it names.
        assert.same({}, select(2, planned { cluster = "local" }))
        local slow = H100:with { host = { sync = 1 } }
        assert.equal((planned {}).seconds, (planned { cluster = slow }).seconds)
        local _, names = planned { entry = "zigzag", exit = "contiguous" }
        assert.is_true(names["zigzag -> contiguous"])
        assert.equal(1, (planned { layouts = { "snake" } }).imbalance > 1 and 1 or 0)
        assert.is_true((planned { layouts = { "snake" } }).seconds > (planned {}).seconds)
    end)

    it("has balanced layouts near that in which the model lives", function()
        local j = job({ prices = false }, script { model = function()
            return model { policy = { "zigzag", "balanced", "contiguous" } }
        end })
        local row = cases.row(j, CASE)
        assert.same({ "projected" }, { row.status, row.reason })
    end)

    it("computes in the dtype asked for, or where ranks share cores in the model's", function()
        assert.equal("f64", cases.row(job { dtype = "f64" }, CASE).dtype)
        assert.equal("f32", cases.row(job { cluster = H100:with { cores = 2 } }, CASE).dtype)
    end)

    it("is skipped where the nodes have too few ranks", function()
        local large = { policy = "mirror", cp = 16, tp = 1, multiple = 32 }
        local row = cases.row(job { nodes = 1 }, large)
        assert.same({ "skipped", "needs 16 ranks, 1 node of h100 have 8" },
            { row.status, row.reason })
        assert.equal("projected", cases.row(job(), CASE).status)
    end)

    it("is an error with its sentence where something raises", function()
        local row, step = cases.row(job { prices = function() error "no prices" end }, CASE)
        assert.equal("error", row.status)
        assert.truthy(row.reason:find("no prices", 1, true))
        assert.is_nil(step)
        local bad = script { stream = function() return 3 end }
        row = cases.row(job({}, bad), CASE)
        assert.equal("project: stream(case) must return a cplab.stream (got 3)", row.reason)
    end)
end)

describe("a size of a sweep", function()
    it("is a cp, with the multiple that it needs", function()
        local case = cases.at(CASE, "cp", 6, H100)
        assert.same({ 6, 24, "mirror" }, { case.cp, case.multiple, case.policy })
        assert.equal(4, CASE.cp)
    end)

    it("is nodes that are filled with ranks", function()
        assert.equal(16, cases.at(CASE, "nodes", 2, H100).cp)
        local two = { policy = "mirror", cp = 1, tp = 2, multiple = 4 }
        assert.equal(8, cases.at(two, "nodes", 2, H100).cp)
        local three = { policy = "mirror", cp = 1, tp = 3, multiple = 6 }
        local case, reason = cases.at(three, "nodes", 1, H100)
        assert.is_nil(case)
        assert.equal("8 ranks of 1 nodes are not a multiple of tp = 3", reason)
    end)

    it("is tokens, to which sequences are scaled in whole multiples", function()
        local j, size = job(), { axis = "tokens", value = 960 }
        cases.row(j, cases.at(CASE, "tokens", 960, H100), size)
        local lengths = {}
        for i = 1, 3 do lengths[i] = j.asked.stream:sequence(i - 1).padded end
        assert.same({ 640, 160, 160 }, lengths)
        cases.row(j, cases.at(CASE, "tokens", 100, H100), { axis = "tokens", value = 100 })
        assert.equal(0, j.asked.stream:sequence(1).padded % 8)
        assert.equal(64, j.asked.stream:sequence(0).padded)
    end)

    -- A size that is not there would stand under a name that is not its own.
    it("is no size that whole multiples of short sequences cannot have", function()
        local function scaled(stream_of_it, value)
            local j = job({}, script { stream = function() return stream_of_it end })
            local case = cases.at(CASE, "tokens", value, H100)
            local row = cases.row(j, case, { axis = "tokens", value = value })
            return row.reason or j.asked.stream, row.tokens
        end
        assert.equal("project: scaled to 16 tokens, sequences of whole multiples of 8 have 24",
            (scaled(stream(), 16)))
        local none = cplab.stream.thd { lengths = { 0, 0 } }
        assert.equal("project: scaled to 16 tokens, sequences of whole multiples of 8 have 0",
            (scaled(none, 16)))
        local packed = cplab.stream.thd { lengths = { 64, 0, 64 }, real = { 64, 0, 33 } }
        local large = scaled(packed, 1024)
        assert.equal(3, large:n_sequences())
        assert.same({ 0, 0 }, { large:sequence(1).padded, large:sequence(1).real })
        assert.same({ 512, 264 }, { large:sequence(2).padded, large:sequence(2).real })
        local batch = cplab.stream.sbhd { seqlen = 64, batch = 3 }
        local _, n = scaled(batch, 768)
        assert.equal(768, n)
    end)

    it("is tokens of the script's own, where it knows any", function()
        local j = job({}, script { params = { tokens = 32 }, stream = function(case)
            return cplab.stream.thd { lengths = { case.tokens } }
        end })
        local size = { axis = "tokens", value = 96 }
        assert.equal(96, cases.row(j, cases.at(CASE, "tokens", 96, H100), size).tokens)
    end)
end)
