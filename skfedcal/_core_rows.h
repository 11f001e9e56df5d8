/* Softmax and moments of rows, for one level of instructions and one precision.

   Included by _core_level.h for double and for float (REAL); `vec` is a vector of LANES of
   them. Up to FEW_COLUMNS classes (moments: FEW) a lane is a row, and a row is added up from its first
   entry to its last. With more classes a row is read in pieces of 64 bytes, of PARTS
   vectors; each place of a piece is added up by itself, then the upper half of the places
   is added to the lower one until one is left. Either way a row gives the same bits beside
   any others and at every level. */

#define LANES ((int)(WIDTH / sizeof(REAL)))
#define PARTS (64 / WIDTH)
#define PIECE ((int)(64 / sizeof(REAL)))

/* Distances of at least -MAX_SPAN; NaN stays NaN. */
INLINE vec RN(bounded)(vec gap) { return RN(max)((vec){0} - (REAL)MAX_SPAN, gap); }

INLINE REAL RN(across)(const vec *parts)
{
    REAL a[PIECE];
    vec sums[PARTS];
    for (int p = 0; p < PARTS; p++)
        sums[p] = parts[p];
    for (int half = PARTS / 2; half; half /= 2)
        for (int p = 0; p < half; p++)
            sums[p] += sums[p + half];
    memcpy(a, sums, sizeof(vec));
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] += a[i + half];
    return a[0];
}

/* Vector of dense entries, of either precision. */
INLINE vec RN(load)(int single, const char *row, Py_ssize_t at)
{
    vec out;
    if (single == (sizeof(REAL) == 4))
        memcpy(&out, row + at * sizeof(REAL), sizeof out);
    else {
        hvec half;
        memcpy(&half, row + at * 4, sizeof half);
        out = __builtin_convertvector(half, vec);
    }
    return out;
}

INLINE REAL RN(entry)(const Matrix *m, const char *row, Py_ssize_t column)
{
    const char *at = row + column * m->across;
    return m->single ? (REAL)*(const float *)at : (REAL)*(const double *)at;
}

/* Whether the lanes of part p of a piece are among its first `rest` entries. */
INLINE ivec RN(among)(Py_ssize_t rest, int p)
{
    static const word first[2 * PIECE] = {[0 ... PIECE - 1] = -1};
    ivec mask;
    memcpy(&mask, first + PIECE - rest + p * LANES, sizeof mask);
    return mask;
}

/* The last piece of a dense row, padded with -inf: its weights are 0. It is read together with
   what follows the row, if that is in the matrix as well, and what follows is masked out: to
   copy a few entries and load them as one vector stalls, as stores of other sizes cannot be
   forwarded to a load. */
INLINE void RN(last_piece)(const Matrix *m, const char *row, Py_ssize_t at, vec *last)
{
    const Py_ssize_t size = m->single ? 4 : 8, rest = m->columns - at;
    const char *end = m->data + m->columns * size + (m->down > 0 ? (m->rows - 1) * m->down : 0);
    const vec none = (vec){0} - (REAL)INFINITY;
    if (m->across == size && end - row >= (at + PIECE) * size) {
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++)
            last[p] = RN(pick)(RN(among)(rest, p), RN(load)(m->single, row, at + p * LANES), none);
        return;
    }
    REAL piece[PIECE];
    for (int j = 0; j < PIECE; j++)
        piece[j] = (REAL)-INFINITY;
    for (Py_ssize_t j = 0; j < rest; j++)
        piece[j] = m->single ? (REAL)((const float *)row)[at + j] : (REAL)((const double *)row)[at + j];
    memcpy(last, piece, sizeof piece);
}

/* A dense row: itself, or a copy of it. */
INLINE const char *RN(dense)(const Matrix *m, const char *row, void *buffer)
{
    const Py_ssize_t size = m->single ? 4 : 8;
    if (m->across == size)
        return row;
    for (Py_ssize_t j = 0; j < m->columns; j++)
        memcpy((char *)buffer + j * size, row + j * m->across, size);
    return buffer;
}

