"""Checks of what a user hands to a metric; cheap beside the metric itself."""

from collections.abc import Collection
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array, check_consistent_length

from skfedcal.data._arrays import clear_errors, from_tensor, read_array
from skfedcal.metrics._blocks import blocks, product
from skfedcal.metrics._labels import check_vector, encode_labels

# Rows written with four decimals pass; logits and unnormalised scores do not.
SUM_TOLERANCE = 1e-3
CHECK_BLOCK = 1 << 18

# Bins of 1e-6 hold a row each; more of them only take memory.
MAX_BINS = 1 << 20


class Problem(NamedTuple):
    """Validated input: probabilities per class, column of each label, weights."""

    proba: np.ndarray
    codes: np.ndarray
    weight: np.ndarray | None


def check_problem(
    y_true: ArrayLike,
    y_prob: ArrayLike,
    labels: ArrayLike | None,
    sample_weight: ArrayLike | None,
) -> Problem:
    """Return validated two-dimensional probabilities, label codes and weights."""
    proba = check_proba(y_prob)
    y_true = check_labels(y_true, proba)
    codes = encode_labels(y_true, labels, proba.shape[1])
    return Problem(proba, codes, check_weight(sample_weight, len(proba)))


def check_labels(y_true: ArrayLike, proba: np.ndarray) -> np.ndarray:
    """Return one label per row of `proba`."""
    found = check_vector(y_true, "y_true")
    if len(found) != len(proba):
        check_consistent_length(found, proba)
    return found


def check_proba(y_prob: ArrayLike) -> np.ndarray:
    """Return float probabilities of shape (n_samples, n_classes >= 2)."""
    proba = as_columns(y_prob)
    check_rows(proba)
    return proba


def as_columns(y_prob: ArrayLike) -> np.ndarray:
    """Return a float array of two columns or more, whose rows are not checked yet."""
    proba = as_floats(y_prob)
    if proba.ndim == 2 and proba.shape[1] > 1:
        return proba
    positive = check_positive(proba)
    return np.column_stack([1 - positive, positive])


def check_rows(proba: np.ndarray) -> None:
    """Raise unless every row is a distribution."""
    ones = np.ones(proba.shape[1], proba.dtype)
    for rows in blocks(proba, CHECK_BLOCK):
        # The minimum comes first: it brings the block into cache faster.
        # Written so that NaN fails as well.
        if not (rows.min() >= 0 and sums_to_one(rows, ones)):
            raise ValueError(fault(proba))


def sums_to_one(rows: np.ndarray, ones: np.ndarray) -> bool:
    """Tell whether every row of a block sums to 1; False where one is NaN."""
    total = product(rows, ones)
    off = max(abs(float(total.min()) - 1), abs(float(total.max()) - 1))
    return off <= SUM_TOLERANCE


def check_positive(proba: np.ndarray) -> np.ndarray:
    """Return one-dimensional probabilities of the positive class."""
    positive = proba.ravel()
    if not (positive.min() >= 0 and positive.max() <= 1):
        row = int(np.flatnonzero(~((positive >= 0) & (positive <= 1)))[0])
        raise ValueError(
            f"y_prob must lie in [0, 1], but row {row} is {positive[row]}. "
            "Pass probabilities, not logits."
        )
    return positive


def as_floats(y_prob: ArrayLike) -> np.ndarray:
    """Return a non-empty float32 or float64 array of one or two dimensions."""
    # check_array costs as much as the metric of a small array: not for clean input.
    if (
        type(y_prob) is np.ndarray
        and y_prob.dtype in (np.float64, np.float32)
        and y_prob.ndim in (1, 2)
        and y_prob.size
    ):
        return y_prob
    with clear_errors("y_prob"):
        proba = check_array(
            from_tensor(y_prob),
            dtype=[np.float64, np.float32],
            ensure_2d=False,
            ensure_all_finite=False,
            input_name="y_prob",
        )
    if not proba.ndim:
        raise ValueError("y_prob is a single number; pass one row per example.")
    return proba


def fault(proba: np.ndarray) -> str:
    """Describe the first row that is not a distribution."""
    bad = ~(np.isfinite(proba) & (proba >= 0)).all(axis=1)
    if bad.any():
        row = int(bad.argmax())
        column = int((~(np.isfinite(proba[row]) & (proba[row] >= 0))).argmax())
        return (
            f"y_prob must hold finite probabilities >= 0, but row {row}, column "
            f"{column} is {proba[row, column]}. Drop the row or pass probabilities."
        )
    with np.errstate(over="ignore"):
        total = proba.sum(axis=1, dtype=np.float64)
    row = int((abs(total - 1) > SUM_TOLERANCE / 2).argmax())
    return (
        f"The rows of y_prob must sum to 1 (within {SUM_TOLERANCE}), but row {row} "
        f"sums to {total[row]:.6g}. Divide by the row sums, or apply a softmax if "
        "these are logits."
    )


def check_weight(sample_weight: ArrayLike | None, n_samples: int) -> np.ndarray | None:
    """Return float64 weights, at least one of them positive, or None."""
    if sample_weight is None:
        return None
    weight = read_array(sample_weight, "sample_weight", np.float64)
    weight = check_vector(weight, "sample_weight")
    if len(weight) != n_samples:
        raise ValueError(
            f"sample_weight has {len(weight)} values but y_prob has {n_samples} rows."
        )
    if weight.min() < 0:
        row = int(weight.argmin())
        raise ValueError(
            f"sample_weight must be >= 0, but row {row} has {weight[row]}. "
            "Use 0 to leave a row out."
        )
    if not weight.any():
        raise ValueError("sample_weight is 0 for every row; nothing is left to score.")
    # Sums of a few weights, and of their squares, must stay numbers.
    if not 1e-150 < weight.max() < 1e150 / n_samples:
        raise ValueError(
            f"The largest sample_weight is {weight.max():g}; scale the weights to "
            "about 1."
        )
    return weight


def check_n_bins(n_bins: int) -> None:
    """Raise unless `n_bins` is a positive integer."""
    if isinstance(n_bins, bool) or not isinstance(n_bins, Integral):
        raise TypeError(
            f"n_bins must be an integer, got {n_bins!r} ({type(n_bins).__name__})."
        )
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}.")
    if n_bins > MAX_BINS:
        raise ValueError(f"n_bins must be at most {MAX_BINS}, got {n_bins}.")


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise unless `value` is one of `choices`."""
    if isinstance(value, np.ndarray) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}; got {value!r}.")


def check_threshold(value: float, name: str = "threshold") -> None:
    """Raise unless `value` is a number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{name} must be a number, got {value!r} ({type(value).__name__})."
        )
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value}.")
