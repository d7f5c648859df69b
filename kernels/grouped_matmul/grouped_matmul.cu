/*
 * grouped_matmul.cu: products of groups of rows, one matrix for each. How many
 * rows a group has is known on the device alone, so a launch is sized by
 * max_rows, and what it starts finds its group by the offsets.
 */
#include "matmul/tensor_tile.cuh"

namespace cpli
{

/* cpl_grouped_matmul, or half of its backward, with types. The groups' rows are
 * those of x and y; w has a matrix [out, in] for each. */
template <class T> struct groups {
    const T *x, *w;
    const int64_t *offsets;
    int64_t n, in, out;
    int64_t x_stride, w_stride, w_step;
};

/* The last group that begins at or before the row, and is not empty. */
__device__ __forceinline__ int64_t group_of_row(const int64_t *offsets,
                                                int64_t n, int64_t row)
{
    int64_t low = 0, high = n; /* offsets[low] <= row < offsets[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (offsets[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- rows: y = x W', dx = dy W ---- */

/* y[row][column] = or += the product of x's rows with the group's matrix, whose
 * row `column` is multiplied: W itself, or W turned. */
template <class T> struct rows_product {
    groups<T> g; /* its x is what is multiplied */
    T *y;
    int64_t y_stride, width, inner; /* of y; summed over */
    bool turns, adds;

    __device__ __forceinline__ matrix<T> left(int64_t first) const
    {
        return {g.x + first * g.x_stride, g.x_stride, false};
    }
    __device__ __forceinline__ matrix<T> right(int64_t group) const
    {
        return {g.w + group * g.w_step, g.w_stride, turns};
    }
    __device__ __forceinline__ void store(int64_t row, int64_t column,
                                          sum_t<T> sum) const
    {
        T *at = y + row * y_stride + column;
        *at = put<T>(adds ? get(*at) + sum : sum);
    }
};

template <class T>
__global__ void __launch_bounds__(THREADS)
    grouped_rows_naive(const __grid_constant__ rows_product<T> p)
{
    int64_t first = p.g.offsets[0], last = p.g.offsets[p.g.n];
    int64_t n = (last - first) * p.width;
    for (int64_t i = first_index(); i < n; i += index_step()) {
        int64_t row = first + i / p.width, column = i % p.width;
        int64_t group = group_of_row(p.g.offsets, p.g.n, row);
        p.store(row, column,
                multiply_rows(p.left(row), 0, p.right(group), column, p.inner));
    }
}

/* A tile's group and its first row. */
struct rows_tile {
    int64_t group, row;
};

/* Tiles of `size` rows stand group by group, each group's rows cut from its own
 * first one on. False: there are not so many. Each warp looks for itself, at a
 * group a lane. */
__device__ __forceinline__ bool find_tile(const int64_t *offsets, int64_t n,
                                          int size, int64_t index,
                                          rows_tile *out)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int64_t begin = 0; begin < n; begin += 32) {
        const int64_t group = begin + lane;
        const int64_t first = group < n ? offsets[group] : 0;
        const int64_t rows = group < n ? offsets[group + 1] - first : 0;
        int64_t past = (rows + size - 1) / size; /* tiles, with those before */
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, past, by);
            past += lane >= by ? other : 0;
        }
        const unsigned behind = __ballot_sync(0xffffffffu, index < past);
        if (behind != 0) {
            const int which = __ffs(static_cast<int>(behind)) - 1;
            const int64_t before = __shfl_sync(
                0xffffffffu, past - (rows + size - 1) / size, which);
            out->group = begin + which;
            out->row = __shfl_sync(0xffffffffu, first, which) +
                       (index - before) * size;
            return true;
        }
        index -= __shfl_sync(0xffffffffu, past, 31);
    }
    return false;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    grouped_rows_tiled(const __grid_constant__ rows_product<T> p)
{
    CPLI_SHARED(tile_memory<T>, memory, [1]);
    int64_t columns = (p.width + TILE - 1) / TILE;
    rows_tile tile;
    for (int64_t i = blockIdx.x;
         find_tile(p.g.offsets, p.g.n, TILE, i / columns, &tile);
         i += gridDim.x) {
        int64_t column = i % columns * TILE;
        int64_t past = p.g.offsets[tile.group + 1];
        sum_t<T> sum[TILE_EACH][TILE_EACH] = {};
        multiply_tile(memory[0], p.left(0), tile.row, past, p.right(tile.group),
                      column, p.width, p.inner, sum);
        store_tile(sum, tile.row, past, column, p.width,
                   [&](int64_t r, int64_t c, sum_t<T> value) {
                       p.store(r, c, value);
                   });
    }
}

