/* Loss, slopes and curvature of vector, matrix, order-preserving and bias-temperature scaling,
   and of a sigmoid for each class, for one level of instructions.

   Included by _core_level.h. Rows are in double precision, padded to whole pieces of 64 bytes.
   Sums over the classes of a row are taken as in _core_rows.h, sums over rows one row after
   the other, each entry by itself: bits do not depend on the level. See
   skfedcal/methods/scaling/, which has the same in numpy. */

#define LANES (WIDTH / 8)
#define PARTS (64 / WIDTH)

INLINE FN(vd) FN(get)(const double *from)
{
    FN(vd) out;
    memcpy(&out, from, sizeof out);
    return out;
}

INLINE void FN(put)(double *to, FN(vd) value) { memcpy(to, &value, sizeof value); }

INLINE FN(vd) FN(where)(FN(vi) mask, FN(vd) value) { return (FN(vd))((FN(vi))value & mask); }

/* out[j, k] += left[i, j] * right[i, k] for rows i, four j and `parts` vectors of k. */
INLINE void FN(tile)(int n, const double *left, Py_ssize_t left_size, const double *right, Py_ssize_t right_size, double *out, Py_ssize_t step, const int parts)
{
    FN(vd) sums[4][2];
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < parts; k++)
            sums[j][k] = FN(get)(out + j * step + k * LANES);
    for (int i = 0; i < n; i++, left += left_size, right += right_size)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
#pragma GCC unroll 2
            for (int k = 0; k < parts; k++)
                sums[j][k] += left[j] * FN(get)(right + k * LANES);
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < parts; k++)
            FN(put)(out + j * step + k * LANES, sums[j][k]);
}

/* Adds left' right of `n` rows to `out`; with `upper` only what is on or above the diagonal. */
static void FN(add_products)(int n, const double *left, Py_ssize_t n_left, Py_ssize_t left_size, const double *right, Py_ssize_t n_right, Py_ssize_t right_size, double *out, Py_ssize_t step, int upper)
{
    for (Py_ssize_t j = 0; j < n_left; j += 4) {
        Py_ssize_t k = upper ? j & ~(Py_ssize_t)7 : 0;
        for (; k + 2 * LANES <= n_right; k += 2 * LANES)
            FN(tile)(n, left + j, left_size, right + k, right_size, out + j * step + k, step, 2);
        for (; k < n_right; k += LANES)
            FN(tile)(n, left + j, left_size, right + k, right_size, out + j * step + k, step, 1);
    }
}

/* Curvature of order-preserving scaling in classes j, j + 1 and a vector of classes k, of the
   rows that are kept; see OrderPreservingMap.kernels. */
INLINE void FN(order_tile)(const Scaling *s, Py_ssize_t j, Py_ssize_t k)
{
    const Py_ssize_t wide = s->wide, step = s->right_size;
    double *const out = s->products + j * step + k;
    FN(vd) both[2], first[2], second[2], none[2];
    for (int i = 0; i < 2; i++) {
        both[i] = FN(get)(out + i * step);
        first[i] = FN(get)(out + i * step + wide);
        second[i] = FN(get)(out + (i + wide) * step);
        none[i] = FN(get)(out + (i + wide) * step + wide);
    }
    for (const double *row = s->left, *end = row + s->kept * s->left_size; row < end; row += s->left_size) {
        const FN(vd) above = FN(get)(row + k), rest = FN(get)(row + wide + k);
        const FN(vd) lever = FN(get)(row + 3 * wide + k), x = FN(get)(row + 4 * wide + k);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const double *const own = row + j + i;
            FN(vd) kernel = FN(min_d)((FN(vd)){0} + own[0], above) * FN(min_d)((FN(vd)){0} + own[wide], rest);
            kernel *= lever * own[2 * wide];
            const FN(vd) turned = kernel * x;
            none[i] += kernel;
            first[i] += kernel * own[4 * wide];
            second[i] += turned;
            both[i] += turned * own[4 * wide];
        }
    }
    for (int i = 0; i < 2; i++) {
        FN(put)(out + i * step, both[i]);
        FN(put)(out + i * step + wide, first[i]);
        FN(put)(out + (i + wide) * step, second[i]);
        FN(put)(out + (i + wide) * step + wide, none[i]);
    }
}

