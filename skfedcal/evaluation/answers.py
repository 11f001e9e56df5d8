"""Shared parts of all metrics: counts, their noise, and the delta method."""

from __future__ import annotations

import warnings
from copy import copy
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from skfedcal._docs import SharedDocs
from skfedcal.evaluation.grid import ScoreGrid
from skfedcal.evaluation.intervals import (
    UNIT,
    Bounds,
    Estimate,
    freedom,
    make_estimate,
    quantile,
    ratio_interval,
    with_noise,
)
from skfedcal.evaluation.noise import NoiseModel
from skfedcal.evaluation.population import (
    ClientMoments,
    OneClassMoments,
    Population,
    PredictionMoments,
    client_variance,
)

if TYPE_CHECKING:
    from skfedcal.privacy.events import PrivacyReport

Array = NDArray[Any]

# Entries of docstrings that metrics share.
answers_documented = SharedDocs(
    """
    client_ids : array-like of shape (n_samples,), default=None
        Client that owns each row; with a list of clients, one name per client.
    y : array-like of shape (n_samples,), or list of these, default=None
        Labels; omitted when `clients` is a list of pairs.
    privacy : privacy model, default=None
        Privacy model of the release; None is `SecureAggregation`: exact sums.
    weighting : {'example', 'client'}, default='example'
        Every row counts 1, or the rows of a client add up to 1.
    classes : array-like of shape (n_classes,), default=None
        Labels in the order of the columns; None takes them from `y`.
    ledger : PrivacyLedger, default=None
        Ledger that is charged before noise is drawn.
    runner : FederatedRunner, default=None
        Engine and cohorts.
    random_state : int, RandomState instance or None, default=None
        None draws noise from the operating system; a seed makes the result
        reproducible, and a simulation without a privacy guarantee.
    n_clients : int
        Clients that were asked.
    threshold : float, default=0.5
        Probability from which on a row is predicted positive.
    average : {'binary', 'micro', 'macro', 'weighted'} or None, default='binary'
        'binary' is of the positive of two classes. The others predict the most
        probable class: over all rows, mean over classes, equal or weighted by their
        rows, or one estimate per class.
    strategy : {'uniform', 'quantile'}, default='uniform'
        Bins of equal width, or of about equal depth.
    ci : float, default=0.95
        Level of the confidence interval.
    privacy_ : PrivacyReport
        Privacy guarantee of the release.
    history_ : list of RoundRecord
        Rounds of the run.
    estimand_ : str
        What counts how much in an answer.
    n_clients_ : int
        Clients that were asked.
    """
)

# A bucket is shown if its count is so many standard deviations of its noise.
VISIBLE = 3.0


class Answers:
    """Base class of the groups of metrics of a histogram."""

    grid: ScoreGrid
    noise_: NoiseModel
    counts_: Array
    privacy_: PrivacyReport
    population_: Population = "rows"
    estimand_: str | None = None
    # Second moments of clients, and how many rows of a client may be all alike.
    moments_: tuple[ClientMoments | PredictionMoments | OneClassMoments, ...] = ()
    rows_each_: int = 1

    def _spread(self, functional: Array) -> tuple[Array, Array, Array]:
        """Sampling variance, privacy variance and freedom of linear functionals.

        Clients are the population where their second moments are known. Where they
        are private, rows of a client are taken to be all alike.
        """
        sampling, privacy = self.noise_.variances(self.counts_, functional)
        if self.moments_:
            sampling, few = client_variance(self.moments_, self.counts_, functional)
        sampling = sampling * self.rows_each_
        free = freedom(self.counts_, functional, sampling, privacy)
        if self.moments_:
            free = np.minimum(free, with_noise(few, sampling, privacy))
        return sampling, privacy, free

    def variances(self, functional: Array) -> tuple[Array, Array]:
        """Sampling and privacy variance of linear functionals of the counts.

        Parameters
        ----------
        functional : ndarray of shape (..., 2, n_buckets)
            Weight of each count, such as the gradient of a number.

        Returns
        -------
        sampling, privacy : ndarray of shape (...)
        """
        return self._spread(functional)[:2]

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
        sampling, privacy, free = map(float, self._spread(gradient))
        return make_estimate(
            value,
            sampling,
            privacy,
            ci=ci,
            bounds=bounds,
            discretisation=discretisation,
            freedom=free,
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
        sampling, privacy, free = self._spread(
            np.stack([slope, part, whole, part - whole])
        )
        own, all_, gap = map(float, privacy[1:])
        z = quantile(ci, float(free[0]) if self.moments_ else inf)
        # As if there were so many fewer independent rows.
        alike = self._alike(slope, float(sampling[0]))
        unit = alike**2
        noise = (own / unit, (own + all_ - gap) / 2 / unit, all_ / unit)
        low, high = ratio_interval(upper / alike, lower / alike, noise, z)
        return Estimate(
            min(max(value, 0.0), 1.0),
            low,
            high,
            se_sampling=sqrt(float(sampling[0])),
            se_privacy=sqrt(float(privacy[0])),
        )

    def _of_rows(self) -> Self:
        """Give the same counts with independent rows as the population."""
        out = copy(self)
        out.moments_, out.rows_each_ = (), 1
        return out

    def _covariance(self, functionals: Array) -> Array:
        """Covariance of some functionals, of sampling and noise."""
        if not self.moments_ and self.rows_each_ == 1:
            return self.noise_.covariance(self.counts_, functionals)
        # cov(a, b) = (var(a + b) - var(a - b)) / 4
        pairs = functionals[:, None], functionals[None]
        parts = [self.variances(pairs[0] + sign * pairs[1]) for sign in (1, -1)]
        both = [sampling + privacy for sampling, privacy in parts]
        out: Array = (both[0] - both[1]) / 4
        return out

    def _alike(self, slope: Array, sampling: float) -> float:
        """Design effect: variance over that of independent rows.

        If all rows agree, that of clients whose rows are all alike.
        """
        if not self.moments_:
            return float(self.rows_each_)
        rows = float(self.noise_.variances(self.counts_, slope)[0])
        if rows > 0 and sampling > 0:
            return sampling / rows
        squares = sum(one.squares for one in self.moments_)
        return max(squares / max(float(self.counts_.sum()), 1.0), 1.0)

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
