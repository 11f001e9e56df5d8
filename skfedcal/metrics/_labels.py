"""Labels of any kind to column numbers."""

import numpy as np
from numpy.typing import ArrayLike

from skfedcal.data._arrays import read_array


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
