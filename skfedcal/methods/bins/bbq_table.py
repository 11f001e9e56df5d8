"""Bayesian averaging of histograms of 2, 4, ..., 2**M bins: the server's part.

Uses released counts only. Needs scipy, which a site may not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import hypot
from typing import Literal

import numpy as np

from skfedcal import _compiled
from skfedcal.contract import Array
from skfedcal.methods.bins.rounds import BinTable
from skfedcal.methods.buckets import ClassBins, sigmoid

# Pseudo-rows of the prior of a whole histogram, N' in the paper.
PRIOR_ROWS = 2.0

# A histogram of a smaller share of the average is left out where lines are drawn.
_MIN_SHARE = 1e-9

# Pseudo-rows for the input, per standard deviation of the noise in a bin. 3 had less
# log loss than 1 on fed_cifar10_cnn_dir01 and GoogLeNet, with 10 and 100 times the
# counts of their 100 clients, at eps 1, 3 and 8; 100 clients alone never gained.
_NOISE_ROWS = 3.0

# Longer than the range of log-odds of midpoints.
_STRETCH = 64.0

_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, slots=True)
class Levels:
    """Sizes of all histograms, and one entry for each of their bins, coarsest first.

    All levels are computed together, for speed.
    """

    sizes: tuple[int, ...]
    middle: Array
    size: Array

    @staticmethod
    @cache
    def of(n_bins: int, space: Literal["prob", "logit"] = "prob") -> Levels:
        """Levels of 2, 4, ... bins up to `n_bins`, of equal width in `space`."""
        sizes = tuple(2**i for i in range(1, n_bins.bit_length()))
        middle = np.concatenate([ClassBins(size, space).midpoints for size in sizes])
        found = Levels(sizes, middle, np.repeat(sizes, sizes))
        for shared in (found.middle, found.size):
            shared.flags.writeable = False
        return found

    def merge(self, counts: Array) -> Array:
        """Counts of all levels, side by side, by adding up neighbours."""
        levels = [counts]
        for _ in self.sizes[1:]:
            levels.append(levels[-1][:, ::2] + levels[-1][:, 1::2])
        return np.concatenate(levels[::-1], axis=1)

    def sum_bins(self, values: Array) -> Array:
        """Sum over the bins of each level."""
        starts = np.cumsum([0, *self.sizes[:-1]])
        return np.add.reduceat(values, starts, axis=-1)

    def sum_levels(self, values: Array) -> Array:
        """Sum over levels, each spread over the bins of the finest."""
        stops = np.cumsum(self.sizes)
        total = values[..., : stops[0]]
        for start, stop in pairwise(stops):
            total = np.repeat(total, 2, axis=-1) + values[..., start:stop]
        return total


def log_scores(positive: Array, negative: Array, levels: Levels) -> Array:
    """Logarithm of the score of each class (row) and level (column).

    The probability of the labels under independent priors of the bins,
    ``Beta(2 p / B, 2 (1 - p) / B)`` for the bin with midpoint p out of B.
    """
    rows, weight = positive + negative, PRIOR_ROWS / levels.size
    parts = (
        (negative, weight * (1 - levels.middle)),
        (positive, weight * levels.middle),
        (rows, weight),
    )
    seen = rows != 0
    if 2 * np.count_nonzero(seen) > seen.size:
        first, second, both = (_log_rise(*part) for part in parts)
        first += second
        return levels.sum_bins(np.subtract(first, both, out=first))
    # Most bins of many classes are empty; their terms are 0.
    cells, column = _places(seen)
    terms = np.zeros(rows.shape)
    first, second, both = (
        _log_rise(counts.take(cells), prior, column) for counts, prior in parts
    )
    terms.reshape(-1)[cells] = first + second - both
    return levels.sum_bins(terms)


def bbq_table(
    positive: Array,
    negative: Array,
    noise: tuple[float, float] = (0.0, 0.0),
    *,
    frequency: bool = False,
    levels: Levels | None = None,
) -> tuple[BinTable, Array]:
    """Averaged table of one histogram of 2**M bins per class, and the level weights.

    positive, negative of shape (n_classes, 2**M): Released counts.
    noise: Standard deviation of the noise in a positive and in a negative count.
    frequency: Plain frequencies, as printed in the paper: without prior and without
        correction for noise; an empty bin keeps the midpoints of the finest bins.
    levels: Histograms to average; None has bins of equal width in probability.
    Result table: Of shape (n_classes, 2**M), with slopes if there is noise; the slopes
        neglect the change of the level weights.
    Result shares of shape (n_classes, M): Weight of each level: its score over the sum
        of the scores.
    """
    levels = Levels.of(positive.shape[1]) if levels is None else levels
    own, other = levels.merge(positive), levels.merge(negative)
    # A merged count has the noise of all that it is made of.
    merged = np.sqrt(positive.shape[1] / levels.size)
    assumed = (0.0, 0.0) if frequency else noise
    counts = _effective_counts(own, other, assumed, merged, levels.middle)
    shares = level_shares(*counts, levels)
    weight = 0.0 if frequency else PRIOR_ROWS / levels.size
    votes = _NOISE_ROWS * hypot(*assumed) * merged
    table = _mixture(own, other, weight, votes, shares, levels, noisy=any(assumed))
    return table, shares


def level_shares(positive: Array, negative: Array, levels: Levels) -> Array:
    """Weight of each class (row) and level (column), from counts of all levels."""
    scores = log_scores(positive, negative, levels)
    shares: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def joined_table(
    positive: Array, negative: Array, shares: Array, levels: Levels
) -> BinTable:
    """Averaged table in which bins are joined by lines, for counts without noise.

    Where a histogram has rows it is a line in log-odds, from the mean of the rows of a
    bin to that of the next, constant beyond the first and the last; a bin without rows
    keeps its middle. A value is the average at the middle of a finest bin. Coarse
    histograms, which need only few rows, thus keep the order inside their bins.
    """
    finest = levels.middle[-levels.sizes[-1] :]
    odds = np.log(finest) - np.log1p(-finest)
    own, other = levels.merge(positive), levels.merge(negative)
    rows, weight = own + other, PRIOR_ROWS / levels.size
    alpha, beta = own + weight * levels.middle, other + weight * (1 - levels.middle)
    place = levels.merge((positive + negative) * odds) / np.maximum(rows, _TINY)
    stops = np.cumsum(levels.sizes)
    height = np.log(alpha) - np.log(beta)
    values = np.zeros(positive.shape)
    for i, size in enumerate(levels.sizes):
        classes = np.flatnonzero(shares[:, i] > _MIN_SHARE)
        part = np.s_[:, stops[i] - size : stops[i]]
        lines = _lines(odds, rows[part], place[part], height[part], classes)
        values[classes] += shares[classes, i, None] * sigmoid(lines)
    return BinTable(values)


def _lines(
    odds: Array, rows: Array, place: Array, height: Array, classes: Array
) -> Array:
    """Heights at `odds`, by lines through the bins of some classes that have rows."""
    n_classes, size = len(classes), rows.shape[1]
    out = np.empty((n_classes, len(odds)))
    if _compiled.join_lines((rows, place, height), classes, odds, _STRETCH, out):
        return out
    seen, place, height = rows[classes] > 0, place[classes], height[classes]
    lines = np.repeat(height, len(odds) // size, axis=1)
    cells, column = _places(np.repeat(seen, len(odds) // size, axis=1))
    if not len(cells):
        return lines
    which = cells // len(odds)
    # One line through the points of all classes, each in a stretch of its own; beyond
    # the first and the last point of a class it is constant.
    first = np.where(seen, place, np.inf).min(axis=1)
    last = np.where(seen, place, -np.inf).max(axis=1)
    stretch = _STRETCH * np.arange(n_classes)
    nodes = (place + stretch[:, None])[seen], height[seen]
    at = np.clip(odds[column], first[which], last[which]) + stretch[which]
    lines.reshape(-1)[cells] = np.interp(at, *nodes)
    return lines


def _places(marks: Array) -> tuple[Array, Array]:
    """Return where a table is marked, counted through it, and in which columns.

    `nonzero` is several times slower on tables than on lists.
    """
    cells = np.flatnonzero(marks)
    return cells, cells % marks.shape[1]


def _effective_counts(
    positive: Array,
    negative: Array,
    noise: tuple[float, float],
    merged: Array,
    middle: Array,
) -> tuple[Array, Array]:
    """Effective counts: those with the same information about p without noise.

    A frequency of n rows has variance ``p (1 - p) / n``; noise of deviations s and t
    adds ``((1 - p)**2 s**2 + p**2 t**2) / n**2``. Scores computed from noise as if it
    were rows would favour fine bins.
    """
    positive, negative = np.maximum(positive, 0.0), np.maximum(negative, 0.0)
    if not any(noise):
        return positive, negative
    odds = middle / (1 - middle)
    variance = (noise[0] * merged) ** 2 / odds + (noise[1] * merged) ** 2 * odds
    rows = positive + negative
    information = rows / (rows + variance)
    return positive * information, negative * information


def _mixture(
    positive: Array,
    negative: Array,
    weight: Array | float,
    votes: Array,
    shares: Array,
    levels: Levels,
    *,
    noisy: bool,
) -> BinTable:
    """Average of the tables of all levels.

    `weight` pseudo-rows are at the midpoint of the level's own bin, `votes` at the
    midpoints of the finest bins, where the input is left as it is. A value is then
    ``fixed + kept * midpoint`` with the finest midpoint, and slopes likewise.
    """
    own, other = np.maximum(positive, 0.0), np.maximum(negative, 0.0)
    rows = own + other + (weight + votes)
    filled = rows > 0
    rows = np.where(filled, rows, 1.0)
    fixed = (own + weight * levels.middle) / rows
    kept = np.where(filled, votes / rows, 1.0)
    share = np.repeat(shares, levels.sizes, axis=1)

    def at_midpoints(constant: Array, slope: Array) -> Array:
        finest = levels.middle[-levels.sizes[-1] :]
        total = levels.sum_levels(share * slope) * finest
        return levels.sum_levels(share * constant) + total

    values = at_midpoints(fixed, kept)
    if not noisy:
        return BinTable(values)
    rise, fall = (positive > 0) / rows, (negative > 0) / rows
    return BinTable(
        values,
        at_midpoints(rise * (1 - fixed), -rise * kept),
        at_midpoints(fall * fixed, fall * kept),
    )


def _log_rise(counts: Array, prior: Array, column: Array | None = None) -> Array:
    """``log Gamma(counts + prior) - log Gamma(prior)``, or with ``prior[column]``."""
    least = _log_gamma(prior)
    if column is not None:
        prior, least = prior.take(column), least.take(column)
    out = _log_gamma(counts + prior)
    out -= least
    return out


def _log_gamma(values: Array) -> Array:
    out = np.empty(values.size)
    if not _compiled.log_gamma(values.reshape(-1), out):
        from scipy.special import gammaln

        gammaln(values.reshape(-1), out=out)
    return out.reshape(values.shape)
