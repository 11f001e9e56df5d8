"""Buckets of scores: the public map from a score to its position and its bin.

Every function works row by row, so that a site and a simulation agree to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from skfedcal import _numerics
from skfedcal._numerics import rare_flags
from skfedcal._typing import InputType
from skfedcal.contract import Array

Space = Literal["both", "prob", "logit"]

# Log-odds beyond this are in the outermost buckets of the logit grid; public, and past
# the confidence (1e-7) that evaluation can tell from certainty on a million examples.
LOGIT_RANGE = 16.0


def place_of_odds(odds: Array, space: Space) -> Array:
    """Position of log-odds; 'both' is the mean of the other two."""
    if space == "prob":
        return sigmoid(odds)
    scaled = np.clip(odds / (2 * LOGIT_RANGE) + 0.5, 0.0, 1.0)
    return scaled if space == "logit" else (sigmoid(odds) + scaled) / 2


def place_of_proba(proba: Array, space: Space) -> Array:
    """Position of probabilities, without a detour by log-odds where possible."""
    inside = np.clip(proba.astype(np.float64, copy=False), 0.0, 1.0)
    if space == "prob":
        return inside
    with np.errstate(divide="ignore"):
        odds = np.log(inside) - np.log1p(-inside)
        # One half is an edge: what is near it must stay on its side.
        middle = 2 * np.arctanh(2 * inside - 1)
    np.copyto(odds, middle, where=np.abs(inside - 0.5) < 0.25)
    scaled = np.clip(odds / (2 * LOGIT_RANGE) + 0.5, 0.0, 1.0)
    return scaled if space == "logit" else (inside + scaled) / 2


def sigmoid(odds: Array) -> Array:
    """Probability of log-odds."""
    with np.errstate(over="ignore"):
        out: Array = 1 / (1 + np.exp(-odds))
    return out


def class_rows(rows: Array, input_type: InputType, n_classes: int) -> Array:
    """Logits with one column per class, from the columns of a site.

    One column may be missing: the first class then has log-odds of 0, or the rest of
    the probability. `skfedcal.clients` validates the input.
    """
    missing = rows.shape[1] == n_classes - 1
    if input_type == "proba":
        if missing:
            rest = 1 - np.einsum("ij->i", rows)[:, None]
            rows = np.concatenate([rest, rows], axis=1)
        return _numerics.from_proba(rows)
    if not missing:
        return rows
    if n_classes == 2:
        return _numerics.as_two_columns(rows)
    return np.concatenate([np.zeros_like(rows[:, :1]), rows], axis=1)


def log_odds(logits: Array) -> Array:
    """Log-odds of each class against the rest, in float64, within +-MAX_SPAN."""
    # One layout, so that a row is added up in the same order in any array.
    rows = _numerics.center(logits.astype(np.float64, order="C", copy=False))
    np.maximum(rows, -_numerics.MAX_SPAN, out=rows)
    if rows.shape[1] == 1:
        return np.full(rows.shape, _numerics.MAX_SPAN)
    if rows.shape[1] == 2:
        gap = rows[:, 1] - rows[:, 0]
        return np.stack([-gap, gap], axis=1)
    which = (np.arange(len(rows)), rows.argmax(axis=1))
    weights = np.exp(rows)
    weights[which] = 0.0
    # The sum without the largest first: 1 minus a probability near 1 has no digits.
    rest = np.einsum("ij->i", weights)
    others = np.log1p(rest[:, None] - weights)
    # Far below the largest their exponentials vanish; the second largest does not.
    second = rows.copy()
    second[which] = -np.inf
    peak = second.max(axis=1, keepdims=True)
    tail = np.exp(second - peak)
    others[which] = peak[:, 0] + np.log(np.einsum("ij->i", tail))
    return np.clip(rows - others, -_numerics.MAX_SPAN, _numerics.MAX_SPAN)


# Bound on the error of float32 log-odds up to 16: eight units in their last place, for
# a rounded input, exponentials, pairwise sums and logarithms.
_SLACK = 8 * 16 * float(np.finfo(np.float32).eps)

# Share of a bin that the error may be for float32 to be of use.
_MAX_DOUBT = 1 / 16


@dataclass(frozen=True, slots=True)
class ClassBins:
    """Bins into which the probabilities of all classes are sorted.

    space: Scale on which they have equal width: probability, or log-odds from -16 to
        16, with all that is beyond in the outermost two.
    """

    n_bins: int
    space: Literal["prob", "logit"] = "prob"

    @property
    def midpoints(self) -> Array:
        """Probability in the middle of each bin."""
        return self.proba_at(np.arange(self.n_bins) + 0.5)

    def proba_at(self, place: Array) -> Array:
        """Probability at a position in units of bins; edges are whole numbers."""
        inside = place / self.n_bins
        if self.space == "prob":
            return inside
        return sigmoid((2 * inside - 1) * LOGIT_RANGE)

    def index(self, logits: Array) -> Array:
        """Number of the bin of each entry's probability, ``[l, r)``, the last closed.

        It is that of numbers computed in float64, for float32 and float64 `logits`.
        """
        if self.space == "prob":
            proba = softmax64(logits)
            return bin_index(proba, self.n_bins, out=proba)
        if _SLACK * self._density > _MAX_DOUBT or logits.shape[1] == 1:
            return self._exact(logits)
        return self._by_float32(logits)

    @property
    def terms(self) -> tuple[int, float, float]:
        """Number of bins, range of log-odds or 0, and error of float32, in bins."""
        if self.space == "prob":
            return self.n_bins, 0.0, 0.0
        return self.n_bins, LOGIT_RANGE, _SLACK * self._density

    @property
    def _density(self) -> float:
        """Bins per unit of log-odds."""
        return self.n_bins / (2 * LOGIT_RANGE)

    def _exact(self, logits: Array) -> Array:
        return bin_index(place_of_odds(log_odds(logits), "logit"), self.n_bins)

    def _by_float32(self, logits: Array) -> Array:
        """Decide in float32, which is faster, the entries that are not near an edge."""
        place = _odds32(logits)
        place *= np.float32(self._density)
        place += np.float32(self.n_bins / 2)
        # The ends are not edges: values half a bin away from them are not near an edge.
        np.clip(place, 0.5, self.n_bins - 0.5, out=place)
        index = place.astype(np.int32)
        place -= np.rint(place)
        near = np.abs(place, out=place) < np.float32(_SLACK * self._density)
        cells = rare_flags(near.reshape(-1))
        if len(cells):
            rows = np.unique(cells // logits.shape[1])
            index[rows] = self._exact(logits[rows])
        return index


def _odds32(logits: Array) -> Array:
    """Log-odds of each class in float32; inaccurate far beyond the range of bins."""
    with np.errstate(over="ignore", divide="ignore"):
        top = _numerics.row_max(logits)
        rows = logits - top if top.any() else logits
        # In this layout, as sums along another are not pairwise.
        rows = rows.astype(np.float32, order="C", copy=False)
        weights = np.exp(rows)
        # The largest is 1, for as many as are equal. The others are added up apart:
        # behind 1, a sum of small ones has no digits.
        rest = _row_sums(weights * (weights < 1))
        rest += np.rint(_row_sums(weights) - rest) - 1
        others = np.subtract(1, weights, out=weights)
        others += rest
        np.log(others, out=others)
    return np.subtract(rows, others, out=others)


def _row_sums(rows: Array) -> Array:
    """Row sums as a column: pairwise, or sequentially where that is as accurate."""
    if rows.shape[1] <= _numerics.FEW_COLUMNS:
        return np.einsum("ij->i", rows)[:, None]
    return rows.sum(axis=1, keepdims=True)


def softmax64(rows: Array) -> Array:
    """Softmax in float64 whatever the input, as bins are defined."""
    # One layout, so that a row is added up in the same order in any array.
    weights = _numerics.center(rows.astype(np.float64, order="C", copy=False))
    np.exp(weights, out=weights)
    weights /= np.einsum("ij->i", weights)[:, None]
    return weights


def bin_index(proba: Array, n_bins: int, out: Array | None = None) -> Array:
    """Number of the equal-width bin: ``[l, r)``, the last one closed.

    `out` is memory to work in, such as `proba` itself when it is not needed any more.
    """
    index = np.multiply(proba, n_bins, out=out).astype(np.intp)
    return np.minimum(index, n_bins - 1, out=index)


def equi_depth_edges(counts: Array, n_buckets: int) -> Array:
    """Edges, in leaves, of buckets of about equal depth, by prefix search.

    Cumulative sums that decrease because of noise are replaced by their running
    maximum.
    """
    sums = np.append(0.0, np.cumsum(counts.sum(axis=0)))
    sums = np.maximum.accumulate(sums)
    targets = sums[-1] * np.arange(1, n_buckets) / n_buckets
    right = np.clip(np.searchsorted(sums, targets), 1, len(sums) - 1)
    nearer = targets - sums[right - 1] < sums[right] - targets
    inner = np.where(nearer, right - 1, right)
    return np.unique(np.concatenate([[0], inner, [counts.shape[1]]]))
