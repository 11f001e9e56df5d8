/* The compiled core: inner loops over rows of logits. See skfedcal/_compiled.py, the
   only importer; its callers have the same functions in numpy.

   Needs gcc or clang (vector extensions) and IEEE arithmetic; without them the package is
   installed without this module. Every loop is compiled for several levels of instructions,
   and the best one that the processor has is chosen when the module is imported. The bits
   of a result are the same at every level, see _core_math.h. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__GNUC__) || FLT_EVAL_METHOD != 0 || defined(__FAST_MATH__)
#error "the compiled core needs gcc or clang, without -ffast-math and x87 arithmetic"
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (places){__VA_ARGS__})
#endif
#define INLINE static inline __attribute__((always_inline))

/* Raised with every change of a function or its arguments, in _compiled.py as well. */
#define INTERFACE 1

/* Distance from the largest logit beyond which a class has no weight (_numerics.py). */
#define MAX_SPAN 1e6
#define LOG2_E 0x1.71547652b82fep0
/* Up to this many classes a softmax has one row in each lane. */
#define FEW_COLUMNS 48
/* Up to this many classes bins and losses have; at least FEW of _core_level.h. */
#define FEW_BINS 128
/* Rows that are worked on together. */
#define GROUP 16

/* Rows of single or double precision; steps down and across are in bytes. */
typedef struct {
    char *data;
    Py_ssize_t rows, columns, down, across;
    int single;
} Matrix;

/* Up to GROUP rows, which need not be neighbours. */
typedef struct {
    int size;
    const char *rows[GROUP];
    Py_ssize_t labels[GROUP], clients[GROUP];
    double beta[GROUP], weight[GROUP];
} Group;

/* Curvature that scaling_sums adds, see skfedcal/methods/scaling/rounds.py. */
enum { BEND_NONE, BEND_PAIR, BEND_CLASS, BEND_FULL, BEND_SPLIT };
/* Maps of scaling_sums. */
enum { MAP_VECTOR, MAP_MATRIX, MAP_ORDER };
/* Least slope of order-preserving scaling, and where the softplus has it (families.py). */
#define SMALLEST_SLOPE 1e-6
#define FLOORED (-0x1.ba18a88c907e8p+3)
/* Rows whose products are added together; the order of additions does not depend on it. */
#define KEPT_ROWS 32

/* Work space of one client's sums of a scaling map; rows are padded to `wide` columns. */
typedef struct {
    Py_ssize_t n, wide, n_left, left_size, n_right, right_size, n_slopes, n_products;
    int map, matrix, bend, kept;
    double beta;
    int64_t *keep;
    double *params, *slopes, *own, *products;
    double *x, *p, *rows, *residuals, *left, *right, *memory;
    /* Of order-preserving scaling: distances from the top, gaps to the next entry below,
       slopes of the map and their derivatives; places from the top down. */
    double *below, *gaps, *soft, *change;
    int64_t *order, *sorting;
} Scaling;

/* Work space of one client's sums at one point of bias and temperature scaling. */
typedef struct {
    Py_ssize_t n, wide;
    int full, kept;
    double beta, head[4];
    double *bias, *x, *slopes, *counts, *cross, *own, *left, *right, *products, *memory;
} Bias;

/* Bins of the entries of rows: of equal width in probability where span is 0, else in log-odds
   between -span and span. Single precision is off by less than `slack` bins. Row l and column j
   of a group have the bin index[l * down + j * across]. */
typedef struct {
    int n_bins;
    double span, slack, *work;
    int32_t *index, *one;
    Py_ssize_t down, across;
} Bins;

/* Rows of probabilities that are worked on together, and bins of their classes. */
typedef struct {
    int n_bins;
    Py_ssize_t width; /* bins and room for what is above 1 by rounding */
    double slack, *gaps;
    const int64_t *labels;
    int32_t *found, *marked;
    uint32_t *marks;
} Gaps;
/* Entries that are worked on together, if a row is not longer: WIDE_ROW of metrics/binning.py. */
#define WIDE_ROW 1024
/* Work space of one client's sums of sigmoids, one for each of `n` scores: lines of the
   request, sums, and what is left to add to the sums for the own class of rows. */
enum { FIRST_FACTOR, SECOND_FACTOR, CENTRE, INVERSE_WIDTH, SLOPE, SHIFT, TARGET, MORE_TARGET, PLATT_LINES };
enum { PLATT_SUMS = 6 };
typedef struct {
    Py_ssize_t n, wide;
    double *given, *sums, *place, *odds, *own, *memory;
} Platt;

/* Four dense rows of single precision as columns: squares of four by four, then the rest. */
INLINE void turn_squares(Py_ssize_t n, const char *const *rows, float *to, int step)
{
    typedef float four __attribute__((vector_size(16)));
    typedef int32_t places __attribute__((vector_size(16)));
    Py_ssize_t j = 0;
    for (; j + 4 <= n; j += 4) {
        four r[4];
        for (int l = 0; l < 4; l++)
            memcpy(&r[l], rows[l] + j * 4, 16);
        const four a = SHUFFLE(r[0], r[1], 0, 4, 1, 5), b = SHUFFLE(r[0], r[1], 2, 6, 3, 7);
        const four c = SHUFFLE(r[2], r[3], 0, 4, 1, 5), d = SHUFFLE(r[2], r[3], 2, 6, 3, 7);
        const four columns[4] = {SHUFFLE(a, c, 0, 1, 4, 5), SHUFFLE(a, c, 2, 3, 6, 7), SHUFFLE(b, d, 0, 1, 4, 5), SHUFFLE(b, d, 2, 3, 6, 7)};
        for (int k = 0; k < 4; k++)
            memcpy(to + (j + k) * step, &columns[k], 16);
    }
    for (; j < n; j++)
        for (int l = 0; l < 4; l++)
            to[j * step + l] = ((const float *)rows[l])[j];
}

/* The same of double precision, of two rows. */
INLINE void turn_pairs(Py_ssize_t n, const char *const *rows, double *to, int step)
{
    typedef double two __attribute__((vector_size(16)));
    typedef int64_t places __attribute__((vector_size(16)));
    Py_ssize_t j = 0;
    for (; j + 2 <= n; j += 2) {
        two a, b;
        memcpy(&a, rows[0] + j * 8, 16);
        memcpy(&b, rows[1] + j * 8, 16);
        const two first = SHUFFLE(a, b, 0, 2), second = SHUFFLE(a, b, 1, 3);
        memcpy(to + j * step, &first, 16);
        memcpy(to + (j + 1) * step, &second, 16);
    }
    for (; j < n; j++)
        for (int l = 0; l < 2; l++)
            to[j * step + l] = ((const double *)rows[l])[j];
}

static Py_ssize_t length(const Py_buffer *view) { return view->len / view->itemsize; }

static Py_ssize_t whole_number(const Py_buffer *view, Py_ssize_t i)
{
    const char *at = (const char *)view->buf + i * view->strides[0];
    switch (view->itemsize) {
    case 1:
        return view->format[0] == 'b' ? *(const int8_t *)at : *(const uint8_t *)at;
    case 2:
        return view->format[0] == 'h' ? *(const int16_t *)at : *(const uint16_t *)at;
    case 4:
        return (view->format[0] == 'i' || view->format[0] == 'l') ? (Py_ssize_t)*(const int32_t *)at : (Py_ssize_t)*(const uint32_t *)at;
    default:
        return (Py_ssize_t)*(const int64_t *)at;
    }
}

static double real_number(const Py_buffer *view, Py_ssize_t i)
{
    return *(const double *)((const char *)view->buf + i * view->strides[0]);
}

#define GLUE_(a, b) a##_##b
#define GLUE(a, b) GLUE_(a, b)
#define FN(name) GLUE(name, LEVEL)

/* Every level has the same functions. */
typedef struct {
    const char *name;
    void (*map)(int kind, const void *from, void *to, Py_ssize_t size);
    void (*derivatives[2])(const Matrix *, const Group *, void *, int, double[5][GROUP]);
    void (*softmax[2])(const Matrix *, const Matrix *, double, int, void *);
    int (*proba_bins)(const Matrix *, const char *, int, double *, int32_t *);
    int (*odds_bins)(const Matrix *, const char *, int, double, double, double *, int32_t *);
    void (*row_scores)(const Matrix *, const char *, Py_ssize_t, double *, double *, double *);
    void (*weight_scores)(double *, Py_ssize_t, Py_ssize_t, double *, double *);
    int (*few_bins)(const Matrix *, const Group *, const Bins *);
    void (*divide_few)(Py_ssize_t, double *);
    void (*few_scores)(const Matrix *, const Group *, const double *, double *, double *);
    void (*add_scaling)(Scaling *, const Matrix *, const char *, Py_ssize_t, double, double *);
    void (*flush_scaling)(Scaling *);
    void (*map_scaling)(Scaling *, const Matrix *, const char *, int, char *);
    void (*add_bias)(Bias *, const Matrix *, const char *, Py_ssize_t, double);
    void (*flush_bias)(Bias *);
    int (*valid_rows[2])(const Matrix *, double, void *);
    int (*all_finite[2])(const Matrix *, void *);
    void (*squares[2])(const Matrix *, void *, double *);
    void (*top_labels[2])(const Matrix *, void *, int64_t *, double *);
    int (*add_rows[2])(const Matrix *, const Gaps *, double *);
    void (*add_platt)(Platt *, const Matrix *, const char *, Py_ssize_t, double);
} Level;

/* Up to this many entries insertion is faster than a sort by digits. */
#define FEW_TO_SORT 24

/* Puts places in order by insertion; 0 if that takes too many moves. */
static int insert_down(Py_ssize_t m, const double *below, int64_t *order, Py_ssize_t most)
{
    for (Py_ssize_t i = 1; i < m; i++) {
        const int64_t own = order[i];
        const double value = below[own];
        Py_ssize_t k = i;
        for (; k > 0 && (below[order[k - 1]] < value || (below[order[k - 1]] == value && order[k - 1] > own)); k--)
            order[k] = order[k - 1];
        order[k] = own;
        if ((most -= i - k) < 0)
            return 0;
    }
    return 1;
}

/* Sorts m entries by eight bits of them; equal ones keep their order. */
static void by_digit(Py_ssize_t m, const uint32_t *from, uint32_t *to, int shift, uint32_t *counts)
{
    uint32_t before = 0;
    for (int k = 0; k < 256; k++) {
        const uint32_t own = counts[k];
        counts[k] = before;
        before += own;
    }
    for (Py_ssize_t i = 0; i < m; i++)
        to[counts[from[i] >> shift & 255]++] = from[i];
}

/* Sorts places by all bits of their distance from the top. */
static void by_all_digits(Py_ssize_t n, const double *below, const int64_t *keep, int64_t *order, int64_t *other)
{
    Py_ssize_t m = 0;
    for (Py_ssize_t j = 0; j < n; j++)
        if (keep[j])
            order[m++] = j;
    for (int shift = 0; shift < 64; shift += 8) {
        uint32_t counts[257] = {0};
        for (Py_ssize_t i = 0; i < m; i++) {
            const double gap = 0.0 - below[order[i]];
            uint64_t bits;
            memcpy(&bits, &gap, sizeof bits);
            counts[1 + (bits >> shift & 255)]++;
        }
        for (int k = 1; k < 256; k++)
            counts[k] += counts[k - 1];
        for (Py_ssize_t i = 0; i < m; i++) {
            const double gap = 0.0 - below[order[i]];
            uint64_t bits;
            memcpy(&bits, &gap, sizeof bits);
            other[counts[bits >> shift & 255]++] = order[i];
        }
        memcpy(order, other, m * sizeof *order);
    }
}

/* Places of the entries that are kept, from the largest down, equal ones from left to right.
   Returns how many. By 16 bits of the distance from the top, five of its exponent, then by
   insertion, which leaves little to do but where entries are almost equal. `sorting` has room
   for as many entries. */
