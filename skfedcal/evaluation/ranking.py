"""Metrics of the order of scores: ROC and precision-recall curves and their areas."""

from __future__ import annotations

from math import nan
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import check_choice
from skfedcal.evaluation.answers import VISIBLE, Answers, answers_documented, undefined
from skfedcal.evaluation.grid import by_slopes, equal_mass
from skfedcal.evaluation.intervals import (
    Estimate,
    make_estimate,
    quantile,
    replace,
    with_guarantee,
)

Array = NDArray[Any]

# Places inside a bucket at which precision is averaged (Gauss), and their weights.
_PLACES = np.array([0.5 - np.sqrt(0.15), 0.5, 0.5 + np.sqrt(0.15)])
_SHARES = np.array([5.0, 8.0, 5.0]) / 18


def auc_with_gradient(counts: Array, smooth: bool = False) -> tuple[float, Array]:
    """Area under the curve of (2, n) counts and its slope in each of them.

    With `smooth` the densities of both classes are lines inside a bucket, with the
    slopes of the buckets next to it; a pair in one bucket then counts 1/2 and a twelfth
    of the difference of the two slopes.
    """
    negative, positive = counts
    n, p = negative.sum(), positive.sum()
    below = np.cumsum(negative) - negative / 2
    beyond = p - np.cumsum(positive) + positive / 2
    value = float((positive * below).sum() / (p * n))
    if smooth and counts.shape[1] > 2:
        rise = np.gradient(positive), np.gradient(negative)
        value += float(negative @ rise[0] - positive @ rise[1]) / (12 * p * n)
        beyond = beyond + (rise[0] - by_slopes(positive)) / 12
        below = below + (by_slopes(negative) - rise[1]) / 12
    return value, np.stack([beyond / (p * n) - value / n, below / (p * n) - value / p])


def average_precision(counts: Array, *, exact: bool) -> tuple[float, Array, float]:
    """Value, slope in each count, and bound for any order inside the buckets.

    Precision of a positive is that at the lower end of its bucket, as scikit-learn has
    it for ties, if counts are exact; else the mean over the bucket.
    """
    n, p = counts[:, ::-1]  # from the highest score down
    places, shares = (np.ones(1), np.ones(1)) if exact else (_PLACES, _SHARES)
    total, place = p.sum(), places[:, None]
    above = np.cumsum(n + p) - n - p
    predicted = above + place * (n + p)
    used = predicted > 0
    whole = np.where(used, predicted, 1.0)
    precision = np.where(used, (np.cumsum(p) - p + place * p) / whole, 0.0)
    mean = shares @ precision
    value = float(p @ mean / total)
    # A row adds to its own bucket, as far as it is above a place, and to all below.
    rise, fall = (
        p * np.where(used, part / whole, 0.0) for part in (1 - precision, precision)
    )
    own = [(shares * places) @ part for part in (rise, fall)]
    later = [_after(shares @ part) for part in (rise, fall)]
    slope = np.stack([-own[1] - later[1], mean + own[0] + later[0] - value]) / total
    return value, slope[:, ::-1], _order_bound(p, n, value)


def _after(values: Array) -> Array:
    """Sum of the entries after each entry."""
    out: Array = np.cumsum(values[::-1])[::-1] - values
    return out


def _order_bound(p: Array, n: Array, value: float) -> float:
    """Distance to the best and the worst order of the rows inside buckets."""
    seen_p, seen_n = np.maximum(p, 0.0), np.maximum(n, 0.0)
    hits, misses = np.cumsum(seen_p), np.cumsum(seen_n)
    best = hits / np.maximum(hits + misses - seen_n, 1e-12)
    first = hits - seen_p
    worst = first / np.maximum(first + misses, 1e-12)
    known = max(float(hits[-1]), 1e-12)
    high = float((seen_p * np.minimum(best, 1.0)).sum()) / known
    low = float((seen_p * worst).sum()) / known
    return min(max(high - value, value - low, 0.0), 1.0)


# Points of a curve whose errors are computed; those between are interpolated.
_ERROR_POINTS = 257

# The highest bucket of average precision has so many standard deviations of the noise.
# Measured: 10 hides the rise of precision at the top (the mean is up to half a standard
# error too low), 2 makes the error a fifth larger.
_TOP_SIGNAL = 5.0

# Part of all rows, or of half the positives, in the highest bucket from which on their
# order matters too much.
_MOST_MERGED = 0.25

# Most rows that an area can be worth, in rows of the rarer class; measured for areas
# from .65 to .9 they are 2 to 4.
_WORTH = 4.0


class RocCurve(NamedTuple):
    """Points of a ROC curve, from the highest threshold down.

    Attributes
    ----------
    fpr, tpr, thresholds : ndarray of shape (n_points,)
        As of ``sklearn.metrics.roc_curve`` without dropped points.
    se_fpr, se_tpr : ndarray of shape (n_points,)
        Standard errors of sampling and privacy together.
    """

    fpr: Array
    tpr: Array
    thresholds: Array
    se_fpr: Array
    se_tpr: Array


