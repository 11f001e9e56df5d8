"""Labels drawn from predictions, counted per bin, many repeats at once."""

import numpy as np

from skfedcal.metrics._binning import BinSums, bin_index, bin_sums, proba_of
from skfedcal.metrics._quantile import row_index
from skfedcal.metrics._reduction import BinnedError

# Draws and cumulative probabilities held at a time.
DRAW_BLOCK = 1 << 18
CUMULATIVE_BLOCK = 1 << 20


def resampled_rows(
    proba: np.ndarray,
    error: BinnedError,
    weight: np.ndarray | None,
    n_repeats: int,
    rng: np.random.Generator,
) -> BinSums:
    """Return sums with labels of shape (n_repeats, n_bins), one Bernoulli per row."""
    index = row_index(proba, error.n_bins, error.strategy, weight)
    order = np.argsort(index, kind="stable")
    present, starts = np.unique(index[order], return_index=True)
    share = np.ones(len(proba)) if weight is None else weight[order]
    labels = np.zeros((n_repeats, error.n_bins))
    step = max(1, DRAW_BLOCK // len(proba))
    for start in range(0, n_repeats, step):
        rows = labels[start : start + step]
        drawn = rng.random((len(rows), len(proba))) < proba[order]
        rows[:, present] = np.add.reduceat(drawn * share, starts, axis=1)
    sums = bin_sums(proba, np.zeros(len(proba)), index, error.n_bins, weight)
    return BinSums(sums.proba, labels, sums.weight)


def draw_labels(
    rows: np.ndarray, n_repeats: int, rng: np.random.Generator
) -> np.ndarray:
    """Return labels drawn from each row, shape (n_repeats, n_rows)."""
    n_rows, n_classes = rows.shape
    first = np.arange(n_rows)
    # One search for all rows: row i owns the interval [i, i + 1) of a long axis.
    reach = np.cumsum(rows, axis=1)
    reach /= reach[:, -1:]
    reach += first[:, None]
    place = rng.random((n_repeats, n_rows)) + first
    found = np.searchsorted(reach.ravel(), place, side="right") - first * n_classes
    return np.minimum(found, n_classes - 1)


def count_labels(
    labels: np.ndarray,
    frequency: np.ndarray,
    rows: np.ndarray,
    codes: np.ndarray,
    share: np.ndarray,
    edges: np.ndarray | None,
    threshold: float,
) -> None:
    """Add the drawn labels of a block of rows to `labels` and `frequency`."""
    n_repeats, n_classes, n_bins = labels.shape
    chosen = proba_of(rows, codes)
    if edges is None:
        index = bin_index(chosen, n_bins)
    else:
        index = np.zeros_like(codes)
        for edge in edges.T:
            index += edge[codes] <= chosen
    group = np.arange(n_repeats)[:, None] * n_classes + codes
    mass = np.broadcast_to(share, codes.shape)
    frequency += _tally(group, mass, frequency.shape)
    mass = mass * (chosen >= threshold)
    labels += _tally(group * n_bins + index, mass, labels.shape)


def _tally(cells: np.ndarray, mass: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the mass that falls in each cell of an array of this shape."""
    size = int(np.prod(shape))
    return np.bincount(cells.ravel(), mass.ravel(), size).reshape(shape)
