/* All loops for one level of instructions. Included by _core.c. */

typedef double FN(vd) __attribute__((vector_size(WIDTH)));
typedef int64_t FN(vi) __attribute__((vector_size(WIDTH)));
typedef uint64_t FN(vu) __attribute__((vector_size(WIDTH)));
typedef float FN(vf) __attribute__((vector_size(WIDTH)));
typedef int32_t FN(vw) __attribute__((vector_size(WIDTH)));
typedef float FN(vh) __attribute__((vector_size(WIDTH / 2)));

#include "_core_math.h"

/* log of single precision by way of double precision. */
INLINE FN(vf) FN(log_f)(FN(vf) x)
{
    FN(vh) half;
    for (int at = 0; at < 2; at++) {
        memcpy(&half, (const char *)&x + at * sizeof half, sizeof half);
        half = __builtin_convertvector(FN(log_d)(__builtin_convertvector(half, FN(vd))), FN(vh));
        memcpy((char *)&x + at * sizeof half, &half, sizeof half);
    }
    return x;
}

#define REAL double
#define FEW 48
#define vec FN(vd)
#define ivec FN(vi)
#define hvec FN(vh)
#define word int64_t
#define RN(name) FN(name##_d)
#include "_core_rows.h"
#include "_core_proba.h"
#undef REAL
#undef FEW
#undef vec
#undef ivec
#undef hvec
#undef word
#undef RN

#define REAL float
#define FEW 128
#define vec FN(vf)
#define ivec FN(vw)
#define hvec FN(vf)
#define word int32_t
#define RN(name) FN(name##_f)
#include "_core_rows.h"
#include "_core_proba.h"
#undef REAL
#undef FEW
#undef vec
#undef ivec
#undef hvec
#undef word
#undef RN

#include "_core_bins.h"
#include "_core_scaling.h"

static void FN(map)(int kind, const void *from, void *to, Py_ssize_t size)
{
    const Py_ssize_t total = size * (kind == 1 || kind == 5 ? 4 : 8);
    for (Py_ssize_t at = 0; at < total; at += WIDTH) {
        const Py_ssize_t bytes = total - at < WIDTH ? total - at : WIDTH;
        FN(vd) v = {0};
        memcpy(&v, (const char *)from + at, bytes);
        if (kind == 0)
            v = FN(exp2_d)(v);
        else if (kind == 1)
            v = (FN(vd))FN(exp2_f)((FN(vf))v);
        else if (kind == 2)
            v = FN(log_d)(v);
        else if (kind == 3)
            v = FN(log1p_d)(v);
        else if (kind == 4)
            v = FN(exp_d)(v);
        else if (kind == 6)
            v = FN(log_gamma_d)(v);
        else
            v = (FN(vd))FN(exp_f)((FN(vf))v);
        memcpy((char *)to + at, &v, bytes);
    }
}

#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
static const Level FN(level) = {
    TEXT(LEVEL),
    FN(map),
    {FN(derivatives_d),
     FN(derivatives_f)},
    {FN(softmax_d), FN(softmax_f)},
    FN(proba_bins),
    FN(odds_bins),
    FN(row_scores),
    FN(weight_scores),
    FN(few_bins),
    FN(divide_few),
    FN(few_scores),
    FN(add_scaling),
    FN(flush_scaling),
    FN(map_scaling),
    FN(add_bias),
    FN(flush_bias),
    {FN(valid_rows_d), FN(valid_rows_f)},
    {FN(all_finite_d), FN(all_finite_f)},
    {FN(squares_d), FN(squares_f)},
    {FN(top_labels_d), FN(top_labels_f)},
    {FN(add_rows_d), FN(add_rows_f)},
    FN(add_platt),
};
