"""Map of a small network on logits, as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skfedcal.export.graph import softplus
from skfedcal.methods.scaling.families import SMALLEST_SLOPE
from skfedcal.methods.scaling.map import canonical, stretched

if TYPE_CHECKING:
    from skfedcal.export.graph import Value
    from skfedcal.methods.network.estimator import FedMLPCalibrator


def network(cal: FedMLPCalibrator, logits: Value) -> Value:
    """A small network whose output multiplies gaps, or is added to the logits."""
    rows, masked = canonical(logits)
    layers = zip(cal.coefs_, cal.intercepts_, strict=True)
    out = rows
    for i, (weights, bias) in enumerate(layers):
        out = (out.at_least(0.0) if i else out) @ weights + bias
    if not cal.order_preserving:
        return masked.choose(-np.inf, logits + out)
    factors = softplus(out).at_least(SMALLEST_SLOPE)
    return stretched(cal, logits, factors, logits)
