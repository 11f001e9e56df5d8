"""Value of each confidence bin from (noisy) counts of right and wrong predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.algorithms._binning import BinTable, HistogramState, bin_table
from skfedcal.algorithms._class_bins import ClassBins

Array = NDArray[Any]

# Prior of what is wrong with the confidence: too high or too low in proportion to how
# far it is above chance, with a deviation of 1; any smooth error; and one by bin.
_SMOOTH, _LENGTH, _SINGLE = 0.2, 0.3, 0.1

# The prior is shrunk by these factors, all as likely. With 0 nothing is wrong, which
# must become less likely than this before it is given up.
_FACTORS = np.array([0.0, 0.15, 0.4, 1.0])
_MAX_NOTHING = 0.1

# Pseudo-rows of an empty bin, where the input is not leant on.
_EMPTY = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class TopTable:
    """What to do with a confidence in each bin.

    Parameters
    ----------
    values : ndarray of shape (n_bins,)
        New confidence in the middle of the bin.
    trust : ndarray of shape (n_bins,)
        How far the counts of the bin decide, from 0 to 1: the new confidence moves by
        ``1 - trust`` times what the old one moves inside the bin.
    nothing : float
        Chance that the input needs no correction, given the counts; NaN if not known.
    """

    values: Array
    trust: Array
    nothing: float = np.nan

    @property
    def noticeable(self) -> bool:
        """Whether the counts speak against leaving the input as it is."""
        return self.nothing < _MAX_NOTHING


def frequency_table(state: HistogramState) -> TopTable:
    """Frequencies of right predictions; the middle of an empty bin."""
    values = plain_bins(state).values[0]
    return TopTable(values, np.ones(len(values)))


def plain_bins(state: HistogramState) -> BinTable:
    """Table of frequencies with its derivatives."""
    return bin_table(state.positive, state.negative, _EMPTY)


def shrunk_table(state: HistogramState, n_classes: int) -> TopTable:
    """Posterior mean of each bin around the input, from counts with known noise.

    With `r` right and `w` wrong rows in a bin of middle `m`, the residual ``(1 - m) r -
    m w`` is unbiased for ``n d``: `n` rows times the error `d` of the confidence. Its
    variance is that of `n` draws and of the noise. `d` has a normal prior over bins.
    """
    right, wrong = state.positive[0], state.negative[0]
    middle = ClassBins(len(right)).midpoints
    rows = np.maximum(right + wrong, 0.0)
    residual = (1 - middle) * right - middle * wrong
    # Of one draw, by the frequency or by the input, whichever is larger: a few rows of
    # one kind would look certain.
    hit = plain_bins(state).values[0]
    single = np.maximum(hit * (1 - hit), middle * (1 - middle))
    spread = (rows + 1) * single
    spread += ((1 - middle) * state.noise_positive) ** 2
    spread += (middle * state.noise_negative) ** 2
    error, trust, nothing = _posterior(
        _covariance(middle, n_classes), rows / np.sqrt(spread), residual / spread**0.5
    )
    return TopTable(middle + error, trust, nothing)


def monotone(table: TopTable, state: HistogramState) -> TopTable:
    """Values that do not fall, nearest by rows."""
    from sklearn.isotonic import isotonic_regression

    rows = np.maximum(state.positive[0] + state.negative[0], 0.0) + 1
    values = isotonic_regression(table.values, sample_weight=rows)
    return replace(table, values=values)


def _covariance(middle: Array, n_classes: int) -> Array:
    lever = middle - 1 / n_classes
    gap = (middle[:, None] - middle) / _LENGTH
    smooth = _SMOOTH**2 * np.exp(-(gap**2) / 2)
    return np.outer(lever, lever) + smooth + _SINGLE**2 * np.eye(len(middle))


def _posterior(
    covariance: Array, slope: Array, seen: Array
) -> tuple[Array, Array, float]:
    """Mean of d from ``seen = slope * d + normal noise``, averaged over `_FACTORS`.

    Also the derivative of each mean by its own observed ``d``, and the chance of the
    factor 0.
    """
    values, vectors = np.linalg.eigh(slope[:, None] * covariance * slope)
    scales = _FACTORS[:, None] ** 2
    spread = 1 + scales * np.maximum(values, 0.0)
    turned = vectors.T @ seen
    evidence = -0.5 * (turned**2 / spread + np.log(spread)).sum(axis=1)
    chance = np.exp(evidence - evidence.max())
    chance /= chance.sum()
    shrunk = chance @ (scales / spread)
    gain = (covariance * slope) @ vectors * shrunk
    trust = np.einsum("ij,ij->i", gain, slope[:, None] * vectors)
    return gain @ turned, np.clip(trust, 0.0, 1.0), float(chance[0])
