"""Estimates with their errors and confidence intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from html import escape
from math import inf, isfinite, isnan, nan, sqrt
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal._params import as_number

if TYPE_CHECKING:
    from skfedcal.privacy.events import PrivacyReport

Array = NDArray[Any]
Interval = tuple[float, float]

# Rows up to which the law of a count is too skew for a normal one.
_FEW = 5.0


def check_level(ci: float) -> None:
    """Raise ValueError unless `ci` is a confidence level."""
    if not 0 < as_number("ci", ci) < 1:
        raise ValueError(f"ci must be a confidence level with 0 < ci < 1, got {ci!r}.")


def quantile(ci: float, freedom: float = inf) -> float:
    """Half width of an interval of level `ci`, in standard errors.

    From Student's t distribution where the variance has only `freedom` degrees of
    freedom.
    """
    check_level(ci)
    from scipy.special import ndtri, stdtrit

    ci = float(ci)

    if not isfinite(freedom):
        return float(ndtri((1 + ci) / 2))
    return float(stdtrit(max(freedom, 1.0), (1 + ci) / 2))


def freedom(
    counts: Array, functional: Array, sampling: ArrayLike, privacy: ArrayLike
) -> Array:
    """Degrees of freedom of the variances of functionals (Satterthwaite).

    If an estimate depends on few rows, such as the few positives, its standard error is
    estimated from few rows, too.
    """
    rows, axes = np.maximum(counts, 0.0), (-2, -1)
    total = max(float(rows.sum()), 1.0)
    mean = (rows * functional).sum(axis=axes) / total
    squares = (functional - mean[..., None, None]) ** 2
    second = (rows * squares).sum(axis=axes)
    spread = (rows * squares**2).sum(axis=axes) - second**2 / total
    few = np.where(spread > 0, 2 * second**2 / np.where(spread > 0, spread, 1), inf)
    return with_noise(few, sampling, privacy)


def with_noise(freedom: Array, sampling: ArrayLike, privacy: ArrayLike) -> Array:
    """Degrees of freedom of the sum of an estimated and a known variance."""
    own, noise = np.asarray(sampling), np.asarray(privacy)
    ratio = np.where(own > 0, own + noise, 1.0) / np.where(own > 0, own, 1.0)
    out: Array = np.where(own > 0, freedom, inf) * ratio**2
    return out


def unit_interval(
    value: float, sampling: float, privacy: float, z: float, rows: float = inf
) -> Interval:
    """Interval of a number between 0 and 1, in the manner of Wilson.

    All t with ``(t - value)**2 <= z**2 * (t * (1 - t) / n + privacy)``, where n rows
    of zeros and ones would have the variance `sampling` at `value`; at most `rows`,
    so that its width is not 0 when all rows agree.
    """
    value_, sampling_, privacy_, rows_ = np.array(
        [[value], [sampling], [privacy], [rows]]
    )
    low, high = unit_band(value_, sampling_, privacy_, z, rows_)
    return float(low[0]), float(high[0])


def unit_band(
    value: Array, sampling: Array, privacy: Array, z: float, rows: Array
) -> tuple[Array, Array]:
    """Give `unit_interval` of many numbers."""
    centre = np.clip(value, 0.0, 1.0)
    spread = centre * (1 - centre)
    # Beyond 1e100 the interval is (0, 1), and squares would overflow.
    own = np.where(spread > 0, sampling / np.maximum(spread, 1e-100), 0.0)
    each = z * z * np.maximum(own, 1 / np.maximum(rows, 1.0))
    # A value that was cut to 0 or 1 keeps its variance.
    fixed = privacy + np.where(spread > 0, 0.0, sampling)
    bend, line = 1 + each, 2 * centre + each
    root = np.sqrt(line**2 - 4 * bend * (centre**2 - z * z * fixed))
    low, high = (line - root) / (2 * bend), (line + root) / (2 * bend)
    return np.clip(low, 0.0, centre), np.clip(high, centre, 1.0)


def ratio_interval(
    part: float, whole: float, noise: tuple[float, float, float], z: float
) -> Interval:
    """Interval of the share `part` / `whole` of rows, both of them noisy (Fieller).

    All r with ``(part - r * whole)**2`` at most ``z**2`` times the variance that it
    has if the share is r: ``whole * r * (1 - r)`` of sampling, as Wilson has it, and
    `noise`: variance of `part`, covariance, variance of `whole`. From 0 to 1 where
    `whole` may be noise alone.
    """
    part, square = min(max(part, 0.0), whole), z * z
    own, both, all_ = noise
    bend = whole**2 + square * (whole - all_)
    if whole <= 0 or bend <= 0 or whole**2 <= square * all_:
        return 0.0, 1.0
    low, high = _between_roots(
        bend,
        -2 * part * whole - square * (whole - 2 * both),
        part**2 - square * own,
    )
    if min(part, whole - part) < _FEW:
        # So near to 0 or 1 the interval above starts too late (Brown, Cai, DasGupta).
        exact = _exact_interval(part, whole, z)
        low, high = min(low, exact[0]), max(high, exact[1])
    return _cut(low, part / whole), _cut(high, part / whole, up=True)


def _exact_interval(part: float, whole: float, z: float) -> Interval:
    """Clopper-Pearson interval, on the side with few rows; [1, 0] if not applicable."""
    from scipy.special import betaincinv, ndtr

    tail, rest, low, high = float(ndtr(-z)), whole - part, 1.0, 0.0
    if 0 < part < _FEW:
        low = float(betaincinv(part, rest + 1, tail))
    if 0 < rest < _FEW:
        high = float(betaincinv(part + 1, rest, 1 - tail))
    return low, high


def _between_roots(square: float, line: float, constant: float) -> Interval:
    """Roots of ``square * t**2 + line * t + constant``; the vertex if there is none."""
    root = sqrt(max(line**2 - 4 * square * constant, 0.0))
    return (-line - root) / (2 * square), (-line + root) / (2 * square)


def _cut(end: float, centre: float, *, up: bool = False) -> float:
    """End of an interval that holds its centre and is inside [0, 1]."""
    return min(max(end, centre), 1.0) if up else max(min(end, centre), 0.0)


Bounds = tuple[float, float]
UNIT: Bounds = (0.0, 1.0)
Answer = TypeVar("Answer", bound=Callable[..., Any])


class Estimate(float):
    """A float with a confidence interval and the parts of its error.

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
        Standard error of sampling the examples from the population.
    se_privacy : float, default=0.0
        Standard error of the privacy noise.
    discretisation : float, default=0.0
        Bound on the difference to the same number from unrounded scores; an estimate
        itself where counts are noisy.
    privacy : PrivacyReport, default=None
        Privacy guarantee of the release that it was computed from; None for exact
        counts.
    population : {'clients', 'rows'}, default=None
        What the interval is for: other clients of the same kind, or other rows, each
        independent of the others; None if it was not stated.
    estimand : str, default=None
        What counts how much in the number, such as 'every row counts once'.
    design_effect : float, default=1.0
        Sampling variance over that of independent rows: above 1 where rows of a client
        are alike.

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
        "design_effect",
        "discretisation",
        "estimand",
        "high",
        "low",
        "population",
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
    population: str | None
    estimand: str | None
    design_effect: float

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
        population: str | None = None,
        estimand: str | None = None,
        design_effect: float = 1.0,
    ) -> Self:
        self = super().__new__(cls, value)
        for name, given in (
            ("low", low),
            ("high", high),
            ("se_sampling", se_sampling),
            ("se_privacy", se_privacy),
            ("discretisation", discretisation),
            ("design_effect", design_effect),
        ):
            object.__setattr__(self, name, float(given))
        object.__setattr__(self, "privacy", privacy)
        object.__setattr__(self, "population", population)
        object.__setattr__(self, "estimand", estimand)
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
        """Unit of privacy, 'client' or 'example'; None for exact counts."""
        return None if self.privacy is None else self.privacy.unit

    @property
    def adjacency(self) -> str | None:
        """Which data sets count as neighbours; None for exact counts."""
        return None if self.privacy is None else self.privacy.adjacency

    @property
    def simulated(self) -> bool | None:
        """Whether the noise is seeded, so gives no privacy; None for exact counts."""
        return None if self.privacy is None else not self.privacy.secure

    def to_dict(self) -> dict[str, float | str | bool | None]:
        """Return the number, its error and its guarantee as plain values, for JSON.

        A number that is not finite is None.
        """
        numbers = {"value": float(self)}
        numbers |= {name: getattr(self, name) for name in (*_FIELDS, "design_effect")}
        plain = {k: v if abs(v) < inf else None for k, v in numbers.items()}
        said = ("population", "estimand", *_GUARANTEE)
        return {**plain, **{name: getattr(self, name) for name in said}}

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"An Estimate cannot be changed; {name!r} is fixed.")

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (getattr(self, name) for name in (*_FIELDS, *_ABOUT))
        return _rebuild, (float(self), *parts)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={getattr(self, name):.4g}" for name in _FIELDS)
        text = f"{parts}{self._meaning()}{self._guarantee()}"
        return f"Estimate({float(self):.6g}, {text})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        cells = {"value": f"{float(self):.6g}"}
        cells |= {name: f"{getattr(self, name):.4g}" for name in _FIELDS}
        if self.population is not None:
            cells["design_effect"] = f"{self.design_effect:.3g}"
            cells["population"] = self.population
            cells["estimand"] = str(self.estimand)
        if self.privacy is not None:
            cells["privacy"] = self._guarantee().removeprefix(", ")
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in cells.items()
        )
        return f"<table><tbody>{rows}</tbody></table>"

    def _meaning(self) -> str:
        if self.population is None:
            return ""
        return (
            f", design_effect={self.design_effect:.3g}, "
            f"population={self.population!r}, estimand={self.estimand!r}"
        )

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
_ABOUT = ("privacy", "population", "estimand", "design_effect")
_GUARANTEE = ("eps", "delta", "unit", "adjacency", "simulated")


