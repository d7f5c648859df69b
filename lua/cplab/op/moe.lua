--- A mixture of experts, piece by piece: tokens choose experts, rows go to the slots of their
-- experts, and what the experts made of them comes back.
-- Letters: T tokens, E experts, k choices a token, N slots (one a choice, by expert, then by row),
-- D width. Experts, slots and rows count from 0; lists of integers are flat, row-major, and hold
-- -1 where a row has no choice.
-- @module cplab.op.moe
local args = require "cplab.check_args"
local call = require "cplab.op.call"
local clib = require "clib"
local ffi = clib.ffi

local M = {}

local ROUTE = { top_k = "integer", renormalise = "boolean?", spans = "list?", dprobs = "list?" }

local function integers_of(data, n)
    local list = {}
    for i = 1, n do list[i] = tonumber(data[i - 1]) end
    return list
end

-- Spans that are given as { { first row, rows }, ... }; all rows where they are not.
local function set_spans(p, dims, list)
    local spans = ffi.new("cpl_span[?]", math.max(list and #list or 1, 1))
    local done = 0
    for i, span in ipairs(list or { { 0, dims.T } }) do
        if type(span) ~= "table" or type(span[1]) ~= "number" or type(span[2]) ~= "number"
            or span[1] < done or span[2] < 0 or span[1] + span[2] > dims.T then
            call.fail(dims.who, "spans[%d] is no { first, rows } in order within T = %d", i,
                dims.T)
        end
        spans[i - 1].slot, spans[i - 1].length = span[1], span[2]
        done = span[1] + span[2]
    end
    p.spans, p.n_spans = dims:at(spans), list and #list or 1
end

-- Runs the forward; what backward needs stays in the struct.
local function route(who, logits, options)
    options = call.options(who, options, ROUTE)
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_moe_route"
    p.logits = dims:take("logits", logits, "T E")
    dims.k, dims.origin.k = options.top_k, "top_k"
    if dims.k < 1 or dims.k > dims.E then
        call.fail(who, "top_k = %d is not in 1 .. E = %d", dims.k, dims.E)
    end
    local probs, weights = dims:new_wide(dims.T, dims.E), dims:new_wide(dims.T, dims.k)
    local chosen, margin = dims:new_array("int32_t", dims.T * dims.k), dims:new_array("double", 1)
    p.probs, p.weights = dims:at(probs), dims:at(weights)
    p.chosen, p.margin = dims:at(chosen), dims:at(margin)
    set_spans(p, dims, options.spans)
    p.n_rows, p.experts, p.top_k = dims.T, dims.E, dims.k
    p.renormalise = options.renormalise ~= false
    dims:call("moe_route", p)
    return p, dims, { probs = probs, weights = weights, margin = margin[0],
        chosen = integers_of(chosen, dims.T * dims.k) }, options
end

--- Softmax over the experts, and the k largest: ties go to the lower index.
-- @tparam cplab.tensor logits [T, E]
-- @tparam table options top_k, renormalise (true: the chosen weights of a row sum to 1), spans
--   (list of { first row, rows }; rows outside choose nobody; all rows), device
-- @return weights [T, k], chosen (a list of T k experts), probs [T, E], margin (the least gap
--   between a last chosen logit and the next one)
function M.moe_route(logits, options)
    local _, _, r = route("op.moe_route", logits, options)
    return r.weights, r.chosen, r.probs, r.margin
end

--- The gradient of moe_route.
-- @tparam cplab.tensor logits [T, E]
-- @tparam cplab.tensor dweights [T, k]
-- @tparam table options those of the forward call; dprobs (a list of E numbers that the probs of
--   each routed row get besides)
-- @treturn cplab.tensor dlogits [T, E]
function M.moe_route_backward(logits, dweights, options)
    local forward, dims, _, given = route("op.moe_route_backward", logits, options)
    local p = ffi.new "cpl_moe_route_backward"
    p.probs, p.chosen = forward.probs, forward.chosen
    p.dweights = dims:take_wide("dweights", dweights, "T k")
    if given.dprobs then
        if #given.dprobs ~= dims.E then
            call.fail(dims.who, "dprobs has %d numbers, but E is %d", #given.dprobs, dims.E)
        end
        p.dprobs = dims:list("double", given.dprobs)
    end
    local dlogits = dims:new_like(logits)
    p.dlogits, p.n_rows, p.experts, p.top_k = dims:at(dlogits), dims.T, dims.E, dims.k
    p.renormalise = forward.renormalise
    dims:call("moe_route_backward", p)
    return dlogits
end

local function rows_of(who, name, list, top_k)
    if #list % top_k ~= 0 then
        call.fail(who, "%s has %d entries, not a multiple of top_k = %d", name, #list, top_k)
    end
    return #list / top_k
end

--- Sorts choices by expert, then by row.
-- @tparam {int,...} chosen T k experts; -1: none
-- @tparam table options experts, top_k, device
-- @return places (a list of T k slots; -1: none), offsets (a list of E + 1: where the slots of each
--   expert begin, and how many there are)
function M.moe_group(chosen, options)
    local who = "op.moe_group"
    options = call.options(who, options, { experts = "integer", top_k = "integer" })
    local dims = call.dims(who, options)
    if options.top_k < 1 then call.fail(who, "top_k = %d is not positive", options.top_k) end
    local p, n = ffi.new "cpl_moe_group", #chosen
    p.n_rows = rows_of(who, "chosen", chosen, options.top_k)
    for i = 1, n do
        if chosen[i] >= options.experts then
            call.fail(who, "chosen[%d] = %d is not below the %d experts", i, chosen[i],
                options.experts)
        end
    end
    p.chosen = dims:list("int32_t", chosen)
    local places = dims:new_array("int64_t", n)
    local offsets = dims:new_array("int64_t", options.experts + 1)
    p.places, p.offsets = dims:at(places), dims:at(offsets)
    p.experts, p.top_k = options.experts, options.top_k
    dims.dtype = "f64" -- the table; there are no numbers
    dims:call("moe_group", p)
    return integers_of(places, n), integers_of(offsets, options.experts + 1)
end

local function numbers_of(array, first, n)
    local list = {}
    for i = 1, n do list[i] = array[first + i - 1] end
    return list
end

--- How many rows chose each expert, and the sum of its probs over all rows.
-- @tparam cplab.tensor probs [T, E] of moe_route
-- @tparam {int,...} offsets E + 1, of moe_group
-- @tparam ?table options wide (false: true says that the probs are WIDE ones, f32, of a call of
--   bf16), device
-- @treturn {number,...} counts of rows
-- @treturn {number,...} sums of probs
function M.moe_load(probs, offsets, options)
    local who = "op.moe_load"
    local dims = call.dims(who, call.options(who, options, { wide = "boolean?" }))
    if options and options.wide then dims:set_wide() end
    local p = ffi.new "cpl_moe_load"
    p.probs = dims:take_wide("probs", probs, "T E")
    args.integers(who, "offsets", offsets, 0, nil)
    if #offsets ~= dims.E + 1 then
        call.fail(who, "offsets has %d entries, not one more than probs has experts, %d", #offsets,
            dims.E)
    end
    local load = dims:new_array("double", 2 * dims.E)
    p.offsets, p.load = dims:list("int64_t", offsets), dims:at(load)
    p.n_rows, p.experts = dims.T, dims.E
    dims:call("moe_load", p)
    return numbers_of(load, 0, dims.E), numbers_of(load, dims.E, dims.E)
end

local BALANCE = { top_k = "integer", coefficient = "number?" }

--- The loss that balances the load of experts, and what the probs of each routed row get of it.
-- @tparam {number,...} counts of moe_load, of all ranks
-- @tparam {number,...} sums of moe_load, of all ranks
-- @tparam table options top_k, coefficient (1), device
-- @treturn number loss
-- @treturn {number,...} dprobs, for moe_route_backward
function M.moe_balance(counts, sums, options)
    local who = "op.moe_balance"
    options = call.options(who, options, BALANCE)
    local dims = call.dims(who, options)
    args.value(who, "counts", counts, "list")
    args.value(who, "sums", sums, "list")
    if #counts ~= #sums then
        call.fail(who, "counts has %d entries, but sums has %d", #counts, #sums)
    end
    local both = {}
    for i, count in ipairs(counts) do both[i], both[#counts + i] = count, sums[i] end
    local p, loss = ffi.new "cpl_moe_balance", dims:new_array("double", 1)
    local dprobs = dims:new_array("double", #counts)
    p.load, p.loss, p.dprobs = dims:list("double", both), dims:at(loss), dims:at(dprobs)
    p.experts, p.top_k, p.coefficient = #counts, options.top_k, options.coefficient or 1
    dims.dtype = "f64" -- the table; there are no others
    dims:call("moe_balance", p)
    return loss[0], numbers_of(dprobs, 0, #counts)
end

-- The places as a C array, all below N, of T rows; sets N where it is not known.
local function take_places(dims, places, top_k)
    if type(top_k) ~= "number" or top_k < 1 then call.fail(dims.who, "top_k is not positive") end
    local rows, seen, n = rows_of(dims.who, "places", places, top_k), {}, 0
    for i, place in ipairs(places) do
        if place >= 0 then
            if seen[place] then
                call.fail(dims.who, "places[%d] = %d stands twice", i, place)
            end
            seen[place], n = true, n + 1
        end
    end
    for place in pairs(seen) do
        if place >= n then
            call.fail(dims.who, "place %d is not below the %d that are taken", place, n)
        end
    end
    if dims.T == nil then dims.T, dims.origin.T = rows, "places" end
    if dims.T ~= rows then
        call.fail(dims.who, "places are for %d rows, but %s has %d", rows, dims.origin.T, dims.T)
    end
    if dims.slots == nil then dims.slots, dims.origin.slots = n, "places" end
    if dims.slots ~= n then
        call.fail(dims.who, "places take %d slots, but %s has %d", n, dims.origin.slots,
            dims.slots)
    end
    return dims:list("int64_t", places)
end

local PLACED = { top_k = "integer" }

--- Rows to the slots of their experts.
-- @tparam cplab.tensor x [T, D]
-- @tparam {int,...} places of moe_group
-- @tparam table options top_k, device
-- @treturn cplab.tensor y [N, D]
function M.moe_dispatch(x, places, options)
    local who = "op.moe_dispatch"
    options = call.options(who, options, PLACED)
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_moe_dispatch"
    p.x = dims:take("x", x, "T D")
    p.places = take_places(dims, places, options.top_k)
    local y = dims:new(dims.slots, dims.D)
    p.y, p.n_rows, p.top_k, p.width = dims:at(y), dims.T, options.top_k, dims.D
    dims:call("moe_dispatch", p)
    return y
end

--- The gradient of moe_dispatch: the sum over a row's slots.
-- @tparam cplab.tensor dy [N, D]
-- @treturn cplab.tensor dx [T, D]
function M.moe_dispatch_backward(x, places, dy, options)
    local who = "op.moe_dispatch_backward"
    options = call.options(who, options, PLACED)
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_moe_combine"
    dims:take("x", x, "T D")
    p.h = dims:take("dy", dy, "slots D")
    p.places = take_places(dims, places, options.top_k)
    local dx = dims:new_like(x)
    p.y, p.n_rows, p.top_k, p.width = dims:at(dx), dims.T, options.top_k, dims.D
    dims:call("moe_combine", p)
    return dx
end

local function combine_parameters(who, h, weights, places, options)
    options = call.options(who, options, { shared = "any?", shared_gate = "any?" })
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_moe_combine"
    p.h, p.weights = dims:take("h", h, "slots D"), dims:take_wide("weights", weights, "T k")
    p.shared = dims:take_if("shared", options.shared, "T D")
    p.shared_gate = dims:take_if("shared_gate", options.shared_gate, "T")
    if (options.shared == nil) ~= (options.shared_gate == nil) then
        call.fail(who, "shared and shared_gate go together")
    end
    p.places = take_places(dims, places, dims.k)
    p.n_rows, p.top_k, p.width = dims.T, dims.k, dims.D
    return p, dims, options
end

--- What the experts made of the rows, weighted, plus the shared expert's part.
-- @tparam cplab.tensor h [N, D]
-- @tparam cplab.tensor weights [T, k]
-- @tparam {int,...} places of moe_group
-- @tparam ?table options shared [T, D] with shared_gate [T] (y gets sigmoid(gate) * shared), device
-- @treturn cplab.tensor y [T, D]; 0 in rows without places
function M.moe_combine(h, weights, places, options)
    local p, dims = combine_parameters("op.moe_combine", h, weights, places, options)
    local y = dims:new(dims.T, dims.D)
    p.y = dims:at(y)
    dims:call("moe_combine", p)
    return y
end

--- The gradients of moe_combine.
-- @tparam cplab.tensor dy [T, D]
-- @return dh, dweights, dshared, dshared_gate (nil without a shared expert)
function M.moe_combine_backward(h, weights, places, dy, options)
    local forward, dims, given = combine_parameters("op.moe_combine_backward", h, weights, places,
        options)
    local p = ffi.new "cpl_moe_combine_backward"
    p.forward, p.dy = forward, dims:take("dy", dy, "T D")
    local dh, dweights = dims:new_like(h), dims:new_like(weights)
    local dshared = given.shared and dims:new_like(given.shared)
    local dgate = given.shared and dims:new_like(given.shared_gate)
    p.dh, p.dweights = dims:at(dh), dims:at(dweights)
    if dshared then p.dshared, p.dshared_gate = dims:at(dshared), dims:at(dgate) end
    dims:call("moe_combine_backward", p)
    return dh, dweights, dshared, dgate
end

return M
