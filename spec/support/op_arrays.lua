--- Arrays of ops that several specs of kernels on devices make, each of memory of its own kind.
-- @module spec.support.op_arrays
local M = {}

--- Of the gates of the delta rule, with a and b in rows of a stride.
-- @tparam number n rows
-- @tparam number heads
-- @tparam number stride
-- @tparam table make rows() and wide(count), inputs; out_rows() and out_wide(count), results
-- @tparam boolean is_back
-- @treturn table arrays and numbers of a case of spec.support.cuda_compute
function M.gates(n, heads, stride, make, is_back)
    local arrays = { a = make.rows(), b = make.rows(), a_log = make.wide(heads),
        dt_bias = make.wide(heads) }
    local numbers = { n_rows = n, heads = heads, a_stride = stride, b_stride = stride }
    if is_back then
        arrays.dg, arrays.dbeta = make.wide(n * heads), make.wide(n * heads)
        arrays.da, arrays.db = make.out_rows(), make.out_rows()
        arrays.grad_a_log, arrays.grad_dt_bias = make.wide(heads), make.wide(heads)
        numbers.da_stride, numbers.db_stride = stride, stride
    else
        arrays.g, arrays.beta = make.out_wide(n * heads), make.out_wide(n * heads)
    end
    return { arrays = arrays, numbers = numbers }
end

--- Log-sum-exps of one side of a merge: of three heads one has seen no key on the side b, one on
-- neither side.
-- @tparam function random
-- @tparam boolean of_b
-- @treturn function(i)
function M.lse(random, of_b)
    return function(i)
        if i % 3 == 1 and of_b or i % 3 == 2 then return -1 / 0 end
        return 3 * random()
    end
end

return M