/* Largest entry of a dense row of at least one piece. */
INLINE REAL RN(peak)(Py_ssize_t whole, int single, const char *row, const vec *last)
{
    vec best[PARTS];
    for (int p = 0; p < PARTS; p++)
        best[p] = last[p];
    for (Py_ssize_t j = 0; j < whole; j += PIECE)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++)
            best[p] = RN(max)(RN(load)(single, row, j + p * LANES), best[p]);
    for (int p = 1; p < PARTS; p++)
        best[0] = RN(max)(best[p], best[0]);
    REAL all[LANES], out;
    memcpy(all, best, sizeof all);
    out = all[0];
    for (int l = 1; l < LANES; l++)
        out = all[l] > out ? all[l] : out;
    return out;
}

/* Rows of few columns as one vector per column. */
INLINE void RN(transpose)(const Matrix *m, const char *const *rows, vec *out)
{
    REAL *to = (REAL *)out;
    if (!m->single && sizeof(REAL) == 8 && m->across == 8)
        for (int l = 0; l < LANES; l += 2)
            turn_pairs(m->columns, rows + l, (double *)to + l, LANES);
    else if (!m->single)
        for (int l = 0; l < LANES; l++)
            for (Py_ssize_t j = 0; j < m->columns; j++)
                to[j * LANES + l] = (REAL)*(const double *)(rows[l] + j * m->across);
    else if (sizeof(REAL) == 8 && LANES % 4 == 0 && m->across == 4)
        for (int l = 0; l < LANES; l += 4) {
            float turned[4 * FEW_BINS];
            turn_squares(m->columns, rows + l, turned, 4);
            for (Py_ssize_t j = 0; j < m->columns; j++)
                for (int k = 0; k < 4; k++)
                    to[j * LANES + l + k] = (REAL)turned[j * 4 + k];
        }
    else if (sizeof(REAL) == 8 || m->across != 4)
        for (int l = 0; l < LANES; l++)
            for (Py_ssize_t j = 0; j < m->columns; j++)
                to[j * LANES + l] = (REAL)*(const float *)(rows[l] + j * m->across);
    else
        for (int l = 0; l < LANES; l += 4)
            turn_squares(m->columns, rows + l, (float *)to + l, LANES);
}

/* Sums of weights exp(beta d), and of weights times d to powers 1 to `order`, where d is the
   distance from the largest entry; one vector of rows for each power. */
INLINE void RN(few_moments)(const vec *columns, Py_ssize_t n, vec rate, const int order, vec *sums, vec *top)
{
    vec best = columns[0];
    for (Py_ssize_t j = 1; j < n; j++)
        best = RN(max)(columns[j], best);
    vec raw[6] = {{0}};
    for (Py_ssize_t j = 0; j < n; j++) {
        const vec gap = RN(bounded)(columns[j] - best);
        vec weight = RN(exp2)(gap * rate);
        raw[0] += weight;
        for (int k = 1; k <= order; k++) {
            weight *= gap;
            raw[k] += weight;
        }
    }
    for (int k = 0; k <= order; k++)
        sums[k] = raw[k];
    *top = best;
}

/* `last` is a piece that was read before, or NULL. */
INLINE void RN(add_piece)(int single, const char *from, const vec *last, REAL peak, REAL rate, const int order, vec raw[6][PARTS])
{
#pragma GCC unroll 4
    for (int p = 0; p < PARTS; p++) {
        const vec gap = RN(bounded)((last ? last[p] : RN(load)(single, from, p * LANES)) - peak);
        vec weight = RN(exp2)(gap * rate);
        raw[0][p] += weight;
        for (int k = 1; k <= order; k++) {
            weight *= gap;
            raw[k][p] += weight;
        }
    }
}

/* The same of one dense row of many columns; returns the largest entry. */
INLINE REAL RN(many_moments)(const Matrix *m, const char *row, REAL rate, const int single, const int order, REAL *sums)
{
    const Py_ssize_t size = single ? 4 : 8, whole = m->columns - m->columns % PIECE;
    vec last[PARTS];
    RN(last_piece)(m, row, whole, last);
    const REAL peak = RN(peak)(whole, single, row, last);
    vec raw[6][PARTS] = {{{0}}};
    for (Py_ssize_t j = 0; j < whole; j += PIECE)
        RN(add_piece)(single, row + j * size, NULL, peak, rate, order, raw);
    if (whole < m->columns)
        RN(add_piece)(single, NULL, last, peak, rate, order, raw);
    for (int k = 0; k <= order; k++)
        sums[k] = RN(across)(raw[k]);
    return peak;
}