static Py_ssize_t sort_down(Py_ssize_t n, const double *below, const int64_t *keep, int64_t *order, int64_t *sorting)
{
    Py_ssize_t m = 0;
    if (n <= FEW_TO_SORT || n > 65536) {
        for (Py_ssize_t j = 0; j < n; j++)
            if (keep[j])
                order[m++] = j;
        if (n <= FEW_TO_SORT)
            insert_down(m, below, order, n * n);
        else
            by_all_digits(n, below, keep, order, sorting);
        return m;
    }
    uint32_t low[256] = {0}, high[256] = {0}, *const first = (uint32_t *)sorting, *const second = first + n;
    for (Py_ssize_t j = 0; j < n; j++) {
        const float gap = (float)(0.0 - below[j]);
        int32_t key;
        memcpy(&key, &gap, sizeof key);
        /* From 2^-12 to MAX_SPAN < 2^20. */
        key = (key >> 12 & 0x7ffff) - (115 << 11);
        key = key < 0 ? 0 : key > 65535 ? 65535 : key;
        first[m] = (uint32_t)key << 16 | (uint32_t)j;
        const uint32_t one = keep[j] != 0;
        low[key & 255] += one;
        high[key >> 8] += one;
        m += one;
    }
    by_digit(m, first, second, 16, low);
    by_digit(m, second, first, 24, high);
    for (Py_ssize_t i = 0; i < m; i++)
        order[i] = first[i] & 0xffff;
    if (!insert_down(m, below, order, 4 * n))
        by_all_digits(n, below, keep, order, sorting);
    return m;
}

#define LEVEL plain
#define WIDTH 16
#include "_core_level.h"
#undef LEVEL
#undef WIDTH

#if defined(__x86_64__) && !defined(__clang__)
#define HAVE_X86_LEVELS 1
#pragma GCC push_options
#pragma GCC target("avx2")
#define LEVEL avx2
#define WIDTH 32
#include "_core_level.h"
#undef LEVEL
#undef WIDTH
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")
#define LEVEL avx512
#define WIDTH 64
#include "_core_level.h"
#undef LEVEL
#undef WIDTH
#pragma GCC pop_options
#endif

static const Level *const LEVELS[] = {
#ifdef HAVE_X86_LEVELS
    &level_avx512,
    &level_avx2,
#endif
    &level_plain,
};
#define N_LEVELS ((int)(sizeof LEVELS / sizeof *LEVELS))

static const Level *level = &level_plain;

static int runs_here(int i)
{
#ifdef HAVE_X86_LEVELS
    if (i == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
               && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (i == 1)
        return __builtin_cpu_supports("avx2");
#endif
    return i == N_LEVELS - 1;
}

/* Arguments */

/* Arrays of the arguments of one call, released together. */
typedef struct {
    Py_buffer views[12];
    int n;
} Arrays;

/* The array of an argument, or NULL with an error; `kinds` are letters of struct. */
static const Py_buffer *take(Arrays *arrays, PyObject *arg, const char *kinds, int ndim, int flags, const char *name)
{
    Py_buffer *view = &arrays->views[arrays->n];
    if (PyObject_GetBuffer(arg, view, PyBUF_FORMAT | PyBUF_STRIDES | flags) < 0)
        return NULL;
    arrays->n++;
    const char *format = view->format ? view->format : "B";
    if (view->ndim == ndim && strlen(format) == 1 && strchr(kinds, format[0]))
        return view;
    PyErr_Format(PyExc_TypeError, "%s must have %d dimensions and one of the types '%s', got %d and '%s'", name, ndim,
                 kinds, view->ndim, format);
    return NULL;
}

#define DENSE PyBUF_C_CONTIGUOUS
#define INTEGERS "bBhHiIlLqQ"

/* Releases the arrays; returns None unless there was an error. */
static PyObject *finish(Arrays *arrays)
{
    while (arrays->n)
        PyBuffer_Release(&arrays->views[--arrays->n]);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static Matrix matrix_of(const Py_buffer *view)
{
    Matrix m = {view->buf, view->shape[0], view->shape[1], view->strides[0], view->strides[1], view->format[0] == 'f'};
    return m;
}

static int expect(Py_ssize_t given, Py_ssize_t wanted)
{
    if (given == wanted)
        return 0;
    PyErr_Format(PyExc_TypeError, "%zd arguments expected, got %zd", wanted, given);
    return -1;
}

/* Functions */

static PyObject *use(PyObject *Py_UNUSED(self), PyObject *name)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (!text)
        return NULL;
    for (int i = 0; i < N_LEVELS; i++)
        if (!strcmp(LEVELS[i]->name, text) && runs_here(i)) {
            level = LEVELS[i];
            Py_RETURN_NONE;
        }
    PyErr_Format(PyExc_ValueError, "no level %s on this processor", text);
    return NULL;
}

static PyObject *levels(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args))
{
    PyObject *out = PyList_New(0);
    for (int i = 0; out && i < N_LEVELS; i++) {
        if (!runs_here(i))
            continue;
        PyObject *name = PyUnicode_FromString(LEVELS[i]->name);
        if (!name || PyList_Append(out, name) < 0)
            Py_CLEAR(out);
        Py_XDECREF(name);
    }
    return out;
}

/* map(kind, values, out): 0 2^x, 2 log, 3 log1p, 4 exp, 6 log Gamma of doubles, 1 2^x, 5 exp
   of floats. */
static PyObject *map(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    if (expect(n_args, 3) < 0)
        return NULL;
    const long kind = PyLong_AsLong(args[0]);
    const char *type = kind == 1 || kind == 5 ? "f" : "d";
    const Py_buffer *from, *to;
    if (!PyErr_Occurred() && (from = take(&arrays, args[1], type, 1, DENSE, "values"))
        && (to = take(&arrays, args[2], type, 1, DENSE | PyBUF_WRITABLE, "out"))) {
        if (from->len != to->len)
            PyErr_SetString(PyExc_ValueError, "values and out differ in length");
        else
            level->map((int)kind, from->buf, to->buf, length(from));
    }
    return finish(&arrays);
}

/* softmax(rows, out, scale, logs) */
static PyObject *softmax(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    if (expect(n_args, 4) < 0)
        return NULL;
    const double scale = PyFloat_AsDouble(args[2]);
    const int logs = PyObject_IsTrue(args[3]);
    const Py_buffer *from, *to;
    if (PyErr_Occurred() || !(from = take(&arrays, args[0], "fd", 2, 0, "rows"))
        || !(to = take(&arrays, args[1], "fd", 2, DENSE | PyBUF_WRITABLE, "out")))
        return finish(&arrays);
    const Matrix m = matrix_of(from), out = matrix_of(to);
    void *buffer = malloc((m.columns + GROUP) * 8);
    if (m.rows != out.rows || m.columns != out.columns || m.single != out.single)
        PyErr_SetString(PyExc_ValueError, "rows and out differ in shape or type");
    else if (!buffer)
        PyErr_NoMemory();
    else if (m.rows && m.columns) {
        Py_BEGIN_ALLOW_THREADS
        level->softmax[m.single](&m, &out, scale, logs, buffer);
        Py_END_ALLOW_THREADS
    }
    free(buffer);
    return finish(&arrays);
}

/* Adds the derivatives of each row of a group to those of its client; with a constant order
   sums stay in registers. */
INLINE void add_rows(const Group *g, double out[5][GROUP], const int order, const int weighted, double *sums)
{
    for (int l = 0; l < g->size;) {
        const Py_ssize_t client = g->clients[l];
        double own[5], *to = sums + client * order;
        for (int k = 0; k < order; k++)
            own[k] = to[k];
        for (; l < g->size && g->clients[l] == client; l++)
            for (int k = 0; k < order; k++)
                own[k] += weighted ? out[k][l] * g->weight[l] : out[k][l];
        for (int k = 0; k < order; k++)
            to[k] = own[k];
    }
}

static void add_group(const Matrix *m, Group *g, int single, void *buffer, int order, double *sums, int weighted)
{
    double out[5][GROUP];
    if (!g->size)
        return;
    level->derivatives[single](m, g, buffer, order, out);
    if (weighted)
        add_rows(g, out, order, 1, sums);
    else if (order == 5)
        add_rows(g, out, 5, 0, sums);
    else if (order == 4)
        add_rows(g, out, 4, 0, sums);
    else
        add_rows(g, out, order, 0, sums);
    g->size = 0;
}

typedef struct {
    const Py_buffer *rows, *order, *labels, *offsets, *weights, *beta, *sums, *used;
    double one_beta; /* of all clients, where beta is NULL */
    long step;
    int wide, relative;
} Loop;

/* Reads `size` labels from place i on; 0 if one is not a column. */
INLINE int read_labels(const Py_buffer *view, Py_ssize_t i, const int size, Py_ssize_t columns, Py_ssize_t *labels)
{
    int good = 1;
    const char *at = (const char *)view->buf + i * view->strides[0];
    if (view->itemsize == 2 && view->format[0] == 'h' && view->strides[0] == 2)
        for (int l = 0; l < size; l++)
            labels[l] = ((const int16_t *)at)[l];
    else
        for (int l = 0; l < size; l++)
            labels[l] = whole_number(view, i + l);
    for (int l = 0; l < size; l++)
        good &= (size_t)labels[l] < (size_t)columns;
    return good;
}

/* Adds whole groups of neighbouring rows of one client, from row i on, with an empty group.
   Returns the first row that is left, or -1 for a label out of range. */
static Py_ssize_t add_neighbours(const Matrix *m, const Loop *loop, void *buffer, Py_ssize_t i, Py_ssize_t stop,
                                 Py_ssize_t client, double beta, Group *g)
{
    for (int l = 0; l < GROUP; l++) {
        g->clients[l] = client;
        g->beta[l] = beta;
    }
    for (; stop - i >= GROUP; i += GROUP) {
        for (int l = 0; l < GROUP; l++)
            g->rows[l] = m->data + (i + l) * m->down;
        g->size = GROUP;
        if (!read_labels(loop->labels, i, GROUP, m->columns, g->labels))
            return -1;
        add_group(m, g, m->single && !loop->wide, buffer, (int)loop->sums->shape[1], loop->sums->buf, 0);
    }
    return i;
}

/* The next row from i on whose hash of the first entry, as in hash_sample, is below `limit`;
   a row out of range counts as one. */
static Py_ssize_t next_sampled(const Matrix *m, const Loop *loop, Py_ssize_t i, Py_ssize_t stop, uint64_t limit)
{
    for (; i < stop; i++) {
        const Py_ssize_t at = loop->order ? whole_number(loop->order, i) : i;
        if (at < 0 || at >= m->rows)
            break;
        const char *row = m->data + at * m->down;
        const double first = m->single ? (double)*(const float *)row : *(const double *)row;
        uint64_t bits;
        memcpy(&bits, &first, 8);
        if (bits * UINT64_C(0x9E3779B97F4A7C15) < limit)
            break;
    }
    return i;
}

