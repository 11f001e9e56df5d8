/* Rows of probabilities, for one level of instructions and one precision: are they
   distributions, which class is likeliest, and what do bins of a class hold.

   Included by _core_level.h for double and for float, as _core_rows.h is. A row of up to
   FEW_COLUMNS entries is added up from its first entry to its last, a longer one by places of
   a piece. */

#define LANES ((int)(WIDTH / sizeof(REAL)))
#define PARTS (64 / WIDTH)
#define PIECE ((int)(64 / sizeof(REAL)))

#if defined(__x86_64__) && WIDTH == 64
/* A mask of LANES bits as a number. gcc 12 may widen a mask of 16 bits by storing them and
   loading 32, of which half are what the stack held; here it cannot see where they come from. */
INLINE uint32_t RN(widened)(uint16_t mask)
{
    __asm__("" : "+r"(mask));
    return mask;
}
#endif

/* Bit l is the sign of lane l. */
INLINE uint32_t RN(signs)(ivec mask)
{
#if !defined(__x86_64__)
    uint32_t out = 0;
    for (int l = 0; l < LANES; l++)
        out |= (uint32_t)(mask[l] < 0) << l;
    return out;
#elif WIDTH == 16
    return (uint32_t)(sizeof(REAL) == 4 ? __builtin_ia32_movmskps((FN(vf))mask) : __builtin_ia32_movmskpd((FN(vd))mask));
#elif WIDTH == 32
    return (uint32_t)(sizeof(REAL) == 4 ? __builtin_ia32_movmskps256((FN(vf))mask) : __builtin_ia32_movmskpd256((FN(vd))mask));
#else
    typedef long long eight __attribute__((vector_size(64)));
    return RN(widened)(sizeof(REAL) == 4 ? __builtin_ia32_cvtd2mask512((FN(vw))mask) : __builtin_ia32_cvtq2mask512((eight)mask));
#endif
}

/* Bit l is set where lane l, read as a number without sign, is at least `least`, which is
   above 0. */
INLINE uint32_t RN(reaching)(ivec v, word least)
{
#if defined(__x86_64__) && WIDTH == 64
    typedef long long eight __attribute__((vector_size(64)));
    const ivec all = (ivec){0} + least;
    return RN(widened)(sizeof(REAL) == 4 ? __builtin_ia32_ucmpd512_mask((FN(vw))v, (FN(vw))all, 5, -1)
                                         : __builtin_ia32_ucmpq512_mask((eight)v, (eight)all, 5, -1));
#else
    /* Without signs, since differences from entries below 0 overflow. */
    typedef uint32_t narrow __attribute__((vector_size(WIDTH)));
    const ivec all = (ivec){0} + (least - 1);
    return RN(signs)((sizeof(REAL) == 4 ? (ivec)((narrow)all - (narrow)v) : (ivec)((FN(vu))all - (FN(vu))v)) | v);
#endif
}

/* Pointers to LANES rows from row `at` on; rows that are missing repeat the first. */
INLINE int RN(some_rows)(const Matrix *m, Py_ssize_t at, const char **rows)
{
    const int size = m->rows - at < LANES ? (int)(m->rows - at) : LANES;
    for (int l = 0; l < LANES; l++)
        rows[l] = m->data + (at + (l < size ? l : 0)) * m->down;
    return size;
}

/* Whether every row adds up to 1 within `slack` and, with `signs`, has no entry below 0. */
INLINE int RN(add_up)(const Matrix *m, double slack, const int signs, void *buffer)
{
    const REAL low = (REAL)(1.0 - slack), high = (REAL)(1.0 + slack);
    const Py_ssize_t n = m->columns, whole = n - n % PIECE;
    vec below = {0}; /* the least entry, times -1 */
    if (n <= FEW_COLUMNS) {
        ivec bad = {0};
        for (Py_ssize_t i = 0; i < m->rows; i += LANES) {
            const char *rows[LANES];
            vec columns[FEW_COLUMNS], sum = {0};
            RN(some_rows)(m, i, rows);
            columns[0] = sum;
            RN(transpose)(m, rows, columns);
            for (Py_ssize_t j = 0; j < n; j++) {
                sum += columns[j];
                if (signs)
                    below = RN(max)(-columns[j], below);
            }
            bad |= ~((ivec)(sum >= low) & (ivec)(sum <= high));
        }
        return !RN(signs)(bad | (ivec)(below > (REAL)0.0));
    }
    for (Py_ssize_t i = 0; i < m->rows; i++) {
        const char *row = RN(dense)(m, m->data + i * m->down, buffer);
        vec sums[PARTS] = {{0}};
        for (Py_ssize_t j = 0; j < whole; j += PIECE)
#pragma GCC unroll 4
            for (int p = 0; p < PARTS; p++) {
                const vec v = RN(load)(sizeof(REAL) == 4, row, j + p * LANES);
                sums[p] += v;
                if (signs)
                    below = RN(max)(-v, below);
            }
        REAL total = RN(across)(sums);
        for (Py_ssize_t j = whole; j < n; j++) {
            const REAL own = ((const REAL *)row)[j];
            total += own;
            if (signs && own < 0)
                return 0;
        }
        if (!(total >= low && total <= high))
            return 0;
    }
    return !RN(signs)((ivec)(below > (REAL)0.0));
}