/* Adds the products of the rows that are kept, which are then none. */
static void FN(flush_scaling)(Scaling *s)
{
    const Py_ssize_t n = s->n, wide = s->wide, right = s->right_size;
    if (s->map == MAP_ORDER) {
        for (Py_ssize_t j = 0; j < n && s->bend == BEND_PAIR; j += 2)
            for (Py_ssize_t k = j & ~(Py_ssize_t)7; k < wide; k += LANES)
                FN(order_tile)(s, j, k);
        s->kept = 0;
        return;
    }
    if (s->matrix)
        FN(add_products)(s->kept, s->rows, n, wide, s->residuals, wide, wide, s->slopes, wide, 0);
    if (s->bend == BEND_FULL)
        FN(add_products)(s->kept, s->left, s->n_left, s->left_size, s->right, s->n_right, right, s->products, right, 0);
    if (s->bend == BEND_PAIR || s->bend == BEND_SPLIT) {
        double *const second = s->products + wide * right + wide, *const third = second + wide * right + wide;
        FN(add_products)(s->kept, s->left, n, right, s->right, wide, right, s->products, right, 1);
        FN(add_products)(s->kept, s->left, n, right, s->right + wide, wide, right, s->products + wide, right, 0);
        FN(add_products)(s->kept, s->left + wide, n, right, s->right + wide, wide, right, second, right, 1);
        if (s->bend == BEND_SPLIT)
            FN(add_products)(s->kept, s->left + 2 * wide, n, right, s->right + 2 * wide, wide, right, third, right, 1);
    }
    s->kept = 0;
}

/* Largest entry of a padded row. */
INLINE double FN(largest)(const double *row, Py_ssize_t wide)
{
    FN(vd) last[PARTS];
    memcpy(last, row + wide - 8, sizeof last);
    return FN(peak_d)(wide - 8, 0, (const char *)row, last);
}

/* The row as doubles, distances from its top; masked entries are 0 in x and in keep. Returns the
   mean of the others. */
INLINE double FN(fall)(Scaling *s, const Matrix *m, const char *row)
{
    double *const x = s->x;
    if (m->single && m->across == 4)
        for (Py_ssize_t j = 0; j < s->n; j++)
            x[j] = (double)((const float *)row)[j];
    else if (m->single)
        for (Py_ssize_t j = 0; j < s->n; j++)
            x[j] = (double)*(const float *)(row + j * m->across);
    else
        for (Py_ssize_t j = 0; j < s->n; j++)
            x[j] = *(const double *)(row + j * m->across);
    for (Py_ssize_t j = s->n; j < s->wide; j++)
        x[j] = -INFINITY;
    const double top = FN(largest)(x, s->wide);
    FN(vd) sums[PARTS] = {{0}}, counts[PARTS] = {{0}};
    for (Py_ssize_t at = 0; at < s->wide; at += 8)
        for (int p = 0; p < PARTS; p++) {
            const FN(vd) below = FN(get)(x + at + p * LANES) - top;
            const FN(vi) keep = ~(FN(vi))(below < -MAX_SPAN); /* NaN stays */
            const FN(vd) kept = FN(where)(keep, below);
            if (s->map == MAP_ORDER)
                FN(put)(s->below + at + p * LANES, kept);
            memcpy(s->keep + at + p * LANES, &keep, sizeof keep);
            FN(put)(x + at + p * LANES, kept);
            sums[p] += kept;
            counts[p] += FN(where)(keep, (FN(vd)){0} + 1.0);
        }
    return FN(across_d)(sums) / FN(across_d)(counts);
}