/* Returns what does not fit, or NULL. */
static const char *add_derivatives(const Matrix *m, const Loop *loop, void *buffer)
{
    const Py_ssize_t n_clients = length(loop->offsets) - 1, n = length(loop->labels);
    const Py_ssize_t degree = loop->sums->shape[1];
    if (n_clients < 0 || loop->sums->shape[0] != n_clients || loop->used->shape[0] != n_clients || loop->used->shape[1] != 2
        || degree < 1 || degree > 5 || (loop->beta && length(loop->beta) != n_clients) || loop->step < 1 || m->columns < 1
        || (loop->weights && length(loop->weights) != n) || (loop->order && length(loop->order) < n))
        return "arrays do not fit together";
    const int single = m->single && !loop->wide;
    /* floor(2^64 / step), as in hash_sample. */
    const uint64_t step = (uint64_t)loop->step, limit = UINT64_MAX / step + (UINT64_MAX % step == step - 1);
    const int neighbours = !loop->order && !loop->weights && step == 1;
    Group group = {.size = 0};
    for (Py_ssize_t c = 0; c < n_clients; c++) {
        const Py_ssize_t start = whole_number(loop->offsets, c), stop = whole_number(loop->offsets, c + 1);
        if (start < 0 || stop > n || (!loop->order && stop > m->rows))
            return "offsets are out of range";
        const double beta = loop->beta ? real_number(loop->beta, c) : loop->one_beta;
        Py_ssize_t count = 0;
        for (Py_ssize_t i = start; i < stop; i++) {
            if (neighbours && !group.size && stop - i >= GROUP) {
                const Py_ssize_t left = add_neighbours(m, loop, buffer, i, stop, c, beta, &group);
                if (left < 0)
                    return "a label is out of range";
                count += left - i;
                i = left;
            }
            else if (step > 1)
                i = next_sampled(m, loop, i, stop, limit);
            if (i == stop)
                break;
            const Py_ssize_t at = loop->order ? whole_number(loop->order, i) : i;
            if (at < 0 || at >= m->rows)
                return "order is out of range";
            const Py_ssize_t label = whole_number(loop->labels, i);
            if (label < 0 || label >= m->columns)
                return "a label is out of range";
            const int l = group.size++;
            group.rows[l] = m->data + at * m->down;
            group.labels[l] = label;
            group.clients[l] = c;
            group.beta[l] = beta;
            if (loop->weights)
                group.weight[l] = real_number(loop->weights, i);
            count++;
            if (group.size == GROUP)
                add_group(m, &group, single, buffer, (int)degree, loop->sums->buf, loop->weights != NULL);
        }
        int64_t *sizes = (int64_t *)loop->used->buf + 2 * c;
        sizes[0] = start < stop ? (stop - start) * m->columns : 0;
        sizes[1] = count;
    }
    add_group(m, &group, single, buffer, (int)degree, loop->sums->buf, loop->weights != NULL);
    for (Py_ssize_t c = 0; c < n_clients && loop->relative; c++) {
        const double beta = loop->beta ? real_number(loop->beta, c) : loop->one_beta;
        double *sums = (double *)loop->sums->buf + c * degree, power = beta;
        for (Py_ssize_t k = 0; k < degree; k++, power *= beta)
            sums[k] *= power;
    }
    return NULL;
}

/* derivative_sums(rows, order, labels, offsets, weights, beta, step, double, relative, sums, used)

   rows[order[i]] or rows[i] for i from offsets[c] to offsets[c + 1] are the rows of client
   c; labels and weights are in packed order. beta is a number or has one per client. Of step
   rows one is used, by a hash of its first entry. sums (n_clients, order) gets what is added,
   with `relative` in the relative change of beta; used (n_clients, 2) entries of all rows, and
   rows that were used. order and weights may be None. */
static PyObject *derivative_sums(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    if (expect(n_args, 11) < 0)
        return NULL;
    Loop loop = {.step = PyLong_AsLong(args[6]), .wide = PyObject_IsTrue(args[7]), .relative = PyObject_IsTrue(args[8])};
    if (!PyErr_Occurred() && (loop.rows = take(&arrays, args[0], "fd", 2, 0, "rows"))
        && (args[1] == Py_None || (loop.order = take(&arrays, args[1], INTEGERS, 1, 0, "order")))
        && (loop.labels = take(&arrays, args[2], INTEGERS, 1, 0, "labels"))
        && (loop.offsets = take(&arrays, args[3], INTEGERS, 1, 0, "offsets"))
        && (args[4] == Py_None || (loop.weights = take(&arrays, args[4], "d", 1, 0, "weights")))
        && (PyFloat_Check(args[5]) || (loop.beta = take(&arrays, args[5], "d", 1, 0, "beta")))
        && (loop.sums = take(&arrays, args[9], "d", 2, DENSE | PyBUF_WRITABLE, "sums"))
        && (loop.used = take(&arrays, args[10], "lq", 2, DENSE | PyBUF_WRITABLE, "used"))) {
        loop.one_beta = loop.beta ? 0 : PyFloat_AsDouble(args[5]);
        const Matrix m = matrix_of(loop.rows);
        void *buffer = malloc((m.columns + GROUP) * 8);
        const char *fault = NULL;
        if (!buffer)
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            fault = add_derivatives(&m, &loop, buffer);
            Py_END_ALLOW_THREADS
        }
        free(buffer);
        if (fault)
            PyErr_SetString(PyExc_IndexError, fault);
    }
    return finish(&arrays);
}

/* Whether rows are worked on together. */
static int in_groups(const Matrix *m, const Bins *bins)
{
    if (bins->span > 0)
        return m->columns > 1 && m->columns <= FEW_BINS && bins->slack <= 1.0 / 16;
    return m->columns > 1 && m->columns <= FEW_COLUMNS;
}

/* Bins of a group: of one row, unless rows are worked on together. 0 as in odds_bins. */
static int find_bins(const Matrix *m, const Group *g, Bins *bins)
{
    if (in_groups(m, bins)) {
        bins->down = 1;
        bins->across = GROUP;
        return level->few_bins(m, g, bins);
    }
    bins->down = 0;
    bins->across = 1;
    if (bins->span > 0)
        return level->odds_bins(m, g->rows[0], bins->n_bins, bins->span, bins->slack, bins->work, bins->index);
    return level->proba_bins(m, g->rows[0], bins->n_bins, bins->work, bins->index);
}

/* Reads (n_bins, span, slack) and makes room; 0 with an error. */
static int start_bins(Bins *bins, PyObject *const *args, Py_ssize_t n_columns)
{
    const long n_bins = PyLong_AsLong(args[0]);
    bins->n_bins = (int)n_bins;
    bins->span = PyFloat_AsDouble(args[1]);
    bins->slack = PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred())
        return 0;
    if (n_bins < 1 || n_bins > 1 << 24) {
        PyErr_Format(PyExc_ValueError, "%ld bins", n_bins);
        return 0;
    }
    /* So many places have no halves in single precision, and an error is a number of 0 or more. */
    if (n_bins > 1 << 20 || !(bins->slack >= 0))
        bins->slack = 1.0;
    const Py_ssize_t few = n_columns <= FEW_BINS ? GROUP * n_columns : 0;
    bins->work = malloc(((n_columns + 16) * 2 + few) * sizeof(double));
    bins->index = calloc(n_columns + 16 + few, sizeof(int32_t));
    bins->one = malloc((n_columns + 16) * sizeof(int32_t));
    if (bins->work && bins->index && bins->one)
        return 1;
    PyErr_NoMemory();
    return 0;
}

static void end_bins(Bins *bins)
{
    free(bins->work);
    free(bins->index);
    free(bins->one);
}

static const char NOT_A_NUMBER[] = "a row has entries that are not finite";

/* Adds 1 to the cell (client, class, bin) of every entry of a group: to `positive` for the class
   of the row, to `negative` for the others. 0 where a row has no bins. */
static int count_group(const Matrix *m, Group *g, Bins *bins, int32_t *positive, int32_t *negative, int64_t *squares)
{
    const Py_ssize_t width = m->columns * bins->n_bins;
    if (g->size && !find_bins(m, g, bins))
        return 0;
    /* Rows of a client follow each other. Class by class, so that its bins stay in the cache. */
    const Py_ssize_t n_bins = bins->n_bins, across = bins->across;
    for (int l = 0; l < g->size;) {
        const Py_ssize_t c = g->clients[l];
        const int32_t *index = bins->index + l * bins->down;
        int32_t *others = negative + c * width, *owns = positive + c * width;
        int size = 1;
        while (l + size < g->size && g->clients[l + size] == c)
            size++;
        /* (k + 1)^2 - k^2 = 2 k + 1, first for all classes, then back for its own. */
        int64_t sum = 0, sum_own = 0;
        const int alone = size == 1 && !squares;
        for (Py_ssize_t j = 0; j < m->columns && alone; j++)
            others[j * n_bins + index[j * across]]++;
        for (Py_ssize_t j = 0; j < m->columns && !alone; j++) {
            int32_t *cells = others + j * n_bins;
            const int32_t *places = index + j * across;
            if (squares)
                for (int k = 0; k < size; k++)
                    sum += 2 * (int64_t)cells[places[k]]++ + 1;
            else
                for (int k = 0; k < size; k++)
                    cells[places[k]]++;
        }
        for (int k = 0; k < size; k++) {
            const Py_ssize_t label = g->labels[l + k], own = label * n_bins + index[k * bins->down + label * across];
            sum -= 2 * (int64_t)--others[own] + 1;
            sum_own += 2 * (int64_t)owns[own]++ + 1;
        }
        if (squares) {
            squares[2 * c + 1] += sum;
            squares[2 * c] += sum_own;
        }
        l += size;
    }
    g->size = 0;
    return 1;
}

/* Counts of the rows of all clients. Returns what does not fit, or NULL. */
static const char *add_counts(const Matrix *m, const Loop *loop, Bins *bins, int32_t *positive, int32_t *negative, int64_t *squares)
{
    const Py_ssize_t n_clients = length(loop->offsets) - 1, n = length(loop->labels);
    const int most = in_groups(m, bins) ? GROUP : 1;
    Group group = {.size = 0};
    for (Py_ssize_t c = 0; c < n_clients; c++) {
        const Py_ssize_t start = whole_number(loop->offsets, c), stop = whole_number(loop->offsets, c + 1);
        if (start < 0 || stop > n || (!loop->order && stop > m->rows))
            return "offsets are out of range";
        for (Py_ssize_t i = start; i < stop; i++) {
            const Py_ssize_t at = loop->order ? whole_number(loop->order, i) : i, label = whole_number(loop->labels, i);
            if (at < 0 || at >= m->rows)
                return "order is out of range";
            if (label < 0 || label >= m->columns)
                return "a label is out of range";
            group.rows[group.size] = m->data + at * m->down;
            group.labels[group.size] = label;
            group.clients[group.size++] = c;
            if (group.size == most && !count_group(m, &group, bins, positive, negative, squares))
                return NOT_A_NUMBER;
        }
    }
    return count_group(m, &group, bins, positive, negative, squares) ? NULL : NOT_A_NUMBER;
}

/* bin_counts(rows, order, labels, offsets, n_bins, span, slack, positive, negative, squares)

   squares (n_clients, 2) gets the sums of squares of both counts of each client, if it is
   not None. */
static PyObject *bin_counts(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    Loop loop = {.step = 1};
    Bins bins = {.work = NULL};
    const Py_buffer *positive, *negative, *squares = NULL;
    if (expect(n_args, 10) < 0)
        return NULL;
    if ((loop.rows = take(&arrays, args[0], "fd", 2, 0, "rows"))
        && (args[1] == Py_None || (loop.order = take(&arrays, args[1], INTEGERS, 1, 0, "order")))
        && (loop.labels = take(&arrays, args[2], INTEGERS, 1, 0, "labels"))
        && (loop.offsets = take(&arrays, args[3], INTEGERS, 1, 0, "offsets"))
        && (positive = take(&arrays, args[7], "i", 3, DENSE | PyBUF_WRITABLE, "positive"))
        && (negative = take(&arrays, args[8], "i", 3, DENSE | PyBUF_WRITABLE, "negative"))
        && (args[9] == Py_None || (squares = take(&arrays, args[9], "lq", 2, DENSE | PyBUF_WRITABLE, "squares")))
        && start_bins(&bins, args + 4, loop.rows->shape[1])) {
        const Matrix m = matrix_of(loop.rows);
        const char *fault = NULL;
        if (positive->len != negative->len || positive->shape[0] != length(loop.offsets) - 1
            || positive->shape[1] != m.columns || positive->shape[2] != bins.n_bins
            || (squares && (squares->shape[0] != positive->shape[0] || squares->shape[1] != 2))
            || (loop.order && length(loop.order) < length(loop.labels)))
            fault = "arrays do not fit together";
        else {
            Py_BEGIN_ALLOW_THREADS
            fault = add_counts(&m, &loop, &bins, positive->buf, negative->buf, squares ? squares->buf : NULL);
            Py_END_ALLOW_THREADS
        }
        if (fault)
            PyErr_SetString(fault == NOT_A_NUMBER ? PyExc_ValueError : PyExc_IndexError, fault);
    }
    end_bins(&bins);
    return finish(&arrays);
}

