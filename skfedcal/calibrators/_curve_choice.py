"""Which curve suits the noise, and whether it is better than none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.calibrators._curves import (
    Curve,
    Leaves,
    expit,
    features,
    fit_bbq,
    fit_bins,
    fit_isotonic,
    fit_sigmoid,
)

Array = NDArray[Any]

# The gain must be this many standard deviations of its own noise.
_MIN_GAIN = 2.0


def fit_curve(leaves: Leaves, method: str, n_bins: int) -> Curve:
    """Fit one curve by the name of its method."""
    if method == "bins":
        return fit_bins(leaves, n_bins)
    if method == "bbq":
        return fit_bbq(leaves)
    if method == "isotonic":
        return fit_isotonic(leaves)
    return fit_sigmoid(leaves, "platt" if method == "platt" else "beta")


def fit_curves(
    every: Sequence[Leaves], method: str, n_bins: int
) -> tuple[str, list[Curve], bool]:
    """Fit a curve to each score; 'auto' takes the method that saves more log loss.

    Returns the method, the curves, and whether what they save stands out from the
    noise.
    """
    found = []
    for name in ("platt", "isotonic") if method == "auto" else (method,):
        curves = [fit_curve(leaves, name, n_bins) for leaves in every]
        gains = [gain(*pair) for pair in zip(every, curves, strict=True)]
        saved, variance = np.sum(gains, axis=0)
        found.append((saved, name, curves, saved > _MIN_GAIN * np.sqrt(variance)))
    _, name, curves, noticeable = max(found, key=lambda entry: entry[0])
    return name, curves, bool(noticeable)


def gain(leaves: Leaves, curve: Curve) -> tuple[float, float]:
    """Log loss that a curve would save on other examples, and the variance of it.

    Fitted and measured on the same counts it comes out too large: on average, by
    Stein's identity, by the covariance of the counts (of the noise, and of the sample)
    times the derivative of the logs of the curve. That is taken off. In coordinates of
    the fit that have unit curvature it is the sum of the variances of the scores.
    """
    odds = leaves.inner_odds()
    new = curve(odds)
    logs = np.stack(
        [np.logaddexp(0, odds) - np.logaddexp(0, new),
         np.logaddexp(0, -odds) - np.logaddexp(0, -new)]
    )  # fmt: skip
    scores = _whitened_scores(leaves, curve, odds, new)
    optimism = float(np.sum(leaves.variance(scores)))
    variance = float(np.sum(leaves.variance(logs[None])))
    return float(np.sum(leaves.counts * logs)) - optimism, variance


def _whitened_scores(leaves: Leaves, curve: Curve, odds: Array, new: Array) -> Array:
    """Derivatives of the log loss by coefficients that have unit curvature."""
    chance = expit(new)
    rows = np.maximum(leaves.counts.sum(axis=0), 0.0)
    # Of one example of each label, by the log-odds of its leaf.
    slopes = np.stack([-chance, 1 - chance])
    if curve.kind in ("platt", "beta"):
        design = features(odds, curve.kind)
        bend = (design * (rows * chance * (1 - chance))[:, None]).T @ design
        values, vectors = np.linalg.eigh(bend)
        used = values > 1e-12 * values[-1]
        white = design @ (vectors[:, used] / np.sqrt(values[used]))
        return slopes * white.T[:, None]
    # One coefficient for each run of equal values, at the nearest corner of a line.
    level = new
    if curve.kind == "line":
        between = (curve.points[1:] + curve.points[:-1]) / 2
        level = curve.values[np.searchsorted(between, expit(odds))]
    runs = np.cumsum(np.append(0, np.diff(level) != 0))
    inside = (runs == np.arange(runs[-1] + 1)[:, None]).astype(np.float64)
    bend = inside @ (rows * chance * (1 - chance))
    inside, bend = inside[bend > 0], bend[bend > 0]
    return slopes * (inside / np.sqrt(bend)[:, None])[:, None]
