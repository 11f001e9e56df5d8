"""Shared parts of all metrics: counts, their noise, and the delta method."""

from __future__ import annotations

import warnings
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.evaluation.grid import ScoreGrid
from skfedcal.evaluation.intervals import (
    UNIT,
    Bounds,
    Estimate,
    freedom,
    make_estimate,
    quantile,
    ratio_interval,
)
from skfedcal.evaluation.noise import NoiseModel

if TYPE_CHECKING:
    from skfedcal.privacy.events import PrivacyReport

Array = NDArray[Any]

# A bucket is shown if its count is so many standard deviations of its noise.
VISIBLE = 3.0


class Answers:
    """Base class of the groups of metrics of a histogram."""

    grid: ScoreGrid
    noise_: NoiseModel
    counts_: Array
    privacy_: PrivacyReport

    @property
    def _sums(self) -> tuple[float, float]:
        """Negatives and positives."""
        negatives, positives = self.counts_.sum(axis=1)
        return float(negatives), float(positives)

    def _estimate(
        self,
        value: float,
        gradient: Array,
        ci: float,
        *,
        bounds: Bounds | None = UNIT,
        discretisation: float = 0.0,
        rows: float = inf,
    ) -> Estimate:
        """Estimate with the variance of its gradient in the counts (delta method)."""
        sampling, privacy = map(float, self.noise_.variances(self.counts_, gradient))
        return make_estimate(
            value,
            sampling,
            privacy,
            ci=ci,
            bounds=bounds,
            discretisation=discretisation,
            freedom=freedom(self.counts_, gradient, sampling, privacy),
            rows=rows,
        )

    def _share(self, part: Array, whole: Array, ci: float) -> Estimate | None:
        """Ratio of two sums of counts, a fraction of rows; None if it is undefined.

        `part` and `whole` are the weights of the counts in the two.
        """
        upper, lower = (float((self.counts_ * w).sum()) for w in (part, whole))
        if lower <= 0:
            return None
        value = upper / lower
        slope = (part - value * whole) / lower
        sampling, privacy = self.noise_.variances(
            self.counts_, np.stack([slope, part, whole, part - whole])
        )
        own, all_, gap = map(float, privacy[1:])
        low, high = ratio_interval(
            upper, lower, (own, (own + all_ - gap) / 2, all_), quantile(ci)
        )
        return Estimate(
            min(max(value, 0.0), 1.0),
            low,
            high,
            se_sampling=sqrt(float(sampling[0])),
            se_privacy=sqrt(float(privacy[0])),
        )

    def _seen(self) -> Array:
        """Counts for error bounds, with negative counts set to 0."""
        return np.maximum(self.counts_, 0.0)


def undefined(metric: str, why: str, result: str) -> None:
    """Warn as scikit-learn does."""
    from sklearn.exceptions import UndefinedMetricWarning

    warnings.warn(
        f"{metric} is ill-defined and is set to {result}: {why}.",
        UndefinedMetricWarning,
        stacklevel=5,
    )


def check_bins(n_bins: int, strategy: str = "uniform") -> None:
    """Raise ValueError for an invalid number or strategy of bins."""
    if not isinstance(n_bins, (int, np.integer)) or not 1 <= n_bins <= 2**20:
        raise ValueError(f"n_bins={n_bins!r}: pass a whole number from 1 to {2**20}.")
    if not isinstance(strategy, str) or strategy not in ("uniform", "quantile"):
        raise ValueError(f"strategy={strategy!r}: pass 'uniform' or 'quantile'.")
