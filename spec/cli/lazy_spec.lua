-- Lazy routes are built inside steps: an experiment may want their cost, so it is said once.
local command = require "spec.cli.command"

local SCRIPT = [[
local cplab = require "cplab"
return cplab.experiment {
  name = "lazy", sweep = { cp = { 2, 4 } },
  stream = function() return cplab.stream.thd { lengths = { 32, 16 } } end,
  model = function()
    return cplab.model {
      schedule = cplab.schedule.ratio("1:1", 2), policy = "zigzag", routes = "lazy",
      hidden = 8, vocab = 16, gqa = { heads = 2, kv_heads = 1, head_dim = 8 },
      gdn = { key_heads = 1, value_heads = 2, key_dim = 4, value_dim = 4 },
    }
  end,
  run = function(lab)
    local m = lab:step { iters = 2, backward = true }
    lab:check("routes_built_in_step", m.routes_built_in_step, { equals = 1 })
  end,
}
]]

describe("a model with lazy routes", function()
    it("runs, counts the routes of a step, and warns once in a sweep", function()
        local folder = command.folder()
        finally(function() command.remove(folder) end)
        local result = command.cplab { "run", command.write(folder .. "/lazy.lua", SCRIPT) }
        assert.equal(0, result.status, result.err)
        local _, n = result.err:gsub("cplab: routes are built inside steps, because the model "
            .. 'says routes = "lazy"\n', "")
        assert.equal(1, n)
    end)
end)
