"""Answers about the order of scores: ROC and precision-recall."""

from __future__ import annotations

from math import nan
from typing import NamedTuple

import numpy as np

from skfedcal.evaluation._answers import Answers, Array, undefined
from skfedcal.evaluation._estimate import Estimate

# Points of a curve whose errors are computed; those between are interpolated.
_ERROR_POINTS = 257

# Buckets of average precision hold so many standard deviations of their noise.
_BUCKET_SIGNAL = 10.0


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


class RankingAnswers(Answers):
    """Area and curves; ties inside a bucket count one half."""

    def roc_auc(self, *, ci: float = 0.95) -> Estimate:
        """Area under the ROC curve.

        ``sum_i p_i (N_below_i + n_i / 2) / (P N)`` over buckets. Its `discretisation`
        is ``sum_i p_i n_i / (2 P N)``: no order inside the buckets can be further off.

        Parameters
        ----------
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
            NaN, with a warning, where there is only one class.
        """
        negatives, positives = self._sums
        if min(negatives, positives) <= 0:
            undefined("ROC AUC", "only one class is present", "nan")
            return Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan)
        value, gradient = auc_with_gradient(self.counts_)
        seen = self._seen()
        tied = float((seen[0] * seen[1]).sum()) / (2 * positives * negatives)
        return self._estimate(value, gradient, ci, discretisation=min(tied, 0.5))

    def roc_curve(self) -> RocCurve:
        """Rates of false and true positives at all edges of buckets.

        Noisy counts are first brought into order (isotonic regression of the running
        sums), which changes nothing where there is no noise.

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

    def average_precision(self, *, ci: float = 0.95) -> Estimate:
        """Mean of precision over recall, as scikit-learn sums it up.

        Noisy counts are first merged into equi-depth buckets that hold more than the
        noise.

        Parameters
        ----------
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
        """
        if self._sums[1] <= 0:
            undefined("Average precision", "there is no positive row", "0.0")
            return Estimate(0.0, 0.0, 1.0, se_sampling=nan, se_privacy=nan)
        edges = self._buckets()
        counts = np.add.reduceat(self.counts_, edges[:-1], axis=1)
        value, gradient, gap = _average_precision(counts)
        leaves = np.repeat(gradient, np.diff(edges), axis=1)
        return self._estimate(value, leaves, ci, discretisation=gap)

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
        sampling, privacy = self.noise_.variances(
            self.counts_, gradient(above.astype(np.float64), point)
        )
        return np.interp(np.arange(size + 1), point, np.sqrt(sampling + privacy))

    def _buckets(self) -> Array:
        """Edges of buckets for ratios of noisy counts, in leaves."""
        size = self.grid.n_buckets
        if self.noise_.exact:
            return np.arange(size + 1)
        half = np.zeros_like(self.counts_)
        half[:, size // 2 :] = 1.0
        noise = float(np.sqrt(self.noise_.variances(self.counts_, half)[1]))
        fit = max(float(self.counts_.sum()), 0.0) / max(_BUCKET_SIGNAL * noise, 1e-12)
        return equi_depth_edges(self.counts_, int(np.clip(fit, 2, size)))


def auc_with_gradient(counts: Array) -> tuple[float, Array]:
    """Area under the curve of (..., 2, n) counts and its slope in each of them."""
    negative, positive = counts
    n, p = negative.sum(), positive.sum()
    below = np.cumsum(negative) - negative / 2
    beyond = p - np.cumsum(positive) + positive / 2
    value = float((positive * below).sum() / (p * n))
    return value, np.stack([beyond / (p * n) - value / n, below / (p * n) - value / p])


def equi_depth_edges(counts: Array, n_buckets: int) -> Array:
    """Edges, in leaves, of buckets of about equal depth, by prefix search.

    Running sums that noise has put out of order are replaced by their running maximum.
    """
    sums = np.append(0.0, np.cumsum(counts.sum(axis=0)))
    sums = np.maximum.accumulate(sums)
    targets = sums[-1] * np.arange(1, n_buckets) / n_buckets
    right = np.clip(np.searchsorted(sums, targets), 1, len(sums) - 1)
    nearer = targets - sums[right - 1] < sums[right] - targets
    inner = np.where(nearer, right - 1, right)
    return np.unique(np.concatenate([[0], inner, [counts.shape[1]]]))


def _average_precision(counts: Array) -> tuple[float, Array, float]:
    """Value, slope in each count, and bound for any order inside the buckets."""
    n, p = counts[:, ::-1]  # from the highest score down
    total = p.sum()
    tp, fp = np.cumsum(p), np.cumsum(n)
    predicted = np.maximum(tp + fp, 1e-12)
    used = tp + fp > 0
    precision = np.where(used, tp / predicted, 0.0)
    value = float((p * precision).sum() / total)
    # A row adds to the sums of its own bucket and of all buckets below.
    fall = np.where(used, p * tp / predicted**2, 0.0)
    rise = np.where(used, p * fp / predicted**2, 0.0)
    later = [np.cumsum(part[::-1])[::-1] for part in (fall, rise)]
    slope = np.stack([-later[0], precision + later[1] - value]) / total
    seen_p, seen_n = np.maximum(p, 0.0), np.maximum(n, 0.0)
    hits, misses = np.cumsum(seen_p), np.cumsum(seen_n)
    best = hits / np.maximum(hits + misses - seen_n, 1e-12)
    first = hits - seen_p
    worst = first / np.maximum(first + misses, 1e-12)
    known = max(float(hits[-1]), 1e-12)
    high = float((seen_p * np.minimum(best, 1.0)).sum()) / known
    low = float((seen_p * worst).sum()) / known
    return value, slope[:, ::-1], min(max(high - value, value - low, 0.0), 1.0)
