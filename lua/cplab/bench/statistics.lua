--- What stands for many measurements: nothing is averaged, nothing is left out.
-- Quantiles are by nearest rank: the value of a sorted list of n at place ceil(q * n), so each
-- of them was really measured. The median of an even number is thus the lower of the middle two,
-- and p99 of fewer than 100 is the largest.
-- @module cplab.bench.statistics
local M = {}

--- The value at or below which the part q of a list lies.
-- @tparam {number,...} list not empty
-- @tparam number q in 0 < q <= 1
-- @treturn number
function M.quantile(list, q)
    local sorted = {}
    for i, value in ipairs(list) do sorted[i] = value end
    table.sort(sorted)
    return sorted[math.max(1, math.ceil(q * #sorted))]
end

--- Least, median and p99 of a list.
-- @tparam {number,...} list not empty
-- @treturn table min, median, p99
function M.summary(list)
    return {
        min = M.quantile(list, 1 / #list), median = M.quantile(list, 0.5),
        p99 = M.quantile(list, 0.99),
    }
end

return M
