/* Bins of the probabilities of rows, and scores of rows, for one level of instructions.

   Included by _core_level.h. A row is read in pieces of 64 bytes, padded to a whole piece;
   padding has weight 0. Bins are those of numbers in double precision. Log-odds are tried in
   single precision first; a row with an entry near an edge is done again. */

#define PARTS_D (64 / WIDTH)
#define LANES_D (WIDTH / 8)
#define LANES_F (WIDTH / 4)

/* log(x) of single precision, for normal x > 0. */
INLINE FN(vf) FN(quick_log)(FN(vf) x)
{
    const FN(vw) moved = (FN(vw))x + (0x3f800000 - 0x3f3504f3);
    const FN(vw) power = (moved >> 23) - 127;
    const FN(vf) m = (FN(vf))((moved & 0x007fffff) + 0x3f3504f3), f = m - 1.0f;
    const FN(vf) k = __builtin_convertvector(power, FN(vf));
    const FN(vf) s = f / (f + 2.0f), z = s * s;
    const FN(vf) series = z * ((0x1.2ee69bp-2f * z + 0x1.997c2dp-2f) * z + 0x1.55555cp-1f);
    const FN(vf) half = 0.5f * f * f;
    return k * 0.693115234375f + (f - (half - (s * (half + series) + k * 3.19461849453e-5f)));
}

/* Distances from the largest entry in double precision, padded with -inf. */
INLINE void FN(gaps)(const Matrix *m, const char *row, double *out)
{
    const Py_ssize_t n = m->columns, padded = (n + 7) / 8 * 8;
    if (m->single && m->across == 4)
        for (Py_ssize_t j = 0; j < n; j++)
            out[j] = (double)((const float *)row)[j];
    else if (!m->single && m->across == 8)
        memcpy(out, row, n * 8);
    else
        for (Py_ssize_t j = 0; j < n; j++)
            out[j] = FN(entry_d)(m, row, j);
    for (Py_ssize_t j = n; j < padded; j++)
        out[j] = -INFINITY;
    FN(vd) best, v;
    memcpy(&best, out, sizeof best);
    for (Py_ssize_t j = LANES_D; j < padded; j += LANES_D) {
        memcpy(&v, out + j, sizeof v);
        best = FN(max_d)(v, best);
    }
    double peak = best[0];
    for (int l = 1; l < LANES_D; l++)
        peak = best[l] > peak ? best[l] : peak;
    for (Py_ssize_t j = 0; j < padded; j++)
        out[j] -= peak;
}

/* Weights 2^(gap log2(e)) in place of gaps, and their sum in the order of _core_rows.h. */
INLINE double FN(weights)(const double *gaps, double *out, Py_ssize_t n)
{
    FN(vd) sums[PARTS_D] = {{0}};
    for (Py_ssize_t j = 0; j < n; j += 8)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS_D; p++) {
            FN(vd) v;
            memcpy(&v, gaps + j + p * LANES_D, sizeof v);
            v = FN(exp2_d)(v * LOG2_E);
            sums[p] += v;
            memcpy(out + j + p * LANES_D, &v, sizeof v);
        }
    return FN(across_d)(sums);
}

/* Bins of equal width in probability. `work` has room for two padded rows. Returns 0 where
   an entry is not a number, or the largest is not finite. */
static int FN(proba_bins)(const Matrix *m, const char *row, int n_bins, double *work, int32_t *out)
{
    const Py_ssize_t n = m->columns, padded = (n + 7) / 8 * 8;
    FN(gaps)(m, row, work);
    const double total = FN(weights)(work, work, padded);
    for (Py_ssize_t j = 0; j < padded; j++) {
        const double place = work[j] / total * n_bins;
        out[j] = place < n_bins - 1 ? (int32_t)place : n_bins - 1;
    }
    return total == total;
}

