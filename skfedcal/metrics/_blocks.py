"""Passes over large arrays in blocks that stay in cache: numpy only."""

from collections.abc import Iterator

import numpy as np

# A block of few columns is cut by rows, since the metrics list entries per row.
MAX_ROWS = 1 << 14

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


def column_sums(rows: np.ndarray, buffer: np.ndarray) -> np.ndarray:
    """Return float64 column sums of a C-contiguous block; `buffer` is scratch."""
    n_rows, n_classes = rows.shape
    group = max(1, WIDE_ROW // n_classes)
    total = np.zeros(group * n_classes)
    step = max(1, buffer.size // total.size) * group
    ones = np.ones(step // group)
    for start in range(0, n_rows // group * group, step):
        part = rows[start : start + step]
        wide = part[: len(part) // group * group].reshape(-1, total.size)
        if wide.dtype != np.float64 and wide.size <= buffer.size:
            cast = buffer[: wide.size].reshape(wide.shape)
            np.copyto(cast, wide)
            wide = cast
        total += ones[: len(wide)] @ wide
    rest = rows[n_rows // group * group :]
    return total.reshape(group, -1).sum(axis=0) + rest.sum(axis=0, dtype=np.float64)