template <bool TURNS>
__global__ void __launch_bounds__(THREADS)
    grouped_rows_tensor(const __grid_constant__ rows_product<bf16> p)
{
    CPLI_SHARED(tensor_memory, memory, [1]);
    int64_t columns = (p.width + BROAD - 1) / BROAD;
    rows_tile tile;
    for (int64_t i = blockIdx.x;
         find_tile(p.g.offsets, p.g.n, BROAD, i / columns, &tile);
         i += gridDim.x) {
        int64_t column = i % columns * BROAD;
        int64_t past = p.g.offsets[tile.group + 1];
        warp_sums sums = {};
        multiply_tensor_tile<false, TURNS>(memory[0], p.left(0), tile.row, past,
                                           p.right(tile.group), column, p.width,
                                           p.inner, sums);
        store_tensor_tile(
            sums, tile.row, past, column, p.width,
            [&](int64_t r, int64_t c, float value) { p.store(r, c, value); });
    }
}

/* Tiles at most: each group may end in one that is not full. */
static int64_t most_tiles(int64_t max_rows, int64_t groups, int size)
{
    return max_rows / size + (groups < max_rows ? groups : max_rows);
}

static int launch_rows_tensor(const rows_product<bf16> &p, int64_t max_rows,
                              cpl_cuda_stream stream)
{
    auto *kernel =
        p.turns ? grouped_rows_tensor<true> : grouped_rows_tensor<false>;
    int64_t columns = (p.width + BROAD - 1) / BROAD;
    return CPLI_LAUNCH(
        kernel, blocks_for(most_tiles(max_rows, p.g.n, BROAD) * columns, 1),
        THREADS, 0, stream, p);
}

template <class T>
static int launch_rows(const rows_product<T> &p, int64_t max_rows, int32_t way,
                       cpl_cuda_stream stream)
{
    if (max_rows == 0 || p.g.n == 0 || p.width == 0)
        return cudaSuccess;
    if (way == CPL_CUDA_NAIVE)
        return CPLI_LAUNCH(grouped_rows_naive<T>,
                           blocks_for(max_rows * p.width), THREADS, 0, stream,
                           p);
    if constexpr (std::is_same<T, bf16>::value)
        if (fits_chunks(p.g.x, p.g.x_stride) &&
            fits_chunks(p.g.w, p.g.w_stride) && p.g.w_step % CHUNK == 0)
            return launch_rows_tensor(p, max_rows, stream);
    int64_t tiles = most_tiles(max_rows, p.g.n, TILE);
    int64_t columns = (p.width + TILE - 1) / TILE;
    return CPLI_LAUNCH(grouped_rows_tiled<T>, blocks_for(tiles * columns, 1),
                       THREADS, 0, stream, p);
}

/* ---- weights: grad_w_e += dy_e' x_e ---- */

template <class T> struct weights_product {
    groups<T> g; /* its w is not read */
    const T *dy;
    wide_t<T> *grad;
    int64_t dy_stride;

    /* The group's rows are summed over. */
    __device__ __forceinline__ matrix<T> left(int64_t group) const
    {
        return {dy + g.offsets[group] * dy_stride, dy_stride, true};
    }
    __device__ __forceinline__ matrix<T> right(int64_t group) const
    {
        return {g.x + g.offsets[group] * g.x_stride, g.x_stride, true};
    }
    __device__ __forceinline__ int64_t inner(int64_t group) const
    {
        return g.offsets[group + 1] - g.offsets[group];
    }
    __device__ __forceinline__ void add(int64_t group, int64_t row,
                                        int64_t column, sum_t<T> sum) const
    {
        grad[group * g.w_step + row * g.w_stride + column] += sum;
    }
};

