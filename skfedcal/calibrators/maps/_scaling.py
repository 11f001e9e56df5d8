"""Maps of scaled, shifted and stretched logits."""

import numpy as np

from skfedcal._logits import MAX_SPAN
from skfedcal.algorithms._families import SMALLEST_SLOPE
from skfedcal.algorithms._residual import KEPT, LOWEST, N_BINS, NODES
from skfedcal.export._formulas import log1p, log_softmax, softplus


def temperature(cal, logits):
    """One temperature."""
    return logits / cal.temperature_


def bias_temperature(cal, logits):
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


def _corrected(log_proba, table):
    """Probabilities plus what the bins say, as `corrected` of the algorithms."""
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


def canonical(logits):
    """Rows of mean zero, and which entries are too low to count."""
    masked = logits < -MAX_SPAN
    known = masked.choose(0.0, logits)
    mean = known.sum() / masked.choose(0.0, 1.0).sum()
    return masked.choose(0.0, known - mean), masked


def vector(cal, logits):
    """A scale and a bias for each class."""
    rows, masked = canonical(logits)
    return masked.choose(-np.inf, rows * cal.scale_ + cal.bias_)


def matrix(cal, logits):
    """A matrix and a bias."""
    rows, masked = canonical(logits)
    return masked.choose(-np.inf, rows @ cal.matrix_.T + cal.bias_)


def order_preserving(cal, logits):
    """Gaps between sorted logits, stretched class by class."""
    rows, _ = canonical(logits)
    slopes = softplus(rows / cal.temperature_ * cal.slope_ + cal.offset_)
    factors = slopes.at_least(SMALLEST_SLOPE) / cal.temperature_
    return _stretched(cal, logits, factors, logits / cal.temperature_)


def network(cal, logits):
    """A small network that stretches gaps, or that is added."""
    rows, masked = canonical(logits)
    layers = zip(cal.coefs_, cal.intercepts_, strict=True)
    out = rows
    for i, (weights, bias) in enumerate(layers):
        out = (out.at_least(0.0) if i else out) @ weights + bias
    if not cal.order_preserving:
        return masked.choose(-np.inf, logits + out)
    factors = softplus(out).at_least(SMALLEST_SLOPE)
    return _stretched(cal, logits, factors, logits)


def _stretched(cal, logits, factors, far):
    """Multiply the gap below each class; entries too low to count come from `far`."""
    ranks = logits.argsort()
    ordered = logits.at_least(-MAX_SPAN).gather(ranks)
    upper = np.arange(len(cal.classes_) - 1)
    falls = ordered.columns(upper) - ordered.columns(upper + 1)
    falls = (falls * factors.gather(ranks).columns(upper)).cumsum()
    sorted_out = (falls.columns([0]) * 0.0).beside(-falls)
    out = (logits.at_least(-MAX_SPAN) * 0.0).scatter(ranks, sorted_out)
    return (logits < -MAX_SPAN).choose(far, out)
