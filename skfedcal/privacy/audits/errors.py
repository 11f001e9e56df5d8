"""Errors of a distinguisher, and what they say about a claim.

A guarantee is a curve: a test that errs with chance ``a`` where the canary is absent
errs with chance ``f(a)`` at least where it is present. Errors are counted in runs and
compared with the curve by exact binomial tails, those of Clopper and Pearson.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isnan, log, nan

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Chances of an error at which the curve is looked at, as deviates: cells of 0.006, a
# fifth of a standard deviation of the counts of 1,500 runs.
_DEVIATES = np.linspace(-6.0, 6.0, 2001)
_STEPS = 24
_LARGEST = 64.0
_N_TRIALS = 100
# Delta of an error of a sampler: as good as none.
_NO_DELTA = 1e-9


@dataclass(frozen=True, slots=True)
class Claim:
    """What is guaranteed.

    Attributes
    ----------
    eps, delta : float
        Differential privacy.
    mu : float or None
        Gaussian differential privacy, which says more; None if only `eps` is claimed.
    """

    eps: float
    delta: float = 0.0
    mu: float | None = None

    @property
    def size(self) -> float:
        """What a lower bound is compared with: `mu` if it is claimed, else `eps`."""
        return self.eps if self.mu is None else self.mu

    def curve(self, rates: Floats, size: float | None = None) -> Floats:
        """Least chance of a miss for each chance of a false alarm.

        Parameters
        ----------
        rates : ndarray
            Chances of a false alarm.
        size : float, default=None
            Another strength of the same kind of guarantee; None is the claim.
        """
        from scipy.special import ndtr, ndtri

        size = self.size if size is None else size
        if self.mu is not None:
            return ndtr(-ndtri(rates) - size)
        rest = 1 - self.delta - rates
        steep = 1 - self.delta - exp(size) * rates
        return np.maximum(0.0, np.maximum(steep, exp(-size) * rest))

    def __str__(self) -> str:
        kind = "" if self.mu is None else f", mu={self.mu:.4f}"
        return f"eps={self.eps:g}, delta={self.delta:.3g}{kind}"


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one test in repeated runs.

    Attributes
    ----------
    false_alarms, misses : int
        Runs without the canary that were taken for runs with it, and the reverse.
    n_absent, n_present : int
        Runs without and with the canary.
    threshold : str
        How the threshold was chosen.
    weight : float
        Share of the level that this test gets.
    """

    false_alarms: int
    misses: int
    n_absent: int
    n_present: int
    threshold: str = "fixed"
    weight: float = 1.0

    @property
    def rates(self) -> tuple[float, float]:
        """Shares of false alarms and of misses."""
        return self.false_alarms / self.n_absent, self.misses / self.n_present

    def upper(self, alpha: float) -> tuple[float, float]:
        """Clopper-Pearson bounds on both chances, each at `alpha`."""
        return (
            upper_bound(self.false_alarms, self.n_absent, alpha),
            upper_bound(self.misses, self.n_present, alpha),
        )

    def region(self, rates: Floats, alpha: float) -> Floats:
        """Largest chance of a miss that is not refuted, for chances of a false alarm.

        Below 0 where no chance of a miss is left. A claim is refuted at level `alpha`
        if its curve is above it everywhere.
        """
        from scipy.special import betaincinv

        least = _both(alpha)
        left = _tail(self.false_alarms, self.n_absent, rates)
        level = np.minimum(1.0, least / np.maximum(left, least))
        if self.misses >= self.n_present:
            edge = np.ones_like(rates)
        else:
            count = self.misses
            edge = betaincinv(count + 1, self.n_present - count, 1 - level)
        return np.where(left < least, -1.0, edge)

    def p_value(self, claim: Claim, size: float | None = None) -> float:
        """Chance of so few errors under a claim, at most.

        The tails of the two counts are combined by Fisher's rule, at the point of the
        curve that explains them best. Cells of the curve are bounded by their corners,
        so that the answer is never too small.
        """
        from scipy.special import ndtr

        rates = np.concatenate([[0.0], ndtr(_DEVIATES), [1.0]])
        left = _tail(self.false_alarms, self.n_absent, rates[:-1])
        right = _tail(self.misses, self.n_present, claim.curve(rates[1:], size))
        both = float(np.max(left * right))
        return min(1.0, both * (1 - log(both))) if both > 0 else 0.0


def _both(alpha: float) -> float:
    """Product of two tails whose p-value by Fisher's rule is `alpha`."""
    low, high = log(1e-300), 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if exp(middle) * (1 - middle) < alpha else (low, middle)
        )
    return exp(low)


def upper_bound(count: int, n: int, alpha: float) -> float:
    """Clopper-Pearson bound from above on a chance."""
    from scipy.special import betaincinv

    return 1.0 if count >= n else float(betaincinv(count + 1, n - count, 1 - alpha))


def combined_p_value(errors: Sequence[Errors], claim: Claim) -> float:
    """P-value of a claim against several tests of the same runs."""
    return min(1.0, *(e.p_value(claim) / e.weight for e in errors))


def lower_bound(errors: Sequence[Errors], claim: Claim, alpha: float) -> float:
    """Largest `mu` (or `eps`) that the errors refute at level `alpha`."""
    return max(_refuted(e, claim, alpha * e.weight) for e in errors)


def _refuted(errors: Errors, claim: Claim, alpha: float) -> float:
    low, high = 0.0, _LARGEST
    if errors.p_value(claim, low) >= alpha:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if errors.p_value(claim, middle) < alpha:
            low = middle
        else:
            high = middle
    return low


def power(claim: Claim, test: Errors, alpha: float, reach: float = 1.0) -> float:
    """Chance that a test catches a true eps of twice the claim, by simulation.

    `reach` is the share of it that the canary can show; NaN if that is not known. At a
    single point (eps, delta) the power depends on the noise, so that it is not known.
    """
    from scipy.special import ndtr

    if isnan(reach) or (claim.mu is None and claim.delta > _NO_DELTA):
        return nan
    if claim.mu is None:
        # Laplace noise, threshold at the median with the canary.
        rates = 0.5 * exp(-2 * reach * claim.eps), 0.5
    else:
        from skfedcal.privacy.accounting import gdp_mu

        rate = float(ndtr(-reach * gdp_mu(2 * claim.eps, claim.delta) / 2))
        rates = rate, rate
    n_runs, level = test.n_absent, alpha * test.weight
    counts = np.random.default_rng(0).binomial(n_runs, rates, size=(_N_TRIALS, 2))
    found = [Errors(int(a), int(b), n_runs, n_runs) for a, b in counts]
    return float(np.mean([errors.p_value(claim) < level for errors in found]))


def eps_of(claim: Claim, size: float) -> float:
    """Eps at the delta of the claim that belongs to a lower bound."""
    if claim.mu is None:
        return size
    if size >= _LARGEST:
        return inf
    from skfedcal.privacy.accounting import gdp_epsilon

    return gdp_epsilon(size, claim.delta) if size > 0 else 0.0


def _tail(count: int, n: int, rates: Floats) -> Floats:
    """Chance of `count` successes or fewer."""
    from scipy.special import betainc

    if count >= n:
        return np.ones_like(rates)
    return betainc(n - count, count + 1, 1 - rates)
