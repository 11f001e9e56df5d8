"""A number with its error: what every answer of a histogram is."""

from __future__ import annotations

from math import inf, isnan, nan, sqrt
from typing import Any, Self

from skfedcal.evaluation._intervals import quantile, unit_interval

Bounds = tuple[float, float]
UNIT: Bounds = (0.0, 1.0)


class Estimate(float):
    """A float that knows how far it may be off.

    It adds, compares, formats and enters numpy as the float `value`; the result of
    arithmetic is a plain float.

    Parameters
    ----------
    value : float
        The estimate.
    low, high : float
        Confidence interval for the population that the clients' examples come from;
        covers sampling and privacy noise, not `discretisation`.
    se_sampling : float, default=0.0
        Standard error because the examples are a sample.
    se_privacy : float, default=0.0
        Standard error because of the noise.
    discretisation : float, default=0.0
        Bound on the difference to the same number from unrounded scores; an estimate
        itself where counts are noisy.

    Examples
    --------
    >>> from skfedcal import Estimate
    >>> auc = Estimate(0.81, 0.79, 0.83, se_sampling=0.01)
    >>> auc > 0.8, f"{auc:.2f}", auc.low
    (True, '0.81', 0.79)
    >>> auc
    Estimate(0.81, low=0.79, high=0.83, se_sampling=0.01, se_privacy=0, \
discretisation=0)
    """

    __slots__ = ("discretisation", "high", "low", "se_privacy", "se_sampling")

    low: float
    high: float
    se_sampling: float
    se_privacy: float
    discretisation: float

    def __new__(
        cls,
        value: float,
        low: float = nan,
        high: float = nan,
        *,
        se_sampling: float = 0.0,
        se_privacy: float = 0.0,
        discretisation: float = 0.0,
    ) -> Self:
        self = super().__new__(cls, value)
        for name, given in (
            ("low", low),
            ("high", high),
            ("se_sampling", se_sampling),
            ("se_privacy", se_privacy),
            ("discretisation", discretisation),
        ):
            object.__setattr__(self, name, float(given))
        return self

    @property
    def value(self) -> float:
        """The number as a plain float."""
        return float(self)

    @property
    def se(self) -> float:
        """Standard error of sampling and privacy together."""
        return sqrt(self.se_sampling**2 + self.se_privacy**2)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"An Estimate cannot be changed; {name!r} is fixed.")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (float(self), *(getattr(self, n) for n in _FIELDS))

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={getattr(self, name):.4g}" for name in _FIELDS)
        return f"Estimate({float(self):.6g}, {parts})"

    def __str__(self) -> str:
        return repr(float(self))


_FIELDS = ("low", "high", "se_sampling", "se_privacy", "discretisation")


def _rebuild(value: float, low: float, high: float, *rest: float) -> Estimate:
    sampling, privacy, grid = rest
    return Estimate(
        value,
        low,
        high,
        se_sampling=sampling,
        se_privacy=privacy,
        discretisation=grid,
    )


def replace(estimate: Estimate, **changes: float) -> Estimate:
    """Copy of an estimate with other parts."""
    parts = {name: getattr(estimate, name) for name in _FIELDS}
    return Estimate(float(estimate), **{**parts, **changes})


def make_estimate(
    value: float,
    sampling: float,
    privacy: float,
    *,
    ci: float,
    bounds: Bounds | None = UNIT,
    discretisation: float = 0.0,
    freedom: float = inf,
    rows: float = inf,
) -> Estimate:
    """Estimate from two variances, cut to the range that the number can have.

    The interval is that of the number after the cut: noise that leads out of the range
    does not make it shorter. `freedom` is that of the variances, and `rows` the most
    that the number can be worth; both are for numbers between 0 and 1.
    """
    z = quantile(ci, freedom)
    if bounds is not None and not isnan(value):
        value = min(max(value, bounds[0]), bounds[1])
    if bounds == UNIT and not isnan(value):
        low, high = unit_interval(value, sampling, privacy, z, rows)
    else:
        half = z * sqrt(sampling + privacy)
        low, high = value - half, value + half
        if bounds is not None:
            low, high = max(low, bounds[0]), min(high, bounds[1])
    return Estimate(
        value,
        low,
        high,
        se_sampling=sqrt(sampling),
        se_privacy=sqrt(privacy),
        discretisation=discretisation,
    )
