"""Map of biases, a temperature and residual bins, as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skfedcal.export.graph import log1p, log_softmax
from skfedcal.methods.bias_temperature.rounds import KEPT, LOWEST, N_BINS, NODES

if TYPE_CHECKING:
    from skfedcal.contract import Array
    from skfedcal.export.graph import Value
    from skfedcal.methods.bias_temperature.estimator import FedBiasTempCalibrator


def bias_temperature(cal: FedBiasTempCalibrator, logits: Value) -> Value:
    """A temperature, class biases and residual bins."""
    order = cal._class_map.order
    bias = np.empty_like(cal.bias_)
    bias[order] = cal.bias_
    out = logits / cal.temperature_ + bias
    if cal.residual_ is None or not cal.residual_.any():
        return out
    table = np.empty_like(cal.residual_)
    table[order] = cal.residual_
    return _corrected(log_softmax(out), table)


def _corrected(log_proba: Value, table: Array) -> Value:
    """Probabilities plus the correction of the bins, as `rounds.corrected`."""
    proba = log_proba.exp()
    logit = log_proba - log1p(-proba.at_most(1.0))
    place = (logit - NODES[0]).at_least(0.0).at_most(N_BINS - 1.0)
    index = place.floor().at_most(N_BINS - 2.0)
    part = place - index
    cell = index + np.arange(len(table))[None] * N_BINS
    change = cell.take_from(table) * (1.0 - part)
    change += (cell + 1.0).take_from(table) * part
    moved = proba + change * (proba / LOWEST).at_most(1.0)
    raised = moved > proba * KEPT
    return raised.choose(
        raised.choose(moved.at_most(1.0), 1.0).log(), log_proba + np.log(KEPT)
    )
