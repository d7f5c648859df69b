-- Words of the command lines of bench gqa, gdn and step.
local options = require "cplab.bench.compute_options"
local policies = require "cplab.policy"
local schedules = require "cplab.schedule"
local steps = require "cplab.bench.step_options"

local function tokens_of(chosen)
    local list = {}
    for i, case in ipairs(chosen.cases) do list[i] = case.tokens end
    return list
end

describe("options of the compute benches", function()
    it("have defaults for everything: the sizes that aims are named for", function()
        local chosen = assert(options.read("gqa", {}))
        assert.equal(2, #chosen.cases)
        for i, kv_heads in ipairs { 16, 2 } do
            local case = chosen.cases[i]
            assert.same({ 4096, 16, kv_heads, 128, 0, "f32", 1e-4 }, { case.tokens, case.heads,
                case.kv_heads, case.head_dim, case.window, case.dtype, case.bound })
            assert.is_nil(case.cp or case.layout)
        end
        local case = assert(options.read("gdn", {})).cases[1]
        assert.same({ 4096, 16, 32, 128, 128, 64 }, { case.tokens, case.key_heads,
            case.value_heads, case.key_dim, case.value_dim, case.chunk })
    end)

    it("have others on a device, which keep it busy, or which its emulator bears", function()
        local chosen = assert(options.read("gqa", { device = "cuda" }))
        local case = chosen.cases[1]
        assert.same({ 32768, "bf16", 128, 2 ^ -7, 8192, 20, "cuda", "cuda" }, { case.tokens,
            case.dtype, case.head_dim, case.bound, chosen.gemm, chosen.iters, case.device,
            chosen.device })
        case = assert(options.read("gdn", { device = "cuda-emulated", key_dim = 5 })).cases[1]
        assert.same({ 96, 5, 16, "f32" }, { case.tokens, case.key_dim, case.value_dim,
            case.dtype })
        assert.is_nil(options.read("gqa", { device = "cpu" }).device)
        chosen = assert(steps.read { device = "cuda-emulated", transport = "nccl" })
        assert.same({ 1, "zigzag", 2, 16, "nccl" }, { #chosen.cases, chosen.cases[1].policy,
            chosen.cases[1].cp, chosen.cases[1].tokens, chosen.transport })
    end)

    it("make a row of each combination", function()
        local chosen = options.read("gqa", { tokens = "8,16", dtype = "f64,f32",
            kv_heads = "4,2,1", heads = 4 })
        assert.equal(12, #chosen.cases)
        assert.same({ 1e-12, 1e-4 }, { chosen.cases[1].bound, chosen.cases[3].bound })
    end)

    it("double the tokens in a scan, and say which row follows which", function()
        local chosen = options.read("gdn", { tokens = "64", scan = true, dtype = "f64,f32" })
        assert.same({ 16, 32, 64, 16, 32, 64 }, tokens_of(chosen))
        local follows = {}
        for i, case in ipairs(chosen.cases) do follows[i] = case.follows or false end
        assert.same({ false, true, true, false, true, true }, follows)
    end)

    it("cut a layer in every way, or in those that are named", function()
        local chosen = options.read("gdn", { tokens = "64", cp = 4 })
        local modes = {}
        for i, case in ipairs(chosen.cases) do modes[i] = case.cp_mode end
        assert.same(schedules.cp_modes "gdn", modes)
        assert.equal(1, #options.read("gdn", { tokens = "64", cp = 4, cp_mode = "headwise" }).cases)
        assert.same({ 2048, "contiguous" }, { chosen.cases[1].model.hidden,
            chosen.cases[1].layout })
    end)

    for _, bad in ipairs {
        { "gqa", { heads = 6, kv_heads = "4" }, "6 heads are no multiple of 4 kv heads" },
        { "gdn", { value_heads = 6, key_heads = 4 },
            "6 value heads are no multiple of 4 key heads" },
        { "gqa", { window = 1 },
            "--window: of one key the gradients are 0, with which none compare" },
        { "gdn", { tokens = "8,1" },
            "--tokens: one alone has gradients of 0, with which none compare" },
        { "gdn", { chunk = 65 }, "--chunk takes 1 to 64, got 65" },
        { "gqa", { dtype = "f16" }, "--dtype: there is no f16; there are f64, f32" },
        { "gqa", { tokens = "" }, "--tokens: there are no numbers" },
        { "gqa", { tokens = "8,16", scan = true },
            "--scan takes one number of tokens, a multiple of 4 from 8 on, got '8,16'" },
        { "gqa", { hidden = 8 }, "--hidden is of the whole layer, and needs --cp" },
        { "gdn", { cp = 2000 }, "cp 2000 and tp 1 are more than 1024 ranks" },
        { "gqa", { cp = 4, tokens = "20" },
            "layout.zigzag: sequence 0 has 20 tokens, not a multiple of 2*cp = 8" },
    } do
        it("refuse: " .. bad[3], function()
            local chosen, message = options.read(bad[1], bad[2])
            assert.is_nil(chosen)
            assert.equal(("bench %s: %s"):format(bad[1], bad[3]), message)
        end)
    end

    it("refuse more ranks than mpirun started", function()
        local _, message = options.read("gdn", { cp = 4 }, 2)
        assert.equal("bench gdn: cp 4 and tp 1 need 4 ranks, but mpirun started 2 processes",
            message)
    end)

    it("make a row of a step for each policy and number of ranks", function()
        local chosen = assert(steps.read { tokens = "256" })
        assert.equal(#policies.names * 3, #chosen.cases)
        assert.same({ policies.names[1], 2, "qwen35_397b_proxy", "tiny", 1e-3 }, {
            chosen.cases[2].policy, chosen.cases[2].cp, chosen.cases[2].preset,
            chosen.cases[2].scale, chosen.cases[2].bound })
    end)

    for _, bad in ipairs {
        { { preset = "qwen" }, "^bench step: %-%-preset: there is no qwen" },
        { { policy = "zigzak" },
            '^bench step: %-%-policy: there is no zigzak; did you mean "zigzag"' },
        { { tokens = "100", cp = "3" },
            "^bench step: layout.zigzag: sequence 0 has 100 tokens, not a multiple of 2%*cp = 6$" },
        { { kv_heads = 3 }, "^bench step: [^\n]*heads[^\n]*$" },
        { { gdn_mode = "headwize" }, '^bench step: [^\n]*did you mean "headwise"' },
    } do
        it("refuse: " .. bad[2], function()
            local chosen, message = steps.read(bad[1])
            assert.is_nil(chosen)
            assert.truthy(message:find(bad[2]), message)
        end)
    end
end)
