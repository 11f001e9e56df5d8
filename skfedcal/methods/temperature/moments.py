"""Moments of logits under the tempered softmax: the kernel of temperature scaling.

The log loss of a row is ``log sum_j exp(beta d_j) - beta d_y`` with ``beta = 1 / T``
and ``d = z - z_0`` for any ``z_0``: the row's own logit, or its maximum where that one
is out of range. Its derivatives in ``beta`` are cumulants of ``d`` under the softmax of
``beta d``; one pass gives as many as are wanted.

Every operation acts on each row alone (no BLAS: its kernels treat the last rows of a
block differently), so a row gives the same bits in any block, for one client or many.
`derivative_sums` adds them up by client, in the compiled core where there is one.
"""

from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal import _compiled
from skfedcal._numerics import FEW_COLUMNS, MAX_SPAN
from skfedcal.clients.dataset import FederatedDataset, scratch

Array = NDArray[Any]

# T lies in [exp(-LOG_BOUND), exp(LOG_BOUND)] = [1e-4, 1e4].
LOG_BOUND = log(1e4)

# Rows that are hashed at a time, so that it takes no array of their number.
_HASH_ROWS = 1 << 14

# Weights of a row that add up to less than this have moments in range in float32.
_SAFE_TOTAL = 1e20


def derivative_sums(
    clients: FederatedDataset,
    beta: Any,
    order: int,
    dtype: Any,
    step: int = 1,
    *,
    relative: bool = False,
) -> tuple[Array, Array]:
    """Derivatives 1 to `order` (at most 5) of each client's log loss in ``beta``.

    beta: One number, or one per client.
    dtype: Precision of the work; results are float64.
    step: About one row in `step` is used, see `hash_sample`.
    relative: Derivatives in x, where ``beta * (1 + x)`` is the next point: whatever the
        scale of the logits, they are neither too large nor too small to be sent.
    Result sums of shape (n_clients, order), and sizes of shape (n_clients, 2): entries
    of all rows, and rows used.
    """
    if not isinstance(beta, float):
        beta = np.asarray(beta, dtype=np.float64)
        beta = float(beta.item()) if beta.size == 1 else beta
    double = np.dtype(dtype) == np.float64
    sums = np.zeros((clients.n_clients, order))
    sizes = np.empty((clients.n_clients, 2), dtype=np.int64)
    if _compiled.core is not None and _compiled.derivative_sums(
        clients, beta, step, double, relative, sums, sizes
    ):
        return sums, sizes
    beta = np.array(beta, ndmin=1)
    part = hash_sample(clients, step) if step > 1 else clients
    derivatives = LossDerivatives(dtype)
    for block in part.blocks():
        own = beta.astype(dtype)
        if len(beta) > 1:
            own = np.repeat(own[block.clients], np.diff(block.offsets))
        values = derivatives(
            block.rows, block.labels, own if len(own) > 1 else own[0], order
        )
        sums[block.clients] += block.sum_by_client(values)
    sizes[:, 0] = clients.sizes * clients.rows.shape[1]
    sizes[:, 1] = part.sizes
    if relative:
        sums *= np.multiply.accumulate(np.tile(beta[:, None], order), axis=1)
    return sums, sizes