/* The row centred over the classes that are not masked and times beta. */
INLINE void FN(canonical)(Scaling *s, const Matrix *m, const char *row)
{
    double *const x = s->x;
    const double mean = FN(fall)(s, m, row);
    for (Py_ssize_t at = 0; at < s->wide; at += LANES) {
        FN(vi) keep;
        memcpy(&keep, s->keep + at, sizeof keep);
        FN(put)(x + at, FN(where)(keep, (FN(get)(x + at) - mean) * s->beta));
    }
}

/* Maps x to logits, at p. */
INLINE void FN(map_row)(Scaling *s)
{
    const Py_ssize_t wide = s->wide;
    const double *const params = s->params, *const bias = params + (s->matrix ? s->n : 1) * wide;
    Py_ssize_t at = 0;
    if (s->matrix) {
        for (; at + 4 * LANES <= wide; at += 4 * LANES) {
            FN(vd) sums[4];
            for (int k = 0; k < 4; k++)
                sums[k] = FN(get)(bias + at + k * LANES);
            for (Py_ssize_t j = 0; j < s->n; j++)
#pragma GCC unroll 4
                for (int k = 0; k < 4; k++)
                    sums[k] += FN(get)(params + j * wide + at + k * LANES) * s->x[j];
            for (int k = 0; k < 4; k++)
                FN(put)(s->p + at + k * LANES, sums[k]);
        }
        for (; at < wide; at += LANES) {
            FN(vd) sum = FN(get)(bias + at);
            for (Py_ssize_t j = 0; j < s->n; j++)
                sum += FN(get)(params + j * wide + at) * s->x[j];
            FN(put)(s->p + at, sum);
        }
    }
    else
        for (; at < wide; at += LANES)
            FN(put)(s->p + at, FN(get)(params + at) * FN(get)(s->x + at) + FN(get)(bias + at));
    const FN(vd) none = (FN(vd)){0} - INFINITY;
    for (at = 0; at < wide; at += LANES) {
        FN(vi) keep;
        memcpy(&keep, s->keep + at, sizeof keep);
        FN(put)(s->p + at, FN(pick_d)(keep, FN(get)(s->p + at), none));
    }
}

/* Logits of a row, centred and mapped in one pass if the map is a vector; returns the largest. */
INLINE double FN(map_one)(Scaling *s, const Matrix *m, const char *row)
{
    const Py_ssize_t wide = s->wide;
    if (s->matrix) {
        FN(canonical)(s, m, row);
        FN(map_row)(s);
        return FN(largest)(s->p, wide);
    }
    const double mean = FN(fall)(s, m, row), *const scale = s->params, *const bias = scale + wide;
    const FN(vd) none = (FN(vd)){0} - INFINITY;
    FN(vd) best = none;
    for (Py_ssize_t at = 0; at < wide; at += LANES) {
        FN(vi) keep;
        memcpy(&keep, s->keep + at, sizeof keep);
        const FN(vd) x = FN(where)(keep, (FN(get)(s->x + at) - mean) * s->beta);
        const FN(vd) logit = FN(pick_d)(keep, FN(get)(scale + at) * x + FN(get)(bias + at), none);
        FN(put)(s->p + at, logit);
        best = FN(max_d)(logit, best);
    }
    double all[LANES], top;
    memcpy(all, &best, sizeof all);
    top = all[0];
    for (int l = 1; l < LANES; l++)
        top = all[l] > top ? all[l] : top;
    return top;
}

