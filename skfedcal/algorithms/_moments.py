"""Moments of logits under the tempered softmax: the kernel of temperature scaling.

The log loss of a row is ``log sum_j exp(beta d_j) - beta d_y`` with ``d = z - max z``
and ``beta = 1 / T``. Its derivatives in ``beta`` are cumulants of ``d`` under the
softmax of ``beta d``; one pass gives as many as are wanted.

Every operation acts on each row alone (no BLAS: its kernels treat the last rows of a
block differently), so a row gives the same bits in any block, for one client or many.
"""

import threading
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal._logits import FEW_COLUMNS, MAX_SPAN

Array = NDArray[Any]

# A buffer larger than this (one row of a million columns) is not kept.
_KEEP_BYTES = 1 << 22


class LossDerivatives:
    """Derivatives of each row's log loss in ``beta``, in reused buffers.

    What a call returns is valid until the next call in the same thread.

    Parameters
    ----------
    dtype : dtype
        Type of the buffers; results are float64.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def __call__(self, rows: Array, labels: Array, beta: Any, order: int = 2) -> Array:
        """Derivatives 1 to `order` (at most 5) at `beta`, one number or one per row.

        Returns
        -------
        ndarray of shape (order, n_rows)
        """
        gaps, power, by_column = self._gaps(rows)
        np.multiply(gaps, self._per_row(beta, by_column), out=power)
        np.exp(power, out=power)
        total = _row_sums(power, by_column).astype(np.float64)
        raw = _scratch("raw", (order, len(labels)), np.float64)
        for moment in raw:
            np.multiply(power, gaps, out=power)
            np.divide(_row_sums(power, by_column), total, out=moment)
        return _cumulants(raw, _own(gaps, labels, by_column))

    def _gaps(self, rows: Array) -> tuple[Array, Array, bool]:
        """Rows minus their maximum, a buffer of the same shape, and the layout."""
        by_column = rows.shape[1] <= FEW_COLUMNS
        shape = rows.shape[::-1] if by_column else rows.shape
        gaps = _scratch("gaps", shape, self.dtype)
        power = _scratch("power", shape, self.dtype)
        with np.errstate(over="ignore"):  # 1e308 - (-1e308): clipped right below
            if by_column:
                np.copyto(gaps, rows.T)
                gaps -= gaps.max(axis=0, initial=-np.inf)
            else:
                # Twice as fast as max(axis=1) at a hundred columns.
                top = rows[np.arange(len(rows)), rows.argmax(axis=1)]
                np.subtract(rows, top[:, None], out=gaps)
        if gaps.size and gaps.min() < -MAX_SPAN:
            np.maximum(gaps, -MAX_SPAN, out=gaps)
        return gaps, power, by_column

    def _per_row(self, beta: Any, by_column: bool) -> Array:
        beta = np.asarray(beta, dtype=self.dtype)
        return beta if by_column or beta.ndim == 0 else beta[:, None]


# Fresh pages cost more than the arithmetic on them: each thread keeps its buffers, at
# most a few megabytes, from block to block and from fit to fit.
_kept = threading.local()


def _scratch(name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    """Array with arbitrary content, valid until the next call with this name."""
    n_bytes = prod(shape) * np.dtype(dtype).itemsize
    buffer = getattr(_kept, name, None)
    if buffer is None or buffer.nbytes < n_bytes:
        buffer = np.empty(n_bytes, dtype=np.uint8)
        if n_bytes <= _KEEP_BYTES:
            setattr(_kept, name, buffer)
    return buffer[:n_bytes].view(dtype).reshape(shape)


def _own(gaps: Array, labels: Array, by_column: bool) -> Array:
    """Entry of each row's own class; one index is faster than two."""
    n_rows = len(labels)
    flat = labels.astype(np.intp)
    if by_column:
        flat *= n_rows
        flat += np.arange(n_rows)
    else:
        flat += np.arange(0, gaps.size, gaps.shape[1])
    return gaps.ravel().take(flat)


def _row_sums(values: Array, by_column: bool) -> Array:
    if not by_column:
        return np.einsum("ij->i", values)
    if values.shape[1] == 1:
        # numpy adds up a lone column pairwise, but several entry after entry.
        return values.cumsum()[-1:]
    return np.add.reduce(values, axis=0)


def _cumulants(raw: Array, own: Array) -> Array:
    """Raw moments to slope and cumulants, in place."""
    mean = raw[0].copy()
    raw[0] -= own
    if len(raw) == 1:
        return raw
    square = mean * mean
    two = raw[1]
    two -= square
    np.maximum(two, 0.0, out=two)
    if len(raw) > 2:
        three = raw[2]
        three -= mean * (3 * two + square)
    if len(raw) > 3:
        # Central moment 4 = raw 4 - 4 m c3 - 6 m^2 c2 - m^4; cumulant 4 = c4 - 3 c2^2.
        four = raw[3]
        four -= 4 * mean * three + square * (6 * two + square)
    if len(raw) > 4:
        five = raw[4]
        five -= mean * (5 * four + mean * (10 * three + mean * (10 * two + square)))
        five -= 10 * two * three
    if len(raw) > 3:
        four -= 3 * two * two
    return raw
