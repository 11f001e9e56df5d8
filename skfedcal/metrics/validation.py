"""Checks of what a user hands to a metric; labels of any kind to columns."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array, check_consistent_length

from skfedcal import _compiled
from skfedcal._docs import SharedDocs
from skfedcal._params import check_integer
from skfedcal.clients.arrays import clear_errors, from_tensor, read_array
from skfedcal.metrics.binning import blocks, product

metrics_documented = SharedDocs(
    r"""
    y_true : array-like of shape (n_samples,)
        True labels.
    y_prob : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities, columns in sorted label order. One dimension means the
        probability of the second of two classes.
    labels : array-like of shape (n_classes,), default=None
        All labels, one per column of `y_prob`. Needed when `y_true` misses some.
    sample_weight : array-like of shape (n_samples,), default=None
        Weight 0 is a row left out, weight 2 a row repeated.
    n_bins : int, default=15
        Number of bins.
    squared : bool, default=False
        Return the mean square gap instead of its root; only for ``norm='l2'``.
    debias : bool, default=False
        Subtract :math:`\bar y_b (1 - \bar y_b) / (n_b - 1)` from each squared gap
        (only for ``norm='l2'``); bins of weight 1 or less count as 0. This is the
        debiased estimator of Kumar et al., section 5. With ``squared=True`` the
        value may be negative, otherwise it is cut off at 0. It reads weights as
        counts of rows.
    """
)


def check_vector(values: ArrayLike, name: str) -> np.ndarray:
    """Return a one-dimensional array without missing values."""
    found = read_array(values, name)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found.ravel()
    if found.ndim != 1:
        raise ValueError(
            f"{name} must be one-dimensional, got shape {found.shape}. "
            "Pass one value per row, not a one-hot array."
        )
    if found.dtype.kind == "c":
        raise ValueError(f"{name} holds complex numbers; pass labels or real numbers.")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        row = int((~np.isfinite(found)).argmax())
        raise ValueError(f"{name} must be finite, but row {row} is {found[row]}.")
    return found


def encode_labels(
    y_true: np.ndarray, labels: ArrayLike | None, n_classes: int
) -> np.ndarray:
    """Return the column number of each label; columns are in sorted label order."""
    return count_labels(y_true, labels, n_classes)[0]


def count_labels(
    y_true: np.ndarray, labels: ArrayLike | None, n_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the column number of each label, and the rows of each column."""
    sizes = _sizes_of_codes(y_true, n_classes) if labels is None else None
    if sizes is not None:
        return y_true.astype(np.intp, copy=False), sizes
    codes = _encode(y_true, labels, n_classes)
    return codes, np.bincount(codes, minlength=n_classes)


def _sizes_of_codes(y_true: np.ndarray, n_classes: int) -> np.ndarray | None:
    """Return the rows of each column when labels are the column numbers, all used."""
    if y_true.dtype.kind != "i" or not y_true.size:
        return None
    if y_true.min() < 0 or y_true.max() >= n_classes:
        return None
    sizes = np.bincount(y_true, minlength=n_classes)
    return sizes if sizes.all() else None


def _encode(y_true: np.ndarray, labels: ArrayLike | None, n_classes: int) -> np.ndarray:
    classes = _classes(y_true if labels is None else check_vector(labels, "labels"))
    if len(classes) != n_classes:
        source = "y_true has" if labels is None else "`labels` names"
        raise ValueError(
            f"y_prob has {n_classes} columns but {source} {len(classes)} classes "
            f"({_few(classes)}). Pass `labels` with one label per column; columns are "
            "taken in sorted label order."
        )
    if (y_true.dtype.kind in "biuf") != (classes.dtype.kind in "biuf"):
        raise TypeError(
            f"y_true has dtype {y_true.dtype} but `labels` has dtype {classes.dtype}. "
            "Pass both as numbers or both as strings."
        )
    codes, unknown = _positions(y_true, classes)
    if len(unknown):
        raise ValueError(
            "y_true holds labels that `labels` does not name: "
            f"{_few(_classes(y_true[unknown]))}. `labels` is {_few(classes)}."
        )
    return codes


