local cplab = require "cplab"

local function fields(changes)
    local t = {
        schedule = cplab.schedule.ratio("1:1", 2), policy = "zigzag", hidden = 8, vocab = 16,
        gqa = { heads = 2, kv_heads = 1, head_dim = 16 },
        gdn = { key_heads = 1, value_heads = 2, key_dim = 4, value_dim = 4 },
    }
    for name, value in pairs(changes or {}) do t[name] = value end
    return t
end

describe("model", function()
    it("fills in what Qwen3-Next has: a quarter of the head rotates, theta 1e7, conv 4", function()
        local m = cplab.model(fields())
        assert.equal(4, m.gqa.rotary_dim)
        assert.equal(1e7, m.gqa.rope_theta)
        assert.equal(4, m.gdn.conv)
        assert.equal(64, m.gdn.chunk)
        assert.equal("f32", m.dtype)
        assert.equal("prebuilt", m.routes)
        assert.is_nil(m.mlp)
    end)

    it("has a signature that is equal for equal numbers, whatever the policy", function()
        local m = cplab.model(fields())
        assert.equal(m:signature(), m:with({ policy = "native" }):signature())
        assert.not_equal(m:signature(), m:with({ seed = 1 }):signature())
        assert.not_equal(m:signature(), m:with({ dtype = "f64" }):signature())
        assert.equal("lazy", m:with({ routes = "lazy" }).routes)
        assert.has_error(function() m:with({ routes = "lasy" }) end,
            'model:with: unknown routes "lasy"; did you mean "lazy"?')
    end)

    it("refuses what cannot be, at the caller's line", function()
        local function refused(message, changes)
            local ok, got = pcall(function() return cplab.model(fields(changes)) end)
            assert.is_false(ok)
            assert.equal(message, got:gsub("^.-model_spec%.lua:%d+: ", ""), got)
        end
        refused('model: unknown field "hiden"; did you mean "hidden"?', { hiden = 3 })
        refused('model: unknown dtype "f23"; did you mean "f32"?', { dtype = "f23" })
        refused('model: unknown routes "lasy"; did you mean "lazy"?', { routes = "lasy" })
        refused('policy: unknown policy "zigzak"; did you mean "zigzag"?', { policy = "zigzak" })
        refused("model: hidden must be an integer (got 2.5)", { hidden = 2.5 })
        refused('model.auto: unknown field "clutser"; did you mean "cluster"?',
            { auto = { clutser = "h100" } })
        refused('cluster: unknown cluster "h10"; did you mean "h100"?',
            { auto = { cluster = "h10" } })
        refused('model.auto: unknown dtype "f46"; did you mean "f64"?',
            { auto = { dtype = "f46" } })
        refused('model.auto.layouts: unknown layout "zigzak"; did you mean "zigzag"?',
            { auto = { layouts = { "mirror", "zigzak" } } })
        refused("model.auto: layouts must name at least one layout", { auto = { layouts = {} } })
        refused('model.auto: unknown exit layout "mirror"; there are zigzag',
            { auto = { layouts = { "zigzag" }, exit = "mirror" } })
        refused('model.auto.entry: unknown layout "snak"; did you mean "snake"?',
            { auto = { entry = "snak" } })
        refused("model: schedule must come from cplab.schedule.ratio, list or pattern",
            { schedule = {} })
    end)

    it("knows which sizes go together, and how large a size is", function()
        local function refused(message, kind, changes)
            local t = fields()
            for name, value in pairs(changes) do
                if kind then t[kind][name] = value else t[name] = value end
            end
            local ok, got = pcall(function() return cplab.model(t) end)
            assert.is_false(ok)
            assert.equal(message, (got:gsub("^.-model_spec%.lua:%d+: ", "")))
        end
        refused("gqa: 3 heads, not a multiple of kv_heads = 2", "gqa", { heads = 3, kv_heads = 2 })
        refused("gdn: 2 value_heads, not a multiple of key_heads = 3", "gdn", { key_heads = 3 })
        refused("gdn: chunk 65 is not in 1 to 64", "gdn", { chunk = 65 })
        refused("model.gqa: heads must be an integer in 1 .. 2147483647 (got 0)", "gqa",
            { heads = 0 })
        refused("model: vocab must be an integer in 1 .. 2147483647 (got 10000000000)", nil,
            { vocab = 1e10 })
        refused("model: seed must be an integer >= 0 (got -1)", nil, { seed = -1 })
    end)

    it("holds a kind of layer to the layouts that it may run in", function()
        local t = fields()
        t.gqa.layouts = { "mirror", "zigzag" }
        assert.equal("zigzag", cplab.model(t).policy.gqa)
        t.gqa.layouts = "any"
        assert.equal("zigzag", cplab.model(t).policy.gqa)
        t.gqa.layouts = { "contiguous" }
        assert.has_error(function() cplab.model(t) end,
            "model.gqa: runs in zigzag, which is not among its layouts (contiguous)")
        -- Names are checked and written alike whatever the policy is; none is no binding.
        for _, policy in ipairs { "zigzag", "auto" } do
            t.policy = policy
            t.gqa.layouts = { "mirror", "zigzak" }
            assert.has_error(function() cplab.model(t) end,
                'model.gqa: unknown layout "zigzak"; did you mean "zigzag"?')
            t.gqa.layouts = {}
            assert.has_error(function() cplab.model(t) end,
                'model.gqa: layouts must name at least one layout, or be "any"')
        end
        t.gqa.layouts = "balanced@0.10"
        assert.same({ "balanced@0.1" }, cplab.model(t).bound_to.gqa)
        t.policy = "zigzag"
        t.gqa.layouts = { "zigzak" }
        assert.has_error(function() cplab.model(t) end,
            'model.gqa: unknown layout "zigzak"; did you mean "zigzag"?')
    end)

    it("needs the sizes of the kinds in its schedule", function()
        local t = fields { schedule = cplab.schedule.list { "gdn" } }
        t.gdn = nil
        assert.has_error(function() cplab.model(t) end,
            "model: the schedule G has gdn layers, but there is no field 'gdn'")
        t = fields()
        t.gqa.cp_mode = "ring"
        assert.has_error(function() cplab.model(t) end,
            'model.gqa: unknown cp_mode "ring"; there are gather, p2p, a2a, a2a+p2p')
    end)
end)