/* Values of the bins of a group, table[class, bin]: in columns of GROUP rows, or of one row. Rows
   that are missing have the bins of others. */
static void read_values(const Matrix *m, const Bins *bins, const double *table)
{
    const int32_t *index = bins->index;
    double *to = bins->work;
    if (bins->across == 1)
        for (Py_ssize_t j = 0; j < m->columns; j++, table += bins->n_bins)
            to[j] = table[index[j]];
    else
        for (Py_ssize_t j = 0; j < m->columns; j++, table += bins->n_bins)
            for (int l = 0; l < GROUP; l++)
                *to++ = table[*index++];
}

/* Divides the values of one row by their sum. */
static void divide_values(Py_ssize_t n, double *values)
{
    double sums[4] = {0};
    for (Py_ssize_t j = 0; j < n; j++)
        sums[j % 4] += values[j];
    const double share = 1.0 / ((sums[0] + sums[2]) + (sums[1] + sums[3]));
    for (Py_ssize_t j = 0; j < n; j++)
        values[j] *= share;
}

/* Writes the values of the bins of all rows; 0 where a row has no bins. */
static int write_values(const Matrix *m, const Matrix *out, Bins *bins, const double *table, int normalise)
{
    const int most = in_groups(m, bins) ? GROUP : 1;
    const Py_ssize_t n = m->columns;
    Group group = {.size = 0};
    for (Py_ssize_t i = 0; i < m->rows; i += group.size) {
        group.size = m->rows - i < most ? (int)(m->rows - i) : most;
        for (int l = 0; l < group.size; l++)
            group.rows[l] = m->data + (i + l) * m->down;
        if (!find_bins(m, &group, bins))
            return 0;
        read_values(m, bins, table);
        if (normalise && most == GROUP)
            level->divide_few(n, bins->work);
        else if (normalise)
            divide_values(n, bins->work);
        for (int l = 0; l < group.size; l++) {
            const double *from = bins->work + l;
            char *to = out->data + (i + l) * out->down;
            if (out->single && most == 1)
                for (Py_ssize_t j = 0; j < n; j++)
                    ((float *)to)[j] = (float)from[j];
            else if (out->single)
                for (Py_ssize_t j = 0; j < n; j++)
                    ((float *)to)[j] = (float)from[j * GROUP];
            else
                for (Py_ssize_t j = 0; j < n; j++)
                    ((double *)to)[j] = from[j * most];
        }
    }
    return 1;
}

/* bin_values(rows, n_bins, span, slack, table, normalise, out): table[class, bin] of every
   entry, over the sum of its row with `normalise`. */
static PyObject *bin_values(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    Bins bins = {.work = NULL};
    const Py_buffer *rows, *table, *to;
    if (expect(n_args, 7) < 0)
        return NULL;
    const int normalise = PyObject_IsTrue(args[5]);
    if ((rows = take(&arrays, args[0], "fd", 2, 0, "rows")) && (table = take(&arrays, args[4], "d", 2, DENSE, "table"))
        && (to = take(&arrays, args[6], "fd", 2, DENSE | PyBUF_WRITABLE, "out"))
        && start_bins(&bins, args + 1, rows->shape[1])) {
        const Matrix m = matrix_of(rows), out = matrix_of(to);
        int good = 1;
        if (out.rows != m.rows || out.columns != m.columns || table->shape[0] != m.columns || table->shape[1] != bins.n_bins)
            PyErr_SetString(PyExc_ValueError, "arrays do not fit together");
        else {
            Py_BEGIN_ALLOW_THREADS
            good = write_values(&m, &out, &bins, table->buf, normalise);
            Py_END_ALLOW_THREADS
        }
        if (!good)
            PyErr_SetString(PyExc_ValueError, NOT_A_NUMBER);
    }
    end_bins(&bins);
    return finish(&arrays);
}

/* Scores of the rows of a group by themselves and by the values of their bins; `n` is the number
   of all rows. 0 where a row has no bins. */
static int score_group(const Matrix *m, const Group *g, Bins *bins, const double *table, double *to, Py_ssize_t n)
{
    if (!find_bins(m, g, bins))
        return 0;
    if (in_groups(m, bins)) {
        read_values(m, bins, table);
        level->few_scores(m, g, NULL, to, to + n);
        level->few_scores(m, g, bins->work, to + 2 * n, to + 3 * n);
        return 1;
    }
    level->row_scores(m, g->rows[0], g->labels[0], bins->work, to, to + n);
    read_values(m, bins, table);
    level->weight_scores(bins->work, m->columns, g->labels[0], to + 2 * n, to + 3 * n);
    return 1;
}

/* Returns what does not fit, or NULL. */
static const char *score_bins(const Matrix *m, const Loop *loop, Bins *bins, const double *table, double *to)
{
    const Py_ssize_t n = length(loop->labels);
    const int most = in_groups(m, bins) ? GROUP : 1;
    Group group = {.size = 0};
    for (Py_ssize_t i = 0; i < n; i++) {
        const Py_ssize_t at = loop->order ? whole_number(loop->order, i) : i, label = whole_number(loop->labels, i);
        if (at < 0 || at >= m->rows)
            return "order is out of range";
        if (label < 0 || label >= m->columns)
            return "a label is out of range";
        group.rows[group.size] = m->data + at * m->down;
        group.labels[group.size++] = label;
        if (group.size < most && i < n - 1)
            continue;
        if (!score_group(m, &group, bins, table, to + i + 1 - group.size, n))
            return NOT_A_NUMBER;
        group.size = 0;
    }
    return NULL;
}

/* bin_scores(rows, order, labels, n_bins, span, slack, table, out): log loss and Brier score
   of each row, out of shape (4, n): of itself, then of table[class, bin] over its sum. */
static PyObject *bin_scores(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    Loop loop = {.step = 1};
    Bins bins = {.work = NULL};
    const Py_buffer *table, *out;
    if (expect(n_args, 8) < 0)
        return NULL;
    if ((loop.rows = take(&arrays, args[0], "fd", 2, 0, "rows"))
        && (args[1] == Py_None || (loop.order = take(&arrays, args[1], INTEGERS, 1, 0, "order")))
        && (loop.labels = take(&arrays, args[2], INTEGERS, 1, 0, "labels"))
        && (table = take(&arrays, args[6], "d", 2, DENSE, "table"))
        && (out = take(&arrays, args[7], "d", 2, DENSE | PyBUF_WRITABLE, "out"))
        && start_bins(&bins, args + 3, loop.rows->shape[1])) {
        const Matrix m = matrix_of(loop.rows);
        const char *fault = NULL;
        if (table->shape[0] != m.columns || table->shape[1] != bins.n_bins || out->shape[0] != 4
            || out->shape[1] != length(loop.labels) || (loop.order && length(loop.order) < length(loop.labels)))
            fault = "arrays do not fit together";
        else {
            Py_BEGIN_ALLOW_THREADS
            fault = score_bins(&m, &loop, &bins, table->buf, out->buf);
            Py_END_ALLOW_THREADS
        }
        if (fault)
            PyErr_SetString(fault == NOT_A_NUMBER ? PyExc_ValueError : PyExc_IndexError, fault);
    }
    end_bins(&bins);
    return finish(&arrays);
}

/* Encoding of one group of numbers, see skfedcal/privacy/codec.py. */
typedef struct {
    double clip, step;
    int64_t limit;
    int l1;
    double *values;      /* those that are not 0, then over the step */
    int64_t *rounded;
    Py_ssize_t *places;
} Code;

/* Adding 1.5 2^52 rounds to the nearest whole number, ties to even. */
INLINE double nearest(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

/* Rounds n values, toward zero with `cut`; returns their squared L2 norm or L1 norm. */
static int64_t round_group(const Code *code, Py_ssize_t n, int cut)
{
    int64_t norm = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        const int64_t whole = (int64_t)(cut ? code->values[i] : nearest(code->values[i]));
        code->rounded[i] = whole;
        norm += code->l1 ? (whole < 0 ? -whole : whole) : whole * whole;
    }
    return norm;
}

/* Clips and rounds n values in place, as clip_rows and round_within do. */
static void encode_group(const Code *code, Py_ssize_t n)
{
    double *v = code->values, top = 0.0, length = 0.0;
    for (Py_ssize_t i = 0; i < n; i++)
        top = fabs(v[i]) > top ? fabs(v[i]) : top;
    /* The largest is taken out first, so that 1e300 does not overflow a square. */
    for (Py_ssize_t i = 0; i < n; i++) {
        const double unit = v[i] / top;
        length += code->l1 ? fabs(unit) : unit * unit;
    }
    length = code->l1 ? length : sqrt(length);
    const int is_long = top * length > code->clip;
    const double scale = code->clip / length;
    for (Py_ssize_t i = 0; i < n; i++)
        v[i] = (is_long ? v[i] / top * scale : v[i]) / code->step;
    int64_t norm = round_group(code, n, 0);
    /* Rounding up in many dimensions can lengthen a vector; toward zero never does. */
    for (int attempt = 0; norm > code->limit && attempt <= 12; attempt++) {
        const double ratio = (double)code->limit / (double)norm;
        double shrink = code->l1 ? ratio : sqrt(ratio);
        shrink = shrink < 1 - 1e-9 ? shrink : 1 - 1e-9;
        for (Py_ssize_t i = 0; i < n; i++)
            v[i] *= shrink;
        norm = round_group(code, n, attempt == 12);
    }
    if (norm > code->limit)
        memset(code->rounded, 0, n * sizeof(int64_t));
}

/* Adds the encoded groups of all rows to `total`; one in `size` numbers of each row. */
static void add_encoded(const Py_buffer *values, Py_ssize_t n_groups, const Code *code, int64_t *total)
{
    const Py_ssize_t size = values->shape[1], width = size / n_groups;
    const int whole = values->format[0] == 'i';
    for (Py_ssize_t i = 0; i < values->shape[0] * n_groups; i++) {
        Py_ssize_t n = 0;
        const Py_ssize_t first = i % n_groups * width;
        if (whole) {
            const int32_t *from = (const int32_t *)values->buf + i * width;
            for (Py_ssize_t j = 0; j < width; j++) {
                code->places[n] = first + j;
                code->values[n] = (double)from[j];
                n += from[j] != 0;
            }
        }
        else {
            const double *from = (const double *)values->buf + i * width;
            for (Py_ssize_t j = 0; j < width; j++) {
                code->places[n] = first + j;
                code->values[n] = from[j];
                n += from[j] != 0.0 && isfinite(from[j]);
            }
        }
        if (!n)
            continue;
        encode_group(code, n);
        for (Py_ssize_t j = 0; j < n; j++)
            total[code->places[j]] += code->rounded[j];
    }
}