def _rebuild(
    value: float,
    low: float,
    high: float,
    sampling: float,
    privacy: float,
    grid: float,
    report: PrivacyReport | None = None,
    population: str | None = None,
    estimand: str | None = None,
    design_effect: float = 1.0,
) -> Estimate:
    return Estimate(
        value,
        low,
        high,
        se_sampling=sampling,
        se_privacy=privacy,
        discretisation=grid,
        privacy=report,
        population=population,
        estimand=estimand,
        design_effect=design_effect,
    )


def replace(estimate: Estimate, **changes: Any) -> Estimate:
    """Copy of an estimate with other parts."""
    parts = {name: getattr(estimate, name) for name in (*_FIELDS, *_ABOUT)}
    return Estimate(float(estimate), **{**parts, **changes})


def with_guarantee(answer: Answer) -> Answer:
    """Decorator that says what the estimates of a metric are.

    Attaches privacy, population and estimand of the object, and the design effect: the
    squared ratio of its sampling error to that of the same answer for independent rows.
    """

    @wraps(answer)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        found = answer(self, *args, **options)
        rows = found
        if getattr(self, "moments_", ()) or getattr(self, "rows_each_", 1) > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows = answer(self._of_rows(), *args, **options)
        about = {
            "privacy": self.privacy_ if self.privacy_.private else None,
            "population": getattr(self, "population_", "rows"),
            "estimand": getattr(self, "estimand_", None),
        }
        return _attach(found, rows, about)

    return method  # type: ignore[return-value]


def _attach(found: Any, rows: Any, about: dict[str, Any]) -> Any:
    if isinstance(found, Estimate):
        own, other = found.se_sampling, rows.se_sampling
        effect = (own / other) ** 2 if other > 0 else 1.0
        return replace(found, design_effect=effect, **about)
    if not isinstance(found, (tuple, list)):
        return found
    parts = [_attach(*pair, about) for pair in zip(found, rows, strict=True)]
    return type(found)(*parts) if isinstance(found, tuple) else parts  # a named one


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
    """Estimate from two variances, clipped to the range of the number.

    The interval is computed after clipping, so that noise beyond the range does not
    shorten it. `freedom` are the degrees of freedom of the variances, and `rows` is the
    largest effective number of rows; both are for numbers between 0 and 1.
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