/* Bins of equal width in log-odds between -span and span, in double precision. */
static int FN(exact_odds_bins)(const Matrix *m, const char *row, int n_bins, double span, double *work, int32_t *out)
{
    const Py_ssize_t n = m->columns, padded = (n + 7) / 8 * 8;
    double *gaps = work, *weights = work + padded;
    Py_ssize_t top = 0;
    FN(gaps)(m, row, gaps);
    while (top < n - 1 && gaps[top] != 0.0)
        top++;
    for (Py_ssize_t j = 0; j < padded; j++)
        gaps[j] = gaps[j] < -MAX_SPAN ? -MAX_SPAN : gaps[j];
    FN(weights)(gaps, weights, padded);
    weights[top] = 0.0;
    FN(vd) sums[PARTS_D] = {{0}};
    for (Py_ssize_t j = 0; j < padded; j += 8)
        for (int p = 0; p < PARTS_D; p++) {
            FN(vd) v;
            memcpy(&v, weights + j + p * LANES_D, sizeof v);
            sums[p] += v;
        }
    const double rest = FN(across_d)(sums);
    for (Py_ssize_t j = 0; j < padded; j += LANES_D) {
        FN(vd) gap, weight;
        memcpy(&gap, gaps + j, sizeof gap);
        memcpy(&weight, weights + j, sizeof weight);
        gap -= FN(log1p_d)(FN(max_d)((FN(vd)){0}, rest - weight));
        memcpy(weights + j, &gap, sizeof gap);
    }
    /* The sum of the others is all that the largest entry is against. */
    const FN(vd) against = FN(log_d)((FN(vd)){0} + (rest > 1e-300 ? rest : 1e-300));
    weights[top] = gaps[top] - against[0];
    if (n == 2)
        weights[1 - top] = -(weights[top] = -gaps[1 - top]);
    for (Py_ssize_t j = 0; j < n; j++) {
        double place = weights[j] / (2 * span) + 0.5;
        place = (place < 0.0 ? 0.0 : place) * n_bins;
        out[j] = place < n_bins - 1 ? (int32_t)place : n_bins - 1;
    }
    return rest == rest;
}

/* The same, tried in single precision; `slack` is the largest error in bins. */
static int FN(odds_bins)(const Matrix *m, const char *row, int n_bins, double span, double slack, double *work, int32_t *out)
{
    const Py_ssize_t n = m->columns, padded = (n + 15) / 16 * 16;
    if (n == 1) {
        out[0] = n_bins - 1;
        return 1;
    }
    /* The slack holds for sums of so many terms in each place. */
    if (slack > 1.0 / 16 || n > 2048)
        return FN(exact_odds_bins)(m, row, n_bins, span, work, out);
    float *gaps = (float *)work, *weights = gaps + padded;
    if (m->single) {
        const Py_ssize_t whole = n - n % 16;
        const char *from = FN(dense_f)(m, row, gaps);
        FN(vf) last[PARTS_D];
        FN(last_piece_f)(m, from, whole, last);
        const float peak = FN(peak_f)(whole, 1, from, last);
        for (Py_ssize_t j = 0; j < padded; j += LANES_F) {
            FN(vf) v;
            if (j < whole)
                memcpy(&v, from + j * 4, sizeof v);
            else
                v = last[(j - whole) / LANES_F];
            v -= peak;
            memcpy(gaps + j, &v, sizeof v);
        }
    }
    else {
        double *wide = work + padded;
        FN(gaps)(m, row, wide);
        for (Py_ssize_t j = 0; j < n; j++)
            gaps[j] = (float)wide[j];
        for (Py_ssize_t j = n; j < padded; j++)
            gaps[j] = -INFINITY;
    }
    /* The largest have weight 1; the others are added up apart: behind 1, a sum of small
       ones has no digits. */
    FN(vf) small[PARTS_D] = {{0}}, ones[PARTS_D] = {{0}};
    for (Py_ssize_t j = 0; j < padded; j += 16)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS_D; p++) {
            FN(vf) v;
            memcpy(&v, gaps + j + p * LANES_F, sizeof v);
            v = FN(exp2_f)(v * (float)LOG2_E);
            memcpy(weights + j + p * LANES_F, &v, sizeof v);
            const FN(vw) one = (FN(vw))(v >= 1.0f);
            small[p] += (FN(vf))((FN(vw))v & ~one);
            ones[p] += (FN(vf))((FN(vw))((FN(vf)){0} + 1.0f) & one);
        }
    const float rest = FN(across_f)(ones) - 1.0f + FN(across_f)(small);
    const float density = (float)(n_bins / (2 * span)), middle = (float)(n_bins / 2.0);
    const FN(vf) low = (FN(vf)){0} + 0.5f, minus_high = (FN(vf)){0} - ((float)n_bins - 0.5f);
    const FN(vf) least = (FN(vf)){0} + 1e-37f;
    FN(vw) near = {0};
    for (Py_ssize_t j = 0; j < padded; j += LANES_F) {
        FN(vf) gap, weight;
        memcpy(&gap, gaps + j, sizeof gap);
        memcpy(&weight, weights + j, sizeof weight);
        const FN(vf) others = FN(max_f)((1.0f - weight) + rest, least);
        FN(vf) place = (gap - FN(quick_log)(others)) * density + middle;
        /* The ends are no edges: what is beyond them is half a bin away. */
        place = -FN(max_f)(-FN(max_f)(place, low), minus_high);
        const FN(vw) bin = __builtin_convertvector(place, FN(vw));
        memcpy(out + j, &bin, sizeof bin);
        const FN(vf) off = place - __builtin_convertvector(bin, FN(vf));
        near |= (FN(vw))(off < (float)slack) | (FN(vw))(off > 1.0f - (float)slack);
    }
    int32_t any = 0;
    for (int l = 0; l < LANES_F; l++)
        any |= near[l];
    return any || rest != rest ? FN(exact_odds_bins)(m, row, n_bins, span, work, out) : 1;
}

