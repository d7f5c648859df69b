-- What each kind of layer declares about layouts.
local clib = require "clib"
local contract = require "cplab.contract"
local cplab = require "cplab"
local message = require "spec.support.message"
local schedules = require "cplab.schedule"

local function model(changes)
    local t = {
        schedule = cplab.schedule.list { "gdn", "gqa", { "gqa", cp_mode = "a2a" },
            { "gdn", cp_mode = "headwise" } },
        policy = "contiguous", hidden = 8, vocab = 16,
        gqa = { heads = 2, kv_heads = 1, head_dim = 16 },
        gdn = { key_heads = 1, value_heads = 2, key_dim = 4, value_dim = 4 },
    }
    for name, value in pairs(changes or {}) do t[name] = value end
    return t
end

describe("the contract of a layer", function()
    it("is balanced work for attention, contiguous for chunkwise GDN, else anything", function()
        for _, kind in ipairs { "gqa", "mla" } do
            for _, mode in ipairs { "gather", "p2p", "a2a+p2p" } do
                assert.same({ "zigzag", "mirror", "balanced" }, contract.accepts(kind, mode))
                for _, layout in ipairs { "zigzag", "mirror", "balanced", "balanced@0.1" } do
                    assert.is_true(contract.takes(kind, mode, layout))
                end
                for _, layout in ipairs { "contiguous", "snake", "striped" } do
                    assert.is_false(contract.takes(kind, mode, layout))
                    assert.is_true(contract.takes(kind, mode, layout, "any"))
                end
            end
            assert.is_true(contract.is_agnostic(kind, "a2a"))
        end
        assert.same({ "contiguous" }, contract.accepts("gdn", "chunkwise"))
        assert.is_false(contract.takes("gdn", "chunkwise", "zigzag"))
        assert.is_true(contract.is_agnostic("gdn", "headwise"))
        for _, kind in ipairs { "mlp", "moe", "norm", "embedding", "linear" } do
            assert.equal("any", contract.accepts(kind))
        end
        assert.equal("zigzag", contract.preferred("gqa"))
        assert.equal("contiguous", contract.preferred("gdn"))
        assert.is_nil(contract.preferred "moe")
    end)

    it("[T-41] is declared for every kind and mode; unknown ones raise, never pass", function()
        for _, kind in ipairs(schedules.kinds) do
            for _, mode in ipairs(schedules.cp_modes(kind)) do
                assert.equal(schedules.takes_any_layout(kind, mode),
                    contract.is_agnostic(kind, mode))
            end
        end
        for _, kind in ipairs(contract.kinds) do
            assert.is_true(pcall(function() return clib.C["cpl_layer_" .. kind] end), kind)
        end
        assert.equal('contract: unknown layer kind "gdn2"; did you mean "gdn"?',
            message(contract.accepts, "gdn2"))
        assert.equal("contract: unknown cp_mode of a gdn layer \"ring\"; there are chunkwise, "
            .. "headwise",
            message(contract.is_agnostic, "gdn", "ring"))
        assert.truthy(message(contract.takes, "kda", nil, "contiguous"):find "unknown layer kind")
        assert.truthy(message(cplab.schedule.list, { "mamba" }):find 'unknown layer kind "mamba"')
        assert.truthy(message(contract.takes, "gqa", nil, "zigzak"):find 'did you mean "zigzag"')
    end)

    it("gives way to what the user asked for, which then binds", function()
        assert.same({ "snake" }, contract.accepts("gdn", "chunkwise", "snake"))
        assert.is_false(contract.takes("gdn", "chunkwise", "contiguous", { "snake" }))
        assert.is_false(contract.takes("gqa", nil, "balanced@0.2", { "balanced@0.1" }))
        assert.equal("layers.3.gqa: accepts zigzag, mirror, balanced, got contiguous",
            message(contract.demand, "layers.3.gqa", "gqa", "p2p", "contiguous"))
        contract.demand("layers.3.gqa", "gqa", "p2p", "contiguous", "any")
        assert.equal('contract: layouts[2]: unknown layout "mirrow"; did you mean "mirror"?',
            message(contract.accepts, "gqa", "p2p", { "zigzag", "mirrow" }))
    end)

    it("takes layouts as a name or a list of some, tolerances written in any way", function()
        assert.is_true(contract.takes("gqa", nil, "balanced@0.1", { "balanced@0.10" }))
        assert.same({ "balanced@0.1" }, contract.accepts("gqa", nil, "balanced@1e-1"))
        contract.accepts("gdn", "chunkwise")[1] = "snake" -- a copy
        assert.same({ "contiguous" }, contract.accepts("gdn", "chunkwise"))
        local t = model()
        t.policy = { "contiguous", "balanced@0.1", "contiguous" }
        t.gqa.layouts = "balanced@0.10"
        assert.same({ "balanced@0.1" }, cplab.model(t):accepts(2))
        assert.equal('contract: layouts names no layout; "any" stands for every one',
            message(contract.preferred, "gqa", nil, {}))
        assert.equal("contract: layouts must be a list (got a table)",
            message(contract.takes, "gqa", nil, "zigzag", { only = "zigzag" }))
    end)

    it("knows no cp_mode of what is no mixer", function()
        assert.equal('contract: layers of kind mlp have no cp_mode (got "p2p")',
            message(contract.accepts, "mlp", "p2p"))
        assert.equal("contract: who must be a string (got nil)",
            message(contract.demand, nil, "gqa", nil, "contiguous"))
    end)

    it("is that of each layer of a model", function()
        local m = cplab.model(model())
        assert.same({ { "contiguous" }, { "zigzag", "mirror", "balanced" }, "any", "any" },
            { m:accepts(1), m:accepts(2), m:accepts(3), m:accepts(4) })
        assert.equal("any", m:accepts(1, "headwise"))
        local t = model { policy = "native" }
        t.gdn.layouts = "any"
        assert.equal("any", cplab.model(t):accepts(1))
    end)

    it("binds what the planner chooses", function()
        local t = model()
        t.gdn.layouts = "contiguous"
        local auto = cplab.model(t)
        auto.policy = { name = "auto", is_auto = true }
        local function assigned(mixer)
            local kept = package.loaded["cplab.planner"]
            local home = { live = "contiguous" }
            package.loaded["cplab.planner"] = { assign = function()
                return { entry = "contiguous", exit = "contiguous", layers = { { mixer = mixer,
                    live = "contiguous" }, home, home, home } }
            end }
            local ok, got = pcall(auto.assignment, auto, nil, { cp = 2, tp = 1 })
            package.loaded["cplab.planner"] = kept
            return ok and got.layers[1].mixer or got:gsub("^[^:]+:%d+: ", "")
        end
        assert.equal("contiguous", (assigned "contiguous"))
        assert.equal("model.gdn: runs in zigzag, which is not among its layouts (contiguous)",
            (assigned "zigzag"))
    end)

    it("does not forbid what a policy or three layouts ask for; `layouts` does", function()
        for _, policy in ipairs { "native", { "contiguous", "contiguous", "contiguous" },
            { "zigzag", "snake", "striped" } } do
            assert.is_true(pcall(cplab.model, model { policy = policy }))
        end
        local t = model()
        t.gdn.layouts = { "contiguous" }
        local bound = cplab.model(t)
        assert.equal("model.gdn: runs in zigzag, which is not among its layouts (contiguous)",
            message(bound.with, bound, { policy = "native" }))
        assert.equal("mirror", bound:with({ policy = "mirror" }).policy.name)
    end)
end)
