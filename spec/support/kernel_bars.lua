--- What the static gate demands of kernels, by their short names (kernel_names.lua).
-- @module spec.support.kernel_bars
local M = {}

-- ---- kernels that move bytes ------------------------------------------------------------------

-- `stores`: the only widths that it may store. `at_once`: so many loads of a width come before the
-- first store. `lists`: so many loads of 32 and 64 bits, all of them of lists and counts; data then
-- is loaded by 128 bits alone. Whatever is not named here: none.
local every_width = { "8", "16", "32", "64", "128" }
local wide_copy = { registers = 64, stores = { "128" }, at_once = { ["128"] = 8 }, lists = 14 }
local wide_sum = { registers = 64, stores = { "128" }, at_once = { ["128"] = 4 }, lists = 16 }

--- A bar for each of them: those whose symbols are C's.
M.moving = {
    cpli_copy_aligned = wide_copy,
    cpli_swap_aligned = wide_copy,
    cpli_copy_any = { registers = 64, stores = every_width,
        at_once = { ["128"] = 8, ["64"] = 8, ["32"] = 8, ["16"] = 8, ["8"] = 8 } },
    cpli_swap_any = { registers = 80, stores = every_width,
        at_once = { ["128"] = 8, ["64"] = 8, ["32"] = 8, ["16"] = 8, ["8"] = 8 } },
    cpli_fill = { registers = 40, stores = { "8", "128" }, lists = 14 },
    cpli_add_f64_aligned = wide_sum, cpli_add_f32_aligned = wide_sum,
    cpli_add_bf16_aligned = wide_sum,
    cpli_add_i64_aligned = wide_sum, cpli_add_i32_aligned = wide_sum,
    cpli_add_f64_any = { registers = 64, stores = { "64" }, at_once = { ["64"] = 8 } },
    cpli_add_f32_any = { registers = 64, stores = { "32" }, at_once = { ["32"] = 8 } },
    cpli_add_bf16_any = { registers = 64, stores = { "16" }, at_once = { ["16"] = 8 } },
    cpli_add_i64_any = { registers = 64, stores = { "64" }, at_once = { ["64"] = 8 } },
    cpli_add_i32_any = { registers = 64, stores = { "32" }, at_once = { ["32"] = 8 } },
    cpli_permute_16 = { registers = 64, stores = { "128" }, at_once = { ["128"] = 4 }, lists = 10 },
    cpli_permute_8 = { registers = 64, stores = { "64" }, at_once = { ["64"] = 4 } },
    cpli_permute_4 = { registers = 64, stores = { "32" }, at_once = { ["32"] = 4 } },
    cpli_permute_2 = { registers = 64, stores = { "16" }, at_once = { ["16"] = 4 } },
    cpli_permute_1 = { registers = 64, stores = { "8" }, at_once = { ["8"] = 4 } },
    cpli_trace_compare = { registers = 40, stores = {}, reductions = 2 },
    cpli_trace_keep = { registers = 40, stores = { "64" } },
    cpli_trace_write = { registers = 40, stores = { "64" } },
    cpli_trace_divide = { registers = 40, stores = { "64" } },
}

-- ---- kernels that compute ---------------------------------------------------------------------

--- What every kernel that computes keeps; `shared` are bytes that the kernel itself declares, of
-- the 48 KiB that a block has without being asked for more. That none uses local memory is the rule
-- for all kernels, of both kinds.
M.computing_all = { registers = 255, shared = 48 * 1024 }

--- Those that promise more, by the short name or by its first word for all dtypes.
M.computing = {
    matmul_naive = { registers = 40 },
    matmul_tiled = { registers = 128, shared = 16640 },
    matmul_tensor = { registers = 128, shared = 40960 },
    grouped_rows_tensor = { registers = 128, shared = 40960 },
    grouped_weights_tensor = { registers = 128, shared = 40960 },
    grouped_rows_tiled = { registers = 128, shared = 16640 },
    grouped_weights_tiled = { registers = 128, shared = 16640 },
    gdn_carry_naive = { registers = 40, shared = 0 },
    gdn_carry_tiled = { registers = 128, shared = 16640 },
    -- An optimizer's step: bound by memory, so many threads are to be there.
    adamw = { registers = 80, shared = 0 },
    sgd = { registers = 40, shared = 0 },
    sum_squares = { registers = 40, shared = 64 },
    add_parts = { registers = 40, shared = 64 },
    step_factors = { registers = 40, shared = 0 },
    moe_route = { registers = 80, shared = 0 },
    moe_route_backward = { registers = 64, shared = 0 },
    moe_group_count = { registers = 64 },
    moe_group_place = { registers = 64 },
    moe_dispatch = { registers = 64, shared = 0 },
    moe_combine = { registers = 80, shared = 0 },
    moe_combine_backward = { registers = 128, shared = 0 },
    -- Two blocks of 128 threads on a multiprocessor, which has 164 KiB at least.
    attention_fma = { registers = 255, shared = 43008 },
    attention_fma_back = { registers = 255, shared = 43008 },
    -- Beside up to 150 KiB that their launches ask for, of 163 KiB that a block can have.
    attention_latent = { registers = 255, shared = 4096 },
    attention_latent_back = { registers = 255, shared = 8192 },
    -- Behind every fast call, mostly for nothing.
    attention_again = { registers = 128, shared = 0 },
    attention_again_back = { registers = 160, shared = 0 },
    -- Two blocks of 256 threads on a multiprocessor.
    ["gdn_prepare_chunks bf16"] = { registers = 128, shared = 40960 },
    ["gdn_output bf16"] = { registers = 128, shared = 21504 },
    ["gdn_back_rows bf16"] = { registers = 128, shared = 21504 },
    ["gdn_back_pairs bf16"] = { registers = 128, shared = 40960 },
}

--- Those that multiply by tensor cores: so many of these instructions at least. `matrix_loads` are
-- ldmatrix, `async_copies` cp.async.
M.multiplying = {
    matmul_tensor = { tensor_cores = 32, matrix_loads = 12, async_copies = 4 },
    grouped_rows_tensor = { tensor_cores = 32, matrix_loads = 12, async_copies = 4 },
    grouped_weights_tensor = { tensor_cores = 32, matrix_loads = 12, async_copies = 4 },
    attention_forward = { tensor_cores = 64, matrix_loads = 16, async_copies = 4 },
    attention_latent = { tensor_cores = 136, matrix_loads = 88, async_copies = 2 },
    attention_latent_back = { tensor_cores = 176, matrix_loads = 150, async_copies = 2 },
    attention_dq = { tensor_cores = 64, matrix_loads = 16, async_copies = 4 },
    attention_dkv = { tensor_cores = 64, matrix_loads = 16, async_copies = 4 },
    ["gdn_prepare_chunks bf16"] = { tensor_cores = 64, matrix_loads = 36 },
    ["gdn_chain_chunks bf16"] = { tensor_cores = 28, matrix_loads = 18 },
    ["gdn_output bf16"] = { tensor_cores = 40, matrix_loads = 22 },
    ["gdn_pull_values bf16"] = { tensor_cores = 16, matrix_loads = 8 },
    ["gdn_pull_chunks bf16"] = { tensor_cores = 48, matrix_loads = 26 },
    ["gdn_back_rows bf16"] = { tensor_cores = 24, matrix_loads = 12 },
    ["gdn_back_pairs bf16"] = { tensor_cores = 48, matrix_loads = 28 },
    ["gdn_back_chunks bf16"] = { tensor_cores = 128, matrix_loads = 66 },
}

return M
