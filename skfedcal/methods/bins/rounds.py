"""One-vs-rest histograms of predicted probabilities, summed over clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from skfedcal import _compiled
from skfedcal.clients.dataset import Block, FederatedDataset
from skfedcal.contract import (
    MAX_POINTS,
    Array,
    Arrays,
    BlockSpec,
    Form,
    Sums,
    check_range,
    n_classes_field,
)
from skfedcal.methods.buckets import LOGIT_RANGE, ClassBins
from skfedcal.methods.graph import Value, inside, log1p, softmax
from skfedcal.methods.map_formulas import bin_of, log_odds

# Entries per block: five arrays of so many 8-byte values stay in the cache.
_BLOCK_CELLS = 1 << 16

# The gain must be this many standard deviations of its own noise.
_MIN_GAIN = 2.0

# The input inside a bin is taken to be this part of its width away from the edges.
_EDGE = 0.05


@dataclass(frozen=True, slots=True)
class HistogramState:
    """Accumulated counts of shape (n_classes, n_bins), with their noise.

    `clients` is the number of clients asked so far, once for each round they were in,
    out of `population`.
    """

    positive: Array
    negative: Array
    noise_positive: float = 0.0
    noise_negative: float = 0.0
    rounds: int = 0
    clients: int = 0
    population: int = 1


@dataclass(frozen=True, slots=True)
class ClassHistograms:
    """Count positives and negatives of each class by bin of its predicted probability.

    n_bins: Bins per class.
    clip_positive, clip_negative: L2 bounds on a client's two sets of counts; a client
        beyond either of them is scaled down as a whole.
    per_class: Clip each class by itself, as Algorithm 1 of the paper prints it; the
        bound on the whole grows with the square root of the number of classes.
    weighted: Rows carry weights, so that counts are real numbers.
    n_rounds: Rounds; counts add up.
    population: Number of all clients, asked or not; stored in the state.
    space: Scale on which bins have equal width, as in `ClassBins`.
    """

    n_bins: int = 15
    clip_positive: float | None = None
    clip_negative: float | None = None
    per_class: bool = False
    weighted: bool = False
    n_rounds: int = 1
    population: int = 1
    space: Literal["prob", "logit"] = "prob"

    def init(self, n_classes: int) -> HistogramState:
        shape = (n_classes, self.n_bins)
        return HistogramState(
            np.zeros(shape), np.zeros(shape), population=self.population
        )

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

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("n_bins", self.n_bins, 1, MAX_POINTS)
        return ({"n_classes": n_classes_field(n_classes)},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        count = self._weigh if self.weighted else self._count
        shape = (len(clients), clients.n_classes, self.n_bins)
        # A client has fewer than 2**31 rows; half the bytes are half the time.
        dtype = np.float64 if self.weighted else np.int32
        positive, negative = np.zeros(shape, dtype), np.zeros(shape, dtype)
        clips = self.clip_positive, self.clip_negative
        together = None not in clips and not self.per_class
        squares = np.zeros((len(clients), 2), np.int64) if together else None
        terms = ClassBins(self.n_bins, self.space).terms
        counted = not self.weighted and _compiled.bin_counts(
            clients, terms, positive, negative, squares
        )
        if not counted:
            for block in clients.blocks(_BLOCK_CELLS):
                count(block, positive[block.clients], negative[block.clients])
        if not together:
            return {"positive": positive, "negative": negative}
        # Both sets are shortened by the same factor, the larger of the two needed, so
        # that clipping leaves the frequencies of a client as they are.
        if counted:
            assert squares is not None
            norms = np.sqrt(squares.T)
        else:
            norms = np.array([_norms(positive), _norms(negative)])
        excess = (norms / np.array(clips)[:, None]).max(axis=0, initial=1.0)
        if (excess == 1.0).all():
            return {"positive": positive, "negative": negative}
        factor = (1 / excess)[:, None, None]
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
            state.clients + n_clients,
            state.population,
        )

    def done(self, state: HistogramState) -> bool:
        return False

    def _count(self, block: Block, positive: Array, negative: Array) -> None:
        """Add rows to the counts of the block's clients."""
        cell, own = self._cells(block)
        total = np.bincount(cell, minlength=negative.size).reshape(negative.shape)
        if len(negative) > 1:  # whole clients, that no other block has counted
            negative[:] = total
        else:
            negative += total.astype(negative.dtype)
        # A row is positive in one cell. Of the same type: `at` is slow otherwise.
        one = positive.dtype.type(1)
        np.subtract.at(negative.reshape(-1), own, one)
        np.add.at(positive.reshape(-1), own, one)

    def _weigh(self, block: Block, positive: Array, negative: Array) -> None:
        """Add weights of rows to the counts of the block's clients."""
        assert block.weights is not None
        cell, own = self._cells(block)
        weights = np.repeat(block.weights, block.rows.shape[1])
        total = np.bincount(cell, weights, minlength=negative.size)
        part = np.bincount(own, block.weights, minlength=positive.size)
        positive += part.reshape(positive.shape)
        negative += (total - part).reshape(negative.shape)

    def _cells(self, block: Block) -> tuple[Array, Array]:
        """Position (client, class, bin) of all entries, and of each row's own class."""
        n_rows, n_classes = block.rows.shape
        cell = ClassBins(self.n_bins, self.space).index(block.rows).astype(np.intp)
        cell += np.arange(n_classes) * self.n_bins
        sizes = np.diff(block.offsets)
        if len(sizes) > 1:
            first = np.arange(len(sizes)) * (n_classes * self.n_bins)
            cell += np.repeat(first, sizes)[:, None]
        return cell.reshape(-1), cell[np.arange(n_rows), block.labels]