/* Sums of weights and of their squares, without the entry at `own`. */
INLINE void FN(add_others)(FN(vd) weight, Py_ssize_t at, Py_ssize_t own, FN(vd) *rest, FN(vd) *squares)
{
    if (own >= at && own < at + LANES_D)
        weight[own - at] = 0.0;
    *rest += weight;
    *squares += weight * weight;
}

INLINE void FN(score)(double weight, const FN(vd) *rests, const FN(vd) *squares, double log_own, double *loss, double *brier)
{
    const double rest = FN(across_d)(rests), total = rest + weight, share = 1.0 / total, wrong = rest * share;
    *loss = FN(log_d)((FN(vd)){0} + total)[0] - log_own;
    *brier = wrong * wrong + FN(across_d)(squares) * (share * share);
}

/* Log loss and Brier score of a row. `work` has room for a padded row. */
static void FN(row_scores)(const Matrix *m, const char *given, Py_ssize_t own, double *work, double *loss, double *brier)
{
    const Py_ssize_t n = m->columns, whole = n - n % 8;
    const char *row = FN(dense_d)(m, given, work);
    FN(vd) last[PARTS_D];
    FN(last_piece_d)(m, row, whole, last);
    const double peak = FN(peak_d)(whole, m->single, row, last), gap = FN(entry_d)(m, given, own) - peak;
    FN(vd) rests[PARTS_D] = {{0}}, squares[PARTS_D] = {{0}};
    for (Py_ssize_t j = 0; j < n; j += 8)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS_D; p++) {
            const Py_ssize_t at = j + p * LANES_D;
            FN(vd) v;
            if (j < whole)
                v = FN(load_d)(m->single, row, at);
            else
                v = last[p];
            FN(add_others)(FN(exp2_d)((v - peak) * LOG2_E), at, own, rests + p, squares + p);
        }
    FN(score)(FN(exp2_d)((FN(vd)){0} + gap * LOG2_E)[0], rests, squares, gap, loss, brier);
}

/* The same of n weights that are proportional to probabilities, all above 0; in a padded row. */
static void FN(weight_scores)(double *weights, Py_ssize_t n, Py_ssize_t own, double *loss, double *brier)
{
    const double weight = weights[own];
    FN(vd) rests[PARTS_D] = {{0}}, squares[PARTS_D] = {{0}}, v;
    weights[own] = 0.0;
    for (Py_ssize_t j = n; j % 8; j++)
        weights[j] = 0.0;
    for (Py_ssize_t j = 0; j < n; j += 8)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS_D; p++) {
            memcpy(&v, weights + j + p * LANES_D, sizeof v);
            rests[p] += v;
            squares[p] += v * v;
        }
    FN(score)(weight, rests, squares, FN(log_d)((FN(vd)){0} + weight)[0], loss, brier);
}

/* Sum of the places of a piece, in the order of _core_rows.h; a lane is a row. */
INLINE FN(vd) FN(sum_places)(const FN(vd) *s)
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* Up to `lanes` rows from row `at` on; those that are missing repeat one. */
INLINE void FN(pick_rows)(const Group *g, int at, int lanes, const char **rows)
{
    for (int l = 0; l < lanes; l++)
        rows[l] = g->rows[at + l < g->size ? at + l : at];
}