/* Raw moments of the rows of a group, and their largest entries. */
INLINE void RN(group_moments)(const Matrix *m, const Group *g, void *buffer, const int order, REAL sums[6][GROUP], REAL *top)
{
    if (m->columns > FEW) {
        for (int i = 0; i < g->size; i++) {
            const char *row = RN(dense)(m, g->rows[i], buffer);
            REAL own[6];
            top[i] = m->single ? RN(many_moments)(m, row, (REAL)(g->beta[i] * LOG2_E), 1, order, own)
                               : RN(many_moments)(m, row, (REAL)(g->beta[i] * LOG2_E), 0, order, own);
            for (int k = 0; k <= order; k++)
                sums[k][i] = own[k];
        }
        return;
    }
    for (int i = 0; i < g->size; i += LANES) {
        const char *rows[LANES];
        REAL rate[LANES];
        for (int l = 0; l < LANES; l++) { /* rows that are missing repeat the first */
            const int at = i + l < g->size ? i + l : 0;
            rows[l] = g->rows[at];
            rate[l] = (REAL)(g->beta[at] * LOG2_E);
        }
        vec columns[FEW], rates, raw[6], best;
        memcpy(&rates, rate, sizeof rates);
        columns[0] = rates;
        RN(transpose)(m, rows, columns);
        RN(few_moments)(columns, m->columns, rates, order, raw, &best);
        for (int k = 0; k <= order; k++)
            memcpy(&sums[k][i], &raw[k], sizeof(vec));
        memcpy(top + i, &best, sizeof best);
    }
}

/* Derivatives 1 to `order` of the loss of each row of a group in beta. */
INLINE void RN(cumulants)(const Matrix *m, const Group *g, void *buffer, const int order, double out[5][GROUP])
{
    REAL sums[6][GROUP] = {{0}}, top[GROUP];
    double gaps[GROUP] = {0};
    RN(group_moments)(m, g, buffer, order, sums, top);
    for (int i = 0; i < g->size; i++) {
        const REAL gap = RN(entry)(m, g->rows[i], g->labels[i]) - top[i];
        gaps[i] = (double)(gap < (REAL)-MAX_SPAN ? (REAL)-MAX_SPAN : gap);
    }
    /* From raw moments, as in methods/temperature/moments.py; of GROUP rows, present or
       not, in vectors of the level. */
    const int step = WIDTH / 8;
    for (int i = 0; i < GROUP; i += step) {
        FN(vd) raw[6], gap;
        for (int k = 0; k <= order; k++)
            for (int l = 0; l < step; l++)
                raw[k][l] = (double)sums[k][i + l];
        memcpy(&gap, gaps + i, sizeof gap);
        const FN(vd) share = 1.0 / raw[0], mean = raw[1] * share, square = mean * mean;
        FN(vd) two = raw[2] * share - square;
        two = FN(max_d)((FN(vd)){0}, two);
        const FN(vd) slope = mean - gap;
        memcpy(out[0] + i, &slope, sizeof slope);
        memcpy(out[1] + i, &two, sizeof two);
        if (order <= 2)
            continue;
        const FN(vd) three = raw[3] * share - mean * (3.0 * two + square);
        FN(vd) four = raw[4] * share - (4.0 * mean * three + square * (6.0 * two + square));
        FN(vd) five = raw[5] * share;
        five -= mean * (5.0 * four + mean * (10.0 * three + mean * (10.0 * two + square)));
        five -= 10.0 * two * three;
        four -= 3.0 * two * two;
        memcpy(out[2] + i, &three, sizeof three);
        memcpy(out[3] + i, &four, sizeof four);
        memcpy(out[4] + i, &five, sizeof five);
    }
}

static void RN(derivatives)(const Matrix *m, const Group *g, void *buffer, int order, double out[5][GROUP])
{
    if (order <= 2)
        RN(cumulants)(m, g, buffer, 2, out);
    else
        RN(cumulants)(m, g, buffer, 5, out);
}

INLINE vec RN(weigh)(vec entries, REAL peak, REAL scale, const int logs, vec *sum)
{
    const vec gap = (entries - peak) * scale, weight = RN(exp)(gap);
    *sum += weight;
    return logs ? gap : weight;
}

