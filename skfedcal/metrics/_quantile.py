"""Equal-mass bins."""

import numpy as np

from skfedcal.metrics._binning import BinSums, bin_index, bin_sums


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
