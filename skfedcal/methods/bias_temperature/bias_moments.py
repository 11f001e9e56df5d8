"""Sums for bias and temperature scaling: loss, slopes and curvature of each client.

The log loss of a row is ``log sum_j exp(t_j + b_j) - t_y - b_y`` with ``t = beta z``.
Derivatives in the biases ``b`` and in ``x``, where ``beta (1 + x)`` is the next point,
are moments under the softmax ``p``; relative steps keep them in range for logits of any
scale. Every operation acts on each row alone, classes along the first axis.
"""

from __future__ import annotations

import numpy as np

from skfedcal._numerics import MAX_SPAN
from skfedcal.clients.dataset import Block, scratch
from skfedcal.contract import Array
from skfedcal.methods.temperature.moments import row_sums

# Numbers before the first one that belongs to a class: weight of the rows, loss, slope
# and curvature in x.
HEAD = 4

# Bound on a bias, far beyond what ambiguous rows can require.
BIAS_BOUND = 30.0


def arrow_size(n_classes: int) -> int:
    """Length of a contribution with the diagonal of the curvature in the biases."""
    return HEAD + 3 * n_classes


def full_size(n_classes: int) -> int:
    """Length of a contribution with all products of two classes."""
    return HEAD + 2 * n_classes + n_classes * (n_classes - 1) // 2


def gaps(block: Block) -> Array:
    """Distance of each logit from the largest of its row, shape (n_classes, n_rows)."""
    shape = block.rows.shape[::-1]
    out = scratch("bias_gaps", shape, np.float64)
    np.copyto(out, block.rows.T)
    with np.errstate(over="ignore"):  # 1e308 - (-1e308): clipped right below
        out -= out.max(axis=0, initial=-np.inf)
    return np.maximum(out, -MAX_SPAN, out=out)


class SoftmaxMoments:
    """Softmax of ``beta z + b`` for the rows of one block, and sums by client.

    Works in shared buffers: valid until the next one is made in the same thread.

    block: Rows, labels and clients.
    away of shape (n_classes, n_rows): Result of `gaps` for the block.
    beta: Inverse temperature.
    bias of shape (n_classes,): Class biases.
    """

    def __init__(self, block: Block, away: Array, beta: float, bias: Array) -> None:
        self._block = block
        self._where = (block.labels, np.arange(away.shape[1]))
        self._scaled = np.multiply(
            away, beta, out=scratch("bias_scaled", away.shape, np.float64)
        )
        proba = scratch("bias_proba", away.shape, np.float64)
        np.add(self._scaled, bias[:, None], out=proba)
        proba -= proba.max(axis=0, initial=-np.inf)
        own = proba[self._where]
        np.exp(proba, out=proba)
        total = row_sums(proba, True)
        self.loss = np.log(total) - own
        proba /= total
        self.proba = proba

    def arrow(self) -> Array:
        """Sums by client of shape (n_clients, arrow_size)."""
        head, first, cross = self._first()
        square = np.multiply(self.proba, self.proba, out=self._work)
        own = np.subtract(self.proba, square, out=square)
        diagonal = self._block.sum_by_client(own)
        return np.concatenate([head, first, cross, diagonal], axis=1)

    def full(self) -> Array:
        """Sums by client of shape (n_clients, full_size)."""
        parts = [*self._first()]
        for j in range(len(self.proba) - 1):
            others = self.proba[j + 1 :]
            pairs = np.multiply(others, self.proba[j], out=self._work[: len(others)])
            parts.append(self._block.sum_by_client(pairs))
        return np.concatenate(parts, axis=1)

    @property
    def _work(self) -> Array:
        return scratch("bias_work", self.proba.shape, np.float64)

    def _first(self) -> tuple[Array, Array, Array]:
        """Scalars, slopes in the biases, and curvature between these and x."""
        work = np.multiply(self.proba, self._scaled, out=self._work)
        mean = row_sums(work, True)
        slope = mean - self._scaled[self._where]
        deviation = np.subtract(self._scaled, mean, out=self._scaled)
        products = np.multiply(self.proba, deviation, out=self._work)
        cross = self._block.sum_by_client(products)
        products *= deviation
        curvature = row_sums(products, True)
        head = np.array([np.ones_like(mean), self.loss, slope, curvature])
        residual = self._work
        np.copyto(residual, self.proba)
        residual[self._where] -= 1
        sums = self._block.sum_by_client
        return sums(head), sums(residual), cross


def unpack(total: Array, n_classes: int, full: bool) -> tuple[float, Array, Array]:
    """Loss, gradient and curvature in (x, b), each as a mean over rows."""
    mean = total[1:] / total[0]
    loss, first = float(mean[0]), mean[HEAD - 1 + np.arange(n_classes)]
    gradient = np.concatenate([mean[1:2], first])
    curvature = np.zeros((n_classes + 1, n_classes + 1))
    curvature[0, 0] = mean[2]
    rest = mean[HEAD - 1 + n_classes :]
    curvature[0, 1:] = curvature[1:, 0] = rest[:n_classes]
    if full:
        between = np.zeros((n_classes, n_classes))
        between[np.triu_indices(n_classes, 1)] = rest[n_classes:]
        between += between.T
        # Biases that move together change nothing: rows of the curvature add up to 0.
        curvature[1:, 1:] = np.diag(between.sum(axis=1)) - between
    else:
        # On average over directions that add up to 0 the products left out amount to
        # one part in n_classes of the diagonal.
        scale = n_classes / (n_classes - 1)
        np.fill_diagonal(curvature[1:, 1:], scale * rest[n_classes:])
    return loss, gradient, curvature