class PrecisionRecallCurve(NamedTuple):
    """Points of a precision-recall curve, from the lowest threshold up.

    Attributes
    ----------
    precision, recall : ndarray of shape (n_points + 1,)
        The last point is (1, 0), as in scikit-learn.
    thresholds : ndarray of shape (n_points,)
        Increasing.
    se_precision, se_recall : ndarray of shape (n_points + 1,)
        Standard errors of sampling and privacy together.
    """

    precision: Array
    recall: Array
    thresholds: Array
    se_precision: Array
    se_recall: Array


@answers_documented
class RankingAnswers(Answers):
    """Area and curves; ties inside a bucket count one half."""

    @with_guarantee
    def roc_auc(
        self,
        *,
        ci: float = 0.95,
        n_buckets: int | None = None,
        strategy: Literal["quantile", "uniform"] = "quantile",
    ) -> Estimate:
        """Area under the ROC curve.

        ``sum_i p_i (N_below_i + n_i / 2) / (P N)`` over buckets; under local noise,
        which leaves few of them, with the order inside buckets that their neighbours
        suggest. Its `discretisation` is ``sum_i p_i n_i / (2 P N)``: no order inside
        the buckets has a larger error.

        Parameters
        ----------
        ci
        n_buckets : int, default=None
            Number B of buckets that those of the histogram are merged into, as in the
            paper on evaluation (Eq. 5 and Figure 4). None uses all of them.
        strategy : {'quantile', 'uniform'}, default='quantile'
            With `n_buckets`, merge into buckets of about the same (released) number of
            rows, or into the same number of neighbours.

        Returns
        -------
        Estimate
            NaN, with a warning, if there is only one class.
        """
        negatives, positives = self._sums
        if min(negatives, positives) <= 0:
            undefined("ROC AUC", "only one class is present", "nan")
            return Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan)
        first = self._merged_buckets(n_buckets, strategy)
        counts = np.add.reduceat(self.counts_, first, axis=1)
        smooth = self.noise_.local and n_buckets is None
        value, gradient = auc_with_gradient(counts, smooth)
        widths = np.diff(np.append(first, self.counts_.shape[1]))
        seen = np.maximum(counts, 0.0)
        tied = float((seen[0] * seen[1]).sum()) / (2 * positives * negatives)
        found = self._estimate(
            value,
            np.repeat(gradient, widths, axis=1),
            ci,
            discretisation=min(tied, 0.5),
            rows=_WORTH * min(negatives, positives),
        )
        return found if self._both_classes() else replace(found, low=0.0, high=1.0)

    def _merged_buckets(self, n_buckets: int | None, strategy: str) -> Array:
        """First bucket of the histogram in each of `n_buckets` merged ones."""
        size = self.grid.n_buckets
        if n_buckets is None:
            return np.arange(size)
        check_choice("strategy", strategy, ("quantile", "uniform"))
        if not isinstance(n_buckets, Integral) or not 1 <= n_buckets <= size:
            raise ValueError(
                f"n_buckets={n_buckets!r} must be a whole number from 1 to {size}, the "
                "number of buckets of this histogram; fit it with a larger height."
            )
        if strategy == "quantile":
            return equal_mass(self.counts_, int(n_buckets))
        return np.arange(n_buckets) * size // int(n_buckets)

    def roc_curve(self) -> RocCurve:
        """Rates of false and true positives at all edges of buckets.

        Noisy cumulative counts are first made monotone by isotonic regression, which
        has no effect without noise.

        Returns
        -------
        RocCurve
        """
        fpr, tpr = (self._running(row) / max(self._total(row), 1e-12) for row in (0, 1))
        thresholds = np.concatenate([[np.inf], self.grid.edges[:-1][::-1]])
        return RocCurve(
            fpr, tpr, thresholds, self._rate_se(0, fpr), self._rate_se(1, tpr)
        )

    def pr_curve(self) -> PrecisionRecallCurve:
        """Precision and recall at all edges of buckets.

        Returns
        -------
        PrecisionRecallCurve
        """
        fp, tp = self._running(0), self._running(1)
        predicted = fp + tp
        precision = np.where(predicted > 0, tp / np.maximum(predicted, 1e-12), 1.0)
        recall = tp / max(self._total(1), 1e-12)

        def gradient(above: Array, point: Array) -> Array:
            share = precision[point][:, None] * above
            whole = np.maximum(predicted[point], 1.0)[:, None, None]
            return np.stack([-share, above - share], axis=1) / whole

        se = np.minimum(self._curve_se(gradient), 1.0)
        se[predicted <= 0] = 1.0
        return PrecisionRecallCurve(
            np.append(precision[:0:-1], 1.0),
            np.append(recall[:0:-1], 0.0),
            self.grid.edges[:-1],
            np.append(se[:0:-1], 0.0),
            np.append(self._rate_se(1, recall)[:0:-1], 0.0),
        )

    @with_guarantee
    def average_precision(self, *, ci: float = 0.95) -> Estimate:
        """Mean of precision over recall, as scikit-learn sums it up.

        Noisy counts of the highest buckets are first merged into one that holds more
        than the noise, and precision is averaged over the inside of each bucket.

        Parameters
        ----------
        ci

        Returns
        -------
        Estimate
        """
        if self._sums[1] <= 0:
            undefined("Average precision", "there is no positive row", "0.0")
            return Estimate(0.0, 0.0, 1.0, se_sampling=nan, se_privacy=nan)
        top = self._top()
        counts = _merged(self.counts_, top)
        value, gradient, gap = average_precision(counts, exact=self.noise_.exact)
        widths = np.ones(counts.shape[1], dtype=np.int64)
        widths[-1] = self.counts_.shape[1] - top
        leaves = np.repeat(gradient, widths, axis=1)
        sampling, privacy, free = map(float, self._spread(leaves))
        found = make_estimate(
            value,
            sampling,
            # A ratio whose denominator is off by one part in `_TOP_SIGNAL`: the second
            # term of its variance.
            privacy * (1 + 4 / _TOP_SIGNAL**2),
            ci=ci,
            discretisation=gap,
            freedom=free,
            rows=_WORTH * self._sums[1],
        )
        if self.noise_.exact:
            return found
        if not self._both_classes():
            return replace(found, low=0.0, high=1.0)
        high = min(found.high + self._bend(found, leaves, top, ci), 1.0)
        found = replace(found, high=high)
        rows, hits = counts[:, -1].sum() / counts.sum(), counts[1, -1] / self._sums[1]
        if rows <= _MOST_MERGED and hits <= 2 * _MOST_MERGED:
            return found
        # Nothing is known of the order of so many rows.
        return replace(
            found, low=max(found.low - gap, 0.0), high=min(found.high + gap, 1.0)
        )

    def _bend(self, found: Estimate, slope: Array, top: int, ci: float) -> float:
        """Increase of average precision beyond the linear one at the upper end.

        Noise that lowers average precision also lowers its standard error. The counts
        are therefore moved, in the most likely direction of the noise, to the end of
        the interval. The same at the lower end would make intervals too short (measured
        coverage: .90 for .95).
        """
        if found.se_privacy <= 0:
            return 0.0
        size = quantile(ci) * found.se_privacy**2 / found.se
        step = self.noise_.direction(slope)
        step = step * (size / float((step * slope).sum()))
        start, end = (
            average_precision(_merged(counts, top), exact=False)[0]
            for counts in (self.counts_, self.counts_ + step)
        )
        return max(end - start - size, 0.0)

    def _both_classes(self) -> bool:
        """Whether both numbers of rows are larger than noise alone would produce."""
        rows = np.stack([np.zeros_like(self.counts_)] * 2)
        rows[0, 0] = rows[1, 1] = 1.0
        noise = np.sqrt(self.noise_.variances(self.counts_, rows)[1])
        return bool((np.array(self._sums) > VISIBLE * noise).all())

    def _total(self, row: int) -> float:
        return self._sums[row]

    def _running(self, row: int) -> Array:
        """Number of rows at or above each edge, from the top down, in order."""
        sums = np.append(0.0, np.cumsum(self.counts_[row, ::-1]))
        if self.noise_.exact:
            return sums
        from sklearn.isotonic import isotonic_regression

        total = max(self._total(row), 0.0)
        out: Array = isotonic_regression(sums, y_min=0.0, y_max=total)
        out[0], out[-1] = 0.0, total
        return out

    def _rate_se(self, row: int, rate: Array) -> Array:
        def gradient(above: Array, point: Array) -> Array:
            out = np.zeros((len(point), 2, above.shape[1]))
            out[:, row] = (above - rate[point][:, None]) / max(self._total(row), 1.0)
            return out

        return self._curve_se(gradient)

    def _curve_se(self, gradient) -> Array:  # type: ignore[no-untyped-def]
        """Standard error at every edge, from the top down."""
        size = self.grid.n_buckets
        step = max(1, size // (_ERROR_POINTS - 1))
        point = np.arange(0, size + 1, step)
        above = np.arange(size) >= size - point[:, None]
        sampling, privacy = self.variances(gradient(above.astype(np.float64), point))
        return np.interp(np.arange(size + 1), point, np.sqrt(sampling + privacy))

    def _top(self) -> int:
        """First of the buckets that are merged, for ratios of noisy counts."""
        size = self.grid.n_buckets
        if self.noise_.exact:
            return size - 1
        half = np.zeros_like(self.counts_)
        half[:, size // 2 :] = 1.0
        noise = float(np.sqrt(self.noise_.variances(self.counts_, half)[1]))
        above = np.cumsum(self.counts_.sum(axis=0)[::-1])[::-1]
        # The counts at and above any lower bucket, too, hold more than the noise.
        enough = np.logical_and.accumulate(above > _TOP_SIGNAL * noise)
        return max(int(enough.sum()) - 1, 0)


def _merged(counts: Array, top: int) -> Array:
    """Counts whose buckets from `top` on are one."""
    high = counts[:, top:].sum(axis=1, keepdims=True)
    return np.concatenate([counts[:, :top], high], axis=1)
