"""Probabilities minus labels per class and bin, added up while rows are checked.

The mean gap over bins needs neither counts nor labels by themselves. One sum over the
few entries above the first bin is left, and what the first bin holds is the column
sum minus the rest.
"""

import numpy as np

from skfedcal._flags import rare_flags
from skfedcal.metrics._blocks import blocks, column_sums
from skfedcal.metrics._validation import SUM_TOLERANCE, fault, sums_to_one

# Elements per pass: numpy's cost per call on a block is about that of 50,000 elements.
# The flags of a block take an eighth of 10,000 x 100 float32 probabilities.
GAP_BLOCK = 3 << 17

# Above this many classes few entries leave the first of the usual bins.
MANY_CLASSES = 45


def classwise_gaps(
    proba: np.ndarray, codes: np.ndarray, sizes: np.ndarray, n_bins: int
) -> np.ndarray:
    """Return the sum of ``proba - onehot(codes)`` per class and equal-width bin.

    Parameters
    ----------
    proba : ndarray of shape (n_samples, n_classes), float32 or float64
        Probabilities; a row that is not a distribution raises ValueError.
    codes : ndarray of shape (n_samples,), intp
        Column number of the label of each row.
    sizes : ndarray of shape (n_classes,)
        Number of rows of each class.
    n_bins : int
        Number of bins.

    Returns
    -------
    ndarray of shape (n_classes, n_bins), float64
    """
    n_classes = proba.shape[1]
    # Bins for what is above 1 by rounding are folded into the last one in the end:
    # faster than a minimum over all entries.
    width = int(n_bins * (1 + 2 * SUM_TOLERANCE)) + 1
    gaps = np.zeros((n_classes, width))
    columns = -sizes.astype(np.float64)
    ones = np.ones(n_classes, proba.dtype)
    start = 0
    for rows in blocks(proba, GAP_BLOCK):
        where = _above_first_bin(rows, n_bins)
        value = rows.reshape(-1).take(where)
        if not (sums_to_one(rows, ones) and value.min(initial=0) >= 0):
            raise ValueError(fault(proba))
        columns += column_sums(rows)
        labels = codes[start : start + len(rows)]
        gaps += _listed_gaps(value, where, labels, n_bins, gaps.shape)
        start += len(rows)
    gaps[:, 0] += columns - gaps.sum(axis=1)
    gaps[:, n_bins - 1] += gaps[:, n_bins:].sum(axis=1)
    return gaps[:, :n_bins]


def _above_first_bin(rows: np.ndarray, n_bins: int) -> np.ndarray:
    """Return the positions of entries above the first bin, below 0 or NaN."""
    # Read as whole numbers without sign, floats with a sign are the largest ones.
    # The cut is a little low, since `p * n_bins` may round up to 1: entries of the
    # first bin that pass are counted there and cost nothing.
    bits = np.uint32 if rows.dtype == np.float32 else np.uint64
    cut = rows.dtype.type((1.0 - 1e-6) / n_bins).view(bits)
    flags = (rows.view(bits) >= cut).reshape(-1)
    where = rare_flags(flags) if rows.shape[1] > MANY_CLASSES else flags.nonzero()[0]
    # 32-bit numbers are several times faster to divide, and half as many bytes.
    return where.astype(np.int32)


def _listed_gaps(
    value: np.ndarray,
    where: np.ndarray,
    labels: np.ndarray,
    n_bins: int,
    shape: tuple[int, ...],
) -> np.ndarray:
    """Return the sums of listed entries, less 1 for a label, per class and bin."""
    n_classes, width = shape
    row = where // n_classes
    cell = where - row * n_classes
    own = labels.astype(np.int32).take(row) == cell
    if n_classes * width >= 1 << 31:
        cell = cell.astype(np.int64)
    cell *= width
    # Twice in one buffer: the lists of a small array are larger than the array.
    gap = value.astype(np.float64)
    gap *= n_bins
    cell += gap.astype(np.int32)
    np.copyto(gap, value)
    gap -= own
    return np.bincount(cell, gap, n_classes * width).reshape(shape)