/* Writes logits of a row, or their softmax, in its own precision. */
static void FN(map_scaling)(Scaling *s, const Matrix *m, const char *row, int proba, char *to)
{
    const Py_ssize_t n = s->n, wide = s->wide;
    const double top = FN(map_one)(s, m, row);
    double factor = 1.0;
    if (proba) {
        FN(vd) totals[PARTS] = {{0}};
        for (Py_ssize_t at = 0; at < wide; at += 8)
            for (int p = 0; p < PARTS; p++) {
                const FN(vd) share = FN(exp_d)(FN(get)(s->p + at + p * LANES) - top);
                FN(put)(s->p + at + p * LANES, share);
                totals[p] += share;
            }
        factor = 1.0 / FN(across_d)(totals);
    }
    for (Py_ssize_t at = 0; at < n; at += LANES) {
        const FN(vd) value = FN(get)(s->p + at) * factor;
        const size_t few = n - at < LANES ? n - at : LANES;
        if (m->single) {
            const FN(vh) half = __builtin_convertvector(value, FN(vh));
            if (few == LANES)
                memcpy(to + at * 4, &half, sizeof half);
            else
                memcpy(to + at * 4, &half, few * 4);
        }
        else if (few == LANES)
            memcpy(to + at * 8, &value, sizeof value);
        else
            memcpy(to + at * 8, &value, few * 8);
    }
}

/* What a row adds to the products of all pairs of classes, as in FullCurvature. */
INLINE void FN(keep_full)(Scaling *s, double weight)
{
    double *left = s->left + s->kept * s->left_size, *right = s->right + s->kept * s->right_size;
    for (Py_ssize_t j = 0; j < s->n; left += s->n - j, j++) {
        /* Vectors run over the end of a line, which the next one then overwrites. */
        const double own = -(s->p[j] * weight);
        for (Py_ssize_t k = j; k < s->n; k += LANES)
            FN(put)(left + k - j, FN(get)(s->p + k) * own);
        left[0] += weight * s->p[j];
    }
    s->x[s->n] = 1.0; /* room for it is in the padding, see start_scaling */
    for (Py_ssize_t j = 0; j <= s->n; right += s->n + 1 - j, j++)
        for (Py_ssize_t k = j; k <= s->n; k += LANES)
            FN(put)(right + k - j, FN(get)(s->x + k) * s->x[j]);
    s->x[s->n] = 0.0;
}

/* Products of the row with itself are left for later; those of a class with itself, which
   are small differences, are added here. */
INLINE void FN(bend_row)(Scaling *s, double weight)
{
    const Py_ssize_t wide = s->wide;
    double *const left = s->left + s->kept * s->right_size, *const right = s->right + s->kept * s->right_size;
    FN(vd) traces[PARTS] = {{0}};
    for (Py_ssize_t at = 0; at < wide; at += 8)
        for (int part = 0; part < PARTS; part++) {
            const Py_ssize_t j = at + part * LANES;
            const FN(vd) p = FN(get)(s->p + j), x = FN(get)(s->x + j), own = p * (1.0 - p) * weight;
            FN(put)(s->own + 2 * wide + j, FN(get)(s->own + 2 * wide + j) + own);
            FN(put)(s->own + wide + j, FN(get)(s->own + wide + j) + own * x);
            FN(put)(s->own + j, FN(get)(s->own + j) + own * x * x);
            traces[part] += own;
            if (s->bend == BEND_CLASS)
                continue;
            FN(put)(right + j, p * x);
            FN(put)(right + wide + j, p);
            FN(put)(left + j, p * x * weight);
            FN(put)(left + wide + j, p * weight);
        }
    if (s->bend != BEND_SPLIT)
        return;
    const double trace = FN(across_d)(traces);
    for (Py_ssize_t j = 0; j < wide; j += LANES) {
        FN(put)(right + 2 * wide + j, FN(get)(s->x + j));
        FN(put)(left + 2 * wide + j, FN(get)(s->x + j) * trace);
    }
}

