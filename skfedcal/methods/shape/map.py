"""Map of a temperature, a shared shape, biases and a matrix, as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skfedcal._numerics import MAX_SPAN
from skfedcal.export.graph import log_softmax
from skfedcal.methods.scaling.map import canonical
from skfedcal.methods.shape.shape_features import FLOOR, SOFT

if TYPE_CHECKING:
    from skfedcal.export.graph import Value
    from skfedcal.methods.shape.estimator import FedShapeCalibrator


def shared_shape(cal: FedShapeCalibrator, logits: Value) -> Value:
    """A temperature, a shared shape, and biases or a matrix."""
    order = cal._class_map.order
    bias = np.empty_like(cal.bias_)
    bias[order] = cal.bias_
    out = log_softmax(logits / cal.temperature_)
    if cal.shape_.any():
        low = out.at_least(FLOOR)
        proba = low.exp()
        first, second, third = cal.shape_
        out = out + low * first + (proba + SOFT).log() * second
        out = out - (1 + SOFT - proba).log() * third
    if cal.matrix_ is None:
        return out + bias
    matrix = np.empty_like(cal.matrix_)
    matrix[np.ix_(order, order)] = cal.matrix_
    rows, masked = canonical((logits < -MAX_SPAN).choose(-np.inf, out))
    return masked.choose(-np.inf, rows @ matrix.T + bias)
