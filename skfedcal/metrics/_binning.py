"""Sums of probabilities and labels over bins: numpy only, no state, additive.

A bin is ``[l, r)`` and the last one is closed: value `p` falls in bin
``min(int(p * n_bins), n_bins - 1)``, computed in float64. All sums are taken in
float64 and add up over any split of the rows.
"""

from dataclasses import dataclass

import numpy as np

from skfedcal._flags import rare_flags
from skfedcal.metrics._blocks import blocks, column_of, column_sums

# Elements per pass: large enough to spread numpy's cost per call, small enough
# that masks and lists of entries stay in cache and below 1 MB.
MASK_BLOCK = 3 << 16
DENSE_BLOCK = 1 << 14

# Above this many classes per bin few entries leave the first bin, and words of
# eight flags are searched first.
SPARSE_FACTOR = 3


@dataclass(frozen=True, slots=True)
class BinSums:
    """Sums per bin (last axis); sums over disjoint sets of rows add up."""

    proba: np.ndarray
    labels: np.ndarray
    weight: np.ndarray

    def __add__(self, other: "BinSums") -> "BinSums":
        return BinSums(
            self.proba + other.proba,
            self.labels + other.labels,
            self.weight + other.weight,
        )


def bin_index(proba: np.ndarray, n_bins: int) -> np.ndarray:
    """Return the equal-width bin of each probability."""
    index = np.multiply(proba, n_bins, dtype=np.float64).astype(np.intp)
    return np.minimum(index, n_bins - 1, out=index)


def bin_sums(
    proba: np.ndarray,
    labels: np.ndarray,
    index: np.ndarray,
    n_bins: int,
    weight: np.ndarray | None = None,
) -> BinSums:
    """Return the sums of one binary problem whose rows lie in bins `index`."""
    if weight is None:
        return BinSums(
            np.bincount(index, proba, n_bins),
            np.bincount(index, labels, n_bins),
            np.bincount(index, minlength=n_bins).astype(np.float64),
        )
    return BinSums(
        np.bincount(index, weight * proba, n_bins),
        np.bincount(index, weight * labels, n_bins),
        np.bincount(index, weight, n_bins),
    )


def classwise_bin_sums(
    proba: np.ndarray,
    codes: np.ndarray,
    n_bins: int,
    *,
    weight: np.ndarray | None = None,
    threshold: float = 0.0,
) -> BinSums:
    """Return the one-versus-rest sums of every class over equal-width bins.

    Parameters
    ----------
    proba : ndarray of shape (n_samples, n_classes), float32 or float64
        Probabilities in [0, 1].
    codes : ndarray of shape (n_samples,), intp
        Column number of the label of each row.
    n_bins : int
        Number of bins.
    weight : ndarray of shape (n_samples,), optional
        Weight of each row.
    threshold : float, default=0.0
        Entries of `proba` below this value are left out.

    Returns
    -------
    BinSums
        Arrays of shape (n_classes, n_bins): the sum of probabilities, of labels
        and of weights.
    """
    if weight is None and threshold <= 0.0:
        sums, counts = _sparse_sums(proba, n_bins)
    else:
        sums, counts = _dense_sums(proba, n_bins, weight, threshold)
    labels = label_sums(proba, codes, n_bins, weight, threshold)
    return BinSums(sums, labels, counts)


def label_sums(
    proba: np.ndarray,
    codes: np.ndarray,
    n_bins: int,
    weight: np.ndarray | None = None,
    threshold: float = 0.0,
) -> np.ndarray:
    """Return the weight of labels per class and bin, shape (n_classes, n_bins)."""
    n_classes = proba.shape[1]
    chosen = proba_of(proba, codes)
    cells = bin_index(chosen, n_bins)
    cells += codes * n_bins
    if threshold > 0.0:
        kept = chosen >= threshold
        cells, weight = cells[kept], None if weight is None else weight[kept]
    total = np.bincount(cells, weight, n_classes * n_bins)
    return total.astype(np.float64, copy=False).reshape(n_classes, n_bins)


def proba_of(proba: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return in float64 the probability of column `codes` (..., n_rows) per row."""
    n_rows, n_classes = proba.shape
    if not proba.flags.c_contiguous:
        return proba[np.arange(n_rows), codes].astype(np.float64, copy=False)
    where = np.arange(0, n_rows * n_classes, n_classes) + codes
    return proba.ravel().take(where).astype(np.float64, copy=False)


def _sparse_sums(proba: np.ndarray, n_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Visit only the entries above the first bin: a row has at most `n_bins`.

    What the first bin holds is the column sum minus the rest.
    """
    n_rows, n_classes = proba.shape
    sums = np.zeros(n_classes * n_bins)
    counts = np.zeros(n_classes * n_bins)
    columns = np.zeros(n_classes)
    find = rare_flags if n_classes > SPARSE_FACTOR * n_bins else np.flatnonzero
    # The cut is a little low, since `p * n_bins` may round up to 1: entries of the
    # first bin that pass are counted there and cost nothing.
    cut = proba.dtype.type((1.0 - 1e-6) / n_bins)
    for rows in blocks(proba, MASK_BLOCK):
        where = find((rows >= cut).ravel())
        value = rows.ravel().take(where).astype(np.float64, copy=False)
        cells = bin_index(value, n_bins)
        cells += column_of(where, n_classes) * n_bins
        sums += np.bincount(cells, value, sums.size)
        counts += np.bincount(cells, minlength=counts.size)
        columns += column_sums(rows)
    sums, counts = sums.reshape(-1, n_bins), counts.reshape(-1, n_bins)
    sums[:, 0] += columns - sums.sum(axis=1)
    counts[:, 0] += n_rows - counts.sum(axis=1)
    return sums, counts


def _dense_sums(
    proba: np.ndarray, n_bins: int, weight: np.ndarray | None, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """Visit every entry: with weights a difference would leave rounding errors."""
    n_classes = proba.shape[1]
    sums = np.zeros(n_classes * n_bins)
    counts = np.zeros(n_classes * n_bins)
    offset = np.arange(n_classes) * n_bins
    start = 0
    for rows in blocks(proba, DENSE_BLOCK):
        cells = (bin_index(rows, n_bins) + offset).ravel()
        share = np.ones(len(rows))
        if weight is not None:
            share = weight[start : start + len(rows)]
        start += len(rows)
        mass = (share[:, None] * (rows >= np.float64(threshold))).ravel()
        sums += np.bincount(cells, mass * rows.ravel(), sums.size)
        counts += np.bincount(cells, mass, counts.size)
    return sums.reshape(-1, n_bins), counts.reshape(-1, n_bins)