/* Slopes of order-preserving scaling by class, and their derivatives. */
INLINE void FN(soften)(Scaling *s)
{
    const double *const params = s->params, *const bias = params + s->wide;
    const FN(vd) zero = {0}, one = zero + 1.0;
    for (Py_ssize_t at = 0; at < s->wide; at += LANES) {
        const FN(vd) inner = FN(get)(params + at) * FN(get)(s->x + at) + FN(get)(bias + at);
        const FN(vd) share = FN(exp_d)(FN(min_d)(-inner, inner));
        const FN(vd) soft = FN(max_d)(zero, inner) + FN(log1p_d)(share);
        FN(put)(s->soft + at, FN(max_d)(zero + SMALLEST_SLOPE, soft));
        const FN(vd) change = FN(pick_d)((FN(vi))(inner > zero), one, share) / (one + share);
        FN(put)(s->change + at, FN(where)(~(FN(vi))(inner < FLOORED), change));
        FN(put)(s->gaps + at, zero);
        FN(put)(s->p + at, zero - INFINITY);
    }
}

/* As add_scaling, of order-preserving scaling. */
static void FN(add_order)(Scaling *s, Py_ssize_t label, double weight, double *sums)
{
    const Py_ssize_t wide = s->wide, m = sort_down(s->n, s->below, s->keep, s->order, s->sorting);
    const int64_t *const order = s->order;
    FN(soften)(s);
    double logit = s->x[label] * 0.0; /* NaN in a row with no finite mean */
    for (Py_ssize_t i = 0; i < m; i++) {
        const int64_t j = order[i];
        const double gap = i + 1 < m ? (s->below[j] - s->below[order[i + 1]]) * s->beta : 0.0;
        s->p[j] = logit;
        s->gaps[j] = gap;
        logit -= s->soft[j] * gap;
    }
    const double own = s->p[label];
    FN(vd) totals[PARTS] = {{0}};
    for (Py_ssize_t at = 0; at < wide; at += 8)
        for (int p = 0; p < PARTS; p++) {
            const FN(vd) share = FN(exp_d)(FN(get)(s->p + at + p * LANES));
            FN(put)(s->p + at + p * LANES, share);
            totals[p] += share;
        }
    const double total = FN(across_d)(totals), inverse = 1.0 / total;
    sums[0] += weight;
    sums[1] += (FN(log_d)((FN(vd)){0} + total)[0] - own) * weight;
    /* soft becomes the chance of a class at or above this one, p what moves the loss. */
    double above = 0.0, passed = 0.0;
    for (Py_ssize_t i = 0; i < m; i++) {
        const int64_t j = order[i];
        above += s->p[j] * inverse;
        passed = j == label ? 1.0 : passed;
        s->p[j] = above - passed;
        s->soft[j] = above > 1.0 ? 1.0 : above;
    }
    double *const kept = s->left + s->kept * s->left_size;
    for (Py_ssize_t at = 0; at < wide; at += LANES) {
        const FN(vd) x = FN(get)(s->x + at), lever = FN(get)(s->gaps + at) * FN(get)(s->change + at);
        const FN(vd) heavy = lever * weight, pull = FN(get)(s->p + at) * heavy;
        FN(put)(s->slopes + at, FN(get)(s->slopes + at) + pull * x);
        FN(put)(s->slopes + wide + at, FN(get)(s->slopes + wide + at) + pull);
        if (!s->bend)
            continue;
        const FN(vd) upto = FN(get)(s->soft + at), rest = 1.0 - upto;
        if (s->bend == BEND_CLASS) {
            const FN(vd) bend = upto * rest * lever * heavy;
            FN(put)(s->own + at, FN(get)(s->own + at) + bend * x * x);
            FN(put)(s->own + wide + at, FN(get)(s->own + wide + at) + bend * x);
            FN(put)(s->own + 2 * wide + at, FN(get)(s->own + 2 * wide + at) + bend);
            continue;
        }
        FN(put)(kept + at, upto);
        FN(put)(kept + wide + at, rest);
        FN(put)(kept + 2 * wide + at, heavy);
        FN(put)(kept + 3 * wide + at, lever);
        FN(put)(kept + 4 * wide + at, x);
    }
    if (s->bend == BEND_PAIR && ++s->kept == KEPT_ROWS)
        FN(flush_scaling)(s);
}

