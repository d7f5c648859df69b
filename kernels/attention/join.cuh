/*
 * join.cuh: how a row of a fast forward ends: its own result and what (o, lse)
 * held before, one key of score lse and value o, become one.
 */
#ifndef CPLI_ATTENTION_JOIN_CUH
#define CPLI_ATTENTION_JOIN_CUH

#include "attention.cuh"

namespace cpli
{

/* The factors of both. */
template <class S> struct joined {
    S mine, kept;
};

/* From the row's maximum and its sum of e^(score - max). By whole warps; of the
 * lanes that have the row one writes lse, and what it was. */
template <class T, class S = sum_t<T>>
__device__ __forceinline__ joined<S>
join(const cpl_attention &p, wide_t<T> *before_all, int64_t slot, int64_t head,
     S max, S sum, bool writes)
{
    const int64_t row = slot * p.heads + head;
    const bool exists = slot < p.n_queries;
    wide_t<T> *lse = static_cast<wide_t<T> *>(p.lse) + row;
    const S before = p.accumulate && exists ? *lse : -INFINITY;
    const S most = max > before ? max : before;
    const S own = max == most ? 1 : std::exp(max - most);
    const S old = before == -INFINITY ? 0 : std::exp(before - most);
    const S all = sum * own + old;
    __syncwarp(); /* all lanes of the row have read */
    if (writes && exists) {
        *lse = all == 0 ? most : most + std::log(all);
        if (p.accumulate)
            before_all[row] = before;
    }
    if (all == 0)
        return {0, 0};
    return {sum == 0 ? 0 : own / all, old / all};
}

} // namespace cpli

#endif
