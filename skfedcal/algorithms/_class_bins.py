"""Bins of class probabilities: of equal width in probability or in log-odds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from skfedcal import _logits
from skfedcal._flags import rare_flags
from skfedcal.algorithms._base import Array
from skfedcal.algorithms._class_scores import log_odds
from skfedcal.algorithms._positions import LOGIT_RANGE, place_of_odds, sigmoid

# Bound on the error of float32 log-odds up to 16: eight units in their last place, for
# a rounded input, exponentials, pairwise sums and logarithms.
_SLACK = 8 * 16 * float(np.finfo(np.float32).eps)

# Share of a bin that the error may be for float32 to be of use.
_MAX_DOUBT = 1 / 16


@dataclass(frozen=True, slots=True)
class ClassBins:
    """Bins into which the probabilities of all classes are sorted.

    Parameters
    ----------
    n_bins : int
        Number of bins.
    space : {'prob', 'logit'}, default='prob'
        Scale on which they have equal width: probability, or log-odds from -16 to 16,
        with all that is beyond in the outermost two.
    """

    n_bins: int
    space: Literal["prob", "logit"] = "prob"

    @property
    def midpoints(self) -> Array:
        """Probability in the middle of each bin."""
        return self.proba_at(np.arange(self.n_bins) + 0.5)

    def proba_at(self, place: Array) -> Array:
        """Probability at a place counted in bins, edges being whole numbers."""
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
    def _density(self) -> float:
        """Bins per unit of log-odds."""
        return self.n_bins / (2 * LOGIT_RANGE)

    def _exact(self, logits: Array) -> Array:
        return bin_index(place_of_odds(log_odds(logits), "logit"), self.n_bins)

    def _by_float32(self, logits: Array) -> Array:
        """Settle in float32, which is several times faster, what is near no edge."""
        place = _odds32(logits)
        place *= np.float32(self._density)
        place += np.float32(self.n_bins / 2)
        # The ends are no edges: half a bin away from them, nothing is near one.
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
    """Log-odds of each class in float32; far beyond the range of bins, anything is."""
    with np.errstate(over="ignore", divide="ignore"):
        top = _logits.row_max(logits)
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
    """Sums as a column: pairwise, or in a row where that is as good, and faster."""
    if rows.shape[1] <= _logits.FEW_COLUMNS:
        return np.einsum("ij->i", rows)[:, None]
    return rows.sum(axis=1, keepdims=True)


def softmax64(rows: Array) -> Array:
    """Softmax in float64 whatever the input, as bins are defined."""
    # One layout, so that a row is added up in the same order in any array.
    weights = _logits.center(rows.astype(np.float64, order="C", copy=False))
    np.exp(weights, out=weights)
    weights /= np.einsum("ij->i", weights)[:, None]
    return weights


def bin_index(proba: Array, n_bins: int, out: Array | None = None) -> Array:
    """Number of the equal-width bin: ``[l, r)``, the last one closed.

    `out` is memory to work in, such as `proba` itself when it is not needed any more.
    """
    index = np.multiply(proba, n_bins, out=out).astype(np.intp)
    return np.minimum(index, n_bins - 1, out=index)
