"""Passes over large arrays in blocks that stay in cache: numpy only."""

from collections.abc import Iterator

import numpy as np

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
