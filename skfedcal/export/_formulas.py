"""Formulas in terms of the operations of a graph, stable near 0 and far out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skfedcal.export._graph import Array, Value

# Open interval (0, 1) in float64.
_TINY = float(np.finfo(np.float64).tiny)
_ALMOST_ONE = float(1 - np.finfo(np.float64).epsneg)


def log1p(x: Value) -> Value:
    """``log(1 + x)``, with all digits where x is small."""
    # The rounding of 1 + x is undone by the quotient; runtimes need no log1p.
    total = 1.0 + x
    rounded = total - 1.0
    lost = rounded.equals(0.0)
    return lost.choose(x, total.log() * (x / lost.choose(1.0, rounded)))


def softplus(x: Value) -> Value:
    """``log(1 + exp(x))``."""
    return x.at_least(0.0) + log1p((-abs(x)).exp())


def expit(x: Value) -> Value:
    """Probability of log-odds."""
    # Nothing overflows: an infinite term would make a gradient of nan.
    small = (-abs(x)).exp()
    return (x < 0.0).choose(small, 1.0) / (1.0 + small)


def inside(proba: Value) -> Value:
    """Probabilities strictly between 0 and 1."""
    return proba.at_least(_TINY).at_most(_ALMOST_ONE)


def to_odds(proba: Value) -> Value:
    """Log-odds of probabilities."""
    clipped = inside(proba)
    return clipped.log() - log1p(-clipped)


def softmax(logits: Value) -> Value:
    """Row-wise softmax."""
    weights = (logits - logits.max()).exp()
    return weights / weights.sum()


def log_softmax(logits: Value) -> Value:
    """Row-wise logarithm of the softmax."""
    shifted = logits - logits.max()
    return shifted - shifted.exp().sum().log()


def log_sum_exp(logits: Value) -> Value:
    """Logarithm of the sum of exponentials of each row; one entry must be finite."""
    top = logits.max()
    return top + (logits - top).exp().sum().log()


def count_at_most(values: Value, points: Array) -> Value:
    """How many of the sorted points of its column are at most each value.

    Parameters
    ----------
    values : Value of shape (n_rows, n_columns)
        Places.
    points : ndarray of shape (n_columns, n_points)
        Points of each column; what is missing is inf at the end.
    """
    n_columns, n_points = points.shape
    size = 1 << n_points.bit_length()  # a power of 2 above n_points
    table = np.full((n_columns, size), np.inf)
    table[:, :n_points] = points
    first = np.arange(n_columns)[None] * size
    # A binary search: `found` points are at most the value.
    found = values * 0.0
    step = size // 2
    while step:
        # Point number found + step, counted from 1.
        candidate = (found + (first + step - 1)).take_from(table)
        found = (values < candidate).choose(found, found + step)
        step //= 2
    return found


def interpolate(
    places: Value, points: Sequence[Array], values: Sequence[Array]
) -> Value:
    """Straight lines between the corners of each column, constant beyond their ends.

    Parameters
    ----------
    places : Value of shape (n_rows, n_columns)
        Where to look.
    points, values : list of ndarray
        Corners of each column, with increasing points.
    """
    size = max(len(own) for own in points)
    place, value, slope = (np.zeros((len(points), size)) for _ in range(3))
    place[:] = np.inf
    for i, (own, high) in enumerate(zip(points, values, strict=True)):
        n = len(own)
        place[i, :n], value[i, :n] = own, high
        slope[i, : n - 1] = np.diff(high) / np.diff(own)
    start = np.arange(len(points))[None] * size
    index = (count_at_most(places, place) - 1.0).at_least(0.0) + start
    # Left of the first corner nothing is added; right of the last the slope is 0.
    along = (places - index.take_from(place)).at_least(0.0)
    return index.take_from(value) + index.take_from(slope) * along