/* Adds a row to the sums of its client: weight and loss to `sums`, the rest to `s`. */
static void FN(add_scaling)(Scaling *s, const Matrix *m, const char *row, Py_ssize_t label, double weight, double *sums)
{
    const Py_ssize_t wide = s->wide;
    FN(canonical)(s, m, row);
    /* A row whose own class is masked has no finite loss and does not count. */
    if (!s->keep[label] || !(weight > 0))
        return;
    if (s->map == MAP_ORDER) {
        FN(add_order)(s, label, weight, sums);
        return;
    }
    FN(map_row)(s);
    const double own = s->p[label], top = FN(largest)(s->p, wide);
    FN(vd) totals[PARTS] = {{0}};
    for (Py_ssize_t at = 0; at < wide; at += 8)
        for (int p = 0; p < PARTS; p++) {
            const FN(vd) share = FN(exp_d)(FN(get)(s->p + at + p * LANES) - top);
            FN(put)(s->p + at + p * LANES, share);
            totals[p] += share;
        }
    const double total = FN(across_d)(totals), inverse = 1.0 / total;
    sums[0] += weight;
    sums[1] += (FN(log_d)((FN(vd)){0} + total)[0] + (top - own)) * weight;
    for (Py_ssize_t at = 0; at < wide; at += LANES)
        FN(put)(s->p + at, FN(get)(s->p + at) * inverse);
    if (s->bend == BEND_FULL)
        FN(keep_full)(s, weight);
    else if (s->bend)
        FN(bend_row)(s, weight);
    s->p[label] -= 1.0;
    double *const slopes = s->slopes + (s->matrix ? s->n * wide : 0);
    for (Py_ssize_t at = 0; at < wide; at += LANES) {
        const FN(vd) residual = FN(get)(s->p + at) * weight, x = FN(get)(s->x + at);
        if (s->matrix) {
            FN(put)(s->rows + s->kept * wide + at, x);
            FN(put)(s->residuals + s->kept * wide + at, residual);
        }
        else {
            FN(put)(slopes + at, FN(get)(slopes + at) + residual * x);
            FN(put)(slopes + wide + at, FN(get)(slopes + wide + at) + residual);
            continue;
        }
        FN(put)(slopes + at, FN(get)(slopes + at) + residual);
    }
    if (++s->kept == KEPT_ROWS)
        FN(flush_scaling)(s);
}

/* Adds the products of the rows that are kept. */
static void FN(flush_bias)(Bias *s)
{
    if (s->full)
        FN(add_products)(s->kept, s->left, s->n, s->wide, s->right, s->wide, s->wide, s->products, s->wide, 1);
    s->kept = 0;
}

