"""Calibrated logits of all classes from the curves of their scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skfedcal.algorithms._class_scores import log_odds
from skfedcal.calibrators._curves import Array, Curve
from skfedcal.calibrators._sharing import move_top


def apply_curves(
    logits: Array, scores: str, curves: Sequence[Curve], weight: float = 1.0
) -> Array:
    """Calibrated logits, of the type of the input.

    Parameters
    ----------
    logits : ndarray of shape (n_rows, n_classes)
        Centred logits.
    scores : {'binary', 'ovr', 'top'}
        What the curves are of: the second of two classes, each class against the rest,
        or the most probable class.
    curves : sequence of Curve
        One, or one for each class.
    weight : float, default=1.0
        Part of the curves in the log-odds, the rest being the input's.
    """
    odds = log_odds(logits)
    if scores == "binary":
        half = _blend(curves[0], odds[:, 1], weight) / 2
        out = np.stack([-half, half], axis=1)
    elif scores == "ovr":
        pairs = zip(curves, odds.T, strict=True)
        columns = [_blend(curve, odd, weight) for curve, odd in pairs]
        out = -np.logaddexp(0, -np.stack(columns, axis=1))
    else:
        before = odds.max(axis=1)
        out = move_top(logits, before, _blend(curves[0], before, weight))
    return out.astype(logits.dtype, copy=False)


def _blend(curve: Curve, odds: Array, weight: float) -> Array:
    out: Array = weight * curve(odds) + (1 - weight) * odds
    return out