def _norms(counts: Array) -> Array:
    """L2 norm of each client's counts."""
    # Not reshape(n, -1), which fails for a cohort without clients.
    shape = (len(counts), counts.shape[1] * counts.shape[2])
    flat = counts.reshape(shape).astype(np.float64)
    return np.sqrt(np.einsum("ij,ij->i", flat, flat))


@dataclass(frozen=True, slots=True)
class BinTable:
    """Value of each bin, and its derivatives in the counts of that bin.

    values of shape (n_classes, n_bins): Calibrated probabilities.
    rise, fall of shape (n_classes, n_bins): Increase of the value of the bin by one
        more positive row, and decrease by one more negative row. Only needed under
        noise.
    """

    values: Array
    rise: Array | None = None
    fall: Array | None = None


def bin_table(
    positive: Array, negative: Array, weight: float, bins: ClassBins | None = None
) -> BinTable:
    """Posterior mean of each bin under `weight` pseudo-rows at its midpoint.

    Negative counts, which are due to noise, are set to 0. `bins` are of equal width in
    probability unless given.
    """
    middle = (bins or ClassBins(positive.shape[1])).midpoints
    own, other = np.maximum(positive, 0.0), np.maximum(negative, 0.0)
    rows = own + other + weight
    values = (own + weight * middle) / rows
    return BinTable(
        values, (positive > 0) * (1 - values) / rows, (negative > 0) * values / rows
    )


def noticeable_gain(state: HistogramState, table: BinTable, bins: ClassBins) -> bool:
    """Whether a table fits the counts better than the input, corrected for noise.

    The gain is in one-vs-rest log loss, summed over classes. Fitted and measured on the
    same noisy counts it is too large: on average, by Stein's identity, by the variance
    of the noise times the derivative of the logarithm of the values. This bias is
    subtracted, and the rest must be significant against its own noise.
    """
    counts = np.stack([state.positive, state.negative])
    variance = np.square([[[state.noise_positive]], [[state.noise_negative]]])
    positive, negative = np.maximum(counts, 0.0)
    values, start = (
        strictly_inside(table.values),
        _best_case_input(positive, negative, bins),
    )
    logs = np.stack([np.log(values / start), np.log1p(-values) - np.log1p(-start)])
    slopes = np.stack([table.rise / values, table.fall / (1 - values)])
    gain = np.sum(counts * logs - variance * slopes)
    return bool(gain > _MIN_GAIN * np.sqrt(np.sum(variance * logs**2)))


def _best_case_input(positive: Array, negative: Array, bins: ClassBins) -> Array:
    """Constant inside each bin that fits the counts best.

    The counts do not contain the position of the input inside a bin, so the best
    possible one is assumed.
    """
    rows = positive + negative
    left = np.arange(bins.n_bins)
    middle = np.broadcast_to(bins.midpoints, rows.shape).copy()
    best = np.divide(positive, rows, out=middle, where=rows > 0)
    low, high = bins.proba_at(left + _EDGE), bins.proba_at(left + 1 - _EDGE)
    if bins.space == "logit":  # where the outermost bins have no end
        low[0], high[-1] = 0.0, 1.0
    return strictly_inside(np.clip(best, low, high))


def strictly_inside(values: Array) -> Array:
    """Clip probabilities to the open interval from 0 to 1."""
    limits = np.finfo(np.float64)
    return np.clip(values, limits.tiny, 1 - limits.epsneg)


# The map


def class_bins(cal: Any, logits: Value) -> Value:
    """One table for each class against the rest."""
    n_bins, n_classes = cal._n_bins, len(cal.classes_)
    if cal.space_ == "logit":
        place = log_odds(logits, n_classes) / (2 * LOGIT_RANGE) + 0.5
        place = place.at_least(0.0)
    else:
        place = softmax(logits)
    index = bin_of(place, n_bins) + np.arange(n_classes)[None] * n_bins
    if cal.weighting is None:
        # Not by values, which single precision may take for 1.
        return index.take_from(cal._log_table)
    values = index.take_from(cal.bin_values_)
    values = _weighed(cal, values, logits, softmax(logits))
    out = values.log()
    return out - log1p(-values) if cal.normalize == "logit" else out


def _weighed(cal: Any, values: Value, logits: Value, proba: Value) -> Value:
    """Average of bins and input if `weighting` is set."""
    weights = cal.class_weights_
    mixed = inside(values * weights + proba * (1 - weights))
    if cal.weighting == "all":
        return mixed
    return values.argmax().equals(logits.argmax()).choose(values, mixed)
