"""Areas under curves as functions of counts, with slopes, and equi-depth buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.evaluation._grid import by_slopes

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
    """Sum of the entries behind each."""
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
