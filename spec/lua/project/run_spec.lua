-- luacheck: globals io.stdout
-- What `project` makes of its parts' verdicts. Claims and validations are stand-ins.
local project = require "cplab.project"

describe("the command project", function()
    local kept, out

    local function stand_in(name, module)
        kept[name] = kept[name] or package.loaded[name] or false
        package.loaded[name] = module
    end

    local function claims(verdict)
        stand_in("cplab.claims", { rows = function()
            return { { name = "a claim", source = "s", labels = {}, published = {},
                verdict = verdict, unknown = "none" } }
        end })
    end

    local function run(arguments)
        local stdout = io.stdout
        io.stdout = { write = function(_, ...) out = out .. table.concat { ... } end }
        local ok, status, sentence = pcall(project.run, arguments)
        io.stdout = stdout
        assert(ok, status)
        return status, sentence
    end

    before_each(function() kept, out = {}, "" end)
    after_each(function()
        for name, module in pairs(kept) do package.loaded[name] = module or nil end
    end)

    it("fails where a claim is off, after all were printed", function()
        claims "off"
        assert.same({ 1, "project: claim 'a claim' is not reproduced" }, { run { claims = true } })
        assert.truthy(out:find "1 claims: 0 reproduced, 1 off, 0 open")
        claims "reproduced"
        assert.same({ 0 }, { run { claims = true } })
    end)

    it("validates and then recomputes claims; either fails it", function()
        local verdict
        stand_in("cplab.project.validate", { run = function() return unpack(verdict) end })
        for _, case in ipairs {
            { { 0 }, "open", 0 },
            { { 1, "misses" }, "reproduced", 1, "misses" },
            { { 0 }, "off", 1, "project: claim 'a claim' is not reproduced" },
        } do
            verdict = case[1]
            claims(case[2])
            assert.same({ case[3], case[4] }, { run { validate = true } })
        end
        assert.truthy(out:find "claim")
    end)
end)
