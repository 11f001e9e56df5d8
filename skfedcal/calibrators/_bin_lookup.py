"""Replace logits by the values of the bins that their probabilities fall in.

Bins are those of the softmax in float64. With many classes most probabilities lie in
the first bin of equal width, so that float32, which is several times faster, settles
almost all of them: an entry whose bin it leaves open is computed again in float64. Bins
of log-odds have no such bin; every entry is looked up.
"""

import numpy as np

from skfedcal._flags import rare_flags
from skfedcal.algorithms._class_bins import ClassBins, bin_index, softmax64

# Entries at a time: their float32 copies and flags stay in the cache.
_BLOCK_CELLS = 1 << 17

# Entries at a time of the dense form, which makes several float64 copies.
_DENSE_CELLS = 1 << 15

# With fewer classes too many entries lie above the first bin.
_MANY_CLASSES = 32

# Above this share of entries outside the first bin the dense form is faster.
_MAX_SHARE = 1 / 8


def look_up(logits, table, space):
    """Replace centred logits, in place, by values of their bins.

    Parameters
    ----------
    logits : ndarray of shape (n_samples, n_classes)
        C-contiguous, each row with maximum 0.
    table : ndarray of shape (n_classes, n_bins)
        Value of each bin, in the dtype of `logits`.
    space : {'logit', 'prob'}
        Scale on which bins have equal width.

    Returns
    -------
    ndarray of shape (n_samples, n_classes)
        `logits` itself.
    """
    n_classes = logits.shape[1]
    bins = ClassBins(table.shape[1], space)
    sparse = space == "prob" and n_classes >= _MANY_CLASSES
    step = max(1, _BLOCK_CELLS // n_classes)
    for start in range(0, len(logits), step):
        rows = logits[start : start + step]
        # Rows are alike: where one block has too many entries, the next will too.
        sparse = sparse and _sparse(rows, table)
        if not sparse:
            _dense(rows, table, bins)
    return logits


def _dense(rows, table, bins):
    """Look up every entry."""
    n_classes, n_bins = table.shape
    size = _DENSE_CELLS if bins.space == "prob" else _BLOCK_CELLS
    step = max(1, size // n_classes)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        cells = bins.index(part)
        cells += np.arange(n_classes, dtype=cells.dtype) * n_bins
        part[:] = table.take(cells)


def _sparse(rows, table):
    """Look up the entries above the first bin; False when there are too many."""
    n_classes, n_bins = table.shape
    slack = _slack(n_classes)
    low, high = np.float32(1 - slack), np.float32(1 + slack)
    # Probabilities in units of a bin, each off by a factor between low and high.
    with np.errstate(over="ignore"):  # -1e300 is -inf, and its probability 0
        level = np.exp(rows.astype(np.float32, copy=False))
    level *= (np.float32(n_bins) / np.einsum("ij->i", level))[:, None]
    above = (level >= low).reshape(-1)
    if np.count_nonzero(above) > _MAX_SHARE * above.size:
        return False
    where = rare_flags(above)
    level = level.reshape(-1).take(where)
    where32 = where.astype(np.int32)  # division is several times faster
    row = where32 // n_classes
    column = where32 - row * n_classes
    bins = (level * low).astype(np.int32)
    np.minimum(bins, n_bins - 1, out=bins)
    # The last bin holds whatever is above it.
    in_doubt = (bins + 1 <= level * high) & (bins < n_bins - 1)
    in_doubt = in_doubt.nonzero()[0]
    if len(in_doubt):
        # Each row once: all entries of a row may be in doubt.
        again, place = np.unique(row.take(in_doubt), return_inverse=True)
        exact = bin_index(softmax64(rows[again]), n_bins)
        bins[in_doubt] = exact[place, column.take(in_doubt)]
    rows[:] = table[:, 0]
    rows.reshape(-1)[where] = table.take(column * n_bins + bins)
    return True


def _slack(n_classes):
    """Bound on the relative error of a float32 probability that is no dust.

    In half units in the last place: a sum of n terms, n; its terms and the numerator,
    5 each from the exponential; float64 logits as float32, their size, which is below
    ``log(2 * n_bins)`` for an entry that reaches half a bin and on average below
    ``log(n_classes)`` in the sum; divisions and products, 1 each. With 64 for all but
    the first, this is twice as much.
    """
    return (n_classes + 64) * float(np.finfo(np.float32).eps)
