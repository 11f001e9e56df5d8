"""Confidence intervals: what an estimate and its variances leave possible."""

from __future__ import annotations

from math import inf, isfinite, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import as_number

Array = NDArray[Any]
Interval = tuple[float, float]

# Rows up to which the law of a count is too skew for a normal one.
_FEW = 5.0


def check_level(ci: float) -> None:
    """Raise for what is no level of confidence."""
    if not 0 < as_number("ci", ci) < 1:
        raise ValueError(f"ci={ci!r} is not a level of confidence; pass 0 < ci < 1.")


def quantile(ci: float, freedom: float = inf) -> float:
    """Half width of an interval of level `ci`, in standard errors.

    Of Student's law where the standard error is known to `freedom` degrees only.
    """
    check_level(ci)
    from scipy.special import ndtri, stdtrit

    ci = float(ci)

    if not isfinite(freedom):
        return float(ndtri((1 + ci) / 2))
    return float(stdtrit(max(freedom, 1.0), (1 + ci) / 2))


def freedom(counts: Array, functional: Array, sampling: float, privacy: float) -> float:
    """Degrees of freedom of a variance (Satterthwaite).

    Of an estimate that depends on few rows, such as the few positives, so does its
    standard error. The variance of noise is known.
    """
    if sampling <= 0:
        return inf
    rows = np.maximum(counts, 0.0)
    total = max(float(rows.sum()), 1.0)
    squares = (functional - float((rows * functional).sum()) / total) ** 2
    second, fourth = float((rows * squares).sum()), float((rows * squares**2).sum())
    spread = fourth - second**2 / total
    if spread <= 0:
        return inf
    return 2 * (second / sampling) ** 2 * (sampling + privacy) ** 2 / spread


def unit_interval(
    value: float, sampling: float, privacy: float, z: float, rows: float = inf
) -> Interval:
    """Interval of a number between 0 and 1, in the manner of Wilson.

    All t with ``(t - value)**2 <= z**2 * (t * (1 - t) / n + privacy)``, where n rows
    of zeros and ones would have the variance `sampling` at `value`; at most `rows`,
    so that it has a width also where no row went wrong.
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
    own = np.divide(sampling, spread, out=np.zeros_like(spread), where=spread > 0)
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
    """Clopper and Pearson's, on the side where rows are few; [1, 0] is none."""
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
