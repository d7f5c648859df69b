--- Every kernel as a function on tensors.
-- `device = "ref"` in the options runs the naive reference in double, "cpu" (the default) the fast
-- kernel; "cuda" and "cuda-emulated" bring the inputs to the device and the results back, and take
-- way = "naive" for the plain kernels that the best ones are held against. Inputs of one call have
-- one dtype, f32 or f64, on devices also bf16, where what kernels.h calls WIDE is f32. Results are
-- new tensors; `x_backward` takes what `x` took and the gradient of its result. An unknown option,
-- a shape that does not fit or a list that breaks a rule is an error at the line of the call.
-- @module cplab.op
-- @usage local o, hT = cplab.op.gdn(q, k, v, g, beta, { cu_seqlens = { 0, 13, 40 } })
local M = {}

for _, part in ipairs {
    "norm", "pointwise", "conv1d", "gdn", "gqa", "dense", "moe", "optimizer",
} do
    for name, op in pairs(require("cplab.op." .. part)) do
        M[name] = op
    end
end

return M
