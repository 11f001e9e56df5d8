"""A number with its error: what every answer of a histogram is."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from html import escape
from math import inf, isnan, nan, sqrt
from typing import TYPE_CHECKING, Any, Self, TypeVar

from skfedcal.evaluation._intervals import quantile, unit_interval

if TYPE_CHECKING:
    from skfedcal.privacy._report import PrivacyReport

Bounds = tuple[float, float]
UNIT: Bounds = (0.0, 1.0)
Answer = TypeVar("Answer", bound=Callable[..., Any])


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
    privacy : PrivacyReport, default=None
        What the release that it was computed from guarantees; None for exact counts.

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

    __slots__ = (
        "discretisation",
        "high",
        "low",
        "privacy",
        "se_privacy",
        "se_sampling",
    )

    low: float
    high: float
    se_sampling: float
    se_privacy: float
    discretisation: float
    privacy: PrivacyReport | None

    def __new__(
        cls,
        value: float,
        low: float = nan,
        high: float = nan,
        *,
        se_sampling: float = 0.0,
        se_privacy: float = 0.0,
        discretisation: float = 0.0,
        privacy: PrivacyReport | None = None,
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
        object.__setattr__(self, "privacy", privacy)
        return self

    @property
    def value(self) -> float:
        """The number as a plain float."""
        return float(self)

    @property
    def se(self) -> float:
        """Standard error of sampling and privacy together."""
        return sqrt(self.se_sampling**2 + self.se_privacy**2)

    @property
    def eps(self) -> float | None:
        """Eps of the release; None for exact counts."""
        return None if self.privacy is None else self.privacy.eps

    @property
    def delta(self) -> float | None:
        """Delta of the release; None for exact counts."""
        return None if self.privacy is None else self.privacy.delta

    @property
    def unit(self) -> str | None:
        """What the release hides: 'client' or 'example'; None for exact counts."""
        return None if self.privacy is None else self.privacy.unit

    @property
    def adjacency(self) -> str | None:
        """Which data sets count as neighbours; None for exact counts."""
        return None if self.privacy is None else self.privacy.adjacency

    @property
    def simulated(self) -> bool | None:
        """Whether the noise protects nobody; None for exact counts."""
        return None if self.privacy is None else not self.privacy.secure

    def to_dict(self) -> dict[str, Any]:
        """Return the number, its error and its guarantee as plain values, for JSON.

        A number that is not finite is None.
        """
        numbers = {"value": float(self)}
        numbers |= {name: getattr(self, name) for name in _FIELDS}
        plain = {k: v if abs(v) < inf else None for k, v in numbers.items()}
        return {**plain, **{name: getattr(self, name) for name in _GUARANTEE}}

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"An Estimate cannot be changed; {name!r} is fixed.")

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (getattr(self, name) for name in (*_FIELDS, "privacy"))
        return _rebuild, (float(self), *parts)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={getattr(self, name):.4g}" for name in _FIELDS)
        return f"Estimate({float(self):.6g}, {parts}{self._guarantee()})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        cells = {"value": f"{float(self):.6g}"}
        cells |= {name: f"{getattr(self, name):.4g}" for name in _FIELDS}
        if self.privacy is not None:
            cells["privacy"] = self._guarantee().removeprefix(", ")
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in cells.items()
        )
        return f"<table><tbody>{rows}</tbody></table>"

    def _guarantee(self) -> str:
        report = self.privacy
        if report is None:
            return ""
        text = f", eps={report.eps:g}, delta={report.delta:.3g}, unit={report.unit!r}"
        text += f", adjacency={report.adjacency!r}"
        if not report.secure:
            text += ", simulated=True"
        return text

    def __str__(self) -> str:
        return repr(float(self))


_FIELDS = ("low", "high", "se_sampling", "se_privacy", "discretisation")
_GUARANTEE = ("eps", "delta", "unit", "adjacency", "simulated")


def _rebuild(
    value: float,
    low: float,
    high: float,
    sampling: float,
    privacy: float,
    grid: float,
    report: PrivacyReport | None = None,
) -> Estimate:
    return Estimate(
        value,
        low,
        high,
        se_sampling=sampling,
        se_privacy=privacy,
        discretisation=grid,
        privacy=report,
    )


def replace(estimate: Estimate, **changes: Any) -> Estimate:
    """Copy of an estimate with other parts."""
    parts = {name: getattr(estimate, name) for name in (*_FIELDS, "privacy")}
    return Estimate(float(estimate), **{**parts, **changes})


def with_guarantee(answer: Answer) -> Answer:
    """Decorate an answer of an object with `privacy_`: its estimates carry it."""

    @wraps(answer)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        report = self.privacy_
        found = answer(self, *args, **options)
        return _attach(found, report if report.private else None)

    return method  # type: ignore[return-value]


def _attach(found: Any, report: PrivacyReport | None) -> Any:
    if isinstance(found, Estimate):
        return replace(found, privacy=report)
    if isinstance(found, tuple):  # a named one
        return type(found)(*(_attach(part, report) for part in found))
    if isinstance(found, list):
        return [_attach(part, report) for part in found]
    return found


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
