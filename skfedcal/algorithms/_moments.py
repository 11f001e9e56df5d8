"""Moments of logits under the tempered softmax: the kernel of temperature scaling.

The log loss of a row is ``log sum_j exp(beta d_j) - beta d_y`` with ``d = z - max z``
and ``beta = 1 / T``. Its derivatives in ``beta`` are cumulants of ``d`` under the
softmax of ``beta d``; one pass gives as many as are wanted.

Every operation acts on each row alone (no BLAS: its kernels treat the last rows of a
block differently), so a row gives the same bits in any block, for one client or many.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal._logits import FEW_COLUMNS, MAX_SPAN

Array = NDArray[Any]


class LossDerivatives:
    """Derivatives of each row's log loss in ``beta``, from two reused buffers.

    Parameters
    ----------
    dtype : dtype
        Type of the buffers; results are float64.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self._buffers = np.empty((2, 0), dtype=self.dtype)

    def __call__(
        self, rows: Array, labels: Array, beta: Any, order: int = 2
    ) -> list[Array]:
        """Derivatives 1 to `order` (at most 5) at `beta`, one number or one per row."""
        gaps, power, by_column = self._gaps(rows)
        np.multiply(gaps, self._per_row(beta, by_column), out=power)
        np.exp(power, out=power)
        total = _row_sums(power, by_column)
        raw = []
        for _ in range(order):
            np.multiply(power, gaps, out=power)
            raw.append(_row_sums(power, by_column) / total)
        index = np.arange(len(labels))
        own = gaps[labels, index] if by_column else gaps[index, labels]
        return [raw[0] - own, *_cumulants(raw)]

    def _gaps(self, rows: Array) -> tuple[Array, Array, bool]:
        """Rows minus their maximum, a buffer of the same shape, and the layout."""
        by_column = rows.shape[1] <= FEW_COLUMNS
        shape = rows.shape[::-1] if by_column else rows.shape
        if self._buffers.shape[1] < rows.size:
            self._buffers = np.empty((2, rows.size), dtype=self.dtype)
        gaps, power = (b[: rows.size].reshape(shape) for b in self._buffers)
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


def _row_sums(values: Array, by_column: bool) -> Array:
    sums = values.sum(axis=0) if by_column else np.einsum("ij->i", values)
    return sums.astype(np.float64, copy=False)


def _cumulants(raw: list[Array]) -> list[Array]:
    """Cumulants 2, 3, ... from raw moments 1, 2, 3, ..."""
    out: list[Array] = []
    if len(raw) < 2:
        return out
    mean = raw[0]
    two = np.maximum(raw[1] - mean * mean, 0.0)
    out.append(two)
    if len(raw) > 2:
        three = raw[2] - mean * (3 * two + mean * mean)
        out.append(three)
    if len(raw) > 3:
        # Central moment 4 = raw 4 - 4 m c3 - 6 m^2 c2 - m^4; cumulant 4 = c4 - 3 c2^2.
        square = mean * mean
        four = raw[3] - 4 * mean * three - square * (6 * two + square)
        out.append(four - 3 * two * two)
    if len(raw) > 4:
        five = raw[4] - mean * (
            5 * four + mean * (10 * three + mean * (10 * two + square))
        )
        out.append(five - 10 * two * three)
    return out
