"""Calibrated logits of all classes from the curves of their scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skfedcal import _logits
from skfedcal.algorithms._class_scores import log_odds
from skfedcal.calibrators._curves import Array, Curve


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
        out = _with_top(logits, odds, curves[0], weight)
    return out.astype(logits.dtype, copy=False)


def _blend(curve: Curve, odds: Array, weight: float) -> Array:
    out: Array = weight * curve(odds) + (1 - weight) * odds
    return out


def _with_top(logits: Array, odds: Array, curve: Curve, weight: float) -> Array:
    """Logs of the most probable class's new value and of the others' shares.

    The top stays at the top: at least as large as the second after sharing.
    """
    rows = np.maximum(logits.astype(np.float64), -_logits.MAX_SPAN)
    which = (np.arange(len(rows)), odds.argmax(axis=1))
    own = _blend(curve, odds[which], weight)
    rows[which] = -np.inf
    rows -= rows.max(axis=1, keepdims=True)
    shares = rows - np.log(np.einsum("ij->i", np.exp(rows)))[:, None]
    own = np.maximum(own, shares.max(axis=1))
    out = shares - np.logaddexp(0, own)[:, None]
    out[which] = -np.logaddexp(0, -own)
    return out
