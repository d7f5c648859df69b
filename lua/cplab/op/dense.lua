--- Matrix products, table look-ups and the loss.
-- @module cplab.op.dense
local call = require "cplab.op.call"
local ffi = require("clib").ffi

local M = {}

local function product(dims, a, transpose_a, b, transpose_b, alpha, c)
    local p = ffi.new "cpl_matmul"
    local a_shape, c_shape = a:shape(), c:shape()
    p.a, p.b, p.c = a._ptr.data, b._ptr.data, c._ptr.data
    p.m, p.n, p.k = c_shape[1], c_shape[2], transpose_a and a_shape[1] or a_shape[2]
    p.lda, p.ldb = math.max(a_shape[2], 1), math.max(b:shape()[2], 1)
    p.ldc = math.max(c_shape[2], 1)
    p.transpose_a, p.transpose_b, p.alpha = transpose_a, transpose_b, alpha
    dims:call("matmul", p)
    return c
end

local function matmul_dims(who, a, b, options)
    options = call.options(who, options, { transpose_a = "boolean?", transpose_b = "boolean?",
        alpha = "number?" })
    local dims = call.dims(who, options)
    dims:take("a", a, options.transpose_a and "k m" or "m k")
    dims:take("b", b, options.transpose_b and "n k" or "k n")
    return dims, options.transpose_a or false, options.transpose_b or false, options.alpha or 1
end

--- c = alpha op(a) op(b), where op transposes or not.
-- @tparam cplab.tensor a [m, k], or [k, m] with transpose_a
-- @tparam cplab.tensor b [k, n], or [n, k] with transpose_b
-- @tparam ?table options transpose_a, transpose_b (false), alpha (1), device
-- @treturn cplab.tensor c [m, n]
function M.matmul(a, b, options)
    local dims, transpose_a, transpose_b, alpha = matmul_dims("op.matmul", a, b, options)
    return product(dims, a, transpose_a, b, transpose_b, alpha, dims:new(dims.m, dims.n))
end

--- The gradients of matmul.
-- @return da, db
function M.matmul_backward(a, b, dc, options)
    local dims, transpose_a, transpose_b, alpha = matmul_dims("op.matmul_backward", a, b, options)
    dims:take("dc", dc, "m n")
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
    p.tokens, p.y, p.n_rows, p.width = ids, y._ptr.data, dims.T, dims.D
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
    p.tokens, p.grad_table, p.n_rows, p.width = ids, dtable._ptr.data, dims.T, dims.D
    dims:call("embedding_backward", p)
    return dtable
end

local function cross_entropy(who, logits, labels, options)
    options = call.options(who, options, { grad_scale = "number?" })
    local dims = call.dims(who, options)
    local p = ffi.new "cpl_cross_entropy"
    p.logits = dims:take("logits", logits, "T vocab")
    local ids, loss = dims:integers("labels", labels, "int32_t"), dims:keep(ffi.new "double[1]")
    check_tokens(who, "labels", labels, dims.vocab)
    local dlogits = dims:new_like(logits)
    p.labels, p.dlogits, p.loss_sum = ids, dlogits._ptr.data, loss
    p.n_rows, p.vocab, p.grad_scale = dims.T, dims.vocab, options.grad_scale or 1
    dims:call("cross_entropy", p)
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
