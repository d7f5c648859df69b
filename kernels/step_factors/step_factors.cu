/*
 * step_factors.cu: a handful of numbers in double, by one thread; one kernel
 * serves both ways and all dtypes.
 */
#include "compute.cuh"

namespace cpli
{

__global__ void __launch_bounds__(1)
    step_factors(const __grid_constant__ cpl_step_factors p)
{
    p.factors[0] = 1;
    if (p.squares != nullptr) {
        const double share = p.clip / (sqrt(*p.squares) + 1e-6);
        p.factors[0] = share >= 1 ? 1 : share; /* a NaN stays one */
    }
    if (p.step == nullptr)
        return;
    const int64_t count = *p.step + 1;
    const double step = static_cast<double>(count);
    *p.step = count;
    p.factors[1] = 1 - pow(p.beta1, step);
    p.factors[2] = 1 - pow(p.beta2, step);
}

} // namespace cpli

int cpl_cuda_step_factors(const cpl_step_factors *p, int32_t, int32_t,
                          cpl_cuda_stream stream)
{
    return CPLI_LAUNCH(cpli::step_factors, 1, 1, 0, stream, *p);
}
