-- A user chooses the method: of a model's conversions, as a sweep axis say, and of lab:convert.
local counts = require "spec.exchange.counts"
local labs = require "spec.support.labs"

local on = counts.on(it)

local STREAM = { lengths = { 32, 16 }, real = { 30, 13 } }

local function step(method, changes)
    local model = labs.model { policy = "mirror", exchange = method and { method = method } }
    for name, value in pairs(changes or {}) do model[name] = value end
    return labs.run { stream = STREAM, cp = 4, model = model, calls = { { "step",
        { backward = true, reference = true, trace = true } } } }
end

describe("a model's exchange", function()
    local expected
    for _, method in ipairs { "copy", "direct", "packed", "alltoallv", "auto" } do
        on(4)(("by %s gives the same bits, counts and parity"):format(method), function()
            local m = assert(step(method)).answers[1]
            expected = expected or assert(step()).answers[1]
            for _, name in ipairs { "loss", "parity_fwd", "parity_grad", "wrong_rows",
                "conversions_fwd", "conversions_bwd", "conversion_bytes_fwd",
                "conversion_messages_fwd", "routes_built" } do
                assert.equal(expected[name], m[name], name)
            end
            assert.is_true(m.parity_grad <= 1e-12)
            assert.is_true(m.conversion_bytes_fwd > 0)
        end)
    end

    on(4)("is lazy too, where routes are", function()
        local m = assert(step("packed", { routes = "lazy" })).answers[1]
        assert.is_true(m.parity_grad <= 1e-12 and m.routes_built_in_step > 0)
    end)

    on(4)("must be a method that there is, and that can do the conversion", function()
        local _, message = step "mail"
        assert.matches('model.exchange: unknown method "mail"', message, 1, true)
        _, message = step "composed"
        assert.matches('method "composed" needs tp > 1', message, 1, true)
        local model = labs.model { exchange = { methods = "copy" } }
        _, message = labs.run { stream = STREAM, cp = 1, model = model, calls = {} }
        assert.matches('unknown field "methods"; did you mean "method"?', message, 1, true)
    end)
end)

describe("lab:convert", function()
    local function convert(options)
        local result, message = labs.run { stream = STREAM, cp = 4, model = labs.model(),
            calls = { { "convert_and_gather", "zigzag", "contiguous", options } } }
        return result and result.answers[1], message
    end

    on(4)("takes a method, and moves the same rows by each", function()
        local rows = assert(convert())
        assert.equal(2 * 48, #rows)
        for _, method in ipairs { "copy", "direct", "packed", "alltoallv", "auto" } do
            assert.same(rows, convert { method = method })
        end
    end)

    on(4)("refuses a method that there is not, and unknown options", function()
        assert.matches('no method "mail"', select(2, convert { method = "mail" }), 1, true)
        assert.matches('unknown field "way"', select(2, convert { way = "copy" }), 1, true)
    end)
end)
