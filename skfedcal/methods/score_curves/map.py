"""Maps by curves of the log-odds of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skfedcal.export.graph import count_at_most, expit, interpolate, softplus, to_odds
from skfedcal.methods.map_formulas import log_odds, move_top
from skfedcal.methods.score_curves.curves import to_odds as odds_of

if TYPE_CHECKING:
    from skfedcal.contract import Array
    from skfedcal.export.graph import Value
    from skfedcal.methods.score_curves.curves import Curve
    from skfedcal.methods.score_curves.estimator import FedHistogramCalibrator


def score_curves(cal: FedHistogramCalibrator, logits: Value) -> Value:
    """Curves of each class, of the second of two, or of the most probable one."""
    weight = cal.curve_weight_ if cal.if_improves else 1.0
    n_classes = len(cal.classes_)
    odds = log_odds(logits, n_classes)
    if cal.scores_ == "binary":
        half = _blend(cal, odds.columns([1]), weight) / 2.0
        return (-half).beside(half)
    if cal.scores_ == "ovr":
        return -softplus(-_blend(cal, odds, weight))
    before = odds.max()
    return move_top(logits, before, _blend(cal, before, weight), n_classes)


def _blend(cal: FedHistogramCalibrator, odds: Value, weight: float) -> Value:
    return _calibrated(cal._curves(), odds) * weight + odds * (1 - weight)


def _calibrated(curves: list[Curve], odds: Value) -> Value:
    """Calibrated log-odds; all curves are of one kind, one for each column."""
    kind = curves[0].kind
    points, values = [c.points for c in curves], [c.values for c in curves]
    if kind == "line":
        return to_odds(interpolate(expit(odds), points, values))
    if kind == "steps":
        size = max(len(own) for own in values)
        places = _padded(points, size - 1, np.inf)
        index = count_at_most(odds, places) + np.arange(len(curves))[None] * size
        return index.take_from(odds_of(_padded(values, size, 0.5)))
    coefficients = np.stack(values, axis=1)
    if kind == "platt":
        slope, shift = coefficients
        return odds * slope + shift
    a, b, c = coefficients
    return c - softplus(-odds) * a + softplus(odds) * b


def _padded(rows: list[Array], size: int, filler: float) -> Array:
    out = np.full((len(rows), size), filler)
    for own, row in zip(rows, out, strict=True):
        row[: len(own)] = own
    return out