/* encode_sum(values, groups, clip, l1, step, limit, total) */
static PyObject *encode_sum(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    if (expect(n_args, 7) < 0)
        return NULL;
    const Py_ssize_t groups = PyLong_AsSsize_t(args[1]);
    Code code = {.clip = PyFloat_AsDouble(args[2]), .l1 = PyObject_IsTrue(args[3]), .step = PyFloat_AsDouble(args[4]), .limit = PyLong_AsLongLong(args[5])};
    const Py_buffer *values, *total;
    if (!PyErr_Occurred() && (values = take(&arrays, args[0], "id", 2, DENSE, "values"))
        && (total = take(&arrays, args[6], "lq", 1, DENSE | PyBUF_WRITABLE, "total"))) {
        const Py_ssize_t size = values->shape[1];
        code.values = malloc((size + 1) * sizeof(double));
        code.rounded = malloc((size + 1) * sizeof(int64_t));
        code.places = malloc((size + 1) * sizeof(Py_ssize_t));
        /* Integers of at most 2^31 have squares that fit; see the codec. */
        if (length(total) != size || groups < 1 || size % groups || !(code.clip >= 0 && code.step > 0 && code.clip / code.step <= 0x1p31) || code.limit < 0)
            PyErr_SetString(PyExc_ValueError, "arrays do not fit together");
        else if (!code.values || !code.rounded || !code.places)
            PyErr_NoMemory();
        else if (size) {
            Py_BEGIN_ALLOW_THREADS
            add_encoded(values, groups, &code, total->buf);
            Py_END_ALLOW_THREADS
        }
        free(code.values);
        free(code.rounded);
        free(code.places);
    }
    return finish(&arrays);
}

/* Adds rows of real numbers in fixed point, as `_to_limbs` of the codec writes them: two
   limbs that are cut toward zero, then one that is rounded. All steps are exact. */
static void add_limbs(const Py_buffer *values, double largest, int64_t *total)
{
    const Py_ssize_t size = values->shape[1];
    const int single = values->format[0] == 'f';
    for (Py_ssize_t i = 0; i < values->shape[0]; i++)
        for (Py_ssize_t j = 0; j < size; j++) {
            const Py_ssize_t at = i * size + j;
            double rest = single ? (double)((const float *)values->buf)[at] : ((const double *)values->buf)[at];
            rest = rest - rest == 0 ? rest : 0.0; /* NaN and infinities are sent as 0 */
            rest = rest < largest ? rest : largest;
            rest = rest > -largest ? rest : -largest;
            const int64_t high = (int64_t)(rest * 0x1p-24);
            rest -= (double)high * 0x1p24;
            const int64_t middle = (int64_t)(rest * 0x1p8);
            rest -= (double)middle * 0x1p-8;
            total[j] += high;
            total[size + j] += middle;
            /* To the nearest integer, ties to even: below 2^51 this sum has no fraction. */
            total[2 * size + j] += (int64_t)((rest * 0x1p40 + 0x1.8p52) - 0x1.8p52);
        }
}

/* limb_sum(values, largest, total): total of shape (3, size) gets the sum of the rows. */
static PyObject *limb_sum(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    if (expect(n_args, 3) < 0)
        return NULL;
    const double largest = PyFloat_AsDouble(args[1]);
    const Py_buffer *values, *total;
    if (!PyErr_Occurred() && (values = take(&arrays, args[0], "fd", 2, DENSE, "values"))
        && (total = take(&arrays, args[2], "lq", 2, DENSE | PyBUF_WRITABLE, "total"))) {
        if (total->shape[0] != 3 || total->shape[1] != values->shape[1] || !(largest > 0 && largest <= 0x1p55))
            PyErr_SetString(PyExc_ValueError, "arrays do not fit together");
        else {
            Py_BEGIN_ALLOW_THREADS
            add_limbs(values, largest, total->buf);
            Py_END_ALLOW_THREADS
        }
    }
    return finish(&arrays);
}

/* splitmix64, as `hashed` of skfedcal/methods/own_rows.py. */
static uint64_t splitmix(uint64_t value, uint64_t salt)
{
    uint64_t z = (value + salt) * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0x632BE59BD9B4E019);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* held_marks(offsets, names, salt, limit, out): whether the hash of a row's number at its client
   and of the client's name is below the limit. */
static PyObject *held_marks(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    if (expect(n_args, 5) < 0)
        return NULL;
    const uint64_t salt = PyLong_AsUnsignedLongLong(args[2]), limit = PyLong_AsUnsignedLongLong(args[3]);
    const Py_buffer *offsets, *names, *out;
    if (!PyErr_Occurred() && (offsets = take(&arrays, args[0], INTEGERS, 1, 0, "offsets"))
        && (names = take(&arrays, args[1], "lq", 1, DENSE, "names"))
        && (out = take(&arrays, args[4], "?", 1, DENSE | PyBUF_WRITABLE, "out"))) {
        const Py_ssize_t n = length(offsets) - 1, n_rows = length(out);
        int good = n >= 0 && length(names) == n && whole_number(offsets, 0) >= 0;
        for (Py_ssize_t i = 0; i < n && good; i++)
            good = whole_number(offsets, i) <= whole_number(offsets, i + 1);
        good = good && whole_number(offsets, n) - whole_number(offsets, 0) == n_rows;
        char *mark = out->buf;
        for (Py_ssize_t i = 0; i < n && good; i++) {
            const uint64_t own = splitmix((uint64_t)((const int64_t *)names->buf)[i], salt + 1);
            const Py_ssize_t size = whole_number(offsets, i + 1) - whole_number(offsets, i);
            for (Py_ssize_t j = 0; j < size; j++)
                *mark++ = splitmix((uint64_t)j ^ own, salt) < limit;
        }
        if (!good)
            PyErr_SetString(PyExc_ValueError, "arrays do not fit together");
    }
    return finish(&arrays);
}

/* A dense copy of a row, times a number of its own precision. */
static const char *scaled_row(const Matrix *m, const char *row, double scale, void *to)
{
    for (Py_ssize_t j = 0; j < m->columns; j++)
        if (m->single)
            ((float *)to)[j] = *(const float *)(row + j * m->across) * (float)scale;
        else
            ((double *)to)[j] = *(const double *)(row + j * m->across) * scale;
    return to;
}

/* Scores of rows[order[i]], or rows[i], times a number; `work` has room for GROUP + 1 rows, or
   for two of more columns than FEW_BINS. */
static void score_rows(const Matrix *m, const Py_buffer *order, const Py_buffer *labels, const double *scale, double *work, double *to)
{
    const Py_ssize_t n = length(labels), wide = m->columns + 16;
    Matrix read = *m;
    if (scale)
        read.across = m->single ? 4 : 8;
    Group group = {.size = 0};
    for (Py_ssize_t i = 0; i < n; i++) {
        const char *row = m->data + (order ? whole_number(order, i) : i) * m->down;
        const Py_ssize_t label = whole_number(labels, i);
        if (scale)
            row = scaled_row(m, row, *scale, work + (group.size + 1) * wide);
        if (m->columns > FEW_BINS) {
            level->row_scores(&read, row, label, work, to + i, to + n + i);
            continue;
        }
        group.rows[group.size] = row;
        group.labels[group.size++] = label;
        if (group.size < GROUP && i < n - 1)
            continue;
        const Py_ssize_t first = i + 1 - group.size;
        level->few_scores(&read, &group, NULL, to + first, to + n + first);
        group.size = 0;
    }
}

/* scores(rows, order, labels, scale, out): log loss and Brier score of rows[order[i]], or of
   rows[i] if order is None, and unless scale is None of `scale` times the row; out (2 or 4, n). */
static PyObject *scores(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    const Py_buffer *rows, *order = NULL, *labels, *out;
    if (expect(n_args, 5) < 0)
        return NULL;
    const int more = args[3] != Py_None;
    const double scale = more ? PyFloat_AsDouble(args[3]) : 1.0;
    if (!PyErr_Occurred() && (rows = take(&arrays, args[0], "fd", 2, 0, "rows"))
        && (args[1] == Py_None || (order = take(&arrays, args[1], INTEGERS, 1, 0, "order")))
        && (labels = take(&arrays, args[2], INTEGERS, 1, 0, "labels"))
        && (out = take(&arrays, args[4], "d", 2, DENSE | PyBUF_WRITABLE, "out"))) {
        const Matrix m = matrix_of(rows);
        const Py_ssize_t n = length(labels);
        int good = out->shape[0] == (more ? 4 : 2) && out->shape[1] == n && (order ? length(order) : m.rows) == n;
        for (Py_ssize_t i = 0; i < n && good; i++) {
            const Py_ssize_t own = whole_number(labels, i), at = order ? whole_number(order, i) : i;
            good = own >= 0 && own < m.columns && at >= 0 && at < m.rows;
        }
        double *work = malloc((m.columns + 16) * (m.columns > FEW_BINS ? 2 : GROUP + 1) * sizeof(double));
        if (!good)
            PyErr_SetString(PyExc_IndexError, "arrays do not fit together");
        else if (!work)
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            score_rows(&m, order, labels, NULL, work, out->buf);
            if (more)
                score_rows(&m, order, labels, &scale, work, (double *)out->buf + 2 * n);
            Py_END_ALLOW_THREADS
        }
        free(work);
    }
    return finish(&arrays);
}

/* Makes room; 0 if there is none. */
static int start_scaling(Scaling *s)
{
    const Py_ssize_t half = s->n * (s->n + 1) / 2, more = (s->n + 1) * (s->n + 2) / 2;
    s->wide = (s->n + 8) / 8 * 8; /* at least one column of padding */
    s->matrix = s->map == MAP_MATRIX;
    s->n_slopes = s->wide * (s->matrix ? s->n + 4 : 2);
    if (s->bend == BEND_FULL) {
        s->n_left = half;
        s->n_right = (more + 7) / 8 * 8;
        s->left_size = (half + 15) / 8 * 8;
        s->right_size = s->n_right + 8;
        s->n_products = s->left_size * s->right_size;
    }
    else if (s->bend == BEND_PAIR || s->bend == BEND_SPLIT) {
        s->right_size = s->left_size = s->wide * (s->bend == BEND_SPLIT ? 3 : 2);
        s->n_products = s->right_size * s->right_size;
        if (s->map == MAP_ORDER)
            s->left_size = 5 * s->wide;
    }
    const Py_ssize_t rows = s->matrix ? KEPT_ROWS * s->wide : 0, line = s->map == MAP_ORDER ? s->wide : 0;
    const Py_ssize_t sizes[] = {s->wide, s->wide, 3 * s->wide, s->n_slopes, s->n_slopes, s->n_products, s->wide, rows, rows, KEPT_ROWS * s->left_size, KEPT_ROWS * s->right_size, line, line, line, line, line, 2 * line};
    double **const parts[] = {&s->x, &s->p, &s->own, &s->params, &s->slopes, &s->products, (double **)&s->keep, &s->rows, &s->residuals, &s->left, &s->right,
        &s->below, &s->gaps, &s->soft, &s->change, (double **)&s->order, (double **)&s->sorting};
    const int n_parts = sizeof sizes / sizeof *sizes;
    Py_ssize_t total = 8;
    for (int i = 0; i < n_parts; i++)
        total += (sizes[i] + 7) / 8 * 8;
    if (!(s->memory = calloc(total, sizeof(double))))
        return 0;
    double *at = s->memory + (64 - (uintptr_t)s->memory % 64) / 8;
    for (int i = 0; i < n_parts; at += (sizes[i] + 7) / 8 * 8, i++)
        *parts[i] = at;
    return 1;
}

/* Writes the part above the diagonal of one block of products; the diagonal is `own`. */
static double *write_upper(const Scaling *s, const double *block, const double *own, double *to)
{
    for (Py_ssize_t j = 0; j < s->n; j++)
        for (Py_ssize_t k = j; k < s->n; k++)
            *to++ = k == j && own ? own[j] : (own ? -1.0 : 1.0) * block[j * s->right_size + k];
    return to;
}

