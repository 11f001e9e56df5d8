"""Numerics that every package shares, on logit matrices and flags; all are pure."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.floating[Any]]

# Sums over logits take one this far below the row maximum (or -inf) as this far: its
# probability is 0 at any temperature in use, and the fifth power fits float32.
MAX_SPAN = 1e6

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
    """Shift each row to a maximum of 0; -inf, and what overflows, is -inf."""
    with np.errstate(over="ignore"):
        return logits - row_max(logits)


def softmax(logits: Rows, out: Rows | None = None) -> Rows:
    """Row-wise softmax; `out` may be `logits`."""
    top = row_max(logits)
    centred = out is logits and not top.any()
    weights = logits if centred else np.subtract(logits, top, out=out)
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
    with np.errstate(over="ignore"):
        return bool(values.min() >= 0 and np.abs(values.sum(axis=1) - 1).max() <= atol)


def rare_flags(flags: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the positions of the few true flags, eight flags at a time."""
    if flags.size % 8:
        return flags.nonzero()[0]
    words = flags.view(np.uint64)
    hit = (words != 0).nonzero()[0]
    inside = words.take(hit).view(np.bool_).nonzero()[0]
    # In place: the lists may be as long as the flags.
    found = hit.take(inside >> 3)
    found <<= 3
    inside &= 7
    found += inside
    return found
