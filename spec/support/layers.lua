--- One layer on one rank, driven from a spec: parameters, forward, backward, all in f64.
local clib = require "clib"
local cplab = require "cplab"
local parameters = require "cplab.parameters"
local rows = require "cplab.rows"
local C, ffi = clib.C, clib.ffi

local M = {}

local CONFIGS = {
    gqa = { "cpl_gqa_config", { hidden = 6, heads = 4, kv_heads = 2, head_dim = 8,
        rotary_dim = 4, rope_theta = 100, eps = 1e-6 } },
    mla = { "cpl_mla_config", { hidden = 6, heads = 4, q_rank = 5, kv_rank = 4, nope_dim = 3,
        rope_dim = 2, value_dim = 7, rope_theta = 100, eps = 1e-6 } },
    gdn = { "cpl_gdn_config", { hidden = 6, key_heads = 2, value_heads = 4, key_dim = 3,
        value_dim = 5, conv = 4, chunk = 4, eps = 1e-6 } },
    mlp = { "cpl_mlp_config", { hidden = 6, width = 9 } },
    moe = { "cpl_moe_config", { hidden = 6, experts = 5, top_k = 2, width = 7, shared_width = 4,
        renormalise = true, aux_coefficient = 0.5 } },
    norm = { "cpl_norm_config", { hidden = 6, eps = 1e-6 } },
    linear = { "cpl_linear_config", { ["in"] = 6, out = 5 } },
    embedding = { "cpl_linear_config", { ["in"] = 11, out = 6 } },
}
M.kinds = { "gqa", "mla", "gdn", "mlp", "moe", "norm", "linear", "embedding" }

--- A layer of a kind; `changes` to its configuration; `dtype` a cpl_dtype, f64 if none.
function M.create(kind, changes, dtype)
    local config = {}
    for name, value in pairs(CONFIGS[kind][2]) do config[name] = value end
    for name, value in pairs(changes or {}) do config[name] = value end
    return clib.create("cpl_layer", C.cpl_layer_destroy, 1, C["cpl_layer_" .. kind],
        ffi.new(CONFIGS[kind][1], config), dtype or C.CPL_F64)
end

--- Uniform numbers in (-1, 1) that depend on the name alone.
function M.fill(tensor, name)
    local key = C.cpl_random_key(7, name)
    for i = 0, tonumber(C.cpl_tensor_n_elements(tensor)) - 1 do
        C.cpl_dtype_store(tensor.dtype, tensor.data, i, 2 * C.cpl_random_uniform(key, i) - 1)
    end
end

--- A live layer on a stream: { layer, x, y, dy, dx, parameters }; every value is drawn, the
-- parameters too, so that no weight is at a special point. The rank's runs are those given, or
-- all positions in order; with `split` { tp_rank, tp } it has a slice of the layer.
function M.live(kind, stream_fields, changes, runs, split)
    local self = { kind = kind, layer = M.create(kind, changes) }
    self.stream = cplab.stream.thd(stream_fields)
    self.layout = runs and cplab.layout.custom(self.stream, { cp = 1, ranks = { runs } })
        or cplab.layout.contiguous(self.stream, { cp = 1 })
    self.comm = C.cpl_comm_self()
    self.place = clib.create("cpl_place", C.cpl_place_destroy, 1, C.cpl_place_create, self.comm,
        self.layout._ptr)
    if split then clib.check(C.cpl_place_split(self.place, split[1], split[2])) end
    self.parameters = parameters.new(self.comm, "f64", { { name = kind, ptr = self.layer } })
    M.fill(self.parameters.weights, "weights")
    clib.check(C.cpl_layer_prepare(self.layer, kind, self.place))
    local n, is_tokens = self.layout:n_local(0), kind == "embedding"
    self.x = rows.new(self.comm, is_tokens and "i32" or "f64", n, is_tokens and 1 or 6)
    self.dx = not is_tokens and rows.new(self.comm, "f64", n, 6) or nil
    self.y = rows.new(self.comm, "f64", n, tonumber(C.cpl_layer_out_width(self.layer)))
    self.dy = rows.new(self.comm, "f64", n, tonumber(C.cpl_layer_out_width(self.layer)))
    if is_tokens then
        for i = 0, n - 1 do ffi.cast("int32_t *", self.x.data)[i] = (7 * i) % 11 end
    else
        M.fill(self.x, "x")
    end
    M.fill(self.dy, "dy")
    return self
end

function M.forward(self)
    clib.check(C.cpl_layer_forward(self.layer, self.x, self.y))
end

function M.backward(self)
    self.parameters:zero_gradients()
    clib.check(C.cpl_layer_backward(self.layer, self.dy, self.dx))
end

--- What a mixture of experts reports of its last forward.
function M.moe_report(self)
    local report = ffi.new "cpl_moe_report"
    clib.check(C.cpl_layer_moe_report(self.layer, report))
    return report
end

--- The value whose gradients backward gives: <y, dy>, and of experts what balances their load.
function M.loss(self)
    M.forward(self)
    local y, dy = ffi.cast("double *", self.y.data), ffi.cast("double *", self.dy.data)
    local sum = 0
    for i = 0, tonumber(C.cpl_tensor_n_elements(self.y)) - 1 do sum = sum + y[i] * dy[i] end
    return sum + (self.kind == "moe" and M.moe_report(self).aux_loss or 0)
end

--- Row i of a tensor as a Lua list.
function M.row(tensor, i)
    local width, list = tonumber(C.cpl_tensor_width(tensor)), {}
    for j = 0, width - 1 do
        list[j + 1] = C.cpl_dtype_load(tensor.dtype, tensor.data, i * width + j)
    end
    return list
end

return M
