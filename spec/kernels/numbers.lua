-- What the kernel specs share: reproducible inputs, and how far two lists of numbers are apart.
local bit = require "bit"
local ffi = require "ffi"
local tensor = require "cplab.tensor"

local M = {}

-- Calls visit(i, value) for n values in [lo, hi): the generator of golden/ops.json (a 64-bit
-- linear congruence, the upper 53 bits).
function M.each(seed, j, n, lo, hi, visit)
    local s = ffi.cast("uint64_t", seed * 100 + j)
    for i = 1, n do
        s = s * 6364136223846793005ULL + 1442695040888963407ULL
        local u = tonumber(bit.rshift(s, 11)) * 2 ^ -53
        visit(i, lo + (hi - lo) * u)
    end
end

function M.list(seed, j, n, lo, hi)
    local list = {}
    M.each(seed, j, n, lo, hi, function(i, x) list[i] = x end)
    return list
end

local function count(shape)
    local n = 1
    for _, size in ipairs(shape) do n = n * size end
    return n
end

-- A tensor of reproducible numbers.
function M.tensor(seed, j, shape, lo, hi, dtype)
    return tensor.from(M.list(seed, j, count(shape), lo or -1, hi or 1), shape, dtype or "f64")
end

-- The largest magnitude of a list.
function M.largest(list)
    local largest = 0
    for _, x in ipairs(list) do largest = math.max(largest, math.abs(x)) end
    return largest
end

-- The largest difference over the largest expected magnitude; inf for a NaN or other counts.
-- Equal infinities do not differ; where all is 0, only 0 will do.
function M.error(actual, expected)
    if #actual ~= #expected then return math.huge end
    local difference, largest = 0, 0
    for i = 1, #expected do
        if actual[i] ~= expected[i] then
            local d = math.abs(actual[i] - expected[i])
            if d ~= d then return math.huge end
            difference = math.max(difference, d)
        end
        if math.abs(expected[i]) < math.huge then
            largest = math.max(largest, math.abs(expected[i]))
        end
    end
    return difference == 0 and 0 or difference / largest
end

-- Fails unless the error is within the bound. Tensors or lists.
function M.close(name, actual, expected, bound)
    actual = actual.totable and actual:totable() or actual
    expected = expected.totable and expected:totable() or expected
    local e = M.error(actual, expected)
    if e > bound then
        error(("%s: error %.3g, bound %.3g"):format(name, e, bound), 2)
    end
end

-- Fails if they are close: a negative control.
function M.far(name, actual, expected, bound)
    actual = actual.totable and actual:totable() or actual
    expected = expected.totable and expected:totable() or expected
    local e = M.error(actual, expected)
    if e <= bound then
        error(("%s: error %.3g, expected more than %.3g"):format(name, e, bound), 2)
    end
end

-- Fails unless every number is finite.
function M.finite(name, t)
    for i, x in ipairs(t:totable()) do
        if x - x ~= 0 then error(("%s: number %d is %s"):format(name, i, x), 2) end
    end
end

-- Rows first .. first + n - 1 of a tensor, as a tensor.
function M.rows(t, first, n)
    local shape, width = t:shape(), 1
    for i = 2, #shape do width = width * shape[i] end
    local list, part = t:totable(), {}
    for i = 1, n * width do part[i] = list[first * width + i] end
    shape[1] = n
    return tensor.from(part, shape, t:dtype())
end

return M