/* Sums of a client in the order in which they are sent. */
static void write_curvature(const Scaling *s, double *to)
{
    const Py_ssize_t n = s->n, wide = s->wide, step = s->right_size;
    if (s->bend == BEND_CLASS)
        for (int part = 0; part < 3; part++)
            memcpy(to + part * n, s->own + part * wide, n * sizeof(double));
    if (s->bend == BEND_FULL)
        for (Py_ssize_t j = 0; j < s->n_left; j++)
            memcpy(to + j * ((n + 1) * (n + 2) / 2), s->products + j * step, (n + 1) * (n + 2) / 2 * sizeof(double));
    if (s->bend != BEND_PAIR && s->bend != BEND_SPLIT)
        return;
    const double *second = s->products + wide * step + wide, *third = second + wide * step + wide;
    for (Py_ssize_t j = 0; j < n && s->map == MAP_ORDER; j++) {
        const double *line = s->products + j * step, *turned = s->products + wide * step + j;
        for (Py_ssize_t k = j; k < n; k++)
            *to++ = line[k];
        for (Py_ssize_t k = 0; k < n; k++)
            *to++ = k < j ? turned[k * step] : line[wide + k];
        for (Py_ssize_t k = j; k < n; k++)
            *to++ = second[j * step + k];
    }
    for (Py_ssize_t j = 0; j < n && s->map != MAP_ORDER; j++) {
        const double *line = s->products + j * step;
        *to++ = s->own[j];
        for (Py_ssize_t k = j + 1; k < n; k++)
            *to++ = -line[k];
        for (Py_ssize_t k = 0; k < n; k++)
            *to++ = k == j ? s->own[wide + j] : -line[wide + k];
        *to++ = s->own[2 * wide + j];
        for (Py_ssize_t k = j + 1; k < n; k++)
            *to++ = -second[j * step + k];
    }
    if (s->bend == BEND_SPLIT)
        write_upper(s, third, NULL, write_upper(s, second, s->own + 2 * wide, to));
}

static Py_ssize_t n_bends(Py_ssize_t n, int bend)
{
    const Py_ssize_t pair = n * (2 * n + 1), half = n * (n + 1) / 2;
    const Py_ssize_t full = bend == BEND_FULL ? half * ((n + 1) * (n + 2) / 2) : 0;
    const Py_ssize_t sizes[] = {0, pair, 3 * n, full, pair + 2 * half};
    return sizes[bend];
}

/* Returns what does not fit, or NULL. */
static const char *add_scalings(const Matrix *m, const Loop *loop, Scaling *s, const Py_buffer *given, const Py_buffer *out, const Py_buffer *bends)
{
    const Py_ssize_t n_clients = length(loop->offsets) - 1, n = length(loop->labels), lines = s->matrix ? s->n + 1 : 2;
    const int shared = given->shape[0] == 1;
    for (Py_ssize_t c = 0; c < n_clients; c++) {
        const Py_ssize_t start = whole_number(loop->offsets, c), stop = whole_number(loop->offsets, c + 1);
        double *to = (double *)out->buf + c * (2 + lines * s->n);
        if (start < 0 || stop > n || (!loop->order && stop > m->rows))
            return "offsets are out of range";
        if (start >= stop)
            continue;
        for (Py_ssize_t j = 0; j < lines; j++)
            memcpy(s->params + j * s->wide, (const double *)given->buf + ((shared ? 0 : c) * lines + j) * s->n, s->n * sizeof(double));
        memset(s->slopes, 0, s->n_slopes * sizeof(double));
        memset(s->own, 0, 3 * s->wide * sizeof(double));
        memset(s->products, 0, s->n_products * sizeof(double));
        for (Py_ssize_t i = start; i < stop; i++) {
            const Py_ssize_t at = loop->order ? whole_number(loop->order, i) : i, label = whole_number(loop->labels, i);
            if (at < 0 || at >= m->rows)
                return "order is out of range";
            if (label < 0 || label >= m->columns)
                return "a label is out of range";
            level->add_scaling(s, m, m->data + at * m->down, label, loop->weights ? real_number(loop->weights, i) : 1.0, to);
        }
        level->flush_scaling(s);
        for (Py_ssize_t j = 0; j < lines; j++)
            memcpy(to + 2 + j * s->n, s->slopes + j * s->wide, s->n * sizeof(double));
        if (s->bend)
            write_curvature(s, (double *)bends->buf + c * bends->shape[1]);
    }
    return NULL;
}

/* scaling_sums(rows, order, labels, offsets, weights, map, beta, params, bend, sums, curvature)

   params (1 or n_clients, size): the scale or the columns of the matrix, then the bias, which
   act on centred rows times beta. sums (n_clients, 2 + size), zeros, get the number of
   rows by weight, loss and slopes; curvature (n_clients, ...) what `bend` asks for, zeros too. */
static PyObject *scaling_sums(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    if (expect(n_args, 11) < 0)
        return NULL;
    const long map = PyLong_AsLong(args[5]), bend = PyLong_AsLong(args[8]);
    Scaling s = {.map = (int)map, .beta = PyFloat_AsDouble(args[6]), .bend = (int)bend};
    Loop loop = {.step = 1};
    const Py_buffer *params, *sums, *bends;
    if (!PyErr_Occurred() && (loop.rows = take(&arrays, args[0], "fd", 2, 0, "rows"))
        && (args[1] == Py_None || (loop.order = take(&arrays, args[1], INTEGERS, 1, 0, "order")))
        && (loop.labels = take(&arrays, args[2], INTEGERS, 1, 0, "labels"))
        && (loop.offsets = take(&arrays, args[3], INTEGERS, 1, 0, "offsets"))
        && (args[4] == Py_None || (loop.weights = take(&arrays, args[4], "d", 1, 0, "weights")))
        && (params = take(&arrays, args[7], "d", 2, DENSE, "params"))
        && (sums = take(&arrays, args[9], "d", 2, DENSE | PyBUF_WRITABLE, "sums"))
        && (bends = take(&arrays, args[10], "d", 2, DENSE | PyBUF_WRITABLE, "curvature"))) {
        const Matrix m = matrix_of(loop.rows);
        const Py_ssize_t n_clients = length(loop.offsets) - 1, size = m.columns * (map == MAP_MATRIX ? m.columns + 1 : 2);
        const char *fault = NULL;
        s.n = m.columns;
        /* Products of all pairs of more classes have no room. */
        if (n_clients < 0 || m.columns < 1 || (bend == BEND_FULL && m.columns > 1 << 12) || map < 0 || map > MAP_ORDER || bend < 0 || bend > (map == MAP_ORDER ? BEND_CLASS : BEND_SPLIT)
            || params->shape[1] != size
            || (params->shape[0] != 1 && params->shape[0] != n_clients) || sums->shape[0] != n_clients
            || sums->shape[1] != size + 2 || bends->shape[0] != n_clients || bends->shape[1] != n_bends(m.columns, s.bend)
            || (loop.weights && length(loop.weights) != length(loop.labels))
            || (loop.order && length(loop.order) < length(loop.labels)))
            fault = "arrays do not fit together";
        else if (!start_scaling(&s))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            fault = add_scalings(&m, &loop, &s, params, sums, bends);
            Py_END_ALLOW_THREADS
        }
        free(s.memory);
        if (fault)
            PyErr_SetString(PyExc_IndexError, fault);
    }
    return finish(&arrays);
}

/* map_scaling(rows, matrix, params, out, proba)

   Logits of vector or matrix scaling, or their softmax, of rows that need not be centred. params
   as those of scaling_sums, with beta 1; out: dense, of the shape and type of rows. */
static PyObject *map_scaling(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    if (expect(n_args, 5) < 0)
        return NULL;
    Scaling s = {.map = PyObject_IsTrue(args[1]) ? MAP_MATRIX : MAP_VECTOR, .beta = 1.0};
    const int proba = PyObject_IsTrue(args[4]);
    const Py_buffer *rows, *params, *to;
    if (PyErr_Occurred() || !(rows = take(&arrays, args[0], "fd", 2, 0, "rows"))
        || !(params = take(&arrays, args[2], "d", 2, DENSE, "params"))
        || !(to = take(&arrays, args[3], "fd", 2, DENSE | PyBUF_WRITABLE, "out")))
        return finish(&arrays);
    const Matrix m = matrix_of(rows), out = matrix_of(to);
    const Py_ssize_t lines = s.map == MAP_MATRIX ? m.columns + 1 : 2;
    s.n = m.columns;
    if (m.columns < 1 || m.rows != out.rows || m.columns != out.columns || m.single != out.single || params->shape[0] != lines || params->shape[1] != s.n)
        PyErr_SetString(PyExc_IndexError, "arrays do not fit together");
    else if (!start_scaling(&s))
        PyErr_NoMemory();
    else {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t j = 0; j < lines; j++)
            memcpy(s.params + j * s.wide, (const double *)params->buf + j * s.n, s.n * sizeof(double));
        for (Py_ssize_t i = 0; i < m.rows; i++)
            level->map_scaling(&s, &m, m.data + i * m.down, proba, out.data + i * out.down);
        Py_END_ALLOW_THREADS
    }
    free(s.memory);
    return finish(&arrays);
}

/* Makes room; 0 if there is none. */
static int start_bias(Bias *s)
{
    s->wide = (s->n + 7) / 8 * 8;
    const Py_ssize_t rows = s->full ? KEPT_ROWS : 1, squares = s->full ? s->wide : 0;
    const Py_ssize_t lines[] = {1, 1, 1, 1, 1, 1, rows, rows, squares};
    double **const parts[] = {&s->bias, &s->x, &s->slopes, &s->counts, &s->cross, &s->own, &s->left, &s->right, &s->products};
    const int n_parts = sizeof lines / sizeof *lines;
    Py_ssize_t total = 1;
    for (int i = 0; i < n_parts; i++)
        total += lines[i];
    if (!(s->memory = calloc(total * s->wide + 8, sizeof(double))))
        return 0;
    double *at = s->memory + (64 - (uintptr_t)s->memory % 64) / 8;
    for (int i = 0; i < n_parts; at += lines[i] * s->wide, i++)
        *parts[i] = at;
    return 1;
}

/* Writes the sums of a client at one point in the order in which they are sent. */
static void write_bias(const Bias *s, double *to)
{
    const Py_ssize_t n = s->n;
    memcpy(to, s->head, sizeof s->head);
    to += 4;
    for (Py_ssize_t j = 0; j < n; j++)
        to[j] = s->slopes[j] - s->counts[j];
    memcpy(to += n, s->cross, n * sizeof(double));
    to += n;
    if (!s->full)
        memcpy(to, s->own, n * sizeof(double));
    else
        for (Py_ssize_t j = 0; j < n; to += n - ++j)
            memcpy(to, s->products + j * s->wide + j + 1, (n - 1 - j) * sizeof(double));
}

/* Returns what does not fit, or NULL. */
static const char *add_biases(const Matrix *m, const Loop *loop, Bias *s, const Py_buffer *points, double *to, Py_ssize_t size)
{
    const Py_ssize_t n_clients = length(loop->offsets) - 1, n = length(loop->labels), n_points = points->shape[0];
    for (Py_ssize_t at = 0; at < n_clients * n_points; at++, to += size) {
        const Py_ssize_t c = at / n_points, start = whole_number(loop->offsets, c), stop = whole_number(loop->offsets, c + 1);
        const double *point = (const double *)points->buf + at % n_points * (s->n + 1);
        if (start < 0 || stop > n || (!loop->order && stop > m->rows))
            return "offsets are out of range";
        s->beta = point[0];
        for (Py_ssize_t j = 0; j < s->wide; j++)
            s->bias[j] = j < s->n ? point[1 + j] : -INFINITY;
        memset(s->head, 0, sizeof s->head);
        memset(s->slopes, 0, s->wide * sizeof(double));
        memset(s->counts, 0, s->wide * sizeof(double));
        memset(s->cross, 0, s->wide * sizeof(double));
        memset(s->own, 0, s->wide * sizeof(double));
        if (s->full)
            memset(s->products, 0, s->wide * s->wide * sizeof(double));
        for (Py_ssize_t i = start; i < stop; i++) {
            const Py_ssize_t row = loop->order ? whole_number(loop->order, i) : i, label = whole_number(loop->labels, i);
            if (row < 0 || row >= m->rows)
                return "order is out of range";
            if (label < 0 || label >= m->columns)
                return "a label is out of range";
            level->add_bias(s, m, m->data + row * m->down, label, loop->weights ? real_number(loop->weights, i) : 1.0);
        }
        level->flush_bias(s);
        write_bias(s, to);
    }
    return NULL;
}

