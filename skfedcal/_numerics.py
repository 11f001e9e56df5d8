"""Numerics that every package shares, on logit matrices and flags; all are pure."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal import _compiled

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
    # One layout, so that what follows has the same bits for any.
    out = np.empty_like(logits, order="C")
    with np.errstate(over="ignore"):
        return np.subtract(logits, row_max(logits), out=out)


def softmax(logits: Rows, out: Rows | None = None) -> Rows:
    """Row-wise softmax, in C order.

    out: Where to write it, if that is in C order; it may be `logits`.
    """
    if out is None or not out.flags.c_contiguous:
        out = np.empty_like(logits, order="C")
    if _compiled.softmax(logits, out):
        return out
    top = row_max(logits)
    centred = out is logits and not top.any()
    weights = logits if centred else np.subtract(logits, top, out=out)
    np.exp(weights, out=weights)
    weights /= np.einsum("ij->i", weights)[:, None]
    return weights


def log_softmax(logits: Rows) -> Rows:
    """Row-wise logarithm of the softmax."""
    result = np.empty_like(logits, order="C")
    if _compiled.softmax(logits, result, logs=True):
        return result
    shifted = logits - row_max(logits)
    return shifted - np.log(np.einsum("ij->i", np.exp(shifted)))[:, None]


# Logarithm of a probability of exactly 0, unless another one of its row is less. It
# says "below the resolution"; -12 is below that of a file with four decimals.
ZERO_LOG = -12.0


def from_proba(proba: Rows) -> Rows:
    """Logarithm of probabilities; those of exactly 0 are replaced (`fill_zeros`).

    Others are floored at the smallest normal number.
    """
    out = np.log(np.maximum(proba, np.finfo(proba.dtype).tiny))
    return fill_zeros(out, proba == 0)


def fill_zeros(log_proba: Rows, zero: NDArray[np.bool_]) -> Rows:
    """Write ``min(-12, least other one of the row)`` for probabilities of 0, in place.

    Rows then add up to a little more than 1, which every softmax corrects.
    """
    if zero.any():
        least = log_proba.min(
            axis=1, where=~zero, initial=log_proba.dtype.type(ZERO_LOG), keepdims=True
        )
        np.copyto(log_proba, least, where=zero)
    return log_proba


def label_losses(proba: Rows, codes: NDArray[Any], min_prob: float) -> Rows:
    """Minus the logarithm of the probability of each row's own class, in float64.

    Smaller ones count as `min_prob`, but those of exactly 0 as in `fill_zeros`.
    """
    chosen = proba[np.arange(len(codes)), codes].astype(np.float64)
    out = -np.log(np.clip(chosen, min_prob, 1.0)) + 0.0
    zero = np.flatnonzero(chosen == 0)
    if zero.size:
        out[zero] = -from_proba(proba[zero])[np.arange(len(zero)), codes[zero]]
    return out


def rows_look_like_proba(values: Rows, atol: float = 1e-6) -> bool:
    """Tell whether every row is non-negative and sums to one."""
    if values.size == 0 or values.shape[1] < 2:
        return False
    # Mostly the first entries tell, and a list of them is read sooner than an array.
    if min(values[0, :16].tolist()) < 0 or values[0].min() < 0:
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
