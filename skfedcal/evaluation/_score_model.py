"""A classifier to plan with: scores of a given AUC, and what metrics make of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.evaluation._grid import ScoreGrid
from skfedcal.evaluation._ranking_sums import auc_with_gradient
from skfedcal.evaluation._thresholds import weights

Array = NDArray[Any]

RATIOS = ("accuracy", "precision", "recall", "f1", "brier", "log_loss")
METRICS = ("roc_auc", *RATIOS, "calibration")
_AT_THRESHOLD = ("accuracy", "precision", "recall", "f1")

# Buckets that stand for scores without buckets, and those of one threshold, 1/2.
_FINE, _HALVES = ScoreGrid(15, "prob"), ScoreGrid(1, "prob")

# Positions inside a leaf at which straight lines are compared with the truth.
_OFFSETS = np.linspace(-0.5, 0.5, 17)


@dataclass(frozen=True, slots=True)
class ScoreModel:
    """Calibrated scores with normal log-odds in both classes.

    Parameters
    ----------
    positive_rate : float, default=0.5
        Share of positives.
    auc : float, default=0.8
        Area under the ROC curve; both classes then have log-odds of standard deviation
        ``sqrt(2) * z(auc)``, z the normal quantile.
    """

    positive_rate: float = 0.5
    auc: float = 0.8

    def __post_init__(self) -> None:
        if not 0 < self.positive_rate < 1:
            raise ValueError(f"positive_rate={self.positive_rate!r} is not in (0, 1).")
        if not 0.5 < self.auc < 1:
            raise ValueError(f"auc={self.auc!r} is not in (0.5, 1).")

    @property
    def spread(self) -> float:
        from scipy.special import ndtri

        return sqrt(2) * float(ndtri(self.auc))

    def below(self, score: Array) -> Array:
        """Share of all examples that are negative, or positive, and below `score`."""
        from scipy.special import logit, ndtr

        prior = log(self.positive_rate / (1 - self.positive_rate))
        shares = np.array([1 - self.positive_rate, self.positive_rate])
        signs = np.array([-0.5, 0.5]) * self.spread**2
        odds = logit(np.clip(score, 0.0, 1.0))
        return shares[:, None] * ndtr((odds - prior - signs[:, None]) / self.spread)

    def cells(self, grid: ScoreGrid) -> Array:
        """Shares of shape (2, n_buckets): negatives and positives in each bucket."""
        return _cells(self, grid)

    def discretisation(
        self, metric: str, grid: ScoreGrid, threshold: float, *, smooth: bool = False
    ) -> float:
        """Difference between the metric of leaves and of scores.

        At a threshold, the largest of those within half a leaf of it.
        """
        cells = self.cells(grid)
        if metric == "roc_auc":
            return abs(auc_with_gradient(cells, smooth)[0] - self.auc)
        if metric not in _AT_THRESHOLD:
            fine = ratio(metric, self.cells(_FINE), _FINE)[0]
            return abs(ratio(metric, cells, grid)[0] - fine)
        place = grid.position(threshold) + _OFFSETS / grid.n_buckets
        near = grid.probability(np.clip(place, 0.0, 1.0))
        below, total = self.below(near), cells.sum(axis=1)
        gaps = []
        for t, part in zip(near, below.T, strict=True):
            # Two buckets that the threshold separates hold the exact counts.
            exact = np.stack([part, total - part], axis=1)
            truth = ratio(metric, exact, _HALVES)[0]
            found = ratio(metric, cells, grid, t, smooth=smooth)[0]
            gaps.append(abs(found - truth))
        return max(gaps)

    def bin_spread(self, edges: Array) -> float:
        """Mean distance of scores from the mean of their bin."""
        fine, score = self.cells(_FINE).sum(axis=0), _FINE.centres
        bins = np.searchsorted(edges[1:-1], score, side="right")
        mass = np.bincount(bins, fine, len(edges) - 1)
        mean = np.bincount(bins, fine * score, len(edges) - 1) / np.maximum(
            mass, 1e-300
        )
        return float(fine @ np.abs(score - mean[bins]))


@lru_cache(maxsize=64)
def _cells(model: ScoreModel, grid: ScoreGrid) -> Array:
    return np.diff(model.below(grid.edges), axis=1)


def ratio(
    metric: str,
    cells: Array,
    grid: ScoreGrid,
    threshold: float = 0.5,
    *,
    smooth: bool = False,
) -> tuple[float, Array]:
    """Metric that is a ratio of two linear functionals of counts, and its gradient."""
    if metric in ("brier", "log_loss"):
        lower, centre = np.ones_like(cells), grid.centres
        upper = {
            "brier": np.stack([centre**2, (1 - centre) ** 2]),
            "log_loss": np.stack([-np.log1p(-centre), -np.log(centre)]),
        }[metric]
    else:
        upper, lower = weights(metric, grid.above(threshold, smooth=smooth))
    whole = float(np.sum(lower * cells))
    value = float(np.sum(upper * cells)) / whole
    gradient = (upper - value * lower) / whole
    if metric == "f1":
        value, gradient = 2 * value / (1 + value), gradient * 2 / (1 + value) ** 2
    return value, gradient