/* bias_sums(rows, order, labels, offsets, weights, points, full, sums)

   points (n_points, 1 + n_classes): inverse temperature and biases. sums (n_clients, n_points,
   size) gets the number of rows by weight, loss, slope and curvature in the relative change of
   the inverse temperature, slopes in the biases, their curvature with the former, and that of
   each bias with itself, or with `full` the products of the probabilities of two classes. */
static PyObject *bias_sums(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    if (expect(n_args, 8) < 0)
        return NULL;
    Bias s = {.full = PyObject_IsTrue(args[6])};
    Loop loop = {.step = 1};
    const Py_buffer *points, *sums;
    if (!PyErr_Occurred() && (loop.rows = take(&arrays, args[0], "fd", 2, 0, "rows"))
        && (args[1] == Py_None || (loop.order = take(&arrays, args[1], INTEGERS, 1, 0, "order")))
        && (loop.labels = take(&arrays, args[2], INTEGERS, 1, 0, "labels"))
        && (loop.offsets = take(&arrays, args[3], INTEGERS, 1, 0, "offsets"))
        && (args[4] == Py_None || (loop.weights = take(&arrays, args[4], "d", 1, 0, "weights")))
        && (points = take(&arrays, args[5], "d", 2, DENSE, "points"))
        && (sums = take(&arrays, args[7], "d", 3, DENSE | PyBUF_WRITABLE, "sums"))) {
        const Matrix m = matrix_of(loop.rows);
        const Py_ssize_t n = s.n = m.columns, size = 4 + 2 * n + (s.full ? n * (n - 1) / 2 : n);
        const char *fault = NULL;
        if (length(loop.offsets) < 1 || n < 1 || points->shape[1] != n + 1
            || sums->shape[0] != length(loop.offsets) - 1 || sums->shape[1] != points->shape[0]
            || sums->shape[2] != size || (loop.weights && length(loop.weights) != length(loop.labels))
            || (loop.order && length(loop.order) < length(loop.labels)))
            fault = "arrays do not fit together";
        else if (!start_bias(&s))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            fault = add_biases(&m, &loop, &s, points, sums->buf, size);
            Py_END_ALLOW_THREADS
        }
        free(s.memory);
        if (fault)
            PyErr_SetString(PyExc_IndexError, fault);
    }
    return finish(&arrays);
}

static const char NO_DISTRIBUTION[] = "a row is not a distribution";

/* valid_rows(rows, slack): an error unless every row has entries of 0 or more, and adds up to 1
   within `slack`. */
static PyObject *valid_rows(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    int good = 1;
    if (expect(n_args, 2) < 0)
        return NULL;
    const double slack = PyFloat_AsDouble(args[1]);
    const Py_buffer *rows;
    if (!PyErr_Occurred() && (rows = take(&arrays, args[0], "fd", 2, 0, "rows"))) {
        const Matrix m = matrix_of(rows);
        void *buffer = malloc((m.columns + GROUP) * 8);
        if (!buffer)
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            good = level->valid_rows[m.single](&m, slack, buffer);
            Py_END_ALLOW_THREADS
        }
        free(buffer);
        if (!good)
            PyErr_SetString(PyExc_ValueError, NO_DISTRIBUTION);
    }
    return finish(&arrays);
}

/* all_finite(rows): whether no entry is NaN or infinite. */
static PyObject *all_finite(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    int good = 1;
    if (expect(n_args, 1) < 0)
        return NULL;
    const Py_buffer *rows = take(&arrays, args[0], "fd", 2, 0, "rows");
    if (rows) {
        Matrix m = matrix_of(rows);
        const Py_ssize_t size = m.single ? 4 : 8;
        void *buffer = NULL;
        if (m.across == size && m.down == size * m.columns) { /* as one row */
            m.columns *= m.rows;
            m.rows = m.rows > 0;
        }
        else if (!(buffer = malloc((m.columns + GROUP) * 8)))
            PyErr_NoMemory();
        if (!PyErr_Occurred()) {
            Py_BEGIN_ALLOW_THREADS
            good = level->all_finite[m.single](&m, buffer);
            Py_END_ALLOW_THREADS
        }
        free(buffer);
    }
    PyObject *none = finish(&arrays);
    if (!none)
        return NULL;
    Py_DECREF(none);
    return PyBool_FromLong(good);
}

/* squares(rows, out): sum of squares of each row. */
static PyObject *squares(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    const Py_buffer *rows, *out;
    if (expect(n_args, 2) < 0)
        return NULL;
    if ((rows = take(&arrays, args[0], "fd", 2, 0, "rows")) && (out = take(&arrays, args[1], "d", 1, DENSE | PyBUF_WRITABLE, "out"))) {
        const Matrix m = matrix_of(rows);
        void *buffer = malloc((m.columns + GROUP) * 8);
        if (!buffer)
            PyErr_NoMemory();
        else if (m.columns < 1 || length(out) != m.rows)
            PyErr_SetString(PyExc_IndexError, "arrays do not fit together");
        else {
            Py_BEGIN_ALLOW_THREADS
            level->squares[m.single](&m, buffer, out->buf);
            Py_END_ALLOW_THREADS
        }
        free(buffer);
    }
    return finish(&arrays);
}

/* top_labels(rows, top, value): the first of the largest entries of each row, and the entry. */
static PyObject *top_labels(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    const Py_buffer *rows, *top, *value;
    if (expect(n_args, 3) < 0)
        return NULL;
    if ((rows = take(&arrays, args[0], "fd", 2, 0, "rows")) && (top = take(&arrays, args[1], "lq", 1, DENSE | PyBUF_WRITABLE, "top"))
        && (value = take(&arrays, args[2], "d", 1, DENSE | PyBUF_WRITABLE, "value"))) {
        const Matrix m = matrix_of(rows);
        void *buffer = malloc((m.columns + GROUP) * 8);
        if (!buffer)
            PyErr_NoMemory();
        else if (m.columns < 1 || length(top) != m.rows || length(value) != m.rows)
            PyErr_SetString(PyExc_IndexError, "arrays do not fit together");
        else {
            Py_BEGIN_ALLOW_THREADS
            level->top_labels[m.single](&m, buffer, top->buf, value->buf);
            Py_END_ALLOW_THREADS
        }
        free(buffer);
    }
    return finish(&arrays);
}

/* bin_sums(values, labels, weights, sums): sums (3, n_bins), zeros, get values, true labels and
   rows of bins of equal width, by weight unless weights are None. */
static PyObject *bin_sums(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    const Py_buffer *values, *labels, *weights = NULL, *sums;
    if (expect(n_args, 4) < 0)
        return NULL;
    if ((values = take(&arrays, args[0], "d", 1, 0, "values")) && (labels = take(&arrays, args[1], "?", 1, 0, "labels"))
        && (args[2] == Py_None || (weights = take(&arrays, args[2], "d", 1, 0, "weights")))
        && (sums = take(&arrays, args[3], "d", 2, DENSE | PyBUF_WRITABLE, "sums"))) {
        const Py_ssize_t n = length(values), n_bins = sums->shape[1];
        double *of_values = sums->buf, *of_labels = of_values + n_bins, *of_rows = of_labels + n_bins;
        const double last = (double)n_bins - 1;
        if (sums->shape[0] != 3 || n_bins < 1 || length(labels) != n || (weights && length(weights) != n))
            PyErr_SetString(PyExc_IndexError, "arrays do not fit together");
        else {
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t i = 0; i < n; i++) {
                const double value = real_number(values, i), weight = weights ? real_number(weights, i) : 1.0;
                /* Without branches, which new rows would mispredict. NaN, which callers refuse,
                   falls in the last bin. */
                const double place = value * (double)n_bins, low = place < last ? place : last;
                const Py_ssize_t at = (Py_ssize_t)(low > 0.0 ? low : 0.0);
                of_values[at] += weight * value;
                of_labels[at] += weight * (double)((const char *)labels->buf)[i * labels->strides[0]];
                of_rows[at] += weight;
            }
            Py_END_ALLOW_THREADS
        }
    }
    return finish(&arrays);
}

/* Adds up rows as column_sums of skfedcal/metrics/binning.py does: groups of rows side by side,
   then the groups of a line, then the rows that are left. Returns 0 where one is no distribution. */
static int add_gaps(const Matrix *m, const Py_buffer *codes, Gaps *g, int64_t *labels, double *wide, double *columns)
{
    const int direct = codes->itemsize == 8 && codes->strides[0] == 8;
    int good = 1;
    const Py_ssize_t n = m->columns, group = n < WIDE_ROW ? WIDE_ROW / n : 1, whole = m->rows / group * group;
    double *rest = wide + group * n;
    for (Py_ssize_t i = 0; i < m->rows && good; i += group) {
        const Py_ssize_t size = i < whole ? group : m->rows - i;
        const Matrix part = {m->data + i * m->down, size, n, m->down, m->across, m->single};
        for (Py_ssize_t k = 0; k < size && !direct; k++)
            labels[k] = whole_number(codes, i + k);
        g->labels = direct ? (const int64_t *)codes->buf + i : labels;
        good = level->add_rows[m->single](&part, g, i < whole ? wide : rest);
    }
    for (Py_ssize_t k = 1; k < group; k++)
        for (Py_ssize_t j = 0; j < n; j++) {
            wide[j] += wide[k * n + j];
            rest[j] += rest[k * n + j];
        }
    for (Py_ssize_t j = 0; j < n; j++)
        columns[j] = wide[j] + rest[j];
    return good;
}

/* class_gaps(rows, codes, n_bins, slack, gaps, columns): an error as in valid_rows. gaps (n_classes, width), zeros, get the entries that are not far below 1 / n_bins,
   less 1 for labels, by class and bin; columns (n_classes,) the sums of all entries. */
static PyObject *class_gaps(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    int good = 1;
    if (expect(n_args, 6) < 0)
        return NULL;
    const long n_bins = PyLong_AsLong(args[2]);
    Gaps g = {.slack = PyFloat_AsDouble(args[3]), .n_bins = (int)n_bins};
    const Py_buffer *rows, *codes, *gaps, *columns;
    if (!PyErr_Occurred() && (rows = take(&arrays, args[0], "fd", 2, DENSE, "rows"))
        && (codes = take(&arrays, args[1], INTEGERS, 1, 0, "codes"))
        && (gaps = take(&arrays, args[4], "d", 2, DENSE | PyBUF_WRITABLE, "gaps"))
        && (columns = take(&arrays, args[5], "d", 1, DENSE | PyBUF_WRITABLE, "columns"))) {
        const Matrix m = matrix_of(rows);
        const char *fault = NULL;
        const Py_ssize_t n = m.columns, size = n < WIDE_ROW ? WIDE_ROW : n;
        double *wide = calloc(2 * size, sizeof(double));
        int64_t *labels = malloc(WIDE_ROW * sizeof(int64_t));
        g.found = malloc((size + 8) * sizeof(int32_t));
        g.marked = malloc((size / 16 + 1) * sizeof(int32_t));
        g.marks = malloc((size / 16 + 1) * sizeof(uint32_t));
        g.gaps = gaps->buf;
        g.width = gaps->shape[1];
        /* An entry is at most the sum of its row, unless another one is below 0. */
        if (n < 1 || n > INT32_MAX - 8 || n_bins < 1 || n_bins > 1 << 24 || !(g.width > n_bins * (1 + 2 * g.slack) && g.slack >= 0)
            || length(codes) != m.rows || gaps->shape[0] != n || length(columns) != n)
            fault = "arrays do not fit together";
        else if (!wide || !labels || !g.found || !g.marked || !g.marks)
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            good = add_gaps(&m, codes, &g, labels, wide, columns->buf);
            Py_END_ALLOW_THREADS
        }
        free(wide);
        free(labels);
        free(g.found);
        free(g.marked);
        free(g.marks);
        if (fault)
            PyErr_SetString(PyExc_IndexError, fault);
        else if (!good)
            PyErr_SetString(PyExc_ValueError, NO_DISTRIBUTION);
    }
    return finish(&arrays);
}

