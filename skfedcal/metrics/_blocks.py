"""Passes over large arrays in blocks that stay in cache: numpy only."""

from collections.abc import Iterator

import numpy as np

# A block of few columns is cut by rows, since the metrics list entries per row.
MAX_ROWS = 1 << 14

# Elements of a float32 block that are copied to float64 at a time.
CAST_BLOCK = 1 << 15

# Matrix-vector products run at memory speed only on rows of about this length.
WIDE_ROW = 512


def blocks(proba: np.ndarray, n_elements: int) -> Iterator[np.ndarray]:
    """Yield C-contiguous blocks of rows, a multiple of eight rows each."""
    step = max(8, min(MAX_ROWS, n_elements // proba.shape[1] // 8 * 8))
    for start in range(0, len(proba), step):
        yield np.ascontiguousarray(proba[start : start + step])


def column_of(where: np.ndarray, n_classes: int) -> np.ndarray:
    """Return ``where % n_classes``; 32-bit division is several times faster."""
    where = where.astype(np.int32)
    return where - where // n_classes * n_classes


def rare_flags(flags: np.ndarray) -> np.ndarray:
    """Return the positions of the few true flags, eight flags at a time."""
    if flags.size % 8:
        return np.flatnonzero(flags)
    words = flags.view(np.uint64)
    hit = np.flatnonzero(words != 0)
    inside = np.flatnonzero(words.take(hit).view(np.bool_))
    return hit.take(inside >> 3) * 8 + (inside & 7)


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return ``left @ right`` without numpy's word on invalid values."""
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
    total = np.zeros(group * n_classes)
    step = max(1, CAST_BLOCK // total.size)
    ones = np.ones(step)
    for start in range(0, len(wide), step):
        part = wide[start : start + step].astype(np.float64, copy=False)
        total += product(ones[: len(part)], part)
    rest = rows[whole:].sum(axis=0, dtype=np.float64)
    return total.reshape(group, n_classes).sum(axis=0) + rest