/* Distances from the largest entry in double precision, of rows of few columns. */
INLINE void FN(few_gaps)(const Matrix *m, const char *const *rows, FN(vd) *gaps)
{
    gaps[0] = (FN(vd)){0};
    FN(transpose_d)(m, rows, gaps);
    FN(vd) best = gaps[0];
    for (Py_ssize_t j = 1; j < m->columns; j++)
        best = FN(max_d)(gaps[j], best);
    for (Py_ssize_t j = 0; j < m->columns; j++)
        gaps[j] -= best;
}

/* odds_bins of a group of rows of few columns: a lane is a row. */
static int FN(few_odds_bins)(const Matrix *m, const Group *g, const Bins *b)
{
    const Py_ssize_t n = m->columns;
    const float density = (float)(b->n_bins / (2 * b->span)), middle = (float)(b->n_bins / 2.0);
    const FN(vf) low = (FN(vf)){0} + 0.5f, minus_high = (FN(vf)){0} - ((float)b->n_bins - 0.5f);
    const FN(vf) least = (FN(vf)){0} + 1e-37f;
    for (int i = 0; i < g->size; i += LANES_F) {
        const char *rows[LANES_F];
        FN(vf) gaps[FEW_BINS], weights[FEW_BINS], small = {0}, ones = {0};
        FN(pick_rows)(g, i, LANES_F, rows);
        gaps[0] = small;
        if (m->single) {
            FN(transpose_f)(m, rows, gaps);
            FN(vf) best = gaps[0];
            for (Py_ssize_t j = 1; j < n; j++)
                best = FN(max_f)(gaps[j], best);
            for (Py_ssize_t j = 0; j < n; j++)
                gaps[j] -= best;
        }
        else
            for (int half = 0; half < LANES_F; half += LANES_D) {
                FN(vd) wide[FEW_BINS];
                FN(few_gaps)(m, rows + half, wide);
                for (Py_ssize_t j = 0; j < n; j++) {
                    const FN(vh) own = __builtin_convertvector(wide[j], FN(vh));
                    memcpy((float *)(gaps + j) + half, &own, sizeof own);
                }
            }
        for (Py_ssize_t j = 0; j < n; j++) {
            const FN(vf) v = FN(exp2_f)(gaps[j] * (float)LOG2_E);
            const FN(vw) one = (FN(vw))(v >= 1.0f);
            weights[j] = v;
            small += (FN(vf))((FN(vw))v & ~one);
            ones += (FN(vf))((FN(vw))((FN(vf)){0} + 1.0f) & one);
        }
        const FN(vf) rest = ones - 1.0f + small;
        FN(vw) near = ~(FN(vw))(rest == rest);
        for (Py_ssize_t j = 0; j < n; j++) {
            const FN(vf) others = FN(max_f)((1.0f - weights[j]) + rest, least);
            FN(vf) place = (gaps[j] - FN(quick_log)(others)) * density + middle;
            place = -FN(max_f)(-FN(max_f)(place, low), minus_high);
            const FN(vw) bin = __builtin_convertvector(place, FN(vw));
            memcpy(b->index + j * GROUP + i, &bin, sizeof bin);
            const FN(vf) off = place - __builtin_convertvector(bin, FN(vf));
            near |= (FN(vw))(off < (float)b->slack) | (FN(vw))(off > 1.0f - (float)b->slack);
        }
        uint32_t marks = FN(signs_f)(near);
        for (int l = 0; l < LANES_F && i + l < g->size; l++, marks >>= 1) {
            if (!(marks & 1))
                continue;
            if (!FN(exact_odds_bins)(m, rows[l], b->n_bins, b->span, b->work, b->one))
                return 0;
            for (Py_ssize_t j = 0; j < n; j++)
                b->index[j * GROUP + i + l] = b->one[j];
        }
    }
    return 1;
}