/* Lines of one class at the middles of the finest bins: through (place, height) of its bins with
   rows; a bin without rows keeps its height. As np.interp, between nodes that are moved by
   `shift` as there, where the nodes of all classes are one list. */
static void join_class(Py_ssize_t n_bins, const double *rows, const double *place, const double *height, double shift, const double *odds, Py_ssize_t n_odds, double *out)
{
    const Py_ssize_t each = n_odds / n_bins;
    Py_ssize_t first = 0, last = n_bins - 1;
    while (first < n_bins && !(rows[first] > 0))
        first++;
    while (last > 0 && !(rows[last] > 0))
        last--;
    Py_ssize_t at = first, next = first;
    for (Py_ssize_t i = 0; i < n_bins; i++)
        for (Py_ssize_t k = i * each; k < (i + 1) * each; k++) {
            out[k] = height[i];
            if (!(rows[i] > 0))
                continue;
            double x = odds[k] > place[first] ? odds[k] : place[first];
            x = (x < place[last] ? x : place[last]) + shift;
            /* From the last node that is not beyond x to the one after it. */
            while (next <= last && place[next] + shift <= x) {
                at = next++;
                while (next <= last && !(rows[next] > 0))
                    next++;
            }
            const double start = place[at] + shift;
            out[k] = height[at];
            if (next <= last && x != start)
                out[k] = (height[next] - height[at]) / (place[next] + shift - start) * (x - start) + height[at];
        }
}

/* Row of a table of real numbers whose entries are side by side. */
static const double *line_of(const Py_buffer *view, Py_ssize_t i)
{
    return (const double *)((const char *)view->buf + i * view->strides[0]);
}

/* join_lines(rows, place, height, classes, odds, stretch, out): see _lines of
   skfedcal/methods/bins/bbq_table.py. */
static PyObject *join_lines(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    if (expect(n_args, 7) < 0)
        return NULL;
    const double stretch = PyFloat_AsDouble(args[5]);
    const Py_buffer *rows, *place, *height, *classes, *odds, *out;
    if (!PyErr_Occurred() && (rows = take(&arrays, args[0], "d", 2, 0, "rows"))
        && (place = take(&arrays, args[1], "d", 2, 0, "place"))
        && (height = take(&arrays, args[2], "d", 2, 0, "height"))
        && (classes = take(&arrays, args[3], "lq", 1, DENSE, "classes"))
        && (odds = take(&arrays, args[4], "d", 1, DENSE, "odds"))
        && (out = take(&arrays, args[6], "d", 2, DENSE | PyBUF_WRITABLE, "out"))) {
        const Py_ssize_t n = length(classes), size = rows->shape[1], n_odds = length(odds);
        int good = size > 0 && n_odds % size == 0 && out->shape[0] == n && out->shape[1] == n_odds;
        for (int i = 0; i < 3; i++) {
            const Py_buffer *table = i == 0 ? rows : i == 1 ? place : height;
            good &= table->shape[0] == rows->shape[0] && table->shape[1] == size && (size == 1 || table->strides[1] == 8);
        }
        for (Py_ssize_t i = 0; i < n && good; i++) {
            const int64_t c = ((const int64_t *)classes->buf)[i];
            if ((good = c >= 0 && c < rows->shape[0]))
                join_class(size, line_of(rows, c), line_of(place, c), line_of(height, c), stretch * (double)i, odds->buf, n_odds,
                           (double *)out->buf + i * n_odds);
        }
        if (!good)
            PyErr_SetString(PyExc_IndexError, "arrays do not fit together");
    }
    return finish(&arrays);
}

/* Makes room; 0 if there is none. */
static int start_platt(Platt *s, const double *given)
{
    s->wide = (s->n + 7) / 8 * 8;
    if (!(s->memory = calloc((PLATT_LINES + PLATT_SUMS + 5) * s->wide + 8, sizeof(double))))
        return 0;
    s->given = s->memory + (64 - (uintptr_t)s->memory % 64) / 8;
    s->sums = s->given + PLATT_LINES * s->wide;
    s->own = s->sums + PLATT_SUMS * s->wide;
    s->place = s->own + 3 * s->wide;
    s->odds = s->place + s->wide;
    for (int k = 0; k < PLATT_LINES; k++)
        memcpy(s->given + k * s->wide, given + k * s->n, s->n * sizeof(double));
    return 1;
}

/* Returns what does not fit, or NULL. */
static const char *add_platts(const Matrix *m, const Loop *loop, Platt *s, Py_ssize_t first, double *to)
{
    const Py_ssize_t n_clients = length(loop->offsets) - 1, n = length(loop->labels);
    for (Py_ssize_t c = 0; c < n_clients; c++) {
        const Py_ssize_t start = whole_number(loop->offsets, c), stop = whole_number(loop->offsets, c + 1);
        if (start < 0 || stop > n || (!loop->order && stop > m->rows))
            return "offsets are out of range";
        memset(s->sums, 0, (PLATT_SUMS + 3) * s->wide * sizeof(double));
        for (Py_ssize_t i = start; i < stop; i++) {
            const Py_ssize_t row = loop->order ? whole_number(loop->order, i) : i, label = whole_number(loop->labels, i) - first;
            if (row < 0 || row >= m->rows)
                return "order is out of range";
            if (label < -first || label >= m->columns)
                return "a label is out of range";
            level->add_platt(s, m, m->data + row * m->down, label, loop->weights ? real_number(loop->weights, i) : 1.0);
        }
        for (int k = 0; k < PLATT_SUMS; k++)
            for (Py_ssize_t j = 0; j < s->n; j++)
                *to++ += s->sums[k * s->wide + j] - (k < 3 ? s->own[k * s->wide + j] : 0.0);
    }
    return NULL;
}

/* platt_sums(scores, order, labels, offsets, weights, first, given, sums)

   Label `first` + j is the class of score j. given (8, n): two factors of the scores, centre,
   inverse of the width, slope, shift, target of other classes, and how much higher that of the
   own class is. Loss, slopes (2) and curvature (3) are added to sums (n_clients, 6, n). */
static PyObject *platt_sums(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n_args)
{
    Arrays arrays = {.n = 0};
    if (expect(n_args, 8) < 0)
        return NULL;
    const Py_ssize_t first = PyLong_AsSsize_t(args[5]);
    Platt s = {.memory = NULL};
    Loop loop = {.step = 1};
    const Py_buffer *given, *sums;
    if (!PyErr_Occurred() && (loop.rows = take(&arrays, args[0], "fd", 2, 0, "scores"))
        && (args[1] == Py_None || (loop.order = take(&arrays, args[1], INTEGERS, 1, 0, "order")))
        && (loop.labels = take(&arrays, args[2], INTEGERS, 1, 0, "labels"))
        && (loop.offsets = take(&arrays, args[3], INTEGERS, 1, 0, "offsets"))
        && (args[4] == Py_None || (loop.weights = take(&arrays, args[4], "d", 1, 0, "weights")))
        && (given = take(&arrays, args[6], "d", 2, DENSE, "given"))
        && (sums = take(&arrays, args[7], "d", 3, DENSE | PyBUF_WRITABLE, "sums"))) {
        const Matrix m = matrix_of(loop.rows);
        const Py_ssize_t n = s.n = m.columns;
        const char *fault = NULL;
        if (length(loop.offsets) < 1 || n < 1 || first < 0 || first > 1 || given->shape[0] != PLATT_LINES || given->shape[1] != n
            || sums->shape[0] != length(loop.offsets) - 1 || sums->shape[1] != PLATT_SUMS || sums->shape[2] != n
            || (loop.weights && length(loop.weights) != length(loop.labels))
            || (loop.order && length(loop.order) < length(loop.labels)))
            fault = "arrays do not fit together";
        else if (!start_platt(&s, given->buf))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            fault = add_platts(&m, &loop, &s, first, sums->buf);
            Py_END_ALLOW_THREADS
        }
        free(s.memory);
        if (fault)
            PyErr_SetString(PyExc_IndexError, fault);
    }
    return finish(&arrays);
}

#include "_core_ids.h"

static PyMethodDef METHODS[] = {
    {"use", use, METH_O, "Choose a level by name."},
    {"levels", levels, METH_NOARGS, "Names of the levels that run here, best first."},
    {"map", (PyCFunction)(void (*)(void))map, METH_FASTCALL, "Function of each entry."},
    {"softmax", (PyCFunction)(void (*)(void))softmax, METH_FASTCALL, "Softmax of rows."},
    {"derivative_sums", (PyCFunction)(void (*)(void))derivative_sums, METH_FASTCALL, "Derivatives of the log loss."},
    {"bin_counts", (PyCFunction)(void (*)(void))bin_counts, METH_FASTCALL, "Counts of bins."},
    {"bin_values", (PyCFunction)(void (*)(void))bin_values, METH_FASTCALL, "Values of bins."},
    {"bin_scores", (PyCFunction)(void (*)(void))bin_scores, METH_FASTCALL, "Losses of rows and of bins."},
    {"encode_sum", (PyCFunction)(void (*)(void))encode_sum, METH_FASTCALL, "Sum of encoded rows."},
    {"limb_sum", (PyCFunction)(void (*)(void))limb_sum, METH_FASTCALL, "Sum of rows in fixed point."},
    {"held_marks", (PyCFunction)(void (*)(void))held_marks, METH_FASTCALL, "Rows that are held back."},
    {"scores", (PyCFunction)(void (*)(void))scores, METH_FASTCALL, "Losses of rows."},
    {"platt_sums", (PyCFunction)(void (*)(void))platt_sums, METH_FASTCALL, "Loss, slopes and curvature of sigmoids."},
    {"map_scaling", (PyCFunction)(void (*)(void))map_scaling, METH_FASTCALL, "Logits or softmax of vector or matrix scaling."},
    {"scaling_sums", (PyCFunction)(void (*)(void))scaling_sums, METH_FASTCALL, "Loss, slopes and curvature."},
    {"bias_sums", (PyCFunction)(void (*)(void))bias_sums, METH_FASTCALL, "Loss, slopes and curvature."},
    {"valid_rows", (PyCFunction)(void (*)(void))valid_rows, METH_FASTCALL, "Whether rows are distributions."},
    {"all_finite", (PyCFunction)(void (*)(void))all_finite, METH_FASTCALL, "Whether all entries are finite."},
    {"squares", (PyCFunction)(void (*)(void))squares, METH_FASTCALL, "Sum of squares of each row."},
    {"top_labels", (PyCFunction)(void (*)(void))top_labels, METH_FASTCALL, "Likeliest class of each row."},
    {"bin_sums", (PyCFunction)(void (*)(void))bin_sums, METH_FASTCALL, "Sums of bins of equal width."},
    {"class_gaps", (PyCFunction)(void (*)(void))class_gaps, METH_FASTCALL, "Probabilities less labels by bin."},
    {"join_lines", (PyCFunction)(void (*)(void))join_lines, METH_FASTCALL, "Lines through bins."},
    {"number_texts", (PyCFunction)(void (*)(void))number_texts, METH_FASTCALL, "Numbers of texts."},
    {"number_objects", (PyCFunction)(void (*)(void))number_objects, METH_FASTCALL, "Numbers of objects."},
    {"text_order", (PyCFunction)(void (*)(void))text_order, METH_FASTCALL, "Order of texts."},
    {"group_rows", (PyCFunction)(void (*)(void))group_rows, METH_FASTCALL, "Rows sorted by code."},
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *module)
{
    for (int i = N_LEVELS - 1; i >= 0; i--)
        if (runs_here(i))
            level = LEVELS[i];
    return PyModule_AddIntConstant(module, "interface", INTERFACE);
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, (void *)start}, {0, NULL}};

static struct PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "skfedcal._core",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&MODULE); }
