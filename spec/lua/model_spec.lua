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
