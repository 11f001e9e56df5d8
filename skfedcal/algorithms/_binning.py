"""One-vs-rest histograms of predicted probabilities, summed over clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skfedcal import _logits
from skfedcal.algorithms._base import Array, Arrays, BlockSpec, Sums
from skfedcal.data._dataset import Block, FederatedDataset


@dataclass(frozen=True, slots=True)
class HistogramState:
    """Accumulated counts of shape (n_classes, n_bins), with their noise."""

    positive: Array
    negative: Array
    noise_positive: float = 0.0
    noise_negative: float = 0.0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class ClassHistograms:
    """Count rows of and not of each class by the bin of its predicted probability.

    Parameters
    ----------
    n_bins : int, default=15
        Equal-width bins of [0, 1].
    clip_positive, clip_negative : float, default=None
        L2 bounds on a client's two sets of counts; a client beyond either of them is
        scaled down as a whole.
    per_class : bool, default=False
        Clip each class by itself, as Algorithm 1 of the paper prints it; the bound on
        the whole grows with the square root of the number of classes.
    weighted : bool, default=False
        Rows carry weights, so that counts are real numbers.
    n_rounds : int, default=1
        Rounds; counts add up.
    """

    n_bins: int = 15
    clip_positive: float | None = None
    clip_negative: float | None = None
    per_class: bool = False
    weighted: bool = False
    n_rounds: int = 1

    def init(self, n_classes: int) -> HistogramState:
        shape = (n_classes, self.n_bins)
        return HistogramState(np.zeros(shape), np.zeros(shape))

    def broadcast(self, state: HistogramState) -> Arrays:
        return {"n_classes": np.asarray(len(state.positive))}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        n_classes = int(broadcast["n_classes"])
        return {
            name: BlockSpec(
                (n_classes, self.n_bins),
                kind="real" if self.weighted else "count",
                clip=clip,
                groups=n_classes if self.per_class and clip is not None else 1,
            )
            for name, clip in (
                ("positive", self.clip_positive),
                ("negative", self.clip_negative),
            )
        }

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        shape = (len(clients), clients.n_classes, self.n_bins)
        dtype = np.float64 if self.weighted else np.int64
        positive, negative = np.zeros(shape, dtype), np.zeros(shape, dtype)
        for block in clients.blocks():
            own, total = self._count(block)
            positive[block.clients] += own.astype(dtype, copy=False)
            negative[block.clients] += (total - own).astype(dtype, copy=False)
        if self.clip_positive is None or self.clip_negative is None or self.per_class:
            return {"positive": positive, "negative": negative}
        # Both sets are shortened by the same factor, the larger of the two needed, so
        # that clipping leaves the frequencies of a client as they are.
        factor = 1 / np.maximum(
            np.maximum(
                _norms(positive) / self.clip_positive,
                _norms(negative) / self.clip_negative,
            ),
            1.0,
        )
        return {"positive": positive * factor, "negative": negative * factor}

    def update(
        self, state: HistogramState, total: Sums, n_clients: int
    ) -> HistogramState:
        noise = {
            name: float(np.hypot(old, total.noise.get(name, 0.0)))
            for name, old in (
                ("positive", state.noise_positive),
                ("negative", state.noise_negative),
            )
        }
        return HistogramState(
            state.positive + total["positive"],
            state.negative + total["negative"],
            noise["positive"],
            noise["negative"],
            state.rounds + 1,
        )

    def done(self, state: HistogramState) -> bool:
        return False

    def _count(self, block: Block) -> tuple[Array, Array]:
        """Rows of each class, and all rows, by client, class and bin."""
        n_rows, n_classes = block.rows.shape
        n_clients = block.clients.stop - block.clients.start
        owner = np.repeat(np.arange(n_clients), np.diff(block.offsets))
        cell = bin_index(softmax64(block.rows), self.n_bins)
        cell += np.arange(n_classes) * self.n_bins
        cell += (owner * (n_classes * self.n_bins))[:, None]
        shape = (n_clients, n_classes, self.n_bins)
        size = n_clients * n_classes * self.n_bins
        weights = None if block.weights is None else np.repeat(block.weights, n_classes)
        total = np.bincount(cell.ravel(), weights, minlength=size)
        own = np.bincount(
            cell[np.arange(n_rows), block.labels], block.weights, minlength=size
        )
        return own.reshape(shape), total.reshape(shape)


def _norms(counts: Array) -> Array:
    """L2 norm of each client's counts, with two axes to multiply them by."""
    # Not reshape(n, -1), which fails for a cohort without clients.
    shape = (len(counts), counts.shape[1] * counts.shape[2])
    flat = counts.reshape(shape).astype(np.float64)
    return np.sqrt(np.einsum("ij,ij->i", flat, flat))[:, None, None]


def softmax64(rows: Array) -> Array:
    """Softmax in float64 whatever the input, as bins are defined."""
    # One layout, so that a row is added up in the same order in any array.
    rows = rows.astype(np.float64, order="C", copy=False)
    return _logits.softmax(_logits.center(rows))


def bin_index(proba: Array, n_bins: int) -> Array:
    """Number of the equal-width bin: ``[l, r)``, the last one closed."""
    return np.minimum((proba * n_bins).astype(np.intp), n_bins - 1)
