"""Numbers behind a reliability diagram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal.evaluation._intervals import check_level
from skfedcal.metrics._binning import bin_sums
from skfedcal.metrics._labels import check_vector
from skfedcal.metrics._quantile import row_index
from skfedcal.metrics._validation import check_choice, check_n_bins, check_problem

Array = NDArray[Any]

# A frequency of fewer rows says little; of more bins the eye gets no more. Bins of
# equal width have few rows where scores are rare: fewer of them.
_ROWS_PER_BIN, _MOST_BINS, _MOST_EVEN = 40, 15, 10


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Scores of one event, and whether it happened.

    Parameters
    ----------
    scores : ndarray of shape (n_rows,)
        Predicted probabilities.
    happened : ndarray of shape (n_rows,)
        True where it did.
    """

    scores: Array
    happened: Array


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Bins that have rows, from left to right."""

    prob_pred: Array
    prob_true: Array
    low: Array
    high: Array
    counts: Array


def read_outcomes(
    y_true: ArrayLike, y_prob: ArrayLike, target: Any, labels: ArrayLike | None
) -> Outcomes:
    """Pick the event: that the predicted class is right, or that a class is true."""
    problem = check_problem(y_true, y_prob, labels, None)
    if isinstance(target, str) and target == "top":
        top = problem.proba.argmax(axis=1)
        scores = problem.proba[np.arange(len(top)), top]
        return Outcomes(scores.astype(np.float64), problem.codes == top)
    found = check_vector(y_true if labels is None else labels, "labels")
    classes = np.unique(found).tolist()
    if isinstance(target, np.ndarray) or target not in classes:
        raise ValueError(
            f"target={target!r} is neither 'top' nor one of the classes {classes}."
        )
    column = classes.index(target)
    scores = problem.proba[:, column].astype(np.float64)
    return Outcomes(scores, problem.codes == column)


def bin_points(
    outcomes: Outcomes, n_bins: int | str, strategy: str, ci: float
) -> Points:
    """Frequency and mean score of each bin, with Clopper and Pearson's interval."""
    check_choice("strategy", strategy, ("quantile", "uniform"))
    check_level(ci)
    scores = outcomes.scores
    if isinstance(n_bins, str):
        check_choice("n_bins", n_bins, ("auto",))
        most = _MOST_BINS if strategy == "quantile" else _MOST_EVEN
        size = max(2, min(most, len(scores) // _ROWS_PER_BIN))
    else:
        check_n_bins(n_bins)
        size = int(n_bins)
    index = row_index(scores, size, strategy, None)
    sums = bin_sums(scores, outcomes.happened.astype(np.float64), index, size)
    filled = sums.weight > 0
    rows, hits = sums.weight[filled], sums.labels[filled]
    low, high = count_interval(hits, rows, ci)
    return Points(sums.proba[filled] / rows, hits / rows, low, high, rows)


def count_interval(hits: Array, rows: Array, ci: float) -> tuple[Array, Array]:
    """Interval of a frequency that is never too short (Clopper and Pearson)."""
    from scipy.special import betaincinv

    tail = (1 - float(ci)) / 2
    misses = rows - hits
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), misses + 1, tail), 0.0)
    high = np.where(
        misses > 0, betaincinv(hits + 1, np.maximum(misses, 1), 1 - tail), 1.0
    )
    return low, high
