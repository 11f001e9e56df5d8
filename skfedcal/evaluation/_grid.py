"""The grid of score buckets: where a score lies and what a bucket stands for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Space = Literal["both", "prob", "logit"]
SPACES = ("both", "prob", "logit")

# Log-odds beyond this are in the outermost buckets of the logit grid; public, and past
# the confidence (1e-7) that evaluation can tell from certainty on a million examples.
LOGIT_RANGE = 16.0

# Halvings until a double is exact.
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class ScoreGrid:
    """Buckets of equal width in probability, in log-odds, or in the mean of both.

    Parameters
    ----------
    height : int
        There are ``2**height`` buckets.
    space : {'both', 'prob', 'logit'}, default='both'
        Scale on which they have equal width. 'both' is at most half as fine as either
        of the others: near 0 and 1, where sure models have their scores, and between.
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
        inside: Array = np.clip(np.asarray(proba), 0.0, 1.0)
        if self.space == "prob":
            return inside
        from scipy.special import logit

        return self._mix(inside, logit(inside))

    def position_of_logit(self, logits: Array) -> Array:
        """Place in [0, 1] of log-odds."""
        if self.space == "logit":
            return _scaled(logits)
        from scipy.special import expit

        return self._mix(expit(logits), logits)

    def probability(self, position: Array) -> Array:
        """Probability at places in (0, 1)."""
        if self.space == "prob":
            return position
        from scipy.special import expit

        low = np.full(np.shape(position), -LOGIT_RANGE)
        high = -low
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = self.position_of_logit(middle) < position
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        out: Array = expit((low + high) / 2)
        return out

    def above(self, threshold: ArrayLike) -> Array:
        """Part of each bucket at or above thresholds, shape (..., n_buckets).

        Scores are taken to be spread evenly inside the bucket of a threshold.
        """
        place = self.position(np.asarray(threshold, dtype=np.float64))
        index = np.arange(self.n_buckets)
        return np.clip(index + 1.0 - place[..., None] * self.n_buckets, 0.0, 1.0)

    def _mix(self, proba: Array, logits: Array) -> Array:
        if self.space == "prob":
            return proba
        scaled = _scaled(logits)
        return scaled if self.space == "logit" else (proba + scaled) / 2


@dataclass(frozen=True, slots=True)
class Sides(ScoreGrid):
    """Two buckets that meet at one probability, wherever that is.

    Parameters
    ----------
    cut : float, default=0.5
        Scores from here on are in the second bucket.
    """

    height: int = 1
    space: Space = "prob"
    cut: float = 0.5

    def position(self, proba: ArrayLike) -> Array:
        """Middle of the bucket."""
        return np.where(np.asarray(proba) >= self.cut, 0.75, 0.25)

    def position_of_logit(self, logits: Array) -> Array:
        """Middle of the bucket."""
        from scipy.special import expit

        return self.position(expit(logits))


def _scaled(logits: Array) -> Array:
    return np.clip(logits / (2 * LOGIT_RANGE) + 0.5, 0.0, 1.0)


@lru_cache(maxsize=16)
def _points(grid: ScoreGrid) -> tuple[Array, Array]:
    """Edges and centres; every answer asks for them."""
    size = grid.n_buckets
    inner = grid.probability(np.arange(1, size) / size)
    edges = np.concatenate([[0.0], inner, [1.0]])
    centres = grid.probability((np.arange(size) + 0.5) / size)
    for points in (edges, centres):
        points.flags.writeable = False
    return edges, centres
