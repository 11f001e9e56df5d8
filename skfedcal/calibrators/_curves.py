"""Calibration curves from (noisy) counts of scores: the server's part.

A curve maps log-odds to calibrated log-odds. Counts have shape (2, n_leaves), negatives
and positives, and may be negative: they are unbiased, and sums of them are as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal.algorithms._binning import BinTable
from skfedcal.evaluation._noise import NoiseModel

if TYPE_CHECKING:
    from skfedcal.calibrators._bbq_table import Levels

Array = NDArray[Any]
Kind = Literal["steps", "line", "platt", "beta"]

# Buckets of an isotonic fit to noisy counts: many enough for the shape of a curve.
NOISY_BUCKETS = 64

# Share of the examples at either end whose log-odds are taken to be equal under noise:
# empty leaves there would add noise times large log-odds.
_TAIL = 0.002

# Pseudo-rows of a bin at what the scores in it say.
_BIN_ROWS = 1.0

# Examples of the other label that either end of a monotone curve is taken to have: few
# rows of one label would say 0 or 1, and cost much log loss on the next one.
_END_ROWS = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A calibration map of one score; monotone unless it has steps.

    Parameters
    ----------
    kind : {'steps', 'line', 'platt', 'beta'}
        Constant between points; straight between points, in probabilities; or a sigmoid
        of two or three coefficients.
    points : ndarray
        Log-odds between steps; probabilities of the corners of a line; else empty.
    values : ndarray
        Probabilities of steps (one more than points) or of corners; or coefficients:
        ``(a, b)`` of ``a z + b``, ``(a, b, c)`` of ``a log p - b log(1 - p) + c``.
    """

    kind: Kind
    points: Array
    values: Array

    def __call__(self, odds: Array) -> Array:
        """Calibrated log-odds."""
        if self.kind == "steps":
            index = np.searchsorted(self.points, odds, side="right")
            return to_odds(self.values)[index]
        if self.kind == "line":
            return to_odds(np.interp(expit(odds), self.points, self.values))
        if self.kind == "platt":
            return self.values[0] * odds + self.values[1]
        # Not a product of matrices, whose rounding depends on the number of rows.
        a, b, c = self.values
        return c - a * np.logaddexp(0, -odds) + b * np.logaddexp(0, odds)

    def check(self) -> None:
        """Raise if points and values, read from a file, are no curve."""
        sizes = (len(self.points), len(self.values))
        fixed = {"platt": (0, 2), "beta": (0, 3)}.get(self.kind)
        if sizes != (fixed or (sizes[0], sizes[0] + (self.kind == "steps"))):
            raise ValueError("curve_points_ do not fit curve_values_")
        if self.points.dtype != np.float64 or self.values.dtype != np.float64:
            raise ValueError("a curve has a wrong type")
        if not np.isfinite(self.values).all() or (np.diff(self.points) <= 0).any():
            raise ValueError("a curve has values that cannot be")


@dataclass(frozen=True, slots=True, eq=False)
class Leaves:
    """Counts of one score with all that a fit may know about them.

    Parameters
    ----------
    counts : ndarray of shape (2, n_leaves)
        Negatives and positives; not clipped.
    odds : ndarray of shape (n_leaves,)
        Log-odds that stand for each leaf.
    edges : ndarray of shape (n_leaves - 1,)
        Log-odds between leaves.
    noise : NoiseModel
        Law of the noise in the counts.
    """

    counts: Array
    odds: Array
    edges: Array
    noise: NoiseModel

    @property
    def noisy(self) -> bool:
        return not self.noise.exact

    def rows(self) -> Array:
        """Examples of each leaf, none of them negative.

        Under noise as many as there are: clipping alone would add all of the noise that
        is above 0.
        """
        out = np.maximum(self.counts.sum(axis=0), 0.0)
        if self.noisy:
            out *= max(float(self.counts.sum()), 1.0) / max(float(out.sum()), 1.0)
        return out

    def variance(self, functionals: Array) -> tuple[Array, Array]:
        """Sampling and privacy variance of functionals of shape (..., 2, n_leaves)."""
        flat = functionals.reshape(-1, *self.counts.shape)
        if not len(flat):
            return np.zeros(functionals.shape[:-2]), np.zeros(functionals.shape[:-2])
        # A few at a time: all buckets of 4096 leaves would take 300 MB.
        parts = [
            self.noise.variances(self.counts, flat[i : i + 64])
            for i in range(0, len(flat), 64)
        ]
        shape = functionals.shape[:-2]
        sampling, privacy = zip(*parts, strict=True)
        return (
            np.concatenate(sampling).reshape(shape),
            np.concatenate(privacy).reshape(shape),
        )

    def bucket_noise(self, first: Array) -> Array:
        """Deviation by noise of the number of examples in each bucket of leaves."""
        if not self.noisy:
            return np.zeros(len(first))
        n_leaves = self.counts.shape[1]
        which = np.repeat(np.arange(len(first)), np.diff(np.append(first, n_leaves)))
        inside = (which == np.arange(len(first))[:, None]).astype(np.float64)
        return np.sqrt(self.variance(np.repeat(inside[:, None], 2, axis=1))[1])

    def inner_odds(self) -> Array:
        """Log-odds of the leaves; under noise the ends are pulled in to where rows are.

        Which leaves are ends is read from the released counts.
        """
        if not self.noisy:
            return self.odds
        total = np.maximum.accumulate(np.cumsum(self.counts.sum(axis=0)))
        if total[-1] <= 0:
            return self.odds
        ends = np.searchsorted(total, np.array([_TAIL, 1 - _TAIL]) * total[-1])
        low, high = self.odds[np.minimum(ends, len(self.odds) - 1)]
        return np.clip(self.odds, low, high)


