"""Sums over bins of equal width or equal mass: numpy only, in blocks.

A bin is ``[l, r)`` and the last one is closed: value `p` falls in bin ``min(int(p *
n_bins), n_bins - 1)``, computed in float64. All sums are taken in float64 and add up
over any split of the rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from skfedcal import _compiled
from skfedcal._numerics import rare_flags

# A block of few columns is cut by rows, since the metrics list entries per row.
MAX_ROWS = 1 << 14

# Short rows are added up several at a time, side by side in a row of this length.
WIDE_ROW = 1024


def blocks(proba: np.ndarray, n_elements: int) -> Iterator[np.ndarray]:
    """Yield C-contiguous blocks of rows, a multiple of eight rows each."""
    step = max(8, min(MAX_ROWS, n_elements // proba.shape[1] // 8 * 8))
    for start in range(0, len(proba), step):
        yield np.ascontiguousarray(proba[start : start + step])


def column_of(where: np.ndarray, n_classes: int) -> np.ndarray:
    """Return ``where % n_classes``; 32-bit division is several times faster."""
    where = where.astype(np.int32)
    return where - where // n_classes * n_classes


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return ``left @ right`` without numpy's warnings on invalid values."""
    # BLAS raises that flag on finite numbers too, now and then (numpy issue 24067);
    # NaN still comes out as NaN.
    with np.errstate(invalid="ignore", over="ignore"):
        return left @ right


def column_sums(rows: np.ndarray) -> np.ndarray:
    """Return float64 column sums of a C-contiguous block."""
    n_rows, n_classes = rows.shape
    group = max(1, WIDE_ROW // n_classes)
    whole = n_rows // group * group
    wide = rows[:whole].reshape(-1, group * n_classes)
    # numpy casts float32 piece by piece as it adds: no copy of the block.
    total = np.add.reduce(wide, axis=0, dtype=np.float64)
    total = np.add.reduce(total.reshape(group, n_classes), axis=0)
    if whole < n_rows:
        total += np.add.reduce(rows[whole:], axis=0, dtype=np.float64)
    return total


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


def uniform_bin_sums(
    proba: np.ndarray,
    labels: np.ndarray,
    n_bins: int,
    weight: np.ndarray | None = None,
) -> BinSums:
    """Return the sums of one binary problem over bins of equal width."""
    sums = np.zeros((3, n_bins))
    if _compiled.bin_sums(proba, labels, weight, sums):
        return BinSums(*sums)
    return bin_sums(proba, labels, bin_index(proba, n_bins), n_bins, weight)


def classwise_bin_sums(
    proba: np.ndarray,
    codes: np.ndarray,
    n_bins: int,
    *,
    weight: np.ndarray | None = None,
    threshold: float = 0.0,
) -> BinSums:
    """Return the one-versus-rest sums of every class over equal-width bins.

    proba of shape (n_samples, n_classes), float32 or float64: Probabilities in [0, 1].
    codes of shape (n_samples,), intp: Column number of the label of each row.
    weight of shape (n_samples,): Weight of each row.
    threshold: Entries of `proba` below this value are left out.
    Result: Arrays of shape (n_classes, n_bins): the sum of probabilities, of labels and
        of weights.
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


def top_labels(proba: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first column of the largest entry of each row, and the entries."""
    top, value = np.empty(len(proba), np.int64), np.empty(len(proba))
    if not _compiled.top_labels(proba, top, value):
        top = proba.argmax(axis=1)
        value = proba_of(proba, top)
    return top, value


def quantile_edges(
    proba: np.ndarray, n_bins: int, weight: np.ndarray | None = None
) -> np.ndarray:
    """Return the ``n_bins - 1`` inner edges of bins of equal weight.

    Edge `b` is the smallest value whose cumulative weight exceeds ``b / n_bins`` of
    the total. A row of weight 2 and a repeated row give the same edges, which
    interpolated quantiles would not.
    """
    if not len(proba):
        return np.full(n_bins - 1, np.inf)
    order = np.argsort(proba, kind="stable")
    mass = np.arange(1.0, len(proba) + 1)
    if weight is not None:
        mass = np.cumsum(weight[order])
    targets = np.arange(1, n_bins) * mass[-1] / n_bins
    cuts = np.searchsorted(mass, targets, side="right")
    return proba[order[np.minimum(cuts, len(proba) - 1)]]


def row_index(
    proba: np.ndarray, n_bins: int, strategy: str, weight: np.ndarray | None
) -> np.ndarray:
    """Return the bin of each row of a binary problem; equal values share a bin."""
    if strategy == "uniform":
        return bin_index(proba, n_bins)
    return np.searchsorted(quantile_edges(proba, n_bins, weight), proba, side="right")


def class_edges(
    proba: np.ndarray, n_bins: int, weight: np.ndarray | None, threshold: float
) -> np.ndarray:
    """Return the inner edges of each class, shape (n_classes, n_bins - 1)."""
    edges = np.empty((proba.shape[1], n_bins - 1))
    for column, row in enumerate(edges):
        value, _, share = _above_threshold(proba[:, column], None, weight, threshold)
        row[:] = quantile_edges(value, n_bins, share)
    return edges


def classwise_quantile_sums(
    proba: np.ndarray,
    codes: np.ndarray,
    n_bins: int,
    *,
    weight: np.ndarray | None = None,
    threshold: float = 0.0,
) -> BinSums:
    """Return the one-versus-rest sums over equal-mass bins of each class.

    Unlike the sums over equal-width bins these do not add up over parts of the
    rows, since the edges follow the rows.
    """
    total = np.empty((3, proba.shape[1], n_bins))
    for column in range(proba.shape[1]):
        value, labels, share = _above_threshold(
            proba[:, column], codes == column, weight, threshold
        )
        index = row_index(value, n_bins, "quantile", share)
        sums = bin_sums(value, labels, index, n_bins, share)
        total[:, column] = sums.proba, sums.labels, sums.weight
    return BinSums(*total)


def _above_threshold(
    value: np.ndarray,
    labels: np.ndarray | None,
    weight: np.ndarray | None,
    threshold: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the entries of one column at or above `threshold`."""
    value = value.astype(np.float64)
    rows = value >= threshold
    return (
        value[rows],
        rows if labels is None else labels[rows],
        None if weight is None else weight[rows],
    )
