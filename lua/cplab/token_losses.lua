--- The loss of each token, where the batch is.
-- Who trains masks and weighs losses in the layout in which the batch came in. Logits and labels
-- live in the exit layout; where that is another one, the losses are brought back, in one exchange
-- of a number a token.
-- @module cplab.token_losses
local clib = require "clib"
local route = require "cplab.route"
local tensors = require "cplab.tensor"
local C, ffi = clib.C, clib.ffi

local M = {}

-- The losses of rows of logits, by the kernel that made the mean.
local function in_exit(stack)
    local n, vocab = stack.n_logits, stack.model.vocab
    local losses = tensors.zeros({ n, 1 }, "f64")
    local bytes = vocab * tonumber(C.cpl_dtype_bytes(stack.logits.dtype))
    local logits = ffi.cast("char *", stack.logits.data)
    local labels = ffi.cast("int32_t *", stack.labels.data)
    local out = ffi.cast("double *", losses._ptr.data)
    for i = 0, n - 1 do
        stack.kernels.cross_entropy(ffi.new("cpl_cross_entropy", {
            logits = logits + i * bytes, labels = labels + i, loss_sum = out + i, n_rows = 1,
            vocab = vocab,
        }))
    end
    clib.check(C.cpl_tensor_mark(losses._ptr, stack.exit._ptr, stack.rank, stack.trace))
    return losses
end

--- Collective. The loss of each of this rank's tokens in the last forward pass, as rows of the
-- entry layout; 0 where a token has no label. Their sum over all ranks is the mean loss times the
-- number of labels.
-- @tparam table stack
-- @treturn cplab.tensor [rows, 1], f64
function M.of(stack)
    local losses = in_exit(stack)
    if stack.exit:equals(stack.entry) then return losses end
    local result = tensors.zeros({ stack.entry:n_local(stack.rank), 1 }, "f64")
    local plan = clib.create("cpl_plan", C.cpl_plan_destroy, 1, C.cpl_plan_create,
        route(stack.exit, stack.entry)._ptr, stack.comm, C.CPL_F64, 1, nil)
    clib.check(C.cpl_plan_start(plan, losses._ptr, result._ptr))
    clib.check(C.cpl_plan_finish(plan))
    return result
end

return M