/* Adds a row to the sums of its client at one point, see bias_moments.py. */
static void FN(add_bias)(Bias *s, const Matrix *m, const char *row, Py_ssize_t label, double weight)
{
    const Py_ssize_t wide = s->wide;
    double *const x = s->x, *const p = s->right + s->kept * wide, *const left = s->left + s->kept * wide;
    FN(gaps)(m, row, x); /* padded with -inf */
    FN(vd) best = (FN(vd)){0} - INFINITY;
    for (Py_ssize_t at = 0; at < wide; at += LANES) {
        const FN(vd) scaled = FN(max_d)((FN(vd)){0} - MAX_SPAN, FN(get)(x + at)) * s->beta;
        const FN(vd) moved = scaled + FN(get)(s->bias + at); /* -inf in the padding */
        best = FN(max_d)(moved, best);
        FN(put)(x + at, scaled);
        FN(put)(p + at, moved);
    }
    double top = best[0];
    for (int l = 1; l < LANES; l++)
        top = best[l] > top ? best[l] : top;
    const double own = p[label] - top, scaled = x[label];
    FN(vd) totals[PARTS] = {{0}}, means[PARTS] = {{0}}, bends[PARTS] = {{0}};
    for (Py_ssize_t at = 0; at < wide; at += 8)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) {
            const Py_ssize_t j = at + part * LANES;
            const FN(vd) share = FN(exp_d)(FN(get)(p + j) - top);
            FN(put)(p + j, share);
            totals[part] += share;
            means[part] += share * FN(get)(x + j);
        }
    const double total = FN(across_d)(totals), inverse = 1.0 / total, mean = FN(across_d)(means) * inverse;
    for (Py_ssize_t at = 0; at < wide; at += 8)
        for (int part = 0; part < PARTS; part++) {
            const Py_ssize_t j = at + part * LANES;
            const FN(vd) share = FN(get)(p + j) * inverse, away = FN(get)(x + j) - mean, cross = share * away;
            bends[part] += cross * away;
            const FN(vd) heavy = share * weight;
            FN(put)(s->slopes + j, FN(get)(s->slopes + j) + heavy);
            FN(put)(s->cross + j, FN(get)(s->cross + j) + cross * weight);
            if (!s->full)
                FN(put)(s->own + j, FN(get)(s->own + j) + (share - share * share) * weight);
            else {
                FN(put)(p + j, share);
                FN(put)(left + j, heavy);
            }
        }
    s->counts[label] += weight; /* apart: a vector that was just changed in one place is slow to load */
    s->head[0] += weight;
    s->head[1] += (FN(log_d)((FN(vd)){0} + total)[0] - own) * weight;
    s->head[2] += (mean - scaled) * weight;
    s->head[3] += FN(across_d)(bends) * weight;
    if (s->full && ++s->kept == KEPT_ROWS)
        FN(flush_bias)(s);
}

/* Adds a row to the sums of its client, see methods/class_scores/rounds.py; `label` is the score
   of its class, or -1. */
static void FN(add_platt)(Platt *s, const Matrix *m, const char *row, Py_ssize_t label, double weight)
{
    const Py_ssize_t wide = s->wide;
    const double *const given = s->given;
    const FN(vd) zero = {0}, one = zero + 1.0;
    for (Py_ssize_t j = 0; j < s->n; j++)
        s->odds[j] = m->single ? (double)*(const float *)(row + j * m->across) : *(const double *)(row + j * m->across);
    for (Py_ssize_t at = 0; at < wide; at += LANES) {
        FN(vd) x = FN(get)(s->odds + at) * FN(get)(given + FIRST_FACTOR * wide + at) * FN(get)(given + SECOND_FACTOR * wide + at);
        x = FN(min_d)(one, FN(max_d)(-one, x));
        const FN(vd) place = (x - FN(get)(given + CENTRE * wide + at)) * FN(get)(given + INVERSE_WIDTH * wide + at);
        const FN(vd) odds = FN(get)(given + SLOPE * wide + at) * place + FN(get)(given + SHIFT * wide + at);
        const FN(vd) target = FN(get)(given + TARGET * wide + at);
        const FN(vd) share = FN(exp_d)(FN(min_d)(-odds, odds)), inverse = one / (one + share);
        const FN(vd) proba = FN(pick_d)((FN(vi))(odds > zero), one, share) * inverse;
        const FN(vd) loss = (FN(max_d)(zero, odds) + FN(log1p_d)(share)) - target * odds;
        const FN(vd) residual = (proba - target) * weight, bend = share * inverse * inverse * weight, cross = bend * place;
        const FN(vd) parts[PLATT_SUMS] = {loss * weight, residual * place, residual, cross * place, cross, bend};
        for (int k = 0; k < PLATT_SUMS; k++)
            FN(put)(s->sums + k * wide + at, FN(get)(s->sums + k * wide + at) + parts[k]);
        FN(put)(s->place + at, place);
        FN(put)(s->odds + at, odds);
    }
    if (label < 0)
        return;
    const double more = given[MORE_TARGET * wide + label] * weight;
    s->own[label] += more * s->odds[label];
    s->own[wide + label] += more * s->place[label];
    s->own[2 * wide + label] += more;
}

#undef LANES
#undef PARTS
