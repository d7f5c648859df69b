/* compare.c: how far a tensor is from its reference, by the two norms that
 * parity is made of (DESIGN, section 9.9). */
#include <math.h>

#include "base.h"
#include "comm/comm.h"

/* A norm whose squares vanished is still not 0. */
static double norm_of(double squares, double largest)
{
    return squares == 0 ? largest : sqrt(squares);
}

/* A NaN must win; a plain maximum would lose it. */
static void raise_to(double *most, double value)
{
    if (*most == *most && !(value <= *most))
        *most = value;
}

static void compare_row(const cpl_tensor *x, int64_t row,
                        const cpl_tensor *reference, int64_t reference_row,
                        cpl_difference *sum)
{
    int64_t width = cpl_tensor_width(x);
    double difference = 0;
    double norm = 0;
    double largest_d = 0;
    double largest_r = 0;
    for (int64_t j = 0; j < width; j++) {
        double r = cpl_dtype_load(reference->dtype, reference->data,
                                  reference_row * width + j);
        double d = cpl_dtype_load(x->dtype, x->data, row * width + j) - r;
        difference += d * d;
        norm += r * r;
        raise_to(&largest_d, fabs(d));
        raise_to(&largest_r, fabs(r));
    }
    sum->difference2 += difference;
    sum->reference2 += norm;
    raise_to(&sum->worst_row, norm_of(difference, largest_d));
    raise_to(&sum->largest_row, norm_of(norm, largest_r));
}

cpl_status cpl_tensor_difference(const cpl_tensor *x,
                                 const cpl_tensor *reference,
                                 const int64_t *rows, cpl_difference *out)
{
    int64_t n_rows = cpl_tensor_n_rows(x);
    int64_t n_reference = cpl_tensor_n_rows(reference);
    if (cpl_tensor_width(x) != cpl_tensor_width(reference) ||
        (rows == NULL && n_rows != n_reference))
        return cpli_fail(CPL_MISMATCH,
                         "compare: %lld x %lld against a reference of %lld x "
                         "%lld",
                         (long long)n_rows, (long long)cpl_tensor_width(x),
                         (long long)n_reference,
                         (long long)cpl_tensor_width(reference));
    if (cpli_device_of(x->comm) != NULL ||
        cpli_device_of(reference->comm) != NULL)
        return cpli_fail(CPL_UNSUPPORTED,
                         "compare: tensors of a device: download them first");
    cpl_difference sum = {0};
    for (int64_t i = 0; i < n_rows; i++) {
        int64_t row = rows != NULL ? rows[i] : i;
        if (row < 0 || row >= n_reference)
            return cpli_fail(CPL_INVALID,
                             "compare: row %lld of a reference of %lld rows",
                             (long long)row, (long long)n_reference);
        compare_row(x, i, reference, row, &sum);
    }
    *out = sum;
    return CPL_OK;
}