def equal_mass(counts: Array, n_buckets: int) -> Array:
    """First leaf of each bucket, with about the same number of examples in each.

    There may be fewer buckets where many examples share a leaf.
    """
    total = np.maximum.accumulate(np.cumsum(counts.sum(axis=0)))
    if total[-1] <= 0:
        return np.unique(np.arange(n_buckets) * counts.shape[1] // n_buckets)
    targets = np.arange(1, n_buckets) / n_buckets * total[-1]
    before = np.concatenate([[0.0], total])
    after = np.searchsorted(before, targets)
    # The nearer of the two edges around the target.
    closer = targets - before[after - 1] < before[after] - targets
    edges = after - closer
    return np.unique(np.concatenate([[0], edges[edges < counts.shape[1]]]))


def fit_bins(leaves: Leaves, n_bins: int) -> Curve:
    """Frequency of positives in buckets of equal mass."""
    first = equal_mass(leaves.counts, n_bins)
    counts = np.maximum(np.add.reduceat(leaves.counts, first, axis=1), 0.0)
    rows = counts.sum(axis=0)
    middle = _means(expit(leaves.odds), leaves.counts.sum(axis=0), first)
    noise = leaves.bucket_noise(first)
    weight = _BIN_ROWS + noise
    values = (counts[1] + weight * middle) / (rows + weight)
    # None of a label makes a bin no more certain than the input, unless its rows do.
    least = (_END_ROWS + noise) / (rows + 2 * (_END_ROWS + noise))
    low, high = np.minimum(least, middle), np.minimum(least, 1 - middle)
    values = np.clip(values, low, 1 - high)
    return Curve("steps", leaves.edges[first[1:] - 1], values)


def fit_bbq(leaves: Leaves) -> Curve:
    """Average of histograms of 2, 4, ... bins of leaves; see FedBBQCalibrator."""
    return Curve("steps", leaves.edges, _average(leaves)[0].values[0])


def bbq_optimism(leaves: Leaves) -> float:
    """Coefficients of the average, and what noise adds; see `saving`."""
    table, shares, levels, noise = _average(leaves)
    rows = np.maximum(levels.merge(leaves.counts.sum(axis=0)[None]), 0.0)
    fewer = np.hypot(*noise) * np.sqrt(leaves.counts.shape[1] / levels.size)
    # A bin is a coefficient as far as it has rows, beyond what noise makes of none.
    used = np.divide(rows, rows + fewer, out=np.zeros_like(rows), where=rows > 0)
    values = np.clip(table.values[0], 1e-9, 1 - 1e-9)
    assert table.rise is not None and table.fall is not None
    slopes = np.stack([table.fall[0] / (1 - values), table.rise[0] / values])
    noisy = np.square(noise)[:, None] * slopes
    return float(np.sum(shares * levels.sum_bins(used)) + np.sum(noisy))


def _average(leaves: Leaves) -> tuple[BinTable, Array, Levels, Array]:
    """Table of BBQ, the shares of its levels, and noise of negatives, positives."""
    from skfedcal.calibrators._bbq_table import Levels, bbq_table

    negative, positive = leaves.counts[:, None]
    n_leaves = positive.shape[1]
    sizes = Levels.of(n_leaves).sizes
    rows = leaves.rows()
    chance = expit(leaves.odds)
    middle = [
        _means(chance, rows, np.arange(0, n_leaves, n_leaves // s)) for s in sizes
    ]
    levels = Levels(sizes, np.concatenate(middle), np.repeat(sizes, sizes))
    # Next to none instead of none: slopes are given only if there is noise.
    noise = np.full(2, 1e-100)
    if leaves.noisy:
        one = np.zeros((2, 2, n_leaves))
        one[[0, 1], [0, 1], n_leaves // 2] = 1.0
        # Local noise depends on the counts; one that is negative would have none.
        typical = replace(leaves, counts=np.full((2, n_leaves), rows.mean() / 2))
        noise = np.maximum(np.sqrt(typical.variance(one)[1]), noise)
    table, shares = bbq_table(positive, negative, (noise[1], noise[0]), levels=levels)
    return table, shares, levels, noise


def fit_isotonic(leaves: Leaves) -> Curve:
    """Monotone least squares fit to frequencies, straight between leaves or buckets."""
    from sklearn.isotonic import isotonic_regression

    n_leaves = leaves.counts.shape[1]
    first = np.arange(n_leaves)
    if leaves.noisy:
        first = equal_mass(leaves.counts, NOISY_BUCKETS)
    counts = np.maximum(np.add.reduceat(leaves.counts, first, axis=1), 0.0)
    rows = counts.sum(axis=0)
    used = rows > 0
    if not used.any():
        return Curve("line", np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    middle = _means(expit(leaves.odds), leaves.counts.sum(axis=0), first)[used]
    rows, positive = rows[used], counts[1][used]
    positive[0] += _END_ROWS
    rows[0] += _END_ROWS
    rows[-1] += _END_ROWS
    fitted = isotonic_regression(positive / rows, sample_weight=rows)
    values = fitted
    if leaves.noisy:
        low, high = _margins(leaves, first[used], rows, fitted)
        values = np.clip(fitted, low, 1 - high)
    corners = np.ones(len(values), dtype=bool)
    corners[1:-1] = (values[1:-1] != values[:-2]) | (values[1:-1] != values[2:])
    return Curve("line", middle[corners], values[corners])


def _margins(
    leaves: Leaves, first: Array, rows: Array, fitted: Array
) -> tuple[float, float]:
    """How far from certain the lowest and the highest value stay under noise.

    One standard deviation of the noise in the frequency of the step.
    """
    out = []
    for step in (fitted == fitted[0], fitted == fitted[-1]):
        ends = np.flatnonzero(step)
        last = first[ends[-1] + 1] if ends[-1] + 1 < len(first) else None
        inside = np.zeros((1, *leaves.counts.shape))
        inside[..., slice(first[ends[0]], last)] = 1.0
        noise = np.sqrt(leaves.variance(inside)[1][0])
        out.append(min(noise / rows[step].sum(), 0.25))
    return out[0], out[1]


def features(odds: Array, kind: str) -> Array:
    """Columns that a sigmoid is linear in, the constant last."""
    if kind == "platt":
        return np.stack([odds, np.ones_like(odds)], axis=-1)
    # log p and -log(1 - p), from the log-odds.
    columns = -np.logaddexp(0, -odds), np.logaddexp(0, odds), np.ones_like(odds)
    return np.stack(columns, axis=-1)


def expit(odds: Array) -> Array:
    """Probability of log-odds."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-odds))


def to_odds(values: Array) -> Array:
    """Log-odds of probabilities, strictly inside (0, 1)."""
    limits = np.finfo(np.float64)
    inside = np.clip(values, limits.tiny, 1 - limits.epsneg)
    return np.log(inside) - np.log1p(-inside)


def _means(values: Array, rows: Array, first: Array) -> Array:
    """Mean of leaf values over buckets, by rows where there are any."""
    weight = np.maximum(rows, 0.0)
    sums = np.add.reduceat(np.stack([weight * values, weight]), first, axis=1)
    plain = np.add.reduceat(values, first) / np.diff(np.append(first, len(values)))
    return np.divide(sums[0], sums[1], out=plain, where=sums[1] > 0)
