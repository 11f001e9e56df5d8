"""Finite-sample floor: what a perfectly calibrated model would show."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from skfedcal._params import check_choice, check_integer, check_number
from skfedcal.metrics._calibration_error import (
    AVERAGES,
    BinnedError,
    as_result,
    average_classes,
    classwise_sums,
    positive_column,
)
from skfedcal.metrics.binning import (
    BinSums,
    bin_index,
    bin_sums,
    class_edges,
    proba_of,
    row_index,
)
from skfedcal.metrics.validation import (
    as_floats,
    check_proba,
    check_weight,
)

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


METRICS = (
    "classwise_calibration_error",
    "expected_calibration_error",
    "calibration_error",
)


class CalibrationFloor(NamedTuple):
    """Mean and standard deviation of a metric under perfect calibration.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.metrics import calibration_floor
    >>> proba = np.random.default_rng(0).dirichlet(np.ones(3), size=200)
    >>> floor = calibration_floor(proba, random_state=0)
    >>> floor.mean > floor.std > 0
    True
    """

    mean: float | np.ndarray
    std: float | np.ndarray
    n_repeats: int


def calibration_floor(
    y_prob: ArrayLike,
    *,
    metric: str = "classwise_calibration_error",
    n_repeats: int = 100,
    sample_weight: ArrayLike | None = None,
    random_state: int | np.random.RandomState | np.random.Generator | None = None,
    **metric_params: Any,
) -> CalibrationFloor:
    """Value of a calibration error when the labels follow the predictions.

    A binned error is positive even for a perfect model, because each bin holds few
    rows. An error within a few standard deviations of this floor says nothing
    against the model.

    Parameters
    ----------
    y_prob : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities; one dimension means the second of two classes.
    metric : str, default='classwise_calibration_error'
        Also 'expected_calibration_error' and, for two classes, 'calibration_error'.
    n_repeats : int, default=100
        How many times all labels are drawn from `y_prob`; at least 2.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights for the metric; a row is drawn once whatever its weight.
    random_state : int, RandomState, Generator or None, default=None
        Source of the draws.
    **metric_params
        `n_bins`, `norm`, `squared`, `strategy`, `debias` of the metric; `threshold`
        and `average` for the classwise one.

    Returns
    -------
    CalibrationFloor
        Named tuple ``(mean, std, n_repeats)``; arrays with ``average=None``.

    Notes
    -----
    Equals calling the metric on labels drawn from each row of `y_prob`, repeated;
    the sums of `y_prob` over bins are taken once.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.metrics import calibration_floor
    >>> y_prob = np.random.default_rng(0).dirichlet(np.ones(3), size=200)
    >>> floor = calibration_floor(y_prob, n_bins=10, random_state=0)
    >>> bool(0.02 < floor.mean < 0.12)
    True
    """
    check_choice("metric", metric, METRICS)
    check_integer("n_repeats", n_repeats, 2)
    rng = _generator(random_state)
    if metric == "classwise_calibration_error":
        values = _classwise(y_prob, sample_weight, n_repeats, rng, **metric_params)
    else:
        error = BinnedError(**metric_params)
        if metric == "calibration_error":
            proba = positive_column(as_floats(y_prob))
        else:
            proba = check_proba(y_prob).max(axis=1).astype(np.float64)
        weight = check_weight(sample_weight, len(proba))
        values = error(resampled_rows(proba, error, weight, n_repeats, rng))
    mean, std = values.mean(axis=0), values.std(axis=0, ddof=1)
    return CalibrationFloor(as_result(mean), as_result(std), n_repeats)


def _classwise(
    y_prob: ArrayLike,
    sample_weight: ArrayLike | None,
    n_repeats: int,
    rng: np.random.Generator,
    *,
    threshold: float = 0.0,
    average: str | None = "macro",
    **params: Any,
) -> np.ndarray:
    """Return the classwise error of every repeat."""
    error = BinnedError(**params)
    check_number("threshold", threshold, 0, 1)
    check_choice("average", average, AVERAGES)
    proba = check_proba(y_prob)
    weight = check_weight(sample_weight, len(proba))
    any_label = np.zeros(len(proba), dtype=np.intp)
    sums = classwise_sums(proba, any_label, error, weight, threshold)
    edges = None
    if error.strategy == "quantile":
        edges = class_edges(proba, error.n_bins, weight, threshold)
    shape = (n_repeats, proba.shape[1], error.n_bins)
    labels, frequency = np.zeros(shape), np.zeros(shape[:2])
    step = max(1, min(DRAW_BLOCK // n_repeats, CUMULATIVE_BLOCK // proba.shape[1]))
    for start in range(0, len(proba), step):
        rows = proba[start : start + step].astype(np.float64)
        share = np.ones(len(rows)) if weight is None else weight[start : start + step]
        codes = draw_labels(rows, n_repeats, rng)
        count_labels(labels, frequency, rows, codes, share, edges, threshold)
    errors = error(BinSums(sums.proba, labels, sums.weight))
    return average_classes(errors, average, frequency)


def _generator(
    random_state: int | np.random.RandomState | np.random.Generator | None,
) -> np.random.Generator:
    """Return a Generator, seeded through scikit-learn's rules."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    seed = check_random_state(random_state).randint(0, 2**31, size=4)
    return np.random.default_rng(seed)