/* Whether no entry is NaN or infinite: times 0 these are NaN, and others 0. */
static int RN(all_finite)(const Matrix *m, void *buffer)
{
    const Py_ssize_t n = m->columns, whole = n - n % PIECE;
    vec sums[PARTS] = {{0}};
    REAL rest = 0;
    for (Py_ssize_t i = 0; i < m->rows; i++) {
        const char *row = RN(dense)(m, m->data + i * m->down, buffer);
        for (Py_ssize_t j = 0; j < whole; j += PIECE)
#pragma GCC unroll 4
            for (int p = 0; p < PARTS; p++)
                sums[p] += RN(load)(sizeof(REAL) == 4, row, j + p * LANES) * (REAL)0.0;
        for (Py_ssize_t j = whole; j < n; j++)
            rest += ((const REAL *)row)[j] * (REAL)0.0;
    }
    return RN(across)(sums) + rest == 0;
}

static int RN(valid_rows)(const Matrix *m, double slack, void *buffer) { return RN(add_up)(m, slack, 1, buffer); }

/* Sum of squares of each row, in double precision. */
static void RN(squares)(const Matrix *m, void *buffer, double *out)
{
    const Py_ssize_t n = m->columns, whole = n - n % 8;
    const int step = WIDTH / 8;
    for (Py_ssize_t i = 0; i < m->rows && n <= FEW_COLUMNS; i += LANES) {
        const char *rows[LANES];
        const int size = RN(some_rows)(m, i, rows);
        vec columns[FEW_COLUMNS];
        FN(vd) sums[2] = {{0}};
        columns[0] = (vec){0};
        RN(transpose)(m, rows, columns);
        for (Py_ssize_t j = 0; j < n; j++)
            for (int l = 0; l < LANES; l += step) {
                const FN(vd) v = FN(load_d)(sizeof(REAL) == 4, (const char *)(columns + j), l);
                sums[l / step] += v * v;
            }
        memcpy(out + i, sums, size * sizeof(double));
    }
    for (Py_ssize_t i = 0; i < m->rows && n > FEW_COLUMNS; i++) {
        const char *row = RN(dense)(m, m->data + i * m->down, buffer);
        FN(vd) sums[64 / WIDTH] = {{0}};
        for (Py_ssize_t j = 0; j < whole; j += 8)
#pragma GCC unroll 4
            for (int p = 0; p < 64 / WIDTH; p++) {
                const FN(vd) v = FN(load_d)(sizeof(REAL) == 4, row, j + p * step);
                sums[p] += v * v;
            }
        double total = FN(across_d)(sums);
        for (Py_ssize_t j = whole; j < n; j++) {
            const double own = (double)((const REAL *)row)[j];
            total += own * own;
        }
        out[i] = total;
    }
}

INLINE void RN(rise)(vec v, Py_ssize_t at, vec *best, ivec *place)
{
    const ivec above = (ivec)(v > *best);
    *place = (*place & ~above) | (((ivec){0} + (word)at) & above);
    *best = RN(max)(v, *best);
}

/* First of the largest entries of each row, and the entry in double precision. A lane is a row
   up to more columns than in softmax: one row by itself ends in a chain of comparisons. */
