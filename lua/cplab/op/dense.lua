--- Matrix products, rows by lists, table look-ups and the loss.
-- @module cplab.op.dense
local args = require "cplab.check_args"
local call = require "cplab.op.call"
local tensor = require "cplab.tensor"
local ffi = require("clib").ffi

local M = {}

-- The rows and columns of a matrix, or of each of a batch.
local function sizes(t)
    local shape = t:shape()
    return shape[#shape - 1], shape[#shape]
end

local function product(dims, a, transpose_a, b, transpose_b, alpha, c)
    local p = ffi.new "cpl_matmul"
    local a_rows, a_columns = sizes(a)
    local b_rows, b_columns = sizes(b)
    local m, n = sizes(c)
    p.a, p.b, p.c = dims:at(a), dims:at(b), dims:at(c)
    p.m, p.n, p.k = m, n, transpose_a and a_rows or a_columns
    p.lda, p.ldb, p.ldc = math.max(a_columns, 1), math.max(b_columns, 1), math.max(n, 1)
    p.transpose_a, p.transpose_b, p.alpha = transpose_a, transpose_b, alpha
    p.wide_c = c:dtype() ~= a:dtype()
    p.batch = dims.batch or 0
    p.a_step, p.b_step, p.c_step = a_rows * a_columns, b_rows * b_columns, m * n
    if dims.batch ~= 0 then dims:call("matmul", p) end
    return c
end

local function is_batch(t)
    return tensor.is_tensor(t) and #t:shape() == 3
end

local function matmul_dims(who, a, b, options)
    options = call.options(who, options, { transpose_a = "boolean?", transpose_b = "boolean?",
        alpha = "number?", wide = "boolean?" })
    local dims = call.dims(who, options)
    local batch = is_batch(a) and "batch " or ""
    dims:take("a", a, batch .. (options.transpose_a and "k m" or "m k"))
    dims:take("b", b, batch .. (options.transpose_b and "n k" or "k n"))
    return dims, options.transpose_a or false, options.transpose_b or false, options.alpha or 1
end

-- A new tensor of a batch of matrices, or of one.
local function new_matrix(dims, new, m, n)
    if dims.batch then return new(dims, dims.batch, m, n) end
    return new(dims, m, n)
end

--- c = alpha op(a) op(b), where op transposes or not; of each pair of a batch.
-- @tparam cplab.tensor a [m, k], or [k, m] with transpose_a; or [batch, m, k]
-- @tparam cplab.tensor b [k, n], or [n, k] with transpose_b; or [batch, k, n]
-- @tparam ?table options transpose_a, transpose_b (false), alpha (1), wide (false: true makes c
--   WIDE, f32 of bf16), device
-- @treturn cplab.tensor c [m, n], or [batch, m, n]
function M.matmul(a, b, options)
    local dims, transpose_a, transpose_b, alpha = matmul_dims("op.matmul", a, b, options)
    local c = new_matrix(dims, options and options.wide and dims.new_wide or dims.new, dims.m,
        dims.n)
    return product(dims, a, transpose_a, b, transpose_b, alpha, c)
end

--- The gradients of matmul.
-- @return da, db
function M.matmul_backward(a, b, dc, options)
    local dims, transpose_a, transpose_b, alpha = matmul_dims("op.matmul_backward", a, b, options)
    dims:take("dc", dc, is_batch(a) and "batch m n" or "m n")
    local da, db = dims:new_like(a), dims:new_like(b)
    if transpose_a then
        product(dims, b, transpose_b, dc, true, alpha, da)
    else
        product(dims, dc, false, b, not transpose_b, alpha, da)
    end
    if transpose_b then
        product(dims, dc, true, a, transpose_a, alpha, db)
    else
        product(dims, a, not transpose_a, dc, false, alpha, db)
    end
    return da, db
end

local function grouped(who, x, w, offsets, options, types)
    options = call.options(who, options, types)
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_grouped_matmul"
    p.x, p.w = dims:take("x", x, "N D"), dims:take("w", w, "G F D")
    args.integers(who, "offsets", offsets, 0, dims.N)
    if #offsets ~= dims.G + 1 then
        call.fail(who, "offsets has %d entries, not one more than w has groups, %d", #offsets,
            dims.G)
    end
    for i = 2, #offsets do
        if offsets[i] < offsets[i - 1] then
            call.fail(who, "offsets[%d] = %d comes after %d", i, offsets[i], offsets[i - 1])
        end
    end
    p.offsets, p.groups, p.max_rows = dims:list("int64_t", offsets), dims.G, dims.N
    p["in"], p.out = dims.D, dims.F
    p.x_stride, p.y_stride, p.w_stride, p.w_step = dims.D, dims.F, dims.D, dims.F * dims.D
    return p, dims, options
end

--- Products of groups of rows with a matrix each: y[i] = x[i] w[e]' for the rows i of group e.
-- @tparam cplab.tensor x [N, D]
-- @tparam cplab.tensor w [G, F, D]
-- @tparam {int,...} offsets G + 1 rows: group e has rows offsets[e] .. offsets[e + 1] - 1, counted
--   from 0
-- @tparam ?table options device
-- @treturn cplab.tensor y [N, F]; NaN in rows of no group
function M.grouped_matmul(x, w, offsets, options)
    local p, dims = grouped("op.grouped_matmul", x, w, offsets, options, {})
    local y = dims:new(dims.N, dims.F)
    p.y = dims:at(y)
    dims:call("grouped_matmul", p)
    return y
end

--- The gradients of grouped_matmul.
-- @tparam cplab.tensor dy [N, F]
-- @tparam ?table options dx [N, D] (what the first gradient is added to), device
-- @return dx (NaN in rows of no group, or what was given), dw
function M.grouped_matmul_backward(x, w, offsets, dy, options)
    local forward, dims, given = grouped("op.grouped_matmul_backward", x, w, offsets, options,
        { dx = "any?" })
    local p = ffi.new "cpl_grouped_matmul_backward"
    p.forward, p.dy = forward, dims:take("dy", dy, "N F")
    dims:take_if("dx", given.dx, "N D")
    local dx = given.dx and dims:copy(given.dx) or dims:new_like(x)
    local dw = dims:zeros(dims.G, dims.F, dims.D)
    p.dx, p.grad_w, p.accumulate = dims:at(dx), dims:at(dw), given.dx ~= nil
    p.dy_stride, p.dx_stride = dims.F, dims.D
    dims:call("grouped_matmul_backward", p)
    return dx, dw
end

-- A list of row numbers, or nil for "as they stand".
local function take_rows(dims, name, list, n)
    return list and dims:indices(name, list, n) or nil
end

--- Rows by lists: y[to[i]] = x[from[i]], or += it.
-- @tparam cplab.tensor x [N, D]
-- @tparam cplab.tensor y [M, D], what stands there before
-- @tparam ?table options from, to (lists of row numbers from 0; without one: 0, 1, 2, ...; -1 in
--   from: a row of zeros; -1 in to: none is moved; no other stands twice in to), add (false), wide
--   (false: true says that the numbers are WIDE ones, f32, of a call of bf16), device
-- @treturn cplab.tensor a new y
function M.move_rows(x, y, options)
    local who = "op.move_rows"
    options = call.options(who, options, { from = "list?", to = "list?", add = "boolean?",
        wide = "boolean?" })
    local dims = call.dims(who, options)
    if options.wide then dims:set_wide() end
    local p = ffi.new "cpl_move_rows"
    p.x = dims:take("x", x, "N D", options.wide)
    dims:take("y", y, "M D", options.wide)
    p.from = take_rows(dims, "from", options.from, dims.N)
    p.to = take_rows(dims, "to", options.to, dims.M)
    dims:check_each_once("to", options.to or {})
    p.n = dims.entries or math.min(dims.N, dims.M)
    if not options.from and p.n > dims.N or not options.to and p.n > dims.M then
        call.fail(who, "%d rows do not fit x of %d and y of %d", tonumber(p.n), dims.N, dims.M)
    end
    local moved = dims:copy(y)
    p.y, p.width, p.x_stride, p.y_stride = dims:at(moved), dims.D, dims.D, dims.D
    p.add, p.wide = options.add or false, dims.is_wide
    dims:call("move_rows", p)
    return moved
end

local function check_tokens(who, name, tokens, vocab)
    for i = 1, #tokens do
        if tokens[i] >= vocab then
            call.fail(who, "%s[%d] = %d is not below the vocabulary of %d", name, i, tokens[i],
                vocab)
        end
    end
end

--- Rows of a table; a token < 0 gives a row of zeros.
-- @tparam cplab.tensor embedding_table [vocab, D]
-- @tparam {int,...} tokens T of them, counted from 0
-- @tparam ?table options device
-- @treturn cplab.tensor [T, D]
function M.embedding(embedding_table, tokens, options)
    local who = "op.embedding"
    local dims = call.dims(who, call.options(who, options, {}))
    local p = ffi.new "cpl_embedding"
    p.table = dims:take("table", embedding_table, "vocab D")
    local ids = dims:integers("tokens", tokens, "int32_t")
    check_tokens(who, "tokens", tokens, dims.vocab)
    local y = dims:new(dims.T, dims.D)
    p.tokens, p.y, p.n_rows, p.width = ids, dims:at(y), dims.T, dims.D
    dims:call("embedding", p)
    return y
end

--- The gradient of embedding.
-- @treturn cplab.tensor dtable [vocab, D]
function M.embedding_backward(embedding_table, tokens, dy, options)
    local who = "op.embedding_backward"
    local dims = call.dims(who, call.options(who, options, {}))
    local p = ffi.new "cpl_embedding_backward"
    dims:take("table", embedding_table, "vocab D")
    p.dy = dims:take("dy", dy, "T D")
    local ids = dims:integers("tokens", tokens, "int32_t")
    check_tokens(who, "tokens", tokens, dims.vocab)
    local dtable = dims:zeros(dims.vocab, dims.D)
    p.tokens, p.grad_table, p.n_rows, p.width = ids, dims:at(dtable), dims.T, dims.D
    dims:call("embedding_backward", p)
    return dtable
end

local function cross_entropy(who, logits, labels, options)
    options = call.options(who, options, { grad_scale = "number?" })
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_cross_entropy"
    p.logits = dims:take("logits", logits, "T vocab")
    local ids, loss = dims:integers("labels", labels, "int32_t"), dims:new_array("double", 1)
    check_tokens(who, "labels", labels, dims.vocab)
    local dlogits = dims:new_like(logits)
    p.labels, p.dlogits, p.loss_sum = ids, dims:at(dlogits), dims:at(loss)
    p.n_rows, p.vocab, p.grad_scale = dims.T, dims.vocab, options.grad_scale or 1
    dims:call_with_workspace("cross_entropy", p)
    return loss[0], dlogits
end

--- Softmax cross-entropy, summed over the rows whose label is >= 0.
-- @tparam cplab.tensor logits [T, vocab]
-- @tparam {int,...} labels T of them, counted from 0; < 0: none
-- @tparam ?table options grad_scale (1), device
-- @return the sum (a number), and its gradient times grad_scale
function M.cross_entropy(logits, labels, options)
    return cross_entropy("op.cross_entropy", logits, labels, options)
end

--- The gradient of cross_entropy alone.
-- @treturn cplab.tensor dlogits
function M.cross_entropy_backward(logits, labels, options)
    local _, dlogits = cross_entropy("op.cross_entropy_backward", logits, labels, options)
    return dlogits
end

return M