def _classes(values: np.ndarray) -> np.ndarray:
    """Return the sorted distinct values; integers of a small range by counting."""
    if values.dtype.kind == "i" and values.size:
        low, high = int(values.min()), int(values.max())
        if high - low < values.size:
            shifted = values - low if low else values
            return np.flatnonzero(np.bincount(shifted)) + low
    try:
        return np.unique(values)
    except (TypeError, ValueError):
        kinds = sorted({type(value).__name__ for value in values.tolist()})
        raise TypeError(
            f"Labels mix types that have no order ({', '.join(kinds)}). "
            "Convert them all to str."
        ) from None


def _positions(
    values: np.ndarray, classes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of each value in sorted `classes`, and the rows without one."""
    last = len(classes) - 1
    whole = values.dtype.kind in "iu" and classes.dtype.kind in "iu"
    if whole and int(classes[-1]) - int(classes[0]) == last:
        codes = values.astype(np.intp, copy=False)
        codes = codes - int(classes[0]) if classes[0] else codes
        if codes.min() >= 0 and codes.max() <= last:
            return codes, np.empty(0, dtype=np.intp)
        return codes, np.flatnonzero((codes < 0) | (codes > last))
    codes = np.minimum(np.searchsorted(classes, values), last)
    return codes, np.flatnonzero(classes[codes] != values)


def _few(classes: np.ndarray) -> str:
    """Return at most ten labels as text."""
    text = ", ".join(repr(label) for label in classes[:10].tolist())
    return f"[{text}, ...]" if len(classes) > 10 else f"[{text}]"


def positive_labels(y_true: np.ndarray, pos_label: object) -> tuple[np.ndarray, int]:
    """Return which rows are positive, and the column of that label when sorted."""
    if isinstance(pos_label, np.generic):
        pos_label = pos_label.item()
    several = isinstance(pos_label, list | tuple) and y_true.dtype.kind != "O"
    if isinstance(pos_label, np.ndarray) or several:
        raise TypeError(f"pos_label={pos_label!r} is an array; pass one label.")
    classes = _classes(y_true)
    if len(classes) > 2:
        raise ValueError(
            f"y_true has {len(classes)} classes ({_few(classes)}), but this metric is "
            "binary. Use classwise_calibration_error or expected_calibration_error."
        )
    if pos_label is None:
        pos_label = _default_positive(classes)
    elif len(classes) == 2 and pos_label not in classes.tolist():
        raise ValueError(f"pos_label={pos_label!r} is not a label: {_few(classes)}.")
    # With one observed label the other one is unknown; only its side matters.
    other = [label for label in classes.tolist() if label != pos_label]
    try:
        column = int(not other or bool(pos_label > other[0]))
    except (TypeError, ValueError):
        raise TypeError(
            f"pos_label={pos_label!r} cannot be compared with the labels "
            f"{_few(classes)}; pass one of them."
        ) from None
    return y_true == pos_label, column


def _default_positive(classes: np.ndarray) -> object:
    """Return the greater label, or 1 for a lone 0, 1 or -1."""
    if len(classes) == 2:
        return classes.tolist()[1]
    if classes.dtype.kind in "biuf" and classes[0] in (0, 1, -1):
        return 1
    raise ValueError(
        f"y_true holds one label ({_few(classes)}), so the positive one is not known. "
        "Pass `pos_label`."
    )


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
    for rows in blocks(proba, CHECK_BLOCK):
        good = _compiled.valid_rows(rows, SUM_TOLERANCE)
        if good is None:
            # The minimum comes first: it brings the block into cache faster.
            # Written so that NaN fails as well.
            ones = np.ones(proba.shape[1], proba.dtype)
            good = rows.min() >= 0 and sums_to_one(rows, ones)
        if not good:
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
    check_integer("n_bins", n_bins, 1, MAX_BINS)