/* proba_bins of such a group. */
static int FN(few_proba_bins)(const Matrix *m, const Group *g, const Bins *b)
{
    const Py_ssize_t n = m->columns;
    const FN(vd) last = (FN(vd)){0} - (double)(b->n_bins - 1);
    FN(vi) bad = {0};
    for (int i = 0; i < g->size; i += LANES_D) {
        const char *rows[LANES_D];
        FN(vd) weights[FEW_BINS], sums[8] = {{0}};
        FN(pick_rows)(g, i, LANES_D, rows);
        FN(few_gaps)(m, rows, weights);
        for (Py_ssize_t j = 0; j < n; j++)
            sums[j % 8] += weights[j] = FN(exp2_d)(weights[j] * LOG2_E);
        const FN(vd) total = FN(sum_places)(sums);
        bad |= ~(FN(vi))(total == total);
        for (Py_ssize_t j = 0; j < n; j++) {
            /* Places at the end or beyond it are of the last bin. */
            const FN(vd) at = -FN(max_d)(-(weights[j] / total * b->n_bins), last);
            double place[LANES_D];
            memcpy(place, &at, sizeof at);
            for (int l = 0; l < LANES_D; l++)
                b->index[j * GROUP + i + l] = (int32_t)place[l];
        }
    }
    return !FN(signs_d)(bad);
}

static int FN(few_bins)(const Matrix *m, const Group *g, const Bins *b)
{
    return b->span > 0 ? FN(few_odds_bins)(m, g, b) : FN(few_proba_bins)(m, g, b);
}

/* Divides values in columns of GROUP rows by the sums of rows, which are taken in four parts. */
static void FN(divide_few)(Py_ssize_t n, double *values)
{
    for (int i = 0; i < GROUP; i += LANES_D) {
        FN(vd) sums[4] = {{0}}, v;
        for (Py_ssize_t j = 0; j < n; j++) {
            memcpy(&v, values + j * GROUP + i, sizeof v);
            sums[j % 4] += v;
        }
        const FN(vd) share = 1.0 / ((sums[0] + sums[2]) + (sums[1] + sums[3]));
        for (Py_ssize_t j = 0; j < n; j++) {
            memcpy(&v, values + j * GROUP + i, sizeof v);
            v *= share;
            memcpy(values + j * GROUP + i, &v, sizeof v);
        }
    }
}

/* row_scores, or weight_scores of weights in columns of GROUP rows, of such a group. */
INLINE void FN(few_losses)(const Matrix *m, const Group *g, const double *given, double *loss, double *brier)
{
    const Py_ssize_t n = m->columns;
    for (int i = 0; i < g->size; i += LANES_D) {
        const char *rows[LANES_D];
        FN(vd) columns[FEW_BINS], rests[8] = {{0}}, squares[8] = {{0}}, weight = {0}, gap = {0};
        FN(vi) own = {0};
        FN(pick_rows)(g, i, LANES_D, rows);
        if (!given)
            FN(few_gaps)(m, rows, columns);
        for (int l = 0; l < LANES_D && i + l < g->size; l++)
            own[l] = g->labels[i + l];
        for (Py_ssize_t first = 0; first < n; first += 8)
#pragma GCC unroll 8
            for (int k = 0; k < 8; k++) {
                const Py_ssize_t j = first + k;
                FN(vd) v;
                if (j >= n)
                    break;
                if (given)
                    memcpy(&v, given + j * GROUP + i, sizeof v);
                else
                    v = FN(exp2_d)(columns[j] * LOG2_E);
                const FN(vi) mine = (FN(vi))(own == (int64_t)j);
                weight = FN(pick_d)(mine, v, weight);
                if (!given)
                    gap = FN(pick_d)(mine, columns[j], gap);
                v = (FN(vd))((FN(vi))v & ~mine);
                rests[k] += v;
                squares[k] += v * v;
            }
        const FN(vd) rest = FN(sum_places)(rests), total = rest + weight, share = 1.0 / total, wrong = rest * share;
        const FN(vd) losses = FN(log_d)(total) - (given ? FN(log_d)(weight) : gap);
        const FN(vd) briers = wrong * wrong + FN(sum_places)(squares) * (share * share);
        const int size = g->size - i < LANES_D ? g->size - i : LANES_D;
        memcpy(loss + i, &losses, size * sizeof(double));
        memcpy(brier + i, &briers, size * sizeof(double));
    }
}

static void FN(few_scores)(const Matrix *m, const Group *g, const double *given, double *loss, double *brier)
{
    if (given)
        FN(few_losses)(m, g, given, loss, brier);
    else
        FN(few_losses)(m, g, NULL, loss, brier);
}

#undef PARTS_D
#undef LANES_D
#undef LANES_F