INLINE vec RN(finish)(vec kept, vec change, const int logs) { return logs ? kept - change : kept * change; }

/* Softmax of `scale` times each row, or its logarithm. */
INLINE void RN(normalise)(const Matrix *m, const Matrix *to, REAL scale, const int logs, void *buffer)
{
    const Py_ssize_t n = m->columns, whole = n - n % PIECE;
    if (n <= FEW_COLUMNS) {
        for (Py_ssize_t i = 0; i < m->rows; i += LANES) {
            const int size = m->rows - i < LANES ? (int)(m->rows - i) : LANES;
            const char *rows[LANES];
            vec columns[FEW_COLUMNS], sum = {0};
            for (int l = 0; l < LANES; l++)
                rows[l] = m->data + (i + (l < size ? l : 0)) * m->down;
            columns[0] = sum;
            RN(transpose)(m, rows, columns);
            vec best = columns[0];
            for (Py_ssize_t j = 1; j < n; j++)
                best = RN(max)(columns[j], best);
            for (Py_ssize_t j = 0; j < n; j++) {
                const vec gap = (columns[j] - best) * scale, weight = RN(exp)(gap);
                sum += weight;
                columns[j] = logs ? gap : weight;
            }
            const vec change = logs ? RN(log)(sum) : (REAL)1.0 / sum;
            for (Py_ssize_t j = 0; j < n; j++)
                columns[j] = logs ? columns[j] - change : columns[j] * change;
            for (int l = 0; l < size; l++) {
                REAL *out = (REAL *)(to->data + (i + l) * to->down);
                for (Py_ssize_t j = 0; j < n; j++)
                    out[j] = ((REAL *)columns)[j * LANES + l];
            }
        }
        return;
    }
    for (Py_ssize_t i = 0; i < m->rows; i++) {
        const REAL *row = (const REAL *)RN(dense)(m, m->data + i * m->down, buffer);
        REAL *out = (REAL *)(to->data + i * to->down);
        vec last[PARTS], kept;
        RN(last_piece)(m, (const char *)row, whole, last);
        const REAL peak = RN(peak)(whole, sizeof(REAL) == 4, (const char *)row, last);
        vec sum[PARTS] = {{0}};
        for (Py_ssize_t j = 0; j < whole; j += PIECE)
#pragma GCC unroll 4
            for (int p = 0; p < PARTS; p++) {
                memcpy(&kept, row + j + p * LANES, sizeof kept);
                kept = RN(weigh)(kept, peak, scale, logs, sum + p);
                memcpy(out + j + p * LANES, &kept, sizeof kept);
            }
        for (int p = 0; p < PARTS && whole < n; p++)
            last[p] = RN(weigh)(last[p], peak, scale, logs, sum + p);
        vec change = (vec){0} + RN(across)(sum);
        change = logs ? RN(log)(change) : (REAL)1.0 / change;
        for (Py_ssize_t j = 0; j < whole; j += LANES) {
            memcpy(&kept, out + j, sizeof kept);
            kept = RN(finish)(kept, change, logs);
            memcpy(out + j, &kept, sizeof kept);
        }
        /* Rows of the result follow each other: what is behind one is written back. */
        if (whole < n && (to->rows - i) * n >= whole + PIECE)
            for (int p = 0; p < PARTS; p++) {
                memcpy(&kept, out + whole + p * LANES, sizeof kept);
                kept = RN(pick)(RN(among)(n - whole, p), RN(finish)(last[p], change, logs), kept);
                memcpy(out + whole + p * LANES, &kept, sizeof kept);
            }
        else if (whole < n) {
            for (int p = 0; p < PARTS; p++)
                last[p] = RN(finish)(last[p], change, logs);
            memcpy(out + whole, last, (n - whole) * sizeof(REAL));
        }
    }
}

static void RN(softmax)(const Matrix *m, const Matrix *to, double scale, int logs, void *buffer)
{
    if (logs)
        RN(normalise)(m, to, (REAL)scale, 1, buffer);
    else
        RN(normalise)(m, to, (REAL)scale, 0, buffer);
}

#undef LANES
#undef PARTS
#undef PIECE
