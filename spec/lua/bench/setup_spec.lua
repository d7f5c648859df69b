local ranks = require "spec.support.ranks"

-- Counts the steps of a row, and the copies that it is compared with.
local function count(comm, words)
    local options = assert(require("cplab.bench.options").read(words))
    local setup = assert(require("cplab.bench.setup").new(comm,
        require("cplab.bench.cases").make(options)[1]))
    local bytes = 0
    for _, pair in ipairs(setup.copies) do
        bytes = bytes + tonumber(require("clib").C.cpl_tensor_bytes(pair.dst.tensor))
        assert(pair.dst ~= pair.src)
    end
    local first = setup.copies[1]
    return { steps = #setup.steps, bytes = bytes,
        restores = first.dst == setup.start and first.src == setup.kept }
end

describe("what a row of a bench needs", function()
    for _, in_place in ipairs { false, true } do
        for _, pass in ipairs { "forward", "adjoint", "round_trip" } do
            it(("has a copy for each step: %s, in place: %s"):format(pass, tostring(in_place)),
                function()
                    local steps = pass == "round_trip" and 2 or 1
                    for _, result in ipairs(ranks.run(2, count, { cp = 2, min_bytes = "8K",
                        max_bytes = "8K", row_bytes = 64, from = "zigzag", method = "copy",
                        in_place = in_place, [pass] = true })) do
                        assert.same({ steps = steps, bytes = steps * 8192, restores = in_place },
                            result)
                    end
                end)
        end
    end
end)
