"""Scores as places in [0, 1]: the public map from what a site holds to buckets.

Every function works row by row, so that a site and a simulation agree to the last bit.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from skfedcal import _logits
from skfedcal.algorithms._base import Array

Space = Literal["both", "prob", "logit"]
InputType = Literal["logits", "log_proba", "proba"]

# Log-odds beyond this are in the outermost buckets of the logit grid; public, and past
# the confidence (1e-7) that evaluation can tell from certainty on a million examples.
LOGIT_RANGE = 16.0


def place_of_odds(odds: Array, space: Space) -> Array:
    """Place of log-odds; 'both' is the mean of the other two."""
    if space == "prob":
        return sigmoid(odds)
    scaled = np.clip(odds / (2 * LOGIT_RANGE) + 0.5, 0.0, 1.0)
    return scaled if space == "logit" else (sigmoid(odds) + scaled) / 2


def place_of_proba(proba: Array, space: Space) -> Array:
    """Place of probabilities; not by log-odds and back where that is not needed."""
    inside = np.clip(proba.astype(np.float64, copy=False), 0.0, 1.0)
    if space == "prob":
        return inside
    with np.errstate(divide="ignore"):
        odds = np.log(inside) - np.log1p(-inside)
        # One half is an edge: what is near it must stay on its side.
        middle = np.abs(inside - 0.5) < 0.25
        odds[middle] = 2 * np.arctanh(2 * inside[middle] - 1)
    scaled = np.clip(odds / (2 * LOGIT_RANGE) + 0.5, 0.0, 1.0)
    return scaled if space == "logit" else (inside + scaled) / 2


def sigmoid(odds: Array) -> Array:
    """Probability of log-odds."""
    with np.errstate(over="ignore"):
        out: Array = 1 / (1 + np.exp(-odds))
    return out


def class_rows(rows: Array, input_type: InputType, n_classes: int) -> Array:
    """Logits with one column per class, of rows in the columns that a site has.

    One column may be missing: the first class then has log-odds of 0, or the rest of
    the probability. `skfedcal.data` checks what this takes for granted.
    """
    missing = rows.shape[1] == n_classes - 1
    if input_type == "proba":
        if missing:
            rest = 1 - np.einsum("ij->i", rows)[:, None]
            rows = np.concatenate([rest, rows], axis=1)
        return _logits.from_proba(rows)
    if not missing:
        return rows
    if n_classes == 2:
        return _logits.as_two_columns(rows)
    return np.concatenate([np.zeros_like(rows[:, :1]), rows], axis=1)