static void RN(top_labels)(const Matrix *m, void *buffer, int64_t *top, double *value)
{
    const Py_ssize_t n = m->columns, whole = n - n % PIECE;
    for (Py_ssize_t i = 0; i < m->rows && n <= FEW; i += LANES) {
        const char *rows[LANES];
        const int size = RN(some_rows)(m, i, rows);
        vec columns[FEW], best;
        ivec place = {0};
        columns[0] = (vec){0};
        RN(transpose)(m, rows, columns);
        best = columns[0];
        for (Py_ssize_t j = 1; j < n; j++)
            RN(rise)(columns[j], j, &best, &place);
        for (int l = 0; l < size; l++) {
            top[i + l] = (int64_t)place[l];
            value[i + l] = (double)best[l];
        }
    }
    for (Py_ssize_t i = 0; i < m->rows && n > FEW; i++) {
        const REAL *row = (const REAL *)RN(dense)(m, m->data + i * m->down, buffer);
        vec last[PARTS], best[PARTS], v, high;
        ivec place[PARTS] = {{0}};
        memcpy(best, row, sizeof best);
        for (Py_ssize_t j = PIECE; j < whole; j += PIECE)
#pragma GCC unroll 4
            for (int p = 0; p < PARTS; p++) {
                memcpy(&v, row + j + p * LANES, sizeof v);
                RN(rise)(v, j, best + p, place + p);
            }
        RN(last_piece)(m, (const char *)row, whole, last);
        high = best[0];
        for (int p = 0; p < PARTS; p++) {
            RN(rise)(last[p], whole, best + p, place + p);
            high = RN(max)(best[p], high);
        }
        REAL peak = high[0];
        for (int l = 1; l < LANES; l++)
            peak = high[l] > peak ? high[l] : peak;
        /* Without branches: where it stands cannot be foreseen. */
        word first = (word)n;
        for (int p = 0; p < PARTS; p++) {
            const ivec here = (ivec)(best[p] == peak), found = (place[p] & here) | (((ivec){0} + (word)n) & ~here);
            for (int l = 0; l < LANES; l++) {
                const word own = found[l] + p * LANES + l;
                first = own < first ? own : first;
            }
        }
        top[i] = (int64_t)first;
        value[i] = (double)peak;
    }
}

/* Adds entries to sums, and lists the places of those whose bits are at least `least`, read as
   a whole number without sign: large ones, those below 0 and NaN. `found` has room for four more
   than there are. Without branches as far as can be: how many there are cannot be foreseen. */
INLINE Py_ssize_t RN(add_and_list)(const REAL *from, Py_ssize_t size, word least, const Gaps *g, double *sums)
{
    const Py_ssize_t whole = size / 16 * 16, step = WIDTH / 8;
    Py_ssize_t n_marked = 0, n_found = 0;
    int32_t *found = g->found, *marked = g->marked;
    uint32_t *marks = g->marks;
    for (Py_ssize_t j = 0; j < whole; j += 16) {
        uint32_t bits = 0;
#pragma GCC unroll 8
        for (int p = 0; p < 16; p += LANES) {
            ivec v;
            memcpy(&v, from + j + p, sizeof v);
            bits |= RN(reaching)(v, least) << p;
        }
#pragma GCC unroll 8
        for (int p = 0; p < 16; p += (int)step) {
            FN(vd) sum;
            memcpy(&sum, sums + j + p, sizeof sum);
            sum += FN(load_d)(sizeof(REAL) == 4, (const char *)from, j + p);
            memcpy(sums + j + p, &sum, sizeof sum);
        }
        marked[n_marked] = (int32_t)j;
        marks[n_marked] = bits;
        n_marked += bits != 0;
    }
    for (Py_ssize_t i = 0; i < n_marked; i++) {
        uint32_t bits = marks[i];
        do {
            uint32_t left = bits;
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                found[n_found + k] = marked[i] + __builtin_ctz(left | UINT32_C(1) << 31);
                left &= left - 1;
            }
            n_found += left ? 4 : __builtin_popcount(bits);
            bits = left;
        } while (bits);
    }
    for (Py_ssize_t j = whole; j < size; j++) {
        word own;
        memcpy(&own, from + j, sizeof own);
        sums[j] += (double)from[j];
        found[n_found] = (int32_t)j;
        n_found += own >= least || own < 0;
    }
    return n_found;
}

/* Adds some dense rows to column sums and to bins; 0 where one is no distribution. */
static int RN(add_rows)(const Matrix *m, const Gaps *g, double *sums)
{
    const REAL *from = (const REAL *)m->data;
    const Py_ssize_t n = m->columns, size = m->rows * n;
    /* A little low, since value * n_bins may round up to 1. */
    const REAL cut = (REAL)((1.0 - 1e-6) / g->n_bins);
    /* What rounding to single precision leaves of the largest sum of a row; see class_gaps. */
    const double most = 1.0 + 2.0 * g->slack;
    word least;
    memcpy(&least, &cut, sizeof least);
    if (!RN(add_up)(m, g->slack, 0, NULL))
        return 0;
    const Py_ssize_t n_found = RN(add_and_list)(from, size, least, g, sums);
    /* at / n as a product: exact below 2^20 entries. One row alone is row 0. */
    const uint64_t inverse = m->rows == 1 ? 0 : ((UINT64_C(1) << 40) + n - 1) / n;
    for (Py_ssize_t i = 0; i < n_found; i++) {
        const Py_ssize_t at = g->found[i], row = (Py_ssize_t)(at * inverse >> 40), column = at - row * n;
        const double value = (double)from[at];
        /* Beside an entry below 0 another one may be of any size. */
        if (!(value >= 0.0 && value <= most))
            return 0;
        g->gaps[column * g->width + (int32_t)(value * g->n_bins)] += value - (double)(g->labels[row] == column);
    }
    return 1;
}

#undef LANES
#undef PARTS
#undef PIECE