def hash_sample(clients: FederatedDataset, step: int) -> FederatedDataset:
    """About one row in `step`, picked by a hash of the row's own first entry."""
    # Multiplicative hashing: the high bits of the product are well mixed.
    keep = np.empty(len(clients.rows), dtype=np.bool_)
    for start in range(0, len(keep), _HASH_ROWS):
        where = slice(start, start + _HASH_ROWS)
        first = np.ascontiguousarray(clients.rows[where, 0], dtype=np.float64)
        bits = first.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        np.less(bits, np.uint64(2**64 // step), out=keep[where])
    return clients.keep_rows(keep)


class LossDerivatives:
    """Derivatives of each row's log loss in ``beta``, in reused buffers.

    What a call returns is valid until the next call in the same thread.

    dtype: Type of the buffers; results are float64.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def __call__(self, rows: Array, labels: Array, beta: Any, order: int = 2) -> Array:
        """Derivatives 1 to `order` (at most 5) at `beta`, one number or one per row.

        Result of shape (order, n_rows).
        """
        beta = np.asarray(beta, dtype=self.dtype)
        raw = scratch("raw", (order, len(labels)), np.float64)
        # Most rows are measured from their own logit, which saves the search for the
        # maximum. Where that is too far below the maximum, or the row too wide, the
        # exponentials are out of range: these rows are done again, from the maximum.
        own = _own(rows, labels)
        with np.errstate(all="ignore"):
            total, narrow = self._moments(rows, own, beta, raw)
            # Two sums over rows tell that no row is far, as a rule.
            if (
                narrow
                and total.max(initial=0.0) < _SAFE_TOTAL
                and np.isfinite(raw[-1].sum())
            ):
                return _cumulants(raw)
            far = ~((total < _SAFE_TOTAL) & np.isfinite(raw[-1]))
            if not narrow:
                # In the type of the buffers, as for the block: which of the two ways
                # a row takes must not depend on its neighbours.
                lowest = np.subtract(rows.min(axis=1), own, dtype=self.dtype)
                far |= ~(lowest > -MAX_SPAN / 2)
            out = _cumulants(raw)
        if far.any():
            own_beta = beta if beta.ndim == 0 else beta[far]
            out[:, far] = self._from_top(rows[far], own[far], own_beta, order)
        return out

    def _from_top(self, rows: Array, own: Array, beta: Array, order: int) -> Array:
        """Derivatives of rows that are measured from their maximum."""
        top = rows.max(axis=1)
        raw = np.empty((order, len(rows)))
        self._moments(rows, top, beta, raw)
        out = _cumulants(raw)
        with np.errstate(over="ignore"):  # 1e308 - (-1e308): clipped right here
            gap = np.subtract(own, top, dtype=self.dtype)
        out[0] -= np.maximum(gap, -MAX_SPAN)
        return out

    def _moments(
        self, rows: Array, zero: Array, beta: Array, out: Array
    ) -> tuple[Array, bool]:
        """Put raw moments of ``rows - zero`` into `out`.

        Returns the sums of weights, and whether all rows are narrow.
        """
        by_column = rows.shape[1] <= FEW_COLUMNS
        shape = rows.shape[::-1] if by_column else rows.shape
        gaps = scratch("gaps", shape, self.dtype)
        power = scratch("power", shape, self.dtype)
        with np.errstate(over="ignore"):  # 1e308 - (-1e308): clipped right below
            if by_column:
                np.subtract(rows.T, zero, out=gaps, dtype=self.dtype)
            else:
                np.subtract(rows, zero[:, None], out=gaps, dtype=self.dtype)
        narrow = not gaps.size or bool(gaps.min() > -MAX_SPAN / 2)
        if not narrow:
            np.maximum(gaps, -MAX_SPAN, out=gaps)
        per_row = beta if by_column or beta.ndim == 0 else beta[:, None]
        np.multiply(gaps, per_row, out=power)
        np.exp(power, out=power)
        total = row_sums(power, by_column).astype(np.float64)
        for moment in out:
            np.multiply(power, gaps, out=power)
            np.divide(row_sums(power, by_column), total, out=moment)
        return total, narrow


def _own(rows: Array, labels: Array) -> Array:
    """Entry of each row's own class."""
    if not rows.flags.c_contiguous:
        return rows[np.arange(len(labels)), labels]
    where = np.arange(0, rows.size, rows.shape[1])
    where += labels
    return rows.ravel().take(where)


def row_sums(values: Array, by_column: bool) -> Array:
    """Sum over classes, which are on the first axis with `by_column`."""
    if not by_column:
        return np.einsum("ij->i", values)
    if values.shape[1] == 1:
        # numpy adds up a lone column pairwise, but several entry after entry.
        return values.cumsum()[-1:]
    return np.add.reduce(values, axis=0)


def _cumulants(raw: Array) -> Array:
    """Raw moments to mean and cumulants, in place."""
    mean = raw[0]
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