describe("the imbalance of attention", function()
    local LENGTHS = { 32, 16 }

    local function of(changes, stream, cp)
        local m = cplab.model(fields(changes))
        stream = stream or cplab.stream.thd { lengths = LENGTHS }
        local group = { cp = cp or 4, tp = 1 }
        local assignment = m:assignment(stream, group)
        return m:attention_imbalance(assignment, m:layouts(assignment, stream, group))
    end

    -- The most and the mean of pairs, query by query, where each rank holds 12 of 48 rows and
    -- sequences end `fewer` tokens earlier.
    local function counted(window, fewer)
        local work, total, position = { 0, 0, 0, 0 }, 0, 0
        for _, n in ipairs(LENGTHS) do
            for keys = 1, n do
                local seen = keys <= n - fewer and math.min(keys, window) or 0
                local rank = math.floor(position / 12) + 1
                work[rank], total, position = work[rank] + seen, total + seen, position + 1
            end
        end
        return math.max(unpack(work)) * 4 / total
    end

    local CONTIGUOUS = { "contiguous", "contiguous", "contiguous" }

    local function layers(...)
        return { policy = CONTIGUOUS, schedule = cplab.schedule.list { ... } }
    end

    it("is that of the pairs within the layer's window, of the worst layer", function()
        assert.equal(counted(100, 0), of(layers("gqa")))
        local narrow = { "gqa", window = 4 }
        assert.equal(counted(4, 0), of(layers(narrow)))
        assert.is_true(counted(100, 0) - counted(4, 0) > 0.3) -- a window left out is seen
        assert.equal(counted(100, 0), of(layers(narrow, "gqa")))
        local gqa = { heads = 2, kv_heads = 1, head_dim = 16, window = 4 }
        local model = layers("gqa")
        model.gqa = gqa
        assert.equal(counted(4, 0), of(model))
        assert.equal(1, of(layers "gdn"))
    end)

    it("counts the blocks of MTP, on their shorter sequences", function()
        local model = layers "gdn"
        model.mtp = { kind = "gqa" }
        assert.equal(counted(100, 1), of(model))
        assert.not_equal(counted(100, 0), of(model))
        model.mtp = { kind = { "gqa", window = 3 }, depth = 2 }
        assert.equal(math.max(counted(3, 1), counted(3, 2)), of(model))
        model.mtp = { kind = "gdn" }
        assert.equal(1, of(model))
        model = layers("gqa")
        model.mtp = { kind = { "gqa", cp_mode = "a2a" } }
        assert.equal(counted(100, 0), of(model))
    end)

    it("is that of any layout and stream that a depth may run in", function()
        for _, policy in ipairs { "zigzag", "mirror", "balanced", "native" } do
            local changes = { policy = policy, mtp = { kind = "gqa" } }
            -- Zigzag is not even where sequences end inside a block.
            assert.is_true(of(changes) > 1 and of(changes) < 1.2)
            assert.is_true(of(changes, cplab.stream.sbhd { seqlen = 32, batch = 2 }) > 1)
            assert.equal(1, of(changes, nil, 1))
        end
    end)
end)
