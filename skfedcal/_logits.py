"""Numerics on logit matrices; every function is pure and works row by row."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.floating[Any]]

# A logit this far below its row maximum has probability exactly 0 in float64.
# Rows are clipped to this span so that -inf and +-1e300 stay finite in sums.
MAX_SPAN = 1e4

# Up to this many columns reductions are faster on a transposed copy: numpy spends
# about 40 ns per row on a reduction along a short last axis.
FEW_COLUMNS = 48


def as_two_columns(scores: Rows) -> Rows:
    """Turn binary log-odds ``d`` into the logits ``(-d/2, d/2)``.

    The softmax of the result is the sigmoid of ``d``: temperature 1 changes nothing.
    """
    half = np.reshape(scores, (-1, 1)) / 2
    return np.hstack([-half, half])


def row_max(logits: Rows) -> Rows:
    """Largest entry of each row, as a column."""
    if logits.shape[1] <= FEW_COLUMNS:
        out = logits[:, 0].copy()
        for column in logits.T[1:]:
            np.maximum(out, column, out=out)
        return out[:, None]
    return logits.max(axis=1, keepdims=True)


def center(logits: Rows) -> Rows:
    """Shift each row to a maximum of 0 and clip it to ``[-MAX_SPAN, 0]``."""
    with np.errstate(over="ignore"):  # 1e308 - (-1e308): clipped right below
        shifted = logits - row_max(logits)
    if shifted.size and shifted.min() < -MAX_SPAN:
        np.maximum(shifted, -MAX_SPAN, out=shifted)
    return shifted


def softmax(logits: Rows) -> Rows:
    """Row-wise softmax."""
    weights = logits - row_max(logits)
    np.exp(weights, out=weights)
    weights /= np.einsum("ij->i", weights)[:, None]
    return weights


def log_softmax(logits: Rows) -> Rows:
    """Row-wise logarithm of the softmax."""
    shifted = logits - row_max(logits)
    return shifted - np.log(np.einsum("ij->i", np.exp(shifted)))[:, None]


def from_proba(proba: Rows) -> Rows:
    """Logarithm of probabilities, floored at the smallest normal number."""
    return np.log(np.maximum(proba, np.finfo(proba.dtype).tiny))


def rows_look_like_proba(values: Rows, atol: float = 1e-6) -> bool:
    """Tell whether every row is non-negative and sums to one."""
    if values.size == 0 or values.shape[1] < 2 or values[0].min() < 0:
        return False
    return bool(values.min() >= 0 and np.abs(values.sum(axis=1) - 1).max() <= atol)
