"""Confidence bands of curves from the variances of a histogram."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skfedcal.evaluation._histogram import ScoreHistogram
from skfedcal.evaluation._intervals import quantile, unit_band

Array = NDArray[Any]

# Points of a curve whose errors are computed; those between are interpolated.
_POINTS = 257


class Coordinate(NamedTuple):
    """One coordinate of a curve at all edges of buckets, from the top down.

    Attributes
    ----------
    value : ndarray of shape (n_buckets + 1,)
        Points of the curve.
    slope : ndarray of shape (n_buckets + 1, 2, 2)
        Slope of the value in the counts of (negatives, positives) that lie (at or
        above, below) the edge.
    rows : ndarray of shape (n_buckets + 1,)
        Rows that the value is a share of.
    """

    value: Array
    slope: Array
    rows: Array


def rate(value: Array, total: float, row: int) -> Coordinate:
    """Part of the negatives (row 0) or positives (row 1) at or above each edge."""
    slope = np.zeros((len(value), 2, 2))
    slope[:, row] = np.stack([1 - value, -value], axis=1) / max(total, 1.0)
    return Coordinate(value, slope, np.full(len(value), total))


def precision(value: Array, predicted: Array) -> Coordinate:
    """Part of the rows at or above each edge that are positive."""
    slope = np.zeros((len(value), 2, 2))
    slope[:, :, 0] = np.stack([-value, 1 - value], axis=1)
    slope /= np.maximum(predicted, 1.0)[:, None, None]
    return Coordinate(value, slope, predicted)


def band(
    hist: ScoreHistogram, x: Coordinate, y: Coordinate, ci: float
) -> tuple[Array, Array]:
    """Ends, at every edge, of the interval of `y` where the curve is at `x`.

    Both coordinates of a point have errors. To first order the curve at the same place
    is off by ``dy - slope * dx``, whose variance is that of its gradient. The slope is
    that of the chord over the interval of `x`, so that a jump counts with its height.
    """
    z, size = quantile(ci), hist.grid.n_buckets
    point = np.arange(0, size + 1, max(1, size // (_POINTS - 1)))
    reach = z * np.sqrt(sum(_variances(hist, point, x.slope[point])))
    chord = _chord(x.value, y.value, x.value[point], reach)[:, None, None]
    both = _variances(hist, point, y.slope[point] - chord * x.slope[point])
    everywhere = np.arange(size + 1)
    sampling, privacy = (np.interp(everywhere, point, part) for part in both)
    return unit_band(y.value, sampling, privacy, z, y.rows)


def _variances(hist: ScoreHistogram, point: Array, slope: Array) -> tuple[Array, Array]:
    """Variances, of sampling and of privacy, of values at some edges."""
    size = hist.grid.n_buckets
    above = np.arange(size) >= size - point[:, None, None]
    gradient = np.where(above, slope[:, :, :1], slope[:, :, 1:])
    return hist.noise_.variances(hist.counts_, gradient)


def _chord(x: Array, y: Array, place: Array, half: Array) -> Array:
    """Slope of the curve from ``place - half`` to ``place + half``; `x` increases."""
    low, high = np.maximum(place - half, x[0]), np.minimum(place + half, x[-1])
    rise = np.interp(high, x, y) - np.interp(low, x, y)
    width = high - low
    # Without an error of x its slope does not matter.
    out: Array = np.where(width > 0, rise / np.where(width > 0, width, 1.0), 0.0)
    return out