template <class T>
__global__ void __launch_bounds__(THREADS)
    grouped_weights_naive(const __grid_constant__ weights_product<T> p)
{
    int64_t size = p.g.out * p.g.in;
    for (int64_t i = first_index(); i < size * p.g.n; i += index_step()) {
        int64_t group = i / size, row = i % size / p.g.in, column = i % p.g.in;
        p.add(group, row, column,
              multiply_rows(p.left(group), row, p.right(group), column,
                            p.inner(group)));
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    grouped_weights_tiled(const __grid_constant__ weights_product<T> p)
{
    CPLI_SHARED(tile_memory<T>, memory, [1]);
    int64_t columns = (p.g.in + TILE - 1) / TILE;
    int64_t size = (p.g.out + TILE - 1) / TILE * columns;
    for (int64_t i = blockIdx.x; i < size * p.g.n; i += gridDim.x) {
        int64_t group = i / size;
        int64_t row = i % size / columns * TILE, column = i % columns * TILE;
        int64_t inner = p.inner(group);
        sum_t<T> sum[TILE_EACH][TILE_EACH] = {};
        if (inner == 0)
            continue;
        multiply_tile(memory[0], p.left(group), row, p.g.out, p.right(group),
                      column, p.g.in, inner, sum);
        store_tile(sum, row, p.g.out, column, p.g.in,
                   [&](int64_t r, int64_t c, sum_t<T> value) {
                       p.add(group, r, c, value);
                   });
    }
}

__global__ void __launch_bounds__(THREADS)
    grouped_weights_tensor(const __grid_constant__ weights_product<bf16> p)
{
    CPLI_SHARED(tensor_memory, memory, [1]);
    int64_t columns = (p.g.in + BROAD - 1) / BROAD;
    int64_t size = (p.g.out + BROAD - 1) / BROAD * columns;
    for (int64_t i = blockIdx.x; i < size * p.g.n; i += gridDim.x) {
        int64_t group = i / size;
        int64_t row = i % size / columns * BROAD, column = i % columns * BROAD;
        int64_t inner = p.inner(group);
        warp_sums sums = {};
        if (inner == 0)
            continue;
        multiply_tensor_tile<true, true>(memory[0], p.left(group), row, p.g.out,
                                         p.right(group), column, p.g.in, inner,
                                         sums);
        store_tensor_tile(sums, row, p.g.out, column, p.g.in,
                          [&](int64_t r, int64_t c, float value) {
                              p.add(group, r, c, value);
                          });
    }
}

static int launch_weights_tensor(const weights_product<bf16> &p,
                                 cpl_cuda_stream stream)
{
    int64_t columns = (p.g.in + BROAD - 1) / BROAD;
    int64_t tiles = (p.g.out + BROAD - 1) / BROAD * columns * p.g.n;
    return CPLI_LAUNCH(grouped_weights_tensor, blocks_for(tiles, 1), THREADS, 0,
                       stream, p);
}

template <class T>
static int launch_weights(const weights_product<T> &p, int32_t way,
                          cpl_cuda_stream stream)
{
    int64_t columns = (p.g.in + TILE - 1) / TILE;
    int64_t tiles = (p.g.out + TILE - 1) / TILE * columns * p.g.n;
    if (tiles == 0)
        return cudaSuccess;
    if constexpr (std::is_same<T, bf16>::value)
        if (way == CPL_CUDA_BEST && fits_chunks(p.dy, p.dy_stride) &&
            fits_chunks(p.g.x, p.g.x_stride))
            return launch_weights_tensor(p, stream);
    return way == CPL_CUDA_NAIVE
               ? CPLI_LAUNCH(grouped_weights_naive<T>,
                             blocks_for(p.g.out * p.g.in * p.g.n), THREADS, 0,
                             stream, p)
               : CPLI_LAUNCH(grouped_weights_tiled<T>, blocks_for(tiles, 1),
                             THREADS, 0, stream, p);
}

/* ---- launchers ---- */

template <class T>
static groups<T> groups_of(const cpl_grouped_matmul *p, const void *x,
                           int64_t x_stride)
{
    return {static_cast<const T *>(x),
            static_cast<const T *>(p->w),
            p->offsets,
            p->groups,
            p->in,
            p->out,
            x_stride,
            p->w_stride,
            p->w_step};
}

template <class T>
static int launch_backward(const cpl_grouped_matmul_backward *p, int32_t way,
                           cpl_cuda_stream stream)
{
    const cpl_grouped_matmul *f = &p->forward;
    int error = cudaSuccess;
    if (p->grad_w != nullptr)
        error = launch_weights<T>(
            {groups_of<T>(f, f->x, f->x_stride), static_cast<const T *>(p->dy),
             static_cast<wide_t<T> *>(p->grad_w), p->dy_stride},
            way, stream);
    if (p->dx == nullptr || error != cudaSuccess)
        return error;
    return launch_rows<T>({groups_of<T>(f, p->dy, p->dy_stride),
                           static_cast<T *>(p->dx), p->dx_stride, f->in, f->out,
                           true, p->accumulate},
                          f->max_rows, way, stream);
}

} // namespace cpli

int cpl_cuda_grouped_matmul(const cpl_grouped_matmul *p, int32_t dtype,
                            int32_t way, cpl_cuda_stream stream)
{
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return cpli::launch_rows<T>({cpli::groups_of<T>(p, p->x, p->x_stride),
                                     static_cast<T *>(p->y), p->y_stride,
                                     p->out, p->in, false, false},
                                    p->max_rows, way, stream);
    });
}

int cpl_cuda_grouped_matmul_backward(const cpl_grouped_matmul_backward *p,
                                     int32_t dtype, int32_t way,
                                     cpl_cuda_stream stream)
{
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return cpli::launch_backward<T>(p, way, stream);
    });
}
