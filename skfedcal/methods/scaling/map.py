"""The maps of vector, matrix and order-preserving scaling, as graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skfedcal._numerics import MAX_SPAN
from skfedcal.export.graph import softplus
from skfedcal.methods.scaling.families import SMALLEST_SLOPE

if TYPE_CHECKING:
    from skfedcal.export.graph import Value
    from skfedcal.methods.base import BaseCalibrator
    from skfedcal.methods.scaling.estimator import (
        FedMatrixCalibrator,
        FedOPVectorCalibrator,
        FedVectorCalibrator,
    )


def canonical(logits: Value) -> tuple[Value, Value]:
    """Rows of mean zero, and the mask of entries that are too low."""
    masked = logits < -MAX_SPAN
    known = masked.choose(0.0, logits)
    mean = known.sum() / masked.choose(0.0, 1.0).sum()
    return masked.choose(0.0, known - mean), masked


def vector(cal: FedVectorCalibrator, logits: Value) -> Value:
    """A scale and a bias for each class."""
    rows, masked = canonical(logits)
    return masked.choose(-np.inf, rows * cal.scale_ + cal.bias_)


def matrix(cal: FedMatrixCalibrator, logits: Value) -> Value:
    """A matrix and a bias."""
    rows, masked = canonical(logits)
    return masked.choose(-np.inf, rows @ cal.matrix_.T + cal.bias_)


def order_preserving(cal: FedOPVectorCalibrator, logits: Value) -> Value:
    """Gaps between sorted logits, scaled class by class."""
    rows, _ = canonical(logits)
    slopes = softplus(rows / cal.temperature_ * cal.slope_ + cal.offset_)
    factors = slopes.at_least(SMALLEST_SLOPE) / cal.temperature_
    return stretched(cal, logits, factors, logits / cal.temperature_)


def stretched(cal: BaseCalibrator, logits: Value, factors: Value, far: Value) -> Value:
    """Multiply the gap below each class; masked entries are taken from `far`."""
    ranks = logits.argsort()
    ordered = logits.at_least(-MAX_SPAN).gather(ranks)
    upper = np.arange(len(cal.classes_) - 1)
    falls = ordered.columns(upper) - ordered.columns(upper + 1)
    falls = (falls * factors.gather(ranks).columns(upper)).cumsum()
    sorted_out = (falls.columns([0]) * 0.0).beside(-falls)
    out = (logits.at_least(-MAX_SPAN) * 0.0).scatter(ranks, sorted_out)
    return (logits < -MAX_SPAN).choose(far, out)
