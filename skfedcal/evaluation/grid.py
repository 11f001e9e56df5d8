"""The grid of score buckets: bucket of a score, edges and centres of buckets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal.methods.buckets import (
    LOGIT_RANGE,
    Space,
    place_of_odds,
    place_of_proba,
    sigmoid,
)

Array = NDArray[Any]
SPACES = ("both", "prob", "logit")

# Halvings until a double is exact.
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class ScoreGrid:
    """Buckets of equal width in probability, in log-odds, or in the mean of both.

    height: There are ``2**height`` buckets.
    space ('both', 'prob', 'logit'): Scale on which they have equal width. The
        resolution of 'both' is at least half that of either of the others: near 0 and
        1, where confident models have their scores, and in between.
    """

    height: int
    space: Space = "both"

    @property
    def n_buckets(self) -> int:
        return int(2**self.height)

    @property
    def edges(self) -> Array:
        """Probabilities between which buckets lie, from 0 to 1."""
        return _points(self)[0]

    @property
    def centres(self) -> Array:
        """Probability that stands for each bucket."""
        return _points(self)[1]

    def position(self, proba: ArrayLike) -> Array:
        """Place in [0, 1] of probabilities; the map is monotone."""
        given = np.asarray(proba, dtype=np.float64)
        return place_of_proba(np.atleast_1d(given), self.space).reshape(given.shape)

    def probability(self, position: Array) -> Array:
        """Probability at places in (0, 1)."""
        if self.space == "prob":
            return position
        low = np.full(np.shape(position), -LOGIT_RANGE)
        high = -low
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = place_of_odds(middle, self.space) < position
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return sigmoid((low + high) / 2)

    def above(self, threshold: ArrayLike, *, smooth: bool = False) -> Array:
        """Part of each bucket at or above thresholds, shape (..., n_buckets).

        Scores are assumed to be uniform inside the bucket of a threshold; with
        `smooth`, along a line with the slope of the two buckets next to it.
        """
        place = self.position(np.asarray(threshold, dtype=np.float64))
        index = np.arange(self.n_buckets)
        part = np.clip(index + 1.0 - place[..., None] * self.n_buckets, 0.0, 1.0)
        if smooth and self.n_buckets > 2:
            part = part + by_slopes(part * (1 - part) / 2)
        return part


def by_slopes(weights: Array) -> Array:
    """Weights of counts whose sum is that of `weights` times the slopes of the counts.

    Slopes are those of ``np.gradient``: from both neighbours, at the ends from one.
    """
    half = weights / 2
    half[..., [0, -1]] *= 2
    out = np.zeros_like(weights)
    out[..., 1:] += half[..., :-1]
    out[..., :-1] -= half[..., 1:]
    out[..., 0] -= half[..., 0]
    out[..., -1] += half[..., -1]
    return out


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


@lru_cache(maxsize=16)
def _points(grid: ScoreGrid) -> tuple[Array, Array]:
    """Edges and centres, cached because every metric uses them."""
    size = grid.n_buckets
    inner = grid.probability(np.arange(1, size) / size)
    edges = np.concatenate([[0.0], inner, [1.0]])
    centres = grid.probability((np.arange(size) + 0.5) / size)
    for points in (edges, centres):
        points.flags.writeable = False
    return edges, centres
